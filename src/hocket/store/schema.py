"""The tables, as numbered migrations: each is applied once, in order, and none is ever edited after a release."""

from __future__ import annotations

from typing import NamedTuple


class Migration(NamedTuple):
    """One step from version ``number - 1`` to ``number``."""

    number: int
    name: str
    statements: tuple[str, ...]


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        1,
        "runs, events and how far each run's output has been read",
        (
            """CREATE TABLE runs (
                id TEXT PRIMARY KEY,
                number BIGINT NOT NULL UNIQUE,
                root TEXT NOT NULL,
                parent TEXT,
                status TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                ended_at DOUBLE PRECISION,
                state TEXT NOT NULL,
                spec TEXT NOT NULL,
                request_key TEXT UNIQUE
            )""",
            # What is live is found without a look at history, however long that has grown.
            "CREATE INDEX runs_live ON runs (number) WHERE ended_at IS NULL",
            "CREATE INDEX runs_parent ON runs (parent, number)",
            "CREATE INDEX runs_root ON runs (root, number)",
            """CREATE TABLE events (
                seq BIGINT PRIMARY KEY,
                ts DOUBLE PRECISION NOT NULL,
                run TEXT NOT NULL,
                root TEXT NOT NULL,
                type TEXT NOT NULL,
                data TEXT NOT NULL
            )""",
            "CREATE INDEX events_run ON events (run, seq)",
            "CREATE INDEX events_root ON events (root, seq)",
            """CREATE TABLE offsets (
                run TEXT PRIMARY KEY,
                out_offset BIGINT NOT NULL,
                err_offset BIGINT NOT NULL,
                reader TEXT NOT NULL
            )""",
        ),
    ),
    Migration(
        2,
        "tasks and their hand-offs",
        (
            """CREATE TABLE tasks (
                id TEXT PRIMARY KEY,
                number BIGINT NOT NULL UNIQUE,
                status TEXT NOT NULL,
                queued BIGINT NOT NULL,
                state TEXT NOT NULL,
                request_key TEXT UNIQUE
            )""",
            "CREATE INDEX tasks_status ON tasks (status, number)",
            "CREATE INDEX tasks_queued ON tasks (number) WHERE queued > 0",
            """CREATE TABLE handoffs (
                id TEXT PRIMARY KEY,
                task TEXT NOT NULL,
                number BIGINT NOT NULL,
                run TEXT UNIQUE,
                depth BIGINT NOT NULL,
                completed_at DOUBLE PRECISION,
                state TEXT NOT NULL
            )""",
            "CREATE UNIQUE INDEX handoffs_task ON handoffs (task, number)",
            # The promise that a task has one agent at a time, kept by the database itself.
            "CREATE UNIQUE INDEX handoffs_open ON handoffs (task, depth) WHERE completed_at IS NULL",
        ),
    ),
    # No statement: `secret_migration` does it before, because names and values are told apart in Python.
    Migration(3, "values of secret variables are in files of their own", ()),
)

LATEST = MIGRATIONS[-1].number
