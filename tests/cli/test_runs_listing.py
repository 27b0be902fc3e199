"""``ps`` with filters and ``logs -n``: selected parts of the list and of a log."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from store.sample_events import StoreWriter, created, ended
from world import Bin, Hocket

from hocket.cli.format import parse_since
from hocket.cli.runs import STATUSES, last_lines
from hocket.model import Status
from hocket.store import NewRun, open_store

pytestmark = pytest.mark.shared_server


@pytest.fixture
def three(hocket: Hocket, agent: Bin, project: Path) -> list[str]:
    """A run that is done, one that has failed in a folder below, and one at work: their ids."""
    agent("good", "print('fine')")
    agent("bad", "import sys; sys.exit(3)")
    agent("sleeper", "import signal; signal.pause()")
    (project / "sub").mkdir()
    done, failed = hocket.created("spawn", "good"), hocket.created("spawn", "bad", cwd=project / "sub")
    hocket("wait", done)
    hocket("wait", failed)
    return [done, failed, hocket.created("spawn", "sleeper")]


def listed(hocket: Hocket, *words: str | Path) -> list[str]:
    return [run["id"] for run in json.loads(hocket("ps", *words, "--json").stdout)]


def test_runs_are_listed_by_status(hocket: Hocket, project: Path, three: list[str]) -> None:
    done, failed, live = three
    here = ("--project", project)
    assert listed(hocket, "--status", "done", *here) == [done], "ended runs without -a"
    assert listed(hocket, "--status", "failed", *here) == [failed]
    assert listed(hocket, "-a", "--status", "running", *here) == [live]
    assert listed(hocket, "--status", "lost", *here) == []
    refused = hocket("ps", "--status", "fine")
    assert refused.returncode == 2
    assert all(status in refused.stderr for status in STATUSES)
    assert tuple(Status) == STATUSES


def test_runs_are_listed_by_agent_and_project(hocket: Hocket, project: Path, three: list[str]) -> None:
    done, failed, live = three
    assert listed(hocket, "-a", "--project", project) == three
    assert listed(hocket, "-a", "--project", ".", "--agent", "good") == [done]
    assert listed(hocket, "-a", "--project", project / "sub") == [failed]
    assert listed(hocket, "-a", "--project", project.parent / "p2") == []
    assert listed(hocket, "--project", project) == [live], "without -a those that have not ended"
    (project.parent / "link").symlink_to(project)
    assert listed(hocket, "-a", "--project", project.parent / "link") == three


def test_steps_elsewhere_belong_to_their_roots_project(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("nested", "print('below')")
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    words = [sys.executable, "-m", "hocket", "run", "nested", "--cwd", str(elsewhere)]
    agent("lead", f"import subprocess; subprocess.run({words!r}, check=True)")
    assert hocket("run", "lead").returncode == 0
    runs = hocket.runs()
    assert {run["cwd"] for run in runs} == {str(project), str(elsewhere)}
    assert listed(hocket, "-a", "--project", project) == [run["id"] for run in runs]


def test_newest_runs_are_listed_up_to_a_limit(hocket: Hocket, project: Path, three: list[str]) -> None:
    _, failed, live = three
    here = ("-a", "--project", project)
    assert listed(hocket, *here, "--limit", "2") == [failed, live]
    shown = hocket("ps", *here, "--limit", "1")
    number = next(run["number"] for run in hocket.runs() if run["id"] == live)
    assert shown.stderr == f"Older runs: hocket ps -a --project {project} --limit 1 --before {number}\n"
    assert listed(hocket, *here, "--limit", "1", "--before", str(number)) == [failed]


@pytest.mark.own_server
def test_runs_are_listed_since_a_time(hocket: Hocket, home: Path) -> None:
    """More of them than are looked at in one go, so that the search goes on behind the first page."""
    now = time.time()
    ages = {"rnew": 60.0, **{f"r{number:03}": 3600.0 + number for number in range(450)}, "rold": 90_000.0}
    store = open_store(home / "hocket.db")
    events = []
    for number, (name, age) in enumerate(sorted(ages.items(), key=lambda one: -one[1]), 1):
        born = created(name, number, agent="odd" if name == "rold" else "usual")
        events += [replace(event, ts=now - age) for event in (born, ended(name))]
    store_writer = StoreWriter(store)
    store_writer.write(*events, new={name: NewRun(b"{}") for name in ages})
    store_writer.writer.close()
    store.close()
    assert listed(hocket, "-a", "--since", "30m") == ["rnew"]
    assert len(listed(hocket, "-a", "--since", "1d")) == 451
    assert listed(hocket, "-a", "--agent", "odd") == ["rold"]
    assert listed(hocket, "-a", "--agent", "usual", "--limit", "1") == ["rnew"]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now - 600))
    assert listed(hocket, "-a", "--since", stamp) == ["rnew"]
    assert hocket("ps", "--since", "yesterday").returncode == 2


@pytest.mark.own_server
def test_run_without_root_is_listed_by_directory(hocket: Hocket, home: Path) -> None:
    """As after a restore that found the files of a run and not those of the one above it."""
    store = open_store(home / "hocket.db")
    store_writer = StoreWriter(store)
    store_writer.write(created("rlone", 1, "rgone", "rgone"), ended("rlone", "rgone"), new={"rlone": NewRun(b"{}")})
    store_writer.writer.close()
    store.close()
    assert listed(hocket, "-a", "--project", "/p") == ["rlone"]
    assert listed(hocket, "-a", "--project", "/other") == []


def test_empty_list_says_what_would_help(hocket: Hocket, project: Path) -> None:
    nothing = hocket("ps", "--agent", "it's me", "--project", ".")
    ended_too = "hocket ps -a --agent 'it'\"'\"'s me' --project ."
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert nothing.stderr == f"No matching runs. Ended runs: {ended_too}\n"
    assert hocket("ps", "-a", "--agent", "nosuch").stderr == "No matching runs.\n"


def test_agent_given_by_path_is_listed_by_name(hocket: Hocket, project: Path, agent: Bin) -> None:
    folder = project / "tools"
    folder.mkdir()
    (folder / "tool").symlink_to(agent("anything", "print('hello')"))
    done = hocket("run", "./tools/tool -> ./tools/tool:2")
    said = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    assert "tool begins" in said
    assert "tool[1/2] hello" in said
    assert "./tools" not in done.stderr
    rows = hocket("ps", "-a", "--project", ".").stdout.splitlines()[1:]
    assert rows[0].split()[1:4] == ["tool", "->", "tool:2"]
    assert {row.split()[1] for row in rows[1:]} == {"tool"}
    assert hocket.runs()[0]["agent"] == "./tools/tool -> ./tools/tool:2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 100_000 - 90),
        ("2h", 100_000 - 7200),
        ("1d", 100_000 - 86_400),
        ("3d", 0),
        ("1970-01-02T00:00:00+00:00", 86_400),
        ("1970-01-02T00:00:00Z", 86_400),
        ("soon", None),
        ("", None),
        ("-2h", None),
        ("2026-13-01", None),
        ("99:99", None),
        ("9999-12-31T23:59:59-23:59", None),
    ],
)
def test_since_is_a_duration_or_a_time(text: str, expected: float | None) -> None:
    found = parse_since(text, 100_000.0)
    assert found == expected or (text.startswith("9999") and found is not None)


def test_since_without_a_zone_is_local() -> None:
    now = time.mktime((2026, 3, 1, 18, 0, 0, 0, 0, -1))
    assert parse_since("2026-03-01T14:30", now) == time.mktime((2026, 3, 1, 14, 30, 0, 0, 0, -1))
    assert parse_since("2026-03-01 14:30", now) == parse_since("14:30", now) == parse_since("2026-03-01T14:30", now)
    assert parse_since("2026-03-01", now) == time.mktime((2026, 3, 1, 0, 0, 0, 0, 0, -1))


# --- The end of a log ---------------------------------------------------------------------------------------

COUNTER = "for n in range(1, 6): print('line', n)"
GATED = """
import os, time
print('one', flush=True); print('two', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
print('three')
"""


def test_log_begins_with_its_last_lines(hocket: Hocket, agent: Bin) -> None:
    agent("counter", COUNTER)
    hocket("run", "counter -> counter", "-p", "x")
    number = hocket.number()
    said = [line.partition(" ")[2] for line in hocket("logs", number, "-n", "2").stdout.splitlines()]
    assert said == ["counter line 4", "counter line 5"]
    assert hocket("logs", number, "--raw", "-n", "7").stdout == "line 4\nline 5\n" + "".join(
        f"line {n}\n" for n in range(1, 6)
    )
    assert hocket("logs", number, "--raw", "--lines", "99").stdout.count("line") == 10
    events: list[dict[str, Any]] = [
        json.loads(line) for line in hocket("logs", number, "--json", "-n", "2").stdout.splitlines()
    ]
    assert (len(events), events[-1]["type"], events[-1]["run"]) == (2, "run.ended", hocket.runs()[0]["id"])
    assert hocket("logs", number, "-n", "2", "-f").stdout.count("\n") == 2, "it has ended"
    assert hocket("logs", number, "-n", "0").returncode == 2


@pytest.mark.parametrize("raw", [(), ("--raw",)])
def test_log_is_followed_behind_its_last_lines(hocket: Hocket, agent: Bin, project: Path, raw: tuple[str, ...]) -> None:
    agent("gated", GATED)
    run = hocket.created("run", "gated", "--detach")
    first = hocket.start("logs", "-f", run)
    assert first.stdout is not None
    while "two" not in first.stdout.readline():
        pass  # once it is told, it is part of the past
    following = hocket.start("logs", "-f", "-n", "1", *raw, run)
    assert following.stdout is not None
    assert following.stdout.readline().split()[-1] == "two"
    (project / "go").touch()
    assert following.stdout.readline().split()[-1] == "three"
    assert (following.stdout.read(), following.wait(15)) == ("", 0)


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 2, b"a\nb\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"a", 1, b"a"),
        (b"", 3, b""),
        (b"\n", 1, b"\n"),
    ],
)
def test_end_of_a_text_has_so_many_lines(text: bytes, count: int, expected: bytes) -> None:
    assert last_lines(text, count) == expected
