"""The prompt of a question, without a terminal: which question it shows and what keys make of it."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.cli.format import display_width, wrap
from hocket.cli.question_prompt import GRACE_SECONDS, QuestionPrompt
from hocket.cli.watch import Keyboard
from hocket.views.run_view import RunView

LATER = GRACE_SECONDS + 0.1


def asked(id: str = "q1", run: str = "p", **data: Any) -> dict[str, Any]:
    given = {"id": id, "kind": "permission", "tool": "Bash", "input": {"command": f"make {id}"}, **data}
    return {"ts": 0.0, "run": run, "type": "question", "data": given}


def scene(*events: dict[str, Any]) -> tuple[QuestionPrompt, RunView]:
    """A prompt that has been on the screen long enough for keys to count."""
    view = RunView("r")
    view.add({"ts": 0.0, "run": "r", "type": "run.created", "data": {"kind": "chain", "agent": "c", "number": 1}})
    leaf = {"kind": "leaf", "agent": "builder", "number": 2, "parent": "r", "step": 0}
    view.add({"ts": 0.0, "run": "p", "type": "run.created", "data": leaf})
    for event in events:
        view.add(event)
    prompt = QuestionPrompt()
    prompt.update(view, 0.0)
    return prompt, view


def press(prompt: QuestionPrompt, view: RunView, *keys: str) -> dict[str, Any] | None:
    return prompt.press(keys, view, LATER)


def test_key_allows_once() -> None:
    prompt, view = scene(asked())
    assert press(prompt, view, "a") == {"question": "q1", "allow": True}
    assert press(prompt, view, "a") is None
    assert "sending" in prompt.lines(80, 9, 1.0)[2]


def test_rule_has_its_own_key() -> None:
    rule = "Bash(make " + "very " * 30 + "long *)"
    prompt, view = scene(asked(rule=rule))
    shown = " ".join(line.strip("│ ") for line in prompt.lines(60, 9, 1.0))
    assert f"[A] allow {rule}" in shown
    assert press(prompt, view, "A") == {"question": "q1", "allow": True, "always": True}


def test_nothing_of_a_rule_is_left_out() -> None:
    prompt, _ = scene(asked(rule="Bash(make\x1b[2K\nall\u3164 *)"))
    assert any("[A] allow Bash(make\\x1b[2K\\nall\\u3164 *)   [d]" in line for line in prompt.lines(100, 9, 1.0))


@pytest.mark.parametrize(("rows", "fits"), [(24, False), (99, True)])
def test_rule_that_does_not_fit_has_no_key(rows: int, fits: bool) -> None:
    prompt, view = scene(asked(rule="Bash(make " + "very " * 200 + "long *)"), asked("q2"))
    assert press(prompt, view, "A") is None, "it has not been shown yet"
    lines = prompt.lines(60, rows // 3, 1.0, rows)
    assert len(lines) <= rows - 3, "a step, the footer and the cursor need a row each"
    assert any("[A]" in line for line in lines) is fits
    assert (press(prompt, view, "A") is not None) is fits


def test_keys_pressed_as_the_question_appears_mean_nothing() -> None:
    prompt, view = scene(asked())
    assert prompt.press(["a"], view, GRACE_SECONDS / 2) is None
    assert prompt.press(["a"], view, LATER) is not None


@pytest.mark.parametrize("keys", [["a", "a"], ["m", "a"], ["A"], ["y"], ["1"], ["\r"], [" "], []])
def test_pasted_text_and_other_keys_allow_nothing(keys: list[str]) -> None:
    prompt, view = scene(asked())
    assert press(prompt, view, *keys) is None
    assert not prompt.is_sending


def test_fast_typing_sends_nothing_by_itself() -> None:
    prompt, view = scene(asked())
    assert press(prompt, view, "d", "n", "o", "\r") is None
    assert press(prompt, view, "\r") == {"question": "q1", "allow": False, "text": "no"}


def test_denial_needs_no_reason_and_can_be_cancelled() -> None:
    prompt, view = scene(asked())
    press(prompt, view, "d")
    press(prompt, view, "\x1b")
    press(prompt, view, "d")
    assert press(prompt, view, "\n") == {"question": "q1", "allow": False}


def test_parts_of_a_question_are_answered_in_turn() -> None:
    prompt, view = scene(asked(kind="choice", tool="AskUser", text="Colour? (1 Red)\nSize? (1 Small)"))
    press(prompt, view, "t")
    assert press(prompt, view, "1", "\r") is None
    assert "2 of 2, answer: " in prompt.lines(80, 9, 1.0)[2]
    assert press(prompt, view, "\r") is None, "nothing is no answer"
    assert press(prompt, view, "b", "i", "g", "\r") == {"question": "q1", "allow": True, "text": "1\nbig"}


def test_option_has_its_number_as_key() -> None:
    prompt, view = scene(asked(kind="choice", tool=None, text="Where?", options=["here", "there"]))
    assert press(prompt, view, "3") is None
    assert press(prompt, view, "a") is None, "words are wanted"
    assert press(prompt, view, "2") == {"question": "q1", "allow": True, "text": "2"}


def test_shown_question_stays_while_others_change() -> None:
    prompt, view = scene(asked("q1"), asked("q2"))
    press(prompt, view, "n")
    prompt.update(view, 1.0)
    view.add(asked("q3"))
    view.add({"ts": 1.0, "run": "p", "type": "answer", "data": {"id": "q1", "allow": True, "by": "operator"}})
    prompt.update(view, 1.0)
    assert prompt.question is not None
    assert prompt.question.data["id"] == "q2"


def test_new_question_ignores_early_keys() -> None:
    prompt, view = scene(asked("q1"), asked("q2"))
    view.add({"ts": 1.0, "run": "p", "type": "answer", "data": {"id": "q1", "allow": True, "by": "operator"}})
    prompt.update(view, 10.0)
    assert prompt.press(["a"], view, 10.1) is None
    assert prompt.press(["a"], view, 10.0 + LATER) == {"question": "q2", "allow": True}


def test_question_of_a_chain_is_shown() -> None:
    prompt, view = scene(asked("lost-1", "r", kind="lost", tool=None, text="builder was lost. Run it again?"))
    assert prompt.question is not None
    assert (prompt.question.asked_by, prompt.question.run_name) == ("run 1", 1)
    assert press(prompt, view, "a") == {"question": "lost-1", "allow": True}


@pytest.mark.parametrize(("kind", "left"), [("turn.ended", 1), ("run.ended", 0)])
def test_end_of_turn_or_run_closes_questions(kind: str, left: int) -> None:
    prompt, view = scene(asked("q1"), asked("q2", parent="helper"))
    view.add({"ts": 1.0, "run": "p", "type": kind, "data": {"status": "done", "idle": True}})
    prompt.update(view, 1.0)
    assert len(view.questions) == left
    assert (prompt.question is not None) == bool(left)


def test_refused_answer_can_be_repeated() -> None:
    prompt, view = scene(asked())
    press(prompt, view, "a")
    prompt.fail("run 2 takes no more input")
    assert any("! run 2 takes no more input" in line for line in prompt.lines(80, 9, 1.0))
    assert press(prompt, view, "a") is not None


def test_small_terminal_cuts_the_error_first() -> None:
    prompt, _ = scene(asked())
    prompt.fail("run 2 takes no more input, " + "since it is gone " * 20)
    lines = prompt.lines(40, 2, 1.0, 8)
    assert len(lines) == 7, "the footer needs a row"
    assert lines[0] == "builder wants to run Bash: make q1"
    assert lines[1] == "! run 2 takes no more input, since"
    assert lines[3].endswith("…")
    assert lines[4:] == ["[a] allow once", "[d] deny…", "waiting 0:01"]
    assert not prompt.is_cut
    framed = prompt.lines(40, 2, 1.0, 12)
    assert (len(framed), framed[0][0], framed[2][:4]) == (9, "╭", "│ ! "), (
        "its frame, a step, the footer and the cursor"
    )


@pytest.mark.parametrize(("rows", "is_cut"), [(24, False), (8, True), (5, True), (3, True)])
def test_cut_question_is_marked(rows: int, is_cut: bool) -> None:
    prompt, _ = scene(asked(input={"command": "make one\nmake two\nmake three"}))
    prompt.fail("no")
    lines = prompt.lines(40, max(1, rows // 3), 1.0, rows)
    assert prompt.is_cut is is_cut
    assert any("make three" in line for line in lines) is not is_cut
    assert any("complete above" in line for line in lines) is is_cut


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_tool_argument_is_shown(columns: int) -> None:
    given = {"path": "README.md", "script": "rm -rf ~\nmake " + "very " * 20 + "sure", "force": True}
    prompt, _ = scene(asked(tool="mcp__sh__run", input=given))
    shown = [line[2:-2].rstrip() for line in prompt.lines(columns, 99, 1.0)[1:-1]]
    assert "  · script: rm -rf ~" in shown
    assert "  · force: true" in shown
    assert " ".join(" ".join(shown).split()).count("very") == 20


@pytest.mark.parametrize("columns", [24, 40, 80, 120])
def test_prompt_lines_fit_the_terminal(columns: int) -> None:
    command = "echo 日本語日本語日本語日本語 " + 90 * "x" + " end"
    prompt, view = scene(asked(input={"command": command}), asked("q2"))
    for keys in ([], ["d"], list("because 日本語 " * 9)):
        press(prompt, view, *keys)
        lines = prompt.lines(columns, 99, 5.0)
        assert {display_width(line) for line in lines} <= {display_width(lines[0])}
        assert display_width(lines[0]) <= columns
        assert "".join(line.strip("│ ") for line in lines).replace(" ", "").count("x") >= 90


ARROWS = ["\x1b[A", "\x1bOA", "\x1b[1;5C", "\x1ba", "\x1b[200~"]


@pytest.mark.parametrize("sent", ARROWS)
def test_arrow_key_is_no_letter(sent: str) -> None:
    assert Keyboard().split(sent) == []


@pytest.mark.parametrize("sent", ARROWS)
def test_split_arrow_key_is_dropped(sent: str) -> None:
    typed = Keyboard()
    assert [key for piece in sent for key in typed.split(piece)] == []
    assert typed.split("A") == ["A"], "what comes behind it counts"


@pytest.mark.parametrize("begun", ["\x1b[", "\x1bO", "\x1b[1;"])
def test_late_end_of_an_arrow_key_is_dropped(begun: str) -> None:
    typed = Keyboard()
    assert [*typed.split(begun), *typed.split(""), *typed.split("A")] == []


def test_lone_escape_is_a_key() -> None:
    typed = Keyboard()
    assert [typed.split("\x1b"), typed.split(""), typed.split("")] == [[], ["\x1b"], []]
    assert typed.split("a\x1b[Bö") == ["a", "ö"]
    assert typed.split("d") == ["d"]


def test_new_lines_of_command_have_a_bar() -> None:
    prompt, _ = scene(asked(input={"command": "make one\n  make " + "x" * 40 + "\nmake three"}))
    shown = [line[2:-2].rstrip() for line in prompt.lines(40, 9, 1.0)[1:-2]]
    assert shown[0] == "builder wants to run Bash: make one"
    assert shown[1].startswith("  |   make")
    assert shown[2].startswith("      xx")
    assert "  | make three" in shown
    assert sum(line.count("x") for line in shown) == 40


def test_command_rows_are_indented() -> None:
    prompt, _ = scene(asked(input={"command": "make " + "x" * 28 + "[a] deny [d] allow once"}))
    lines = [line[2:] for line in prompt.lines(40, 9, 1.0)[1:-1]]
    asked_rows, keys = lines[: lines.index(next(line for line in lines if line.startswith("[")))], lines[-3:]
    assert all(row.startswith("    ") for row in asked_rows[1:]), asked_rows
    assert "[d] allow once" in " ".join(" ".join(asked_rows).split())
    assert keys[0].startswith("[a] allow once")


def test_prompt_names_no_keys_while_disabled() -> None:
    prompt, view = scene(asked())
    assert not any("[" in line for line in prompt.lines(60, 9, 1.0, muted=True))
    press(prompt, view, "d")
    assert not any("Enter" in line for line in prompt.lines(60, 9, 1.0, muted=True))
    assert any("Enter sends" in line for line in prompt.lines(60, 9, 1.0))


def test_small_terminal_has_no_frame() -> None:
    prompt, _ = scene(asked())
    assert prompt.lines(60, 2, 1.0, 5) == [
        "builder wants to run Bash: make q1",
        "[a] allow once   [d] deny…   waiting 0:01",
    ]
    assert len(prompt.lines(60, 2, 1.0, 7)) == 4


def test_folding_leaves_nothing_out() -> None:
    text = "a bb  ccc " + "d" * 25 + " 日本語"
    lines = wrap(text, 7)
    assert all(display_width(line) <= 7 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
