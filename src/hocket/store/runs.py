"""Queries for runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

import msgspec

from hocket.errors import AmbiguousRun, NotFound
from hocket.model import Kind, Run, Status

LATEST = 2**62
"""Greater than every number and every sequence number."""
MANY = 500
"""Values in one list of a query."""
SHORT_SESSION = 8
"""A session is named by at least so many characters: fewer are a number or the beginning of a run's id."""
LONGEST_SESSION = 128
BELOW = """WITH RECURSIVE below(id) AS (
    SELECT id FROM runs WHERE id = ?
    UNION ALL SELECT runs.id FROM runs JOIN below ON runs.parent = below.id
)"""
"""The ids of a run and of everything below it."""

_LAST_NUMBER = """SELECT coalesce(max(number), 0) FROM
    (SELECT max(number) AS number FROM runs UNION ALL SELECT max(number) FROM removed_runs) AS numbers"""

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


def _unknown_hint(ref: str) -> str:
    listed = "`hocket ps -a` lists them"
    return f"{listed}; a session that Hocket did not start: hocket import {ref}" if _may_be_session(ref) else listed


def _may_be_session(ref: str) -> bool:
    return SHORT_SESSION <= len(ref) <= LONGEST_SESSION and ref.isascii() and ref.replace("-", "").isalnum()


def batched(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the values in parts that fit into one query."""
    return (values[begin : begin + MANY] for begin in range(0, len(values), MANY))


def marks(values: Sequence[str]) -> str:
    """The place holders of a list in a query."""
    return ", ".join("?" * len(values))


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
        """Return the highest number of a run, removed ones included."""
        return int(self._connection.execute(_LAST_NUMBER).fetchone()[0])

    def run(self, run_id: str) -> Run | None:
        found = self._runs("SELECT state FROM runs WHERE id = ?", (run_id,))
        return found[0] if found else None

    def find(self, ref: str) -> Run:
        """Return the run that an id, a unique prefix or a number names; of a run with a session that of the session."""
        if ref.isascii() and ref.isdigit() and len(ref) < 19:
            found = self._runs("SELECT state FROM runs WHERE number = ?", (int(ref),))
        elif ref.isascii() and ref.isalnum():
            found = self._runs("SELECT state FROM runs WHERE id >= ? AND id < ? LIMIT 2", (ref, ref + "~"))
            found = [run for run in found if run.id == ref] or found
        else:
            found = []
        if not found and _may_be_session(ref):
            within = "SELECT run FROM sessions WHERE session >= ? AND session < ?"
            found = self._runs(f"SELECT state FROM runs WHERE id IN ({within}) LIMIT 2", (ref, ref + "~"))
        if not found and self._is_removed(ref):
            raise NotFound(f"run {ref} was removed by `hocket gc`", "`hocket ps -a` lists those that are left")
        if not found:
            raise NotFound(f"there is no run {ref!r}", _unknown_hint(ref))
        if len(found) > 1:
            raise AmbiguousRun(f"{ref!r} fits more than one run", "Give more of the id, or the number")
        return found[0]

    def _is_removed(self, ref: str) -> bool:
        number = int(ref) if ref.isascii() and ref.isdigit() and len(ref) < 19 else None
        sql = "SELECT 1 FROM removed_runs WHERE id = ? OR number = ?"
        return self._connection.execute(sql, (ref, number)).fetchone() is not None

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

    def families(self, run_ids: Sequence[str], *, ended_too: bool, limit: int) -> list[Run]:
        """Return these runs, all runs above them, and what is below them, oldest first.

        Of those below only the newest ``limit``, and without ``ended_too`` none that has ended. Not for the event loop.
        """
        found: dict[str, Run] = {}
        for some in batched(run_ids):
            seeds = f"SELECT id FROM runs WHERE id IN ({marks(some)})"
            sql = f"""WITH RECURSIVE above(id) AS (
                    {seeds} UNION SELECT runs.parent FROM runs JOIN above ON runs.id = above.id
                ) SELECT state FROM runs WHERE id IN (SELECT id FROM above)"""
            found |= {run.id: run for run in self._runs(sql, some)}
            live = "" if ended_too else "AND ended_at IS NULL"
            sql = f"""WITH RECURSIVE below(id) AS (
                    {seeds} UNION SELECT runs.id FROM runs JOIN below ON runs.parent = below.id
                ) SELECT state FROM runs WHERE id IN (SELECT id FROM below) {live} ORDER BY number DESC LIMIT ?"""
            found |= {run.id: run for run in self._runs(sql, (*some, limit))}
        return sorted(found.values(), key=lambda run: run.number)

    def last_resuming(self, run: Run) -> Run | None:
        """Return the newest chain that resumes this one."""
        sql = "SELECT state FROM runs WHERE resumed_from = ? AND parent IS NULL ORDER BY number DESC"
        return next((one for one in self._each_run(sql, (run.id,)) if one.kind is Kind.CHAIN), None)

    def spec(self, run_id: str) -> bytes:
        row = self._connection.execute("SELECT spec FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no run {run_id!r}: it may have been removed by `hocket gc`")
        return str(row[0]).encode()

    def prompt(self, run_id: str) -> str | None:
        """Return the prompt in a run's spec."""
        return prompt_decoder.decode(self.spec(run_id)).prompt
