"""Idle timeouts: stop agents without output. Output is any event of the run, or of one below it.

There is one timer for each live leaf with an idle timeout. Events do not touch it: it is checked when it expires, and
set again. Time in which an agent waits for an answer or a message does not count, nor does time in which the machine
sleeps.
"""

from __future__ import annotations

import asyncio

from hocket.model import Reason, Run, Status
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import Journal
from hocket.sessions.stops import Stops
from hocket.store import Committed


class IdleTimeouts:
    """The idle timeouts of all live leaves."""

    def __init__(self, journal: Journal, stops: Stops) -> None:
        self._journal = journal
        self._stops = stops
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """By leaf."""
        self._last_event: dict[str, float] = {}
        """When each live run last had an event, in the loop's monotonic time."""
        self._tasks = BackgroundTasks()
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Watch all live runs. Their earlier output is unknown, so each run gets its whole time again."""
        for run in self._journal.live.values():
            self._watch(run)
        self._journal.listen(self._on_commit)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await self._tasks.close()

    def _watch(self, run: Run) -> None:
        """Watch a run from the start of its process on."""
        is_active = run.has_process and run.status in (Status.RUNNING, Status.WAITING)
        if is_active and run.idle_timeout is not None and run.id not in self._timers:
            self._last_event[run.id] = self._loop.time()
            self._timers[run.id] = self._loop.call_later(run.idle_timeout, self._check, run.id, run.idle_timeout)

    def _on_commit(self, committed: Committed) -> None:
        for run in committed.runs.values():
            self._watch(run)
        if not self._timers:
            return
        now = self._loop.time()
        # Tasks have events too, and no end after which they would be removed.
        self._last_event.update((event.run, now) for event in committed.events if event.run in self._journal.live)
        for run in committed.runs.values():
            if run.ended:
                self._remove(run, now)

    def _remove(self, run: Run, now: float) -> None:
        """Remove an ended run; its last event counts for the live run above it."""
        if (timer := self._timers.pop(run.id, None)) is not None:
            timer.cancel()
        self._last_event.pop(run.id, None)
        if not self._timers:
            self._last_event.clear()
            return
        above = next((one for one in self._journal.above(run)[1:] if not one.ended), None)
        if above is not None:
            self._last_event[above.id] = now

    def _check(self, run_id: str, limit: float) -> None:
        """Stop a run without events for too long, else check again when that may be so."""
        run, now = self._journal.live.get(run_id), self._loop.time()
        if run is None:
            self._timers.pop(run_id, None)
            return
        if run.status is Status.WAITING:
            self._last_event[run_id] = now
        last = max(self._last_event.get(one.id, 0.0) for one in self._journal.live_below(run_id))
        if last + limit > now:
            self._timers[run_id] = self._loop.call_later(last + limit - now, self._check, run_id, limit)
        elif run.stop_reason is None:
            self._tasks.spawn(self._stops.insist_below(run_id, Reason.IDLE_TIMEOUT))
