"""The head of an agent's file: bytes in, its keys and its body out, or the one reason why not.

Pure, and no content makes it raise. It reads what the real CLI reads, with the CLI's own tolerance: heads that people
write are often not quite YAML. Which keys mean something, and where files lie, belong to ``definitions``.

Values are built from the parser's events, one after the other, never by PyYAML's own recursion, which a few thousand
brackets bring down: nesting and aliases are counted while they are read, and too much of either ends the reading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MAX_HEAD = 64 * 1024
MAX_NESTING = 20
MAX_EXPANSION = 1000
"""What all aliases of a head may stand for, in nodes; a long text counts as several."""
_TEXT_OF_ONE_NODE = 100

# The closing dashes end a head wherever they stand, also behind text and as a part of a longer line.
_HEAD = re.compile(r"(---\s*\n)(.*?)---\s*", re.DOTALL)
_OPENING = re.compile(r"---\s*\n")
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_OLD_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_LEADING_TABS = re.compile(r"^[ \t]*\t[ \t]*", re.MULTILINE)
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_PAIR = re.compile(r"([a-zA-Z_-]+):\s+(.+)")
_NEEDS_QUOTES = re.compile(r"[{}\[\]*&#!|>%@`]|: ")


class Problem(NamedTuple):
    """Why a head cannot be used, and in which line of the file."""

    line: int
    reason: str


class Head(NamedTuple):
    """What stands between the dashes, and what follows them."""

    values: Mapping[str, Any]
    body: str
    lines: Mapping[str, int] = MappingProxyType({})
    """Where each key stands in the file."""

    def line_of(self, key: str) -> int:
        return self.lines.get(key, 1)


def decode(content: bytes) -> str:
    """A file's text as it is read here: no byte order mark, one kind of line end, whatever its bytes are."""
    return content.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n")


def split(content: str) -> tuple[str | None, str]:
    """The text of the head and the body; without a head, None and the whole."""
    match = _HEAD.match(content)
    return (match[2], content[match.end() :]) if match else (None, content)


def parse(content: bytes) -> Head | Problem:
    """The head of a file, or of as much of it as was read."""
    text = decode(content)
    match = _HEAD.match(text)
    if match is None or len(match[2]) > MAX_HEAD:
        return _without_head(text)
    try:
        values, lines = _load_tolerantly(match[2])
    except _Unusable as error:
        return Problem(error.line + match[1].count("\n") + 1, error.reason)
    offset = match[1].count("\n") + 1
    return Head(values, text[match.end() :].strip(), {key: line + offset for key, line in lines.items()})


def texts(value: object, *, at_spaces: bool = False) -> list[str]:
    """A list however it was written: as a list, or as a text with commas. Trimmed, nothing empty, nothing twice."""
    items = value if isinstance(value, list) else [value]
    pieces = (piece for item in items if isinstance(item, str) for piece in _pieces(item, at_spaces))
    return list(dict.fromkeys(piece for piece in pieces if piece))


def _pieces(text: str, at_spaces: bool) -> Iterator[str]:
    # What stands in parentheses belongs to the name before it: Agent(a, b) is one entry.
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth <= 0 and (character == "," or (at_spaces and character.isspace())):
            yield text[start:position].strip()
            start, depth = position + 1, 0
    yield text[start:].strip()


def _without_head(text: str) -> Problem:
    if not _OPENING.match(text):
        return Problem(1, "does not begin with a line of three dashes")
    if len(text) > MAX_HEAD:
        return Problem(1, f"its head is larger than {MAX_HEAD // 1024} kB")
    return Problem(1, "its head has no closing line of three dashes")


# --- Tolerance ----------------------------------------------------------------------------------------------


class _Unusable(Exception):
    """A head that cannot be read: the line within it, from 0, and why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class _TooMuch(_Unusable):
    """A head that could be read but should not be: no second attempt."""


_Loaded = tuple[dict[str, Any], dict[str, int]]


def _load_tolerantly(head: str) -> _Loaded:
    """What the head says. Each further attempt forgives more; the first one's complaint is the one that is told."""
    if "\0" in head:
        raise _Unusable(head[: head.index("\0")].count("\n"), "contains a NUL character")
    text = _NOT_YAML.sub("\ufffd", _OLD_LINE_ENDS.sub(" ", head))
    try:
        return _load(text)
    except _TooMuch:
        raise
    except _Unusable as error:
        complaint = error
    for mend in (_without_tabs, _without_surrogates, _quoted):
        text = mend(text)
        try:
            return _load(text)
        except _TooMuch:
            raise
        except _Unusable:
            continue
    raise complaint


def _without_tabs(text: str) -> str:
    return _LEADING_TABS.sub(lambda match: match[0].replace("\t", "  "), text)


def _without_surrogates(text: str) -> str:
    """Escapes as JSON has them: two halves for what is one character."""
    return _SURROGATES.sub(lambda halves: bytes.fromhex(halves[1] + halves[2]).decode("utf-16-be"), text)


def _quoted(text: str) -> str:
    return "\n".join(_quoted_line(line) for line in text.split("\n"))


