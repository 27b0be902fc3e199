"""Sessions of CLIs: which run has each of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from hocket.model import Run
from hocket.store.runs import RunQueries, batched, marks

_PUT = "INSERT INTO sessions (session, run) VALUES (?, ?) ON CONFLICT (session) DO UPDATE SET run = excluded.run"


def record_session(connection: sqlite3.Connection, session: object, run: str) -> None:
    """Write which run has a session, the last one that reports it; None is no session."""
    if isinstance(session, str):
        connection.execute(_PUT, (session, run))


class SessionQueries(RunQueries):
    """Runs by session."""

    def run_of_session(self, session: str) -> Run | None:
        found = self._runs("SELECT state FROM runs WHERE id = (SELECT run FROM sessions WHERE session = ?)", (session,))
        return found[0] if found else None

    def known_sessions(self, sessions: Sequence[str]) -> set[str]:
        """Return those of these sessions that a run has."""
        known: set[str] = set()
        for some in batched(sessions):
            rows = self._connection.execute(f"SELECT session FROM sessions WHERE session IN ({marks(some)})", some)
            known.update(session for (session,) in rows)
        return known
