"""The head of an agent's file: bytes in, its keys and its body out, or the one reason why not.

Pure, and no content makes it raise. It reads what the real CLI reads, with the CLI's own tolerance: heads that people
write are often not quite YAML. Which keys mean something belongs to ``fields``, where files lie to ``sources``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hocket.catalog.entries import NOTHING, REFUSED, SKIPPED
from hocket.catalog.yaml12 import Loaded, TooMuch, Unusable, load

MAX_HEAD = 64 * 1024
_ENOUGH_TO_TELL = 6
_LONG = MAX_HEAD // 4
"""For the value of one key."""
_FIRST_LINE = 2
"""Of a head within its file, whose first line is the dashes."""

# What the CLI takes for white space and for the rest of a line is what JavaScript does.
_BLANK = "\t\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ANY = "[^\n\r\u2028\u2029]"
# Quantifiers that have something to fail on after them are possessive: no text may make them try again and again.
_DECIDING = re.compile(r"^(?:name|description|hooks):.*\n?(?:[ \t].*\n?)*", re.MULTILINE)
_OPENING = re.compile(rf"---[{_BLANK}]*+\n")
_BEGINNING = re.compile(rf"(?:[\n{_BLANK}]*\n)?\ufeff?")
_AFTER_CLOSING = re.compile(rf"---[\n{_BLANK}]*+")
_LEADING_TABS = re.compile(r"^\t+", re.MULTILINE)
_TAB_AFTER = re.compile(r"^( ++| *+-)\t++(?=[^:\n]*$)", re.MULTILINE)
_TABS_ALONE = re.compile(r"^(?= *\t)[ \t]++(?=#|\r?$)", re.MULTILINE)
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_FIRST_COMMA = re.compile(r"^((?:[ ]|- )*[\w-]+:[ \t]+)(,[^\n\r]*)", re.MULTILINE)
_NO_KEY = re.compile(r"^([ ]*):(?=\s|\Z)", re.MULTILINE)
_PAIR = re.compile(rf"([a-zA-Z_-]++):[{_BLANK}]+({_ANY}+)")
_NEEDS_QUOTES = re.compile(r"[{}\[\]*&#!|>%@`]|: ")


class Fault(NamedTuple):
    """Why a file or its head cannot be used, and in which line of the file."""

    line: int
    reason: str
    kind: str = SKIPPED
    ours: bool = False
    """A bound of our own, that the CLI does not have."""


class Head(NamedTuple):
    """What stands between the dashes, and what follows them."""

    values: Mapping[str, Any]
    body: str
    lines: Mapping[str, int] = NOTHING
    """Where each key stands in the file."""
    written: Mapping[str, str] = NOTHING
    """The values that are no lists and no mappings, as they were written: 1.10 is another version than 1.1."""
    repeated: Mapping[str, int] = NOTHING
    """Keys that stand there more than once, and where for the last time."""
    mended: Fault | None = None
    """What is wrong with it, if it could only be read with forgiveness."""

    def line_of(self, key: str) -> int:
        return self.lines.get(key, 1)


def decode(content: bytes) -> str:
    """A file's text as it is read here: no byte order mark, whatever its bytes are."""
    return content.decode("utf-8", "replace").removeprefix("\ufeff")


class _Parts(NamedTuple):
    head: str
    body: str


def _parts(text: str) -> _Parts | None:
    opening = _OPENING.match(text)
    # The closing dashes end a head wherever they stand, also behind text and as a part of a longer line.
    end = text.find("---", opening.end()) if opening else -1
    closing = _AFTER_CLOSING.match(text, end) if end >= 0 else None
    return _Parts(_begun(text[opening.end() : end]), text[closing.end() :]) if opening and closing else None


def _begun(head: str) -> str:
    """The head as it begins for the CLI, whose opening takes blank lines along, and whose YAML takes a mark.

    The lines stay, so that they can be counted.
    """
    match = _BEGINNING.match(head)
    return "\n" * match[0].count("\n") + head[match.end() :] if match else head


def split(content: str) -> tuple[str | None, str]:
    """The text of the head and the body; without a head, None and the whole."""
    parts = _parts(content)
    return (parts.head, parts.body) if parts else (None, content)


def tidy(body: str) -> str:
    """Instructions as they are given to an agent: one kind of line end, and nothing around them."""
    return body.replace("\r\n", "\n").strip()


def end_of(content: bytes) -> int | None:
    """Where the head ends within the beginning of a file; None when more of it has to be read to tell.

    A file without a head needs no more to be known for one.
    """
    if not content.startswith((b"---", b"\xef\xbb\xbf---")):
        return len(content) if len(content) >= _ENOUGH_TO_TELL else None
    end = content.find(b"---", 4)
    return None if end < 0 else end + 3


def parse(content: bytes) -> Head | Fault:
    """The head of a file, or of as much of it as was read."""
    text = decode(content)
    parts = _parts(text)
    if parts is None:
        return _without_head(text)
    if len(parts.head) > MAX_HEAD:
        return Fault(1, f"its head is larger than {MAX_HEAD // 1024} kB", REFUSED, ours=True)
    try:
        found, complaint = _load_tolerantly(parts.head)
    except Unusable as error:
        return _fault(error)
    return Head(
        found.values,
        tidy(parts.body),
        {key: line + _FIRST_LINE for key, line in found.lines.items()},
        found.written,
        {key: line + _FIRST_LINE for key, line in found.repeated.items()},
        _fault(complaint) if complaint else None,
    )


