"""A task returns to an agent that waits for it only after a change in the working directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Cycle
from hocket.model.task import Handoff
from hocket.tasks.cycles import (
    HINT,
    MAX_EQUAL,
    Round,
    check_cycle,
    check_repetition,
    may_be_repeated,
    stored_snapshot,
)
from hocket.workflows.directory_state import UNREADABLE, Snapshot, take_snapshot
from hocket.workflows.git import Git

ONE, TWO = Snapshot("1", "git", "one"), Snapshot("2", "git", "two")
NO_SNAPSHOT = Snapshot("", UNREADABLE, "not examined")


def handoff(agent: str, snapshot: Snapshot) -> Handoff:
    return Handoff("h", "t", 1, "r", agent, 0, 0.0, evidence=stored_snapshot(snapshot))


def cycle(stack: list[tuple[str, Snapshot]], target: str, now: Snapshot) -> str | None:
    try:
        check_cycle([handoff(*one) for one in stack], target, now)
    except Cycle as error:
        return error.message
    return None


def repetition(rounds: list[Round], target: str, prompt: str | None, now: Snapshot) -> str | None:
    try:
        check_repetition(rounds, target, prompt, now)
    except Cycle as error:
        return error.message
    return None


@pytest.mark.parametrize(
    ("stack", "target", "now", "is_refused"),
    [
        ([], "a", ONE, False),
        ([("a", ONE)], "b", ONE, False),
        ([("a", ONE), ("b", ONE)], "a", ONE, True),
        ([("a", ONE), ("b", ONE)], "b", ONE, True),
        ([("a", ONE), ("b", ONE)], "a", TWO, False),
        ([("a", ONE), ("b", TWO)], "a", TWO, False),
        ([("a", ONE), ("b", ONE), ("c", ONE)], "a", ONE, True),
        # Something was made since the first time and nothing since the second.
        ([("a", ONE), ("b", TWO), ("a", TWO), ("b", TWO)], "a", TWO, True),
        # Made, and undone again.
        ([("a", ONE), ("b", ONE), ("a", TWO), ("b", TWO)], "a", ONE, True),
        ([("a", NO_SNAPSHOT), ("b", ONE)], "a", ONE, False),
        ([("a", ONE), ("b", ONE)], "a", NO_SNAPSHOT, False),
    ],
)
def test_return_without_change_is_a_cycle(
    stack: list[tuple[str, Snapshot]], target: str, now: Snapshot, is_refused: bool
) -> None:
    assert (cycle(stack, target, now) is not None) is is_refused


def test_cycle_error_names_path_and_hint() -> None:
    why = cycle([("lead", ONE), ("dev", ONE), ("qa", ONE)], "dev", ONE)
    way = "dev -> qa -> dev"
    assert why == f"dev has this task already and waits for it ({way}), and the working directory is as it was then"
    assert "working directory" in HINT
    assert (Cycle("x").code, Cycle("x").status) == ("cycle", 409)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.sampled_from("abc"))
def test_agent_gets_unchanged_task_at_most_once(agents: list[str], target: str) -> None:
    """So a chain of hand-offs without any change is never longer than the number of agents."""
    assert (cycle([(agent, ONE) for agent in agents], target, ONE) is not None) is (target in agents)


@pytest.mark.parametrize(
    ("rounds", "prompt", "now", "times"),
    [
        ([], "go", ONE, None),
        ([("go", "no", ONE)] * 2, "go", ONE, None),
        ([("go", "no", ONE)] * 3, "go", ONE, 3),
        ([("go", "no", ONE)] * 3, "go", TWO, None),
        ([("go", "no", ONE)] * 3, "go on", ONE, None),
        # Something else in between, with an answer of its own.
        ([("go", "no", ONE), ("come", "yes", ONE)] * 3, "go", ONE, 3),
        ([("go", "yes", ONE), ("go", "no", ONE), ("go", "no", ONE)], "go", ONE, None),
        # Something was made between the first and the second of them.
        ([("go", "no", ONE), ("go", "no", ONE), ("go", "no", TWO)], "go", ONE, None),
        ([("go", "no", NO_SNAPSHOT), ("go", "no", ONE), ("go", "no", ONE)], "go", ONE, None),
        ([("go", "no", ONE), ("come", "no", NO_SNAPSHOT), ("go", "no", ONE), ("go", "no", ONE)], "go", ONE, 3),
        ([("go", "no", ONE)] * 3, "go", NO_SNAPSHOT, None),
        # Many jobs, each of them "done": a short answer is no circle.
        ([(str(number), "done", ONE) for number in range(30)], "go", ONE, None),
    ],
)
def test_repetition_is_same_answer_without_change(
    rounds: list[tuple[str, str, Snapshot]], prompt: str, now: Snapshot, times: int | None
) -> None:
    why = repetition([Round(*one) for one in rounds], "dev", prompt, now)
    told = f"dev gave you the same answer {times} times, and the working directory is as it was before"
    assert why == (None if times is None else told)


@given(st.lists(st.tuples(*map(st.sampled_from, ("ab", "xy", (ONE, TWO)))), max_size=40))
def test_refused_repetition_always_needs_a_snapshot(asked: list[tuple[str, str, Snapshot]]) -> None:
    rounds = [Round(*one) for one in asked]
    refused = repetition(rounds, "dev", "a", ONE) is not None
    assert may_be_repeated(rounds, "a") or not refused


@given(st.lists(st.sampled_from("ab"), max_size=30))
def test_repeated_rounds_end_without_change(prompts: list[str]) -> None:
    made: list[Round] = []
    for prompt in prompts:
        if repetition(made, "dev", prompt, ONE) is None:
            made.insert(0, Round(prompt, f"no {prompt}", ONE))
    assert all(sum(one.prompt == prompt for one in made) <= MAX_EQUAL for prompt in "ab")


@pytest.mark.parametrize("kind", ["git", "files"])
def test_only_a_written_file_is_a_change(project: Path, kind: str) -> None:
    if kind == "git":
        subprocess.run(["git", "init", "-q"], cwd=project, check=True, env={**os.environ, "HOME": str(project.parent)})
    (project / "a").write_text("a")
    stack = [("dev", take_snapshot(str(project), Git(os.environ)))]
    (project / "a").read_text()
    assert cycle(stack, "dev", take_snapshot(str(project), Git(os.environ))) is not None
    (project / "a").write_text("b")
    now = take_snapshot(str(project), Git(os.environ))
    assert (now.kind, cycle(stack, "dev", now)) == (kind, None)
