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
from hocket.keeper.process_tree import sweep_home
from hocket.keeper.programs import cleanup_process
from hocket.providers.defining import DEFINITIONS
from hocket.rehearsal import ScriptedModel, install
from hocket.rehearsal import load as load_script
from hocket.trust.approvals import Approvals
from hocket.workflows.notifications import DISABLED

GRACE_SECONDS = 5.0
KEEP = "--keep"
API_KEY = "rehearsal"
ACCOUNT_PREFIXES = ("ANTHROPIC_", "CLAUDE_")
"""Variables that could lead the CLI to an account, a network or the user's own files."""
OFFLINE = {
    "ANTHROPIC_AUTH_TOKEN": API_KEY,  # in a terminal the CLI asks whether to use a key
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "1",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",
}
FIRST_STEPS_DONE = '{"hasCompletedOnboarding": true}'
"""What keeps the CLI from asking for a theme and a login in a terminal."""
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
    try:
        place = TempHome(Path(tempfile.mkdtemp(prefix=f"hocket-{name}-")).resolve(), keep)
    except OSError as error:
        raise HomeError(
            f"cannot create a temporary folder: {error.strerror}", "choose another place with TMPDIR"
        ) from error
    with ExitStack() as stack:
        second = [sys.executable, "-m", "hocket.cli.temp_home", str(place.root), *([KEEP] if keep else [])]
        try:
            (place.folder("home") / DISABLED).touch()
            stack.enter_context(cleanup_process(second, config.process_environment(), str(place.root)))
        except OSError as error:
            shutil.rmtree(place.root, ignore_errors=True)
            why = f"cannot set up a temporary home: {error.strerror}"
            raise HomeError(why, "check for a full disk or too many processes") from error
        try:
            yield place
        finally:
            # The clean-up is short and must not be interrupted half-way.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            _clean_up(place)


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
    """Stop the runs by their keepers, which also end what an agent has left running; then remove everything."""
    with suppress(HocketError, OSError):
        if config.home() == place.home and lock_held(place.home):
            client = access.connect(starting=False, talk=False)
            for run in client.request("GET", "/api/runs"):
                if run["parent"] is None:
                    client.request("POST", f"/api/runs/{quote(run['id'])}/stop", {})
    sweep_home(place.home, GRACE_SECONDS)
    if not place.keep:
        shutil.rmtree(place.root, ignore_errors=True)


def clean_up_after(root: str, keep: bool) -> None:
    """Wait for the end of the command that uses this folder, then clean up what it left."""
    sys.stdin.read()
    place = TempHome(Path(root), keep)
    config.replace_environment({**config.process_environment(), "HOCKET_HOME": place.home})
    _clean_up(place)


# --- Scripted agents ----------------------------------------------------------------------------------------


@contextmanager
def scripted_agents(place: TempHome, script: Path, env: Mapping[str, str], found: Mapping[str, str]) -> Iterator[None]:
    """Set the environment in which scripted agents replace all Claude agents. Raises for an invalid script.

    ``found`` are the agents in files, which may be their sub-agents.
    """
    program = install(place.folder("player"), script, place.folder("state"), found)
    config.replace_environment(temp_environment(place, env, {"HOCKET_CLAUDE": str(program)}))
    yield


@contextmanager
def scripted_model(place: TempHome, script: Path, env: Mapping[str, str], agents: Mapping[str, str]) -> Iterator[None]:
    """Set the environment in which the real CLI has a model on this machine, and settings and transcripts of its own.

    The model recognises ``agents`` by their prompts.
    """
    model = ScriptedModel(load_script(script), state=place.folder("state"), agents=agents)
    # Start the server now, because it forks, which has to happen before there are threads.
    access.connect(talk=False).request("GET", "/api/health")
    with model:
        own = {"CLAUDE_CONFIG_DIR": str(place.folder("claude")), "TMPDIR": str(place.folder("tmp"))}
        (place.folder("claude") / ".claude.json").write_text(FIRST_STEPS_DONE, encoding="utf-8")
        own["XDG_CACHE_HOME"] = str(place.folder("cache"))  # logs of its MCP servers
        for name in ("NO_PROXY", "no_proxy"):
            own[name] = ",".join(part for part in (env.get(name), LOOPBACK) if part)
        more = {**OFFLINE, **own, "ANTHROPIC_BASE_URL": model.url}
        config.replace_environment(temp_environment(place, without_account(env), more))
        yield


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


def without_account(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(ACCOUNT_PREFIXES)}


def share_agents(place: TempHome, cwd: str, before: Mapping[str, str]) -> None:
    """Link the user's agents into the temporary configuration folder of the CLI."""
    users = DEFINITIONS.user_folder(cwd, before)
    if users is not None and os.path.isdir(users):
        os.symlink(os.path.abspath(users), place.folder("claude") / "agents")


if __name__ == "__main__":
    clean_up_after(sys.argv[1], KEEP in sys.argv[2:])
