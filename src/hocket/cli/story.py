"""Tasks as people read them: a list, a story, a history. Pure: from values in our own spelling to lines."""

from __future__ import annotations

from hocket.cli.format import WORDS, clock, duration, fit, harmless, moment, one_line, table
from hocket.client import ENDED

TYPE_CHECKING = False  # `typing` is not worth its time here; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Task = dict[str, Any]
    Record = dict[str, Any]

STATES = {
    "pending": "· pending",
    "active": "● active",
    "waiting": "○ waiting",
    "completed": "✓ completed",
    "failed": "✗ failed",
}
SHORT_LINES = 3
SHORT_WIDTH = 120
"""How much of a message is shown where nobody asked for all of it."""


def task_table(tasks: list[Task], now: float, columns: int | None) -> list[str]:
    """The lines of ``task list``."""
    rows = [["TASK", "STATE", "AGENT", "HAND-OFFS", "CHANGED", "WANTED"]]
    rows += [
        [
            str(one["number"]),
            STATES.get(one["status"]["type"], one["status"]["type"]),
            fit(one_line(one["current_agent"] or ""), 24),
            str(one["handoff_count"]),
            f"{duration(now - one['updated_at'] / 1000)} ago",
            fit(one_line(one["description"]), 200),
        ]
        for one in tasks
    ]
    return table(rows, columns)


# --- The story of one ---------------------------------------------------------------------------------------


def story(task: Task, prompts: dict[str, str], now: float, columns: int | None, verbose: bool) -> list[str]:
    """The lines of ``task show``: what is wanted, what it was planned to be, and who had it."""
    wide = columns if columns is not None else SHORT_WIDTH
    return [
        *table([[name, value] for name, value in _facts(task).items() if value]),
        *_section("wanted", _indented(task["description"], 2)),
        *_section("planned", _planned(task)),
        *_section("hand-offs", _handoffs(task["agent_chain"], prompts, now, wide, verbose)),
        *_section("queue", [f"  {line}" for line in queue_lines(task["queue"], columns and columns - 2)]),
        *_section("attachments", [f"  {one_line(one['name'])}  {size(one['size'])}" for one in task["attachments"]]),
    ]


def _facts(task: Task) -> dict[str, str]:
    status = task["status"]
    word = STATES.get(status["type"], status["type"])
    return {
        "task": f"{task['number']}  {task['id']}",
        "state": word + (f"  {one_line(status['message'])}" if status.get("message") else ""),
        "agent": one_line(task["current_agent"] or ""),
        "made": moment(task["created_at"] / 1000),
        "changed": moment(task["updated_at"] / 1000),
        "source": one_line(" ".join(str(value) for value in (task.get("source") or {}).values())),
        "session": task.get("session_id") or "",
        "cwd": one_line(task.get("cwd") or ""),
    }


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _indented(text: str, columns: int) -> list[str]:
    margin = " " * columns
    return [f"{margin}{line}".rstrip() for line in harmless(text).strip("\n").split("\n")]


def _planned(task: Task) -> list[str]:
    lines = _indented(task["summary"], 2) if task.get("summary") else []
    for name, title in (("requirements", "has to hold"), ("acceptance_criteria", "is done when"), ("plan", "how")):
        told = task.get(name)
        if told:
            lines += [f"  {title}", *_listed(told)]
    return lines


def _listed(told: str | list[str]) -> list[str]:
    if isinstance(told, str):
        return _indented(told, 4)
    return [line for one in told for line in _bullet(_indented(one, 6))]


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


def _handoffs(records: list[Record], prompts: dict[str, str], now: float, columns: int, verbose: bool) -> list[str]:
    lines: list[str] = []
    for number, (record, level) in enumerate(zip(records, levels(records), strict=True), 1):
        margin = 2 + 4 * level
        lines.append(fit(" " * margin + f"{number}  {_headline(record, now)}", max(columns, 40)))
        if record["id"] in prompts:
            lines += _said("asked: " + prompts[record["id"]], margin + 4, columns, True)
        if record["output"]:
            lines += _said(record["output"], margin + 4, columns, verbose)
    return lines


def _headline(record: Record, now: float) -> str:
    """``developer  ✓ done  05:40:01  0:12  run r01j…``."""
    begun, ended = record["started_at"] / 1000, record["completed_at"]
    state = WORDS.get(record["status"], str(record["status"]))
    is_over = record["status"] in ENDED
    reason = record.get("reason")
    why = f" ({reason})" if is_over and record["status"] != "done" and reason not in (None, record["status"]) else ""
    taken = duration((now if ended is None else ended / 1000) - begun)
    run = f"  run {record['run']}" if record.get("run") else ""
    return f"{one_line(record['agent_name'])}  {state}{why}  {moment(begun)}  {taken}{run}"


def _said(text: str, margin: int, columns: int, whole: bool) -> list[str]:
    lines = _indented(text, margin)
    if whole:
        return lines
    shown = [fit(line, max(columns, margin + 20)) for line in lines if line][:SHORT_LINES]
    cut = len([line for line in lines if line]) > SHORT_LINES or any(line.endswith("…") for line in shown)
    return [*shown, *([f"{' ' * margin}… (-v shows all of it)"] if cut else [])]


def size(count: int) -> str:
    """Bytes, as people read them."""
    return (
        f"{count} B" if count < 1024 else f"{count / 1024:.0f} kB" if count < 1024**2 else f"{count / 1024**2:.1f} MB"
    )


def queue_lines(items: list[dict[str, Any]], columns: int | None) -> list[str]:
    """What waits, the next first."""
    if not items:
        return []
    rows = [[one["id"], one_line(one["agent_name"] or "-"), fit(one_line(one["prompt"]), 200)] for one in items]
    return table(rows, columns)


# --- What happened ------------------------------------------------------------------------------------------


def history_lines(events: list[dict[str, Any]]) -> list[str]:
    """The lines of ``task history``; the day is told when it is another one."""
    lines: list[str] = []
    day = ""
    for event in events:
        ts = event["timestamp"] / 1000
        today = moment(ts).split(" ")[0]
        if today != day:
            lines.append(today)
            day = today
        lines.append(f"  {clock(ts)}  {fit(one_line(happened(event['event_type'], event['data'])), 400)}")
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
    "task_planned": "planned: {summary}",
    "status_changed": "{from} → {to}",
    "agent_handoff_started": "handed to {agent_name}",
    "agent_handoff_completed": "{agent_name} gave it back with {output_length} letters",
    "attachment_added": "attached: {name}, {size} bytes",
    "queued": "queued for {agent_name}: {id}",
    "unqueued": "taken out of the queue: {id}",
    "queue_refused": "could not be handed over: {id}",
}
