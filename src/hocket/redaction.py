"""Redaction: secret values in what an agent writes are replaced by ``[redacted]`` before anything is recorded.

A text may arrive whole or in pieces, and a piece may end in the middle of a secret. ``Redactor.feed`` then holds back
the end of the text for as long as it could be the beginning of a secret. What is held back is remembered as the name
of the secret and a number of its characters, so that no state that is written to disk contains any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, AnyStr

from hocket.model import BoundChain, Spec
from hocket.secret_files import secret_part

MASK = "[redacted]"

Held = Sequence[Any]
"""The end of a text that may be the beginning of a secret, as a JSON value: the secret's name, the number of its
spelling, how many of its characters are held, and how many of these are already part of a mask."""

_MIN_LENGTH = 16
"""Shorter values would be found inside ordinary words."""
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^\s,:{}\[\]"]+', re.DOTALL)
"""A string, a number or a literal of a JSON text."""
_PART_OF_CHARACTER = re.compile(r"[\udc80-\udcff]{1,3}$")
"""The first bytes of a character whose last ones were cut off, as ``surrogateescape`` decodes them."""
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


class Redactor:
    """Masks the values of ``secrets``, which are given by name. A value contains no white space."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._spellings: dict[tuple[str, int], str] = {}
        for name, value in secrets.items():
            for number, spelling in enumerate(_spellings(value)):
                if spelling not in self._spellings.values():
                    self._spellings[name, number] = spelling
        self._texts = tuple(self._spellings.values())
        self._bytes = tuple(map(_encoded, self._texts))
        escaped = (json.dumps(text, ensure_ascii=False)[1:-1] for text in self._texts)
        self._in_lines = tuple(dict.fromkeys([*self._bytes, *map(_encoded, escaped)]))
        """One of them is in every line with a secret, unless the line has an optional escape."""
        self.longest = max(map(len, self._bytes), default=0)
        """Bytes of the longest secret."""

    def text(self, text: str) -> str:
        """A whole text with its secrets masked. Secrets that overlap get one mask."""
        return self._masked(text, 0, len(text))[0] if any(secret in text for secret in self._texts) else text

    def line(self, line: bytes, *, cut: bool = False) -> bytes:
        """A line with its secrets masked; a line of JSON stays one. ``cut``: it is only the beginning of a line."""
        if cut:
            beginning = _PART_OF_CHARACTER.sub("", line.decode("utf-8", "surrogateescape"))
            return _encoded(self.feed(None, beginning)[0])
        # JSON may escape any character, and need not.
        may_hold_secret = any(secret in line for secret in self._in_lines) or b"\\u" in line or b"\\/" in line
        if not self._texts or not may_hold_secret:
            return line
        text = line.decode("utf-8", "surrogateescape")
        masked = _TOKEN.sub(self._token, text) if _is_json(text) else self.text(text)
        return line if masked == text else _encoded(masked)

    def tail(self, content: bytes, limit: int) -> bytes:
        """At most the last ``limit`` bytes of some lines, masked. ``content`` should have ``longest`` bytes more, for
        a secret that begins before them."""
        begin = max(0, len(content) - limit)
        if begin:
            begin = max([begin, *(end for start, end in _spans(content, self._bytes) if start < begin < end)])
            while begin < len(content) and content[begin] & 0xC0 == 0x80:
                begin += 1  # The rest of a character.
        return b"\n".join(map(self.line, content[begin:].split(b"\n")))

    def feed(self, held: Held | None, text: str) -> tuple[str, Held | None]:
        """The next piece of a text: the masked output so far as it is certain, and what is held back.

        All outputs together, up to and including that of ``flush``, are the whole text with its secrets masked.
        """
        if held is not None and self._begun(held) is None:
            output, rest = self.feed(None, text)
            return self.flush(held) + output, rest
        if not self._texts:
            return text, None
        begun, masked = self._begun(held) or ("", 0)
        whole = begun + text
        end, of = self._open_end(whole)
        output, masked = self._masked(whole, masked, end)
        return output, None if of is None else [*of, len(whole) - end, masked]

    def flush(self, held: Held | None) -> str:
        """What is held back, where the text has ended."""
        if held is None:
            return ""
        begun = self._begun(held)
        if begun is None:
            return MASK if held[3] < held[2] else ""
        return self._masked(*begun, len(begun[0]))[0]

    def _begun(self, held: Held | None) -> tuple[str, int] | None:
        """The characters that are held, and how many of them a mask stands for; None where the secret is not known."""
        secret = self._spellings.get((held[0], held[1])) if held is not None else None
        return None if held is None or secret is None else (secret[: held[2]], held[3])

    def _open_end(self, text: str) -> tuple[int, tuple[str, int] | None]:
        """The first position from which on the text is a secret's beginning, but not all of it; and which secret's."""
        end, of = len(text), None
        for key, secret in self._spellings.items():
            at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while 0 <= at < end:
                if secret.startswith(text[at:]):
                    end, of = at, key
                at = text.find(secret[0], at + 1)
        return end, of

    def _masked(self, text: str, masked: int, end: int) -> tuple[str, int]:
        """The text up to ``end``, without its first ``masked`` characters, for which there is a mask already; and how
        many characters from ``end`` on the last mask stands for."""
        output: list[str] = []
        at = masked
        for start, stop in _spans(text, self._texts):
            if start >= max(end, masked):
                break
            if start >= masked:
                output += text[at:start], MASK
            at = max(at, stop)
        return "".join(output) + text[at:end], max(0, at - end)

    def _token(self, found: re.Match[str]) -> str:
        token = found[0]
        is_string = token.startswith('"')
        text = json.loads(token, strict=False) if is_string else token
        masked = self.text(text)
        if masked == text:
            return token
        # A part of a number would be no JSON, so all of it is replaced.
        return json.dumps(masked if is_string else MASK, ensure_ascii=_HALF_CHARACTER.search(masked) is not None)


