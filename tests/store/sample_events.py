"""Stores and events for tests, as the engine would write them."""

from __future__ import annotations

import hashlib
import queue
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from patience import PATIENCE

from hocket.model import Event
from hocket.store import Batch, Committed, NewRun, Store
from hocket.store.schema import Migration
from hocket.store.writer import Writer


class StoreWriter:
    """The writer of a store, with commits that a test can wait for."""

    def __init__(self, store: Store) -> None:
        self.groups: queue.SimpleQueue[list[tuple[Batch, Committed | Exception]]] = queue.SimpleQueue()
        self.writer: Writer = store.start_writing(self.groups.put)

    def write(self, *events: Event, **more: Any) -> Committed:
        outcome = self.attempt(Batch(list(events), **more))
        assert isinstance(outcome, Committed), outcome
        return outcome

    def attempt(self, batch: Batch) -> Committed | Exception:
        self.writer.submit(batch)
        return self.outcomes(1)[0][1]

    def outcomes(self, count: int) -> list[tuple[Batch, Committed | Exception]]:
        """Return the outcomes of the next ``count`` batches, in any groups."""
        found: list[tuple[Batch, Committed | Exception]] = []
        while len(found) < count:
            found += self.groups.get(timeout=PATIENCE)
        return found

    def create(self, run: str, number: int, **more: Any) -> Committed:
        return self.write(created(run, number, **more), new={run: NewRun(b"{}")})


def said(run: str, kind: str, root: str | None = None, /, **data: Any) -> Event:
    return Event(0, 1000.5, run, root or run, kind, data)


def created(
    run: str, number: int, parent: str | None = None, root: str | None = None, kind: str = "leaf", agent: str = "a"
) -> Event:
    provider = "executable" if kind == "leaf" else None
    about = {"number": number, "kind": kind, "agent": agent, "provider": provider, "depth": 0, "cwd": "/p"}
    return said(run, "run.created", root, **about, parent=parent)


def ended(run: str, root: str | None = None, /, **data: Any) -> Event:
    return said(run, "run.ended", root, **{"status": "done", "reason": "exit", "exit_code": 0, **data})


def plain(value: object) -> Any:
    """A value as the store keeps it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder by the hash of its bytes. An empty log, and any log's index, say nothing."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.endswith("-shm") and not (path.name.endswith("-wal") and _is_empty(path))
    }


def _is_empty(path: Path) -> bool:
    return path.stat().st_size == 0


def downgrade(path: Path, number: int) -> None:
    """Make a database that the current version has written look as schema 2 or 3 did."""
    with closing(sqlite3.connect(path)) as database, database:
        names = ("runs_resumed", "runs_children", "runs_listed", "events_type", "events_tasks")
        statements = [f"DROP INDEX {name}" for name in names]
        tables = ("questions", "usage", "task_keys", "removed_tasks", "transcripts", "sessions", "removed_runs")
        statements += [f"DROP TABLE {name}" for name in tables]
        columns = ("runs DROP COLUMN resumed_from", "tasks DROP COLUMN archived")
        statements += [f"ALTER TABLE {column}" for column in columns]
        for statement in statements:
            database.execute(statement)
        database.execute("DELETE FROM migrations WHERE number > ?", (number,))


def migration(number: int, *statements: str) -> Migration:
    return Migration(number, f"test {number}", statements)
