"""``mcp``: the MCP server on standard input and output, for clients that start one of their own; so it loads little."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hocket.cli.usage import command

if TYPE_CHECKING:
    from hocket.client import Client
    from hocket.mcp.calls import Me

STARTING_SECONDS = 60.0
_IN, _OUT = 0, 1


@command(examples=("hocket mcp", "claude mcp add hocket -- hocket mcp"))
def mcp() -> None:
    """Let an agent start others and hand work to them: an MCP server on standard input and output.

    Claude runs that Hocket starts have it already. It ends with its input; what it started goes on.
    """
    from hocket.mcp.stdio import serve

    serve(_IN, _write, _connect, _me)


def _write(data: bytes) -> None:
    """Whole, or, where nobody reads any more, not at all: the end of the input comes soon."""
    try:
        while data:
            data = data[os.write(_OUT, data) :]
    except BrokenPipeError:
        pass  # contextlib costs more than the rest of an answer


def _connect() -> Client:
    from hocket.cli import access

    return access.connect(talk=False, start=_start_server)


def _start_server() -> None:
    """By a command of its own: starting a server forks, which a process with threads must not."""
    import sys

    from hocket import config
    from hocket.keeper.programs import run_tool

    argv = [sys.executable, "-P", "-m", "hocket", "ps", "--json"]
    run_tool(argv, config.home(), config.process_environment(), STARTING_SECONDS, 0)


def _me() -> Me:
    """The run that this process belongs to, by what its environment says; else whoever sits here."""
    from hocket import config
    from hocket.cli import access
    from hocket.mcp.calls import Me

    caller = config.caller()
    if caller.run and caller.token and caller.url == f"unix:{config.socket_path(config.home())}":
        return Me(caller.run, caller.task)
    here = access.directory(None)
    return Me(cwd=here, env=access.environment(here))
