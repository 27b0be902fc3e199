"""Queries for events, and for how far the output of a run has been read."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Literal

import msgspec

from hocket.model import Event
from hocket.store.runs import LATEST, RunQueries, prompt_decoder
from hocket.store.writer import FilePosition, Offsets, wire

RARE = "type NOT IN ('text', 'thinking', 'raw', 'tool.started', 'tool.finished')"
"""The condition of the index that finds events by their type. A query has to repeat it word for word to use it."""
_LAST_SEQ = """SELECT coalesce(max(seq), 0) FROM
    (SELECT max(seq) AS seq FROM events UNION ALL SELECT max(seq) FROM removed_runs) AS numbers"""
_COLUMNS = "SELECT seq, ts, run, root, type, data FROM events"

_any = msgspec.json.Decoder()


class EventLine(msgspec.Struct, frozen=True, gc=False):
    """An event in its wire form, with what a follower needs to know of it."""

    seq: int
    run: str
    type: str
    text: bytes


class EventQueries(RunQueries):
    """Events by run, by tree and by type."""

    def last_seq(self) -> int:
        """Return the highest sequence number ever assigned, also if its event was removed."""
        return int(self._connection.execute(_LAST_SEQ).fetchone()[0])

    def events(self, run_id: str, after: int = 0, limit: int = LATEST) -> list[Event]:
        """Return the own events of a run, or of a task, after a sequence number."""
        rows = self._connection.execute(
            f"{_COLUMNS} WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?", (run_id, after, limit)
        )
        return [_event(row) for row in rows]

    def events_of_type(self, run_id: str, *types: str) -> Iterator[Event]:
        """Yield the own events of a run that have one of these types, which are not those of its output.

        To be consumed without a pause: cursors are open meanwhile.
        """
        sql = f"{_COLUMNS} WHERE run = ? AND type = ? AND {RARE} ORDER BY seq"
        with ExitStack() as stack:
            cursors = [stack.enter_context(closing(self._connection.execute(sql, (run_id, kind)))) for kind in types]
            yield from map(_event, heapq.merge(*cursors))

    def last_event(self, run_id: str) -> Event | None:
        """Return the newest own event of a run."""
        sql = f"{_COLUMNS} WHERE run = ? ORDER BY seq DESC LIMIT 1"
        row = self._connection.execute(sql, (run_id,)).fetchone()
        return _event(row) if row else None

    def events_after(self, seq: int, *types: str) -> list[Event]:
        """Return the events of all runs after a sequence number that have one of these types.

        Reads every event after that number: not for the event loop.
        """
        marks = ", ".join("?" * len(types))
        sql = f"{_COLUMNS} WHERE seq > ? AND type IN ({marks}) ORDER BY seq"
        return [_event(row) for row in self._connection.execute(sql, (seq, *types))]

    def said_to(self, run_id: str) -> set[tuple[str, str]]:
        """Return type and id of every input and answer that was recorded for a run."""
        found = self.events_of_type(run_id, "input", "answer")
        return {(event.type, event.data["id"]) for event in found if "id" in event.data}

    def shown_prompt(self, run_id: str) -> str | None:
        """Return the prompt with its secrets masked.

        That is the one in the run's first event; runs of earlier versions have it in their spec alone.
        """
        sql = f"SELECT data FROM events WHERE run = ? AND type = 'run.created' AND {RARE} ORDER BY seq LIMIT 1"
        row = self._connection.execute(sql, (run_id,)).fetchone()
        return (prompt_decoder.decode(row[0]).prompt if row else None) or self.prompt(run_id)

    def event_page(
        self, column: Literal["run", "root"], run_id: str, after: int, limit: int, most: int
    ) -> list[EventLine]:
        """Return the next events of a run or a whole tree: at most ``limit``, none once there are ``most`` bytes."""
        lines, size = [], 0
        sql = f"{_COLUMNS} WHERE {column} = ? AND seq > ? ORDER BY seq LIMIT ?"
        # Closed at once: an open cursor holds back the checkpoint of the log.
        with closing(self._connection.execute(sql, (run_id, after, limit))) as rows:
            for row in rows:
                lines.append(EventLine(row[0], row[2], row[4], wire(*row)))
                size += len(lines[-1].text)
                if size >= most:
                    break
        return lines

    def offsets(self, run_id: str) -> Offsets:
        sql = "SELECT out_offset, err_offset, reader FROM offsets WHERE run = ?"
        row = self._connection.execute(sql, (run_id,)).fetchone()
        return Offsets(row[0], row[1], _any.decode(row[2])) if row else Offsets()

    def transcript_positions(self, run_id: str) -> dict[str, FilePosition]:
        """Return how far each transcript of a run has been read, by its path."""
        sql = "SELECT path, position, tail_size, tail_checksum, reader FROM transcripts WHERE run = ?"
        rows = self._connection.execute(sql, (run_id,))
        return {
            path: FilePosition(at, size, checksum, _any.decode(reader)) for path, at, size, checksum, reader in rows
        }


def _event(row: tuple[Any, ...]) -> Event:
    seq, ts, run, root, kind, data = row
    return Event(seq, ts, run, root, kind, _any.decode(data))
