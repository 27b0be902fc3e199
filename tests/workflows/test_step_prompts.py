"""What goes from one step to the next: results, prompts that are filled in, the feedback of gates."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hocket.chain.variables import PLACEHOLDERS, PREVIOUS
from hocket.errors import PromptError
from hocket.model import RESULT_LIMIT, SESSION, BoundChain, Kind, Reason, Run, Spec, Status, Step
from hocket.workflows.step_prompts import (
    FEEDBACK_LIMIT,
    gate_feedback,
    iteration_spec,
    last_lines,
    previous_result,
    resume_interrupted,
    stage_of,
    stage_result,
)


def spec(agent: str = "a", prompt: str | None = "do it") -> Spec:
    argv = ("/bin/a", "-x") if prompt is None else ("/bin/a", "-x", prompt)
    return Spec(agent, "executable", argv, "/p", {}, prompt, blanks=PLACEHOLDERS)


def chain(*groups: int | None, **more: Any) -> BoundChain:
    steps = tuple(Step(f"a{n}", 1, False, spec(), group) for n, group in enumerate(groups))
    return BoundChain("c", steps, "/p", {}, **more)


def gate(**more: Any) -> dict[str, Any]:
    return {"run": "r1", "passed": False, "command": "make test", "exit_code": 2, "timed_out": False, **more}


def test_stage_is_a_step_or_a_group() -> None:
    mixed = chain(None, 1, 1, 2, 2, None)
    assert [list(stage_of(mixed, step)) for step in range(6)] == [[0], [1, 2], [1, 2], [3, 4], [3, 4], [5]]


def test_group_result_names_each_member() -> None:
    grouped = chain(1, 1, 1)
    assert stage_result(grouped, range(3), ["one\n", None, "three"]) == "## a0\n\none\n\n## a2\n\nthree"
    assert stage_result(grouped, range(3), [None, None, None]) is None


def test_large_group_results_are_truncated() -> None:
    joined = stage_result(chain(1, 1), range(2), ["ä" * RESULT_LIMIT, "b" * RESULT_LIMIT])
    assert joined is not None
    assert len(joined.encode()) < RESULT_LIMIT + 100
    assert joined.endswith("b" * 1000)


def test_previous_result_is_that_of_the_previous_stage() -> None:
    mixed = chain(None, 1, 1, None, previous="from another chain\n")
    results = ["zero\n", "one", "two", None]
    assert previous_result(mixed, 0, results) == "from another chain"
    assert previous_result(mixed, 1, results) == previous_result(mixed, 2, results) == "zero"
    assert previous_result(mixed, 3, results) == "## a1\n\none\n\n## a2\n\ntwo"


def test_placeholders_are_filled_once() -> None:
    form = spec(prompt="{{task}} | {{ previous.result }} | {{other}}")
    filled = iteration_spec(form, "the {{previous.result}}", "found {{task}}")
    assert filled.prompt == "the {{previous.result}} | found {{task}} | {{other}}"
    assert filled.argv == ("/bin/a", "-x", filled.prompt)


def test_unknown_placeholders_are_kept() -> None:
    text = "Explain {{task}} and {{previous.result}}"
    assert iteration_spec(replace(spec(prompt=text), blanks=()), "T", "P").prompt == text
    assert iteration_spec(replace(spec(prompt=text), blanks=(PREVIOUS,)), "T", "P").prompt == "Explain {{task}} and P"


def test_nul_in_result_or_feedback_is_replaced() -> None:
    filled = iteration_spec(spec(prompt="now: {{previous.result}}"), None, "a\0b")
    assert filled.argv == ("/bin/a", "-x", "now: a\ufffdb")
    assert iteration_spec(spec(), None, "", "it \0 failed").prompt == "do it\n\nit \ufffd failed"


def test_prompt_without_placeholders_keeps_the_spec() -> None:
    plain = spec()
    assert iteration_spec(plain, "task", "before") is plain


def test_spec_without_prompt_is_unchanged() -> None:
    silent = spec(prompt=None)
    assert iteration_spec(silent, "task", "before", "it failed") is silent


def test_empty_prompt_is_no_argument() -> None:
    assert iteration_spec(spec(prompt="{{previous.result}}"), None, "").argv == ("/bin/a", "-x")


def test_too_large_prompt_is_an_error() -> None:
    with pytest.raises(PromptError, match=r"the prompt for a has \d+ bytes; the limit is 64 KiB"):
        iteration_spec(spec(prompt="now: {{previous.result}}"), None, "x" * 65536)


def test_large_result_fits_on_standard_input() -> None:
    by_file = replace(spec(prompt="now: {{previous.result}}"), stdin="file", argv=("/bin/a",))
    filled = iteration_spec(by_file, None, "x" * 65536)
    assert (filled.prompt, filled.argv) == ("now: " + "x" * 65536, ("/bin/a",))


def test_gate_feedback_follows_prompt_if_it_fits() -> None:
    assert iteration_spec(spec(), None, "", "it failed").prompt == "do it\n\nit failed"
    full = spec(prompt="x" * 65530)
    assert iteration_spec(full, None, "", "it failed").prompt == full.prompt


def test_gate_feedback_names_command_code_and_output() -> None:
    feedback = gate_feedback(gate(output="".join(f"line {n}\n" for n in range(2000))))
    assert feedback is not None
    head, _, output = feedback.partition("The end of its output:\n\n")
    assert "make test" in head
    assert "exit code 2" in head
    assert output.endswith("line 1999")
    assert output.startswith("line ")
    assert len(output) <= FEEDBACK_LIMIT


def test_gate_feedback_for_timeout_and_success() -> None:
    late = gate_feedback(gate(timed_out=True, output=""))
    assert late is not None
    assert "too long" in late
    assert gate_feedback(gate(passed=True)) is None


def test_last_lines_are_whole_lines() -> None:
    assert last_lines("one\ntwo\nthree\n", 9) == "three"
    assert last_lines("ab\n", 100) == "ab"
    assert last_lines("x" * 50, 10) == "x" * 10
    assert last_lines("ä" * 6, 5) == "ää"


def run(**more: Any) -> Run:
    facts = {"status": Status.FAILED, "reason": Reason.RATE_LIMITED, "session_id": "s-1", **more}
    return Run("r1", 1, Kind.LEAF, "a", "claude", None, "r1", 0, "/p", 0.0, **facts)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({}, "usage limit"),
        ({"status": Status.LOST, "reason": Reason.LOST}, "killed"),
        ({"reason": Reason.ERROR}, "reached"),
    ],
)
def test_resumed_session_prompt_names_the_interruption(facts: dict[str, Any], word: str) -> None:
    before = Spec("a", "claude", ("/bin/claude", "-p", "--session-id", SESSION), "/p", {}, "do it", loop=True)
    again = resume_interrupted(before, run(**facts))
    assert again is not None
    assert word in (again.prompt or "")
    assert (again.resumed_from, again.loop) == ("r1", True)
    assert again.argv[2:5] == ("--resume", "s-1", "--fork-session")


def test_interrupted_run_without_session_is_not_resumed() -> None:
    before = Spec("a", "claude", ("/bin/claude", "-p", "--session-id", SESSION), "/p", {}, "do it")
    assert resume_interrupted(before, run(session_id=None)) is None
    assert resume_interrupted(spec(), run()) is None
    assert resume_interrupted(replace(before, argv=("/bin/claude", "-p")), run()) is None
