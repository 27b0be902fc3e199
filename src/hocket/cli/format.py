"""Formatting for the terminal: status labels, costs, tables, widths and colours; and the parsers of option values."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from hocket.views.text import COMMAND, PROCESS_GONE, upcoming_time

STATUS_LABELS = {
    "starting": "◌ starting",
    "running": "● running",
    "waiting": "○ idle",
    "done": "✓ done",
    "failed": "✗ failed",
    "stopped": "■ stopped",
    "lost": "? lost",
    "gone": "- ended",
    "skipped": "- skipped",
    "parked": "‖ waits",
    "team": "○ waiting",
}
LEAST_LAST = 8
"""Columns that the last cell of a table has at least."""
NEEDS_YOU = "◆ needs you"
STATUS_COLOURS = {"✓": "32", "✗": "31", "●": "34", "◌": "34", "‖": "33", "◆": "1;33"}
"""By the glyph of a label; others are dim."""
# Wide since Unicode 16, and narrow by the tables of an older Python. Rich knows the newer tables and would cut a row
# that was wrapped by the older ones.
_WIDENED = dict.fromkeys(
    (*range(0x2630, 0x2638), *range(0x268A, 0x2690), *range(0x4DC0, 0x4E00), *range(0x1D300, 0x1D377)), "\u4e00"
)
"""Each mapped to a character that is wide in every version."""


def paint(text: str, style: str | None, colour: bool = True) -> str:
    """Wrap a text in an ANSI style such as ``1;33``."""
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style and text else text


def paint_status(line: str) -> str:
    """Colour the status label that a line begins with."""
    word = next((one for one in (NEEDS_YOU, *STATUS_LABELS.values()) if line.startswith(one)), "")
    return paint(word, STATUS_COLOURS.get(word[:1], "2")) + line[len(word) :]


def is_parked(run: dict[str, Any]) -> bool:
    """True if a chain waits for the end of a usage limit or an overload."""
    return run["status"] == "waiting" and bool(run.get("parked_until"))


def status_label(run: dict[str, Any]) -> str:
    """Glyph and word: a status never depends on colour alone."""
    if run.get("needs_you"):
        return NEEDS_YOU
    if run.get("reason") == PROCESS_GONE:
        return STATUS_LABELS["gone"]
    if is_parked(run):
        return f"{STATUS_LABELS['parked']} until {upcoming_time(run['parked_until'], time.time())}"
    if run["status"] == "waiting" and run.get("idle_in", 0) != 0:
        return STATUS_LABELS["team"]  # its team is at work, or it was at work itself a moment ago
    return STATUS_LABELS.get(run["status"], str(run["status"]))


def status_and_reason(run: dict[str, Any]) -> str:
    """``✗ failed  exit``, or ``■ stopped`` where the reason says the same."""
    reason = run.get("reason")
    return status_label(run) if reason in (None, run["status"], PROCESS_GONE) else f"{status_label(run)}  {reason}"


def elapsed(run: dict[str, Any], now: float) -> float | None:
    """How long a run has taken, or has waited for its start."""
    if run.get("elapsed") is not None:
        return float(run["elapsed"])
    begun = run.get("started_at") or run.get("created_at")
    if begun is None:
        return None
    return float((run.get("ended_at") or now) - begun)


def cost_text(run: dict[str, Any]) -> str | None:
    """The cost of a run so far, ``$0.0123, 950 tokens``; None if unknown.

    With a budget ``$0.53 of $0.50, $0.03 over, 950 tokens``.
    """
    dollars, tokens = run.get("cost_usd"), run.get("tokens")
    most_dollars, most_tokens = run.get("budget_usd"), run.get("budget_tokens")
    parts = [
        exact_cost(dollars, tokens, bool(run.get("cost_estimated"))),
        None if tokens is None else f"{tokens} tokens",
    ]
    if dollars is not None and most_dollars is not None:
        mark = "~" if run.get("cost_estimated") else ""
        parts[0] = mark + _of_budget(dollars, most_dollars, _dollars)
    if tokens is not None and most_tokens is not None:
        parts[1] = _of_budget(tokens, most_tokens, str, " tokens")
    return ", ".join(part for part in parts if part) or None


def _of_budget(used: float, most: float, text: Callable[[float], str], unit: str = "") -> str:
    """``$0.53 of $0.50, $0.03 over``."""
    over = round(used - most, 4)
    return f"{text(used)} of {text(most)}{unit}" + (f", {text(over)} over" if over > 0 else "")


def _dollars(amount: float) -> str:
    """Two decimals, or four where a cent is too coarse."""
    cents = f"{amount:.4f}"
    return f"${cents.removesuffix('00')}"


def exact_cost(dollars: float | None, tokens: int | None, estimated: bool = False) -> str | None:
    """``$0.0123``, ``~$0.0123`` by an estimate, ``unpriced`` for tokens without a price, or None."""
    if dollars is not None:
        return f"{'~' if estimated else ''}${dollars:.4f}"
    return "unpriced" if tokens else None


def short_count(count: int | None) -> str:
    """``950``, ``12.4k``, ``1.2M``; empty if unknown."""
    if count is None:
        return ""
    if count < 1000:
        return str(count)
    return f"{count / 1e3:.1f}k" if count < 999_950 else f"{count / 1e6:.1f}M"


def short_cost(dollars: float | None) -> str:
    """``$0.72``, with more digits for small amounts; empty if unknown."""
    if dollars is None:
        return ""
    return f"${dollars:.2f}" if dollars >= 0.01 or not dollars else f"${dollars:.4f}"


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?"


def parse_duration(text: str) -> float | None:
    """``90``, ``90s``, ``10m``, ``2h``, ``1h30m``; None for anything else."""
    found = re.findall(_DURATION, text)
    joined = "".join(number + unit for number, unit in found)
    if not found or joined != re.sub(r"\s+", "", text) or (len(found) > 1 and not all(unit for _, unit in found)):
        return None
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in found)


def parse_since(text: str, now: float) -> float | None:
    """The Unix time of a duration before ``now``, or of an ISO date or time in the local zone; else None."""
    if (seconds := parse_duration(text)) is not None:
        return max(0.0, now - seconds)
    from datetime import datetime

    today = datetime.fromtimestamp(now).date().isoformat() if ":" in text[:3] else None  # noqa: DTZ006 - local is meant
    try:
        return max(0.0, datetime.fromisoformat(f"{today}T{text}" if today else text).timestamp())
    except (ValueError, OverflowError):
        return None


def parse_count(text: str) -> int | None:
    """A positive whole number; None for anything else."""
    is_one = text.isascii() and text.isdigit() and len(text) <= 15 and int(text) > 0
    return int(text) if is_one else None


def parse_days(text: str) -> float | None:
    """A number of days from 0, also with a fraction; None for anything else."""
    found = re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII)
    return float(text) if found else None


def parse_dollars(text: str) -> float | None:
    """``5``, ``0.50`` or ``$5``; None unless it is a positive amount."""
    whole, _, cents = text.removeprefix("$").partition(".")
    if not (whole + cents).isascii() or not (whole + cents).isdigit() or len(whole + cents) > 15:
        return None
    return float(f"{whole or 0}.{cents or 0}") or None


def display_width(text: str) -> int:
    """Columns on a terminal: East Asian characters take two, combining marks none."""
    return len(text) if text.isascii() else _wide_width(text)


@lru_cache(1024)
def _wide_width(text: str) -> int:
    """The same for any text. A list has few state labels many times."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text.translate(_WIDENED)
    )


