"""What a chain of a configuration file may say: its bounds, its groups, and the errors about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.config.loading import find_chains, load
from hocket.config.settings import ChainConfig
from hocket.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "p" / "forge").mkdir(parents=True)
    return tmp_path / "p"


def in_json(project: Path, chain: Any) -> Path:
    file = project / "forge" / "chains.json"
    file.write_text(json.dumps({"chains": {"ship": chain}}))
    return file


def ship(project: Path) -> ChainConfig:
    return load(str(project), str(project.parent / "home")).chain("ship")


BOUNDS = {
    "until": "make test",
    "timeout": 60.5,
    "budget_usd": 5,
    "budget_tokens": 100_000,
    "idle_timeout": 300,
    "failures": 3,
    "no_progress": 2,
}


def test_toml_chain_and_step_have_bounds(project: Path) -> None:
    bounds = "\n".join(f"{name} = {json.dumps(value)}" for name, value in BOUNDS.items())
    own = ", ".join(f"{name} = {json.dumps(value)}" for name, value in BOUNDS.items())
    (project / "hocket.toml").write_text(
        f'[chains.ship]\ngate_timeout = 90\non_lost = "retry"\nisolation = "none"\n{bounds}\n'
        f'steps = [{{ agent = "a", isolation = "worktree", {own} }}, {{ agent = "b" }}]\n'
    )
    chain = ship(project)
    assert (chain.gate_timeout, chain.on_lost, chain.isolation) == (90, "retry", "none")
    first, second = chain.steps
    assert (first.isolation, second.isolation) == ("worktree", None)
    assert {name: getattr(chain, name) for name in BOUNDS} == BOUNDS
    assert {name: getattr(first, name) for name in BOUNDS} == BOUNDS
    assert {getattr(second, name) for name in BOUNDS} == {None}


def test_json_chain_and_step_have_bounds(project: Path) -> None:
    spelled = {"budgetUsd": 5, "budgetTokens": 9, "idleTimeout": 3, "noProgress": 2, "gateTimeout": 1, "onLost": "ask"}
    in_json(project, {**spelled, "steps": [{"agent": "a", "budgetUsd": 0.5, "noProgress": 4}]})
    chain = ship(project)
    assert (chain.budget_usd, chain.budget_tokens, chain.idle_timeout) == (5, 9, 3)
    assert (chain.no_progress, chain.gate_timeout, chain.on_lost) == (2, 1, "ask")
    assert (chain.steps[0].budget_usd, chain.steps[0].no_progress) == (0.5, 4)


def test_group_members_are_steps_with_its_number(project: Path) -> None:
    in_json(project, {"steps": [{"agent": "a"}, {"group": [{"agent": "b"}, {"agent": "c", "iterations": 3}]}]})
    steps = ship(project).steps
    assert [(step.agent, step.group) for step in steps] == [("a", None), ("b", 2), ("c", 2)]
    assert steps[2].iterations == 3


@pytest.mark.req("S1-B09")
@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ({"budgetUsd": 0}, ['"budgetUsd"', "USD above 0"]),
        ({"budgetUsd": "5"}, ['"budgetUsd"', "'5'"]),
        ({"budgetUsd": True}, ['"budgetUsd"', "True"]),
        ({"budgetTokens": 1.5}, ['"budgetTokens"', "an integer"]),
        ({"idleTimeout": -1}, ['"idleTimeout"', "seconds"]),
        ({"failures": 0}, ['"failures"', "an integer"]),
        ({"noProgress": "x"}, ['"noProgress"', "an integer"]),
        ({"gateTimeout": 0}, ['"gateTimeout"', "seconds"]),
        ({"onLost": "panic"}, ['"onLost"', '"ask" or "retry"']),
        ({"isolation": "vm"}, ['"isolation"', '"none" or "worktree"']),
        ({"steps": [{"agent": "a", "isolation": True}]}, ["step 1", '"isolation"', '"none" or "worktree"']),
        ({"until": " "}, ['"until"', "shell command"]),
        ({"marker": "a\nb"}, ['"marker"', "one line"]),
        ({"marker": "`*`"}, ['"marker"', "one line"]),
        ({"until": "a\0b"}, ['"until"', "contains NUL"]),
        ({"steps": [{"agent": "a", "budgetUsd": -1}]}, ["step 1", '"budgetUsd"']),
        ({"steps": [{"agent": "a", "until": 1}]}, ["step 1", '"until"']),
        ({"steps": [{"agent": "a"}, {"group": []}]}, ["step 2", '"group"', "at least one member"]),
        ({"steps": [{"group": "a"}]}, ["step 1", '"group"']),
        ({"steps": [{"group": ["a"]}]}, ["step 1, member 1", "table"]),
        ({"steps": [{"group": [{"agent": "a"}, {}]}]}, ["step 1, member 2", 'has no "agent"']),
        ({"steps": [{"group": [{"agent": "a", "timeout": 0}]}]}, ["step 1, member 1", '"timeout"']),
        ({"steps": [{"group": [{"group": [{"agent": "a"}]}]}]}, ["step 1, member 1", "a group cannot contain a group"]),
        ({"steps": [{"group": [{"agent": "a"}], "iterations": 3}]}, ["step 1", '"iterations"', "members"]),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict) else "",
)
def test_error_names_file_chain_step_and_field(project: Path, chain: Any, words: list[str]) -> None:
    file = in_json(project, {"steps": [{"agent": "a"}], **chain})
    with pytest.raises(ConfigError) as caught:
        ship(project)
    for word in (f'{file}: chain "ship"', *words):
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("chain", "hint"),
    [
        ({"budgetUSD": 1}, "budgetUsd"),
        ({"noProgres": 1}, "noProgress"),
        ({"steps": [{"agent": "a", "idleTimeoutt": 1}]}, "idleTimeout"),
        ({"steps": [{"group": [{"agent": "a", "iteration": 1}]}]}, "iterations"),
    ],
)
def test_unknown_key_error_suggests_the_nearest(project: Path, chain: Any, hint: str) -> None:
    in_json(project, {"steps": [{"agent": "a"}], **chain})
    with pytest.raises(ConfigError, match="unknown key") as caught:
        ship(project)
    assert caught.value.hint == f'did you mean "{hint}"?'


def test_chain_has_a_maximum_of_steps(project: Path) -> None:
    one, pair = {"agent": "a"}, {"group": [{"agent": "b"}, {"agent": "c"}]}
    in_json(project, {"steps": [one] * 998 + [pair]})
    assert len(ship(project).steps) == 1000
    in_json(project, {"steps": [one] * 999 + [pair]})
    with pytest.raises(ConfigError, match=r'chain "ship", step 1000: .*at most 1000'):
        ship(project)


# --- Looking ------------------------------------------------------------------------------------------------


def test_broken_file_hides_only_its_own_chains(project: Path) -> None:
    (project / "hocket.toml").write_text('[chains.here]\nsteps = [{ agent = "a" }]\n')
    file = in_json(project, {"steps": []})
    found = find_chains(str(project), str(project.parent / "home"))
    assert set(found.chains) == {"here"}
    assert [path for path, _ in found.problems] == [str(file)]
    assert str(file) in found.places


@pytest.mark.parametrize("is_broken", [True, False])
def test_project_chains_file_hides_the_users(project: Path, is_broken: bool) -> None:
    users = Path.home() / ".config/hocket/chains.json"
    users.parent.mkdir(parents=True)
    users.write_text(json.dumps({"chains": {"mine": {"steps": [{"agent": "a"}]}}}))
    home = str(project.parent / "home")
    assert set(find_chains(str(project), home).chains) == {"mine"}
    in_json(project, {"steps": [] if is_broken else [{"agent": "a"}]})
    assert set(find_chains(str(project), home).chains) == (set() if is_broken else {"ship"})


def test_nearest_file_wins_for_a_chain(project: Path) -> None:
    (project / "hocket.toml").write_text('[chains.ship]\nsteps = [{ agent = "near" }]\n')
    in_json(project, {"steps": [{"agent": "far"}]})
    found = find_chains(str(project), str(project.parent / "home"))
    assert found.chains["ship"].steps[0].agent == "near"
    assert ship(project).steps[0].agent == "near"