def _quoted_line(line: str) -> str:
    """The line with its value in quotes, if that value is not quoted and looks as if it should be."""
    match = _PAIR.fullmatch(line)
    if match is None or not _NEEDS_QUOTES.search(match[2]) or _is_quoted(match[2]) or _is_list(match[2]):
        return line
    escaped = match[2].replace("\\", "\\\\").replace('"', '\\"')
    return f'{match[1]}: "{escaped}"'


def _is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"


def _is_list(value: str) -> bool:
    """Whether the value is a list that can be read as it is, so that nothing in it was the trouble."""
    if not (value.startswith("[") and value.endswith("]")):
        return False
    try:
        _load(f"list: {value}")
    except _Unusable:
        return False
    return True


# --- YAML ---------------------------------------------------------------------------------------------------


def _load(text: str) -> _Loaded:
    # Imported here: the command line's own start must not pay for it.
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        # A key without its colon is noticed only in the line after it.
        mark = error.context_mark if error.context == "while scanning a simple key" else error.problem_mark
        raise _Unusable(mark.line if mark else 0, f"is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise _Unusable(0, f"is not YAML: {error}") from error


class _Shared(NamedTuple):
    """A value with a name that aliases may repeat, and how much one repetition adds."""

    value: Any
    weight: int


class _Builder:
    """Plain values out of a stream of events. Depth and repetitions are bounded, so nothing here can run away."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._shared: dict[str, _Shared] = {}
        self._weight = 0
        self._expanded = 0
        self._depth = 0

    def document(self) -> _Loaded:
        """The one mapping that a head consists of, and the line of each of its keys."""
        lines: dict[str, int] = {}
        self._next()
        if type(self._next()).__name__ == "StreamEndEvent":
            return {}, lines
        event = self._next()
        if type(event).__name__ != "MappingStartEvent":
            raise _Unusable(event.start_mark.line, "is not a list of keys with values")
        values = self._value(event, lines)
        self._next()
        end = self._next()
        if type(end).__name__ != "StreamEndEvent":
            raise _Unusable(end.start_mark.line, "holds a second document")
        return values, lines

    def _next(self) -> Any:
        return next(self._events)

    def _value(self, event: Any, lines: dict[str, int] | None = None) -> Any:
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._repeated(event)
        before = self._weight
        self._weight += 1
        if kind == "ScalarEvent":
            self._weight += len(event.value) // _TEXT_OF_ONE_NODE
            value = _scalar(event)
        else:
            build: Callable[[dict[str, int] | None], Any] = (
                self._mapping if kind == "MappingStartEvent" else self._sequence
            )
            value = self._nested(event, lambda: build(lines))
        if event.anchor is not None:
            # Only now, when it is complete: a value within itself has no end.
            self._shared[event.anchor] = _Shared(value, self._weight - before)
        return value

    def _nested(self, event: Any, build: Callable[[], Any]) -> Any:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise _TooMuch(event.start_mark.line, f"is nested more than {MAX_NESTING} levels deep")
        value = build()
        self._depth -= 1
        return value

    def _repeated(self, event: Any) -> Any:
        shared = self._shared.get(event.anchor)
        line = event.start_mark.line
        if shared is None:
            raise _Unusable(line, f"is not YAML: nothing is called {event.anchor!r}")
        self._weight += shared.weight
        self._expanded += shared.weight
        if self._expanded > MAX_EXPANSION:
            raise _TooMuch(line, f"repeats more than {MAX_EXPANSION} values by aliases")
        return shared.value

    def _sequence(self, _: dict[str, int] | None) -> list[Any]:
        values = []
        while type(event := self._next()).__name__ != "SequenceEndEvent":
            values.append(self._value(event))
        return values

    def _mapping(self, lines: dict[str, int] | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while type(event := self._next()).__name__ != "MappingEndEvent":
            key = self._key(event)
            value = self._value(self._next())
            if key == "<<":
                merged = {**_merged(value), **merged}
            elif key is not None:
                values[key] = value  # of two equal keys the later one counts, as for the CLI
                if lines is not None:
                    lines[key] = event.start_mark.line
        return {**merged, **values}

    def _key(self, event: Any) -> str | None:
        """A key's text as it was written; None for one that is no text, whose value nobody could ask for."""
        value = self._value(event)
        if type(event).__name__ == "ScalarEvent":
            return str(event.value)
        return value if isinstance(value, str) else None


def _merged(value: Any) -> dict[str, Any]:
    """What ``<<`` brings along: one mapping, or several of which the first one wins."""
    several = value if isinstance(value, list) else [value]
    return {key: item for one in reversed(several) if isinstance(one, dict) for key, item in one.items()}


# --- Scalars of YAML 1.2 ------------------------------------------------------------------------------------

_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_EXACT_DIGITS = 18


def _scalar(event: Any) -> Any:
    """A text, unless it is plain and looks like something else. Tags are ignored: no tag makes an object here."""
    is_plain = event.tag is None and event.implicit[0]
    return _plain(event.value) if is_plain else event.value


def _plain(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
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
