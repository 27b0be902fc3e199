"""Parts of messages: most lines of a run, so they are decoded into typed values and cost no more than they must."""

from __future__ import annotations

from typing import Any

import msgspec

from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.text_blocks import TextBlocks, block_key, message_key
from hocket.providers.claude.usage import estimate
from hocket.providers.json_values import with_newest

BEGINNING = b'{"type":"stream_event"'
"""How such a line begins. One that spells it otherwise is recognised by its decoded type, only later."""


class Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    stop_reason: str | None = None


class Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Message(msgspec.Struct, gc=False):
    id: str = ""
    usage: Usage | None = None


class Event(msgspec.Struct, gc=False):
    type: str
    index: int = 0
    delta: Delta | None = None
    message: Message | None = None
    usage: Usage | None = None


class Part(msgspec.Struct, gc=False):
    type: str
    event: Event
    parent_tool_use_id: str | None = None
    api_message_id: str | None = None
    session_id: str | None = None


_OF_A_MESSAGE = frozenset({"message_start", "message_delta"})
_decode = msgspec.json.Decoder(Part).decode


def part_of(line: bytes) -> Part | None:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


def converted(value: dict[str, Any]) -> Part | None:
    try:
        return msgspec.convert(value, Part)
    except (msgspec.MsgspecError, ValueError):
        return None


def says_something(part: Part) -> bool:
    """Whether ``streamed`` has a use for it. Tools' inputs and thoughts arrive in parts too, and later as a whole."""
    event = part.event
    if event.type == "content_block_delta":
        return event.delta is not None and event.delta.type == "text_delta"
    return event.type in _OF_A_MESSAGE


def streamed(voice: TextBlocks, state: State, part: Part, who: dict[str, Any]) -> list[ReaderEvent]:
    """The events of one part. The state is the caller's own copy."""
    event, speaker = part.event, part.parent_tool_use_id or ""
    if event.type == "content_block_delta" and event.delta is not None:
        message = part.api_message_id or (state.get("messages") or {}).get(speaker, "")
        key = block_key(message_key(speaker, message), event.index)
        return voice.part(state, key, event.delta.text, who)
    if event.type == "message_start" and event.message is not None:
        state["messages"] = with_newest(state.get("messages") or {}, speaker, event.message.id, most=32)
        if not speaker:
            state["reading"] = _tokens_in(event.message.usage)
        return voice.flush(state, speaker, who)
    if event.type == "message_delta":
        return _message_ends(state, event, speaker, who)
    return []


def _message_ends(state: State, event: Event, speaker: str, who: dict[str, Any]) -> list[ReaderEvent]:
    said: list[ReaderEvent] = []
    if event.delta is not None and event.delta.stop_reason == "refusal":
        said.append(("notice", {"kind": "refusal", "text": "The model's safeguards stopped this response.", **who}))
    if event.usage is not None and not speaker:
        read = _tokens_in(event.usage) or state.get("reading", 0)
        said.append(estimate(state, read + (event.usage.output_tokens or 0)))
    return said


def _tokens_in(usage: Usage | None) -> int:
    if usage is None:
        return 0
    return (usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
