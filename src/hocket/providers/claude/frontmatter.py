"""Frontmatter as the CLI reads it: bytes in, keys and body out, or the reason why not. Never raises."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hocket.providers.claude.yaml12 import Unusable, load
from hocket.providers.definition_files import REFUSED, Fault, Head

MAX_HEAD = 64 * 1024
_ENOUGH_TO_TELL = 6

# White space and line ends as JavaScript defines them.
_BLANK = "\t\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ANY = "[^\n\r\u2028\u2029]"
# Quantifiers before something that can fail are possessive, so that no text causes backtracking.
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


def decode(content: bytes) -> str:
    """Decode a file: invalid UTF-8 is replaced, a byte order mark removed."""
    return content.decode("utf-8", "replace").removeprefix("\ufeff")


def split(text: str) -> tuple[str | None, str]:
    """Return the text of the frontmatter and the body; without frontmatter, None and the whole text."""
    opening = _OPENING.match(text)
    # For the CLI the closing dashes may stand anywhere, also within a line.
    end = text.find("---", opening.end()) if opening else -1
    closing = _AFTER_CLOSING.match(text, end) if end >= 0 else None
    if opening is None or closing is None:
        return None, text
    head = text[opening.end() : end]
    # The CLI skips blank lines and a byte order mark at the beginning. The lines stay, so that they can be counted.
    skipped = _BEGINNING.match(head)
    if skipped:
        head = "\n" * skipped[0].count("\n") + head[skipped.end() :]
    return head, text[closing.end() :]


def tidy(body: str) -> str:
    """Normalise line ends and strip the body, as the CLI does."""
    return body.replace("\r\n", "\n").strip()


def end_of(content: bytes) -> int | None:
    """Return where the frontmatter ends in the beginning of a file; None if more of the file is needed."""
    if not content.startswith((b"---", b"\xef\xbb\xbf---")):
        return len(content) if len(content) >= _ENOUGH_TO_TELL else None
    end = content.find(b"---", 4)
    return None if end < 0 else end + 3


def parse(content: bytes) -> Head | Fault:
    """Parse the frontmatter and the body of a file, or of its beginning."""
    text = decode(content)
    head, body = split(text)
    if head is None:
        return _without_head(text)
    if len(head) > MAX_HEAD:
        return Fault(1, f"the frontmatter is larger than {MAX_HEAD // 1024} kB", REFUSED, is_hocket_limit=True)
    try:
        found = _load_tolerantly(head)
    except Unusable as error:
        return error.fault
    return found._replace(body=tidy(body))


def texts(value: object, *, at_spaces: bool = False) -> list[str]:
    """Return a list written as a list or as comma-separated text: stripped, without empty or repeated items."""
    items = value if isinstance(value, list) else [value]
    pieces = (piece.strip() for item in items if isinstance(item, str) for piece in _pieces(item, at_spaces))
    return list(dict.fromkeys(piece for piece in pieces if piece))


def _pieces(text: str, at_spaces: bool) -> Iterator[str]:
    # Parentheses belong to the name before them: Agent(a, b) is one item.
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth = max(0, depth + (character == "(") - (character == ")"))
        if depth == 0 and (character == "," or (at_spaces and character.isspace())):
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _without_head(text: str) -> Fault:
    if not text:
        return Fault(1, "is empty")
    if not _OPENING.match(text):
        return Fault(1, "does not begin with a line of three dashes")
    return Fault(1, "the frontmatter has no closing line of three dashes")


# --- Tolerance ----------------------------------------------------------------------------------------------


def _load_tolerantly(text: str) -> Head:
    """Load the frontmatter with growing tolerance. What the first attempt complained about is ``mended``."""
    if "\0" in text:
        raise Unusable(text[: text.index("\0")].count("\n"), "contains a NUL character")
    complaint: Unusable | None = None
    tried: list[str] = []
    for mend in (str, _as_the_cli_has_it, _quoted):
        attempt = mend(text)
        if attempt in tried:
            continue
        tried.append(attempt)
        try:
            return load(attempt)._replace(mended=complaint.fault if complaint else None)
        except Unusable as error:
            complaint = complaint or error
            if error.fault.is_hocket_limit:
                raise
    assert complaint  # noqa: S101 - otherwise an attempt succeeded
    raise complaint


def _as_the_cli_has_it(text: str) -> str:
    """Rewrite what the CLI's YAML parser accepts and libyaml does not.

    These are JSON's escapes, a value that begins with a comma, an empty key, and some tabs.
    """
    if "\t" in text:
        text = _TAB_AFTER.sub(r"\1 ", _TABS_ALONE.sub("", text))
    if "\\u" in text:
        # JSON escapes one character as two surrogates.
        text = _SURROGATES.sub(lambda halves: bytes.fromhex(halves[1] + halves[2]).decode("utf-16-be"), text)
    text = _FIRST_COMMA.sub(lambda pair: pair[1] + _in_quotes(pair[2]), text)
    return _NO_KEY.sub(r'\1"":', text)


def _quoted(text: str) -> str:
    """Do what the CLI does after a failed attempt: indent with spaces, and quote values with special characters."""
    spaced = _LEADING_TABS.sub(lambda tabs: "  " * len(tabs[0]), text)
    return _as_the_cli_has_it("\n".join(_quoted_line(line) for line in spaced.split("\n")))


def _quoted_line(line: str) -> str:
    """Quote the line's value if it has special characters and is neither quoted nor a valid list."""
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
    """True if the value is a list that can be read as it is."""
    if not (value.startswith("[") and value.endswith("]")):
        return False
    try:
        load(f"list: {value}")
    except Unusable:
        return False
    return True
