"""The Cursor provider: its command line, its documented stream and forms of it that were reported, and the verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden.recordings import Exit
from providers.streams.cursor import SAID, STREAM, delta, init, message, result, tool

from hocket.errors import PromptError, UsageError
from hocket.model import Agent, Definition, Reason, Spec, Status
from hocket.providers import cursor
from hocket.providers.base import LaunchRequest, State
from hocket.redaction import NO_SECRETS, Redactor

AGENT = Agent("cursor-agent", "cursor", "/bin/cursor-agent", "cli")
SPEC = Spec("cursor-agent", "cursor", ("cursor-agent", "\ngo"), "/p", {}, prompt="go")
STOPPED = Exit(code=None, signal=15, stopped=True)
STREAM_FLAGS = ("-p", "--output-format", "stream-json", "--stream-partial-output")


def defined(**fields: Any) -> Agent:
    prompt = {"description": "reviews", "prompt": "You review."}
    definition = Definition("rev", {**prompt, **fields}, "/p/.claude/agents/rev.md")
    return Agent("rev", "cursor", "/bin/cursor-agent", "global", definition=definition)


def read(*lines: object, spec: Spec = SPEC, redactor: Redactor = NO_SECRETS) -> tuple[State, list[tuple[str, Any]]]:
    state, events, step = State(), [], cursor.reader(spec, redactor)
    for line in lines:
        content = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
        state, said = step(state, "out", content, None)
        events += said
    return state, events


def texts(*lines: object, **how: Any) -> list[str]:
    return [data["text"] for kind, data in read(*lines, **how)[1] if kind == "text"]


# --- Launch ---


def test_launch_is_the_documented_command_line() -> None:
    agent = Agent("cu", "cursor", "/bin/cursor-agent", "cli", model="gpt-5")
    launch = cursor.launch(agent, LaunchRequest(prompt="do it", args=("--sandbox", "enabled")))
    given = ("--model", "gpt-5", "--sandbox", "enabled")
    assert launch.argv == ("/bin/cursor-agent", *given, *STREAM_FLAGS, "\ndo it")
    assert (launch.stdin, launch.prompt) == ("empty", "do it")


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("bypassPermissions", ("--force",)),
        ("auto", ()),
        ("acceptEdits", ()),
        ("default", ("--mode", "ask")),
        ("manual", ("--mode", "ask")),
        ("dontAsk", ("--mode", "ask")),
        ("plan", ("--mode", "plan")),
    ],
)
def test_permission_mode_is_never_wider_than_asked(mode: str, flags: tuple[str, ...]) -> None:
    argv = cursor.launch(AGENT, LaunchRequest(permission_mode=mode)).argv
    assert argv[1:-5] == flags
    assert ("--force" in argv) == (mode == "bypassPermissions")


@pytest.mark.parametrize("flag", ["--force", "-f", "-pf", "--yolo", "--mode=agent", "--plan"])
def test_permission_mode_flag_is_refused(flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        cursor.launch(AGENT, LaunchRequest(args=(flag,)))
    assert "permission_mode" in (caught.value.hint or "")


@pytest.mark.parametrize("flag", ["--resume", "--continue", "--output-format=text", "--print", "-c", "--cloud"])
def test_flag_that_belongs_to_hocket_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="Hocket sets it"):
        cursor.launch(AGENT, LaunchRequest(args=(flag,)))


@pytest.mark.parametrize("prompt", ["--force", "-f", "status", "update"])
def test_prompt_is_neither_an_option_nor_a_subcommand(prompt: str) -> None:
    argument = cursor.launch(AGENT, LaunchRequest(prompt=prompt)).argv[-1]
    assert argument == f"\n{prompt}"
    assert cursor.with_prompt(SPEC, prompt).argv[-1] == f"\n{prompt}"


@pytest.mark.parametrize("prompt", ["x" * 64 * 1024, "a\0b"], ids=["long", "NUL"])
def test_prompt_that_no_argument_can_carry_is_refused(prompt: str) -> None:
    for attempt in (
        lambda: cursor.launch(AGENT, LaunchRequest(prompt=prompt)),
        lambda: cursor.with_prompt(SPEC, prompt),
    ):
        with pytest.raises(PromptError):
            attempt()


def test_loop_explains_the_marker_before_the_task() -> None:
    argument = cursor.launch(AGENT, LaunchRequest(prompt="build", loop=True, marker="ALL_DONE")).argv[-1]
    assert "\n\nALL_DONE\n\n" in argument
    assert argument.endswith("\n\n# Task\n\nbuild")


def test_resumed_session_gets_only_the_new_prompt() -> None:
    launch = cursor.launch(defined(), LaunchRequest(prompt="build", args=("--sandbox", "enabled")))
    spec = Spec("rev", "cursor", launch.argv, "/p", {}, prompt=launch.prompt)
    first = cursor.resume(spec, "chat-1", "go on")
    assert first.argv == (*launch.argv[:3], "--resume", "chat-1", *STREAM_FLAGS, "\ngo on")
    assert cursor.resume(first, "chat-2", "").argv[3:5] == ("--resume", "chat-2")
    assert cursor.with_prompt(first, "other").argv == (*first.argv[:-1], "\nother")


# --- Definitions ---


def test_definition_is_given_as_instructions_before_the_task() -> None:
    launch = cursor.launch(defined(), LaunchRequest(prompt="look"))
    assert launch.argv[-1] == "\nYou review.\n\n# Task\n\nlook"
    assert (launch.prompt, launch.notices) == ("look", ())
    spec = Spec("rev", "cursor", launch.argv, "/p", {}, prompt=launch.prompt)
    assert cursor.with_prompt(spec, "again").argv[-1] == "\nYou review.\n\n# Task\n\nagain"


# --- Reader ---


def test_documented_stream_becomes_events() -> None:
    state, events = read(*STREAM)
    assert [kind for kind, _ in events] == [
        *("session", "turn.started", "text", "tool.started", "tool.finished"),
        *("text", "tool.started", "notice", "tool.finished", "text", "turn.ended"),
    ]
    assert events[0][1] == {"session_id": "chat-1", "model": "gpt-5", "cwd": "/p"}
    assert [data["text"] for kind, data in events if kind == "text"] == SAID
    assert events[-1][1] == {"turn": 1, "result": SAID[-1], "is_error": False, "error": None, "idle": False}
    assert cursor.verdict(state, Exit(0), None) == (Status.DONE, Reason.EXIT)


@pytest.mark.req("S3-39", "S3-40")
def test_parts_are_emitted_immediately_and_once() -> None:
    lines = (
        init(),
        delta("one\ntw"),
        delta("o\nthr"),
        message("one\ntwo\nthree", model_call_id="m"),
        result("one\ntwo\nthree"),
    )
    found = [texts(*lines[:end]) for end in range(2, len(lines) + 1)]
    assert found == [["one"], ["one", "two"], ["one", "two", "three"], ["one", "two", "three"]]


@pytest.mark.req("S3-40")
def test_message_adds_only_missing_text() -> None:
    assert texts(delta("one\n"), message("one\ntwo\nthree")) == ["one", "two\nthree"]


REPEATED = {
    "as one part": (delta("one"), message("one", model_call_id="m", timestamp_ms=2)),
    "twice": (delta("one"), message("one", model_call_id="m"), message("one")),
    "after a tool": (delta("one"), tool("started"), tool("completed"), message("one", model_call_id="m")),
}


@pytest.mark.req("S3-40")
@pytest.mark.parametrize("form", REPEATED)
def test_repeated_message_is_emitted_once(form: str) -> None:
    assert texts(*REPEATED[form]) == ["one"]


@pytest.mark.req("S3-40")
def test_last_message_may_repeat_all_texts() -> None:
    before = (delta("one."), message("one.", model_call_id="m"), delta("two."))
    _, events = read(init(), *before, message("one.two."), result("one.two."))
    assert [data["text"] for kind, data in events if kind == "text"] == ["one.", "two."]
    assert events[-1][1]["result"] == "two."
    assert texts(*before, message("two."), message("one.two.")) == ["one.", "two."]


def test_message_with_same_beginning_is_complete() -> None:
    assert texts(delta("ok"), message("ok"), delta("okay then"), message("okay then")) == ["ok", "okay then"]


def test_equal_messages_without_parts_are_emitted() -> None:
    assert texts(message("ok"), tool("started"), message("ok")) == ["ok", "ok"]


def test_parts_without_message_are_emitted_with_result() -> None:
    _, events = read(init(), delta("on"), delta("e"), result("one"))
    assert [(kind, data.get("text")) for kind, data in events[2:-1]] == [("text", "one")]
    assert events[-1][1]["result"] == "one"


def test_secret_across_two_parts_is_masked() -> None:
    redactor = Redactor({"CURSOR_API_KEY": "key-0123456789"})
    lines = (delta("my key-01"), delta("23456789 is"), message("my key-0123456789 is"))
    assert texts(*lines, redactor=redactor) == ["my [redacted] is"]


def test_marker_in_the_last_message_is_found_once() -> None:
    looping = Spec("cursor-agent", "cursor", (), "/p", {}, loop=True, marker="DONE")
    lines = (init(), delta("all\nDO"), delta("NE\n"), message("all\nDONE\n"), result("all\nDONE\n"))
    assert [kind for kind, _ in read(*lines, spec=looping)[1]].count("marker") == 1


def test_marker_in_prompt_or_tool_is_ignored() -> None:
    looping = Spec("cursor-agent", "cursor", (), "/p", {}, loop=True, marker="DONE")
    echo = {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "write\nDONE"}]}}
    _, events = read(init(), echo, tool("completed", stdout="DONE\n"), result("no"), spec=looping)
    assert "marker" not in [kind for kind, _ in events]


def test_function_call_has_its_name_and_arguments() -> None:
    call = {"function": {"name": "look", "arguments": '{"at": 1}'}}
    _, ((_, started),) = read({"type": "tool_call", "subtype": "started", "call_id": "c", "tool_call": call})
    assert (started["name"], started["input"]) == ("look", call["function"])


@pytest.mark.parametrize(
    "line", [b"no json\n", b"[]\n", b'{"type":"new.kind"}\n', b'{"type":5}\n', b"\xff\n", b'{"type":"tool_call"}\n']
)
def test_line_that_is_not_understood_is_raw(line: bytes) -> None:
    state, events = read(line)
    assert ([kind for kind, _ in events], state) == (["raw"], {})


def test_usage_is_never_reported() -> None:
    assert "usage" not in [kind for kind, _ in read(*STREAM)[1]]
    assert cursor.provider.reports_tokens is False


# --- Verdict ---

FINISHED, FAILED = read(init(), result("done"))[0], read(init(), {**result("no"), "is_error": True})[0]


@pytest.mark.parametrize(
    ("state", "ended", "reason", "verdict"),
    [
        (FINISHED, Exit(0), None, (Status.DONE, Reason.EXIT)),
        (FINISHED, Exit(1), None, (Status.DONE, Reason.EXIT)),
        (FINISHED, STOPPED, Reason.STOPPED, (Status.DONE, Reason.EXIT)),
        (FAILED, Exit(0), None, (Status.FAILED, Reason.ERROR)),
        (FAILED, STOPPED, Reason.STOPPED, (Status.STOPPED, Reason.STOPPED)),
        ({}, Exit(0), None, (Status.FAILED, Reason.ERROR)),
        ({}, Exit(1), None, (Status.FAILED, Reason.EXIT)),
    ],
)
def test_verdict_follows_result_before_exit(
    state: State, ended: Exit, reason: Reason | None, verdict: tuple[Status, Reason]
) -> None:
    assert cursor.verdict(state, ended, reason) == verdict
