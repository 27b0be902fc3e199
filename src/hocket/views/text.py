"""Text for people: untrusted text made safe to display, and times."""

from __future__ import annotations

import re
import time

PROCESS_GONE = "process_gone"
"""Why a session ended that Hocket did not start: how its work ended is unknown, and nothing is lost."""
COMMAND = "    hocket "
"""How a line with a command to type begins."""

# String-type escape sequences end with BEL or ST, or run on to the end of the text.
_ESCAPES = (
    r"(?s)\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x9d.*?(?:\x07|\x9c|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?"
)
# Besides control characters (tab and newline are kept): bidirectional controls can make a line read as something else,
# and annotation marks can hide a part of it. Joiners stay, because scripts and emoji need them.
_CONTROLS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f\ufff9-\ufffb]"
# Pagers, editors and log readers treat these as line ends, so a text could forge lines with them.
_LINE_ENDS = "[\u2028\u2029]"
# Printable for Python but invisible or blank on a terminal: default-ignorable characters (fillers, variation
# selectors) and blank glyphs.
_INVISIBLE = (
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u2d7f\u3164\ufe00-\ufe0f\uffa0"
    "\U0001107f\U00013441\U00013442\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)


def strip_controls(text: str) -> str:
    """Remove everything a terminal would interpret; the only line ends left are newlines."""
    if text.replace("\n", "").isprintable():
        return text
    text = re.sub(_ESCAPES, "", text.replace("\r\n", "\n"))
    return re.sub(_CONTROLS, "", re.sub(_LINE_ENDS, " ", text))


def terminal_output(text: str) -> str:
    """Program output as a terminal would show it, without controls: of an overwritten line only the last state."""
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return strip_controls(text)


def escape_invisible(text: str) -> str:
    """Escape, rather than drop, invisible and control characters: for text that a person is asked to approve."""
    if text.isascii() and text.isprintable():
        return text
    text = re.sub(_INVISIBLE, lambda found: ascii(found[0])[1:-1], text)
    return "".join(one if one.isprintable() or one == "\t" else ascii(one)[1:-1] for one in text)


def one_line(text: str) -> str:
    """Strip controls and collapse white space into single spaces."""
    return " ".join(strip_controls(text).split())


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


def size_text(count: int) -> str:
    """``512 B``, ``20 kB``, ``1.5 MB``, ``2.0 GB``."""
    if count < 1024**2:
        return f"{count} B" if count < 1024 else f"{count / 1024:.0f} kB"
    return f"{count / 1024**2:.1f} MB" if count < 1024**3 else f"{count / 1024**3:.1f} GB"


def age(seconds: float) -> str:
    """``12s``, ``3m``, ``2h``, ``4d``: how long ago something was, in its largest unit."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def time_of_day(ts: float) -> str:
    """``14:30:05``, in local time."""
    return time.strftime("%H:%M:%S", time.localtime(ts))


def date_and_time(ts: float | None) -> str:
    """``2026-03-01 14:30:05``, in local time."""
    return "-" if ts is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts))


def upcoming_time(ts: float, now: float) -> str:
    """The time of day of a future event, with its date unless it is today, with seconds if it is near."""
    then, today = time.localtime(ts), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M:%S" if 0 < ts - now < 120 else "%H:%M", then)
    return time.strftime("%a %H:%M" if 0 < ts - now < 6 * 86400 else "%Y-%m-%d %H:%M", then)
