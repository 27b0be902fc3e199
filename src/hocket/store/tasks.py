"""Queries for tasks and hand-offs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hocket.errors import AmbiguousRun
from hocket.model.task import Handoff, Task, TaskStatus, require_task
from hocket.store.runs import LATEST, RunQueries
from hocket.store.task_changes import OPEN, handoff_decoder, task_decoder

_any = msgspec.json.Decoder()


class TaskQueries(RunQueries):
    """Tasks by name, by state and by change; hand-offs by task and by run."""

    def _tasks(self, sql: str, parameters: Iterable[object]) -> list[Task]:
        return [task_decoder.decode(state) for (state,) in self._connection.execute(sql, tuple(parameters))]

    def _handoffs(self, sql: str, parameters: Iterable[object]) -> list[Handoff]:
        return [handoff_decoder.decode(state) for (state,) in self._connection.execute(sql, tuple(parameters))]

    def task(self, task_id: str) -> Task | None:
        found = self._tasks("SELECT state FROM tasks WHERE id = ?", (task_id,))
        return found[0] if found else None

    def find_task(self, ref: str) -> Task:
        """Return the task that an id, a unique prefix or a number names."""
        found: list[Task] = []
        if ref.isascii() and ref.isdigit() and len(ref) < 19:
            found = self._tasks("SELECT state FROM tasks WHERE number = ?", (int(ref),))
        if not found and ref.isascii() and ref.replace("-", "").replace("_", "").isalnum():
            # The id of an imported task may contain a dash and begin with a digit.
            found = self._tasks("SELECT state FROM tasks WHERE id >= ? AND id < ? LIMIT 2", (ref, ref + "~"))
            found = [task for task in found if task.id == ref] or found
        if len(found) > 1:
            raise AmbiguousRun(f"{ref!r} fits more than one task", "Give more of the id, or the number")
        return require_task(found[0] if found else None, ref)

    def task_by_request(self, key: str) -> Task | None:
        found = self._tasks("SELECT state FROM tasks WHERE request_key = ?", (key,))
        return found[0] if found else None

    def tasks(
        self, status: TaskStatus | None, before: int | None, limit: int, archived: bool | None = None
    ) -> list[Task]:
        """Return the newest tasks below the number ``before``, the newest first."""
        given = {"status = ?": status, "archived = ?": None if archived is None else int(archived)}
        given = {condition: value for condition, value in given.items() if value is not None}
        where = " AND ".join(["number < ?", *given])
        sql = f"SELECT state FROM tasks WHERE {where} ORDER BY number DESC LIMIT ?"
        return self._tasks(sql, (LATEST if before is None else before, *given.values(), limit))

    def removed_tasks(self) -> list[str]:
        """Return the ids of all tasks that were removed."""
        return [task for (task,) in self._connection.execute("SELECT id FROM removed_tasks").fetchall()]

    def removed_task(self, ref: str) -> tuple[str, int] | None:
        """Return the id and the number of a removed task, by either of them."""
        number = int(ref) if ref.isascii() and ref.isdigit() and len(ref) < 19 else None
        sql = "SELECT id, number FROM removed_tasks WHERE id = ? OR number = ?"
        found: tuple[str, int] | None = self._connection.execute(sql, (ref, number)).fetchone()
        return found

    def tasks_changed_since(self, seq: int) -> list[tuple[str, int]]:
        """Return the ids of the tasks that were changed after this event, each with its first such change, in order.

        After event 0 these are all tasks; one that has no event at all comes first, with 0.
        """
        sql = """SELECT tasks.id, min(events.seq) AS first FROM events JOIN tasks ON tasks.id = events.run
            WHERE events.type = 'task.changed' AND events.seq > ? GROUP BY tasks.id ORDER BY first"""
        changed: list[tuple[str, int]] = self._connection.execute(sql, (seq,)).fetchall()
        if seq:
            return changed
        known = {task for task, _ in changed}
        every = self._connection.execute("SELECT id FROM tasks ORDER BY number").fetchall()
        return [*((task, 0) for (task,) in every if task not in known), *changed]

    def queued_tasks(self) -> list[Task]:
        """Return the tasks whose queue is not empty."""
        return self._tasks("SELECT state FROM tasks WHERE queued > 0 ORDER BY number", ())

    def handoffs(self, task_id: str, after: int = 0, limit: int = LATEST) -> list[Handoff]:
        """Return the hand-offs of a task after a number, in order."""
        sql = "SELECT state FROM handoffs WHERE task = ? AND number > ? ORDER BY number LIMIT ?"
        return self._handoffs(sql, (task_id, after, limit))

    def open_handoffs(self, task_id: str) -> list[Handoff]:
        """Return the hand-offs that are not closed, the innermost last."""
        return self._handoffs(OPEN, (task_id,))

    def last_closed_handoff(self, task: Task) -> Handoff | None:
        """Return the hand-off that was closed last, which need not be the one that began last.

        Those that were imported with the task count as older than all others, regardless of their clock.
        """
        sql = """SELECT state FROM handoffs WHERE task = ? AND completed_at IS NOT NULL
            ORDER BY number > ? DESC, completed_at DESC, number LIMIT 1"""
        found = self._handoffs(sql, (task.id, task.brought_handoffs))
        return found[0] if found else None

    def handed_on_by(self, run_id: str, limit: int) -> list[Handoff]:
        """Return the last closed hand-offs that a run made, of any task, the newest first."""
        sql = """SELECT handoffs.state FROM runs JOIN handoffs ON handoffs.run = runs.id
            WHERE runs.parent = ? AND handoffs.completed_at IS NOT NULL ORDER BY runs.number DESC LIMIT ?"""
        return self._handoffs(sql, (run_id, limit))

    def task_change(self, task_id: str, key: str) -> dict[str, Any] | None:
        """Return the change of a task's queue that was made under this key, or that queued the item of this id."""
        sql = """SELECT events.data FROM task_keys JOIN events ON events.seq = task_keys.seq
            WHERE task_keys.task = ? AND task_keys.key = ?"""
        row = self._connection.execute(sql, (task_id, key)).fetchone()
        return _any.decode(row[0]) if row else None

    def handoff(self, handoff_id: str) -> Handoff | None:
        found = self._handoffs("SELECT state FROM handoffs WHERE id = ?", (handoff_id,))
        return found[0] if found else None
