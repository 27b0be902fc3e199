"""The Codex provider: its command line, lines that no recording has, and the verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden.recordings import Exit

from hocket.errors import PromptError, UsageError
from hocket.model import Agent, Reason, Spec, Status
from hocket.providers import codex
from hocket.providers.base import LaunchRequest, State

AGENT = Agent("codex", "codex", "/bin/codex", "cli")
SPEC = Spec("codex", "codex", ("codex", "exec", "-"), "/p", {})
STOPPED = Exit(code=None, signal=15, stopped=True)


def settings(argv: tuple[str, ...]) -> dict[str, Any]:
    """The ``-c key=value`` overrides of a command line."""
    pairs = (argv[at + 1].split("=", 1) for at, word in enumerate(argv) if word == "-c")
    return {key: json.loads(value) for key, value in pairs}


def read(*lines: object, spec: Spec = SPEC, state: State | None = None) -> tuple[State, list[tuple[str, Any]]]:
    state, events = state or {}, []
    for line in lines:
        content = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
        state, said = codex.reader(spec)(state, "out", content, None)
        events += said
    return state, events


def message(text: str) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": text}}


def completed(given: object, made: object) -> dict[str, Any]:
    return {"type": "turn.completed", "usage": {"input_tokens": given, "output_tokens": made}}


# --- Launch ---


def test_launch_reads_the_prompt_from_standard_input() -> None:
    launch = codex.launch(AGENT, LaunchRequest(prompt="do it", args=("--search",)))
    assert launch.argv[:4] == ("/bin/codex", "exec", "--json", "--skip-git-repo-check")
    assert launch.argv[-2:] == ("--search", "-")
    assert (launch.stdin, launch.prompt) == ("file", "do it")
    assert settings(launch.argv) == {"sandbox_mode": "workspace-write"}


@pytest.mark.parametrize(
    ("mode", "sandbox"),
    [
        ("bypassPermissions", "danger-full-access"),
        ("auto", "workspace-write"),
        ("acceptEdits", "workspace-write"),
        ("default", "read-only"),
        ("manual", "read-only"),
        ("dontAsk", "read-only"),
        ("plan", "read-only"),
    ],
)
def test_permission_mode_selects_the_sandbox(mode: str, sandbox: str) -> None:
    argv = codex.launch(AGENT, LaunchRequest(permission_mode=mode)).argv
    assert settings(argv)["sandbox_mode"] == sandbox


def test_loop_adds_the_marker_to_the_instructions() -> None:
    argv = codex.launch(AGENT, LaunchRequest(loop=True, marker="ALL_DONE")).argv
    assert "\n\nALL_DONE\n\n" in settings(argv)["developer_instructions"]
    off = codex.launch(AGENT, LaunchRequest(loop=True, marker="ALL_DONE", contract=False)).argv
    assert "developer_instructions" not in settings(off)


def test_model_of_claude_is_not_given_to_codex() -> None:
    assert "model" not in settings(codex.launch(AGENT, LaunchRequest(model="haiku")).argv)
    own = Agent("cx", "codex", "/bin/codex", "cli", model="gpt-5")
    assert settings(codex.launch(own, LaunchRequest()).argv)["model"] == "gpt-5"


def test_allowed_tools_are_refused() -> None:
    with pytest.raises(UsageError, match="allowed_tools"):
        codex.launch(Agent("cx", "codex", "/bin/codex", "cli", allowed_tools="Read"), LaunchRequest())


def test_prompt_that_is_too_long_is_refused() -> None:
    with pytest.raises(PromptError, match="limit"):
        codex.launch(AGENT, LaunchRequest(prompt="x" * (11 * 1024 * 1024)))


# --- Reader ---


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"type":"new.kind"}\n', b'{"type":5}\n', b"\xff\n", b"\n"])
def test_line_that_is_not_understood_is_raw(line: bytes) -> None:
    state, events = read(line)
    assert ([kind for kind, _ in events], state) == (["raw"], {})


@pytest.mark.parametrize("text", ["DONE", "all of it\n**DONE**\nbye", "```\nDONE\n```", "```\nDONE"])
def test_marker_on_own_line_is_found_once(text: str) -> None:
    looping = Spec("codex", "codex", (), "/p", {}, loop=True, marker="DONE")
    _, events = read(message(text), message(text), spec=looping)
    assert [kind for kind, _ in events].count("marker") == 1


@pytest.mark.parametrize("text", ["not DONE yet", "```\nprint('DONE')\nDONE\n```"])
def test_marker_among_other_text_is_not_found(text: str) -> None:
    looping = Spec("codex", "codex", (), "/p", {}, loop=True, marker="DONE")
    assert "marker" not in [kind for kind, _ in read(message(text), spec=looping)[1]]


def test_usage_of_resumed_session_excludes_earlier_runs() -> None:
    resumed = Spec("codex", "codex", (), "/p", {}, session_tokens=100)
    (usage,) = (data for kind, data in read(completed(90, 30), spec=resumed)[1] if kind == "usage")
    assert (usage["tokens"], usage["cost_usd"]) == (20, None)


@pytest.mark.parametrize("usage", [completed("many", 3), {"type": "turn.completed"}])
def test_usage_without_number_is_unknown(usage: dict[str, Any]) -> None:
    (data,) = (data for kind, data in read(usage)[1] if kind == "usage")
    assert data["tokens"] is None


def test_server_tool_has_its_name() -> None:
    item = {"id": "item_1", "type": "mcp_tool_call", "server": "s", "tool": "look", "status": "failed"}
    started, finished = ({"type": f"item.{phase}", "item": item} for phase in ("started", "completed"))
    _, ((_, first), (_, last)) = read(started, finished)
    assert (first["name"], last["name"], last["error"]) == ("look", "look", True)


# --- Verdict ---


def after(*lines: object) -> State:
    return read(*lines)[0]


@pytest.mark.parametrize(
    ("state", "ended", "reason", "verdict"),
    [
        (after(completed(1, 1)), Exit(0), None, (Status.DONE, Reason.EXIT)),
        (after(completed(1, 1)), STOPPED, Reason.STOPPED, (Status.DONE, Reason.EXIT)),
        ({}, Exit(0), None, (Status.FAILED, Reason.ERROR)),
        ({}, Exit(2), None, (Status.FAILED, Reason.EXIT)),
        ({}, Exit(signal=9), None, (Status.FAILED, Reason.SIGNAL)),
        ({}, Exit(error="no such file"), None, (Status.FAILED, Reason.START_FAILED)),
        (after({"type": "turn.started"}), Exit(0), None, (Status.FAILED, Reason.ERROR)),
        (after({"type": "turn.started"}), STOPPED, Reason.STOPPED, (Status.STOPPED, Reason.STOPPED)),
        (after({"type": "turn.started"}), STOPPED, Reason.TIMEOUT, (Status.FAILED, Reason.TIMEOUT)),
    ],
)
def test_verdict_follows_the_turn_before_the_exit(
    state: State, ended: Exit, reason: Reason | None, verdict: tuple[Status, Reason]
) -> None:
    assert codex.verdict(state, ended, reason) == verdict


def test_failed_turn_fails_with_any_exit_code() -> None:
    state = after({"type": "turn.started"}, {"type": "turn.failed", "error": {"message": "no"}})
    assert codex.verdict(state, Exit(0), None) == (Status.FAILED, Reason.ERROR)
    assert codex.verdict(state, STOPPED, Reason.STOPPED) == (Status.STOPPED, Reason.STOPPED)


@pytest.mark.parametrize("text", ["last status: 429 Too Many Requests", "You've hit your usage limit."])
def test_turn_over_limit_is_rate_limited(text: str) -> None:
    state = after({"type": "turn.failed", "error": {"message": text}})
    assert codex.verdict(state, Exit(1), None) == (Status.FAILED, Reason.RATE_LIMITED)
