"""Agents that say nothing for too long. Only what is told counts: an event of the run, or of one below it.

One timer for each live leaf that has such a bound. It is set again only when it rings, so that news cost nothing. Time
in which an agent waits for an answer or a message does not count, nor does a sleeping machine's.
"""

from __future__ import annotations

import asyncio

from hocket.errors import HocketError
from hocket.model import Kind, Reason, Run, Status
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.stops import Stops
from hocket.store import Committed


class _Watch:
    """One leaf that is listened to."""

    def __init__(self, run: Run, limit: float, now: float) -> None:
        self.id = run.id
        self.limit = limit
        self.heard = now
        """When it was last heard as far as its timer knows, in the loop's time, which is monotonic."""
        self.timer: asyncio.TimerHandle | None = None


class IdleTimeouts:
    """All live leaves that must not be silent for long."""

    def __init__(self, journal: Journal, stops: Stops) -> None:
        self._journal = journal
        self._stops = stops
        self._watches: dict[str, _Watch] = {}
        self._heard: dict[str, float] = {}
        """When each live run last had an event. Which timers that extends is computed when a timer is due."""
        self._tasks = BackgroundTasks()
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Watch all live runs. Earlier silence is unknown, so each run gets its whole time again."""
        for run in self._journal.live.values():
            self._watch(run)
        self._journal.listen(self._on_commit)

    async def close(self) -> None:
        for watch in self._watches.values():
            if watch.timer is not None:
                watch.timer.cancel()
        await self._tasks.close()

    def _watch(self, run: Run) -> None:
        """Watch a run from the start of its process on."""
        if run.kind is not Kind.LEAF or run.idle_timeout is None or run.id in self._watches:
            return
        if run.status in (Status.RUNNING, Status.WAITING):
            watch = self._watches[run.id] = _Watch(run, run.idle_timeout, self._loop.time())
            self._set(watch, watch.limit)

    def _set(self, watch: _Watch, delay: float) -> None:
        watch.timer = self._loop.call_later(delay, self._ring, watch)

    def _on_commit(self, committed: Committed) -> None:
        for run in committed.runs.values():
            self._watch(run)
        if not self._watches:
            return
        now = self._loop.time()
        # Tasks have events too, and no end that would have them forgotten.
        self._heard.update((event.run, now) for event in committed.events if event.run in self._journal.live)
        for run in committed.runs.values():
            if run.ended:
                self._leave(run, now)

    def _leave(self, run: Run, now: float) -> None:
        """Forget an ended run; its last event counts for the live run above it."""
        self._forget(run.id)
        self._heard.pop(run.id, None)
        if not self._watches:
            self._heard.clear()
            return
        above = next((one for one in self._journal.above(run)[1:] if not one.ended), None)
        if above is not None:
            self._heard[above.id] = now

    def _last_word(self, watch: _Watch) -> float:
        """When it was last heard. Who works through others is at work as long as they are."""
        below = self._journal.live_below(watch.id)
        return max([watch.heard, *(self._heard.get(run.id, 0.0) for run in below)])

    def _forget(self, run_id: str) -> None:
        watch = self._watches.pop(run_id, None)
        if watch is not None and watch.timer is not None:
            watch.timer.cancel()

    def _ring(self, watch: _Watch) -> None:
        run = self._journal.live.get(watch.id)
        if run is None:
            self._forget(watch.id)
            return
        now = self._loop.time()
        watch.heard = now if run.status is Status.WAITING else self._last_word(watch)
        left = watch.heard + watch.limit - now
        if left > 0:
            self._set(watch, left)
        elif run.stop_reason is None:
            watch.timer = None
            self._tasks.spawn(self._give_up(watch, run))

    async def _give_up(self, watch: _Watch, run: Run) -> None:
        try:
            await self._stops.request_below(run.id, Reason.IDLE_TIMEOUT)
        except HocketError:
            self._set(watch, RETRY_AFTER)  # It could not be recorded, so it has not happened.
