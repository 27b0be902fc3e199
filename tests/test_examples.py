"""The configuration files that the documentation ships: they are what they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket.config.loading import load, look
from hocket.variables import blanks

EXAMPLES = Path(__file__).parents[1] / "docs/examples"


@pytest.mark.req("S1-53")
def test_both_files_are_read_as_they_are(home: Path) -> None:
    found = load(str(EXAMPLES), str(home))
    assert set(found.files) == {str(EXAMPLES / "hocket.toml"), str(EXAMPLES / "forge/chains.json")}
    assert set(found.chains) == {"ship", "cross-project-workflow", "side-by-side"}
    assert look(str(EXAMPLES), str(home)).problems == []


@pytest.mark.req("S1-53", "S1-34")
def test_the_chains_file_shows_agents_of_other_projects(home: Path) -> None:
    found = load(str(EXAMPLES), str(home))
    steps = found.chain("cross-project-workflow").steps
    assert [(step.agent, step.iterations) for step in steps] == [
        ("external-reviewer", 2),
        ("local-analyzer", 3),
        ("forge-task-manager", None),
    ]
    assert found.agents["external-reviewer"].path == "/home/me/project-a/.claude/agents/reviewer"
    assert found.agents["api-reviewer"].path == "../backend-api/.claude/agents/reviewer"


def test_every_example_has_a_description_and_only_blanks_that_are_filled(home: Path) -> None:
    for chain in load(str(EXAMPLES), str(home)).chains.values():
        assert chain.description
        for step in chain.steps:
            assert set(blanks(step.prompt or "")) <= {"task", "previous.result"}
    json.loads((EXAMPLES / "forge/chains.json").read_text())
