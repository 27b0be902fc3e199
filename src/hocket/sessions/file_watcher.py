"""Notices what happens to files and directories, with one inotify for everything that the server watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from typing import NamedTuple

from hocket.keeper.platform import Inotify

INTERVAL = 0.004
"""Seconds between two batches of notifications: a burst of output is read once per interval."""


class _Watch(NamedTuple):
    on_change: Callable[[], None]
    names: Collection[str] | None


class FileWatcher:
    """Calls ``on_change`` of each watch at most once per interval; all of ``on_overflow`` if events were lost.

    Notifications are hints: the callback has to look at the files.
    """

    def __init__(self) -> None:
        self._inotify = Inotify()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._watches: dict[int, dict[Hashable, _Watch]] = {}
        """By number and owner, because the kernel has one watch for each file, shared by all its owners."""
        self._by_owner: dict[Hashable, set[int]] = {}
        self._on_overflow: list[Callable[[], None]] = []

    def open(self) -> None:
        self._loop.add_reader(self._inotify.fileno(), self._notify)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._inotify.fileno())
        self._inotify.close()

    def on_overflow(self, call: Callable[[], None]) -> None:
        self._on_overflow.append(call)

    def watch(
        self,
        owner: Hashable,
        path: str,
        on_change: Callable[[], None],
        *news: str,
        names: Collection[str] | None = None,
    ) -> None:
        """Watch a file or a directory; raises OSError when it is missing or the user has no watches left.

        Watches with an equal ``on_change`` are reported together. Of a directory only entries with one of these
        ``names`` matter; macOS reports every change of a directory without a name.
        """
        number = self._inotify.watch(path, *news)
        self._watches.setdefault(number, {})[owner] = _Watch(on_change, names)
        self._by_owner.setdefault(owner, set()).add(number)

    def unwatch(self, owner: Hashable) -> None:
        """Forget all watches of an owner."""
        for number in self._by_owner.pop(owner, ()):
            owners = self._watches[number]
            owners.pop(owner, None)
            if not owners:
                del self._watches[number]
                self._inotify.unwatch(number)

    def _notify(self) -> None:
        events = self._inotify.read()
        if any(number < 0 for number, _mask, _name in events):
            self._pause()
            for call in self._on_overflow:
                call()
            return
        changed: dict[Callable[[], None], None] = {}
        for number, _mask, name in events:
            for watch in self._watches.get(number, {}).values():
                if watch.names is None or not name or name in watch.names:
                    changed[watch.on_change] = None
        if changed:
            self._pause()
        for on_change in changed:
            on_change()

    def _pause(self) -> None:
        """Let further events gather in the kernel until the interval is over."""
        self._loop.remove_reader(self._inotify.fileno())
        self._timer = self._loop.call_later(INTERVAL, self.open)
