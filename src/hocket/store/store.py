"""The store of one server: a writer thread, and connections that read, on the same file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hocket.store.events import EventQueries
from hocket.store.questions import QuestionQueries
from hocket.store.removal import RemovalQueries
from hocket.store.sessions import SessionQueries
from hocket.store.state_file import OpenMark
from hocket.store.tasks import TaskQueries
from hocket.store.usage import UsageQueries
from hocket.store.writer import Batch, Committed, Done, MakeRoom, Writer

T = TypeVar("T")


class Queries(EventQueries, QuestionQueries, RemovalQueries, SessionQueries, UsageQueries, TaskQueries):
    """Reads what has been committed. A connection is used by one thread."""


class Store:
    """Opened by one process, which holds the server's lock. Queries see what has been committed."""

    def __init__(
        self, path: Path, writing: sqlite3.Connection, connect: Callable[[], sqlite3.Connection], make_room: MakeRoom
    ) -> None:
        self.path = path
        self._connect = connect
        """Opens a connection that only reads."""
        self.read = Queries(connect())
        self._aside = ThreadPoolExecutor(1, "hocket-reader")
        self._aside_queries: Queries | None = None
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
        """Write these batches and wait for them, for a caller without an event loop; return those that failed."""
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

    def read_aside(self, query: Callable[[Queries], T]) -> Future[T]:
        """Run a query in a thread that has a connection of its own."""

        def run() -> T:
            if self._aside_queries is None:
                self._aside_queries = Queries(self._connect())
            return query(self._aside_queries)

        return self._aside.submit(run)

    def close(self) -> None:
        """Commit what is queued, checkpoint the log, close."""
        if self._writer is not None:
            self._writer.close()
        self._aside.shutdown(wait=True, cancel_futures=True)
        if self._aside_queries is not None:
            self._aside_queries.close()
        self.read.close()
        # Where the home itself was removed there is nothing left to write to.
        with suppress(sqlite3.Error, OSError):
            self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._mark.close()
        self._writing.close()
