"""Tasks as people read them: a list, a story, a history. Pure: from values in our own spelling to lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hocket.cli.format import STATUS_LABELS, display_width, format_table, truncate, wrap
from hocket.client import ENDED
from hocket.views.text import date_and_time, duration, one_line, terminal_output, time_of_day

Task = dict[str, Any]
Record = dict[str, Any]

STATES = {
    "pending": "· pending",
    "active": "● active",
    "waiting": "○ waiting",
    "completed": "✓ completed",
    "failed": "✗ failed",
}
ROOM = 20
"""The narrowest column of somebody's words that is worth having."""
DEEPEST = 40
"""So far to the right hand-offs inside of others go, and no further."""
SHORT_LINES = 3
SHORT_WIDTH = 120
"""How much of a message is shown where nobody asked for all of it."""


def task_table(tasks: list[Task], now: float, columns: int | None) -> list[str]:
    """The lines of ``task list``. Where there is little room, columns go until there is some for what is wanted."""
    rows = [["TASK", "STATE", "AGENT", "CHANGED", "HAND-OFFS", "WANTED"]]
    rows += [
        [
            str(one["number"]),
            STATES.get(one["status"]["type"], one["status"]["type"]),
            truncate(one_line(one["current_agent"] or ""), 24),
            f"{duration(now - one['updated_at'] / 1000)} ago",
            str(one["handoff_count"]),
            truncate(one_line(one["description"]), 200),
        ]
        for one in tasks
    ]
    while columns is not None and len(rows[0]) > 3 and _room_left(rows, columns) < ROOM:
        rows = [[*row[:-2], row[-1]] for row in rows]
    return format_table(rows, columns)


def _room_left(rows: list[list[str]], columns: int) -> int:
    """What the last column has, beside the others."""
    return columns - sum(2 + max(display_width(cell) for cell in cells) for cells in list(zip(*rows, strict=True))[:-1])


# --- The story of one ---------------------------------------------------------------------------------------


def story(task: Task, prompts: dict[str, str], now: float, columns: int | None, verbose: bool) -> list[str]:
    """The lines of ``task show``: what is wanted, what it was planned to be, and who had it."""
    return [
        *_facts(task, columns),
        *_section("wanted", _indented(task["description"], 2, columns)),
        *_section("planned", _planned(task, columns)),
        *_section("hand-offs", _handoffs(task["agent_chain"], prompts, now, columns, verbose)),
        *_section("queue", [f"  {line}" for line in queue_lines(task["queue"], columns and columns - 2)]),
        *_section("attachments", [line for one in task["attachments"] for line in _attachment(one, columns)]),
    ]


def _facts(task: Task, columns: int | None) -> list[str]:
    status = task["status"]
    word = STATES.get(status["type"], status["type"])
    told = {
        "task": f"{task['number']}  {task['id']}",
        "state": word + (f"  {one_line(status['message'])}" if status.get("message") else ""),
        "agent": one_line(task["current_agent"] or ""),
        "made": date_and_time(task["created_at"] / 1000),
        "changed": date_and_time(task["updated_at"] / 1000),
        "source": one_line(" ".join(str(value) for value in (task.get("source") or {}).values())),
        "session": one_line(task.get("session_id") or ""),
        "cwd": one_line(task.get("cwd") or ""),
    }
    margin = max(len(name) for name, value in told.items() if value) + 2
    return [line for name, value in told.items() if value for line in _behind(name, margin, value, columns)]


def _behind(head: str, margin: int, text: str, columns: int | None) -> list[str]:
    """A text behind its head, and if need be below itself."""
    first, *more = set_in(text, margin, columns)
    return [head + first[len(head) :], *more]


def _attachment(one: dict[str, Any], columns: int | None) -> list[str]:
    return _parted([one_line(one["name"]), size(one["size"])], 2, 4, columns)


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _indented(text: str, margin: int, columns: int | None) -> list[str]:
    lines = terminal_output(text).strip("\n").split("\n")
    return [piece for line in lines for piece in set_in(line, margin, columns)]


