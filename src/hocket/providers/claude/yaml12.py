"""YAML as the CLI reads it: a text in, one mapping of plain values out.

libyaml reads YAML 1.1 and more than its rules allow; the CLI reads YAML 1.2 and stricter. So the parser's events are
taken, not its values, and what the CLI would refuse is refused here. How much is forgiven is decided in
``frontmatter``.

Values are built from the events one after the other, never by PyYAML's own recursion, which a few thousand brackets
bring down: nesting and aliases are counted while they are read. Nesting ends the reading at once, because libyaml's
own time grows with its square; measured, nothing else in 64 kB costs it more than a few milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

MAX_NESTING = 20
MAX_EXPANSION = 1000
"""What all aliases of a text may stand for, in nodes; a long text counts as several."""
MAX_EXPANSION_OF_CLAUDE = 8_500_000
"""As measured: beyond about this much the CLI does not load a file either."""
_TEXT_OF_ONE_NODE = 100


class Unusable(Exception):
    """A text that cannot be read: the line within it, from 0, and why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class TooMuch(Unusable):
    """A text that could be read but should not be."""

    ours = True
    """False where the CLI would not read it either."""


class Loaded(NamedTuple):
    """The one mapping that a text consists of, and what is known about its keys; lines are counted from 0."""

    values: dict[str, Any]
    lines: dict[str, int]
    written: dict[str, str]
    """Values that are neither lists nor mappings, as they were written."""
    repeated: dict[str, int]
    """Keys that stand there more than once, and where for the last time."""


