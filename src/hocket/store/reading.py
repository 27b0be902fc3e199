"""Questions to the store, answered from a connection that cannot write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import msgspec

from hocket.errors import AmbiguousRun, NotFound
from hocket.model import Event, Run
from hocket.store.writer import Offsets, wire

_run = msgspec.json.Decoder(Run)
_any = msgspec.json.Decoder()

_BELOW = """WITH RECURSIVE below(id) AS (
    SELECT id FROM runs WHERE id = ?
    UNION ALL SELECT runs.id FROM runs JOIN below ON runs.parent = below.id
)"""


class Line(NamedTuple):
    """An event as it is sent, with what a follower needs to know of it."""

    seq: int
    run: str
    type: str
    text: bytes
    parent: str | None = None
    """Of a run that this event created."""


class Reading:
    """All reads; one connection, used from one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def _runs(self, sql: str, parameters: Iterable[object] = ()) -> list[Run]:
        return [_run.decode(state) for (state,) in self._connection.execute(sql, tuple(parameters))]

    def _each_run(self, sql: str, parameters: Iterable[object]) -> Iterator[Run]:
        """One after the other: results are long, and histories are too."""
        with closing(self._connection.execute(sql, tuple(parameters))) as rows:
            for (state,) in rows:
                yield _run.decode(state)

    def last_seq(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def last_number(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()[0])

    def run(self, run_id: str) -> Run | None:
        found = self._runs("SELECT state FROM runs WHERE id = ?", (run_id,))
        return found[0] if found else None

    def find(self, ref: str) -> Run:
        """The run that an id, a unique prefix or a number names."""
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

    def recent(self, limit: int) -> list[Run]:
        found = self._runs("SELECT state FROM runs ORDER BY number DESC LIMIT ?", (limit,))
        return found[::-1]

    def children(self, run_id: str) -> list[Run]:
        return self._runs("SELECT state FROM runs WHERE parent = ? ORDER BY number", (run_id,))

    def each_child(self, run_id: str) -> Iterator[Run]:
        """The same, one at a time. To be read to its end at once, like all that come one at a time."""
        return self._each_run("SELECT state FROM runs WHERE parent = ? ORDER BY number", (run_id,))

    def below(self, run_id: str) -> list[Run]:
        """The run and everything under it, oldest first."""
        return list(self.each_below(run_id))

    def each_below(self, run_id: str) -> Iterator[Run]:
        """The same, one at a time."""
        return self._each_run(
            _BELOW + "SELECT state FROM runs WHERE id IN (SELECT id FROM below) ORDER BY number", (run_id,)
        )

    def last_resuming(self, run: Run) -> Run | None:
        """The chain that was started last to go on with this one."""
        sql = """SELECT state FROM runs WHERE number > ? AND parent IS NULL
            AND json_extract(state, '$.resumed_from') = ? AND json_extract(state, '$.kind') = 'chain'
            ORDER BY number DESC LIMIT 1"""
        found = self._runs(sql, (run.number, run.id))
        return found[0] if found else None

    def spec(self, run_id: str) -> bytes:
        row = self._connection.execute("SELECT spec FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return str(row[0]).encode()

    def offsets(self, run_id: str) -> Offsets:
        sql = "SELECT out_offset, err_offset, reader FROM offsets WHERE run = ?"
        row = self._connection.execute(sql, (run_id,)).fetchone()
        return Offsets(row[0], row[1], _any.decode(row[2])) if row else Offsets()

    def events(self, run_id: str) -> list[Event]:
        """A run's own events, whole: for the fold and for tests."""
        return list(self.each_event(run_id))

    def each_event(self, run_id: str, *types: str) -> Iterator[Event]:
        """The same, one at a time, of these types where any are named."""
        wanted = f" AND type IN ({', '.join('?' * len(types))})" if types else ""
        sql = f"SELECT seq, ts, run, root, type, data FROM events WHERE run = ?{wanted} ORDER BY seq"
        with closing(self._connection.execute(sql, (run_id, *types))) as rows:
            for seq, ts, run, root, kind, data in rows:
                yield Event(seq, ts, run, root, kind, _any.decode(data))

    def said_to(self, run_id: str) -> set[tuple[str, str]]:
        """Type and id of everything that was recorded as said to a run."""
        sql = "SELECT type, data FROM events WHERE run = ? AND type IN ('input', 'answer')"
        rows = [(kind, _any.decode(data)) for kind, data in self._connection.execute(sql, (run_id,))]
        return {(kind, data["id"]) for kind, data in rows if "id" in data}

    def answered(self, root: str, key: str) -> tuple[str, dict[str, Any]] | None:
        """The answer that was given under this key to a run of this tree."""
        sql = "SELECT run, data FROM events WHERE root = ? AND type = 'answer' ORDER BY seq"
        with closing(self._connection.execute(sql, (root,))) as rows:
            for run, data in rows:
                answer: dict[str, Any] = _any.decode(data)
                if answer.get("key") == key:
                    return run, answer
        return None

    def page(self, run: Run, after: int, limit: int, most: int) -> list[Line]:
        """The next events of a run and all below it: ``limit`` at most, none once there are ``most`` bytes."""
        columns = "SELECT seq, ts, run, root, type, data FROM events"
        if run.root == run.id:
            sql, key = f"{columns} WHERE root = ? AND seq > ? ORDER BY seq LIMIT ?", run.id
        elif self._has_children(run.id):
            inside = "WHERE run IN (SELECT id FROM below) AND seq > ? ORDER BY seq LIMIT ?"
            sql, key = f"{_BELOW}{columns} {inside}", run.id
        else:
            sql, key = f"{columns} WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?", run.id
        lines, size = [], 0
        # Left open, a cursor would hold back the checkpoint of the log.
        with closing(self._connection.execute(sql, (key, after, limit))) as rows:
            for row in rows:
                lines.append(Line(row[0], row[2], row[4], wire(*row)))
                size += len(lines[-1].text)
                if size >= most:
                    break
        return lines

    def _has_children(self, run_id: str) -> bool:
        return self._connection.execute("SELECT 1 FROM runs WHERE parent = ? LIMIT 1", (run_id,)).fetchone() is not None
