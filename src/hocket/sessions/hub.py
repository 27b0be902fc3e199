"""Following: every follower has a cursor and pulls from it, so a slow one costs nothing and loses nothing.

The newest events of all runs are kept encoded, within one limit for all runs. A follower that is further behind
reads the store until it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any

from hocket.model import Run
from hocket.store import Committed, EventLine, Queries, below_test
from hocket.views.event_text import tool_summary, with_helper

RECENT_BYTES = 8 * 1024 * 1024
LAST_CHARACTERS = 200
PAGE = 500
PAGE_BYTES = 256 * 1024
"""A follower is handed at most so many events, and so many bytes and one event more, before it asks again."""


@dataclass(slots=True)
class _Recent:
    """The tail of one tree's events; complete for everything after ``floor``."""

    floor: int
    lines: deque[EventLine] = field(default_factory=deque)


@dataclass(slots=True)
class _Follower:
    """One follower: how far it is, and, below the root of a tree, which runs are its own."""

    run: Run
    cursor: int
    is_below: Callable[[str | None], bool]
    """Whether a run of the tree is one of those that are followed."""


@dataclass(slots=True)
class _Watcher:
    """A follower of the changes of all runs."""

    changed: set[tuple[str, str]] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """Receives every commit and wakes followers."""

    def __init__(self, read: Queries, live: Container[str]) -> None:
        self._read = read
        self._live = live
        """Which runs have not ended, as far as was published."""
        self._recent: dict[str, _Recent] = {}
        self._order: deque[str] = deque()
        self._size = 0
        self._waiting: dict[str, list[asyncio.Future[bool]]] = {}
        self._watchers: list[_Watcher] = []
        self._closed = False
        self.last: dict[str, str] = {}
        """The last thing each live run said or did."""

    def close(self) -> None:
        """End all followers; clients reconnect to the next server."""
        self._closed = True
        for root in list(self._waiting):
            self._wake(root)
        for watcher in self._watchers:
            watcher.news.set()

    def publish(self, committed: Committed) -> None:
        roots = set()
        for event, text in zip(committed.events, committed.lines, strict=True):
            recent = self._recent.get(event.root)
            if recent is None:
                # A follower from the creation of a tree on needs no store: there is nothing earlier.
                is_new = event.type == "run.created" and event.run == event.root
                recent = self._recent[event.root] = _Recent(0 if is_new else event.seq - 1)
            recent.lines.append(EventLine(event.seq, event.run, event.type, text))
            self._order.append(event.root)
            self._size += len(text)
            roots.add(event.root)
            self._note(event.run, event.type, event.data)
        self._evict()
        for root in roots:
            self._wake(root)
        for watcher in self._watchers:
            watcher.changed.update((event.run, event.root) for event in committed.events)
            watcher.news.set()

    def _note(self, run: str, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "text":
            self.last[run] = with_helper(data, data["text"])[:LAST_CHARACTERS]
        elif kind == "tool.started":
            doing = tool_summary(str(data.get("name")), data.get("input"))
            self.last[run] = with_helper(data, doing)[:LAST_CHARACTERS]
        elif kind == "gate.started":
            self.last[run] = f"gate: {data['command']}"[:LAST_CHARACTERS]
        elif kind in ("gate", "run.ended"):
            self.last.pop(run, None)

    def _evict(self) -> None:
        while self._size > RECENT_BYTES:
            root = self._order.popleft()
            recent = self._recent[root]
            line = recent.lines.popleft()
            recent.floor = line.seq
            self._size -= len(line.text)
            if not recent.lines:
                del self._recent[root]

    def _wake(self, root: str) -> None:
        for future in self._waiting.pop(root, ()):
            _settle(future, True)

    async def follow(
        self, run: Run, after: int, *, wait: bool = True, heartbeat: float | None = None
    ) -> AsyncIterator[list[EventLine]]:
        """Events of the run and everything below it, after ``after``, until its own end (or, not waiting, until now).

        With a ``heartbeat``, silence of that many seconds gives an empty list.
        """
        follower = _Follower(run, after, below_test(run.id, self._read.parent))
        may_have_ended = True
        while not self._closed:
            lines, caught_up = self._collect(follower)
            if lines:
                yield lines
                if any(line.run == run.id and line.type == "run.ended" for line in lines):
                    return
            if not caught_up:
                await asyncio.sleep(0)  # Others have their turn between the pages of a long history.
            if not caught_up or lines:
                continue
            # Asked once: from a moment at which it had not ended, its end comes as one of its lines.
            may_have_ended = may_have_ended and self._has_ended(run)
            if not wait or may_have_ended:
                # The store may already have what was not published yet, the run's own end above all.
                while (page := self._from_store(follower)) is not None:
                    if page:
                        yield page
                    await asyncio.sleep(0)
                return
            if not await self._news(run.root, heartbeat):
                yield []

    async def changes(self, pause: float, heartbeat: float) -> AsyncIterator[set[tuple[str, str]]]:
        """Run and root of every run with new events, at most every ``pause`` seconds; empty at once and in silence.

        A slow follower gets fewer and larger sets, and nothing is kept for it but names.
        """
        watcher = _Watcher()
        self._watchers.append(watcher)
        try:
            while not self._closed:
                changed, watcher.changed = watcher.changed, set()
                watcher.news.clear()
                yield changed
                if changed:
                    await asyncio.sleep(pause)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(watcher.news.wait(), heartbeat)
        finally:
            self._watchers.remove(watcher)

    async def _news(self, root: str, patience: float | None) -> bool:
        """Wait for the tree's next event; False when patience ran out first."""
        waiting = self._waiting.setdefault(root, [])
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        waiting.append(future)
        timer = None if patience is None else loop.call_later(patience, _settle, future, False)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            # A follower that ends by itself (a lost connection, say) must not be kept.
            if future in waiting:
                waiting.remove(future)
            if not waiting and self._waiting.get(root) is waiting:
                del self._waiting[root]

    def _has_ended(self, run: Run) -> bool:
        if run.id in self._live:
            return False
        now = self._read.run(run.id)
        return now is None or now.ended

    def _collect(self, follower: _Follower) -> tuple[list[EventLine], bool]:
        """The next lines, and whether nothing more is known at present."""
        run = follower.run
        recent = self._recent.get(run.root)
        if recent is None or follower.cursor < recent.floor:
            lines = self._from_store(follower)
            if lines is not None:
                return lines, False
            if recent is None:
                return [], True
            follower.cursor = max(follower.cursor, recent.floor)
        fresh = _page(recent.lines, follower.cursor)
        if fresh:
            follower.cursor = fresh[-1].seq
        return self._own(follower, fresh), follower.cursor >= recent.lines[-1].seq

    def _from_store(self, follower: _Follower) -> list[EventLine] | None:
        """The follower's own among the next events; None when there are no more."""
        run = follower.run
        if run.id != run.root and not self._read.has_children(run.id):
            lines = self._read.event_page("run", run.id, follower.cursor, PAGE, PAGE_BYTES)
        else:
            lines = self._read.event_page("root", run.root, follower.cursor, PAGE, PAGE_BYTES)
        if not lines:
            return None
        follower.cursor = lines[-1].seq
        return self._own(follower, lines)

    def _own(self, follower: _Follower, lines: list[EventLine]) -> list[EventLine]:
        """Those of a whole tree's lines that belong to the run and what is below it."""
        if follower.run.id == follower.run.root:
            return lines
        return [line for line in lines if follower.is_below(line.run)]


def _settle(future: asyncio.Future[bool], has_events: bool) -> None:
    if not future.done():
        future.set_result(has_events)


def _page(lines: deque[EventLine], cursor: int) -> list[EventLine]:
    """The next lines after the cursor, within the bounds of a page."""
    start = bisect_right(lines, cursor, key=attrgetter("seq"))
    behind = len(lines) - start
    # Most followers are close behind, and the others must not copy all that is before them for each page.
    near = behind <= PAGE
    found = reversed(list(islice(reversed(lines), behind))) if near else islice(lines, start, start + PAGE)
    page, size = [], 0
    for line in found:
        page.append(line)
        size += len(line.text)
        if size >= PAGE_BYTES:
            break
    return page
