"""Messages in the format of the Messages API: content blocks and stream frames. Pure.

A pause is a number of seconds among the frames.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from hocket.rehearsal.matching import Message
from hocket.rehearsal.steps import Say, Spend, Think, Wait

Block = dict[str, Any]
Frame = dict[str, Any]

INPUT_TOKENS = 10
OUTPUT_TOKENS = 20
SIGNATURE = "cmVoZWFyc2Fs"
PIECE = 40
LOOK_SECONDS = 0.02
MOST_PIECES = 200


def new_id(kind: str) -> str:
    return f"{kind}_{os.urandom(12).hex()}"


def contents(message: Message) -> list[Block | Wait]:
    """The content blocks of a message, with waits between them. Each tool call gets a new id."""
    made: list[Block | Wait] = []
    for part in message.parts:
        match part:
            case Wait():
                made.append(part)
            case Say():
                made.append({"type": "text", "text": part.text})
            case Think():
                made.append({"type": "thinking", "thinking": part.text, "signature": SIGNATURE})
            case _:
                made.append({"type": "tool_use", "id": new_id("toolu"), "name": part.name, "input": dict(part.input)})
    return made


def pauses(items: Iterable[object]) -> Iterator[float]:
    """The pauses of all waits, in seconds; many short ones until a file exists."""
    for item in items:
        if isinstance(item, Wait):
            yield item.seconds
            while item.file is not None and not os.path.exists(item.file):
                yield LOOK_SECONDS


def blocks(items: list[Block | Wait]) -> list[Block]:
    return [item for item in items if isinstance(item, dict)]


def tokens(spend: Spend) -> tuple[int, int]:
    """Input and output tokens of a message."""
    given = INPUT_TOKENS if spend.input is None else spend.input
    return given, OUTPUT_TOKENS if spend.output is None else spend.output


def whole(message: Message, items: list[Block | Wait], id: str, model: str) -> dict[str, Any]:
    """The message as one object."""
    given, made = tokens(message.spend)
    usage = {"input_tokens": given, "output_tokens": made}
    return {**head(id, model), "content": blocks(items), "stop_reason": message.stop_reason, "usage": usage}


def frames(message: Message, items: list[Block | Wait], id: str, model: str) -> Iterator[Frame | float]:
    """The message as a stream. It ends without ``message_stop`` where the script breaks it off."""
    given, made = tokens(message.spend)
    yield {
        "type": "message_start",
        "message": {**head(id, model), "usage": {"input_tokens": given, "output_tokens": 1}},
    }
    index = 0
    for item in items:
        if isinstance(item, Wait):
            yield from pauses([item])
            continue
        yield from _block_frames(index, item)
        index += 1
    if not message.has_no_end:
        delta = {"stop_reason": message.stop_reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": made}}
        yield {"type": "message_stop"}


def head(id: str, model: str) -> dict[str, Any]:
    """A message without content."""
    base = {"id": id, "type": "message", "role": "assistant", "model": model, "content": []}
    return {**base, "stop_reason": None, "stop_sequence": None}


def _block_frames(index: int, block: Block) -> Iterator[Frame]:
    yield {"type": "content_block_start", "index": index, "content_block": _empty(block)}
    for delta in _deltas(block):
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _empty(block: Block) -> Block:
    match block["type"]:
        case "text":
            return {"type": "text", "text": ""}
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case _:
            return {**block, "input": {}}


def _deltas(block: Block) -> Iterator[Block]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
        case "thinking":
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"]))
            yield {"type": "signature_delta", "signature": block["signature"]}
        case _:
            written = json.dumps(block["input"])
            yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(written))


def pieces(text: str) -> list[str]:
    """A text split into at most a few hundred pieces."""
    size = max(PIECE, len(text) // MOST_PIECES)
    return [text[start : start + size] for start in range(0, len(text), size)]
