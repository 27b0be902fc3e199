"""What the Claude program prints becomes events: one line in, a new state and what it says out.

Nothing here raises, whatever the line: what is not understood is kept as ``raw``. The state is a small JSON value:

    session        whether input stays open after a turn          blocks messages told         see ``saying``
    id, left       of the session, and of the one before a clear  members tasks waking         see ``members``
    turn, open     how many turns began; whether one is going on  asked    questions by id, with the tool that waits
    result         how the last turn ended                        tools    names of tools at work, by id
    limited        whether the usage limit rejects us             marker   whether it was said
    fence          the block of code that is being said, if one is     calls    of our own tools, see ``serving``
    owed           whether a turn began before the last one's result, and its own is still to come
    spent_before cost tokens unsettled priced reading             see ``usage`` and ``streamed``

Nested values are replaced and never changed, because a state that was handed in stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.model import Spec
from hocket.providers.base import Reader, ReaderEvent, State
from hocket.providers.claude import (
    notices,
    partial_messages,
    questions,
    session_messages,
    subagents,
    tools,
    usage,
    wire_names,
)
from hocket.providers.claude.text_blocks import TextBlocks, message_key
from hocket.providers.claude.transcript import likeliest
from hocket.providers.json_values import cut, decoded, dict_in, list_in, number_in, text_in, with_newest
from hocket.providers.raw_events import raw_event
from hocket.redaction import NO_SECRETS, Redactor

_SYNTHETIC = "<synthetic>"
_ACTIVE = frozenset({"message_start", "content_block_start", "content_block_delta"})

Handler = Callable[[State, dict[str, Any]], list[ReaderEvent] | None]
"""Takes a state of its own to change and a decoded line. None: this line is not understood."""


def reader(spec: Spec, redactor: Redactor = NO_SECRETS) -> Reader:
    """The pure function that turns this run's lines into events."""
    return _Reading(spec, redactor).read


