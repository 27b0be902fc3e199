"""Text for people: durations, state words, columns, and agents' words made harmless. Nothing here prints.

On the path of ``ps``, so it imports almost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

WORDS = {
    "starting": "◌ starting",
    "running": "● running",
    "waiting": "○ idle",
    "done": "✓ done",
    "failed": "✗ failed",
    "stopped": "■ stopped",
    "lost": "? lost",
    "skipped": "- skipped",
    "parked": "‖ waits",
}
NEEDS_YOU = "◆ needs you"
STATE_COLOURS = {"✓": "32", "✗": "31", "●": "34", "◌": "34", "‖": "33", "◆": "1;33"}
"""By a word's glyph; the others are dim."""
_OWN_WORDS = frozenset([*WORDS.values(), NEEDS_YOU])
"""One column a letter: to know that of these, no table of all letters has to be loaded."""

# Escape sequences first (string types end with BEL or ST, or run on to the end of the text), then whatever
# control character is left, including the eight-bit forms. A terminal may see tab and newline alone.
# Both stay text until they are needed: most of what is shown is plain, and compiling takes longer than showing it.
_ESCAPES = (
    r"(?s)\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x9d.*?(?:\x07|\x9c|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?"
)
# Characters that control the direction of text can make a line read as something else, and annotation marks can hide a
# part of it, so they go with the control characters. Joiners stay: scripts and emoji need them.
_CONTROLS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f\ufff9-\ufffb]"
# Separators that are printed, but that pagers, editors and log readers take for the end of a line: a text that has
# them could begin lines that look like ours.
_LINE_ENDS = "[\u2028\u2029]"
# What a terminal shows as nothing, or as a space that is none, though Python takes it for printable: the letters that
# Unicode wants ignored where nobody knows them (fillers, joiners, selectors of a variant), and a few that are blank.
_UNSEEN = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u2d7f\u3164\ufe00-\ufe0f\uffa0"
    "\U0001107f\U00013441\U00013442\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
# Two columns since Unicode 16, and one by the tables of an older Python. Who draws the live view knows the newer ones
# and would cut a row that was folded by the older.
_WIDENED = dict.fromkeys(
    (*range(0x2630, 0x2638), *range(0x268A, 0x2690), *range(0x4DC0, 0x4E00), *range(0x1D300, 0x1D377)), "\u4e00"
)
"""Each with a letter that always was as wide."""


def harmless(text: str) -> str:
    """What an agent said, without anything that a terminal would obey; its only line ends are newlines."""
    if text.replace("\n", "").isprintable():
        return text
    import re

    text = re.sub(_ESCAPES, "", text.replace("\r\n", "\n"))
    return re.sub(_CONTROLS, "", re.sub(_LINE_ENDS, " ", text))


def uttered(text: str) -> str:
    """What an agent or a program has put out, harmless: of a line that it wrote over, as progress bars do, the last."""
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return harmless(text)


def spelled(text: str) -> str:
    """With every letter spelled out that would not be seen, or that a terminal would obey: for what is to be judged."""
    if text.isascii() and text.isprintable():
        return text
    import re

    text = re.sub(_UNSEEN, lambda one: ascii(one[0])[1:-1], text)
    return "".join(one if one.isprintable() or one == "\t" else ascii(one)[1:-1] for one in text)


def one_line(text: str) -> str:
    """Harmless, and on one line."""
    return " ".join(harmless(text).split())


def painted(text: str, style: str | None, colour: bool = True) -> str:
    """In a terminal's own colours, which are numbers: ``1;33`` is bold and yellow. Nothing stays nothing."""
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style and text else text


def tinted(line: str) -> str:
    """A line that begins with a state's word, that word in its colour."""
    word = next((one for one in (NEEDS_YOU, *WORDS.values()) if line.startswith(one)), "")
    return painted(word, STATE_COLOURS.get(word[:1], "2")) + line[len(word) :]


def state_word(run: dict[str, Any]) -> str:
    """Glyph and word: a state never depends on colour alone."""
    if run.get("needs_you"):
        return NEEDS_YOU
    if run["status"] == "waiting" and run.get("parked_until"):
        return f"{WORDS['parked']} until {appointment(run['parked_until'], time.time())}"
    return WORDS.get(run["status"], str(run["status"]))


