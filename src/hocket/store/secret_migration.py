"""Moving the values of secret variables out of a database that an earlier version wrote.

Before schema 3 the records of runs and the queues of tasks held whole environments. Live runs and queued items keep
their values in ``secrets/<owner>``; of all others only the names are kept.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hocket import secret_files
from hocket.secret_files import Values
from hocket.store.backfill import paged

log = logging.getLogger("hocket")

MOVED = 3
"""The first schema whose databases hold no values."""


def move_secrets(connection: sqlite3.Connection, folder: Path) -> None:
    """Move the values of live runs and of queued items into files, and remove all others.

    The files are on the disk before a row is changed, and a second attempt has the same result.
    """
    known: dict[str, Values] = {}
    for (root,) in connection.execute("SELECT DISTINCT root FROM runs WHERE ended_at IS NULL").fetchall():
        before = secret_files.read_values(folder, root)
        records = connection.execute("SELECT spec FROM runs WHERE root = ? ORDER BY number", (root,)).fetchall()
        given = [env for (record,) in records for env in secret_files.environments(record.encode())]
        known[root] = secret_files.with_added(before, given)
    for _, task in _queues(connection):
        known |= {item["id"]: secret_files.with_added({}, [item["env"]]) for item in _with_secrets(task)}
    for owner, values in known.items():
        if values:
            secret_files.write_values(folder, owner, values)
    remove_secrets(connection, known)


def remove_secrets(connection: sqlite3.Connection, known: dict[str, Values] | None = None) -> None:
    """Replace all values by names, in free pages too. ``known`` has the values that are in files, by owner."""
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for root, run, record in _records(connection):
            values = (known or {}).get(root) or secret_files.with_added({}, secret_files.environments(record))
            concealed = secret_files.conceal(record, values)
            if concealed != record:
                connection.execute("UPDATE runs SET spec = ? WHERE id = ?", (concealed.decode(), run))
        for task_id, task in _queues(connection):
            for item in _with_secrets(task):
                item["env"] = secret_files.public_part(item["env"])
            state = msgspec.json.encode(task).decode()
            connection.execute("UPDATE tasks SET state = ? WHERE id = ?", (state, task_id))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    _rewrite(connection)


def clean_copy(path: Path) -> None:
    """Remove the values from a copy that an earlier migration kept."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        remove_secrets(connection)
    except (sqlite3.Error, msgspec.MsgspecError, KeyError, TypeError) as error:
        log.warning("%s may hold values of secret variables; remove it: %s", path, error)
    finally:
        connection.close()


def _rewrite(connection: sqlite3.Connection) -> None:
    """Rewrite the file: pages that were freed earlier still hold deleted values."""
    try:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        log.warning(
            "the database could not be rewritten; its free pages may hold values of secret variables: %s", error
        )


def _records(connection: sqlite3.Connection) -> Iterator[tuple[str, str, bytes]]:
    """Yield root, id and record of every run."""
    sql = "SELECT number, root, id, spec FROM runs WHERE number > ? ORDER BY number LIMIT ?"
    for _, root, run, record in paged(connection, sql):
        yield root, run, record.encode()


def _queues(connection: sqlite3.Connection) -> list[tuple[str, dict[str, Any]]]:
    """Return every task whose queue holds a secret."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'tasks'").fetchone():
        return []  # A schema without tasks.
    rows = connection.execute("SELECT id, state FROM tasks WHERE queued > 0").fetchall()
    tasks = [(task_id, msgspec.json.decode(state)) for task_id, state in rows]
    return [(task_id, task) for task_id, task in tasks if any(_with_secrets(task))]


def _with_secrets(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in task["queue"] if secret_files.secret_part(item.get("env") or {})]
