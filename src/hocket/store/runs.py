"""Queries for runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import msgspec

from hocket.errors import AmbiguousRun, NotFound
from hocket.model import Kind, Run, Status

LATEST = 2**62
"""Greater than every number and every sequence number."""
BELOW = """WITH RECURSIVE below(id) AS (
    SELECT id FROM runs WHERE id = ?
    UNION ALL SELECT runs.id FROM runs JOIN below ON runs.parent = below.id
)"""
"""The ids of a run and of everything below it."""

_run = msgspec.json.Decoder(Run)


class _Prompt(msgspec.Struct):
    prompt: str | None = None


prompt_decoder = msgspec.json.Decoder(_Prompt)
"""Of a spec, or of a run's first event, the prompt alone."""


def below_test(top: str, parent_of: Callable[[str], str | None]) -> Callable[[str | None], bool]:
    """Return a test for whether a run is at or below another one. It remembers what it has found."""
    known = {top: True}

    def is_below(run_id: str | None) -> bool:
        path: list[str] = []
        while run_id is not None and run_id not in known:
            path.append(run_id)
            run_id = parent_of(run_id)
        found = run_id is not None and known[run_id]
        known.update(dict.fromkeys(path, found))
        return found

    return is_below


class RunQueries:
    """Runs by name, by tree and by age."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def _runs(self, sql: str, parameters: Iterable[object] = ()) -> list[Run]:
        return [_run.decode(state) for (state,) in self._connection.execute(sql, tuple(parameters))]

    def _each_run(self, sql: str, parameters: Iterable[object]) -> Iterator[Run]:
        # Closed at once: an open cursor holds back the checkpoint of the log.
        with closing(self._connection.execute(sql, tuple(parameters))) as rows:
            for (state,) in rows:
                yield _run.decode(state)

    def last_number(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()[0])

    def run(self, run_id: str) -> Run | None:
        found = self._runs("SELECT state FROM runs WHERE id = ?", (run_id,))
        return found[0] if found else None

    def find(self, ref: str) -> Run:
        """Return the run that an id, a unique prefix or a number names."""
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
        """Return the newest runs before a number, with this status and created since then, oldest first."""
        # Chosen by an index that has these columns, before any record is read.
        sql = """SELECT state FROM runs WHERE number IN (
                SELECT number FROM runs WHERE number < ? AND (? IS NULL OR status = ?) AND created_at >= ?
                ORDER BY number DESC LIMIT ?
            ) ORDER BY number"""
        return self._runs(sql, (before, status, status, since or 0.0, limit))

    def in_tree(self, root: str, before: int, limit: int) -> list[Run]:
        """Return the newest runs of a tree before a number, the newest first."""
        sql = "SELECT state FROM runs WHERE root = ? AND number < ? ORDER BY number DESC LIMIT ?"
        return self._runs(sql, (root, before, limit))

    def parent(self, run_id: str) -> str | None:
        row = self._connection.execute("SELECT parent FROM runs WHERE id = ?", (run_id,)).fetchone()
        return row[0] if row else None

    def children(self, run_id: str, after: int = 0, limit: int = LATEST) -> list[Run]:
        """Return the children of a run after a number, oldest first."""
        sql = "SELECT state FROM runs WHERE parent = ? AND number > ? ORDER BY number LIMIT ?"
        return self._runs(sql, (run_id, after, limit))

    def each_child(self, run_id: str) -> Iterator[Run]:
        """Yield the children one at a time. To be consumed without a pause: the cursor is open meanwhile."""
        return self._each_run("SELECT state FROM runs WHERE parent = ? ORDER BY number", (run_id,))

    def has_children(self, run_id: str) -> bool:
        return self._connection.execute("SELECT 1 FROM runs WHERE parent = ? LIMIT 1", (run_id,)).fetchone() is not None

    def below(self, run_id: str) -> list[Run]:
        """Return the run and everything below it, oldest first."""
        sql = f"{BELOW} SELECT state FROM runs WHERE id IN (SELECT id FROM below) ORDER BY number"
        return self._runs(sql, (run_id,))

    def last_resuming(self, run: Run) -> Run | None:
        """Return the newest chain that resumes this one."""
        sql = "SELECT state FROM runs WHERE resumed_from = ? AND parent IS NULL ORDER BY number DESC"
        return next((one for one in self._each_run(sql, (run.id,)) if one.kind is Kind.CHAIN), None)

    def spec(self, run_id: str) -> bytes:
        row = self._connection.execute("SELECT spec FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return str(row[0]).encode()

    def prompt(self, run_id: str) -> str | None:
        """Return the prompt in a run's spec."""
        return prompt_decoder.decode(self.spec(run_id)).prompt