def gist(content: bytes) -> Head | Fault:
    """The head with nothing in it but what decides whether the CLI loads it: for a head that we would not read.

    An estimate: keys that are written in their own way, or hide behind what is left out here, are not found.
    """
    head = split(decode(content))[0]
    if head is None:
        return Fault(1, "has no head")
    deciding = "".join(_shortened(match[0]) for match in _DECIDING.finditer(head))
    return parse(f"---\n{deciding}\n---\n".encode())


def _shortened(pair: str) -> str:
    """A key with its value, which may be a text of any length: without its middle it is one still."""
    if len(pair) <= _LONG:
        return pair
    return "" if pair.startswith("hooks") else pair[: _LONG // 2] + pair[-_LONG // 2 :]


def _fault(error: Unusable) -> Fault:
    line = error.line + _FIRST_LINE
    if isinstance(error, TooMuch):
        return Fault(line, error.reason, REFUSED, error.ours)
    return Fault(line, error.reason)


def texts(value: object, *, at_spaces: bool = False) -> list[str]:
    """A list however it was written: as a list, or as a text with commas. Trimmed, nothing empty, nothing twice."""
    items = value if isinstance(value, list) else [value]
    pieces = (piece for item in items if isinstance(item, str) for piece in _pieces(item, at_spaces))
    return list(dict.fromkeys(piece for piece in pieces if piece))


def _pieces(text: str, at_spaces: bool) -> Iterable[str]:
    if "(" in text:
        return _pieces_around_parentheses(text, at_spaces)
    return (piece.strip() for piece in (text.replace(",", " ").split() if at_spaces else text.split(",")))


def _pieces_around_parentheses(text: str, at_spaces: bool) -> Iterator[str]:
    # What stands in parentheses belongs to the name before it: Agent(a, b) is one entry.
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth <= 0 and (character == "," or (at_spaces and character.isspace())):
            yield text[start:position].strip()
            start, depth = position + 1, 0
    yield text[start:].strip()


def _without_head(text: str) -> Fault:
    if not text:
        return Fault(1, "is empty")
    if not _OPENING.match(text):
        return Fault(1, "does not begin with a line of three dashes")
    return Fault(1, "its head has no closing line of three dashes")


# --- Tolerance ----------------------------------------------------------------------------------------------


def _load_tolerantly(head: str) -> tuple[Loaded, Unusable | None]:
    """What the head says. Each further attempt forgives more; the first one's complaint is the one that is told."""
    if "\0" in head:
        raise Unusable(head[: head.index("\0")].count("\n"), "contains a NUL character")
    complaint: Unusable | None = None
    tried: list[str] = []
    for mend in (_as_it_is, _as_the_cli_has_it, _quoted):
        text = mend(head)
        if text in tried:
            continue
        tried.append(text)
        try:
            return load(text), complaint
        except TooMuch as error:
            error.ours = error.ours or _is_read_in_quotes(head)
            raise
        except Unusable as error:
            complaint = complaint or error
    assert complaint  # noqa: S101 - otherwise one of them was read
    raise complaint


def _is_read_in_quotes(head: str) -> bool:
    """Whether the CLI reads in quotes what is too much for it without: there an alias is only a text."""
    try:
        load(_quoted(head))
    except TooMuch as error:
        return error.ours
    except Unusable:
        return False
    return True


def _as_it_is(text: str) -> str:
    return text


def _as_the_cli_has_it(text: str) -> str:
    """What the CLI's own YAML does not mind, and libyaml does.

    That is JSON's escapes, a comma in front of a value, a value without a key, and some tabs.
    """
    if "\t" in text:
        text = _TAB_AFTER.sub(r"\1 ", _TABS_ALONE.sub("", text))
    if "\\u" in text:
        text = _without_surrogates(text)
    text = _FIRST_COMMA.sub(lambda pair: pair[1] + _in_quotes(pair[2]), text)
    return _NO_KEY.sub(r'\1"":', text)


def _without_surrogates(text: str) -> str:
    """Escapes as JSON has them: two halves for what is one character."""
    return _SURROGATES.sub(lambda halves: bytes.fromhex(halves[1] + halves[2]).decode("utf-16-be"), text)


def _quoted(text: str) -> str:
    """The CLI's own second attempt: tabs in front are made spaces, and values that look like trouble are quoted."""
    spaced = _LEADING_TABS.sub(lambda tabs: "  " * len(tabs[0]), text)
    return _as_the_cli_has_it("\n".join(_quoted_line(line) for line in spaced.split("\n")))


def _quoted_line(line: str) -> str:
    """The line with its value in quotes, if that value is not quoted and looks as if it should be."""
    match = _PAIR.fullmatch(line)
    if match is None or not _NEEDS_QUOTES.search(match[2]) or _is_quoted(match[2]) or _is_list(match[2]):
        return line
    return f"{match[1]}: {_in_quotes(match[2])}"


def _in_quotes(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"


def _is_list(value: str) -> bool:
    """Whether the value is a list that can be read as it is, so that nothing in it was the trouble."""
    if not (value.startswith("[") and value.endswith("]")):
        return False
    try:
        load(f"list: {value}")
    except Unusable:
        return False
    return True
