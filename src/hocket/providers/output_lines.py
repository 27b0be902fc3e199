"""Lines of output: JSON of unknown shape, data cut to the size of an event, and ``raw`` events."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from hocket.model import RESULT_LIMIT
from hocket.providers.base import ReaderEvent

_STREAM_NAMES = {"out": "stdout", "err": "stderr"}
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_LONGEST_INTEGER = 18
"""Digits of an integer that every database stores."""
_LONGEST_SESSION = 256
"""Characters of the name of a session."""
_LARGEST = 2**53
"""Beyond this, a JSON number loses precision."""
_decode = msgspec.json.Decoder().decode
_NUMBERS = frozenset({int, float})
_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < _LONGEST_INTEGER else float(digits)


_decode_tolerantly = json.JSONDecoder(parse_constant=lambda _: None, parse_int=_number).decode


def decoded(line: bytes) -> dict[str, Any] | None:
    """Decode a line that is a JSON object; None for anything else.

    Lone surrogates become U+FFFD, ``NaN`` and ``Infinity`` become null, and numbers of any size are accepted.
    """
    value = _decoded(line)
    return value if isinstance(value, dict) else None


def decoded_list(content: bytes) -> list[Any] | None:
    """The same for a JSON array."""
    value = _decoded(content)
    return value if isinstance(value, list) else None


def _decoded(line: bytes) -> Any:
    try:
        return _decode(line)
    except _BROKEN:
        try:
            return _decode_tolerantly(_ESCAPE.sub(_whole, line).decode("utf-8", "replace"))
        except _BROKEN:
            return None


def _whole(escape: re.Match[bytes]) -> bytes:
    found = escape[0]
    return rb"\ufffd" if len(found) == 6 and found[1:3].lower() == b"ud" else found


def text_in(value: Any, key: str) -> str:
    # Exact types, here and below: a decoder produces no subclasses, and this is the hot path.
    if type(value) is dict and type(found := value.get(key)) is str:
        return found
    return ""


def dict_in(value: Any, key: str) -> dict[str, Any]:
    if type(value) is dict and type(found := value.get(key)) is dict:
        return found
    return {}


def list_in(value: Any, key: str) -> list[Any]:
    if type(value) is dict and type(found := value.get(key)) is list:
        return found
    return []


def number_in(value: Any, key: str) -> float | int | None:
    """Booleans are not numbers here, although Python treats them so."""
    found: Any = value.get(key) if type(value) is dict else None
    return found if type(found) in _NUMBERS and abs(found) <= _LARGEST else None


def cut(text: str, limit: int = RESULT_LIMIT) -> dict[str, Any]:
    """The text of an event; a longer text is cut and marked ``oversize`` with its size in bytes."""
    # A character has at most four bytes, so most texts need not be encoded.
    if len(text) * 4 <= limit:
        return {"text": text}
    content = text.encode("utf-8", "replace")
    if len(content) <= limit:
        return {"text": text}
    return {"text": content[:limit].decode("utf-8", "ignore"), "oversize": True, "bytes": len(content)}


def with_newest(known: dict[str, Any], key: str, value: Any, most: int = 100) -> dict[str, Any]:
    """A copy with one more entry and without the oldest beyond ``most``, so that a state stays small."""
    changed = {**known, key: value}
    if len(changed) > most:
        for oldest in list(changed)[: len(changed) - most]:
            del changed[oldest]
    return changed


def kept_input(given: dict[str, Any], limit: int = RESULT_LIMIT) -> dict[str, Any]:
    """The input of a tool call for an event: whole, or the beginning of its JSON text if it is too long."""
    content = msgspec.json.encode(given)
    if len(content) <= limit:
        return {"input": given}
    text = content[:limit].decode("utf-8", "ignore")
    return {"input": None, "input_text": text, "oversize": True, "bytes": len(content)}


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


def is_session_name(text: str) -> bool:
    """True for a text that can name a session: it becomes an argument when that is resumed."""
    return 0 < len(text) <= _LONGEST_SESSION and text.isprintable() and not text.startswith("-")


def session_named(session: str, **data: Any) -> list[ReaderEvent]:
    """The event of a session; none if a line names none."""
    return [("session", {"session_id": session, **data})] if is_session_name(session) else []


def turn_ended(result: str | None, error: str | None) -> ReaderEvent:
    """The end of the only turn of a process."""
    return "turn.ended", {"turn": 1, "result": result, "is_error": error is not None, "error": error, "idle": False}
