"""``hocket gc`` from outside: what it lists, asks, removes and prints, and who may choose what is kept."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli.pseudo_terminal import Terminal
from torture.installation import Installation
from world import Bin, Hocket


@pytest.fixture
def installation(home: Path, project: Path) -> Installation:
    return Installation(home, project)


@pytest.fixture
def runs(installation: Installation, hocket: Hocket, agent: Bin) -> list[str]:
    """Three runs that have ended, and whose keepers are gone."""
    agent("quick", "print('done')")
    return [str(installation.ended(installation.spawn("quick"))["id"]) for _ in range(3)]


def listed(hocket: Hocket) -> list[str]:
    return [row["id"] for row in json.loads(hocket("ps", "-a", "--json").stdout)]


def read(hocket: Hocket, *words: str) -> Any:
    done = hocket("gc", *words, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def test_gc_lists_and_removes_nothing_without_a_yes(hocket: Hocket, runs: list[str], project: Path) -> None:
    nothing = hocket("gc")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "nothing says what to keep" in nothing.stderr
    assert "--days" in nothing.stderr
    tried = hocket("gc", "--runs", "1", "--dry-run")
    assert tried.returncode == 0
    assert [line.split()[:2] for line in tried.stdout.splitlines()[1:]] == [["1", "quick"], ["2", "quick"]]
    assert "not among the newest 1" in tried.stdout
    unasked = hocket("gc", "--runs", "1")
    assert (unasked.returncode, len(unasked.stdout.splitlines())) == (4, 3)
    assert "nothing was removed" in unasked.stderr
    assert hocket("gc", "--runs", "1", "--json").returncode == 4
    assert listed(hocket) == runs
    for answer, code in (("n", 1), ("y", 0)):
        with closing(Terminal("gc", "--days", "0", cwd=project)) as terminal:
            assert listed(hocket) == runs
            terminal.wait_for("[y/N]")
            terminal.press(f"{answer}\r".encode())
            assert terminal.end() == code
    assert listed(hocket) == []


def test_gc_removes_the_runs_it_listed(
    installation: Installation, hocket: Hocket, agent: Bin, runs: list[str], home: Path
) -> None:
    (home / "config.toml").write_text('[keep]\ndays = 30\nruns = 2\nbytes = "10 GB"\n')
    assert [row["number"] for row in read(hocket, "--dry-run")["would_remove"]] == [1]
    would = read(hocket, "--runs", "1", "--dry-run")
    assert [row["run"] for row in would["would_remove"]] == runs[:2]
    done = read(hocket, "--runs", "1", "--yes")
    assert [(row["run"], row["number"], row["reason"]) for row in done["removed"]] == [
        (runs[0], 1, "not among the newest 1"),
        (runs[1], 2, "not among the newest 1"),
    ]
    assert done["bytes"] == would["bytes"] == sum(row["bytes"] for row in done["removed"]) > 0
    assert (done["kept"], done["left"]) == ([], [])
    assert listed(hocket) == runs[2:]
    assert [path.name for path in (home / "runs").glob("*/*")] == runs[2:]
    gone = hocket("show", "1")
    assert gone.returncode == 2
    assert "run 1 was removed by `hocket gc`" in gone.stderr
    assert read(hocket, "--runs", "1", "--yes")["removed"] == []
    agent("greedy", "import subprocess; subprocess.run(['hocket', 'gc', '--days', '0', '--yes'])")
    run = installation.ended(installation.spawn("greedy"))
    assert b"only the operator" in (Path(run["dir"]) / "err").read_bytes()
    assert "\nremoved 2 runs, " in hocket("gc", "--days", "0", "--yes").stderr
    installation.kill_server(signal.SIGTERM)
    assert installation.run(installation.spawn("quick"))["number"] == 5, "no number is used again"


def test_task_keeps_the_text_of_a_removed_run(
    installation: Installation, hocket: Hocket, agent: Bin, home: Path
) -> None:
    agent("painter", "print('painted')")
    assert installation.server_pid()
    assert hocket("handoff", "painter", "paint the door").stdout == "painted\n"
    hocket("task", "new", "Another one")
    assert hocket("handoff", "2", "painter", "paint the wall").stdout == "painted\n"
    for run in listed(hocket):
        installation.ended(run)
    assert [row["reason"] for row in read(hocket, "--days", "0", "--yes")["kept"]] == [
        "task 2 is neither finished nor archived"
    ]
    shown = hocket("task", "show", "1", "--verbose")
    assert shown.returncode == 0
    assert "paint the door" in shown.stdout
    assert "painted" in shown.stdout
    assert hocket("task", "history", "1").returncode == 0
    hocket("task", "archive", "2")
    assert len(read(hocket, "--days", "0", "--yes")["removed"]) == 1
    exported = json.loads(hocket("task", "export", "2").stdout)
    assert "paint the wall" in json.dumps(exported)
    hocket("task", "archive", "--undo", "2")
    assert hocket("handoff", "2", "painter", "and the roof").stdout == "painted\n"
