"""Removing runs while the server is killed, while the disk is full, and with a long history."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import PATIENCE
from store.sample_events import StoreWriter, created, ended, said
from torture.installation import Installation, wait_for
from torture.test_crash_points import KILLED, Calls, strace
from torture.test_machine import fill, integrity, needs_root, reserve_of, tmpfs
from world import Bin, Hocket

from hocket.client import Client
from hocket.errors import DiskLow, HocketError, NotFound
from hocket.store import NewRun, open_store

TALK = 'import sys\nprint("one\\ntwo")\nprint("three", file=sys.stderr)\n'
CALLS = [
    Calls("server", "unlinkat", (1, 4, 12)),
    Calls("server", "fsync", (1,)),
    Calls("server", "fdatasync", (1,)),
    Calls("server", "pwrite64", (2, 7, 25)),
    Calls("server", "getdents64", (2,)),
]
EVERY_CALL = [
    *(Calls("server", name, range(1, 60)) for name in ("unlinkat", "fsync", "fdatasync", "getdents64", "rmdir")),
    Calls("server", "pwrite64", range(1, 90, 3)),
    Calls("server", "openat", range(1, 60, 4)),
]


class Shown(NamedTuple):
    """All that is shown of a run."""

    status: str
    events: list[str]
    out: bytes


def shown(installation: Installation, run: str) -> Shown | None:
    """The run as it is shown, or None where it is not."""
    try:
        status = str(installation.run(run)["status"])
    except NotFound as error:
        if "removed by `hocket gc`" not in error.message:
            raise
        return None
    return Shown(status, [event["type"] for event in installation.events(run)], installation.out(run))


def left_in_store(home: Path) -> dict[str, int]:
    """Rows of runs that are gone, by table, and runs whose removal is not complete."""
    with closing(sqlite3.connect(home / "hocket.db")) as database:
        tables = ("events", "questions", "usage", "offsets", "transcripts", "sessions")
        unknown = "SELECT count(*) FROM {} WHERE run NOT IN (SELECT id FROM runs)"
        found = {name: database.execute(unknown.format(name)).fetchone()[0] for name in tables}
        pending = database.execute("SELECT count(*) FROM removed_runs WHERE pending = 1").fetchone()[0]
    return {name: count for name, count in {**found, "pending": pending}.items() if count}


class Trials:
    """One home, in which runs are removed again and again while its server is killed."""

    def __init__(self, home: Path, project: Path) -> None:
        self.home = home
        self.installation = Installation(home, project)
        self.stays = self._made("talk")
        self.before = shown(self.installation, self.stays)

    def _made(self, agent: str) -> str:
        return str(self.installation.ended(self.installation.spawn(agent))["id"])

    def try_point(self, calls: Calls, nth: int, log: Path) -> bool:
        """Remove three runs under one injection, check what is left, and return whether the server was killed."""
        removed = [self._made("talk") for _ in range(3)]
        was = {run: (shown(self.installation, run), self.installation.folder(run)) for run in removed}
        # It starts no server, and does not ask again.
        client = Client(str(self.home), None)
        with strace(self.installation.server_pid(), calls, nth, log):
            try:
                client.request("POST", "/api/gc", {"runs": removed})
            except HocketError:
                assert KILLED.search(log.read_text())
        is_killed = KILLED.search(log.read_text()) is not None
        wait_for(lambda: is_killed is False or self.installation.living_server() is None, "the end of the server")
        now = {run: shown(self.installation, run) for run in removed}
        wait_for(lambda: left_in_store(self.home) == {}, "the end of the removal")
        for run, (whole, folder) in was.items():
            assert now[run] in (whole, None), (calls.name, nth)
            assert folder.exists() is (now[run] is not None), (calls.name, nth)
        assert shown(self.installation, self.stays) == self.before
        # What was not reached is removed by the next request.
        assert {
            row["run"] for row in self.installation.client.request("POST", "/api/gc", {"runs": removed})["removed"]
        } == set(removed)
        assert [shown(self.installation, run) for run in removed] == [None] * 3
        return is_killed

    def exhaust(self, every: Sequence[Calls], folder: Path) -> int:
        """Return at how many points the server was killed."""
        fired = 0
        for calls in every:
            for nth in calls.numbers:
                if not self.try_point(calls, nth, folder / f"{calls.name}-{nth}"):
                    break
                fired += 1
        return fired


@pytest.fixture
def trials(agent: Bin, home: Path, project: Path, hocket: Hocket) -> Iterator[Trials]:
    agent("talk", TALK)
    made = Trials(home, project)
    yield made
    assert integrity(home) == "ok"
    made.installation.kill_server(signal.SIGTERM)


@pytest.mark.timeout(120)
def test_removal_is_whole_when_the_server_is_killed(trials: Trials, world: Path) -> None:
    assert trials.exhaust(CALLS, world) >= 7


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_removal_is_complete_after_kill_at_any_call(trials: Trials, world: Path) -> None:
    assert trials.exhaust(EVERY_CALL, world) >= 60


# --- A full disk --------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("is_killed", [False, True], ids=["served", "killed"])
def test_runs_are_removed_on_a_full_disk(
    hocket: Hocket, agent: Bin, home: Path, project: Path, is_killed: bool
) -> None:
    agent("large", "import os\nfor _ in range(400): os.write(1, b'x' * 16383 + b'\\n')")
    agent("talk", TALK)
    with tmpfs(home, "size=64m,mode=700"):
        (home / "config.toml").write_text("[limits]\nmin_free_mb = 0\n")
        installation = Installation(home, project)
        large, stays = (installation.ended(installation.spawn(name)) for name in ("large", "talk"))
        wait_for(lambda: reserve_of(home) == 4 * 1024**2, "the reserve")
        if is_killed:
            installation.kill_server()
        fill(home / "filler")
        with pytest.raises(DiskLow):
            installation.spawn("talk")
        done = hocket("gc", "--runs", "1", "--yes")
        assert done.returncode == 0, done.stderr
        assert not Path(large["dir"]).exists()
        wait_for(lambda: left_in_store(home) == {}, "the end of the removal")
        kept = shown(installation, stays["id"])
        assert kept is not None
        assert (kept.status, kept.out) == ("done", b"one\ntwo\n")
        (home / "filler").unlink()
        assert installation.ended(installation.spawn("talk"))["number"] == 3
        assert integrity(home) == "ok"
        installation.kill_server(signal.SIGTERM)


# --- A long history -----------------------------------------------------------------------------------------

LONG = 10_000


def write_history(home: Path) -> None:
    """Runs that ended long ago, each with its directory."""
    store = open_store(home / "hocket.db")
    writer = StoreWriter(store)
    folder = home / "runs" / "1970-01"
    for first in range(0, LONG, 100):
        names = [f"r{number:014}" for number in range(first + 1, first + 101)]
        begun = [created(name, first + place) for place, name in enumerate(names, 1)]
        words = [said(name, "text", text="a word") for name in names for _ in range(5)]
        writer.write(*begun, *words, *map(ended, names), new={name: NewRun(b"{}") for name in names})
        for name in names:
            (folder / name).mkdir(parents=True)
            (folder / name / "out").write_text("a word\n")
    store.close()


@pytest.mark.slow
def test_long_history_is_removed_while_runs_go_on(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    agent("talk", TALK)
    write_history(home)
    installation = Installation(home, project)
    interrupted = hocket.start("gc", "--days", "0", "--yes", "--json")
    folder = home / "runs" / "1970-01"
    wait_for(lambda: len(list(folder.iterdir())) < LONG - 200, "the first removals")
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=PATIENCE)
    assert interrupted.returncode == 130
    wait_for(lambda: left_in_store(home) == {}, "the end of the removal")
    left = sorted(path.name for path in folder.iterdir())
    assert 0 < len(left) < LONG
    assert shown(installation, left[0]) == Shown("done", ["run.created", *["text"] * 5, "run.ended"], b"a word\n")
    removing = hocket.start("gc", "--days", "1", "--yes", "--json")
    runs = [installation.spawn("talk") for _ in range(5)]
    assert {installation.ended(run)["status"] for run in runs} == {"done"}
    printed, told = removing.communicate(timeout=240)
    assert (removing.returncode, told) == (0, "")
    assert [row["run"] for row in json.loads(printed)["removed"]] == left
    assert list(folder.iterdir()) == []
    assert left_in_store(home) == {}
    assert [run["number"] for run in hocket.runs()] == list(range(LONG + 1, LONG + 6))
    installation.kill_server(signal.SIGTERM)
