"""The Codex CLI: ``codex exec --json`` and its JSON lines. It reports tokens, but no cost."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec.structs import replace

from hocket.chain.parse import marker_said
from hocket.config import BYPASS
from hocket.config.settings import is_wider
from hocket.model import Agent, Reason, Spec, Status
from hocket.providers.base import (
    Launch,
    LaunchRequest,
    ProcessExit,
    Program,
    Provider,
    Reader,
    ReaderEvent,
    Sessions,
    State,
    Verdict,
    reported_verdict,
)
from hocket.providers.definition_rules import definition_rules
from hocket.providers.launching import (
    CONTINUE,
    DEFAULT_PROMPT,
    check_arguments,
    check_prompt,
    check_total,
    given_model,
    prompt_or,
)
from hocket.providers.output_lines import (
    cut,
    decoded,
    dict_in,
    kept_input,
    number_in,
    raw_event,
    session_named,
    text_in,
    turn_ended,
)
from hocket.redaction import NO_SECRETS, Redactor

PROGRAM = Program("codex", "the Codex CLI", "HOCKET_CODEX", "install Codex: npm install -g @openai/codex")
_PROMPT_FROM_STDIN = "-"
_OUTPUT_LIMIT = 16 * 1024
_RATE_LIMIT = re.compile(r"\b429\b|usage limit|rate limit", re.IGNORECASE)
_TRANSIENT = re.compile(
    r"high demand|stream disconnected|status 5\d\d|timed? ?out|error sending request", re.IGNORECASE
)
_TOOLS = {"command_execution": "command", "mcp_tool_call": "tool", "web_search": "query", "file_change": "changes"}
"""Items that are tool calls, with the key of what they do."""


# --- Launching ----------------------------------------------------------------------------------------------


def launch(agent: Agent, request: LaunchRequest) -> Launch:
    """Settings are ``-c`` overrides, which the user's own arguments can override."""
    rules = definition_rules(agent, request, "Codex")
    # In a mode that would ask before an edit, nothing can be written.
    sandbox = "workspace-write" if is_wider(rules.mode, "default") else "read-only"
    settings = {
        "sandbox_mode": "danger-full-access" if rules.mode == BYPASS else sandbox,
        **({"model": rules.model} if rules.model else {}),
        **({"developer_instructions": rules.instructions} if rules.instructions else {}),
    }
    ours = [word for key, value in settings.items() for word in ("-c", f"{key}={json.dumps(value)}")]
    given = (*agent.args, *request.args)
    argv = (agent.path, "exec", "--json", "--skip-git-repo-check", *ours, *given, _PROMPT_FROM_STDIN)
    check_arguments(agent.name, argv)
    check_total(agent.name, argv, request.env)
    prompt = check_prompt(agent.name, prompt_or(DEFAULT_PROMPT, request.prompt))
    model = given_model(given, "--model", "-m") or rules.model
    return Launch(argv, "file", prompt, notices=rules.notices, model=model)


def with_prompt(spec: Spec, prompt: str) -> Spec:
    return replace(spec, prompt=check_prompt(spec.agent, prompt_or(DEFAULT_PROMPT, prompt)))


def resume(spec: Spec, session: str, prompt: str) -> Spec:
    argv = spec.argv[:-3] if spec.argv[-3] == "resume" else spec.argv[:-1]
    argv = (*argv, "resume", session, _PROMPT_FROM_STDIN)
    return replace(spec, argv=argv, prompt=check_prompt(spec.agent, prompt_or(CONTINUE, prompt)))


# --- Reading ------------------------------------------------------------------------------------------------


def reader(spec: Spec, redactor: Redactor = NO_SECRETS) -> Reader:
    """The state has ``result``, the last message; ``open``, while a turn is under way; ``failed``, how it failed; and
    ``marker``, whether the marker was written.
    """

    def read(state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent]]:
        line = redactor.line(line, cut=whole_size is not None)
        value = decoded(line) if stream == "out" and whole_size is None else None
        found = _read_line(state, spec, value) if value else None
        return found or (state, [raw_event(stream, line, text_in(value, "type"), whole_size=whole_size)])

    return read


