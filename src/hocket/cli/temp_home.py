"""A temporary home for one command: a home, a server and an environment of its own, gone at the end.

Rehearsals and the demo run in one; the user's own server, runs and files are not reached from inside.

    python -m hocket.cli.temp_home FOLDER [--keep]

is a second process of such a command, which cleans up if the first is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hocket import config
from hocket.catalog.configs import folder
from hocket.catalog.default_agents import seed
from hocket.catalog.discovery import discover
from hocket.catalog.entries import PROJECT
from hocket.cli import access
from hocket.cli.agent_comparison import SHARED_SOURCES
from hocket.client import quote
from hocket.client.startup import lock_held
from hocket.config.loading import load
from hocket.errors import HocketError, HomeError
from hocket.keeper.cleanup_process import heir
from hocket.keeper.process_tree import sweep_home
from hocket.providers.defining import DEFINITIONS
from hocket.rehearsal import install
from hocket.trust.approvals import Approvals

GRACE_SECONDS = 5.0
KEEP = "--keep"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
API_KEY = "rehearsal"
ACCOUNT_PREFIXES = ("ANTHROPIC_", "CLAUDE_")
"""Variables that could lead the CLI to an account, a network or the user's own files."""
OFFLINE = {
    "ANTHROPIC_API_KEY": API_KEY,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "1",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",
}
LOOPBACK = "127.0.0.1,localhost"


class TempHome:
    """The folders of a temporary home."""

    def __init__(self, root: Path, keep: bool) -> None:
        self.root = root
        self.keep = keep
        """True if the folder stays when everything else is gone."""

    @property
    def home(self) -> str:
        return str(self.root / "home")

    def folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path


@contextmanager
def temp_home(name: str, keep: bool = False) -> Iterator[TempHome]:
    """A temporary home. Its processes are gone before its folder is, even if this process is killed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup ignores SIGHUP, and that has to stay so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)
    place = TempHome(_temporary_folder(name), keep)
    with ExitStack() as stack:
        _set_up(place, stack)
        try:
            yield place
        finally:
            # The clean-up is short and must not be interrupted half-way.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            _clean_up(place)


def _set_up(place: TempHome, stack: ExitStack) -> None:
    """Create the home and start the clean-up process; on failure nothing is left behind."""
    second = [sys.executable, "-m", "hocket.cli.temp_home", str(place.root), *([KEEP] if place.keep else [])]
    try:
        place.folder("home")
        stack.enter_context(heir(second, config.process_environment(), str(place.root)))
    except OSError as error:
        shutil.rmtree(place.root, ignore_errors=True)
        raise HomeError(
            f"cannot set up a temporary home: {error.strerror}",
            "check for a full disk or too many processes",
        ) from error


def _temporary_folder(name: str) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=f"hocket-{name}-")).resolve()
    except OSError as error:
        raise HomeError(
            f"cannot create a temporary folder: {error.strerror}", "choose another place with TMPDIR"
        ) from error


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def temp_environment(place: TempHome, before: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with the temporary home, without the variables of the run that the caller may be."""
    kept = {name: value for name, value in before.items() if not name.startswith("HOCKET_")}
    own = {"HOCKET_HOME": place.home, "HOCKET_PORT": "0"}
    return {**kept, **config.named_programs(before), **own, **more}


def share_configuration(place: TempHome, users_home: str) -> None:
    """Link the user's configuration, approvals and agents into the temporary home, and add the default agents."""
    Path(folder(place.home)).mkdir(mode=0o700, parents=True)
    agents = [path.relative_to(users_home) for path in Path(folder(users_home)).glob("*.json")]
    for name in (Path("config.toml"), Path("trust.json"), *agents):
        users = Path(users_home, name)
        if os.path.lexists(users):
            Path(place.home, name).symlink_to(users)
    seed(Path(place.home))


def _clean_up(place: TempHome) -> None:
    with suppress(HocketError, OSError):
        _stop_runs(place.home)
    sweep_home(place.home, GRACE_SECONDS)
    if not place.keep:
        shutil.rmtree(place.root, ignore_errors=True)


def _stop_runs(home: str) -> None:
    """Stop the runs by their keepers, which also end what an agent has left running."""
    if config.home() != home or not lock_held(home):
        return
    client = access.connect(starting=False, talk=False)
    for run in client.request("GET", "/api/runs"):
        if run["parent"] is None:
            client.request("POST", f"/api/runs/{quote(run['id'])}/stop", {})


def clean_up_after(root: str, keep: bool) -> None:
    """Wait for the end of the command that uses this folder, then clean up what it left."""
    sys.stdin.read()
    place = TempHome(Path(root), keep)
    config.replace_environment({**config.process_environment(), "HOCKET_HOME": place.home})
    _clean_up(place)


# --- Environments -------------------------------------------------------------------------------------------


def scripted_environment(place: TempHome, script: Path, state: Path, found: Mapping[str, str]) -> dict[str, str]:
    """Variables that replace every Claude agent by a scripted one. Raises for an invalid script.

    ``found`` are the agents in files, which may be their sub-agents.
    """
    return {"HOCKET_CLAUDE": str(install(place.folder("player"), script, state, found))}


def sub_agents(cwds: Iterable[str], env: Mapping[str, str], home: str) -> dict[str, str]:
    """The agents that the Claude CLI finds in files, each with its level: ``project`` or ``user``."""
    entries = [
        entry
        for cwd in cwds
        for approvals in [Approvals(load(cwd, home))]
        for ranked in discover(cwd, env, home, approvals.config, approvals).ranked.values()
        for entry in ranked
        if entry.source in SHARED_SOURCES
    ]
    # One in both counts as the user's, which is loaded even where the project's settings are not.
    return {
        **{entry.name: "project" for entry in entries if entry.source == PROJECT},
        **{entry.name: "user" for entry in entries if entry.source != PROJECT},
    }


def real_environment(place: TempHome, url: str, before: Mapping[str, str]) -> dict[str, str]:
    """Variables that give the real CLI a model on this machine, and settings and transcripts of its own."""
    around = {name: _with_loopback(before.get(name, "")) for name in ("NO_PROXY", "no_proxy")}
    own = {"CLAUDE_CONFIG_DIR": str(place.folder("claude")), "TMPDIR": str(place.folder("tmp"))}
    own["XDG_CACHE_HOME"] = str(place.folder("cache"))  # logs of its MCP servers
    return {**OFFLINE, **around, **own, "ANTHROPIC_BASE_URL": url}


def without_account(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(ACCOUNT_PREFIXES)}


def _with_loopback(exceptions: str) -> str:
    return f"{exceptions},{LOOPBACK}" if exceptions else LOOPBACK


def share_agents(place: TempHome, cwd: str, before: Mapping[str, str]) -> None:
    """Link the user's agents into the temporary configuration folder of the CLI."""
    users = DEFINITIONS.user_folder(cwd, before)
    if users is not None and os.path.isdir(users):
        os.symlink(os.path.abspath(users), place.folder("claude") / "agents")


if __name__ == "__main__":
    clean_up_after(sys.argv[1], KEEP in sys.argv[2:])
