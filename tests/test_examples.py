"""What the documentation shows: configuration files that are read as they are, and what commands answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from world import Bin, Hocket

from hocket.api.wire import RunOut
from hocket.cli.access import EXIT_ASKS, EXIT_BUDGET, EXIT_TIMED_OUT
from hocket.cli.usage import BROKEN_PIPE
from hocket.config.loading import load, look
from hocket.errors import BY_CODE
from hocket.variables import blanks

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs/examples"
BUILDER = """
number = 1 + (len(open("walls").read()) if __import__("os").path.exists("walls") else 0)
open("walls", "a").write("|")
print(f"pass {number}: laying bricks\\npass {number}: checking the walls" + "\\nFORKHESTRA_COMPLETE" * (number == 3))
"""


def shown(command: str) -> list[str]:
    """What the README has below a command."""
    return (ROOT / "README.md").read_text().partition(f"$ {command}\n")[2].partition("\n```")[0].splitlines()


def timeless(lines: list[str]) -> list[str]:
    return [re.sub(r"\b\d+(:\d\d)+\b", "T", line) for line in lines]


def test_the_first_commands_of_the_readme_say_what_it_shows(hocket: Hocket, agent: Bin) -> None:
    agent("planner", "import sys; print(f'reading the request: {sys.argv[1]}\\nthree rooms, one roof')")
    agent("builder", BUILDER)
    agent("reviewer", "print('walking through the rooms\\napproved')")
    done = hocket("run", "planner -> builder:5 -> reviewer", "-p", "Build a small house")
    result = done.stdout.splitlines()
    wanted = shown('hocket run "planner -> builder:5 -> reviewer" -p "Build a small house"')
    assert timeless(done.stderr.splitlines()) == timeless([line for line in wanted if line not in result])
    listed = hocket("ps", "-a").stdout.splitlines()
    assert timeless([line.rstrip() for line in listed]) == timeless(shown("hocket ps -a"))


def test_every_exit_code_is_told() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    told = set(map(int, re.findall(r"^\| (\d+) \|", page, re.MULTILINE)))
    known = {EXIT_TIMED_OUT, EXIT_ASKS, EXIT_BUDGET, BROKEN_PIPE, *(error.exit_code for error in BY_CODE.values())}
    assert known <= told


def test_every_key_of_a_run_is_told() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    (row,) = re.findall(r"^\| `ps`, `show`, `wait` \| `([a-z_ ]+)`", page, re.MULTILINE)
    assert set(RunOut.__struct_fields__) == set(row.split())


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