def duration(seconds: float | None) -> str:
    """``0:48``, ``1:02:03``, ``2d 03h``."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def elapsed(run: dict[str, Any], now: float) -> float | None:
    """How long a run has taken, or took; of one that waits for its start, how long it has waited."""
    if run.get("elapsed") is not None:
        return float(run["elapsed"])
    begun = run.get("started_at") or run.get("created_at")
    if begun is None:
        return None
    return float((run.get("ended_at") or now) - begun)


def cost(run: dict[str, Any]) -> str | None:
    """What a run has cost so far; None where nobody knows. Tokens of which nobody said a price are unpriced."""
    dollars, tokens = run.get("cost_usd"), run.get("tokens")
    parts = [money(dollars, tokens, bool(run.get("cost_estimated"))), None if tokens is None else f"{tokens} tokens"]
    return ", ".join(part for part in parts if part) or None


def money(dollars: float | None, tokens: int | None, estimated: bool = False) -> str | None:
    """``$0.0123``, ``~$0.0123`` by an estimate, ``unpriced``, or None where nothing that has a price was used."""
    if dollars is not None:
        return f"{'~' if estimated else ''}${dollars:.4f}"
    return "unpriced" if tokens else None


def tokens_of(count: int | None) -> str:
    """``950``, ``12.4k``, ``1.2M``; nothing where nobody knows."""
    if count is None:
        return ""
    if count < 1000:
        return str(count)
    return f"{count / 1e3:.1f}k" if count < 999_950 else f"{count / 1e6:.1f}M"


def price(dollars: float | None) -> str:
    """``$0.72``, with more digits where it would look like nothing; nothing where nobody knows."""
    if dollars is None:
        return ""
    return f"${dollars:.2f}" if dollars >= 0.01 or not dollars else f"${dollars:.4f}"


def clock(ts: float) -> str:
    """The time of day, local."""
    return time.strftime("%H:%M:%S", time.localtime(ts))


def moment(ts: float | None) -> str:
    """A point in time for a person to read."""
    return "-" if ts is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts))


def appointment(ts: float, now: float) -> str:
    """When something is to happen: the time of day, with the day where it is another one, the seconds if it is soon."""
    then, today = time.localtime(ts), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M:%S" if 0 < ts - now < 120 else "%H:%M", then)
    return time.strftime("%a %H:%M" if 0 < ts - now < 6 * 86400 else "%Y-%m-%d %H:%M", then)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?"


def seconds_of(text: str) -> float | None:
    """``90``, ``90s``, ``10m``, ``2h``, ``1h30m``; None when it is none of these."""
    import re

    found = re.findall(_DURATION, text)
    spelled = "".join(number + unit for number, unit in found)
    if not found or spelled != re.sub(r"\s+", "", text) or (len(found) > 1 and not all(unit for _, unit in found)):
        return None
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in found)


def since_of(text: str, now: float) -> float | None:
    """The Unix time that a duration before ``now``, or an ISO date or time in the local zone, stands for; else None."""
    if (seconds := seconds_of(text)) is not None:
        return max(0.0, now - seconds)
    from datetime import datetime

    today = datetime.fromtimestamp(now).date().isoformat() if ":" in text[:3] else None  # noqa: DTZ006 - local is meant
    try:
        return max(0.0, datetime.fromisoformat(f"{today}T{text}" if today else text).timestamp())
    except (ValueError, OverflowError):
        return None


def count_of(text: str) -> int | None:
    """A whole number from 1 on; None when it is none."""
    is_one = text.isascii() and text.isdigit() and len(text) <= 15 and int(text) > 0
    return int(text) if is_one else None


def dollars_of(text: str) -> float | None:
    """``5``, ``0.50`` or ``$5``; None when it is no sum above nothing."""
    whole, _, cents = text.removeprefix("$").partition(".")
    if not (whole + cents).isascii() or not (whole + cents).isdigit() or len(whole + cents) > 15:
        return None
    return float(f"{whole or 0}.{cents or 0}") or None


def width(text: str) -> int:
    """Columns on a terminal. East Asian letters take two, combining marks none."""
    if text.isascii() or text in _OWN_WORDS:
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text.translate(_WIDENED)
    )


def fit(text: str, columns: int) -> str:
    """The text, cut with an ellipsis where it is too wide."""
    if width(text) <= columns:
        return text
    if columns <= 0:
        return ""
    kept: list[str] = []
    room = columns - 1
    for letter in text:
        room -= width(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + "…"


def wrapped(text: str, columns: int) -> list[str]:
    """Lines of at most so many columns, broken between words where that is possible; letters may be two wide."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if width(joined) <= columns:
            lines[-1] = joined
        else:
            lines += _chunks(word, columns)
    return lines[1:] if len(lines) > 1 and not lines[0] else lines


def _chunks(word: str, columns: int) -> Iterator[str]:
    begin = taken = 0
    for place, letter in enumerate(word):
        wide = width(letter)
        if taken + wide > columns and place > begin:
            yield word[begin:place]
            begin, taken = place, 0
        taken += wide
    yield word[begin:]


def table(rows: Sequence[Sequence[str]], columns: int | None = None) -> list[str]:
    """Aligned lines. With ``columns`` the last cell gives way first, and no line is wider."""
    widths = [max(width(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    used = sum(widths) + 2 * len(widths)
    room = None if columns is None else max(8, columns - used)
    lines = [_row(row, widths, room) for row in rows]
    return lines if columns is None else [fit(line, columns) for line in lines]


def _row(row: Sequence[str], widths: Iterable[int], room: int | None) -> str:
    cells = [cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=False)]
    last = row[-1] if room is None else fit(row[-1], room)
    return "  ".join([*cells, last]).rstrip()
