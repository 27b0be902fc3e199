"""Recorded streams of the real CLI with a scripted model, and helpers that read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hocket.model import Spec
from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.reader import reader

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
SESSION_ID = "0b9d6a52-6a86-4b0c-8c6e-5a1d3f0c7e11"


class Exit(NamedTuple):
    code: int | None = None
    signal: int | None = None
    error: str | None = None
    stopped: bool = False


def stream(name: str) -> list[bytes]:
    return (FOLDER / f"{name}.jsonl").read_bytes().splitlines(keepends=True)


def spec(*, loop: bool = False, marker: str = "DONE", session: bool = False) -> Spec:
    return Spec("rev", "claude", ("claude",), "/p", {"HOME": "/h"}, loop=loop, marker=marker, session=session)


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, "session_id": SESSION_ID, **fields}).encode()


def system(subtype: str, **fields: Any) -> bytes:
    return line("system", subtype=subtype, **fields)


def init(**fields: Any) -> bytes:
    return system("init", cwd="/p", model="m", **fields)


def assistant(*blocks: Any, message: str = "m1", parent: str | None = None, **fields: Any) -> bytes:
    content = {"id": message, "model": fields.pop("model", "m"), "content": list(blocks)}
    return line("assistant", message=content, parent_tool_use_id=parent, **fields)


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def part(kind: str, *, of: str | None = "m1", parent: str | None = None, **fields: Any) -> bytes:
    """As the program writes it, without spaces: that is the form read without a detour."""
    value: dict[str, Any] = {"type": "stream_event", "event": {"type": kind, **fields}, "session_id": SESSION_ID}
    value |= {"parent_tool_use_id": parent} | ({"api_message_id": of} if of else {})
    return json.dumps(value, separators=(",", ":")).encode()


def delta(content: str, *, index: int = 0, message: str | None = "m1", parent: str | None = None) -> bytes:
    piece = {"type": "text_delta", "text": content}
    return part("content_block_delta", of=message, parent=parent, index=index, delta=piece)


def tool_result(tool: str, content: Any, **fields: Any) -> bytes:
    block = {"type": "tool_result", "tool_use_id": tool, "content": content, **fields}
    return line("user", message={"role": "user", "content": [block]}, parent_tool_use_id=None)


def result(content: str | None = "ok", *, is_error: Any = False, subtype: str = "success", **fields: Any) -> bytes:
    said = {} if content is None else {"result": content}
    return line("result", subtype=subtype, is_error=is_error, **said, **fields)


def read_all(
    lines: Iterable[bytes], of: Spec | None = None, state: State | None = None
) -> tuple[State, list[ReaderEvent]]:
    read = reader(of or spec())
    state = {} if state is None else state
    said: list[ReaderEvent] = []
    for each in lines:
        before = json.dumps(state)
        after, more = read(state, "out", each, None)
        assert json.dumps(state) == before, "the state that was handed in has changed"
        state = json.loads(json.dumps(after))
        said += more
    return state, said


def said_by(lines: Iterable[bytes], of: Spec | None = None) -> list[ReaderEvent]:
    return read_all(lines, of)[1]


def of_type(said: Iterable[ReaderEvent], *types: str) -> list[dict[str, Any]]:
    return [data for kind, data in said if kind in types]


def texts(said: Iterable[ReaderEvent]) -> list[str]:
    return [data["text"] for data in of_type(said, "text")]
