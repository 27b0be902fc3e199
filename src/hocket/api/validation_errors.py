"""What is wrong with a request, in words for whoever sent it: ``where: what``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

NO_BODY = "the request needs a body"

NO_LINE_END = r"(?!\n)"
"""Behind a pattern: Python's ``$`` lets one more line end pass, that of JSON Schema does not."""
_SHOWN = 100
"""How much of a name that somebody made up is said back."""
_AT = " - at `$"
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*?)`?", re.DOTALL)
_TYPE = re.compile(r"Expected `(.*)`, got `(.*)`")
_BOUND = re.compile(r"Expected `\w+` (>=|<=|>|<) (.*)")
_LENGTH = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_PATTERN = re.compile(r"Expected `str` matching regex (['\"])(.*)\1", re.DOTALL)

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_SOME = {**_KINDS, "int": "a number", "float": "a decimal number", "bool": "a boolean"}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def body_objection(error: Exception, kind: Any) -> str:
    """What is to be said about a body that could not be read as this kind."""
    if isinstance(error, msgspec.ValidationError):
        where, what = objection(str(error), kind)
        return f"{where or 'the body'}: {what}"
    if isinstance(error, RecursionError):
        return "the body is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "the body is no JSON: it is not UTF-8"
    why = str(error).removeprefix("JSON is malformed: ")
    return f"the body is no JSON: {'it breaks off' if 'truncated' in why else why}"


def objection(said: str, kind: Any) -> tuple[str, str]:
    """Where something of this kind is wrong, and what is, made of what the library says about it."""
    what, path = said.rsplit(_AT, 1) if _AT in said else (said, "")
    where = path.removesuffix("`").removeprefix(".").replace("[...]", ".*")[:_SHOWN]
    if field := _FIELD.fullmatch(what):
        name = field[2] if len(field[2]) <= _SHOWN else f"{field[2][:_SHOWN]}…"
        return f"{where}.{name}".lstrip("."), "is missing" if field[1].startswith("missing") else "is no known field"
    if what.startswith("Invalid enum value"):
        return where, f"must be one of {', '.join(_choices(kind, where))}"
    return where, _plainly(what[: 2 * _SHOWN])


def _plainly(what: str) -> str:
    if wrong := _TYPE.fullmatch(what):
        wanted = " or ".join(_KINDS.get(one, one) for one in wrong[1].split(" | "))
        return f"must be {wanted}, not {_SOME.get(wrong[2], wrong[2])}"
    if bound := _BOUND.fullmatch(what):
        return f"must be {_BOUNDS[bound[1]]} {bound[2].removesuffix('.0')}"
    if length := _LENGTH.fullmatch(what):
        return _length(*length.groups())
    if pattern := _PATTERN.fullmatch(what):
        return _pattern(pattern[2].replace("\\\\", "\\"))
    return "is out of range" if what.endswith(" out of range") else what


def _pattern(pattern: str) -> str:
    return "must not be blank" if pattern == r"\S" else f"must match {pattern.removesuffix(NO_LINE_END)}"


def _length(kind: str, bound: str, count: str) -> str:
    if (bound, count) == (">=", "1"):
        return "must not be empty"
    unit = "characters" if kind == "str" else "items"
    return f"must have {_BOUNDS[bound]} {count} {unit}"


def _choices(kind: Any, where: str) -> list[str]:
    """The words that are allowed there."""
    from msgspec.inspect import EnumType, LiteralType, type_info  # Only what was refused needs it.

    kinds = _members(type_info(kind))
    for name in re.findall(r"[^.\[\]]+", where):
        kinds = [below for one in kinds for below in _below(one, name)]
    literals = [str(value) for one in kinds if isinstance(one, LiteralType) for value in one.values]
    return literals + [str(value.value) for one in kinds if isinstance(one, EnumType) for value in one.cls]


def _members(kind: Any) -> list[Any]:
    """A union's parts, or the kind itself."""
    return list(getattr(kind, "types", [kind]))


def _below(kind: Any, name: str) -> Iterator[Any]:
    """What an object has under a name, or a list under each number."""
    for field in getattr(kind, "fields", ()):
        if field.encode_name == name:
            yield from _members(field.type)
    if hasattr(kind, "item_type"):
        yield from _members(kind.item_type)
