"""Taking values out of somebody else's JSON, where any of them may be missing or of a wrong kind."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import msgspec

from hocket.model import RESULT_LIMIT

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_NO_NUMBER = re.compile(rb"\b(?:NaN|Infinity)\b|\d[eE]\+?\d{3}")
_LONGEST_INTEGER = 18
"""Digits of numbers that every database takes."""
_LARGEST = 2**53
"""Beyond this, numbers in JSON are not what they look like, and no database takes them."""
_decode = msgspec.json.Decoder().decode
_NUMBERS = frozenset({int, float})
_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)


def decoded(line: bytes) -> dict[str, Any] | None:
    """The object that a line is, or None. Halves of characters, which programs cut out of texts, become U+FFFD.

    Numbers that are none (``NaN``), which some programs write although JSON has no such thing, become null, and those
    beyond all measure are read as well.
    """
    try:
        value = _decode(line)
    except _BROKEN:
        value = _decoded_mended(_mended(line))
    return value if isinstance(value, dict) else None


def _decoded_mended(line: bytes) -> Any:
    with contextlib.suppress(*_BROKEN):
        return _decode(line)
    with contextlib.suppress(*_BROKEN):
        if _NO_NUMBER.search(line):
            return json.loads(line, parse_constant=lambda _: None, parse_int=_number)
    return None


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < _LONGEST_INTEGER else float(digits)


def _mended(line: bytes) -> bytes:
    return _ESCAPE.sub(_whole, line).decode("utf-8", "replace").encode()


def _whole(escape: re.Match[bytes]) -> bytes:
    found = escape[0]
    return rb"\ufffd" if len(found) == 6 and found[1:3].lower() == b"ud" else found


def text_in(value: Any, key: str) -> str:
    # By exact types, here and below: what a decoder made has no others, and asking for them takes half the time.
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
    """True and false are none, although Python takes them for numbers."""
    found: Any = value.get(key) if type(value) is dict else None
    return found if type(found) in _NUMBERS and abs(found) <= _LARGEST else None


def cut(text: str, limit: int = RESULT_LIMIT) -> dict[str, Any]:
    """The text for an event; of a longer one its beginning, with a word about it."""
    # A character has at most four bytes, so most texts need no counting.
    if len(text) * 4 <= limit:
        return {"text": text}
    content = text.encode("utf-8", "replace")
    if len(content) <= limit:
        return {"text": text}
    return {"text": content[:limit].decode("utf-8", "ignore"), "oversize": True, "bytes": len(content)}


def with_newest(known: dict[str, Any], key: str, value: Any, most: int = 100) -> dict[str, Any]:
    """A copy with one more entry, the oldest ones left out where there are too many: a state stays small."""
    changed = {**known, key: value}
    if len(changed) > most:
        for oldest in list(changed)[: len(changed) - most]:
            del changed[oldest]
    return changed


def kept_input(given: dict[str, Any], limit: int = RESULT_LIMIT) -> dict[str, Any]:
    """A tool's input for an event: whole, or the beginning of its text where it is too long."""
    content = msgspec.json.encode(given)
    if len(content) <= limit:
        return {"input": given}
    text = content[:limit].decode("utf-8", "ignore")
    return {"input": None, "input_text": text, "oversize": True, "bytes": len(content)}
