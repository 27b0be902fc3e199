"""The board of tasks: a column for each state side by side, or one below the other where the terminal is narrow.

Pure: from values in our own spelling to lines. Which tasks are on it is decided here as well; fetching them is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cli.format import NEEDS_YOU, display_width, paint, truncate
from hocket.cli.story import STATES
from hocket.views.text import duration, one_line

Task = dict[str, Any]
Card = list[tuple[str, str]]
"""Lines of one task, each with its style."""

RECENT = 24 * 3600.0
"""Seconds for which what is finished stays on the board by itself."""
MOST_CARDS = 20
"""So many of one column are shown where nobody asked for all."""
WIDE = 100
"""From here on columns are readable side by side."""
PIPE_TEXT = 200
"""How much of a line is shown where no terminal limits it."""
GAP = 3
ASKED = "asked"
OVER = ("completed", "failed")
COLUMNS = {
    "pending": ("PENDING", ("pending",)),
    ASKED: ("NEEDS YOU", (ASKED,)),
    "active": ("ACTIVE", ("active",)),
    "waiting": ("WAITING", ("waiting",)),
    "over": ("DONE · FAILED", OVER),
}
_BOLD, _DIM = "1", "2"
_ENDS = {"completed": "✓ done", "failed": STATES["failed"]}
_STYLES = {ASKED: "33", "active": "34", "completed": "32", "failed": "31"}


def on_board(tasks: Sequence[Task], asked: Mapping[str, float], now: float, everything: bool) -> dict[str, list[Task]]:
    """The tasks of each column, those first that changed last. ``asked``: since when each task's agent needs somebody.

    With ``everything`` also what was finished long ago.
    """
    shown = [one for one in tasks if everything or _state(one, {}) not in OVER or _age(one, now) <= RECENT]
    return {
        name: sorted((one for one in shown if _state(one, asked) in states), key=lambda one: -one["updated_at"])
        for name, (_, states) in COLUMNS.items()
    }


def _state(task: Task, asked: Mapping[str, float]) -> str:
    kind = str(task["status"]["type"])
    return ASKED if task["id"] in asked and kind not in OVER else kind


def _age(task: Task, now: float) -> float:
    return now - float(task["updated_at"]) / 1000


def board(
    columns: Mapping[str, list[Task]], asked: Mapping[str, float], now: float, wide: int | None, everything: bool
) -> list[list[tuple[str, str]]]:
    """The lines, each as pieces with their styles."""
    # Nobody who needs you is no column: that is hoped to be the usual state.
    named = [name for name in COLUMNS if columns[name] or name != ASKED]
    if wide is None or wide < WIDE:
        return _stacked({name: columns[name] for name in named}, asked, now, wide or PIPE_TEXT, everything)
    room = (wide - GAP * (len(named) - 1)) // len(named)
    pillars = [_pillar(name, columns[name], asked, now, room, everything) for name in named]
    return [
        [piece for place, pillar in enumerate(pillars) for piece in _cell(pillar, row, room, place == len(pillars) - 1)]
        for row in range(max(map(len, pillars)))
    ]


def _cell(pillar: Card, row: int, room: int, is_last: bool) -> Card:
    text, style = pillar[row] if row < len(pillar) else ("", "")
    return [(text, style), ("" if is_last else " " * (room + GAP - display_width(text)), "")]


def _stacked(
    columns: Mapping[str, list[Task]], asked: Mapping[str, float], now: float, wide: int, everything: bool
) -> list[Card]:
    """One below the other; a column with nothing in it is not worth its lines."""
    lines: list[Card] = []
    for name, tasks in columns.items():
        if tasks:
            lines += [[]] if lines else []
            lines += [[line] for line in _pillar(name, tasks, asked, now, wide, everything)]
    return lines


def _pillar(
    name: str, tasks: Sequence[Task], asked: Mapping[str, float], now: float, room: int, everything: bool
) -> Card:
    """A column from top to bottom."""
    title = COLUMNS[name][0]
    lines = [(truncate(f"{title} {len(tasks)}", room), _BOLD)]
    most = len(tasks) if everything else MOST_CARDS
    for task in tasks[:most]:
        lines += [*([("", "")] if len(lines) > 1 else []), *card(task, asked, now, room)]
    if len(tasks) > most:
        lines += [("", ""), (truncate(f"… {len(tasks) - most} more: --all", room), _DIM)]
    return lines


def card(task: Task, asked: Mapping[str, float], now: float, room: int) -> Card:
    """One task: which and what, who has it for how long, how often it was handed over, what waits for it."""
    state = _state(task, asked)
    name = str(task["number"])
    inner = max(1, room - len(name) - 2)
    margin = " " * (len(name) + 2)
    title = f"{name}  {truncate(one_line(task['description']), inner)}"
    who, style = _who(task, state, asked, now, inner)
    lines = [(title, ""), (margin + who, style), *((margin + line, _DIM) for line in _counts(task, inner))]
    return [(truncate(line, room), style) for line, style in lines]


def _who(task: Task, state: str, asked: Mapping[str, float], now: float, room: int) -> tuple[str, str]:
    """``● developer 0:34``: the name gives way before the time does."""
    if state in OVER:
        told = f"{_ENDS[state]} {duration(_age(task, now))}"
        return told + (" ago" if display_width(told) + 4 <= room else ""), _STYLES[state]
    agent = one_line(task["current_agent"] or "")
    if not agent:
        return f"{STATES[state][0]} no agent", _DIM
    since = asked[task["id"]] if state == ASKED else (task.get("current_since") or task["updated_at"]) / 1000
    taken = duration(now - since)
    glyph = NEEDS_YOU[0] if state == ASKED else STATES["active"][0]
    return f"{glyph} {truncate(agent, max(4, room - len(taken) - 3))} {taken}", _STYLES[
        ASKED if state == ASKED else "active"
    ]


def _counts(task: Task, room: int) -> list[str]:
    """On one line, if there is room for both."""
    handed, queued = task["handoff_count"], task.get("queued") or 0
    told = [f"{handed} hand-off{'' if handed == 1 else 's'}", *([f"{queued} queued"] if queued else [])]
    together = " · ".join(told)
    return [together] if display_width(together) <= room else told


def spelled(lines: Sequence[Card], colour: bool) -> list[str]:
    """The lines as text."""
    return ["".join(paint(text, style, colour) for text, style in line).rstrip() for line in lines]
