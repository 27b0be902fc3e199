"""The chains that can be run by name in a directory, told without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hocket.errors import BadDirectory
from hocket.workflows.named_chains import survey


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    for folder in ("p", "bin", "user"):
        (tmp_path / folder).mkdir()
    program = tmp_path / "bin/smith"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def told(agents: Path, toml: str) -> dict[str, Any]:
    (agents / "p/hocket.toml").write_text(toml)
    return survey(str(agents / "p"), str(agents / "h"), {"PATH": str(agents / "bin"), "HOME": str(agents / "user")})


def test_variables_are_listed_once(agents: Path) -> None:
    first = '{ agent = "smith", args = ["${A}", "${B}"], prompt = "${A} ${C}" }'
    second = '{ agent = "smith", prompt_file = "${D}" }'
    (chain,) = told(agents, f'[chains.c]\nprompt = "${{Z}}"\nsteps = [{first}, {second}]\n')["chains"]
    assert chain["variables"] == ["Z", "A", "B", "C", "D"]
    assert chain["problem"] is None


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ('{ agent = "unknown" }', "unknown"),
        ('{ agent = "a b" }', "step 1"),
        ('{ agent = "smith", prompt = "{{tsk}}" }', "{{tsk}}"),
    ],
)
def test_refused_chain_has_a_problem(agents: Path, step: str, problem: str) -> None:
    (chain,) = told(agents, f"[chains.c]\nsteps = [{step}]\n")["chains"]
    assert problem in chain["problem"]


def test_untrusted_setting_is_a_problem_of_its_file(agents: Path) -> None:
    found = told(agents, '[chains.c]\npermission_mode = "bypassPermissions"\nsteps = [{ agent = "smith" }]\n')
    assert [chain["name"] for chain in found["chains"]] == ["c"]
    (problem,) = found["problems"]
    assert problem["path"] == str(agents / "p/hocket.toml")
    assert "bypassPermissions" in problem["reason"]


def test_missing_directory_is_refused(agents: Path) -> None:
    with pytest.raises(BadDirectory):
        survey(str(agents / "gone"), str(agents / "h"), {})
