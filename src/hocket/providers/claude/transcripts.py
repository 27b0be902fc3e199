"""The reader of transcripts: what the CLI's own files have of a session becomes the events that its output would give.

A message is one line for each of its blocks, all with the same id and usage. Most other lines are for the CLI alone and
have no events. A sub-agent has a file of its own, ``agent-ID.jsonl``, with another one beside it that describes it. So
has a teammate, whose file is read like that of a session.

The state is a small JSON value:

    turn, open    the number of turns; whether one is open        tools       names of running tools, by id
    message       the id of the last one                          tokens …    see ``usage``
    told          whether the beginning of a sub-agent was
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from hocket.providers.base import Helper, ReaderEvent, State, TranscriptReader
from hocket.providers.claude import notices, tools, usage
from hocket.providers.claude.team import files
from hocket.providers.output_lines import cut, decoded, dict_in, list_in, number_in, raw_event, text_in
from hocket.redaction import Redactor

_HELPER_FILE = re.compile(r"(agent-([A-Za-z0-9_-]{1,128}))\.jsonl")
_TEAMMATE_FILE = re.compile(r"agent-a.+-[0-9a-f]{16}\.jsonl")
_TEAMMATE_BEGIN, _TEAMMATE_END = '<teammate-message teammate_id="', "\n</teammate-message>"
_PEERS_WORDS = "Another Claude session sent a message:\n"
"""What introduces the messages of teammates."""
_TEAMMATE = "teammate"
"""What starts turns."""
_GARBAGE_LIMIT = 1000
"""Bytes of a line that cannot be read which are kept."""
_HUMAN = "human"
_SYNTHETIC = "<synthetic>"
_INTERRUPTED = "[Request interrupted by user"
_UNFINISHED = "the turn was interrupted"
_LOCAL = ("<local-command-", "<bash-stdout>", "<bash-stderr>")
"""What commands of the CLI itself have printed."""
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>(?:.*?<command-args>(.*?)</command-args>)?", re.DOTALL)
_GOES_ON = ("", "tool_use", "pause_turn")
"""Why a message ends that does not end its turn."""


# --- Files --------------------------------------------------------------------------------------------------


def helper_folder(transcript: str) -> str:
    return f"{transcript.removesuffix('.jsonl')}/subagents"


def about(name: str) -> str | None:
    """The name of the file that describes a sub-agent, by that of its transcript."""
    found = _HELPER_FILE.fullmatch(name)
    return f"{found[1]}.meta.json" if found else None


def helper(name: str, content: bytes) -> Helper:
    found = _HELPER_FILE.fullmatch(name)
    value = decoded(content) or {}
    return Helper(
        found[2] if found else name,
        tool=text_in(value, "toolUseId") or None,
        agent=text_in(value, "agentType") or None,
        text=text_in(value, "description"),
        teammate=_teammate(name, value),
    )


def _teammate(name: str, about: dict[str, Any]) -> str | None:
    """The id of a teammate in its team; None for a sub-agent. The file that says so is written a little later."""
    if not about:
        return "" if _TEAMMATE_FILE.fullmatch(name) else None
    if text_in(about, "taskKind") != "in_process_teammate":
        return None
    own, team = text_in(about, "name"), text_in(about, "teamName")
    return f"{own}@{team}" if own and team else ""


# --- Lines --------------------------------------------------------------------------------------------------


def reader(helper: Helper | None, redactor: Redactor) -> TranscriptReader:
    is_teammate = helper is not None and helper.teammate is not None
    return _TranscriptReader(None if is_teammate else helper, redactor, is_teammate=is_teammate).read


class _TranscriptReader:
    """The reader of one transcript. It has no memory but the state."""

    def __init__(self, helper: Helper | None, redactor: Redactor, *, is_teammate: bool = False) -> None:
        self._helper = helper
        self._is_teammate = is_teammate
        self._redactor = redactor
        self._who = {} if helper is None else {"parent": helper.tool or helper.id, "agent": helper.agent}
        self._types = {
            "assistant": self._assistant,
            "cost-state": self._cost,
            "system": self._system,
            "user": self._user,
        }

    def read(self, state: State, line: bytes, whole_size: int | None) -> tuple[State, list[ReaderEvent], float | None]:
        masked = self._redactor.line(line, cut=whole_size is not None)
        value = decoded(masked) if whole_size is None else None
        if value is None:
            size = whole_size if whole_size is not None else len(line) if len(line) > _GARBAGE_LIMIT else None
            return state, [raw_event("transcript", masked[:_GARBAGE_LIMIT], whole_size=size)], None
        handler = self._types.get(text_in(value, "type"))
        # Early versions had the lines of sub-agents among those of the session.
        is_others = self._helper is None and not self._is_teammate and value.get("isSidechain") is True
        if handler is None or is_others:
            return state, [], _time(value)
        own = dict(state)
        return own, self._begun(own) + handler(own, value), _time(value)

    def _begun(self, state: State) -> list[ReaderEvent]:
        """The beginning of a sub-agent, once."""
        if self._helper is None or state.get("told"):
            return []
        state["told"] = True
        return [self._member(self._helper, "started", self._redactor.text(self._helper.text))]

    def _member(self, helper: Helper, status: str, text: str) -> ReaderEvent:
        data = {"id": helper.id, "status": status, "background": False, **cut(text)}
        return "member", {**data, "tool": helper.tool, **self._who}

    # --- Messages ---

    def _assistant(self, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
        message = dict_in(line, "message")
        blocks = [block for block in list_in(message, "content") if isinstance(block, dict)]
        if text_in(message, "model") == _SYNTHETIC:
            return self._synthetic(state, line, "\n".join(filter(None, (text_in(block, "text") for block in blocks))))
        events = self._message_begun(state, message)
        for block in blocks:
            events += self._block(state, block)
        if (why := text_in(message, "stop_reason")) not in _GOES_ON:
            texts = [text_in(block, "text") for block in blocks if text_in(block, "type") == "text"]
            events += self._ended(state, texts[-1], why) if texts else []
        return events

    def _message_begun(self, state: State, message: dict[str, Any]) -> list[ReaderEvent]:
        """The turn that a message begins, and the tokens that it used, with its first block."""
        identity = text_in(message, "id")
        if self._helper is not None or (identity and identity == state.get("message")):
            return []
        state["message"] = identity
        used, started = dict_in(message, "usage"), _turn_started(state)
        state["answered"] = True
        return [*started, *([usage.estimate(state, usage.tokens_of(used))] if used else [])]

    def _block(self, state: State, block: dict[str, Any]) -> list[ReaderEvent]:
        kind = text_in(block, "type")
        if kind in ("text", "thinking"):
            text = text_in(block, kind)
            return [(kind, {**cut(text), **self._who})] if text else []
        if kind.endswith("tool_use"):
            return [tools.started(state, block, self._who)]
        return [tools.finished(state, block, self._who)] if kind.endswith("tool_result") else []

    def _ended(self, state: State, text: str, why: str) -> list[ReaderEvent]:
        if self._helper is not None:
            return [self._member(self._helper, "completed", text)]
        return [_turn_ended(state, text, None, why)]

    def _synthetic(self, state: State, line: dict[str, Any], text: str) -> list[ReaderEvent]:
        """A message of the CLI in place of the model's."""
        if line.get("isApiErrorMessage") is not True:
            return []
        said = notices.notice("api_error", text, error=text_in(line, "error") or None, **self._who)
        return [said] if self._helper is not None else [*_turn_started(state), said, _turn_ended(state, text, text, "")]

    def _user(self, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
        content = dict_in(line, "message").get("content")
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        results = [block for block in blocks if text_in(block, "type").endswith("tool_result")]
        events = [tools.finished(state, block, self._who) for block in results]
        text = (
            content if isinstance(content, str) else "\n".join(filter(None, (text_in(one, "text") for one in blocks)))
        )
        # The prompt of a sub-agent is known from the call that started it.
        if results or not text or self._helper is not None or _is_internal(line):
            return events
        if text.startswith(_INTERRUPTED):
            return [_turn_ended(state, None, _UNFINISHED, "")] if state.get("open") else []
        return self._prompt(state, line, text)

    def _prompt(self, state: State, line: dict[str, Any], text: str) -> list[ReaderEvent]:
        """What a user or another session wrote, or the CLI in their place."""
        if text.startswith(_LOCAL):
            return []
        if text.startswith((_TEAMMATE_BEGIN, _PEERS_WORDS + _TEAMMATE_BEGIN)) and not _is_typed(line):
            return [*_turn_started(state, _TEAMMATE), *_teammates_messages(line, text)]
        if (origin := text_in(dict_in(line, "origin"), "kind")) not in ("", _HUMAN):
            return [*_turn_started(state, origin), *notices.message_received(line)]
        if command := _COMMAND.search(text):
            text = " ".join(filter(None, (command[1], command[2])))
            return [("input", {"kind": "message", "id": text_in(line, "uuid"), **cut(text)})]
        # A turn that is interrupted before its first message may leave no line: the CLI takes its prompt back.
        is_undone = state.get("open") and state.get("answered") is False and _is_typed(line)
        undone = [_turn_ended(state, None, _UNFINISHED, "")] if is_undone else []
        return [
            *undone,
            ("input", {"kind": "message", "id": text_in(line, "uuid"), **cut(text)}),
            *_turn_started(state),
        ]

    # --- Other lines ---

    def _system(self, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
        subtype = text_in(line, "subtype")
        if subtype == "compact_boundary":
            before = number_in(dict_in(line, "compactMetadata"), "preTokens")
            return [notices.notice("compaction", "the conversation was compacted", tokens_before=before)]
        if subtype == "api_error":
            attempt = {"attempt": number_in(line, "retryAttempt"), "max_retries": number_in(line, "maxRetries")}
            return [notices.notice("retry", "the request failed; trying again", **attempt, **self._who)]
        return []

    def _cost(self, state: State, line: dict[str, Any]) -> list[ReaderEvent]:
        """What the session has cost, all its sub-agents included."""
        if self._helper is not None or self._is_teammate or number_in(line, "totalCostUSD") is None:
            return []
        totals = {"total_cost_usd": line["totalCostUSD"], "modelUsage": line.get("modelUsage")}
        return [usage.settled(state, totals)]


def _is_typed(line: dict[str, Any]) -> bool:
    """Whether a person has written a prompt, which may look like that of a teammate."""
    return text_in(dict_in(line, "origin"), "kind") == _HUMAN or text_in(line, "promptSource") == "typed"


def _teammates_messages(line: dict[str, Any], text: str) -> list[ReaderEvent]:
    """The messages in a prompt, one or more; not the CLI's own reports in the same form."""
    events: list[ReaderEvent] = []
    begin = text.find(_TEAMMATE_BEGIN)
    while begin >= 0 and (end := text.find(_TEAMMATE_END, begin)) >= 0:
        head, _, body = text[begin + len(_TEAMMATE_BEGIN) : end].partition(">\n")
        sender = {"name": head.partition('"')[0] or None, "address": None, "pid": None}
        if not files.is_report(body):
            identity = f"{text_in(line, 'uuid')}{f'#{len(events)}' if events else ''}"
            events.append(("input", {"kind": "session_message", "id": identity, **cut(body), "sender": sender}))
        begin = text.find(_TEAMMATE_BEGIN, end)
    return events


def _is_internal(line: dict[str, Any]) -> bool:
    return line.get("isMeta") is True or line.get("isCompactSummary") is True


def _turn_started(state: State, origin: str | None = None) -> list[ReaderEvent]:
    """Empty if a turn is open already."""
    if state.get("open"):
        return []
    state["open"], state["answered"], state["turn"] = True, False, state.get("turn", 0) + 1
    state["origin"] = origin
    return [("turn.started", {"turn": state["turn"], "origin": origin})]


def _turn_ended(state: State, text: str | None, error: str | None, why: str) -> ReaderEvent:
    state["open"] = False
    result = cut(text) if text is not None else {"text": None}
    data = {"turn": state.get("turn", 0), "result": result.pop("text"), **result}
    data |= {"is_error": error is not None, "subtype": why or None, "error": error and cut(error)["text"], "idle": True}
    # None for a turn that a user started, as in the stream of a session.
    return "turn.ended", {**data, "origin": state.get("origin")}


def _time(line: dict[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(text_in(line, "timestamp")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
