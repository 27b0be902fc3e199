"""The store as its one owner holds it: a writer thread and a read connection on the same file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hocket.store.reading import Reading
from hocket.store.sidecar import OpenMark
from hocket.store.writer import Batch, Committed, Done, MakeRoom, Writer


class Store:
    """Opened by one process, which holds the server's lock. Reads see what has been committed."""

    def __init__(
        self, path: Path, writing: sqlite3.Connection, reading: sqlite3.Connection, make_room: MakeRoom
    ) -> None:
        self.path = path
        self.read = Reading(reading)
        self._mark = OpenMark(path, self.read.last_seq())
        self._writing = writing
        self._make_room = make_room
        self._writer: Writer | None = None

    def start_writing(self, done: Done) -> Writer:
        """Start the writer thread; it reports each group of batches to ``done``."""
        first, live = self.read.last_seq() + 1, self.read.live()
        self._writer = Writer(self._writing, first, live, done, self._mark.note, self._make_room)
        return self._writer

    def write_all(self, batches: Sequence[Batch]) -> list[tuple[Batch, Exception]]:
        """Write these and wait for it, where no server is there to be told; those that failed, and why."""
        failures: list[tuple[Batch, Exception]] = []
        written = threading.Semaphore(0)

        def done(group: list[tuple[Batch, Committed | Exception]]) -> None:
            failures.extend((batch, outcome) for batch, outcome in group if isinstance(outcome, Exception))
            written.release(len(group))

        writer = self.start_writing(done)
        for batch in batches:
            writer.submit(batch)
        for _ in batches:
            written.acquire()
        return failures

    def close(self) -> None:
        """Commit what is queued, fold the log into the file, close."""
        if self._writer is not None:
            self._writer.close()
        self.read.close()
        # Where the home itself was removed there is nothing left to fold or to say.
        with suppress(sqlite3.Error, OSError):
            self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._mark.close()
        self._writing.close()
