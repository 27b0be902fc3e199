"""Messages to the Claude CLI, the paths of its transcripts, and how sessions are resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from providers.streams.recorded import SESSION_ID, init, line, read_all, result, spec, stream

from hocket.errors import PromptError, UsageError
from hocket.model import SESSION, Agent, Spec
from hocket.providers.base import Answer, LaunchRequest
from hocket.providers.claude import conversation, own_hooks
from hocket.providers.claude.hooks import are_usable
from hocket.providers.claude.launch import bound, launch, resume
from hocket.providers.claude.paths import folder_name, transcripts
from hocket.providers.claude.questions import rule_in
from hocket.providers.launching import CONTINUE

COLOURS = {"question": "Which colour?", "options": [{"label": "Red"}, {"label": "Blue"}]}
SIZES = {"question": "Which sizes?", "options": [{"label": "2"}, {"label": "1"}], "multiSelect": True}


def written(text: str) -> Any:
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return json.loads(text)


def response(question: dict[str, Any], reply: Answer) -> Any:
    value = written(conversation.answer(question, reply))
    assert value["type"] == "control_response"
    assert {key: value["response"][key] for key in ("subtype", "request_id")} == {
        "subtype": "success",
        "request_id": question["id"],
    }
    return value["response"]["response"]


def choice(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"id": "q1", "kind": "choice", "input": {"questions": list(questions)}}


@pytest.mark.req("S2-57")
@given(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip))
def test_message_is_one_line_for_any_text(text: str) -> None:
    assert written(conversation.message(text)) == {"type": "user", "message": {"role": "user", "content": text}}


def test_invalid_or_empty_message_is_refused() -> None:
    with pytest.raises(PromptError):
        conversation.message("\ud800")
    with pytest.raises(PromptError):
        conversation.message(" \n")
    with pytest.raises(UsageError):
        conversation.answer({"id": "q"}, Answer(False, "\ud800"))


def test_permission_repeats_input_of_question() -> None:
    asked = {"id": "q1", "kind": "permission", "input": {"command": "ls"}}
    assert response(asked, Answer(True)) == {"behavior": "allow", "updatedInput": {"command": "ls"}}


def test_oversize_input_is_allowed_unchanged() -> None:
    asked = {"id": "q1", "kind": "permission", "input": None, "input_text": "{"}
    assert response(asked, Answer(True)) == {"behavior": "allow"}


def test_denial_contains_its_reason() -> None:
    assert response({"id": "q1"}, Answer(False, "not there")) == {"behavior": "deny", "message": "not there"}
    assert response({"id": "q1"}, Answer(False))["message"]


@pytest.mark.parametrize(
    ("questions", "text", "answers"),
    [
        ((COLOURS,), "Blue", {"Which colour?": "Blue"}),
        ((COLOURS,), " 2 ", {"Which colour?": "Blue"}),
        ((COLOURS,), "3", {"Which colour?": "3"}),
        ((COLOURS,), "two\nlines", {"Which colour?": "two\nlines"}),
        ((SIZES,), "2", {"Which sizes?": "2"}),
        ((COLOURS, SIZES), "1\n1", {"Which colour?": "Red", "Which sizes?": "1"}),
        ((COLOURS, SIZES), "Red", {"Which colour?": "Red"}),
        ((COLOURS,), "", {}),
        ((), "Red", {}),
    ],
)
def test_choice_is_answered_by_question(
    questions: tuple[dict[str, Any], ...], text: str, answers: dict[str, str]
) -> None:
    given_back = response(choice(*questions), Answer(True, text))["updatedInput"]
    assert given_back == {"questions": list(questions), "answers": answers}


@given(st.recursive(st.none() | st.text(max_size=3) | st.integers(), lambda inner: st.lists(inner, max_size=3)))
def test_malformed_choice_can_be_answered(questions: Any) -> None:
    for malformed in (questions, [{"question": "Which?", "options": questions}]):
        asked = {"id": "q1", "kind": "choice", "input": {"questions": malformed}}
        assert response(asked, Answer(True, "1"))["behavior"] == "allow"


def test_interrupt_names_its_request() -> None:
    assert written(conversation.interrupt("r7")) == {
        "type": "control_request",
        "request_id": "r7",
        "request": {"subtype": "interrupt"},
    }


# --- End of a conversation ---


def tasks(*kinds: str) -> bytes:
    listed = [{"task_id": f"t{number}", "task_type": kind} for number, kind in enumerate(kinds)]
    return line("system", subtype="background_tasks_changed", tasks=listed)


@pytest.mark.parametrize(
    ("lines", "over", "over_when_settled"),
    [
        ([], False, False),
        ([init()], False, False),
        ([init(), result()], True, True),
        ([init(), result(is_error=True)], True, True),
        ([init(), result(), init()], False, False),
        ([init(), result(), init(), result()], True, True),
        ([init(), tasks("local_agent"), result()], False, False),
        ([init(), tasks("local_agent"), result(), tasks()], False, True),
        ([init(), tasks("local_agent"), result(), tasks(), init()], False, False),
        ([init(), tasks("local_agent"), result(), tasks(), init(), result()], True, True),
        ([init(), tasks("something_new"), result()], False, False),
        ([init(), tasks("local_bash"), result()], False, False),
        ([init(), tasks("local_bash"), result(), tasks()], False, True),
        # After the end of its input, the CLI reports a turn that it begins by itself before the last result.
        ([init(), init(), result()], False, True),
        ([init(), init(), result(), result()], True, True),
    ],
)
def test_conversation_is_finished_after_last_result(lines: list[bytes], over: bool, over_when_settled: bool) -> None:
    state = read_all(lines)[0]
    assert conversation.is_finished(state, False) is over
    assert conversation.is_finished(state, True) is over_when_settled


def test_recorded_background_agent_is_finished_at_last_line() -> None:
    """Not between the agent's end and the lead's next turn, in which the lead may ask a question."""
    lines = stream("background")
    states = [read_all(lines[:count])[0] for count in range(len(lines) + 1)]
    assert [count for count, state in enumerate(states) if conversation.is_finished(state, False)] == [len(lines)]


# --- Resuming ---


def test_resumed_run_has_own_session() -> None:
    made = launch(
        Agent("claude", "claude", "/bin/claude", "PATH"),
        LaunchRequest(args=("--resume", "mine")),
    )
    first = Spec("claude", "claude", made.argv, "/p", {}, prompt="one")
    second = resume(first, "OLD", "two")
    third = resume(second, "NEWER", " \n")
    at = first.argv.index("--session-id")
    for run, session in ((second, "OLD"), (third, "NEWER")):
        forked = ("--resume", session, "--fork-session", "--session-id", SESSION)
        assert run.argv == (*first.argv[:at], *forked, *first.argv[at + 2 :])
    assert (second.prompt, third.prompt) == ("two", CONTINUE)


def test_old_run_is_resumed_with_its_flags() -> None:
    """Such a run was started before text of sub-agents was forwarded."""
    made = launch(Agent("claude", "claude", "/bin/claude", "PATH"), LaunchRequest())
    argv = tuple(argument for argument in made.argv if argument != "--forward-subagent-text")
    assert len(argv) == len(made.argv) - 1
    at = argv.index("--session-id")
    bounded = bound(argv, 0.5)
    for before, offset in ((argv, at), (bounded, at + 2)):
        again = resume(Spec("claude", "claude", before, "/p", {}, prompt="one"), "OLD", "two")
        assert again.argv == (*before[:offset], "--resume", "OLD", "--fork-session", *before[offset:])


def test_run_without_session_cannot_be_resumed() -> None:
    with pytest.raises(UsageError):
        resume(spec(), "OLD", "go on")


def test_prompt_of_resumed_run_must_be_valid_text() -> None:
    made = launch(Agent("claude", "claude", "/bin/claude", "PATH"), LaunchRequest())
    with pytest.raises(PromptError):
        resume(Spec("claude", "claude", made.argv, "/p", {}), "OLD", "\ud800")


# --- Transcripts ---


@pytest.mark.req("S3-26")
@pytest.mark.parametrize(
    ("cwd", "folder"),
    [
        # The folders that the real program made for these directories.
        ("/tmp/hk/plain_dir.x", "-tmp-hk-plain-dir-x"),
        ("/tmp/hk/日本 😀~+@", "-tmp-hk---------"),
        ("/tmp/hk/e\u0301", "-tmp-hk-e-"),
        ("/tmp/hk/" + "a" * 190 + "/b", "-tmp-hk-" + "a" * 190 + "-b"),
        ("/tmp/hk/" + "y" * 193, "-tmp-hk-" + "y" * 192 + "-1g0ot0"),
        ("/tmp/hk/" + "ü😀" * 30 + "/" + "x_" * 100, "-tmp-hk-" + "-" * 91 + "x-" * 50 + "x-slrkdi"),
    ],
    ids=["plain", "wide", "accent", "200", "201", "long"],
)
def test_transcript_folder_has_name_that_cli_gives(cwd: str, folder: str) -> None:
    assert folder_name(cwd) == folder


@pytest.mark.req("S3-24")
def test_transcripts_are_searched_in_documented_order() -> None:
    assert transcripts({"HOME": "/h"}, "/srv/a.b", SESSION_ID) == (
        f"/h/.claude/projects/-srv-a-b/session_{SESSION_ID}.jsonl",
        f"/h/.claude/projects/-srv-a-b/{SESSION_ID}.jsonl",
        f"/h/.config/claude/projects/-srv-a-b/session_{SESSION_ID}.jsonl",
        f"/h/.config/claude/projects/-srv-a-b/{SESSION_ID}.jsonl",
        f"/h/.claude/projects/-srv-a.b/{SESSION_ID}.jsonl",
        f"/h/.config/claude/projects/-srv-a.b/{SESSION_ID}.jsonl",
    )


@pytest.mark.req("S3-24")
def test_configured_directory_is_the_only_one() -> None:
    found = transcripts({"HOME": "/h", "CLAUDE_CONFIG_DIR": "/c"}, "/srv", "abc")
    assert found == ("/c/projects/-srv/session_abc.jsonl", "/c/projects/-srv/abc.jsonl")


@pytest.mark.parametrize("session", ["", "../x", "a/b", "a\0b", "x" * 129])
def test_invalid_session_id_has_no_transcript(session: str) -> None:
    assert transcripts({"HOME": "/h"}, "/srv", session) == ()


def test_no_transcript_without_home() -> None:
    assert transcripts({}, "/srv", "abc") == ()


@pytest.mark.parametrize(
    ("cwd", "name"), [("/a b/c.d", "-a-b-c-d"), ("/é", "--"), ("/\U0001f600x", "---x"), ("/\udcffx", "--x")]
)
def test_other_units_of_directory_become_dashes(cwd: str, name: str) -> None:
    assert folder_name(cwd) == name


@given(st.text(st.characters()))
def test_folder_name_is_plain_and_short(cwd: str) -> None:
    name = folder_name(cwd)
    assert all(character.isascii() and (character.isalnum() or character == "-") for character in name)
    assert len(name) <= 208


RULE = {"toolName": "Bash", "ruleContent": "make *"}
ADDS = {"type": "addRules", "rules": [RULE], "behavior": "allow", "destination": "localSettings"}


def permission(*suggestions: Any) -> dict[str, Any]:
    return {"id": "q1", "kind": "permission", "tool": "Bash", "input": {"command": "make"}, "suggestions": suggestions}


def test_always_adds_suggested_rule_for_session() -> None:
    other = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    given = response(permission(other, ADDS), Answer(True, None, always=True))
    assert given["updatedPermissions"] == [{**ADDS, "destination": "session"}]
    assert "updatedPermissions" not in response(permission(ADDS), Answer(True))
    assert response(permission(ADDS), Answer(False, None, always=True))["behavior"] == "deny"


@pytest.mark.parametrize(
    ("suggestions", "rule"),
    [
        ([ADDS], "Bash(make *)"),
        ([{**ADDS, "rules": [RULE, {"toolName": "Read"}]}], "Bash(make *), Read"),
        ([{**ADDS, "behavior": "deny"}], None),
        ([{**ADDS, "rules": [{"ruleContent": "x"}]}], None),
        ([{**ADDS, "rules": []}, "odd", None, {}], None),
        ([], None),
    ],
)
def test_rule_is_described_as_text(suggestions: list[Any], rule: str | None) -> None:
    found = rule_in(suggestions)
    assert (found[0] if found else None) == rule


CALL: dict[str, Any] = {"tool": "Bash", "input": {"command": "make all"}, "suggestions": [ADDS], "agent": None}


def decided(call: dict[str, Any], **said: Any) -> Any:
    told = conversation.hook_decision(call, {"text": None, **said})["hookSpecificOutput"]
    assert (told.pop("hookEventName"), list(told)) == ("PermissionRequest", ["decision"])
    return told["decision"]


def test_decision_of_a_hook_follows_the_answer() -> None:
    assert decided(CALL, allow=True) == {"behavior": "allow"}
    assert decided(CALL, allow=False, text="no") == {"behavior": "deny", "message": "no"}
    for_session = {**ADDS, "destination": "session"}
    assert decided(CALL, allow=True, rule="Bash(make *)") == {"behavior": "allow", "updatedPermissions": [for_session]}
    assert decided(CALL, allow=True, rule="Bash(other)") == {"behavior": "allow"}


def test_always_means_the_rule_that_was_shown() -> None:
    """A rule with a masked secret is not shown; the hook itself has it unmasked."""
    other = {**ADDS, "rules": [{"toolName": "Bash", "ruleContent": "curl secret *"}]}
    (added,) = decided({**CALL, "suggestions": [other, ADDS]}, allow=True, rule="Bash(make *)")["updatedPermissions"]
    assert added["rules"] == [RULE]


def test_hook_answers_a_choice_of_any_size() -> None:
    long = {"question": "Which?", "options": [{"label": "x" * 100_000}, {"label": "short"}]}
    call = {**CALL, "tool": "AskUserQuestion", "input": {"questions": [long, COLOURS]}}
    given = decided(call, allow=True, text="2\nred")
    assert given["updatedInput"] == {**call["input"], "answers": {"Which?": "short", "Which colour?": "red"}}


def test_hooks_of_a_lead_are_entries_by_event() -> None:
    hooks = own_hooks.hooks_for_lead(("/a b/python", "-m", "hocket"))
    assert are_usable(hooks["PreToolUse"])
    assert are_usable(hooks["PermissionRequest"])
    (calls,), (permission,) = hooks["PreToolUse"], hooks["PermissionRequest"]
    assert calls["hooks"][0]["command"] == "'/a b/python' -m hocket hook pre-tool-use --team || exit 2"
    assert (permission["matcher"], permission["hooks"][0]["timeout"]) == ("*", 604_800)
    assert permission["hooks"][0]["command"] == "'/a b/python' -m hocket hook permission-request"
    (delegating,) = own_hooks.hooks_for_lead(("hocket",), delegates=True)["PreToolUse"]
    assert "pre-tool-use --team --always ||" in delegating["hooks"][0]["command"]
