"""The default agents of a new home: seeded once and completely, without overwriting anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from world import Hocket

from hocket.catalog.configs import DEFAULTS, configs
from hocket.catalog.default_agents import UNFINISHED, seed
from hocket.catalog.file_probe import FileProbe

FIVE = sorted(f"{default['name']}.json" for default in DEFAULTS)


def seeded_configs(home: Path) -> list[Mapping[str, Any]]:
    (found,) = configs(FileProbe(), str(home))
    return [entry.metadata for entry in found.entries]


def listed(home: Path) -> list[str]:
    return sorted(os.listdir(home / "data/agents"))


@pytest.mark.req("S2-17", "S2-18", "S2-19")
def test_empty_home_gets_private_default_agents(home: Path) -> None:
    assert seed(home) is True
    assert listed(home) == FIVE
    assert all(config in DEFAULTS for config in seeded_configs(home))
    assert {path.stat().st_mode & 0o777 for path in (home / "data/agents").iterdir()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (home / "data", home / "data/agents")} == {0o700}
    assert json.loads((home / "data/agents/qa.json").read_text())["specPath"] == "agents/qa.md"


@pytest.mark.req("S2-20")
def test_existing_config_prevents_seeding(home: Path) -> None:
    (home / "data/agents").mkdir(parents=True)
    (home / "data/agents/mine.json").write_text("{broken")
    assert seed(home) is False
    assert listed(home) == ["mine.json"]
    assert (home / "data/agents/mine.json").read_text() == "{broken"


@pytest.mark.req("S2-19", "S2-20")
def test_other_files_are_kept_when_seeding(home: Path) -> None:
    (home / "data/agents").mkdir(parents=True)
    (home / "data/agents/README").write_text("mine")
    assert seed(home) is True
    assert listed(home) == ["README", *FIVE]


@pytest.mark.req("S2-20")
def test_removed_default_agent_is_not_restored(home: Path) -> None:
    seed(home)
    (home / "data/agents/qa.json").unlink()
    assert seed(home) is False
    assert "qa.json" not in listed(home)


CRASH = """
import os, sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from hocket.catalog import default_agents
calls = at = 0
def counted(real):
    def call(*given, **named):
        global calls
        calls += 1
        if calls == at:
            os._exit(9)
        return real(*given, **named)
    return call
os.link, os.open, os.fsync = counted(os.link), counted(os.open), counted(os.fsync)
Path.unlink, Path.mkdir = counted(Path.unlink), counted(Path.mkdir)
for at in range(1, 60):
    child = os.fork()
    if child == 0:
        default_agents.seed(Path(sys.argv[1]) / f"h{at}")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code)
    if code == 0:
        break
"""
"""Seed homes, each in a process that dies at another call."""


@pytest.mark.req("S2-19")
def test_next_seed_repairs_a_crash(world: Path) -> None:
    for at in range(1, 60):
        (world / f"h{at}").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CRASH, world], check=True, timeout=PATIENCE, capture_output=True, text=True
    )
    *crashes, last = done.stdout.split()
    assert (set(crashes), last) == ({"9"}, "0")
    assert 30 < len(crashes) < 59
    for at in range(1, len(crashes) + 1):
        home = world / f"h{at}"
        seed(home)
        assert listed(home) == FIVE
        assert len(seeded_configs(home)) == len(FIVE)


@pytest.mark.req("S2-20")
def test_seeding_after_crash_keeps_user_files(home: Path) -> None:
    (home / "data/agents").mkdir(parents=True)
    (home / "data/agents" / UNFINISHED).touch()
    (home / "data/agents/qa.json").write_text('{"name": "qa"}')
    assert seed(home) is True
    assert (home / "data/agents/qa.json").read_text() == '{"name": "qa"}'
    assert listed(home) == FIVE


@pytest.mark.req("S2-18", "S2-19", "S2-53")
def test_only_starting_the_server_seeds(hocket: Hocket, home: Path) -> None:
    hocket("server", "status", "--json")
    hocket("doctor", "--json")
    hocket("agents", "--json")
    assert not (home / "data").exists()
    hocket("ps", "--json")
    assert listed(home) == FIVE


def test_server_starts_when_seeding_fails(hocket: Hocket, home: Path) -> None:
    (home / "data").write_text("in the way")
    assert hocket("ps", "--json").stdout.strip() == "[]"
