"""Limits and checks of input, for the client and the server."""

from __future__ import annotations

import re

MAX_STEPS = 1000
"""Of a chain, members of groups included."""
MAX_ITERATIONS = 1_000_000
DEFAULT_MARKER = "FORKHESTRA_COMPLETE"
AROUND_A_MARKER = " \t\r\n`*"
"""Characters around a marker that are ignored."""
MAX_ATTACHMENT = 10 * 1024 * 1024
"""Bytes of a file that is attached to a task."""

NOT_TEXT = "is not valid UTF-8"
"""The message for a value that ``odd_text`` names."""


def odd_text(value: object, name: str = "") -> str | None:
    """Return the name of the first text in a value that is not valid UTF-8, or None.

    Invalid bytes of a command line arrive as lone surrogates, which JSON can contain as well.
    """
    if isinstance(value, str):
        return None if is_text(value) else name or "the text"
    if isinstance(value, dict):
        found = (odd_text(key, name) or odd_text(item, f"{name}.{key}".lstrip(".")) for key, item in value.items())
    elif isinstance(value, list | tuple):
        found = (odd_text(item, name) for item in value)
    else:
        return None
    return next((where for where in found if where), None)


def whole(value: object) -> object:
    """Return an integer for a float such as 5.0, which JSON does not distinguish; any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53 else value


def is_text(text: str) -> bool:
    """True if a text can be encoded as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:([kmgt])i?b?|b)?", re.ASCII | re.IGNORECASE)


def parse_size(value: object) -> int | None:
    """Return the bytes of ``500``, ``"500 MB"`` or ``"1.5G"``, by units of 1024; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    found = _SIZE.fullmatch(str(value))
    return None if found is None else int(float(found[1]) * 1024 ** (" kmgt".index((found[2] or " ").lower())))
