"""Lines of output as event data, and ``raw`` events for lines that no reader understands."""

from __future__ import annotations

from typing import Any

from hocket.model import RESULT_LIMIT
from hocket.providers.base import ReaderEvent

_STREAM_NAMES = {"out": "stdout", "err": "stderr"}


def line_text(line: bytes, whole_size: int | None) -> dict[str, Any]:
    """The line as text, cut to the size of an event. ``whole_size`` marks a line that was truncated before."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    text = line[:RESULT_LIMIT].decode("utf-8", "replace")
    if whole_size is None and len(line) <= RESULT_LIMIT:
        return {"text": text}
    return {"text": text, "oversize": True, "bytes": whole_size or len(line)}


def raw_event(stream: str, line: bytes, kind: str = "", *, whole_size: int | None = None) -> ReaderEvent:
    """A ``raw`` event. ``kind`` is the line's own type."""
    named = {"type": kind[:100]} if kind else {}
    return "raw", {"stream": _STREAM_NAMES.get(stream, stream), **line_text(line, whole_size), **named}
