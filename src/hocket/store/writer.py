"""The writer thread. It commits all batches that have arrived since its last commit in one transaction (group commit).

Sequence numbers are assigned here, in the order of the commits, so no reader sees a later number first.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hocket.errors import Conflict, DiskLow, HocketError, StoreError
from hocket.model import CHANGING, Event, Run, apply
from hocket.model.task import COMPLETED, Change, Create, Handoff, Order, Remove, Task, closing
from hocket.store.connection import RESTORE
from hocket.store.questions import record_question
from hocket.store.removal import remove_trees, sweep
from hocket.store.sessions import record_session
from hocket.store.task_changes import carry_out, is_open, record_task_key
from hocket.store.usage import USAGE_EVENTS, record_usage


@dataclass(slots=True)
class NewRun:
    """What is stored once, when a run is created."""

    spec: bytes
    request_key: str | None = None


@dataclass(slots=True)
class Offsets:
    """How far a run's files have been read, always at a line end, and the reader's state there."""

    out: int = 0
    err: int = 0
    reader: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class FilePosition:
    """How far a transcript has been read, always at a line end, and the reader's state there."""

    offset: int = 0
    tail_size: int = 0
    tail_checksum: int = 0
    """Of the end of the last line: what stands before the offset, unless the file was truncated or replaced."""
    reader: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """Changes that are committed together. The ``seq`` of its events is still 0."""

    events: list[Event]
    new: dict[str, NewRun] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    transcripts: dict[tuple[str, str], FilePosition] = field(default_factory=dict)
    """Positions by run and path."""
    orders: list[Order] = field(default_factory=list)
    """Changes of tasks, applied before the events."""
    order_key: str | None = None
    """The request key of a task that is created here."""
    removed_trees: tuple[str, ...] = ()
    """Roots of trees of runs that are removed together, or not at all."""
    swept: tuple[str, ...] = ()
    """Removed runs of which some of what is left is deleted."""
    durable: bool = False
    """Flush the commit to the disk, because the caller reports it as saved."""

    @property
    def is_vital(self) -> bool:
        """True for what must be recorded even on a full disk: what a user asked for, and how a run ended."""
        is_deletion = bool(self.swept)  # it makes room, and needs a little of it first
        return self.durable or is_deletion or bool(self.orders) or any(one.type == "run.ended" for one in self.events)


@dataclass(slots=True)
class Committed:
    """A batch as it was stored: events with their sequence numbers, their wire form, and the runs after them."""

    events: list[Event]
    lines: list[bytes]
    runs: dict[str, Run]
    tasks: dict[str, Task] = field(default_factory=dict)
    handoffs: dict[str, Handoff] = field(default_factory=dict)
    removed: dict[str, Task] = field(default_factory=dict)
    swept: set[str] = field(default_factory=set)
    """Removed runs of which nothing is left."""


MakeRoom = Callable[[], bool]
"""Called when the disk is full; returns True if there is more room now."""
Done = Callable[[list[tuple[Batch, Committed | Exception]]], None]

