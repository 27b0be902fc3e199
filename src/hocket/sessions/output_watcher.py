"""Notices what happens in the directories of live runs: output, a start, an end, a keeper that exits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

from hocket.keeper import files
from hocket.keeper.platform import Inotify

INTERVAL = 0.004
"""Seconds between two batches of notifications: a burst of output is read once per interval."""

_RECORDS = (files.PID, files.EXIT, "")
"""Files of a run directory whose appearance matters; macOS reports a change of the directory without a name."""


class _Watch(NamedTuple):
    run: str
    is_lock: bool = False
    is_directory: bool = False


class OutputWatcher:
    """Calls ``on_change(run, lock_closed)`` at most once per run and interval; ``on_overflow()`` if events were lost.

    Notifications are hints: the callback has to look at the files.
    """

    def __init__(self, on_change: Callable[[str, bool], None], on_overflow: Callable[[], None]) -> None:
        self._on_change = on_change
        self._on_overflow = on_overflow
        self._inotify = Inotify()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._watches: dict[int, _Watch] = {}
        self._by_run: dict[str, set[int]] = {}

    def open(self) -> None:
        self._loop.add_reader(self._inotify.fileno(), self._notify)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._inotify.fileno())
        self._inotify.close()

    def watch(self, run: str, directory: str) -> None:
        """Watch the directory of a run; raises OSError when the user has no watches left. Safe in any thread."""
        self._add(directory, "placed", _Watch(run, is_directory=True))
        self._add(os.path.join(directory, files.LOCK), "closed", _Watch(run, is_lock=True))
        for name in (files.OUT, files.ERR):
            self._add(os.path.join(directory, name), "written", _Watch(run))

    def _add(self, path: str, news: str, watch: _Watch) -> None:
        number = self._inotify.watch(path, news)
        self._watches[number] = watch
        self._by_run.setdefault(watch.run, set()).add(number)

    def unwatch(self, run: str) -> None:
        for number in self._by_run.pop(run, ()):
            self._watches.pop(number, None)
            self._inotify.unwatch(number)

    def _notify(self) -> None:
        events = self._inotify.read()
        if any(number < 0 for number, _mask, _name in events):
            self._pause()
            self._on_overflow()
            return
        changed: dict[str, bool] = {}
        for number, _mask, name in events:
            watch = self._watches.get(number)
            if watch is not None and (not watch.is_directory or name in _RECORDS):
                changed[watch.run] = changed.get(watch.run, False) or watch.is_lock
        if changed:
            self._pause()
        for run, lock_closed in changed.items():
            self._on_change(run, lock_closed)

    def _pause(self) -> None:
        """Let further events gather in the kernel until the interval is over."""
        self._loop.remove_reader(self._inotify.fileno())
        self._timer = self._loop.call_later(INTERVAL, self.open)
