"""The event loop's side of the store: write and wait, with every live run in memory exactly as committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hocket.errors import DiskLow, HocketError, StoreError
from hocket.model import Event, Run
from hocket.model.task import Order
from hocket.sessions import clock
from hocket.store import (
    Batch,
    Committed,
    FilePosition,
    NewRun,
    Offsets,
    Queries,
    Store,
    UsageTotal,
    below_test,
)

T = TypeVar("T")

Listener = Callable[[Committed], None]
RETRY_AFTER = 1.0
"""Seconds between two attempts to record something that there was no room for."""


def run_event(run: Run, kind: str, data: Mapping[str, Any]) -> Event:
    """An event of a run that happens now."""
    return Event(0, time.time(), run.id, run.root, kind, data)


class Journal:
    """``write`` returns once the batch is committed, applied to ``live`` and passed to the listeners, in that order."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self.read = store.read
        self.live: dict[str, Run] = {run.id: run for run in store.read.live()}
        self._listeners: list[Listener] = []
        self._loop = loop
        self.is_failing = False
        """The last batch could not be recorded, for lack of room most likely."""
        self._waiting: dict[int, asyncio.Future[Committed]] = {}
        self._ends: dict[str, list[asyncio.Future[Run]]] = {}
        """Callers that wait for the end of a run."""
        self._store = store
        self.applied_seq = store.read.last_seq()
        """The last event that is applied to ``live``."""
        self._writer = store.start_writing(self._from_thread)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def write(
        self,
        events: Sequence[Event],
        *,
        new: dict[str, NewRun] | None = None,
        offsets: dict[str, Offsets] | None = None,
        transcripts: dict[tuple[str, str], FilePosition] | None = None,
        orders: Sequence[Order] = (),
        order_key: str | None = None,
        removed_trees: Sequence[str] = (),
        swept: Sequence[str] = (),
        durable: bool = False,
    ) -> Committed:
        stamped = [clock.stamped(event, self.live.get(event.run)) for event in events]
        removals = (tuple(removed_trees), tuple(swept))
        batch = Batch(stamped, new or {}, offsets or {}, transcripts or {}, list(orders), order_key, *removals, durable)
        future: asyncio.Future[Committed] = self._loop.create_future()
        self._waiting[id(batch)] = future
        self._writer.submit(batch)
        # The commit happens even if the caller is cancelled.
        return await future

    async def insist(self, events: Sequence[Event], *, offsets: dict[str, Offsets] | None = None) -> Committed:
        """Write what has happened whether or not there is room for it now: try until there is."""
        while True:
            try:
                return await self.write(events, offsets=offsets)
            except HocketError:
                await asyncio.sleep(RETRY_AFTER)

    def run(self, run_id: str) -> Run | None:
        """The run as committed, live or long ended."""
        return self.live.get(run_id) or self.read.run(run_id)

    async def wait_for_end(self, run: Run) -> Run:
        """The run as it ended."""
        now = self.run(run.id) or run
        if now.ended:
            return now
        future: asyncio.Future[Run] = self._loop.create_future()
        self._ends.setdefault(run.id, []).append(future)
        return await future

    def cancel_waits(self) -> None:
        """Cancel all callers of ``wait_for_end``."""
        for future in (future for waiting in self._ends.values() for future in waiting):
            future.cancel()

    def above(self, run: Run) -> list[Run]:
        """The run and its ancestors, ended ones as well."""
        line = [run]
        while (parent := line[-1].parent) is not None and (found := self.run(parent)) is not None:
            line.append(found)
        return line

    async def read_aside(self, query: Callable[[Queries], T]) -> T:
        """Run a query that may take long in a thread of its own, which sees what is committed as well."""
        return await asyncio.wrap_future(self._store.read_aside(query))

    def spent_below(self, top: Run) -> UsageTotal:
        """Return what a run and everything below it have used, as far as ``live`` knows."""
        ended = self.read.ended_usage(top, self.applied_seq)
        live = [run for run in self.live_below(top.id) if run.is_counted]
        costs = [cost for cost in (ended.cost_usd, *(run.cost_usd for run in live)) if cost is not None]
        tokens = [count for count in (ended.tokens, *(run.tokens for run in live)) if count is not None]
        return UsageTotal(sum(costs) if costs else None, sum(tokens) if tokens else None)

    def is_below(self, top: str) -> Callable[[str | None], bool]:
        """Return a test for whether a run is at or below another one."""

        def parent_of(run_id: str) -> str | None:
            live = self.live.get(run_id)
            return self.read.parent(run_id) if live is None else live.parent

        return below_test(top, parent_of)

    def live_below(self, top: str) -> list[Run]:
        """Every live run at or below one, oldest first: also where those in between have ended."""
        is_below = self.is_below(top)
        return sorted((run for run in self.live.values() if is_below(run.id)), key=lambda run: run.number)

    def has_stopping_below(self, top: Run) -> bool:
        """Return whether a live run below this one is being stopped; not a teammate, which ends with its lead."""
        is_below = self.is_below(top.id)
        tree = (run for run in self.live.values() if run.root == top.root and run.id != top.id and not run.teammate)
        return any(run.stop_reason is not None and is_below(run.id) for run in tree)

    def _from_thread(self, group: list[tuple[Batch, Committed | Exception]]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._committed, group)

    def _committed(self, group: list[tuple[Batch, Committed | Exception]]) -> None:
        for batch, outcome in group:
            future = self._waiting.pop(id(batch))
            self.is_failing = isinstance(outcome, StoreError | DiskLow)
            if isinstance(outcome, Exception):
                if not future.done():
                    future.set_exception(outcome)
                continue
            if outcome.events:
                self.applied_seq = outcome.events[-1].seq
            for run in outcome.runs.values():
                if run.ended:
                    self.live.pop(run.id, None)
                else:
                    self.live[run.id] = run
            for listener in self._listeners:
                listener(outcome)
            for run in outcome.runs.values():
                for end in self._ends.pop(run.id, ()) if run.ended else ():
                    if not end.done():
                        end.set_result(run)
            if not future.done():
                future.set_result(outcome)
