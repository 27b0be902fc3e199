"""The tables, as ordered migrations: each is applied once, in order, and none is edited after a release."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from hocket.store.backfill import fill_lookup_tables, fill_sessions


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from version ``number - 1`` to ``number``."""

    number: int
    name: str
    statements: tuple[str, ...]
    fill: Callable[[sqlite3.Connection], None] | None = None
    """Called after the statements, in the same transaction, to fill new tables from what is there."""


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
            # Finds live runs without reading history.
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
            # A task has one agent at a time.
            "CREATE UNIQUE INDEX handoffs_open ON handoffs (task, depth) WHERE completed_at IS NULL",
        ),
    ),
    # No statement: `secret_migration` runs before the copy is kept.
    Migration(3, "values of secret variables are in files of their own", ()),
    Migration(
        4,
        "questions, usage and other lookups without a search through events",
        (
            """CREATE TABLE questions (
                seq BIGINT PRIMARY KEY,
                run TEXT NOT NULL,
                root TEXT NOT NULL,
                id TEXT NOT NULL,
                asked_at DOUBLE PRECISION NOT NULL,
                question TEXT NOT NULL,
                answer_seq BIGINT UNIQUE,
                answered_at DOUBLE PRECISION,
                answer TEXT,
                answer_key TEXT
            )""",
            "CREATE INDEX questions_run ON questions (run, id, answer_seq)",
            "CREATE INDEX questions_id ON questions (id, answer_seq)",
            "CREATE INDEX questions_root ON questions (root, answer_seq)",
            "CREATE INDEX questions_key ON questions (root, answer_key)",
            """CREATE TABLE usage (
                run TEXT PRIMARY KEY,
                root TEXT NOT NULL,
                cost_usd DOUBLE PRECISION,
                cost_estimated BIGINT NOT NULL,
                tokens BIGINT,
                ended_seq BIGINT
            )""",
            "CREATE INDEX usage_root ON usage (root, ended_seq, cost_usd, tokens)",
            """CREATE TABLE task_keys (
                task TEXT NOT NULL,
                key TEXT NOT NULL,
                seq BIGINT NOT NULL,
                PRIMARY KEY (task, key)
            )""",
            "ALTER TABLE runs ADD COLUMN resumed_from TEXT",
            "CREATE INDEX runs_resumed ON runs (resumed_from, number) WHERE resumed_from IS NOT NULL",
            "CREATE INDEX runs_children ON runs (parent, id)",
            "CREATE INDEX runs_listed ON runs (number, status, created_at)",
            # Without the events that output consists of, which are nearly all and are never looked up by their type.
            """CREATE INDEX events_type ON events (run, type, seq)
                WHERE type NOT IN ('text', 'thinking', 'raw', 'tool.started', 'tool.finished')""",
            "CREATE INDEX events_tasks ON events (seq, run) WHERE type = 'task.changed'",
        ),
        fill_lookup_tables,
    ),
    Migration(
        5,
        "archived and removed tasks",
        (
            "ALTER TABLE tasks ADD COLUMN archived BIGINT NOT NULL DEFAULT 0",
            # A number is never used again, and a repeated removal finds what it removed.
            "CREATE TABLE removed_tasks (id TEXT PRIMARY KEY, number BIGINT NOT NULL UNIQUE)",
        ),
    ),
    Migration(
        6,
        "how far the transcripts of a run have been read",
        (
            """CREATE TABLE transcripts (
                run TEXT NOT NULL,
                path TEXT NOT NULL,
                position BIGINT NOT NULL,
                tail_size BIGINT NOT NULL,
                tail_checksum BIGINT NOT NULL,
                reader TEXT NOT NULL,
                PRIMARY KEY (run, path)
            )""",
        ),
    ),
    Migration(
        7,
        "which run has a session",
        ("CREATE TABLE sessions (session TEXT PRIMARY KEY, run TEXT NOT NULL)",),
        fill_sessions,
    ),
    Migration(
        8,
        "runs that were removed",
        (
            # Their numbers, and the sequence numbers of their events, are never used again.
            """CREATE TABLE removed_runs (
                id TEXT PRIMARY KEY,
                number BIGINT NOT NULL UNIQUE,
                created_at DOUBLE PRECISION NOT NULL,
                removed_at DOUBLE PRECISION NOT NULL,
                seq BIGINT NOT NULL,
                pending BIGINT NOT NULL
            )""",
            "CREATE INDEX removed_runs_seq ON removed_runs (seq)",
            "CREATE INDEX removed_runs_pending ON removed_runs (number) WHERE pending = 1",
            "CREATE INDEX sessions_run ON sessions (run)",
        ),
    ),
)

LATEST = MIGRATIONS[-1].number