def _nothing(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    """Comes often and says nothing that another line does not say better."""
    del state, line
    return []


def _member(status: str) -> Handler:
    return lambda state, line: subagents.task(state, line, status)


_SYSTEM: dict[str, Handler] = {
    "api_retry": notices.retry,
    "background_tasks_changed": subagents.listed,
    "compact_boundary": notices.compaction,
    "hook_response": notices.hook,
    "informational": notices.informational,
    "peer_message_hold": session_messages.held,
    "permission_denied": notices.denied,
    "status": notices.status,
    "task_notification": _member(""),
    "task_progress": _member("running"),
    "task_started": _member("started"),
    "task_updated": _member(""),
    "thinking_tokens": _nothing,
}


class _Reading:
    """What is known of a run before its first line. All that is learned later is in the state."""

    def __init__(self, spec: Spec, redactor: Redactor) -> None:
        self._spec = spec
        self._redactor = redactor
        self._blocks = TextBlocks(spec, redactor)
        self._types: dict[str, Handler] = {
            "assistant": self._assistant,
            "command_lifecycle": _nothing,
            "control_cancel_request": questions.withdrawn,
            "control_request": questions.asked,
            "control_response": _nothing,
            "conversation_reset": _cleared,
            "rate_limit_event": notices.rate_limit,
            "result": self._result,
            "system": self._system,
            "tool_progress": _nothing,
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

    def _part(self, state: State, part: partial_messages.MessagePart) -> tuple[State, list[ReaderEvent]]:
        if state.get("open") and "id" in state and not partial_messages.is_read(part.event):
            return state, []
        own, speaker = self._own(state), part.parent_tool_use_id
        events = self._session(own, part.session_id or "", {})
        if not speaker and part.event.type in _ACTIVE:
            events += _turn_starts(own)
        who = subagents.who_is(own, speaker) if speaker else {}
        return own, events + partial_messages.read_part(self._blocks, own, part, who)

    # --- Whole messages ---

    def _assistant(self, state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
        message = dict_in(line, "message")
        blocks = list_in(message, "content")
        if not blocks:
            return None
        who = subagents.who(state, line)
        said = self._session(state, text_in(line, "session_id"), {})
        if text_in(message, "model") == _SYNTHETIC:
            return said + [_in_its_place(line, text, who) for text in _texts(blocks)]
        if not who:
            said += _turn_starts(state)
        key = message_key(who.get("parent", ""), text_in(message, "id"))
        for block in blocks:
            said += self._block(state, key, block, who)
            told = state.get("told") or {}
            state["told"] = with_newest(told, key, told.get(key, 0) + 1, most=32)
        return said

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
        """What tools brought back. Prompts come back this way as well: nobody's words, so they stay raw."""
        if session_messages.is_echo(line):
            return session_messages.received(line)
        blocks = list_in(dict_in(line, "message"), "content")
        who = subagents.who(state, line)
        results = [block for block in blocks if text_in(block, "type") == "tool_result"]
        return [tools.finished(state, block, who) for block in results] or None

    # --- Turns ---

    def _system(self, state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
        subtype = text_in(line, "subtype")
        if subtype == "init":
            said = self._session(state, text_in(line, "session_id"), line)
            state["limited"] = False
            # Where input has ended, a turn that begins by itself may come before the last one's result is told.
            begun = bool(state.get("open"))
            said += _turn_starts(state)
            state["owed"] = begun
            return said
        if subtype.startswith("model_refusal"):
            return notices.refusal(state, line)
        handler = _SYSTEM.get(subtype)
        return handler(state, line) if handler else None

    def _session(self, state: State, session: str, line: dict[str, Any]) -> list[ReaderEvent]:
        """Which session this is, told once: by its first line, or by any other where that one is missing.

        Told again only where the conversation was cleared: what is said from then on is another session's.
        """
        if "id" in state or not session or session == (left := state.get("left")):
            return []
        state["id"] = session
        cwd = text_in(line, "cwd") or self._spec.cwd
        data = {
            "session_id": session,
            "transcript": likeliest(self._spec.env, cwd, session),
            "model": text_in(line, "model") or None,
            "cwd": cwd,
            "version": text_in(line, "claude_code_version") or None,
            "permission_mode": text_in(line, wire_names.PERMISSION_MODE) or None,
            "tools": [tool for tool in list_in(line, "tools") if isinstance(tool, str)],
            **({"instead_of": left} if left else {}),
        }
        return [("session", data)]

    def _result(self, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
        said = self._session(state, text_in(line, "session_id"), {})
        said += _turn_starts(state)
        said += self._blocks.flush(state, "", {})
        # Only a word to the contrary makes it a success: what cannot be read must not pass for one.
        is_error = line.get("is_error") is not False
        text = line.get("result") if isinstance(line.get("result"), str) else None
        if text and not is_error:
            said += self._blocks.result(state, text)
        elif text:
            said += notices.limit_in_words(state, text)
        said.append(usage.settled(state, line))
        said.append(("turn.ended", self._end(state, line, text, is_error)))
        _turn_ends(state, line, text if is_error else None, is_error)
        return said

    def _end(self, state: State, line: dict[str, Any], text: str | None, is_error: bool) -> dict[str, Any]:
        result = cut(text) if text is not None else {"text": None}
        return {
            "turn": state.get("turn", 0),
            "result": result.pop("text"),
            **result,
            "is_error": is_error,
            "subtype": text_in(line, "subtype") or None,
            "error": cut(_why(line, text))["text"] if is_error else None,
            "idle": self._spec.session and not subagents.agents_at_work(state),
            "duration_ms": number_in(line, "duration_ms"),
            "num_turns": number_in(line, "num_turns"),
            "denials": [_denial(denial) for denial in list_in(line, "permission_denials")[:100]],
            "origin": text_in(dict_in(line, "origin"), "kind") or None,
        }


def _cleared(state: State, _line: dict[str, Any]) -> list[ReaderEvent]:
    """Somebody typed ``/clear``. Lines that come late may still be the old session's."""
    state["left"] = state.pop("id", None)
    usage.count_anew(state)
    return [notices.notice("cleared", "the conversation begins anew")]


def _turn_starts(state: State) -> list[ReaderEvent]:
    """Said at most once before the turn's end: its first line tells it, or whatever comes in place of that."""
    if state.get("open"):
        return []
    state["open"], state["waking"], state["owed"] = True, False, False
    state["turn"] = state.get("turn", 0) + 1
    return [("turn.started", {"turn": state["turn"], "origin": None})]


def _turn_ends(state: State, line: dict[str, Any], trouble: str | None, is_error: bool) -> None:
    state["open"] = False
    state["waking"] = state.get("owed", False)
    state["told"] = {}
    state["result"] = {
        "is_error": is_error,
        "subtype": text_in(line, "subtype"),
        "api_status": number_in(line, "api_error_status"),
        "api_error": text_in(line, "api_error") or notices.error_in_words(trouble or ""),
        "limited": state.get("limited", False),
    }
    # An ended turn waits for nothing. Only an agent in the background may still have a question.
    if not subagents.agents_at_work(state):
        questions.settle_all(state)


def _why(line: dict[str, Any], text: str | None) -> str:
    if text_in(line, "terminal_reason").startswith("aborted"):
        return "the turn was interrupted"  # Its own word for it is a diagnostic for its makers.
    errors = [error for error in list_in(line, "errors") if isinstance(error, str)]
    return text or "; ".join(errors) or text_in(line, "subtype") or "the turn ended with an error"


def _denial(denial: Any) -> dict[str, Any]:
    return {"tool": text_in(denial, "tool_name") or None, "id": text_in(denial, "tool_use_id") or None}


def _in_its_place(line: dict[str, Any], text: str, who: dict[str, Any]) -> ReaderEvent:
    """What the program says and no model did: mostly how a request failed, sometimes that it knows no such command."""
    error = text_in(line, "error") or None
    if error is None and line.get("is_api_error_message") is not True:
        return notices.notice("info", text, **who)
    return notices.notice("api_error", text, error=error, error_status=number_in(line, "api_error_status"), **who)


def _texts(blocks: list[Any]) -> list[str]:
    return [text for block in blocks if (text := text_in(block, "text"))]
