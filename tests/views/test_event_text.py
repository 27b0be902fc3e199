"""What events say to people."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.cli.inbox import YES
from hocket.cli.plain import AUTOMATIC_ANSWERS, lines_of
from hocket.cli.question_prompt import LINE_LIMIT, TEXT_LIMIT, details, headline, question_text
from hocket.views.event_text import EVENT_TEXTS, NOTICE, reply_command, tone_of, tool_summary
from hocket.views.run_view import RunView


def line(kind: str, verbose: bool = False, /, **data: Any) -> str | None:
    """What one event of a run called ``me`` adds to a log, without the time."""
    progress = RunView("me")
    progress.add({"ts": 0.0, "run": "me", "type": "run.created", "data": {"kind": "leaf", "agent": "me", "number": 5}})
    event = {"ts": 0.0, "run": "me", "type": kind, "data": data}
    progress.add(event)
    lines = lines_of(progress, event, verbose)
    assert len(lines) <= 1
    return lines[0][9:] if lines else None


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("text", {"text": "hello"}, "me hello"),
        ("raw", {"stream": "stderr", "text": "oops"}, "me ! oops"),
        ("raw", {"stream": "stdout", "text": '{"type":"odd"}'}, None),
        ("tool.started", {"name": "Bash", "input": {"command": "touch x"}}, "me Bash: touch x"),
        ("tool.started", {"name": "mcp__hocket__hand_off", "input": {"prompt": "go on"}}, "me hand_off: go on"),
        ("tool.finished", {"name": "mcp__hocket__wait", "error": True, "text": "gone"}, "me wait failed: gone"),
        ("tool.started", {"name": "mcp__other__hand_off", "input": {}}, "me mcp__other__hand_off"),
        ("tool.started", {"name": "Read", "input": {"file_path": "/a.py", "limit": 3}}, "me Read: /a.py"),
        ("tool.finished", {"name": "Bash", "error": False, "text": "fine"}, None),
        ("tool.finished", {"name": "Bash", "error": True, "text": "no\nsuch file"}, "me Bash failed: no such file"),
        ("member", {"agent": "Explore", "status": "started", "text": "look"}, "me/Explore started: look"),
        ("member", {"agent": "Explore", "status": "running", "text": "look"}, None),
        (
            "member",
            {"team": "t", "name": "alice", "agent": "reviewer", "model": "opus", "status": "started"},
            "me teammate alice has joined (reviewer, opus)",
        ),
        ("member", {"team": "t", "name": "alice", "agent": "reviewer", "status": "idle"}, "me teammate alice is idle"),
        ("member", {"team": "t", "id": "a@t", "status": "stopped"}, "me teammate a@t has stopped"),
        (
            "task.changed",
            {"team": "t", "id": "3", "status": "in_progress", "owner": "alice", "subject": "Write\nit"},
            "me task 3 in progress, alice: Write it",
        ),
        ("task.changed", {"team": "t", "id": "3", "status": "deleted"}, "me task 3 deleted"),
        (
            "message",
            {"team": "t", "from": "alice", "to": "team-lead", "text": "long", "summary": "done", "kind": "message"},
            "me alice to team-lead: done",
        ),
        (
            "message",
            {"team": "t", "from": "team-lead", "to": "bob", "text": "enough", "kind": "shutdown_request"},
            "me team-lead to bob asks for a shutdown: enough",
        ),
        (
            "message",
            {"team": "t", "from": "a", "to": "b", "text": '{"type":"shutdown_approved"}', "kind": "shutdown_approved"},
            "me a to b agrees to shut down",
        ),
        ("team.removed", {"team": "t", "moved": [], "trash": "/h/trash/t"}, "me what was left of t is in /h/trash/t"),
        ("notice", {"kind": "retry", "text": "try 2 of 5"}, "me retry: try 2 of 5"),
        ("notice", {"kind": "permission_denied", "text": "Bash"}, "me permission denied: Bash"),
        ("notice", {"kind": "info", "text": "hooks ran"}, "me hooks ran"),
        ("rate_limited", {"status": "allowed", "resets_at": 0}, None),
        ("rate_limited", {"status": "rejected", "text": "5 h"}, "me rate limited: 5 h"),
        ("answer", {"id": "q", "allow": True, "by": "operator"}, "me allowed by operator"),
        ("answer", {"id": "q", "allow": False, "by": "operator", "text": "why?"}, "me denied by operator: why?"),
        ("input", {"kind": "message", "text": "now the tests"}, "me > now the tests"),
        ("input", {"kind": "interrupt"}, "me interrupted"),
        (
            "input",
            {"kind": "session_message", "text": "a\nb", "sender": {"name": "shop-2a", "address": "uds:/s"}},
            "me > message from session shop-2a: a b",
        ),
        (
            "input",
            {"kind": "session_message", "text": "a", "sender": {"name": None, "address": "uds:/s"}},
            "me > message from session uds:/s: a",
        ),
        (
            "input",
            {"kind": "session_message", "text": "The walls stand.", "sender": {"name": "alice", "address": None}},
            "me > message from alice: The walls stand.",
        ),
        (
            "input",
            {
                "kind": "session_message",
                "text": '{"type":"shutdown_request","reason":"all done"} To approve it, call …',
                "sender": {"name": "team-lead", "address": None},
            },
            "me > team-lead asks for a shutdown: all done",
        ),
        ("input", {"kind": "stop", "reason": "stopped"}, None),
        ("turn.ended", {"turn": 1, "is_error": False, "result": "x"}, None),
        ("turn.ended", {"turn": 1, "is_error": True, "error": "API 500", "idle": False}, None),
        ("turn.ended", {"turn": 1, "is_error": True, "error": "no\nway", "idle": True}, "me the turn failed: no way"),
        ("run.ended", {"status": "failed", "reason": "exit", "exit_code": 3}, "me failed: exit 3"),
        ("turn.started", {"turn": 1}, None),
        ("usage", {"tokens": 3}, None),
        ("session", {"session_id": "s"}, None),
        ("thinking", {"text": "hm"}, None),
    ],
)
def test_each_event_has_its_line_or_none(kind: str, data: dict[str, Any], said: str | None) -> None:
    assert line(kind, **data) == said


def test_rate_limit_is_shown_with_its_end() -> None:
    said = line("rate_limited", status="rejected", resets_at=86400.0, text="five hours")
    assert said is not None
    assert said.startswith("me rate limited until 1970-01-0")
    assert said.endswith(": five hours")


def test_thoughts_are_shown_only_when_verbose() -> None:
    assert line("thinking", True, text="hm,\nwell") == "me ~ hm, well"


@pytest.mark.parametrize("kind", [*EVENT_TEXTS, "answer", "parked", "question"])
def test_agent_text_cannot_control_the_terminal(kind: str) -> None:
    """Every key that any event has, filled with what a terminal would obey."""
    evil = "a\x1b]0;pwned\x07b\x1b[2Jc\x9b31m"
    names = ("text", "name", "agent", "error", "command", "by", "subtype", "reason", "status", "tool", "kind")
    data = dict.fromkeys(names, evil) | {
        "id": "q",
        "is_error": True,
        "idle": True,
        "stream": "stderr",
        "input": {"path": evil},
    }
    for lines in (line(kind, True, **data), line(kind, True, **{**data, "kind": "message"})):
        assert not set(lines or "") & {"\x1b", "\x07", "\x9b"}
        # A permission question spells control characters; other texts leave them out.
        assert "pwned" not in (lines or "").replace(r"\x1b]0;pwned\x07", "")
        assert kind == "question" or "pwned" not in (lines or "")


def test_other_tool_shows_all_arguments() -> None:
    assert tool_summary("Odd", {"n": 3, "on": True}) == 'Odd: {"n": 3, "on": true}'
    assert tool_summary("Odd", None) == "Odd"
    assert len(tool_summary("Bash", {"command": "x" * 5000})) < 250


def test_choice_question_asks_for_an_answer() -> None:
    question = {"id": "q1", "kind": "choice", "text": "Which\ncolour?", "tool": "AskUserQuestion"}
    assert question_text(question) == "asks: Which colour?"
    assert reply_command(question, 5) == 'hocket answer 5 "YOUR ANSWER"'
    assert reply_command(question, 5, several=True) == 'hocket answer 5 --question q1 "YOUR ANSWER"'


@pytest.mark.parametrize("given", [None, [], "x"])
def test_oversize_tool_input_is_mentioned(given: Any) -> None:
    question = {"kind": "permission", "text": "Write wants to write: /a", "tool": "Write", "input": given}
    assert question_text(question) == "asks for permission: Write wants to write: /a"


def test_question_shows_more_than_a_tool_call() -> None:
    given = {"command": "x" * 500}
    assert question_text({"kind": "permission", "tool": "Bash", "input": given}).endswith("x" * 500)
    assert line("tool.started", name="Bash", input=given) == f"me Bash: {'x' * 194}…"


def test_cut_question_says_so() -> None:
    """A cut question must not look harmless because its end is missing."""
    long = {"kind": "permission", "tool": "Bash", "input": {"command": "true " + "x" * TEXT_LIMIT + "; rm -rf ."}}
    assert question_text(long).startswith("wants to run Bash: true xxx")
    assert question_text(long).endswith(f"x… (cut, {TEXT_LIMIT + 21} characters; complete in: hocket inbox --json)")
    longer = {"kind": "permission", "tool": "Bash", "text": "Bash wants to run: x", "input": None, "oversize": True}
    assert question_text(longer) == "asks for permission: Bash wants to run: x… (cut; complete in: hocket logs --raw)"
    assert question_text({"kind": "choice", "text": "Which?", "oversize": True}).endswith(
        "complete in: hocket logs --raw)"
    )


def permission(command: str) -> dict[str, Any]:
    return {"id": "q", "kind": "permission", "tool": "Bash", "input": {"command": command}}


def test_question_escapes_every_character() -> None:
    asked = permission("echo safe\n\trm -rf /\x1b[1A\x1b[2K\rx\n")
    assert question_text(asked) == "wants to run Bash: echo safe\n  |     rm -rf /\\x1b[1A\\x1b[2K\\rx"
    leave = {"kind": "permission", "text": "Write wants to write:\n\u202ea", "tool": "Write", "input": None}
    assert question_text(leave) == "asks for permission: Write wants to write:\n  | \\u202ea"
    assert headline(asked) == "wants to run Bash: echo safe …"
    assert headline(permission("ls")) == "wants to run Bash: ls"


def test_omitted_lines_are_counted() -> None:
    lines = question_text(permission("\n".join(f"line {number}" for number in range(LINE_LIMIT + 2)))).split("\n")
    assert lines[-2:] == [f"  | line {LINE_LIMIT - 1}", "  … 2 more lines: hocket inbox"]
    assert question_text(permission("a\nb"), limit=1).endswith("a\n  … 1 more line: hocket inbox")


@pytest.mark.parametrize(
    ("tool", "given", "shown"),
    [
        ("mcp__sh__run", {"path": "README.md", "script": "rm -rf ~"}, "README.md\n  · script: rm -rf ~"),
        ("Bash", {"command": "make", "dangerouslyDisableSandbox": True}, "make\n  · dangerouslyDisableSandbox: true"),
        ("Bash", {"command": "make", "description": "Build it", "timeout": 9000}, "make"),
        (
            "Bash",
            {"command": "make", "description": ["rm"], "timeout": "1; rm"},
            'make\n  · description: ["rm"]\n  · timeout: 1; rm',
        ),
        ("mcp__sh__run", {"command": "make", "description": "rm"}, "make\n  · description: rm"),
        ("Write", {"file_path": "a", "content": "one\n\ttwo\x1b[2K\n"}, "a\n  · content: one\n  |     two\\x1b[2K"),
        ("Edit", {"old_string": "a", "file_path": "f", "new_string": ""}, "f\n  · old_string: a\n  · new_string: "),
        ("Odd", {"path": "a", "b\nc\u3164": {"d": "\u202e"}}, 'a\n  · b\\nc\\u3164: {"d": "\\u202e"}'),
        ("Odd", {"n": 3, "path": 5}, '{"n": 3, "path": 5}'),
    ],
)
def test_every_tool_input_is_shown(tool: str, given: dict[str, Any], shown: str) -> None:
    asked = {"id": "q", "kind": "permission", "tool": tool, "input": given}
    assert question_text(asked) == f"wants to run {tool}: {shown}"
    assert question_text({**asked, "input": {}}) == f"wants to run {tool}"


def test_command_line_cannot_look_like_an_argument() -> None:
    lines = question_text(permission("make\ndescription: x; rm -rf ~\n  · timeout: 5")).split("\n")
    assert lines[1:] == ["  | description: x; rm -rf ~", "  |   · timeout: 5"]


def test_lines_after_a_cut_one_are_counted() -> None:
    content = "\n".join(["x" * TEXT_LIMIT, *(f"line {number}" for number in range(50))])
    lines = question_text(
        {"kind": "permission", "tool": "Write", "input": {"file_path": "a", "content": content}}
    ).split("\n")
    assert len(lines) == 3
    assert f"x… (cut, {TEXT_LIMIT + 13} characters; " in lines[1]
    assert lines[2] == "  … 50 more lines: hocket inbox"


def test_details_have_the_complete_question() -> None:
    text = "\n".join(["Write wants to write: " + "x" * TEXT_LIMIT, *(f"line {number}" for number in range(2000))])
    leave = {"kind": "permission", "text": text, "tool": "Write", "input": None}
    shown = [headline(leave), *details(leave)]
    assert shown[0] == f"asks for permission: Write wants to write: {'x' * TEXT_LIMIT} …"
    assert shown[1:] == [f"  | line {number}" for number in range(2000)]
    given = {"command": "x" * TEXT_LIMIT + "y", "description": "a\nb"}
    shown = details({"kind": "permission", "tool": "Bash", "input": given})
    assert shown == [f"  command: {given['command']}", "  description: a", "  | b"]


def asked_of(on_question: str, **question: Any) -> tuple[RunView, list[str]]:
    progress = RunView("me")
    data = {"kind": "leaf", "agent": "me", "number": 5, "on_question": on_question}
    progress.add({"ts": 0.0, "run": "me", "type": "run.created", "data": data})
    event = {"ts": 0.0, "run": "me", "type": "question", "data": question}
    progress.add(event)
    return progress, [line[9:] for line in lines_of(progress, event)]


def test_reply_command_follows_a_multiline_question() -> None:
    _, lines = asked_of("ask", **permission("a\nb"))
    assert lines == ["? me wants to run Bash: a", "  | b", "    hocket answer 5 allow/deny"]


@pytest.mark.parametrize(
    ("on_question", "question", "said"),
    [
        ("fail", permission("ls"), f"? me wants to run Bash: ls    {AUTOMATIC_ANSWERS['fail']}"),
        ("deny", {"id": "q", "kind": "ask", "text": "Why?", "via": "ask"}, "? me asks: Why?"),
        ("deny", permission("ls") | {"via": "hook"}, "? me wants to run Bash: ls"),
    ],
)
def test_automatic_answer_has_no_reply_command(on_question: str, question: dict[str, Any], said: str) -> None:
    progress, lines = asked_of(on_question, **question)
    assert lines == [said]
    assert not progress.questions
    assert (progress.steps[0].question, progress.steps[0].status) == (None, "starting")


def test_reply_command_as_printed_allows_nothing() -> None:
    offered = reply_command({"id": "q", "kind": "permission"}, 5)
    assert not set("|;&<>()") & set(offered), "a shell would take the line apart"
    assert offered.split()[-1] not in YES


def test_message_from_another_session_is_shown() -> None:
    """The live view shows notices without ``--verbose``, and what the user sent not."""
    message = {"type": "input", "data": {"kind": "session_message", "text": "a", "sender": {}}}
    assert tone_of(message) == NOTICE
    assert tone_of({"type": "input", "data": {"kind": "message", "text": "a"}}) != NOTICE
