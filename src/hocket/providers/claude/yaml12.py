"""YAML 1.2 as the CLI reads it: a text in, one mapping of plain values out.

libyaml reads YAML 1.1 and is more lenient, so values are built from its events, and what the CLI refuses is refused
here. Nesting and aliases are counted while reading; PyYAML's own constructor recurses and could be crashed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from hocket.input_limits import is_text
from hocket.providers.definition_files import REFUSED, SKIPPED, Fault, Head

FIRST_LINE = 2
"""Of the keys within their file: the dashes are line 1."""
MAX_NESTING = 20
MAX_EXPANSION = 1000
"""Nodes that all aliases of a text may expand to; a long scalar counts as several."""
_TEXT_OF_ONE_NODE = 100
_LINE_END = re.compile("\r\n|\r|\n")


class Unusable(Exception):
    """A text that cannot be read. Lines, from 0 in the text, become those of the file, below its first dashes."""

    def __init__(self, line: int, reason: str, *, is_limit: bool = False) -> None:
        super().__init__(reason)
        self.fault = Fault(line + FIRST_LINE, reason, REFUSED if is_limit else SKIPPED, is_hocket_limit=is_limit)


def load(text: str) -> Head:
    """Read a text that consists of one mapping, without a body. Raises Unusable."""
    import yaml  # slow to import, and most commands do not need it

    try:
        return _Builder(yaml, *_readable(text)).document()
    except yaml.MarkedYAMLError as error:
        # libyaml reports a key without a colon in the next line.
        mark = error.context_mark if error.context == "while scanning a simple key" else error.problem_mark
        raise Unusable(mark.line if mark else 0, f"is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise Unusable(0, f"is not YAML: {str(error).splitlines()[0]}") from error


# --- Characters ---------------------------------------------------------------------------------------------
# libyaml refuses some characters that the CLI accepts, or treats them as line ends. Private characters replace them
# during parsing.

_STRANGE = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_STAND_INS = (0xF600, 0xF0000, 0x100000)
"""Ranges of private characters; the first unused one is taken."""


def _readable(text: str) -> tuple[str, dict[int, int] | None]:
    """Replace characters that libyaml would misread; return how to restore them, or None."""
    strange = sorted(set(_STRANGE.findall(text)))
    if not strange:
        return text, None
    used = set(text)
    for begin in _STAND_INS:
        stand_ins = [chr(begin + number) for number in range(len(strange))]
        if used.isdisjoint(stand_ins):
            return (
                text.translate(dict(zip(map(ord, strange), stand_ins, strict=True))),
                dict(zip(map(ord, stand_ins), map(ord, strange), strict=True)),
            )
    return _STRANGE.sub("\ufffd", text), None


# --- Values -------------------------------------------------------------------------------------------------


class _Keys(NamedTuple):
    """What a ``Head`` says about its keys."""

    lines: dict[str, int]
    written: dict[str, str]
    repeated: dict[str, int]


class _Builder:
    """Builds plain values from the events of a parser, with bounded depth and expansion."""

    def __init__(self, yaml: Any, text: str, restore: dict[int, int] | None) -> None:
        self._yaml = yaml
        self._take = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_event
        self._lines = _LINE_END.split(text)
        self._restore = restore
        self._shared: dict[str, tuple[Any, int]] = {}
        """Anchored values, each with the nodes that an alias adds."""
        self._weight = 0
        self._expanded = 0
        self._depth = 0
        self._indent = -1
        """The column of the innermost block collection."""

    def document(self) -> Head:
        self._take()
        if type(self._take()) is self._yaml.StreamEndEvent:
            return Head({}, "")
        event = self._take()
        if type(event) is not self._yaml.MappingStartEvent:
            raise Unusable(event.start_mark.line, "is not a mapping")
        about = _Keys({}, {}, {})
        values = self._value(event, about)
        self._take()
        end = self._take()
        if type(end) is not self._yaml.StreamEndEvent:
            raise Unusable(end.start_mark.line, "holds a second document")
        return Head(values, "", *about)

    def _value(self, event: Any, about: _Keys | None = None) -> Any:
        kind, before = type(event), self._weight
        if kind is self._yaml.ScalarEvent:
            value = self._scalar(event)
        elif kind is self._yaml.AliasEvent:
            return self._repeated(event)
        else:
            self._weight += 1
            value = self._collection(event, about)
        if event.anchor is not None:
            # Registered when complete, so that no value contains itself.
            self._shared[event.anchor] = value, self._weight - before
        return value

    def _scalar(self, event: Any) -> Any:
        """Return a string, or the typed value of a plain scalar. Other tags are ignored."""
        text: str = event.value
        self._weight += 1 + len(text) // _TEXT_OF_ONE_NODE
        if self._restore:
            text = text.translate(self._restore)
        if event.style in _QUOTES:
            self._check_indent(event.start_mark.line, event.end_mark.line, "")
            if not is_text(text):  # only libyaml, which may be missing, refuses half a character itself
                raise Unusable(event.start_mark.line, "is not YAML: found invalid Unicode character escape code")
            return text
        if event.style in _BLOCKS and event.start_mark.column <= self._indent:
            raise Unusable(event.start_mark.line, "is not YAML: a block scalar is not indented more than its key")
        is_typed = event.tag in _TYPES if event.tag else event.implicit[0]
        return _plain(text) if is_typed else text

    def _collection(self, event: Any, about: _Keys | None) -> Any:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise Unusable(event.start_mark.line, f"is nested more than {MAX_NESTING} levels deep", is_limit=True)
        outside = self._indent
        if not event.flow_style:
            self._indent = event.start_mark.column
        is_mapping = type(event) is self._yaml.MappingStartEvent
        value, end = self._mapping(about) if is_mapping else self._sequence()
        if event.flow_style:
            self._check_indent(event.start_mark.line, end.end_mark.line, "]},#")
        self._indent = outside
        self._depth -= 1
        return value

    def _check_indent(self, begin: int, end: int, may_stand_out: str) -> None:
        """Refuse continuation lines that are not indented enough, which libyaml accepts."""
        for number, line in enumerate(self._lines[begin + 1 : end + 1], begin + 1):
            content = line.lstrip(" ")
            if content and len(line) - len(content) <= self._indent and content[0] not in may_stand_out:
                raise Unusable(number, "is not YAML: a continuation line is not indented enough")

    def _repeated(self, event: Any) -> Any:
        line = event.start_mark.line
        if event.anchor not in self._shared:
            raise Unusable(line, f"is not YAML: unknown alias {event.anchor[:_TEXT_OF_ONE_NODE]!r}")
        value, weight = self._shared[event.anchor]
        self._weight += weight
        self._expanded += weight
        if self._expanded > MAX_EXPANSION:
            raise Unusable(line, f"repeats more than {MAX_EXPANSION} values by aliases", is_limit=True)
        return value

    def _sequence(self) -> tuple[list[Any], Any]:
        take, end = self._take, self._yaml.SequenceEndEvent
        values = []
        while type(event := take()) is not end:
            values.append(self._value(event))
        return values, event

    def _mapping(self, about: _Keys | None) -> tuple[dict[str, Any], Any]:
        take, end = self._take, self._yaml.MappingEndEvent
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while type(event := take()) is not end:
            key = self._key(event)
            following = take()
            value = self._value(following)
            if key == "<<":
                merged = {**_merged(value), **merged}
            elif key is not None:
                if about is not None:
                    line = event.start_mark.line + FIRST_LINE
                    if key in about.lines:
                        about.repeated[key] = line
                        about.written.pop(key, None)
                    about.lines[key] = line
                    if type(following) is self._yaml.ScalarEvent:
                        about.written[key] = following.value
                values[key] = value  # of repeated keys the last one counts, as for the CLI
        return {**merged, **values}, event

    def _key(self, event: Any) -> str | None:
        """Return a key as written; None for a collection, whose value is dropped."""
        value = self._value(event)
        if type(event) is self._yaml.ScalarEvent:
            return value if isinstance(value, str) else str(event.value)
        return value if isinstance(value, str) else None


def _merged(value: Any) -> dict[str, Any]:
    """Return the pairs of a merge key: one mapping, or several of which the first wins."""
    several = value if isinstance(value, list) else [value]
    return {key: item for one in reversed(several) if isinstance(one, dict) for key, item in one.items()}


# --- Scalars of YAML 1.2 ------------------------------------------------------------------------------------

_QUOTES = ("'", '"')
_BLOCKS = ("|", ">")
_TYPES = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int"))
_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"[-+]?(?:0o[0-7]+|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_EXACT_DIGITS = 18


def _plain(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _NO_NUMBER.fullmatch(text):
        return None  # JSON has no such value
    if len(text) <= _EXACT_DIGITS:
        if _WHOLE.fullmatch(text):
            return int(text)
        if _OTHER_BASE.fullmatch(text):
            return int(text, 0)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    return text
