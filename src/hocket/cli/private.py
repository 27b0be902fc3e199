"""A Hocket of its own for one command: a home, a server and an environment in a temporary folder, gone at the end.

Rehearsals and the tour happen in one. The user's own server, runs and files are not reached from inside.

    python -m hocket.cli.private FOLDER [--keep]

is the second process of such a command: should the first be killed, it ends what is left of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hocket import config
from hocket.cli import access
from hocket.client import quote
from hocket.client.startup import lock_held
from hocket.errors import HocketError, HomeError

GRACE_SECONDS = 5.0
KEEP = "--keep"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Place:
    """Where everything lies."""

    def __init__(self, root: Path, keep: bool) -> None:
        self.root = root
        self.keep = keep
        """Whether the folder stays when all else is gone."""

    @property
    def home(self) -> str:
        return str(self.root / "home")

    def folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path


@contextmanager
def private_place(name: str, keep: bool = False) -> Iterator[Place]:
    """A temporary folder. Whatever works for its home is gone before the folder is, also when we are killed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up means nothing, and that is to stay so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    place = Place(_temporary_folder(name), keep)
    with ExitStack() as stack:
        _set_up(place, stack)
        try:
            yield place
        finally:
            # What is done now takes a moment at most, and half of it would be worse than none.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            _end(place)


def _set_up(place: Place, stack: ExitStack) -> None:
    """A home, and the process that ends what is left of us. Without them nothing is left, not even a folder."""
    from hocket.keeper.cleanup_process import heir

    second = [sys.executable, "-m", "hocket.cli.private", str(place.root), *([KEEP] if place.keep else [])]
    try:
        place.folder("home")
        stack.enter_context(heir(second, config.process_environment(), str(place.root)))
    except OSError as error:
        shutil.rmtree(place.root, ignore_errors=True)
        raise HomeError(
            f"cannot set up a Hocket of its own for this command: {error.strerror}",
            "see whether the disk is full, or too many processes are at work",
        ) from error


def _temporary_folder(name: str) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=f"hocket-{name}-")).resolve()
    except OSError as error:
        raise HomeError(
            f"cannot make a temporary folder: {error.strerror}", "choose another place with TMPDIR"
        ) from error


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def environment(place: Place, before: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment, with a home of our own and no trace of the run that the caller may be."""
    kept = {name: value for name, value in before.items() if not name.startswith("HOCKET_")}
    own = {"HOCKET_HOME": place.home, "HOCKET_PORT": "0"}
    return {**kept, **config.named_programs(before), **own, **more}


def share_configuration(place: Place, users_home: str) -> None:
    """The user's own chains, names, trust and agents hold here, too; a new home has the agents that every one has."""
    from hocket.catalog.configs import folder
    from hocket.catalog.default_agents import seed

    Path(folder(place.home)).mkdir(mode=0o700, parents=True)
    agents = [path.relative_to(users_home) for path in Path(folder(users_home)).glob("*.json")]
    for name in (Path("config.toml"), Path("trust.json"), *agents):
        users = Path(users_home, name)
        if os.path.lexists(users):
            Path(place.home, name).symlink_to(users)
    seed(Path(place.home))


def _end(place: Place) -> None:
    from hocket.keeper.process_tree import sweep_home

    with suppress(HocketError, OSError):
        _stop_runs(place.home)
    sweep_home(place.home, GRACE_SECONDS)
    if not place.keep:
        shutil.rmtree(place.root, ignore_errors=True)


def _stop_runs(home: str) -> None:
    """By their keepers, who find what an agent has left behind as well."""
    if config.home() != home or not lock_held(home):
        return
    client = access.connect(starting=False, talk=False)
    for run in client.request("GET", "/api/runs"):
        if run["parent"] is None:
            client.request("POST", f"/api/runs/{quote(run['id'])}/stop", {})


def inherit(folder: str, keep: bool) -> None:
    """Waits for the end of the command whose folder this is, and does what it can no longer do."""
    sys.stdin.read()
    place = Place(Path(folder), keep)
    config.take_on({**config.process_environment(), "HOCKET_HOME": place.home})
    _end(place)


if __name__ == "__main__":
    inherit(sys.argv[1], KEEP in sys.argv[2:])
