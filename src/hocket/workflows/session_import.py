"""Sessions that Hocket did not start, as runs: listing and importing them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from hocket.config import session_places
from hocket.errors import Conflict
from hocket.keeper import files
from hocket.model import Event, Kind, Run, Spec
from hocket.providers import PROVIDERS
from hocket.redaction import Redactor, secrets_of
from hocket.sessions.background import OncePerKey
from hocket.sessions.hub import LAST_CHARACTERS
from hocket.sessions.journal import Journal, run_event
from hocket.sessions.observed.discovery import FoundSession, ListedSession, describe, find, find_all, state_of
from hocket.sessions.observed.following import NEWEST, ObservedRuns
from hocket.sessions.run_identity import session_of
from hocket.store import FilePosition, Queries
from hocket.workflows.start import RunBatch, Starter

AT_ONCE = 50
MOST = 1000
"""Sessions whose transcripts are looked into for one list."""
READ_SECONDS = 10.0
"""How long an import waits until a session without a process has been read."""


class ListedRun(NamedTuple):
    """A run as it is listed, and its last words."""

    run: Run
    last: str | None = None


class SessionImport:
    """Turns sessions into runs that are only observed. One per server."""

    def __init__(self, journal: Journal, starter: Starter, observed: ObservedRuns) -> None:
        self._journal = journal
        self._starter = starter
        self._observed = observed
        self._once = OncePerKey()

    async def adopt(self, ref: str, env: Mapping[str, str]) -> Run:
        """Return the run of a session that Hocket did not start, a new one unless it was imported before.

        If the session was continued after its run had ended, a new run has what came after.
        """
        places = session_places("/", env)
        found = await asyncio.to_thread(find, ref, places)
        return await self._once(found.id, partial(self._create, found, places), lambda _: self._imported(found))

    def _imported(self, found: FoundSession) -> Run | None:
        """The run that has everything of a session, or will have it."""
        run = self._run_of(found.id)
        if run is not None and not run.is_observed:
            raise Conflict(
                f"session {found.id} is that of run {run.number}, which Hocket started", f"hocket logs {run.number}"
            )
        is_over = run is not None and run.ended_at is not None
        goes_on = found.process is not None or found.changed > (run.ended_at or 0.0 if run is not None else 0.0)
        return None if is_over and goes_on else run

    def _run_of(self, session: str) -> Run | None:
        """The last run of a session, also one that has not reported it yet."""
        beginning = (run for run in self._journal.live.values() if session_of(run.id) == session)
        run = next(beginning, None) or self._journal.read.run_of_session(session)
        return run and self._journal.run(run.id)

    async def _create(self, found: FoundSession, places: Mapping[str, str]) -> Run:
        told, size = await asyncio.to_thread(_examined, found)
        before, batch = self._run_of(found.id), RunBatch()
        run = self._stage(batch, told, places)
        if before is not None:
            batch.transcripts = self._positions_behind(before, run)
        elif size > NEWEST:
            text = f"only the last {NEWEST >> 20} MB of its transcript are read: {found.transcript}"
            batch.events.append(run_event(run, "notice", {"kind": "transcript", "text": text}))
        run = (await self._starter.commit_runs(batch))[run.id]
        self._observed.follow(run)
        if found.process is None:
            with suppress(TimeoutError):
                run = await asyncio.wait_for(self._journal.wait_for_end(run), READ_SECONDS)
        return run

    def _stage(self, batch: RunBatch, told: ListedSession, places: Mapping[str, str]) -> Run:
        """Add the run of a session to a batch, as it began."""
        described = told.run
        # Nothing is started by it: a resume binds the agent anew.
        spec = Spec(described.agent, described.provider or "", (), described.cwd, places)
        known = {"session_id": described.session_id, "transcript": described.transcript}
        run = self._starter.stage_run(batch, Kind.LEAF, spec, None, 0, {"origin": described.origin, **known})
        begun = described.started_at or described.created_at
        batch.events.append(run_event(run, "session", known))
        batch.events.append(Event(0, begun, run.id, run.id, "run.started", {"pid": described.pid}))
        return run

    def _positions_behind(self, before: Run, run: Run) -> dict[tuple[str, str], FilePosition]:
        """Where a run goes on in the transcripts that another run of its session has read."""
        sessions = PROVIDERS[run.provider or ""].sessions
        format_ = sessions.transcript_files if sessions is not None else None
        if format_ is None:
            return {}
        return {
            (run.id, path): dataclasses.replace(position, reader=format_.continued(position.reader))
            for path, position in self._journal.read.transcript_positions(before.id).items()
        }

    async def listed(
        self, env: Mapping[str, str], since: float, limit: int, matches: Callable[[Run], bool]
    ) -> list[ListedRun]:
        """Return the newest sessions that have a process or changed since a time, the newest last.

        An imported session is its run. Those of other runs are left out.
        """
        found = await asyncio.to_thread(find_all, env, since)
        runs = await self._journal.read_aside(partial(_runs_of, sessions=[one.id for one in found]))
        begun = {session_of(run.id) for run in self._journal.live.values()}  # before they report it
        newest = [one for one in reversed(found) if one.id not in begun and _is_listed(one, runs.get(one.id))][:MOST]
        redactor, listed = Redactor(secrets_of(env)), list[ListedRun]()
        for first in range(0, len(newest), AT_ONCE):
            some = newest[first : first + AT_ONCE]
            rows = await asyncio.to_thread(_described, some, runs, redactor)
            listed += [row for row in rows if matches(row.run)]
            if len(listed) >= limit:
                break
        return listed[:limit][::-1]


def _examined(found: FoundSession) -> tuple[ListedSession, int]:
    """What the records of a session tell, and the size of its transcript."""
    return describe(found), files.size(found.transcript) if found.transcript else 0


def _runs_of(read: Queries, sessions: Sequence[str]) -> dict[str, Run]:
    known = read.known_sessions(sessions)
    return {session: run for session in known if (run := read.run_of_session(session)) is not None}


def _is_listed(found: FoundSession, run: Run | None) -> bool:
    """Whether a session is not that of a run which Hocket started, or was opened again after that run."""
    return run is None or run.is_observed or (run.ended and found.process is not None)


def _described(some: Sequence[FoundSession], runs: Mapping[str, Run], redactor: Redactor) -> list[ListedRun]:
    return [_row(found, runs.get(found.id), redactor) for found in some]


def _row(found: FoundSession, imported: Run | None, redactor: Redactor) -> ListedRun:
    told = describe(found)
    last = redactor.text(told.last or told.prompt or "")[:LAST_CHARACTERS] or None
    if imported is None or (imported.ended and found.process is not None):
        return ListedRun(told.run, last)
    now = imported if imported.ended else replace(imported, status=state_of(found.process))
    return ListedRun(now, last)
