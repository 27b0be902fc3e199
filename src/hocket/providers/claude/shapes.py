"""Taking values out of somebody else's JSON, where any of them may be missing or of a wrong kind."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from hocket.model import RESULT_LIMIT

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_LARGEST = 2**53
"""Beyond this, numbers in JSON are not what they look like, and no database takes them."""
_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)


def decoded(line: bytes) -> dict[str, Any] | None:
    """The object that a line is, or None. Halves of characters, which programs cut out of texts, become U+FFFD."""
    try:
        value = msgspec.json.decode(line)
    except _BROKEN:
        try:
            value = msgspec.json.decode(_mended(line))
        except _BROKEN:
            return None
    return value if isinstance(value, dict) else None


def _mended(line: bytes) -> bytes:
    return _ESCAPE.sub(_whole, line).decode("utf-8", "replace").encode()


def _whole(escape: re.Match[bytes]) -> bytes:
    found = escape[0]
    return rb"\ufffd" if len(found) == 6 and found[1:3].lower() == b"ud" else found


def text_in(value: Any, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def dict_in(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def list_in(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def number_in(value: Any, key: str) -> float | int | None:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, int | float) or isinstance(found, bool) or abs(found) > _LARGEST:
        return None
    return found


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
    for oldest in list(changed)[: max(0, len(changed) - most)]:
        del changed[oldest]
    return changed


def kept_input(given: dict[str, Any], limit: int = RESULT_LIMIT) -> dict[str, Any]:
    """A tool's input for an event: whole, or the beginning of its text where it is too long."""
    content = msgspec.json.encode(given)
    if len(content) <= limit:
        return {"input": given}
    text = content[:limit].decode("utf-8", "ignore")
    return {"input": None, "input_text": text, "oversize": True, "bytes": len(content)}
