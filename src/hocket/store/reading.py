"""Questions to the store, answered from a connection that cannot write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import msgspec

from hocket.errors import AmbiguousRun, NotFound
from hocket.model import Event, Kind, Run, Status
from hocket.model.task import Handoff, Task, TaskStatus, there
from hocket.store.tasks import OPEN, handoff_decoder, task_decoder
from hocket.store.writer import Offsets, wire

_run = msgspec.json.Decoder(Run)
_any = msgspec.json.Decoder()


class _Asked(msgspec.Struct):
    """Of a spec, or of a run's first event, the one thing that is often of interest."""

    prompt: str | None = None


_asked = msgspec.json.Decoder(_Asked)

_BELOW = """WITH RECURSIVE below(id) AS (
    SELECT id FROM runs WHERE id = ?
    UNION ALL SELECT runs.id FROM runs JOIN below ON runs.parent = below.id
)"""


LATEST = 2**62
"""Greater than every number that is ever given to anything."""
SEARCHED = 200_000
"""So many events, the newest, are looked through for something that no index knows of."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """An event as it is sent, with what a follower needs to know of it. Many are kept, and none refers to another."""

    seq: int
    run: str
    type: str
    text: bytes
    parent: str | None = None
    """Of a run that this event created."""


class Reading:
    """All reads; one connection, used from one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def _runs(self, sql: str, parameters: Iterable[object] = ()) -> list[Run]:
        return [_run.decode(state) for (state,) in self._connection.execute(sql, tuple(parameters))]

    def _each_run(self, sql: str, parameters: Iterable[object]) -> Iterator[Run]:
        """One after the other: results are long, and histories are too."""
        with closing(self._connection.execute(sql, tuple(parameters))) as rows:
            for (state,) in rows:
                yield _run.decode(state)

    def last_seq(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def last_number(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()[0])

    def run(self, run_id: str) -> Run | None:
        found = self._runs("SELECT state FROM runs WHERE id = ?", (run_id,))
        return found[0] if found else None

    def find(self, ref: str) -> Run:
        """The run that an id, a unique prefix or a number names."""
        if ref.isascii() and ref.isdigit() and len(ref) < 19:
            found = self._runs("SELECT state FROM runs WHERE number = ?", (int(ref),))
        elif ref.isascii() and ref.isalnum():
            found = self._runs("SELECT state FROM runs WHERE id >= ? AND id < ? LIMIT 2", (ref, ref + "~"))
            found = [run for run in found if run.id == ref] or found
        else:
            found = []
        if not found:
            raise NotFound(f"there is no run {ref!r}", "`hocket ps -a` lists them")
        if len(found) > 1:
            raise AmbiguousRun(f"{ref!r} fits more than one run", "Give more of the id, or the number")
        return found[0]

    def by_request(self, key: str) -> Run | None:
        found = self._runs("SELECT state FROM runs WHERE request_key = ?", (key,))
        return found[0] if found else None

    def live(self) -> list[Run]:
        return self._runs("SELECT state FROM runs WHERE ended_at IS NULL ORDER BY number")

    def recent(
        self, limit: int, before: int = LATEST, status: Status | None = None, since: float | None = None
    ) -> list[Run]:
        """The newest before a number, with this status and created since then, oldest first."""
        sql = """SELECT state FROM runs WHERE number < ? AND (? IS NULL OR status = ?) AND created_at >= ?
            ORDER BY number DESC LIMIT ?"""
        return self._runs(sql, (before, status, status, since or 0.0, limit))[::-1]

    def children(self, run_id: str) -> list[Run]:
        return self._runs("SELECT state FROM runs WHERE parent = ? ORDER BY number", (run_id,))

    def each_child(self, run_id: str) -> Iterator[Run]:
        """The same, one at a time. To be read to its end at once, like all that come one at a time."""
        return self._each_run("SELECT state FROM runs WHERE parent = ? ORDER BY number", (run_id,))

    def below(self, run_id: str) -> list[Run]:
        """The run and everything under it, oldest first."""
        return list(self.each_below(run_id))

    def each_below(self, run_id: str) -> Iterator[Run]:
        """The same, one at a time."""
        return self._each_run(
            _BELOW + "SELECT state FROM runs WHERE id IN (SELECT id FROM below) ORDER BY number", (run_id,)
        )

    def last_resuming(self, run: Run) -> Run | None:
        """The chain that was started last to go on with this one."""
        sql = """SELECT state FROM runs WHERE number > ? AND parent IS NULL AND state LIKE ?
            ORDER BY number DESC"""
        # An id has no letter that means anything to LIKE, and occurs nowhere else in this way.
        found = self._each_run(sql, (run.number, f'%"resumed_from":"{run.id}"%'))
        return next((one for one in found if one.kind is Kind.CHAIN), None)

    def spec(self, run_id: str) -> bytes:
        row = self._connection.execute("SELECT spec FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return str(row[0]).encode()

    def prompt(self, run_id: str) -> str | None:
        """What a run was asked, as far as it knows."""
        return _asked.decode(self.spec(run_id)).prompt

    def shown_prompt(self, run_id: str) -> str | None:
        """What a run was asked, by its first event, where secrets are covered; of a run that an earlier version
        started, by its spec."""
        sql = "SELECT data FROM events WHERE run = ? AND type = 'run.created' ORDER BY seq LIMIT 1"
        row = self._connection.execute(sql, (run_id,)).fetchone()
        return (_asked.decode(row[0]).prompt if row else None) or self.prompt(run_id)

    def offsets(self, run_id: str) -> Offsets:
        sql = "SELECT out_offset, err_offset, reader FROM offsets WHERE run = ?"
        row = self._connection.execute(sql, (run_id,)).fetchone()
        return Offsets(row[0], row[1], _any.decode(row[2])) if row else Offsets()

    def events(self, run_id: str) -> list[Event]:
        """A run's own events, whole: for the fold and for tests."""
        return list(self.each_event(run_id))

    def each_event(self, run_id: str, *types: str) -> Iterator[Event]:
        """The same, one at a time, of these types where any are named."""
        wanted = f" AND type IN ({', '.join('?' * len(types))})" if types else ""
        sql = f"SELECT seq, ts, run, root, type, data FROM events WHERE run = ?{wanted} ORDER BY seq"
        with closing(self._connection.execute(sql, (run_id, *types))) as rows:
            for seq, ts, run, root, kind, data in rows:
                yield Event(seq, ts, run, root, kind, _any.decode(data))

    def said_to(self, run_id: str) -> set[tuple[str, str]]:
        """Type and id of everything that was recorded as said to a run."""
        sql = "SELECT type, data FROM events WHERE run = ? AND type IN ('input', 'answer')"
        rows = [(kind, _any.decode(data)) for kind, data in self._connection.execute(sql, (run_id,))]
        return {(kind, data["id"]) for kind, data in rows if "id" in data}

    def answered(self, root: str, key: str) -> tuple[str, dict[str, Any]] | None:
        """The answer that was given under this key to a run of this tree."""
        sql = "SELECT run, data FROM events WHERE root = ? AND type = 'answer' ORDER BY seq"
        with closing(self._connection.execute(sql, (root,))) as rows:
            for run, data in rows:
                answer: dict[str, Any] = _any.decode(data)
                if answer.get("key") == key:
                    return run, answer
        return None

    def last_answer(self, root: str, question: str = "", run: str | None = None) -> tuple[str, dict[str, Any]] | None:
        """The newest answer in a tree, or to one run of it, to a question whose id begins so; with who asked."""
        sql = "SELECT run, data FROM events WHERE root = ? AND type = 'answer' ORDER BY seq DESC"
        with closing(self._connection.execute(sql, (root,))) as rows:
            for asked_by, data in rows:
                answer: dict[str, Any] = _any.decode(data)
                if run in (None, asked_by) and str(answer["id"]).startswith(question):
                    return asked_by, answer
        return None

    def exchange(self, run_id: str, question: str) -> list[Event]:
        """A question that a run asked, and what was answered, by the question's whole id; empty if it never was."""
        sql = """SELECT seq, ts, run, root, type, data FROM events
            WHERE run = ? AND type IN ('question', 'answer') ORDER BY seq"""
        rows = self._connection.execute(sql, (run_id,))
        told = [Event(seq, ts, run, root, kind, _any.decode(data)) for seq, ts, run, root, kind, data in rows]
        return [event for event in told if event.data.get("id") == question]

    def page(self, run: Run, after: int, limit: int, most: int) -> list[Line]:
        """The next events of a run and all below it: ``limit`` at most, none once there are ``most`` bytes."""
        columns = "SELECT seq, ts, run, root, type, data FROM events"
        if run.root == run.id:
            sql, key = f"{columns} WHERE root = ? AND seq > ? ORDER BY seq LIMIT ?", run.id
        elif self.has_children(run.id):
            inside = "WHERE run IN (SELECT id FROM below) AND seq > ? ORDER BY seq LIMIT ?"
            sql, key = f"{_BELOW}{columns} {inside}", run.id
        else:
            sql, key = f"{columns} WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?", run.id
        lines, size = [], 0
        # Left open, a cursor would hold back the checkpoint of the log.
        with closing(self._connection.execute(sql, (key, after, limit))) as rows:
            for row in rows:
                lines.append(Line(row[0], row[2], row[4], wire(*row)))
                size += len(lines[-1].text)
                if size >= most:
                    break
        return lines

    # Tasks

    def _tasks(self, sql: str, parameters: Iterable[object]) -> list[Task]:
        return [task_decoder.decode(state) for (state,) in self._connection.execute(sql, tuple(parameters))]

    def _handoffs(self, sql: str, parameters: Iterable[object]) -> list[Handoff]:
        return [handoff_decoder.decode(state) for (state,) in self._connection.execute(sql, tuple(parameters))]

    def task(self, task_id: str) -> Task | None:
        found = self._tasks("SELECT state FROM tasks WHERE id = ?", (task_id,))
        return found[0] if found else None

    def find_task(self, ref: str) -> Task:
        """The task that an id, a unique prefix or a number names."""
        found: list[Task] = []
        if ref.isascii() and ref.isdigit() and len(ref) < 19:
            found = self._tasks("SELECT state FROM tasks WHERE number = ?", (int(ref),))
        if not found and ref.isascii() and ref.replace("-", "").replace("_", "").isalnum():
            # Those that came from elsewhere may have a dash in their id, and begin with digits.
            found = self._tasks("SELECT state FROM tasks WHERE id >= ? AND id < ? LIMIT 2", (ref, ref + "~"))
            found = [task for task in found if task.id == ref] or found
        if len(found) > 1:
            raise AmbiguousRun(f"{ref!r} fits more than one task", "Give more of the id, or the number")
        return there(found[0] if found else None, ref)

    def task_by_request(self, key: str) -> Task | None:
        found = self._tasks("SELECT state FROM tasks WHERE request_key = ?", (key,))
        return found[0] if found else None

    def tasks(self, status: TaskStatus | None, before: int | None, limit: int) -> list[Task]:
        """The newest first, below the number ``before``."""
        top = LATEST if before is None else before
        if status is None:
            return self._tasks("SELECT state FROM tasks WHERE number < ? ORDER BY number DESC LIMIT ?", (top, limit))
        sql = "SELECT state FROM tasks WHERE status = ? AND number < ? ORDER BY number DESC LIMIT ?"
        return self._tasks(sql, (status, top, limit))

    def tasks_changed_since(self, seq: int) -> list[tuple[str, int]]:
        """Those to which anything has happened after this event, by their ids; after none: all of them.

        Each with the first event that happened to it since, in that order; 0 where none ever did.
        """
        if seq == 0:
            sql = """SELECT id, coalesce((SELECT min(seq) FROM events WHERE run = tasks.id), 0) AS first
                FROM tasks ORDER BY first, number"""
            return self._connection.execute(sql).fetchall()
        sql = """SELECT tasks.id, min(events.seq) AS first FROM events JOIN tasks ON tasks.id = events.run
            WHERE events.seq > ? AND events.type = 'task.changed' GROUP BY tasks.id ORDER BY first"""
        return self._connection.execute(sql, (seq,)).fetchall()

    def queued_tasks(self) -> list[Task]:
        """Those for which something waits to be done."""
        return self._tasks("SELECT state FROM tasks WHERE queued > 0 ORDER BY number", ())

    def handoffs(self, task_id: str) -> list[Handoff]:
        """A task's whole chain, in order."""
        return self._handoffs("SELECT state FROM handoffs WHERE task = ? ORDER BY number", (task_id,))

    def open_handoffs(self, task_id: str) -> list[Handoff]:
        """Those that are not closed, the innermost last."""
        return self._handoffs(OPEN, (task_id,))

    def last_closed_handoff(self, task: Task) -> Handoff | None:
        """The one that ended last, which need not be the one that began last: one below another ends before it.

        Those that the task brought along come before all that was made here, whatever the clock was there.
        """
        sql = """SELECT state FROM handoffs WHERE task = ? AND completed_at IS NOT NULL
            ORDER BY number > ? DESC, completed_at DESC, number LIMIT 1"""
        found = self._handoffs(sql, (task.id, task.brought_handoffs))
        return found[0] if found else None

    def handed_on_by(self, run_id: str, limit: int) -> list[Handoff]:
        """The last hand-offs that a run made and that are closed, of whichever task, the newest first."""
        sql = """SELECT handoffs.state FROM runs JOIN handoffs ON handoffs.run = runs.id
            WHERE runs.parent = ? AND handoffs.completed_at IS NOT NULL ORDER BY runs.number DESC LIMIT ?"""
        return self._handoffs(sql, (run_id, limit))

    def told_of_task(self, task_id: str, word: str) -> list[dict[str, Any]]:
        """Those lines of a task's history in which a word occurs that has no need of escapes."""
        sql = "SELECT data FROM events WHERE run = ? AND type = 'task.changed' AND data LIKE ? ORDER BY seq"
        return [_any.decode(data) for (data,) in self._connection.execute(sql, (task_id, f'%"{word}"%'))]

    def handoff(self, handoff_id: str) -> Handoff | None:
        found = self._handoffs("SELECT state FROM handoffs WHERE id = ?", (handoff_id,))
        return found[0] if found else None

    def has_children(self, run_id: str) -> bool:
        """Whether it has started any."""
        return self._connection.execute("SELECT 1 FROM runs WHERE parent = ? LIMIT 1", (run_id,)).fetchone() is not None

    def answer_given(self, question: str, top: str | None = None) -> tuple[str, dict[str, Any]] | None:
        """The newest answer to a question whose id begins so, with who asked: in a run and all below it, or anywhere.

        Anywhere means among the newest events: no index knows of questions, and who comes too late does so soon.
        """
        answers = "SELECT run, data FROM events WHERE type = 'answer'"
        keys: list[object]
        if top is None:
            sql, keys = f"{answers} AND seq > ?", [self.last_seq() - SEARCHED]
        else:
            sql, keys = f"{_BELOW} {answers} AND run IN (SELECT id FROM below)", [top]
        with closing(self._connection.execute(f"{sql} ORDER BY seq DESC", keys)) as rows:
            for asked_by, data in rows:
                answer: dict[str, Any] = _any.decode(data)
                if str(answer["id"]).startswith(question):
                    return asked_by, answer
        return None
