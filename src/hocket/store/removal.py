"""Removing ended trees of runs: their records in one transaction, later their events, a bounded number at a time.

A removed run keeps a row with its number, so that no number and no sequence number is used again. While ``pending`` is
1, its directory and its events may still exist; nothing shows them any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from hocket.errors import Conflict
from hocket.model.task import TaskStatus
from hocket.store.runs import RunQueries, prompt_decoder
from hocket.store.task_changes import handoff_decoder

ROWS_AT_ONCE = 1000
"""Events that one batch deletes, so that other batches do not wait for long."""
ROW_BYTES = 160
"""Estimate of what a row takes beside its text: numbers, ids, and its entries in indexes."""

_OPEN = f"tasks.archived = 0 AND tasks.status NOT IN ('{TaskStatus.COMPLETED}', '{TaskStatus.FAILED}')"
_OPEN_TASKS = f"""SELECT runs.root, min(tasks.number) FROM handoffs
    JOIN tasks ON tasks.id = handoffs.task JOIN runs ON runs.id = handoffs.run WHERE {_OPEN}"""
_LINKS = """SELECT old.root, new.root, new.number FROM runs AS new JOIN runs AS old ON old.id = new.resumed_from
    WHERE new.resumed_from IS NOT NULL"""
_LINKS_OF_TREE = f"{_LINKS} AND old.root = ? UNION ALL {_LINKS} AND new.root = ?"
_REMOVE = """INSERT INTO removed_runs (id, number, created_at, removed_at, seq, pending)
    SELECT id, number, created_at, ?, ?, 1 FROM runs WHERE root = ?"""
_ROWS_OF_RUN = ("questions", "usage", "offsets", "transcripts")
"""Tables with few rows for each run."""

_encoder = msgspec.json.Encoder()


class _Session(msgspec.Struct):
    session_id: str | None = None


_session_decoder = msgspec.json.Decoder(_Session)


class RunTree(msgspec.Struct, frozen=True):
    """A root and everything below it."""

    root: str
    number: int
    runs: int
    ended_at: float | None
    """When the last of them ended."""
    live: int | None
    """The number of one that has not ended."""


class RunPlace(msgspec.Struct, frozen=True):
    """A run that has or had a directory."""

    id: str
    number: int
    created_at: float


def remove_trees(connection: sqlite3.Connection, roots: Collection[str], now: float, seq: int) -> None:
    """Remove the records of these trees, all or none. Raise Conflict if something needs one of them.

    ``seq`` is the last event in the store. After an error the transaction has to be rolled back.
    """
    for root in roots:
        _check(connection, root, roots)
        _complete_handoffs(connection, root)
        connection.execute(_REMOVE, (now, seq, root))
        connection.execute("DELETE FROM sessions WHERE run IN (SELECT id FROM runs WHERE root = ?)", (root,))
        connection.execute("DELETE FROM runs WHERE root = ?", (root,))


def _check(connection: sqlite3.Connection, root: str, roots: Collection[str]) -> None:
    if connection.execute("SELECT 1 FROM runs WHERE root = ? LIMIT 1", (root,)).fetchone() is None:
        raise Conflict("it was removed meanwhile")
    live = connection.execute("SELECT number FROM runs WHERE root = ? AND ended_at IS NULL", (root,)).fetchone()
    if live is not None:
        raise Conflict(f"run {live[0]} has not ended")
    task = connection.execute(f"{_OPEN_TASKS} AND runs.root = ? GROUP BY runs.root", (root,)).fetchone()
    if task is not None:
        raise Conflict(open_task(task[1]))
    for old, new, number in connection.execute(_LINKS_OF_TREE, (root, root)).fetchall():
        if old not in roots or new not in roots:
            raise Conflict(f"run {number} resumes a run that would stay" if new == root else f"run {number} resumes it")


def open_task(number: int) -> str:
    """Why the runs of a task are kept."""
    return f"task {number} is neither finished nor archived"


def _complete_handoffs(connection: sqlite3.Connection, root: str) -> None:
    """Write prompt and session of its runs into the records of hand-offs, which stay."""
    sql = """SELECT handoffs.state, runs.state, runs.spec,
            (SELECT data FROM events WHERE run = runs.id ORDER BY seq LIMIT 1)
        FROM handoffs JOIN runs ON runs.id = handoffs.run WHERE runs.root = ?"""
    for state, run, spec, created in connection.execute(sql, (root,)).fetchall():
        record = handoff_decoder.decode(state)
        shown = prompt_decoder.decode(created).prompt if created is not None else None
        # The first event of a run of an early version has no prompt.
        prompt = record.prompt or shown or prompt_decoder.decode(spec).prompt
        session = record.session or _session_decoder.decode(run).session_id
        completed = _encoder.encode(replace(record, prompt=prompt, session=session)).decode()
        connection.execute("UPDATE handoffs SET state = ? WHERE id = ?", (completed, record.id))


def sweep(connection: sqlite3.Connection, runs: Sequence[str]) -> set[str]:
    """Delete what is left of removed runs, at most ``ROWS_AT_ONCE`` events; return those of which nothing is left."""
    done: set[str] = set()
    left = ROWS_AT_ONCE
    for run in runs:
        found = "SELECT seq FROM events WHERE run = ? ORDER BY seq LIMIT ?"
        left -= connection.execute(f"DELETE FROM events WHERE seq IN ({found})", (run, left)).rowcount
        if left <= 0:
            break
        for table in _ROWS_OF_RUN:
            connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
        connection.execute("UPDATE removed_runs SET pending = 0 WHERE id = ?", (run,))
        done.add(run)
    return done


class RemovalQueries(RunQueries):
    """What can be removed, how much it takes, and what is being removed."""

    def trees(self) -> list[RunTree]:
        """Return all trees."""
        sql = """SELECT root, coalesce(max(CASE WHEN id = root THEN number END), min(number)), count(*), max(ended_at),
            max(CASE WHEN ended_at IS NULL THEN number END) FROM runs GROUP BY root"""
        return [RunTree(*row) for row in self._connection.execute(sql)]

    def resumptions(self) -> list[tuple[str, str]]:
        """Return the roots of all pairs of runs of which one resumes the other."""
        return [(old, new) for old, new, _ in self._connection.execute(_LINKS)]

    def trees_of_open_tasks(self) -> dict[str, int]:
        """Return the number of a task that is neither finished nor archived, by the roots of its hand-offs."""
        return dict(self._connection.execute(f"{_OPEN_TASKS} GROUP BY runs.root").fetchall())

    def root_of_number(self, number: int) -> str | None:
        row = self._connection.execute("SELECT root FROM runs WHERE number = ?", (number,)).fetchone()
        return row[0] if row else None

    def places_of_tree(self, root: str) -> list[RunPlace]:
        """Return the runs of a tree, of which those that own a process have a directory."""
        sql = "SELECT id, number, created_at FROM runs WHERE root = ? ORDER BY number"
        return [RunPlace(*row) for row in self._connection.execute(sql, (root,))]

    def bytes_of_tree(self, root: str) -> int:
        """Return about what the records and events of a tree take in the database."""
        sql = """SELECT (SELECT coalesce(sum(length(data)), 0) + ? * count(*) FROM events WHERE root = ?)
            + (SELECT coalesce(sum(length(state) + length(spec)), 0) + ? * count(*) FROM runs WHERE root = ?)"""
        return int(self._connection.execute(sql, (ROW_BYTES, root, ROW_BYTES, root)).fetchone()[0])

    def removed_number(self, run_id: str) -> int | None:
        row = self._connection.execute("SELECT number FROM removed_runs WHERE id = ?", (run_id,)).fetchone()
        return row[0] if row else None

    def being_removed(self, after: int, limit: int) -> list[RunPlace]:
        """Return the runs after a number whose removal is not complete."""
        sql = "SELECT id, number, created_at FROM removed_runs WHERE pending = 1 AND number > ? ORDER BY number LIMIT ?"
        return [RunPlace(*row) for row in self._connection.execute(sql, (after, limit))]
