"""Follows the sessions of runs that Hocket did not start: their transcripts, until their processes are gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from hocket.config import caller_environment
from hocket.errors import Conflict, HocketError
from hocket.model import Event, Reason, Run, Spec, Status
from hocket.providers import PROVIDERS
from hocket.providers.base import LiveSession
from hocket.redaction import Redactor, secrets_of
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import Journal, run_event
from hocket.sessions.observed.discovery import changed_at, is_being_written, live_sessions, state_of
from hocket.sessions.transcripts import TranscriptEvent, Transcripts

NEWEST = 32 * 1024 * 1024
"""Bytes at the end of a transcript that are read if it was never read before."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the processes of all these sessions together."""
READ_SECONDS = 60.0
"""How long the end of a run waits for the rest of its transcripts."""

_decoder = msgspec.json.Decoder(Spec)


class _FollowedSession(NamedTuple):
    run: Run
    env: Mapping[str, str]
    """The variables that decide where the records of its CLI are."""


class ObservedRuns:
    """All live runs that are only observed. One per server; the next one continues at the committed positions."""

    def __init__(self, journal: Journal, transcripts: Transcripts) -> None:
        self._journal = journal
        self._transcripts = transcripts
        self._followed: dict[str, _FollowedSession] = {}
        self._processes: dict[str, LiveSession] = {}
        """What the last look found, by run."""
        self._tasks = BackgroundTasks()
        self._is_looking = False
        self._new = asyncio.Event()

    def open(self) -> None:
        # A teammate has no process of its own: it is followed with its lead.
        for run in [run for run in self._journal.live.values() if run.is_observed and run.teammate is None]:
            self.follow(run)

    async def close(self) -> None:
        await self._tasks.close()

    def follow(self, run: Run) -> None:
        """Read the transcripts of a run, and end it once its session has no process."""
        env = _decoder.decode(self._journal.read.spec(run.id)).env
        self._transcripts.follow(run, env, redactor=_redactor(), newest=NEWEST)
        self._followed[run.id] = _FollowedSession(run, env)
        self._new.set()
        if not self._is_looking:
            self._is_looking = True
            self._tasks.spawn(self._look())

    async def last_events(self, run: Run, count: int) -> list[TranscriptEvent]:
        """Return the last events of the transcript itself, of which less may have been recorded so far."""
        if not run.is_observed:
            raise Conflict(f"Hocket started run {run.number} and has its output", f"hocket logs {run.number}")
        return await self._transcripts.last(run, count, _redactor())

    async def _look(self) -> None:
        """Look at the processes of all sessions at once, again and again while there are any."""
        while self._followed:
            self._new.clear()
            followed = list(self._followed.values())
            before, self._processes = self._processes, await asyncio.to_thread(_processes, followed, self._processes)
            for run, _ in followed:
                if (process := self._processes.get(run.id)) is None:
                    del self._followed[run.id]
                    self._tasks.spawn(self._end(run))
                elif run.id in before and state_of(before[run.id]) is state_of(process):
                    await self._record_state(run, state_of(process))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._new.wait(), LOOK_EVERY)
        self._is_looking = False

    async def _record_state(self, run: Run, state: Status) -> None:
        """Record a state that lasts: the transcript tells of turns too, and a little later."""
        now = self._journal.live.get(run.id)
        if now is not None and now.status is not state:
            with suppress(HocketError):
                await self._journal.write([run_event(run, "session", {"session_id": run.session_id, "status": state})])

    async def _end(self, run: Run) -> None:
        """End a run whose session has no process: nothing tells how its work ended."""
        is_read = await self._transcripts.stop(run.id, READ_SECONDS)
        now = self._journal.live.get(run.id)
        if now is None:
            return
        events = [] if is_read else [_unread(now)]
        at, known = time.time(), dict[str, Any]()
        if now.pid is None and now.transcript is not None:  # Its process was gone before the import.
            at = min(at, max(await asyncio.to_thread(changed_at, now.transcript), now.started_at or 0.0))
            known = {"duration": at - (now.started_at or at)}
        ended = {
            "status": Status.LOST,
            "reason": Reason.PROCESS_GONE,
            "result": now.result,
            "error": now.error,
            "cost_usd": now.cost_usd,
            "cost_estimated": now.cost_estimated,
            "tokens": now.tokens,
            **known,
        }
        await self._journal.insist([*events, Event(0, at, run.id, run.root, "run.ended", ended)])


def _redactor() -> Redactor:
    """The session may have printed what this server knows to be secret."""
    return Redactor(secrets_of(caller_environment()))


def _unread(run: Run) -> Event:
    text = f"the end of its transcript could not be read within {READ_SECONDS:.0f} s: {run.transcript}"
    return run_event(run, "notice", {"kind": "transcript", "text": text})


def _processes(followed: Iterable[_FollowedSession], before: Mapping[str, LiveSession]) -> dict[str, LiveSession]:
    """By run, the process of its session; each folder is read once. ``before`` is what the last look found."""
    found: dict[str, LiveSession] = {}
    sessions: dict[tuple[str, str], dict[str, LiveSession]] = {}
    for run, env in followed:
        provider = PROVIDERS.get(run.provider or "")
        observed = provider.observed if provider is not None else None
        folders = observed.folders(env) if observed is not None else None
        if observed is None or folders is None:
            continue
        place = run.provider or "", folders.live
        if place not in sessions:
            sessions[place] = {one.session: one for one in live_sessions(observed, folders)}
        process = sessions[place].get(run.session_id or "")
        if process is None and (last := before.get(run.id)) is not None:
            # A record that is written in place is empty for a moment; one that names another session was left.
            is_read = any(one.pid == last.pid for one in sessions[place].values())
            process = last if not is_read and is_being_written(last, folders) else None
        if process is not None:
            found[run.id] = process
    return found