def _spellings(value: str) -> Iterator[str]:
    """A value as it is, and as JSON spells it, which agents print and which other JSON may contain as a text."""
    yield value
    for escaped in (json.dumps(value, ensure_ascii=False), json.dumps(value)):
        yield escaped[1:-1]
        yield escaped[1:-1].replace("/", "\\/")
    yield re.sub(r"\\u[0-9a-f]{4}", lambda escape: "\\u" + escape[0][2:].upper(), json.dumps(value)[1:-1])


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_json(text: str) -> bool:
    """As tolerant as the readers of lines are: halves of characters and ``NaN`` are no errors."""
    if not text.lstrip().startswith(("{", "[", '"')):
        return False
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _spans(text: AnyStr, secrets: Iterable[AnyStr]) -> list[tuple[int, int]]:
    """The positions of secrets, in order; those that overlap as one."""
    found = sorted((start, start + len(secret)) for secret in secrets for start in _occurrences(text, secret))
    spans: list[tuple[int, int]] = []
    for start, stop in found:
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
        else:
            spans.append((start, stop))
    return spans


def _occurrences(text: AnyStr, secret: AnyStr) -> Iterator[int]:
    at = text.find(secret)
    while at >= 0:
        yield at
        at = text.find(secret, at + 1)


NO_SECRETS = Redactor({})


def secrets_of(env: Mapping[str, str]) -> dict[str, str]:
    """The values of an environment to mask, by the names of their variables."""
    return {name: value for name, value in sorted(secret_part(env).items()) if _is_secret(value)}


def _is_secret(value: str) -> bool:
    return len(value) >= _MIN_LENGTH and not value.startswith(("/", "~", "unix:")) and not any(map(str.isspace, value))


def masked_prompt(bound: Spec | BoundChain) -> str | None:
    """The prompt of a run or chain with the secrets of its agents masked."""
    text = bound.prompt if isinstance(bound, Spec) else bound.task
    if not text:
        return None
    env = dict(bound.env)
    for step in bound.steps if isinstance(bound, BoundChain) else ():
        env |= step.spec.env
    return Redactor(secrets_of(env)).text(text)
