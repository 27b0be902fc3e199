"""A lost database is restored from the run directories; nothing of the old one is deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from workflows.repositories import make_repository
from world import Bin, Hocket

from hocket.sessions.home import DATABASE

GARBAGE = b"this was a database once\n" * 200


@pytest.fixture
def damaged(hocket: Hocket, agent: Bin, home: Path) -> Path:
    """A home with two finished runs whose database has been overwritten."""
    agent("talker", "import sys\nprint('said', sys.argv[1])\nsys.exit(int(sys.argv[2]))")
    for word, code in (("one", "0"), ("two", "7")):
        hocket("run", "talker", "-p", "hurry", "--", word, code)
    assert hocket("server", "stop").returncode == 0
    database = home / DATABASE
    database.write_bytes(GARBAGE)
    return database


def test_damaged_database_is_refused_until_it_is_restored(hocket: Hocket, damaged: Path) -> None:
    refused = hocket("ps")
    assert refused.returncode == 2
    assert refused.stderr.count("is damaged") == 1
    assert "hocket doctor --restore" in refused.stderr
    assert damaged.read_bytes() == GARBAGE
    restored = hocket("doctor", "--restore", "--json")
    assert restored.returncode == 0, restored.stderr
    told = json.loads(restored.stdout)
    assert told["runs"] == 2
    assert (Path(told["aside"]) / DATABASE).read_bytes() == GARBAGE
    listed = json.loads(hocket("ps", "-a", "--json").stdout)
    for word, code in (("one", 0), ("two", 7)):
        run = next(run for run in listed if hocket("logs", run["id"], "--raw").stdout == f"said {word}\n")
        ended = json.loads(hocket("wait", run["id"], "--json").stdout)
        assert (ended["exit_code"], ended["result"], ended["prompt"]) == (code, f"said {word}\n", "hurry")
        assert hocket("wait", run["id"]).returncode == (0 if code == 0 else 1)


def test_restored_run_has_no_recorded_start(hocket: Hocket, damaged: Path) -> None:
    assert hocket("doctor", "--restore").returncode == 0
    run = hocket.runs()[0]
    assert "no git repository: files by their modification time" in hocket("diff", run["id"]).stderr
    make_repository(hocket.cwd)
    unknown = hocket("diff", run["id"])
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == (
        f"hocket: the state of {hocket.cwd} is not known from before the run: run {run['number']} was restored, started"
        " by an earlier version, or not started by this server\n"
    )


def test_sound_database_is_left_alone(hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("talker", "print('said')")
    hocket("run", "talker")
    hocket("server", "stop")
    refused = hocket("doctor", "--restore")
    assert refused.returncode == 2
    assert "nothing to restore" in refused.stderr
    assert not list(home.glob("damaged-*"))


def test_newer_database_is_not_damage_and_is_unchanged(hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("talker", "print('said')")
    hocket("run", "talker")
    hocket("server", "stop")
    with closing(sqlite3.connect(home / DATABASE)) as connection, connection:
        connection.execute("INSERT INTO migrations VALUES (99, 'of later')")
    before = (home / DATABASE).read_bytes()
    looked = hocket("doctor")
    assert looked.returncode == 1
    assert "written by a newer Hocket (schema 99, " in looked.stdout
    assert "--restore" not in looked.stdout
    refused = hocket("doctor", "--restore")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "written by a newer Hocket (schema 99, " in refused.stderr
    assert ((home / DATABASE).read_bytes(), list(home.glob("damaged-*"))) == (before, [])


def test_missing_database_is_reported_and_restored(hocket: Hocket, damaged: Path) -> None:
    damaged.unlink()
    looked = hocket("doctor", "--json")
    (told,) = [check for check in json.loads(looked.stdout)["checks"] if check["name"] == "database"]
    assert (looked.returncode, told["ok"]) == (1, False)
    assert "is missing, but it existed before" in told["detail"]
    assert "hocket doctor --restore" in told["hint"]
    restored = hocket("doctor", "--restore")
    assert restored.returncode == 0
    assert "2 runs and 0 tasks were restored" in restored.stdout
    assert "damaged database" not in restored.stdout
    assert hocket("doctor").returncode == 0


def test_unusable_directories_are_counted_and_kept(hocket: Hocket, damaged: Path, home: Path) -> None:
    broken, intact = sorted((home / "runs").glob("*/*"))
    copy = intact.with_name(f"{intact.name}.bak")
    shutil.copytree(intact, copy, ignore=shutil.ignore_patterns("bell"))
    (broken / "spec.json").write_text("{")
    restored = json.loads(hocket("doctor", "--restore", "--json").stdout)
    assert (restored["runs"], restored["unreadable"], restored["left_out"]) == (1, 2, [])
    assert (broken / "out").exists()
    assert (copy / "out").exists()


def test_restore_is_refused_under_a_running_server(hocket: Hocket, home: Path) -> None:
    hocket("ps")
    pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    refused = hocket("doctor", "--restore")
    assert refused.returncode == 1
    assert str(pid) in refused.stderr
    assert os.path.exists(home / DATABASE)


# --- Tasks ---


def lose(home: Path) -> None:
    """Overwrite the database, as a bad disk might."""
    for part in home.glob(f"{DATABASE}*"):
        part.unlink()
    (home / DATABASE).write_bytes(GARBAGE)


def exported(hocket: Hocket, *names: str) -> list[dict[str, Any]]:
    return [json.loads(hocket("task", "export", name).stdout) for name in names]


def test_tasks_are_restored_with_all_their_parts(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    agent("echo", "import sys; sys.stdout.write(sys.argv[-1])")
    agent("broken", "import sys; sys.exit('no 世界')")
    agent("boss", "#!/bin/sh\nhocket handoff echo 'from below'\n")
    hocket("task", "new", 'Grüße\n𝄞 \\ "')
    for who, words in (("echo", "one"), ("boss", "two"), ("broken", "three")):
        hocket("handoff", "1", who, words)
    hocket("task", "plan", "1", "--summary", "s", "--requirement", "r", "--plan", "p")
    hocket("task", "queue", "1", "echo", "later")
    (project / "notes.bin").write_bytes(bytes(range(256)))
    hocket("task", "attach", "1", "notes.bin")
    hocket("task", "new", "Another")
    hocket("task", "status", "2", "failed", "-m", "not worth it")
    (project / "old.json").write_text(
        '{"id": "old-1", "description": "from elsewhere", "agentChain": [{"agentName": "qa", "startedAt": 1,'
        ' "completedAt": 2, "output": "well", "run": "r-elsewhere", "prompt": "asked"}], "sessionId": "s-1"}'
    )
    hocket("task", "import", "old.json")
    before = exported(hocket, "1", "2", "3")
    assert len(before[0]["agentChain"]) == 4
    hocket("server", "stop")
    lose(home)
    told = json.loads(hocket("doctor", "--restore", "--json").stdout)
    assert (told["tasks"], told["runs"], told["unreadable"]) == (3, 4, 0)
    until(lambda: not json.loads(hocket("ps", "--json").stdout))  # all have been read to their ends again
    assert exported(hocket, "1", "2", "3") == before
    assert hocket("task", "attach", "1", "--get", "notes.bin", "-o", "back.bin").returncode == 0
    assert (project / "back.bin").read_bytes() == bytes(range(256))
    # It goes on as if nothing had been: the next hand-off is the fifth, a new task has a number of its own.
    assert hocket("handoff", "1", "echo", "after all").stdout == "after all\n"
    assert len(json.loads(hocket("task", "show", "1", "--json").stdout)["agentChain"]) >= 5
    new = hocket.created("task", "new", "New")
    assert json.loads(hocket("task", "show", new, "--json").stdout)["number"] == 4


def test_restored_handoff_is_closed_by_its_run(hocket: Hocket, agent: Bin, home: Path, world: Path) -> None:
    # No client follows a run here: it would start a server before the database is restored.
    body = "#!/bin/sh\n{}while ! [ -e {} ]; do sleep 0.02; done\necho {}\n"
    agent("worker", body.format("", world / "worked", "worked"))
    agent("boss", body.format("hocket handoff worker 'from below' --detach >&2\n", world / "seen", "seen"))
    hocket("handoff", "boss", "a wish", "--detach")
    until(lambda: [one["agentName"] for one in shown(hocket)["agentChain"]] == ["boss", "worker"])
    until(lambda: [run["status"] for run in json.loads(hocket("ps", "--json").stdout)] == ["running", "running"])
    kill_server(hocket)
    lose(home)
    told = json.loads(hocket("doctor", "--restore", "--json").stdout)
    assert (told["tasks"], told["runs"]) == (1, 2)
    task = shown(hocket)
    assert (task["currentAgent"], task["status"]["type"]) == ("worker", "active")
    runs = {run["agent"]: run for run in json.loads(hocket("ps", "--json").stdout)}
    assert (runs["worker"]["parent"], runs["worker"]["root"]) == (runs["boss"]["id"], runs["boss"]["id"])
    (world / "worked").touch()
    until(lambda: shown(hocket)["currentAgent"] == "boss")
    (world / "seen").touch()
    until(lambda: shown(hocket)["currentAgent"] is None)
    boss, worker = shown(hocket)["agentChain"]
    assert (worker["output"], worker["status"]) == ("worked\n", "done")
    assert (boss["output"], boss["status"]) == ("seen\n", "done")
    assert shown(hocket)["status"]["type"] == "completed"


def shown(hocket: Hocket) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hocket("task", "show", "1", "--json").stdout)
    return found


def kill_server(hocket: Hocket) -> None:
    pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not json.loads(hocket("server", "status", "--json").stdout)["running"])


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
