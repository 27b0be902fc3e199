"""Error messages for requests that msgspec refuses: ``where: what``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.inspect import EnumType, LiteralType, type_info

NO_LINE_END = r"(?!\n)"
"""Ends a pattern: ``$`` in Python also matches before a final newline, in JSON Schema it does not."""
_MAX_SHOWN = 100
_AT = " - at `$"
_PLAIN = {
    "Expected `str` of length >= 1": "must not be empty",
    r"Expected `str` matching regex '\\S'": "must not be blank",
    r"Expected `str` matching regex '^[^\\x00]*$'": "must not contain NUL",
}
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*?)`?", re.DOTALL)


def body_error(error: Exception, kind: Any) -> str:
    """Return the message for a body that could not be decoded as ``kind``."""
    if isinstance(error, msgspec.ValidationError):
        return value_error(error, kind)
    if isinstance(error, RecursionError):
        return "the body is nested too deeply"
    reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).removeprefix("JSON is malformed: ")
    return f"the body is not valid JSON: {reason}"


def value_error(error: msgspec.ValidationError, kind: Any, name: str = "") -> str:
    """Return the message for a value that is not a ``kind``; ``name`` is that of the value, "" for the body."""
    what, _, path = str(error).rpartition(_AT) if _AT in str(error) else (str(error), "", "")
    where = path.removesuffix("`").removeprefix(".").replace("[...]", ".*")[:_MAX_SHOWN]
    if field := _FIELD.fullmatch(what):
        shown = field[2] if len(field[2]) <= _MAX_SHOWN else f"{field[2][:_MAX_SHOWN]}…"
        place = f"{where}.{shown}".lstrip(".")
        return f"{place}: missing" if field[1].startswith("missing") else f"{place}: unknown field"
    if what.startswith("Invalid enum value"):
        value = what.removeprefix("Invalid enum value ")[:_MAX_SHOWN]
        what = f"invalid value {value} (choose {_either(_choices(kind, where))})"
    what = _PLAIN.get(what, what).replace(NO_LINE_END.replace("\\", "\\\\"), "")
    return f"{where or name or 'the body'}: {what[:1].lower()}{what[1 : 3 * _MAX_SHOWN]}"


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _choices(kind: Any, where: str) -> list[str]:
    """Return the values that are allowed at a place."""
    kinds = _members(type_info(kind))
    for name in re.findall(r"[^.\[\]]+", where):
        kinds = [below for one in kinds for below in _below(one, name)]
    literals = [str(value) for one in kinds if isinstance(one, LiteralType) for value in one.values]
    return literals + [str(value.value) for one in kinds if isinstance(one, EnumType) for value in one.cls]


def _members(kind: Any) -> list[Any]:
    """Return the members of a union, or the type itself."""
    return list(getattr(kind, "types", [kind]))


def _below(kind: Any, name: str) -> Iterator[Any]:
    """Yield the types of a field, or of the items of a list."""
    for field in getattr(kind, "fields", ()):
        if field.encode_name == name:
            yield from _members(field.type)
    if hasattr(kind, "item_type"):
        yield from _members(kind.item_type)
