"""A lost database is written anew from the run directories; nothing of the old one is thrown away."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from world import Bin, Hocket

from hocket.engine.home import DATABASE

GARBAGE = b"this was a database once\n" * 200


@pytest.fixture
def damaged(hocket: Hocket, agent: Bin, home: Path) -> Path:
    """A home with two finished runs whose database has been overwritten."""
    agent("talker", "import sys\nprint('said', sys.argv[1])\nsys.exit(int(sys.argv[2]))")
    for word, code in (("one", "0"), ("two", "7")):
        hocket("run", "talker", "--", word, code)
    assert hocket("server", "stop").returncode == 0
    database = home / DATABASE
    database.write_bytes(GARBAGE)
    return database


def test_a_damaged_database_is_refused_once_with_the_way_out(hocket: Hocket, damaged: Path) -> None:
    refused = hocket("ps")
    assert refused.returncode == 2
    assert refused.stderr.count("is damaged") == 1
    assert "hocket doctor --restore" in refused.stderr
    assert damaged.read_bytes() == GARBAGE


def test_every_run_comes_back_with_its_output_and_its_exit_code(hocket: Hocket, damaged: Path) -> None:
    restored = hocket("doctor", "--restore", "--json")
    assert restored.returncode == 0, restored.stderr
    told = json.loads(restored.stdout)
    assert told["runs"] == 2
    assert (Path(told["aside"]) / DATABASE).read_bytes() == GARBAGE
    listed = json.loads(hocket("ps", "-a", "--json").stdout)
    for word, code in (("one", 0), ("two", 7)):
        run = next(run for run in listed if hocket("logs", run["id"], "--raw").stdout == f"said {word}\n")
        ended = json.loads(hocket("wait", run["id"], "--json").stdout)
        assert (ended["exit_code"], ended["result"]) == (code, f"said {word}\n")
        assert hocket("wait", run["id"]).returncode == (0 if code == 0 else 1)


def test_a_sound_database_is_left_alone(hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("talker", "print('said')")
    hocket("run", "talker")
    hocket("server", "stop")
    refused = hocket("doctor", "--restore")
    assert refused.returncode == 2
    assert "nothing to restore" in refused.stderr
    assert not list(home.glob("damaged-*"))


def test_a_directory_that_cannot_be_read_is_counted_and_kept(hocket: Hocket, damaged: Path, home: Path) -> None:
    broken = next((home / "runs").glob("*/*"))
    (broken / "spec.json").write_text("{")
    told = json.loads(hocket("doctor", "--restore", "--json").stdout)
    assert (told["runs"], told["unreadable"]) == (1, 1)
    assert (broken / "out").exists()


def test_nothing_is_restored_under_a_living_server(hocket: Hocket, home: Path) -> None:
    hocket("ps")
    pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    refused = hocket("doctor", "--restore")
    assert refused.returncode == 1
    assert str(pid) in refused.stderr
    assert os.path.exists(home / DATABASE)
