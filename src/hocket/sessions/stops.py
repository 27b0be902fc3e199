"""Stopping runs: a stop is recorded first, and the supervisor and the chain driver carry out what is recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hocket.errors import DiskLow, HocketError
from hocket.keeper import files
from hocket.model import Event, Kind, Reason, Run
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.limits import Reserve
from hocket.sessions.run_identity import directory
from hocket.store import Committed

DISK_CHECK_SECONDS = 2.0
"""How often a stop checks whether only a full disk keeps it from being complete."""


def stop_event(run: Run, reason: Reason) -> Event:
    return Event(0, time.time(), run.id, run.root, "input", {"kind": "stop", "reason": reason})


def stopped_in(committed: Committed) -> Iterable[str]:
    """The ids of the runs for which a commit records a stop."""
    return (event.run for event in committed.events if event.type == "input" and event.data.get("kind") == "stop")


class Stops:
    """One per server."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self._home = home
        self._journal = journal

    async def request(self, runs: Iterable[Run], reason: Reason) -> None:
        """Record a stop of these runs, so that it outlives this server."""
        events = [stop_event(run, reason) for run in runs if run.stop_reason is None]
        if events:
            await self._journal.write(events, durable=True)

    async def request_below(self, top: str, reason: Reason) -> list[Run]:
        """Record a stop of a run and all below it, including runs created meanwhile; return these runs."""
        requested: dict[str, Run] = {}
        while new := [run for run in self._journal.live_below(top) if run.id not in requested]:
            requested |= {run.id: run for run in new}
            await self.request(new, reason)
        return list(requested.values())

    async def insist_below(self, top: str, reason: Reason) -> None:
        """Like ``request_below``, retried until it is recorded."""
        while True:
            try:
                await self.request_below(top, reason)
            except HocketError:
                await asyncio.sleep(RETRY_AFTER)
            else:
                return

    async def insist(self, runs: Iterable[Run], reason: Reason) -> None:
        """Like ``request``, retried until it is recorded or the runs have ended."""
        ids = [run.id for run in runs]
        while live := [run for run_id in ids if (run := self._journal.live.get(run_id)) is not None]:
            try:
                await self.request(live, reason)
            except HocketError:
                await asyncio.sleep(RETRY_AFTER)
            else:
                return

    async def stop(self, run: Run) -> dict[str, Any]:
        """Stop a run and everything below it; return a report once all of it has ended."""
        targets = await self.request_below(run.id, Reason.STOPPED)
        ended = [await self._wait_for_end(one, targets) for one in targets]
        now = self._journal.run(run.id) or run
        return {
            "run": run.id,
            "status": now.status,
            "reason": now.reason,
            "stopped": [one.id for one in ended],
            "survivors": [pid for one in ended for pid in self._survivors(one)],
        }

    async def _wait_for_end(self, run: Run, stopped: list[Run]) -> Run:
        """The run as it ended; raises if its end cannot be recorded because the disk is full."""
        while True:
            with suppress(TimeoutError):
                return await asyncio.wait_for(self._journal.wait_for_end(run), DISK_CHECK_SECONDS)
            live = (one for one in stopped if one.kind is Kind.LEAF and one.id in self._journal.live)
            unrecorded = [one for one in live if not files.is_locked(str(directory(self._home, one)))]
            if unrecorded and not Reserve(self._home).has_room():
                numbers = ", ".join(str(one.number) for one in unrecorded)
                raise DiskLow(
                    f"the disk is full: stopped, but the end of run {numbers} cannot be recorded yet",
                    "Free some space; it is recorded as soon as there is room",
                )

    def _survivors(self, run: Run) -> list[int]:
        ends = self._journal.read.events_of_type(run.id, "run.ended")
        return [pid for event in ends for pid in event.data.get("survivors", ())]
