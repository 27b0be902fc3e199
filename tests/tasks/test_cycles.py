"""A task goes back to somebody who waits for it only when there is something new to show."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Cycle
from hocket.tasks.cycles import HINT, MOST_EQUAL, Open, Round, is_cycle, is_to_and_fro, may_be_to_and_fro
from hocket.workflows.directory_state import UNREADABLE, Evidence, look
from hocket.workflows.git import Git

ONE, TWO = Evidence("1", "git", "one"), Evidence("2", "git", "two")
NOBODY_LOOKED = Evidence("", UNREADABLE, "nobody looked")


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
        ([("a", NOBODY_LOOKED), ("b", ONE)], "a", ONE, False),
        ([("a", ONE), ("b", ONE)], "a", NOBODY_LOOKED, False),
    ],
)
def test_only_the_way_back_with_nothing_new_is_a_cycle(
    stack: list[tuple[str, Evidence]], target: str, now: Evidence, is_refused: bool
) -> None:
    assert (is_cycle([Open(*one) for one in stack], target, now) is not None) is is_refused


def test_whoever_asks_is_told_the_way_and_what_would_have_to_change() -> None:
    why = is_cycle([Open("lead", ONE), Open("dev", ONE), Open("qa", ONE)], "dev", ONE)
    way = "dev -> qa -> dev"
    assert why == f"dev has this task already and waits for it ({way}), and the working directory is as it was then"
    assert "working directory" in HINT
    assert (Cycle("x").code, Cycle("x").status) == ("cycle", 409)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.sampled_from("abc"))
def test_with_nothing_new_every_agent_has_a_task_at_most_once(agents: list[str], target: str) -> None:
    """So a way of hand-offs on which nothing is made is never longer than there are agents."""
    assert (is_cycle([Open(agent, ONE) for agent in agents], target, ONE) is not None) is (target in agents)


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
        ([("go", "no", NOBODY_LOOKED), ("go", "no", ONE), ("go", "no", ONE)], "go", ONE, None),
        ([("go", "no", ONE), ("come", "no", NOBODY_LOOKED), ("go", "no", ONE), ("go", "no", ONE)], "go", ONE, 3),
        ([("go", "no", ONE)] * 3, "go", NOBODY_LOOKED, None),
        # Many jobs, each of them "done": a short answer is no circle.
        ([(str(number), "done", ONE) for number in range(30)], "go", ONE, None),
    ],
)
def test_to_and_fro_is_the_same_answer_to_the_same_words_with_nothing_made(
    rounds: list[tuple[str, str, Evidence]], prompt: str, now: Evidence, times: int | None
) -> None:
    why = is_to_and_fro([Round(*one) for one in rounds], "dev", prompt, now)
    told = f"dev gave you the same answer {times} times, and the working directory is as it was before"
    assert why == (None if times is None else told)


@given(st.lists(st.tuples(*map(st.sampled_from, ("ab", "xy", (ONE, TWO)))), max_size=40))
def test_whatever_is_refused_would_have_been_worth_a_look(asked: list[tuple[str, str, Evidence]]) -> None:
    rounds = [Round(*one) for one in asked]
    refused = is_to_and_fro(rounds, "dev", "a", ONE) is not None
    assert may_be_to_and_fro(rounds, "a") or not refused


@given(st.lists(st.sampled_from("ab"), max_size=30))
def test_where_nothing_is_made_and_nothing_new_is_said_it_comes_to_an_end(prompts: list[str]) -> None:
    made: list[Round] = []
    for prompt in prompts:
        if is_to_and_fro(made, "dev", prompt, ONE) is None:
            made.insert(0, Round(prompt, f"no {prompt}", ONE))
    assert all(sum(one.prompt == prompt for one in made) <= MOST_EQUAL for prompt in "ab")


@pytest.mark.parametrize("kind", ["git", "files"])
def test_a_written_file_is_something_new_and_one_that_was_only_read_is_not(project: Path, kind: str) -> None:
    if kind == "git":
        subprocess.run(["git", "init", "-q"], cwd=project, check=True, env={**os.environ, "HOME": str(project.parent)})
    (project / "a").write_text("a")
    stack = [Open("dev", look(str(project), Git(os.environ)))]
    (project / "a").read_text()
    assert is_cycle(stack, "dev", look(str(project), Git(os.environ))) is not None
    (project / "a").write_text("b")
    now = look(str(project), Git(os.environ))
    assert (now.kind, is_cycle(stack, "dev", now)) == (kind, None)
