"""Stopping runs: a stop is recorded first, and the supervisor and the chain driver carry out what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hocket.errors import DiskLow, HocketError
from hocket.keeper import files
from hocket.keeper.escalation import Escalation
from hocket.keeper.process_tree import KILL_PATIENCE
from hocket.model import Event, Reason, Run
from hocket.sessions.journal import RETRY_AFTER, Journal, run_event
from hocket.sessions.leaf import Leaf
from hocket.sessions.limits import Reserve
from hocket.sessions.observed.refusals import check_owned
from hocket.sessions.run_identity import directory
from hocket.store import Committed

DISK_CHECK_SECONDS = 2.0
"""How often a stop checks whether only a full disk keeps it from being complete."""

WAKE_EVERY = 0.5
"""Seconds between two requests to a keeper."""
KILL_EVERY = 0.2
SLACK = 0.5
"""Seconds for which a keeper may be late."""
KEEPER_PATIENCE = 5.0
"""Seconds for a keeper whose tree was killed to write the exit record."""
FINISH_PATIENCE = 25.0
"""The same for one that has nothing left but to write it, which takes a while on a full disk."""

KILLED = "its keeper did not carry out the stop, so the server killed its processes"
GIVEN_UP = "its keeper did not carry out the stop, so the server killed its processes and the keeper"


def stop_event(run: Run, reason: Reason) -> Event:
    return run_event(run, "input", {"kind": "stop", "reason": reason})


def stopped_in(committed: Committed) -> Iterable[str]:
    """The ids of the runs for which a commit records a stop."""
    return (event.run for event in committed.events if event.type == "input" and event.data.get("kind") == "stop")


class Stops:
    """Records stops, of runs and of everything below them. One per server."""

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
        await _retry(partial(self.request_below, top, reason))

    async def insist(self, runs: Iterable[Run], reason: Reason) -> None:
        """Like ``request``, retried until it is recorded or the runs have ended."""
        ids, live = [run.id for run in runs], self._journal.live
        await _retry(lambda: self.request([live[run_id] for run_id in ids if run_id in live], reason))

    async def stop(self, run: Run) -> dict[str, Any]:
        """Stop a run and everything below it; return a report once all of it has ended."""
        check_owned(run, "stop it")
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
            live = (one for one in stopped if one.has_process and one.id in self._journal.live)
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


async def _retry(record: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await record()
        except HocketError:
            await asyncio.sleep(RETRY_AFTER)
        else:
            return


async def force_stop(leaf: Leaf, home: str, threads: Executor) -> None:
    """End a stopped run whose keeper does not: wake the keeper, then end its tree, then give it up.

    Until this is cancelled, or the keeper was killed. A healthy keeper ends the run before anything here is due.
    """
    loop = asyncio.get_running_loop()
    do = partial(loop.run_in_executor, threads)
    escalation = Escalation(leaf.place, leaf.id, home, leaf.keeper)
    due = loop.time() + leaf.spec.stop_grace + SLACK
    while (left := due + (0.0 if escalation.is_obstructed else KILL_PATIENCE) - loop.time()) > 0:
        await do(escalation.wake_keeper)
        await asyncio.sleep(min(WAKE_EVERY, left))
    began = loop.time()
    while loop.time() < began + (FINISH_PATIENCE if await do(escalation.is_keeper_finishing) else KEEPER_PATIENCE):
        if targets := await do(escalation.targets):
            leaf.forced = KILLED
        await do(escalation.kill, targets)
        await asyncio.sleep(KILL_EVERY)
    leaf.forced, leaf.is_given_up = GIVEN_UP, True
    await do(escalation.kill_keeper)
