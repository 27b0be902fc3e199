"""Filling the lookup tables of schemas 4 and 7 from a database that an earlier version wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from hocket.model import Event, Run
from hocket.store.questions import record_question
from hocket.store.sessions import record_session
from hocket.store.task_changes import record_task_key
from hocket.store.usage import record_usage

_PAGE = 1000

_any = msgspec.json.Decoder()
_run = msgspec.json.Decoder(Run)


def fill_lookup_tables(connection: sqlite3.Connection) -> None:
    """Write the rows that the writer would have written with the events and runs that are there."""
    for event in _events(connection):
        if event.type == "task.changed":
            record_task_key(connection, event)
        else:
            record_question(connection, event)
    for run, ended_seq in _runs(connection):
        record_usage(connection, run, ended_seq)
        if run.resumed_from is not None:
            connection.execute("UPDATE runs SET resumed_from = ? WHERE id = ?", (run.resumed_from, run.id))


def fill_sessions(connection: sqlite3.Connection) -> None:
    """Write which run has each session; those that ended with a ``/clear`` are left out."""
    for _, state in paged(connection, "SELECT number, state FROM runs WHERE number > ? ORDER BY number LIMIT ?"):
        run = _run.decode(state)
        record_session(connection, run.session_id, run.id)


def _events(connection: sqlite3.Connection) -> Iterator[Event]:
    sql = """SELECT seq, ts, run, root, type, data FROM events
        WHERE type IN ('question', 'answer', 'task.changed') AND seq > ? ORDER BY seq LIMIT ?"""
    for seq, ts, run, root, kind, data in paged(connection, sql):
        yield Event(seq, ts, run, root, kind, _any.decode(data))


def _runs(connection: sqlite3.Connection) -> Iterator[tuple[Run, int]]:
    """Yield every run, with the event that ended it; 0 where it has not ended."""
    sql = """SELECT number, state, coalesce((SELECT max(seq) FROM events
            WHERE run = runs.id AND type = 'run.ended'
                AND type NOT IN ('text', 'thinking', 'raw', 'tool.started', 'tool.finished')), 0)
        FROM runs WHERE number > ? ORDER BY number LIMIT ?"""
    for _, state, ended_seq in paged(connection, sql):
        yield _run.decode(state), ended_seq


def paged(connection: sqlite3.Connection, sql: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query by its first column, a page at a time: rows may be changed in between."""
    last = 0
    while page := connection.execute(sql, (last, _PAGE)).fetchall():
        yield from page
        last = page[-1][0]