def truncate(text: str, columns: int) -> str:
    """Cut a text that is too wide, with an ellipsis."""
    if display_width(text) <= columns:
        return text
    if columns <= 0:
        return ""
    kept: list[str] = []
    room = columns - 1
    for letter in text:
        room -= display_width(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + "…"


def wrap(text: str, columns: int) -> list[str]:
    """Wrap between words where possible; characters may be two columns wide."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if display_width(joined) <= columns:
            lines[-1] = joined
        else:
            lines += _chunks(word, columns)
    return lines[1:] if len(lines) > 1 and not lines[0] else lines


def wrap_line(line: str, columns: int, indent: int = 4) -> list[str]:
    """The rows of a line, further ones indented. One with a command to type stays whole, so that it can be copied."""
    if COMMAND in line or display_width(line) <= columns:
        return [line]
    bare = line.lstrip(" ")
    margin = " " * (len(line) - len(bare))
    first, *others = wrap(bare, columns - len(margin) - indent)
    return [margin + first, *(f"{margin}{' ' * indent}{row}" for row in others)]


def _chunks(word: str, columns: int) -> Iterator[str]:
    begin = taken = 0
    for place, letter in enumerate(word):
        wide = display_width(letter)
        if taken + wide > columns and place > begin:
            yield word[begin:place]
            begin, taken = place, 0
        taken += wide
    yield word[begin:]


def format_table(rows: Sequence[Sequence[str]], columns: int | None = None) -> list[str]:
    """Aligned lines. With ``columns`` no line is wider, and the last cell is cut first."""
    widths = [max(display_width(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    used = sum(widths) + 2 * len(widths)
    room = None if columns is None else max(LEAST_LAST, columns - used)
    lines: list[str] = []
    for row in rows:
        cells = [cell + " " * (wide - display_width(cell)) for cell, wide in zip(row, widths, strict=False)]
        last = row[-1] if room is None else truncate(row[-1], room)
        lines.append("  ".join([*cells, last]).rstrip())
    if columns is None or columns - used >= LEAST_LAST:
        return lines
    return [truncate(line, columns) for line in lines]


_QUOTED = r"""\"'\"|(?<![^\s"])'[^']*'"""
"""A word quoted by ``shlex``, not the text between two apostrophes of a sentence."""
_UNSHOWN = "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]+"


def typable(text: str) -> str:
    """A text whose quoted words have control and invisible characters spelled ``$'...'``, which a shell reads back."""
    return text if text.isprintable() else re.sub(_QUOTED, lambda word: re.sub(_UNSHOWN, _as_bytes, word[0]), text)


def _as_bytes(found: re.Match[str]) -> str:
    written = "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
    return f"'$'{written}''"
