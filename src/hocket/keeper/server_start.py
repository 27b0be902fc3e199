"""Starts the server detached from its caller: the command line, or a keeper that found it gone.

Imported on the command line's hot path, so it needs `os` and `sys` alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

LOG = "server.log"

# What belongs to one run or to the caller's own session must not reach the server, which serves all runs.
_RUN_VARIABLES = frozenset({"HOCKET_RUN", "HOCKET_TOKEN", "HOCKET_TASK", "HOCKET_URL"})
_RUN_PREFIXES = ("CLAUDE_AGENT_", "AGENT_")


def start_server(home: str, env: Mapping[str, str]) -> None:
    """Start `hocket serve` for this home and return at once; it is not our child, and leaves no zombie.

    It forks, so the caller must be single-threaded. Its lock and its socket show whether it came up.
    """
    environment = {**server_environment(env), "HOCKET_HOME": home}
    child = os.fork()
    if child == 0:
        _detach_and_run(home, environment)
    os.waitpid(child, 0)


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """This environment without a trace of any run, and marked so that no sweep takes the server with it."""
    kept = {
        name: value for name, value in env.items() if name not in _RUN_VARIABLES and not name.startswith(_RUN_PREFIXES)
    }
    return {**kept, "HOCKET_SERVER": "1"}


def _detach_and_run(home: str, environment: Mapping[str, str]) -> NoReturn:
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        # What the server starts does not belong to the run that this may have been started in.
        from hocket.keeper.platform import set_inherited_mark  # Not imported by every command.

        set_inherited_mark(None)
        log = os.open(os.path.join(home, LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, descriptor in enumerate((null, log, log)):
            os.dup2(descriptor, target)
        os.closerange(3, max(os.sysconf("SC_OPEN_MAX"), 4096))
        # Python looks for modules in the working directory: that must be ours, never a project.
        os.chdir(home)
        os.execve(sys.executable, [sys.executable, "-m", "hocket", "serve"], environment)
    finally:
        os._exit(1)
