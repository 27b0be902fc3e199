"""Output lines that no reader understands, as ``raw`` events."""

from __future__ import annotations

from typing import Any

from hocket.model import RESULT_LIMIT
from hocket.providers.base import Said

_STREAM_NAMES = {"out": "stdout", "err": "stderr"}


def raw_event(stream: str, line: bytes, kind: str = "", *, whole_size: int | None = None) -> Said:
    """A ``raw`` event with the line's text. ``kind`` is the line's own type; ``whole_size`` marks a truncated line."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    data: dict[str, Any] = {
        "stream": _STREAM_NAMES.get(stream, stream),
        "text": line[:RESULT_LIMIT].decode("utf-8", "replace"),
    }
    if kind:
        data["type"] = kind[:100]
    if whole_size is not None or len(line) > RESULT_LIMIT:
        data |= {"oversize": True, "bytes": whole_size or len(line)}
    return "raw", data
