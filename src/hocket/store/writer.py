"""One thread writes. It commits whatever has gathered since its last commit in one transaction: group commit.

The sequence of events is dealt out here, in the order of the commits, so no reader ever sees a later number first.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hocket.errors import DiskLow, HocketError, StoreError
from hocket.model import CHANGING, Event, Run, apply


@dataclass(slots=True)
class NewRun:
    """What is stored once, at a run's birth."""

    spec: bytes
    request_key: str | None = None


@dataclass(slots=True)
class Offsets:
    """How far a run's files have been read, always at a line end, and the reader's state there."""

    out: int = 0
    err: int = 0
    reader: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """What becomes true together. ``events`` have no sequence yet (0)."""

    events: list[Event]
    new: dict[str, NewRun] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    durable: bool = False
    """Whether somebody will be told that it is saved: flushed to the disk before it counts."""


@dataclass(slots=True)
class Committed:
    """A batch as it was stored: events with their numbers, their wire form, and the runs after them."""

    events: list[Event]
    lines: list[bytes]
    runs: dict[str, Run]


Done = Callable[[list[tuple[Batch, Committed | Exception]]], None]

_encoder = msgspec.json.Encoder()
_RUN = """INSERT INTO runs (id, number, root, parent, status, created_at, ended_at, state, spec, request_key)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_RUN_CHANGED = "UPDATE runs SET status = ?, ended_at = ?, state = ? WHERE id = ?"
_EVENT = "INSERT INTO events (seq, ts, run, root, type, data) VALUES (?, ?, ?, ?, ?, ?)"
_OFFSETS = """INSERT INTO offsets (run, out_offset, err_offset, reader) VALUES (?, ?, ?, ?)
    ON CONFLICT (run) DO UPDATE SET
        out_offset = excluded.out_offset, err_offset = excluded.err_offset, reader = excluded.reader"""


def wire(seq: int, ts: float, run: str, root: str, kind: str, data: str) -> bytes:
    """An event as every reader gets it. ``data`` is JSON already."""
    head = f'{{"v":1,"seq":{seq},"ts":{ts:.6f},"run":"{run}","root":"{root}","type":"{kind}","data":'
    return f"{head}{data}}}".encode()


class Writer:
    """The thread, its queue and its connection. ``done`` is called in the thread, once per group, in order.

    It holds the live runs, because only here is it known in which order events became true.
    """

    def __init__(self, connection: sqlite3.Connection, next_seq: int, live: Iterable[Run], done: Done) -> None:
        self._connection = connection
        self._next_seq = next_seq
        self._live = {run.id: run for run in live}
        self._done = done
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="hocket-writer", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._queue.put(batch)

    def close(self) -> None:
        """Everything submitted so far is committed first."""
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
        except Exception as error:  # noqa: BLE001 - whatever a batch does wrong, this thread must go on for the others
            if len(batches) == 1:
                return [(batches[0], _explained(error))]
        # One batch may have spoiled it for all (or the disk is full): each gets its own chance.
        return [pair for batch in batches for pair in self._commit_group([batch])]

    def _transaction(self, batches: list[Batch]) -> list[Committed]:
        execute = self._connection.execute
        execute(f"PRAGMA synchronous={'FULL' if any(b.durable for b in batches) else 'NORMAL'}")
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
        self._next_seq = seq
        self._live.update(changed)
        for run in changed.values():
            if run.ended:
                del self._live[run.id]
        return results

    def _write(self, batch: Batch, first: int, changed: dict[str, Run]) -> Committed:
        runs: dict[str, Run] = {}
        events, rows, lines = [], [], []
        told = [event for event in batch.events if event.run in batch.new or not self._has_ended(event, changed)]
        for seq, said in enumerate(told, start=first):
            event = Event(seq, said.ts, said.run, said.root, said.type, said.data)
            data = _encoder.encode(event.data).decode()
            events.append(event)
            rows.append((event.seq, event.ts, event.run, event.root, event.type, data))
            lines.append(wire(event.seq, event.ts, event.run, event.root, event.type, data))
            before = changed.get(event.run) or self._live.get(event.run)
            if event.type in CHANGING and (before or event.run in batch.new):
                runs[event.run] = changed[event.run] = apply(before, event)
        self._connection.executemany(_EVENT, rows)
        self._write_runs(runs.values(), batch.new)
        for run, offsets in batch.offsets.items():
            row = (run, offsets.out, offsets.err, _encoder.encode(offsets.reader).decode())
            self._connection.execute(_OFFSETS, row)
        return Committed(events, lines, runs)

    def _has_ended(self, event: Event, changed: dict[str, Run]) -> bool:
        """Whether this tells the end of a run that has none to come: a run ends once."""
        run = changed.get(event.run) or self._live.get(event.run)
        return event.type == "run.ended" and (run is None or run.ended)

    def _write_runs(self, runs: Iterable[Run], new: dict[str, NewRun]) -> None:
        for run in runs:
            state = _encoder.encode(run).decode()
            birth = new.get(run.id)
            if birth is None:
                self._connection.execute(_RUN_CHANGED, (run.status, run.ended_at, state, run.id))
                continue
            row = (run.id, run.number, run.root, run.parent, run.status, run.created_at, run.ended_at)
            self._connection.execute(_RUN, (*row, state, birth.spec.decode(), birth.request_key))


def _explained(error: Exception) -> HocketError:
    if isinstance(error, sqlite3.Error) and "full" in str(error):
        return DiskLow("the disk is full: nothing could be recorded", "Free some space; live runs go on meanwhile")
    return StoreError(f"this could not be recorded: {error}")