def set_in(line: str, margin: int, columns: int | None) -> list[str]:
    """A line so far to the right, in as many lines as that takes: what it is set in by itself holds for all of them."""
    if columns is None:
        return [f"{' ' * margin}{line}".rstrip()]
    line = line.expandtabs()
    bare = line.lstrip(" ")
    left = " " * (margin + min(len(line) - len(bare), max(0, columns // 2 - margin)))
    return [f"{left}{piece}".rstrip() for piece in wrap(bare, max(1, columns - len(left)))]


def _parted(parts: list[str], margin: int, hanging: int, columns: int | None) -> list[str]:
    """Parts in a row; those for which there is no room stand below, each whole as long as it can be."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}  {part}" if lines else f"{' ' * margin}{part}"
        if not lines or columns is None or display_width(joined) <= columns:
            lines[-1:] = [joined]
        else:
            lines.append(f"{' ' * hanging}{part}")
    return lines if columns is None else [truncate(line, columns) for line in lines]


def _planned(task: Task, columns: int | None) -> list[str]:
    lines = _indented(task["summary"], 2, columns) if task.get("summary") else []
    for name, title in (("requirements", "has to hold"), ("acceptance_criteria", "is done when"), ("plan", "how")):
        told = task.get(name)
        if told:
            lines += [f"  {title}", *_listed(told, columns)]
    return lines


def _listed(told: str | list[str], columns: int | None) -> list[str]:
    if isinstance(told, str):
        return _indented(told, 4, columns)
    return [line for one in told for line in _bullet(_indented(one, 6, columns))]


def _bullet(lines: list[str]) -> list[str]:
    return [f"    - {lines[0].strip()}", *lines[1:]]


def levels(records: Iterable[Record]) -> list[int]:
    """How deep each hand-off is nested: one that begins while another is open was made by that one's agent."""
    open_: list[Record] = []
    found = []
    for record in records:
        while open_ and (ended := open_[-1]["completed_at"]) is not None and ended <= record["started_at"]:
            open_.pop()
        found.append(len(open_))
        open_.append(record)
    return found


def _handoffs(
    records: list[Record], prompts: dict[str, str], now: float, columns: int | None, verbose: bool
) -> list[str]:
    lines: list[str] = []
    deepest = DEEPEST if columns is None else columns // 3
    for number, (record, level) in enumerate(zip(records, levels(records), strict=True), 1):
        margin = min(2 + 4 * level, deepest)
        first, *more = _headline(record, now)
        lines += _parted([f"{number}  {first}", *more], margin, margin + 4, columns)
        if record["id"] in prompts:
            lines += _said("asked: " + prompts[record["id"]], margin + 4, columns, True)
        if record["output"]:
            lines += _said(record["output"], margin + 4, columns, verbose)
    return lines


def _headline(record: Record, now: float) -> list[str]:
    """``developer``, ``✓ done``, ``2026-01-01 05:40:01``, ``0:12``, ``run r01j…``."""
    begun, ended = record["started_at"] / 1000, record["completed_at"]
    state = STATUS_LABELS.get(record["status"], str(record["status"]))
    is_over = record["status"] in ENDED
    reason = record.get("reason")
    why = f" ({reason})" if is_over and record["status"] != "done" and reason not in (None, record["status"]) else ""
    taken = duration((now if ended is None else ended / 1000) - begun)
    away = " (elsewhere)" if record.get("elsewhere") else ""
    run = [f"run {record['run']}{away}"] if record.get("run") else []
    return [one_line(record["agent_name"]), f"{state}{why}", date_and_time(begun), taken, *run]


def _said(text: str, margin: int, columns: int | None, whole: bool) -> list[str]:
    if whole:
        return _indented(text, margin, columns)
    lines = [line.expandtabs() for line in _indented(text, margin, None) if line]
    shown = [truncate(line, SHORT_WIDTH if columns is None else columns) for line in lines[:SHORT_LINES]]
    cut = len(lines) > SHORT_LINES or shown != lines
    more = truncate(f"{' ' * margin}… (-v shows all of it)", columns or SHORT_WIDTH)
    return [*shown, more] if cut else shown


def size(count: int) -> str:
    """Bytes, as people read them."""
    return (
        f"{count} B" if count < 1024 else f"{count / 1024:.0f} kB" if count < 1024**2 else f"{count / 1024**2:.1f} MB"
    )


def queue_lines(items: list[dict[str, Any]], columns: int | None) -> list[str]:
    """What waits, the next first."""
    if not items:
        return []
    rows = [[one["id"], one_line(one["agent_name"] or "-"), truncate(one_line(one["prompt"]), 200)] for one in items]
    if columns is None or _room_left(rows, columns) >= ROOM:
        return format_table(rows, columns)
    below = [(_parted(row[:-1], 0, 2, columns), truncate(f"  {row[-1]}", columns)) for row in rows]
    return [line for head, prompt in below for line in (*head, prompt)]


# --- What happened ------------------------------------------------------------------------------------------


def history_lines(events: list[dict[str, Any]], columns: int | None = None) -> list[str]:
    """The lines of ``task history``; the day is told when it is another one."""
    lines: list[str] = []
    day = ""
    for event in events:
        ts = event["timestamp"] / 1000
        today = date_and_time(ts).split(" ")[0]
        if today != day:
            lines.append(today)
            day = today
        told = truncate(one_line(happened(event["event_type"], event["data"])), 400)
        lines += _behind(f"  {time_of_day(ts)}", 12, told, columns)
    return lines


def happened(kind: str, data: dict[str, Any]) -> str:
    """One event in words; of a kind that is not known, what it says of itself."""
    about = {name: value for name, value in data.items() if value is not None}
    words = _WORDS.get(kind)
    if words is not None:
        try:
            return words.format_map(about) + (f": {about['message']}" if "message" in about else "")
        except KeyError:
            pass  # told by another version, in another way
    return " ".join([kind.replace("_", " "), *(f"{name}={value}" for name, value in about.items())])


_WORDS = {
    "task_created": "wanted: {description}",
    "task_imported": "brought here with {handoffs} hand-offs, of which {runs_elsewhere} have their runs elsewhere",
    "task_planned": "planned: {summary}",
    "status_changed": "{from} → {to}",
    "agent_handoff_started": "handed to {agent_name}",
    "agent_handoff_completed": "{agent_name} gave it back with {output_length} letters",
    "attachment_added": "attached: {name}, {size} bytes",
    "queued": "queued for {agent_name}: {id}",
    "unqueued": "taken out of the queue: {id}",
    "queue_refused": "could not be handed over: {id}",
}
