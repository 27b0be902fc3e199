"""Parts of messages, which arrive before the whole message: most lines of a run, so they are decoded into structs."""

from __future__ import annotations

from typing import Any

import msgspec

from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.usage import estimate
from hocket.providers.output_lines import with_newest
from hocket.providers.text_blocks import TextBlocks, block_key, message_key

_TYPE = "stream_event"


class PartDelta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    stop_reason: str | None = None


class PartUsage(msgspec.Struct, gc=False, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    @property
    def input(self) -> int:
        cached = (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        return (self.input_tokens or 0) + cached


class PartMessage(msgspec.Struct, gc=False, frozen=True):
    id: str = ""
    usage: PartUsage = PartUsage()


class PartEvent(msgspec.Struct, gc=False):
    type: str
    index: int = 0
    delta: PartDelta = msgspec.field(default_factory=PartDelta)
    message: PartMessage = PartMessage()
    usage: PartUsage | None = None


class MessagePart(msgspec.Struct, gc=False, tag_field="type", tag=_TYPE):
    event: PartEvent
    parent_tool_use_id: str | None = None
    api_message_id: str | None = None
    session_id: str | None = None


_decode = msgspec.json.Decoder(MessagePart).decode


def part_of(masked: bytes, line: bytes) -> MessagePart | None:
    """The part in a redacted line, with its text as it was: a secret may continue in the next part, so ``TextBlocks``
    redacts them together. None for any other line."""
    if _TYPE.encode() not in masked:
        return None
    try:
        part = _decode(masked)
        if masked is not line:
            part.event.delta.text = _decode(line).event.delta.text
    except (msgspec.MsgspecError, ValueError):
        return None
    return part


def is_read(event: PartEvent) -> bool:
    """Inputs of tools and thoughts arrive in parts too, and are read when they are whole."""
    return event.delta.type == "text_delta" or event.type in ("message_start", "message_delta")


def read_part(blocks: TextBlocks, state: State, part: MessagePart, who: dict[str, Any]) -> list[ReaderEvent]:
    """The events of one part. ``who`` marks the subagent that wrote it."""
    event, speaker = part.event, part.parent_tool_use_id or ""
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        message = part.api_message_id or (state.get("messages") or {}).get(speaker, "")
        return blocks.part(state, block_key(message_key(speaker, message), event.index), event.delta.text, who)
    if event.type == "message_start":
        state["messages"] = with_newest(state.get("messages") or {}, speaker, event.message.id, most=32)
        if not speaker:
            state["reading"] = event.message.usage.input
        return blocks.flush(state, speaker, who)
    events: list[ReaderEvent] = []
    if event.type == "message_delta" and event.delta.stop_reason == "refusal":
        events.append(("notice", {"kind": "refusal", "text": "The model's safeguards stopped this response.", **who}))
    if event.type == "message_delta" and event.usage is not None and not speaker:
        read = event.usage.input or state.get("reading", 0)
        events.append(estimate(state, read + (event.usage.output_tokens or 0)))
    return events
