"""Tasks as lines of text: the list, one task, its history, and the board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.cli.format import NEEDS_YOU, STATUS_LABELS, display_width, format_table, paint, truncate, wrap
from hocket.cli.question_prompt import fold, question_text, reply_commands
from hocket.client import ENDED
from hocket.views.names import agent_name
from hocket.views.text import age, date_and_time, duration, one_line, size_text, terminal_output, time_of_day

Task = dict[str, Any]
Record = dict[str, Any]
Card = list[tuple[str, str]]
"""Lines of one task, each with its style."""


class Asked(NamedTuple):
    """The oldest open question of a task."""

    at: float
    question: dict[str, Any]
    reply: str
    """The command that answers it."""


def asked_by_task(questions: list[dict[str, Any]], now: float) -> dict[str, Asked]:
    """The oldest open question of each task, out of the inbox."""
    asked: dict[str, Asked] = {}
    for one, reply in zip(questions, reply_commands(questions), strict=True):
        if one.get("task"):
            asked.setdefault(one["task"], Asked(one.get("asked_at") or now, one, reply))
    return asked


STATES = {
    "pending": "· pending",
    "active": "● active",
    "waiting": "○ waiting",
    "completed": "✓ completed",
    "failed": "✗ failed",
}
ASKED = "needs_you"
NOTHING_ASKED: Mapping[str, Asked] = {}
ROOM = 20
"""The narrowest useful column of text."""
DEEPEST = 40
"""The largest indentation of nested hand-offs."""
SHORT_LINES = 3
SHORT_WIDTH = 120
"""How much of a message is shown without ``--verbose``."""


def task_table(
    tasks: list[Task], now: float, columns: int | None, asked: Mapping[str, Asked] = NOTHING_ASKED
) -> list[str]:
    """The lines of ``task list``; on a narrow terminal columns are dropped in favour of the description."""
    rows = [["TASK", "STATE", "AGENT", "CHANGED", "HAND-OFFS", "DESCRIPTION"]]
    rows += [
        [
            str(one["number"]),
            _state_label(board_state(one, asked)),
            truncate(agent_name(one["current_agent"] or ""), 24),
            f"{age(now - one['updated_at'] / 1000)} ago",
            str(one["handoff_count"]),
            truncate(one_line(one["description"]), 200),
        ]
        for one in tasks
    ]
    while columns is not None and len(rows[0]) > 3 and _room_left(rows, columns) < ROOM:
        rows = [[*row[:-2], row[-1]] for row in rows]
    return format_table(rows, columns)


def _state_label(state: str) -> str:
    return NEEDS_YOU if state == ASKED else STATES.get(state, state)


def _room_left(rows: list[list[str]], columns: int) -> int:
    """The width left for the last column."""
    return columns - sum(2 + max(display_width(cell) for cell in cells) for cells in list(zip(*rows, strict=True))[:-1])


# --- One task -----------------------------------------------------------------------------------------------


def task_lines(
    task: Task, prompts: dict[str, str], now: float, columns: int | None, verbose: bool, asked: Asked | None = None
) -> list[str]:
    """The lines of ``task show``."""
    asked = None if task["status"]["type"] in FINISHED else asked
    asking = None if asked is None else asked.question["run"]
    attachments = [
        line
        for one in task["attachments"]
        for line in _join_parts([one_line(one["name"]), size_text(one["size"])], 2, 4, columns)
    ]
    return [
        *_facts(task, columns, needs_you=asked is not None),
        *([] if asked is None else _section("question", _question(asked, columns))),
        *_section("description", _indented(task["description"], 2, columns)),
        *_section("plan", _planned(task, columns)),
        *_section("hand-offs", _handoffs(task["agent_chain"], prompts, now, columns, verbose, asking)),
        *_section("queue", [f"  {line}" for line in queue_lines(task["queue"], columns and columns - 2)]),
        *_section("attachments", attachments),
    ]


def _question(asked: Asked, columns: int | None) -> list[str]:
    text = f"{agent_name(str(asked.question.get('agent') or '?'))} {question_text(asked.question, None)}"
    rows = text.split("\n") if columns is None else fold(text, max(1, columns - 2))
    return [*(f"  {row}" for row in rows), f"      {asked.reply}"]


def _facts(task: Task, columns: int | None, *, needs_you: bool) -> list[str]:
    status = task["status"]
    word = _state_label(ASKED if needs_you else status["type"])
    facts = {
        "task": f"{task['number']}  {task['id']}",
        "state": word + (f"  {one_line(status['message'])}" if status.get("message") else ""),
        "agent": agent_name(task["current_agent"] or ""),
        "created": date_and_time(task["created_at"] / 1000),
        "changed": date_and_time(task["updated_at"] / 1000),
        "archived": "yes" if task.get("archived") else "",
        "source": one_line(" ".join(str(value) for value in (task.get("source") or {}).values())),
        "session": one_line(task.get("session_id") or ""),
        "cwd": one_line(task.get("cwd") or ""),
    }
    margin = max(len(name) for name, value in facts.items() if value) + 2
    return [line for name, value in facts.items() if value for line in _after_head(name, margin, value, columns)]


def _after_head(head: str, margin: int, text: str, columns: int | None) -> list[str]:
    """A text behind its head, wrapped below itself."""
    first, *more = indent(text, margin, columns)
    return [head + first[len(head) :], *more]


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _indented(text: str, margin: int, columns: int | None) -> list[str]:
    lines = terminal_output(text).strip("\n").split("\n")
    return [piece for line in lines for piece in indent(line, margin, columns)]


def indent(line: str, margin: int, columns: int | None) -> list[str]:
    """A line indented by ``margin`` and wrapped; its own indentation applies to every row."""
    if columns is None:
        return [f"{' ' * margin}{line}".rstrip()]
    line = line.expandtabs()
    bare = line.lstrip(" ")
    left = " " * (margin + min(len(line) - len(bare), max(0, columns // 2 - margin)))
    return [f"{left}{piece}".rstrip() for piece in wrap(bare, max(1, columns - len(left)))]


def _join_parts(parts: list[str], margin: int, hanging: int, columns: int | None) -> list[str]:
    """Parts in a row; those that do not fit go below."""
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
    for name, title in (
        ("requirements", "requirements"),
        ("acceptance_criteria", "acceptance criteria"),
        ("plan", "steps"),
    ):
        value = task.get(name)
        if value:
            lines += _indented(title, 2, columns)
        if isinstance(value, str):
            lines += _indented(value, 4, columns) if value else []
            continue
        for one in value or ():
            first, *more = _indented(one, 6, columns)
            lines += [f"    - {first.strip()}", *more]
    return lines


def levels(records: Iterable[Record]) -> list[int]:
    """The nesting of each hand-off: one that begins while another is open was made by its agent."""
    open_: list[Record] = []
    found = []
    for record in records:
        while open_ and (ended := open_[-1]["completed_at"]) is not None and ended <= record["started_at"]:
            open_.pop()
        found.append(len(open_))
        open_.append(record)
    return found


def _handoffs(
    records: list[Record], prompts: dict[str, str], now: float, columns: int | None, verbose: bool, asking: str | None
) -> list[str]:
    lines: list[str] = []
    deepest = DEEPEST if columns is None else columns // 3
    for number, (record, level) in enumerate(zip(records, levels(records), strict=True), 1):
        margin = min(2 + 4 * level, deepest)
        first, *more = _headline(record, now, asking)
        lines += _join_parts([f"{number}  {first}", *more], margin, margin + 4, columns)
        if record["id"] in prompts:
            lines += _message("prompt: " + prompts[record["id"]], margin + 4, columns, True)
        if record["output"]:
            lines += _message(record["output"], margin + 4, columns, verbose)
    return lines


def _headline(record: Record, now: float, asking: str | None) -> list[str]:
    """``developer``, ``✓ done``, ``2026-01-01 05:40:01``, ``0:12``, ``run r01j…``."""
    begun, ended = record["started_at"] / 1000, record["completed_at"]
    state = STATUS_LABELS.get(record["status"], str(record["status"]))
    if asking is not None and record.get("run") == asking:
        state = NEEDS_YOU
    is_over = record["status"] in ENDED
    reason = record.get("reason")
    why = f" ({reason})" if is_over and record["status"] != "done" and reason not in (None, record["status"]) else ""
    taken = duration((now if ended is None else ended / 1000) - begun)
    away = " (imported)" if record.get("elsewhere") else ""
    run = [f"run {record['run']}{away}"] if record.get("run") else []
    return [agent_name(record["agent_name"]), f"{state}{why}", date_and_time(begun), taken, *run]


def _message(text: str, margin: int, columns: int | None, whole: bool) -> list[str]:
    if whole:
        return _indented(text, margin, columns)
    lines = [line.expandtabs() for line in _indented(text, margin, None) if line]
    shown = [truncate(line, SHORT_WIDTH if columns is None else columns) for line in lines[:SHORT_LINES]]
    cut = len(lines) > SHORT_LINES or shown != lines
    more = truncate(f"{' ' * margin}… (complete with -v)", columns or SHORT_WIDTH)
    return [*shown, more] if cut else shown


def queue_lines(items: list[dict[str, Any]], columns: int | None) -> list[str]:
    """The queue, the next entry first."""
    if not items:
        return []
    rows = [[one["id"], agent_name(one["agent_name"] or "-"), truncate(one_line(one["prompt"]), 200)] for one in items]
    if columns is None or _room_left(rows, columns) >= ROOM:
        return format_table(rows, columns)
    below = [(_join_parts(row[:-1], 0, 2, columns), truncate(f"  {row[-1]}", columns)) for row in rows]
    return [line for head, prompt in below for line in (*head, prompt)]


# --- The history --------------------------------------------------------------------------------------------


def history_lines(events: list[dict[str, Any]], columns: int | None = None) -> list[str]:
    """The lines of ``task history``, with a line for each new day."""
    lines: list[str] = []
    day = ""
    for event in events:
        ts = event["timestamp"] / 1000
        today = date_and_time(ts).split(" ")[0]
        if today != day:
            lines.append(today)
            day = today
        text = truncate(one_line(history_text(event["event_type"], event["data"])), 400)
        lines += _after_head(f"  {time_of_day(ts)}", 12, text, columns)
    return lines


def history_text(kind: str, data: dict[str, Any]) -> str:
    """One event as text; of an unknown kind its name and fields."""
    about = {name: value for name, value in data.items() if value is not None}
    text = _HISTORY_TEXTS.get(kind)
    if text is not None:
        try:
            return text.format_map(about) + (f": {about['message']}" if "message" in about else "")
        except KeyError:
            pass  # an event of another version
    return " ".join([kind.replace("_", " "), *(f"{name}={value}" for name, value in about.items())])


_HISTORY_TEXTS = {
    "task_created": "created: {description}",
    "task_imported": "imported with {handoffs} hand-offs, {runs_elsewhere} of them without their runs",
    "task_planned": "planned: {summary}",
    "status_changed": "{from} → {to}",
    "agent_handoff_started": "handed to {agent_name}",
    "agent_handoff_completed": "{agent_name} finished ({output_length} characters)",
    "attachment_added": "attached: {name} ({size} bytes)",
    "queued": "queued for {agent_name}: {id}",
    "unqueued": "removed from the queue: {id}",
    "queue_refused": "hand-off from the queue refused: {id}",
    "task_archived": "archived",
    "task_unarchived": "brought back from the archive",
}


# --- The board ----------------------------------------------------------------------------------------------

RECENT_SECONDS = 24 * 3600.0
"""For this long a finished task stays on the board."""
FINISHED = ("completed", "failed")
COLUMNS: dict[str, tuple[str, ...]] = {
    "pending": ("pending",),
    ASKED: (ASKED,),
    "active": ("active",),
    "waiting": ("waiting",),
    "finished": FINISHED,
}
"""The columns in order, and the states of the tasks in each."""
MAX_CARDS = 20
"""Cards per column, unless everything is shown."""
WIDE = 100
"""From this width on columns are side by side."""
PIPE_CHARACTERS = 200
"""The width of a line where no terminal limits it."""
GAP = 3
TITLES = {
    "pending": "PENDING",
    ASKED: "NEEDS YOU",
    "active": "ACTIVE",
    "waiting": "WAITING",
    "finished": "DONE · FAILED",
}
_BOLD, _DIM = "1", "2"
_END_LABELS = {"completed": "✓ done", "failed": STATES["failed"]}
_STYLES = {ASKED: "33", "active": "34", "completed": "32", "failed": "31"}


def board_columns(
    tasks: Sequence[Task], asked: Mapping[str, Asked], now: float, everything: bool
) -> dict[str, list[Task]]:
    """The tasks of each column, the last changed first.

    ``asked`` has the oldest open question by task. Tasks that finished long ago are left out unless
    ``everything`` is asked for.
    """
    shown = [
        task
        for task in tasks
        if everything or task["status"]["type"] not in FINISHED or seconds_since_change(task, now) <= RECENT_SECONDS
    ]
    return {
        name: sorted(
            (task for task in shown if board_state(task, asked) in states), key=lambda task: -task["updated_at"]
        )
        for name, states in COLUMNS.items()
    }


def board_state(task: Task, asked: Mapping[str, Asked]) -> str:
    """The status of a task, or ``needs_you`` if its agent waits for an answer."""
    status = str(task["status"]["type"])
    return ASKED if task["id"] in asked and status not in FINISHED else status


def seconds_since_change(task: Task, now: float) -> float:
    return now - float(task["updated_at"]) / 1000


def board_lines(
    columns: Mapping[str, list[Task]],
    asked: Mapping[str, Asked],
    now: float,
    width: int | None,
    everything: bool,
    colour: bool,
) -> list[str]:
    """The lines of ``task board``: columns side by side, or one below the other on a narrow terminal."""
    # The column of open questions is left out while it is empty.
    named = [name for name in COLUMNS if columns[name] or name != ASKED]
    lines: list[Card] = []
    if width is None or width < WIDE:
        for name in named:
            card_lines = _column(name, columns[name], asked, now, width or PIPE_CHARACTERS, everything)
            if columns[name]:
                lines += [*([[]] if lines else []), *([line] for line in card_lines)]
    else:
        room = (width - GAP * (len(named) - 1)) // len(named)
        pillars = [_column(name, columns[name], asked, now, room, everything) for name in named]
        for row in range(max(map(len, pillars))):
            cells = [pillar[row] if row < len(pillar) else ("", "") for pillar in pillars]
            gaps = [" " * (room + GAP - display_width(text)) for text, _ in cells]
            lines.append([piece for cell, gap in zip(cells, gaps, strict=True) for piece in (cell, (gap, ""))])
    return ["".join(paint(text, style, colour) for text, style in line).rstrip() for line in lines]


def _column(
    name: str, tasks: Sequence[Task], asked: Mapping[str, Asked], now: float, room: int, everything: bool
) -> Card:
    lines = [(truncate(f"{TITLES[name]} {len(tasks)}", room), _BOLD)]
    limit = len(tasks) if everything else MAX_CARDS
    for task in tasks[:limit]:
        lines += [*([("", "")] if len(lines) > 1 else []), *card(task, asked, now, room)]
    if len(tasks) > limit:
        lines += [("", ""), (truncate(f"… {len(tasks) - limit} more: --all", room), _DIM)]
    return lines


def card(task: Task, asked: Mapping[str, Asked], now: float, room: int) -> Card:
    """One task: number and description, agent and time, hand-offs and queue."""
    state = board_state(task, asked)
    name = str(task["number"])
    inner = max(1, room - len(name) - 2)
    margin = " " * (len(name) + 2)
    title = f"{name}  {truncate(one_line(task['description']), inner)}"
    agent, style = _agent_line(task, state, asked, now, inner)
    handed, queued = task["handoff_count"], task.get("queued") or 0
    counts = [f"{handed} hand-off{'' if handed == 1 else 's'}", *([f"{queued} queued"] if queued else [])]
    joined = " · ".join(counts)
    counts = [joined] if display_width(joined) <= inner else counts
    reply = wrap(asked[task["id"]].reply, inner) if state == ASKED else []
    lines = [(title, ""), (margin + agent, style), *((margin + line, _BOLD) for line in reply)]
    lines += [(margin + line, _DIM) for line in counts]
    return [(truncate(line, room), style) for line, style in lines]


def _agent_line(task: Task, state: str, asked: Mapping[str, Asked], now: float, room: int) -> tuple[str, str]:
    """``● developer 0:34``; a long name is cut rather than the time."""
    if state in FINISHED:
        label = f"{_END_LABELS[state]} {age(seconds_since_change(task, now))}"
        label += " ago" if display_width(label) + 4 <= room else ""
        message = one_line(task["status"].get("message") or "") if state == "failed" else ""
        return f"{label}: {message}" if message else label, _STYLES[state]
    agent = agent_name(task["current_agent"] or "")
    if not agent:
        return f"{STATES[state][0]} no agent", _DIM
    since = asked[task["id"]].at if state == ASKED else (task.get("current_since") or task["updated_at"]) / 1000
    elapsed = duration(now - since)
    glyph = NEEDS_YOU[0] if state == ASKED else STATES["active"][0]
    style = _STYLES[ASKED if state == ASKED else "active"]
    return f"{glyph} {truncate(agent, max(4, room - len(elapsed) - 3))} {elapsed}", style
