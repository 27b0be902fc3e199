"""Changes of tasks and hand-offs inside the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from hocket.errors import Conflict
from hocket.model import Event
from hocket.model.task import QUEUED, Change, Handoff, Order, Task

_encoder = msgspec.json.Encoder()
task_decoder = msgspec.json.Decoder(Task)
handoff_decoder = msgspec.json.Decoder(Handoff)

_TASK = """INSERT INTO tasks (id, number, status, queued, archived, state, request_key) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, queued = excluded.queued, archived = excluded.archived,
        state = excluded.state"""
_LAST_NUMBER = """SELECT coalesce(max(number), 0) FROM
    (SELECT number FROM tasks UNION ALL SELECT number FROM removed_tasks) AS numbers"""
_REMOVED = (
    "DELETE FROM task_keys WHERE task = ?",
    "DELETE FROM handoffs WHERE task = ?",
    "DELETE FROM events WHERE run = ?",
    "DELETE FROM tasks WHERE id = ?",
)
_FORGOTTEN = ("DELETE FROM events WHERE run = ?", "DELETE FROM removed_tasks WHERE id = ?")
"""For an id that comes back: its removal is not part of the history of the new task."""
_OPENED = "INSERT INTO handoffs (id, task, number, run, depth, completed_at, state) VALUES (?, ?, ?, ?, ?, ?, ?)"
_CLOSED = "UPDATE handoffs SET completed_at = ?, state = ? WHERE id = ?"
OPEN = "SELECT state FROM handoffs WHERE task = ? AND completed_at IS NULL ORDER BY number"


_KEY = "INSERT INTO task_keys (task, key, seq) VALUES (?, ?, ?) ON CONFLICT (task, key) DO NOTHING"


def carry_out(connection: sqlite3.Connection, order: Order, now: float, key: str | None = None) -> Change:
    """Apply an order to its task and write the result. After an error the transaction has to be rolled back."""
    row = connection.execute("SELECT state FROM tasks WHERE id = ?", (order.task,)).fetchone()
    task = task_decoder.decode(row[0]) if row else None
    open_ = [handoff_decoder.decode(state) for (state,) in connection.execute(OPEN, (order.task,))]
    change = order.apply_to(task, open_, now)
    if change.is_removal:
        for statement in _REMOVED:
            connection.execute(statement, (order.task,))
        connection.execute("INSERT INTO removed_tasks (id, number) VALUES (?, ?)", (order.task, change.task.number))
        return change
    if not change.task.number:
        (last,) = connection.execute(_LAST_NUMBER).fetchone()
        change = change._replace(task=replace(change.task, number=last + 1))
    after = change.task
    if task is None and connection.execute("SELECT 1 FROM removed_tasks WHERE id = ?", (after.id,)).fetchone():
        for statement in _FORGOTTEN:
            connection.execute(statement, (after.id,))
    state = _encoder.encode(after).decode()
    row = (after.id, after.number, after.status, len(after.queue), int(after.archived), state, key)
    connection.execute(_TASK, row)
    _open(connection, change.opened)
    for record in (*change.closed, *change.updated):
        connection.execute(_CLOSED, (record.completed_at, _encoder.encode(record).decode(), record.id))
    return change


def record_task_key(connection: sqlite3.Connection, event: Event) -> None:
    """Make the change of a queue findable by the key it was made under, or by the id of the item it queued."""
    key = event.data.get("id") if event.data.get("event") == QUEUED else event.data.get("key")
    if isinstance(key, str):
        connection.execute(_KEY, (event.run, key, event.seq))


def is_open(connection: sqlite3.Connection, handoff: str) -> bool:
    sql = "SELECT 1 FROM handoffs WHERE id = ? AND completed_at IS NULL"
    return connection.execute(sql, (handoff,)).fetchone() is not None


def _open(connection: sqlite3.Connection, records: Iterable[Handoff]) -> None:
    for one in records:
        row = (one.id, one.task, one.number, one.run, one.depth, one.completed_at, _encoder.encode(one).decode())
        try:
            connection.execute(_OPENED, row)
        except sqlite3.IntegrityError as error:
            if one.completed_at is not None:
                raise Conflict(f"hand-off {one.id}, or its run, already exists") from error
            raise Conflict("another agent is at work on this task", "Wait for it, or stop it") from error