def _read_line(state: State, spec: Spec, line: dict[str, Any]) -> tuple[State, list[ReaderEvent]] | None:
    """The new state and the events of a line; None if it is not understood."""
    match text_in(line, "type"):
        case "thread.started":
            return state, session_named(text_in(line, "thread_id"), cwd=spec.cwd)
        case "turn.started":
            return {**state, "open": True, "failed": None}, [("turn.started", {"turn": 1, "origin": None})]
        case "turn.completed":
            usage = _usage(dict_in(line, "usage"), spec.session_tokens)
            return {**state, "open": False}, [usage, turn_ended(state.get("result"), None)]
        case "turn.failed":
            failed = cut(text_in(dict_in(line, "error"), "message") or "the turn failed")["text"]
            return {**state, "open": False, "failed": failed}, [turn_ended(None, failed)]
        case "error":
            return state, [("notice", {"kind": "api_error", **cut(text_in(line, "message"))})]
        case "item.started" | "item.updated" | "item.completed" as kind:
            return _read_item(state, spec, dict_in(line, "item"), kind.removeprefix("item."))
    return None


def _read_item(state: State, spec: Spec, item: dict[str, Any], phase: str) -> tuple[State, list[ReaderEvent]] | None:
    kind, text = text_in(item, "type"), text_in(item, "text")
    if kind in _TOOLS:
        return state, _tool(kind, item, phase)
    if phase != "completed":
        return (state, []) if kind in ("agent_message", "reasoning") else None
    if kind == "reasoning":
        return state, [("thinking", cut(text))]
    if kind == "error":
        return state, [("notice", {"kind": "info", **cut(text_in(item, "message"))})]
    if kind != "agent_message":
        return None
    state, events = {**state, "result": cut(text)["text"]}, list[ReaderEvent]([("text", cut(text))])
    if spec.loop and not state.get("marker") and (found := marker_said(text, spec.marker)):
        state["marker"] = True
        events.append(("marker", {"line": found}))
    return state, events


def _tool(kind: str, item: dict[str, Any], phase: str) -> list[ReaderEvent]:
    tool = {"id": text_in(item, "id"), "name": text_in(item, "tool") or kind}
    if phase == "started":
        return [("tool.started", {**tool, **kept_input({_TOOLS[kind]: item.get(_TOOLS[kind])})})]
    if phase != "completed":
        return []
    output = text_in(item, "aggregated_output") or json.dumps(item.get("result") or item.get("changes") or "")
    return [("tool.finished", {**tool, "error": text_in(item, "status") == "failed", **cut(output, _OUTPUT_LIMIT)})]


def _usage(usage: dict[str, Any], before: int) -> ReaderEvent:
    """Tokens of this run. Codex reports the total of the session, which includes the runs ``before``."""
    read, written = number_in(usage, "input_tokens"), number_in(usage, "output_tokens")
    tokens = None if read is None or written is None else max(0, int(read) + int(written) - before)
    return "usage", {"tokens": tokens, "cost_usd": None, "cost_basis": None, "estimate": False}


# --- Judging ------------------------------------------------------------------------------------------------


def verdict(state: State, exit: ProcessExit, stop_reason: Reason | None) -> Verdict:  # noqa: A002 - the keeper's name for it
    """By the completed or failed turn, else by the exit."""
    failed, reported = state.get("failed"), None
    if failed is not None:
        reported = Status.FAILED, Reason.RATE_LIMITED if _RATE_LIMIT.search(failed) else Reason.ERROR
    elif state.get("open") is False:
        reported = Status.DONE, Reason.EXIT
    return reported_verdict(reported, exit, stop_reason)


def is_transient(state: State) -> bool:
    """Whether the turn failed because of the service or the connection, after the attempts of Codex itself."""
    return _TRANSIENT.search(state.get("failed") or "") is not None


provider = Provider(
    name="codex",
    program=PROGRAM,
    longest_line=16 * 1024 * 1024,
    launch=launch,
    with_prompt=with_prompt,
    reader=reader,
    verdict=verdict,
    is_transient=is_transient,
    # The name of a transcript contains the second in which it was created, so its path cannot be derived.
    sessions=Sessions(resume),
)
