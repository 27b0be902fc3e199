"""How large things may be that somebody writes or brings; what is text, and a whole number. Any command may load it."""

from __future__ import annotations

MAX_STEPS = 1000
"""Of a chain, members of groups included."""
MAX_ITERATIONS = 1_000_000
AROUND_A_MARKER = " \t\r\n`*"
"""What people and models put around a marker, which does not count."""
MAX_ATTACHMENT = 10 * 1024 * 1024
"""Bytes of a file that is kept with a task."""

NOT_TEXT = "is not valid UTF-8"
"""What to say about what ``odd_text`` has found, behind its name."""


def odd_text(value: object, name: str = "") -> str | None:
    """Where in a value there is text that no file and no database can keep; None where there is none.

    Bytes of a command line that are not UTF-8 arrive as lone surrogates, and JSON can spell those, too.
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
    """JSON has one kind of number, so 5.0 is as whole as 5. What is no whole number stays as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53 else value


def is_text(text: str) -> bool:
    """Whether it can be written down as bytes and read again."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