def load(text: str) -> Loaded:
    """Read a text that is one mapping. Raises Unusable."""
    yaml, kinds, loader = _parser()
    readable, restore = _readable(text)
    try:
        return _Builder(loader(readable).get_event, kinds, readable, restore).document()
    except yaml.MarkedYAMLError as error:
        # A key without its colon is noticed only in the line after it.
        mark = error.context_mark if error.context == "while scanning a simple key" else error.problem_mark
        raise Unusable(mark.line if mark else 0, f"is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise Unusable(0, f"is not YAML: {str(error).splitlines()[0]}") from error


class _Kinds(NamedTuple):
    """The parser's classes of events, by which its events are told apart."""

    scalar: Any
    alias: Any
    mapping: Any
    mapping_end: Any
    sequence_end: Any
    stream_end: Any


@cache
def _parser() -> tuple[Any, _Kinds, Any]:
    # Imported here: the command line's own start must not pay for it.
    import yaml

    kinds = _Kinds(
        *(yaml.ScalarEvent, yaml.AliasEvent, yaml.MappingStartEvent),
        *(yaml.MappingEndEvent, yaml.SequenceEndEvent, yaml.StreamEndEvent),
    )
    return yaml, kinds, getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# --- Characters ---------------------------------------------------------------------------------------------
# Some that the CLI takes for ordinary ones are unknown to libyaml, or end a line there. Others stand in for them
# while it reads.

_STRANGE = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_STAND_INS = (0xF600, 0xF0000, 0x100000)
"""Where private characters begin that nobody writes; if somebody does, the next ones are taken."""


def _readable(text: str) -> tuple[str, dict[int, int] | None]:
    """The text without characters that would be misread, and how they are put back; None when there are none."""
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


class _Shared(NamedTuple):
    """A value with a name that aliases may repeat, and how much one repetition adds."""

    value: Any
    weight: int


class _Builder:
    """Plain values out of a stream of events. Depth and repetitions are bounded, so nothing here can run away."""

    def __init__(self, take: Callable[[], Any], kinds: _Kinds, text: str, restore: dict[int, int] | None) -> None:
        self._take = take
        self._kinds = kinds
        self._text = text
        self._text_lines: list[str] = []
        self._restore = restore
        self._shared: dict[str, _Shared] = {}
        self._weight = 0
        self._expanded = 0
        self._depth = 0
        self._indent = -1
        """The column of the innermost mapping or list that is written without brackets."""
        self._excess: TooMuch | None = None

    def document(self) -> Loaded:
        found = Loaded({}, {}, {}, {})
        self._take()
        if type(self._take()) is self._kinds.stream_end:
            return found
        event = self._take()
        if type(event) is not self._kinds.mapping:
            raise Unusable(event.start_mark.line, "is not a list of keys with values")
        found = found._replace(values=self._value(event, found))
        self._take()
        end = self._take()
        if type(end) is not self._kinds.stream_end:
            raise Unusable(end.start_mark.line, "holds a second document")
        if self._excess:
            self._excess.ours = self._expanded <= MAX_EXPANSION_OF_CLAUDE
            raise self._excess
        return found

    def _value(self, event: Any, about: Loaded | None = None) -> Any:
        kind, before = type(event), self._weight
        if kind is self._kinds.scalar:
            value = self._scalar(event)
        elif kind is self._kinds.alias:
            return self._repeated(event)
        else:
            self._weight += 1
            value = self._collection(event, about)
        if event.anchor is not None:
            # Only now, when it is complete: a value within itself has no end.
            self._shared[event.anchor] = _Shared(value, self._weight - before)
        return value

    def _scalar(self, event: Any) -> Any:
        """A text, unless it is plain and looks like something else. Tags are ignored: no tag makes an object here."""
        text: str = event.value
        self._weight += 1 + len(text) // _TEXT_OF_ONE_NODE
        if self._restore:
            text = text.translate(self._restore)
        if event.style in _QUOTES:
            self._check_indent(event.start_mark.line, event.end_mark.line, "")
            return text
        if event.style in _BLOCKS and event.start_mark.column <= self._indent:
            raise Unusable(event.start_mark.line, "is not YAML: a text does not stand further in than its key")
        is_typed = event.tag in _TYPES if event.tag else event.implicit[0]
        return _plain(text) if is_typed else text

    def _collection(self, event: Any, about: Loaded | None) -> Any:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise TooMuch(event.start_mark.line, f"is nested more than {MAX_NESTING} levels deep")
        outside = self._indent
        if not event.flow_style:
            self._indent = event.start_mark.column
        is_mapping = type(event) is self._kinds.mapping
        value, end = self._mapping(about) if is_mapping else self._sequence()
        if event.flow_style:
            self._check_indent(event.start_mark.line, end.end_mark.line, "]},#")
        self._indent = outside
        self._depth -= 1
        return value

    def _check_indent(self, begin: int, end: int, may_stand_out: str) -> None:
        """What goes on in further lines must stand further in than what it belongs to. libyaml does not mind."""
        if begin == end:
            return
        self._text_lines = self._text_lines or _LINE_END.split(self._text)
        for number in range(begin + 1, end + 1):
            line = self._text_lines[number] if number < len(self._text_lines) else ""
            content = line.lstrip(" ")
            if content and len(line) - len(content) <= self._indent and content[0] not in may_stand_out:
                raise Unusable(number, "is not YAML: a line is not indented enough to go on with the one before it")

    def _repeated(self, event: Any) -> Any:
        shared = self._shared.get(event.anchor)
        line = event.start_mark.line
        if shared is None:
            raise Unusable(line, f"is not YAML: nothing is called {event.anchor[:_TEXT_OF_ONE_NODE]!r}")
        # Beyond what even the CLI takes the exact number does not matter, and it could have thousands of digits.
        self._weight = min(self._weight + shared.weight, 2 * MAX_EXPANSION_OF_CLAUDE)
        self._expanded = min(self._expanded + shared.weight, 2 * MAX_EXPANSION_OF_CLAUDE)
        if self._expanded <= MAX_EXPANSION:
            return shared.value
        self._excess = self._excess or TooMuch(line, f"repeats more than {MAX_EXPANSION} values by aliases")
        return None

    def _sequence(self) -> tuple[list[Any], Any]:
        take, end = self._take, self._kinds.sequence_end
        values = []
        while type(event := take()) is not end:
            values.append(self._value(event))
        return values, event

    def _mapping(self, about: Loaded | None) -> tuple[dict[str, Any], Any]:
        take, end = self._take, self._kinds.mapping_end
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
                    self._note(about, key, event, following)
                values[key] = value  # of two equal keys the later one counts, as for the CLI
        return {**merged, **values} if merged else values, event

    def _key(self, event: Any) -> str | None:
        """A key's text as it was written; None for one that is no text, whose value nobody could ask for."""
        value = self._value(event)
        if type(event) is self._kinds.scalar:
            return value if isinstance(value, str) else str(event.value)
        return value if isinstance(value, str) else None

    def _note(self, about: Loaded, key: str, event: Any, following: Any) -> None:
        line = event.start_mark.line
        if key in about.lines:
            about.repeated[key] = line
            about.written.pop(key, None)
        about.lines[key] = line
        if type(following) is self._kinds.scalar:
            about.written[key] = following.value


def _merged(value: Any) -> dict[str, Any]:
    """What ``<<`` brings along: one mapping, or several of which the first one wins."""
    several = value if isinstance(value, list) else [value]
    return {key: item for one in reversed(several) if isinstance(one, dict) for key, item in one.items()}


# --- Scalars of YAML 1.2 ------------------------------------------------------------------------------------

_QUOTES = ("'", '"')
_BLOCKS = ("|", ">")
_TYPES = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int"))
_LINE_END = re.compile("\r\n|\r|\n")
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
        return None  # JSON has no word for it
    if len(text) <= _EXACT_DIGITS:
        if _WHOLE.fullmatch(text):
            return int(text)
        if _OTHER_BASE.fullmatch(text):
            return int(text, 0)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    return text