_encoder = msgspec.json.Encoder()
_RUN = """INSERT INTO runs
    (id, number, root, parent, status, created_at, ended_at, state, spec, request_key, resumed_from)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_RUN_CHANGED = "UPDATE runs SET status = ?, ended_at = ?, state = ? WHERE id = ?"
_EVENT = "INSERT INTO events (seq, ts, run, root, type, data) VALUES (?, ?, ?, ?, ?, ?)"
_OFFSETS = """INSERT INTO offsets (run, out_offset, err_offset, reader) VALUES (?, ?, ?, ?)
    ON CONFLICT (run) DO UPDATE SET
        out_offset = excluded.out_offset, err_offset = excluded.err_offset, reader = excluded.reader"""
_TRANSCRIPT = """INSERT INTO transcripts (run, path, position, tail_size, tail_checksum, reader)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, path) DO UPDATE SET
        position = excluded.position, tail_size = excluded.tail_size, tail_checksum = excluded.tail_checksum,
        reader = excluded.reader"""


def wire(seq: int, ts: float, run: str, root: str, kind: str, data: str) -> bytes:
    """Return the wire form of an event. ``data`` is JSON already."""
    head = f'{{"v":1,"seq":{seq},"ts":{ts:.6f},"run":"{run}","root":"{root}","type":"{kind}","data":'
    return f"{head}{data}}}".encode()


class Writer:
    """The thread, its queue and its connection. ``done`` is called in the thread, once per group, in order.

    It holds the live runs, because the order of events is only known here.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        next_seq: int,
        live: Iterable[Run],
        done: Done,
        note: Callable[[int], None],
        make_room: MakeRoom,
    ) -> None:
        self._connection = connection
        self._note = note
        """Called with the last sequence number after each commit that has events."""
        self._make_room = make_room
        self._next_seq = next_seq
        self._live = {run.id: run for run in live}
        self._done = done
        self._flushing: bool | None = None
        """Whether each commit is flushed to the disk; None before the first one."""
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="hocket-writer", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._queue.put(batch)

    def close(self) -> None:
        """Commit everything submitted so far and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        open_ = True
        while open_:
            group = [self._queue.get()]
            while not self._queue.empty():
                group.append(self._queue.get())
            open_ = None not in group
            batches = [batch for batch in group if batch is not None]
            if batches:
                self._done(self._commit_group(batches))

    def _commit_group(self, batches: list[Batch]) -> list[tuple[Batch, Committed | Exception]]:
        try:
            return list(zip(batches, self._transaction(batches), strict=True))
        except Exception as error:  # noqa: BLE001 - a bad batch must not end the thread
            if len(batches) == 1:
                # Not for output: it waits in its file, and would use up the reserve.
                if _is_full(error) and batches[0].is_vital and self._make_room():
                    return self._commit_group(batches)
                return [(batches[0], _as_hocket_error(error))]
        # One batch may have failed for all of them: each is tried alone.
        return [pair for batch in batches for pair in self._commit_group([batch])]

    def _transaction(self, batches: list[Batch]) -> list[Committed]:
        execute = self._connection.execute
        durable = any(batch.durable for batch in batches)
        if durable is not self._flushing:
            execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._flushing = durable
        execute("BEGIN IMMEDIATE")
        seq = self._next_seq
        try:
            results = []
            changed: dict[str, Run] = {}
            for batch in batches:
                result = self._write(batch, seq, changed)
                seq += len(result.events)
                results.append(result)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        if seq != self._next_seq:
            self._next_seq = seq
            self._note(seq - 1)
        self._live.update(changed)
        for run in changed.values():
            if run.ended:
                del self._live[run.id]
        return results

    def _write(self, batch: Batch, first: int, changed: dict[str, Run]) -> Committed:
        result = Committed([], [], {})
        rows: list[tuple[object, ...]] = []
        now = time.time()
        for order in batch.orders:
            key = batch.order_key if isinstance(order, Create) else None
            if isinstance(order, Remove):
                _check_idle(order.task, {**self._live, **changed}.values())
            change = carry_out(self._connection, order, now, key)
            _append_events(self._change_events(change, now, changed, result), first, result, rows)
        for event in batch.events:
            before = changed.get(event.run) or self._live.get(event.run)
            if event.type == "run.ended" and event.run not in batch.new and (before is None or before.ended):
                continue  # it has ended already
            if event.type in CHANGING and (before or event.run in batch.new):
                result.runs[event.run] = changed[event.run] = apply(before, event)
            if event.type == "run.ended":
                # Followers stop at the end of the run, so the change of its task comes first.
                _append_events(self._close_handoff(changed[event.run], event.ts, changed, result), first, result, rows)
            _append_events([event], first, result, rows)
        self._connection.executemany(_EVENT, rows)
        self._write_runs(result.runs.values(), batch.new)
        self._write_lookups(result)
        for run, offsets in batch.offsets.items():
            row = (run, offsets.out, offsets.err, _encoder.encode(offsets.reader).decode())
            self._connection.execute(_OFFSETS, row)
        for (run, path), at in batch.transcripts.items():
            reader = _encoder.encode(at.reader).decode()
            self._connection.execute(_TRANSCRIPT, (run, path, at.offset, at.tail_size, at.tail_checksum, reader))
        if batch.removed_trees:
            remove_trees(self._connection, batch.removed_trees, now, first + len(rows) - 1)
        result.swept = sweep(self._connection, batch.swept)
        return result

    def _write_lookups(self, result: Committed) -> None:
        """Write what is looked up without a search through events."""
        for event in result.events:
            if event.type in ("question", "answer"):
                record_question(self._connection, event)
            elif event.type == "task.changed":
                record_task_key(self._connection, event)
            elif event.type == "session":
                record_session(self._connection, event.data.get("session_id"), event.run)
            elif event.type in USAGE_EVENTS and event.run in result.runs:
                record_usage(self._connection, result.runs[event.run], event.seq)

    def _close_handoff(self, run: Run, now: float, changed: dict[str, Run], result: Committed) -> list[Event]:
        """Close the hand-off of a run that has ended, unless it is closed already."""
        order = closing(run)
        if order is None or not is_open(self._connection, order.handoff):
            return []
        return self._change_events(carry_out(self._connection, order, now), now, changed, result)

    def _change_events(self, change: Change, now: float, changed: dict[str, Run], result: Committed) -> list[Event]:
        """Return a change as events: of the task itself, and of each run whose hand-off it closes."""
        task = change.task
        (result.removed if change.is_removal else result.tasks)[task.id] = task
        result.handoffs |= {record.id: record for record in (*change.opened, *change.closed)}
        every = [*change.imported, *((now, kind, data) for kind, data in change.history)]
        events = [Event(0, ts, task.id, task.id, "task.changed", {"event": kind, **data}) for ts, kind, data in every]
        for record in change.closed:
            run = changed.get(record.run or "") or self._live.get(record.run or "")
            if run is not None:
                about: dict[str, Any] = {"event": COMPLETED, "task": task.id, "handoff": record.id}
                about |= {"status": record.status, "reason": record.reason}
                events.append(Event(0, now, run.id, run.root, "task.changed", about))
        return events

    def _write_runs(self, runs: Iterable[Run], new: dict[str, NewRun]) -> None:
        for run in runs:
            state = _encoder.encode(run).decode()
            created = new.get(run.id)
            if created is None:
                self._connection.execute(_RUN_CHANGED, (run.status, run.ended_at, state, run.id))
                continue
            row = (run.id, run.number, run.root, run.parent, run.status, run.created_at, run.ended_at)
            self._connection.execute(_RUN, (*row, state, created.spec.decode(), created.request_key, run.resumed_from))


def _check_idle(task: str, runs: Iterable[Run]) -> None:
    """Raise Conflict if a run of the task has not ended."""
    if (live := next((run for run in runs if run.task == task and not run.ended), None)) is not None:
        raise Conflict(
            f"run {live.number} ({live.agent}) of this task has not ended",
            f"Wait for it, or `hocket stop {live.number}`",
        )


def _append_events(events: Iterable[Event], first: int, result: Committed, rows: list[tuple[object, ...]]) -> None:
    """Assign the next sequence numbers."""
    for unnumbered in events:
        event = msgspec.structs.replace(unnumbered, seq=first + len(rows))
        data = _encoder.encode(event.data).decode()
        result.events.append(event)
        result.lines.append(wire(event.seq, event.ts, event.run, event.root, event.type, data))
        rows.append((event.seq, event.ts, event.run, event.root, event.type, data))


def _is_full(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and "full" in str(error)


def _as_hocket_error(error: Exception) -> HocketError:
    if isinstance(error, HocketError):
        return error  # An order that is refused says why.
    if _is_full(error):
        return DiskLow("the disk is full: nothing could be recorded", "Free some space; live runs continue")
    is_damaged = type(error) is sqlite3.DatabaseError
    return StoreError(f"this could not be recorded: {error}", RESTORE if is_damaged else None)
