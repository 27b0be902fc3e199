"""The reader of the Claude CLI's output. A line that it does not understand becomes a ``raw`` event.

The state is a small JSON value:

    session        whether input stays open after a turn          blocks messages told         see ``text_blocks``
    id, left       of the session, and of the one before a clear  members tasks waking         see ``subagents``
    turn, open     the number of turns; whether one is open       asked    questions by id, with the tool that waits
    result         how the last turn ended                        tools    names of running tools, by id
    limited        whether the usage limit is reached             marker   whether it was written
    fence          the fenced code block that is open             calls    of our own tools, see ``mcp_requests``
    owed           whether a turn began before the last one's result, and its own is still to come
    spent_before cost tokens unsettled priced reading             see ``usage`` and ``partial_messages``

Nested values are replaced and never changed, because a given state must stay as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hocket.model import Spec
from hocket.providers.base import Reader, ReaderEvent, State
from hocket.providers.claude import (
    notices,
    partial_messages,
    questions,
    subagents,
    tools,
    usage,
)
from hocket.providers.claude.paths import transcripts
from hocket.providers.output_lines import (
    cut,
    decoded,
    dict_in,
    is_session_name,
    list_in,
    number_in,
    raw_event,
    text_in,
    with_newest,
)
from hocket.providers.text_blocks import TextBlocks, message_key
from hocket.redaction import NO_SECRETS, Redactor

_SYNTHETIC = "<synthetic>"
_ACTIVE = frozenset({"message_start", "content_block_start", "content_block_delta"})

Handler = Callable[[State, dict[str, Any]], list[ReaderEvent] | None]
"""Takes a state that it may change and a decoded line. None if it does not understand the line."""


def reader(spec: Spec, redactor: Redactor = NO_SECRETS) -> Reader:
    return _LineReader(spec, redactor).read


def _ignore(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    """For frequent lines whose content other lines report better."""
    del state, line
    return []


_SYSTEM: dict[str, Handler] = {
    "background_tasks_changed": subagents.list_changed,
    "compact_boundary": notices.compaction,
    "hook_response": notices.hook,
    "informational": notices.informational,
    "peer_message_hold": notices.message_held,
    "permission_denied": notices.denied,
    "status": notices.status,
    "task_notification": subagents.task_changed,
    "task_progress": partial(subagents.task_changed, status="running"),
    "task_started": partial(subagents.task_changed, status="started"),
    "task_updated": subagents.task_changed,
    "thinking_tokens": _ignore,
}


class _LineReader:
    """The reader of one run. It has no memory but the state."""

    def __init__(self, spec: Spec, redactor: Redactor) -> None:
        self._spec = spec
        self._redactor = redactor
        self._blocks = TextBlocks(spec, redactor)
        self._service = notices.service_of(spec, redactor)
        self._systems: dict[str, Handler] = {**_SYSTEM, "api_retry": partial(notices.retry, service=self._service)}
        self._types: dict[str, Handler] = {
            "assistant": self._assistant,
            "command_lifecycle": _ignore,
            "control_cancel_request": questions.withdrawn,
            "control_request": questions.asked,
            "control_response": _ignore,
            "conversation_reset": _cleared,
            "rate_limit_event": notices.rate_limit,
            "result": self._result,
            "system": self._system,
            "tool_progress": _ignore,
            "user": self._user,
        }

    def read(self, state: State, stream: str, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent]]:
        if stream != "out" or whole_size is not None:
            masked = self._redactor.line(line, cut=whole_size is not None)
            raw = raw_event(stream, masked, whole_size=whole_size)
            return state, [raw, *(notices.too_old(line) if stream == "err" else ())]
        masked = self._redactor.line(line)
        if (part := partial_messages.part_of(masked, line)) is not None:
            return self._part(state, part)
        value = decoded(masked)
        if value is None:
            return state, [raw_event("out", masked)]
        kind = text_in(value, "type")
        handler = self._types.get(kind)
        own = self._own(state)
        events = handler(own, value) if handler else None
        return (own, events) if events is not None else (state, [raw_event("out", masked, kind)])

    def _own(self, state: State) -> State:
        """A copy that handlers may change."""
        return {**state, "session": self._spec.session}

    # --- Messages ---

    def _part(self, state: State, part: partial_messages.MessagePart) -> tuple[State, list[ReaderEvent]]:
        if state.get("open") and "id" in state and not partial_messages.is_read(part.event):
            return state, []
        own, speaker = self._own(state), part.parent_tool_use_id
        events = self._session(own, part.session_id or "", {})
        if not speaker and part.event.type in _ACTIVE:
            events += _turn_started(own)
        who = subagents.who_is(own, speaker) if speaker else {}
        return own, events + partial_messages.read_part(self._blocks, own, part, who)

    def _assistant(self, state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
        message = dict_in(line, "message")
        blocks = list_in(message, "content")
        if not blocks:
            return None
        who = subagents.who(state, line)
        events = self._session(state, text_in(line, "session_id"), {})
        if text_in(message, "model") == _SYNTHETIC:
            texts = (text for block in blocks if (text := text_in(block, "text")))
            shown = (notices.error_text(line, text, self._service) for text in texts)
            return events + [notices.synthetic(line, text, who) for text in shown]
        if not who:
            events += _turn_started(state)
        key = message_key(who.get("parent", ""), text_in(message, "id"))
        for block in blocks:
            events += self._block(state, key, block, who)
            told = state.get("told") or {}
            state["told"] = with_newest(told, key, told.get(key, 0) + 1, most=32)
        return events

    def _block(self, state: State, key: str, block: Any, who: dict[str, Any]) -> list[ReaderEvent]:
        kind = text_in(block, "type")
        if kind == "text":
            return self._blocks.whole(state, key, text_in(block, "text"), who)
        if kind == "thinking":
            text = text_in(block, "thinking")
            return [("thinking", {**cut(text), **who})] if text else []
        if kind.endswith("tool_use"):
            return [tools.started(state, block, who)]
        if kind.endswith("tool_result"):
            return [tools.finished(state, block, who)]
        return [("raw", {"stream": "stdout", **cut(str(block)), "type": kind or "assistant", **who})]

    def _user(self, state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
        """Results of tools. Prompts that the CLI repeats in this form stay raw."""
        if notices.is_echo(line):
            return notices.message_received(line)
        blocks = list_in(dict_in(line, "message"), "content")
        who = subagents.who(state, line)
        results = [block for block in blocks if text_in(block, "type") == "tool_result"]
        return [tools.finished(state, block, who) for block in results] or None

    # --- Sessions and turns ---

    def _system(self, state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
        subtype = text_in(line, "subtype")
        if subtype == "init":
            events = self._session(state, text_in(line, "session_id"), line)
            state["limited"] = False
            # After the end of input, a turn that begins by itself may come before the result of the last one.
            is_open = bool(state.get("open"))
            events += _turn_started(state)
            state["owed"] = is_open
            return events
        if subtype.startswith("model_refusal"):
            return notices.refusal(state, line)
        handler = self._systems.get(subtype)
        return handler(state, line) if handler else None

    def _session(self, state: State, session: str, line: dict[str, Any]) -> list[ReaderEvent]:
        """The session, once: from its first line, or from another one if that is missing. Again after a clear."""
        if "id" in state or not is_session_name(session) or session == (left := state.get("left")):
            return []
        state["id"] = session
        cwd = text_in(line, "cwd") or self._spec.cwd
        data = {
            "session_id": session,
            "transcript": next(iter(transcripts(self._spec.env, cwd, session)), None),
            "model": text_in(line, "model") or None,
            "cwd": cwd,
            "version": text_in(line, "claude_code_version") or None,
            "permission_mode": text_in(line, "permissionMode") or None,
            "tools": [tool for tool in list_in(line, "tools") if isinstance(tool, str)],
            **({"instead_of": left} if left else {}),
        }
        return [("session", data)]

    def _result(self, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
        events = self._session(state, text_in(line, "session_id"), {})
        events += _turn_started(state)
        events += self._blocks.flush(state, "", {})
        # A success only if the line says so: a value that cannot be read must not pass for one.
        is_error = line.get("is_error") is not False
        text = line.get("result") if isinstance(line.get("result"), str) else None
        if text and not is_error:
            events += self._blocks.result(state, text)
        elif text:
            events += notices.limit_in_text(state, text)
        events.append(usage.settled(state, line))
        shown = notices.error_text(line, text, self._service) if text and is_error else text
        events.append(("turn.ended", self._turn_end(state, line, shown, is_error)))
        _close_turn(state, line, text if is_error else None, is_error)
        return events

    def _turn_end(self, state: State, line: dict[str, Any], text: str | None, is_error: bool) -> dict[str, Any]:
        result = cut(text) if text is not None else {"text": None}
        return {
            "turn": state.get("turn", 0),
            "result": result.pop("text"),
            **result,
            "is_error": is_error,
            "subtype": text_in(line, "subtype") or None,
            "error": cut(_error(line, text))["text"] if is_error else None,
            "idle": self._spec.session and not subagents.has_background_agents(state),
            "duration_ms": number_in(line, "duration_ms"),
            "num_turns": number_in(line, "num_turns"),
            "denials": [_denial(denial) for denial in list_in(line, "permission_denials")[:100]],
            "origin": text_in(dict_in(line, "origin"), "kind") or None,
        }


def _cleared(state: State, _line: dict[str, Any]) -> list[ReaderEvent]:
    """After ``/clear``. Late lines may still belong to the old session."""
    state["left"] = state.pop("id", None)
    usage.restart(state)
    return [notices.notice("cleared", "the conversation was cleared")]


def _turn_started(state: State) -> list[ReaderEvent]:
    """Empty if a turn is open already: any of several lines may be the first one of a turn."""
    if state.get("open"):
        return []
    state["open"], state["waking"], state["owed"] = True, False, False
    state["turn"] = state.get("turn", 0) + 1
    return [("turn.started", {"turn": state["turn"], "origin": None})]


def _close_turn(state: State, line: dict[str, Any], error: str | None, is_error: bool) -> None:
    state["open"] = False
    state["waking"] = state.get("owed", False)
    state["told"] = {}
    state["result"] = {
        "is_error": is_error,
        "subtype": text_in(line, "subtype"),
        "api_status": number_in(line, "api_error_status"),
        "api_error": text_in(line, "api_error") or notices.error_in_text(error or ""),
        "limited": state.get("limited", False),
    }
    # After a turn only an agent in the background may still wait for an answer.
    if not subagents.has_background_agents(state):
        questions.settle_all(state)


def _error(line: dict[str, Any], text: str | None) -> str:
    if text_in(line, "terminal_reason").startswith("aborted"):
        return "the turn was interrupted"  # The CLI's own text is a diagnostic for its developers.
    errors = [error for error in list_in(line, "errors") if isinstance(error, str)]
    return text or "; ".join(errors) or text_in(line, "subtype") or "the turn ended with an error"


def _denial(denial: Any) -> dict[str, Any]:
    return {"tool": text_in(denial, "tool_name") or None, "id": text_in(denial, "tool_use_id") or None}
