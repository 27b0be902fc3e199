"""Limits on the structure of a TOML or JSON text, checked in linear time before it is parsed.

A parser needs time quadratic in the parts of a dotted key, and a stack frame for each bracket. Strings and comments
are recognized as the parser does, up to the first syntax error, where the parser stops.
"""

from __future__ import annotations

import re

MAX_DEPTH = 32
MAX_KEY_PARTS = 16
MAX_TOKENS = 20_000
"""Brackets, keys, values and lines: a parser reads that many in a tenth of a second."""

# Possessive repetition avoids backtracking.
_TOKEN = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+"{0,5}'
    r"|'''(?:[^']++|'(?!''))*+'{0,5}"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+"
    r"|[.\[\]{},=:\n]",
    re.DOTALL,
)


def excess(text: str) -> str | None:
    """Return which limit a text exceeds, and in which line; None if it may be parsed."""
    depth = dots = 0
    for number, found in enumerate(_TOKEN.finditer(text)):
        mark = found[0]
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth = max(0, depth - 1)
        if mark == ".":
            dots += 1
        elif mark[0] not in "\"'":  # a part of a key may be quoted
            dots = 0
        if depth > MAX_DEPTH:
            reason = f"is nested too deeply: more than {MAX_DEPTH} levels"
        elif dots >= MAX_KEY_PARTS:
            reason = f"has a key of more than {MAX_KEY_PARTS} parts"
        elif number >= MAX_TOKENS:
            reason = f"has more than {MAX_TOKENS} keys, values and lines"
        else:
            continue
        line = text.count("\n", 0, found.start()) + 1
        return f"{reason} (at line {line})"
    return None
