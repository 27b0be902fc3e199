"""Ending a run whose keeper does not do it: the keeper was suspended, or its bell was removed, replaced or emptied.

The server uses this, step by step; when each step is due is the engine's business. Every signal goes to a process that
is known by its pid and its start time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NamedTuple

from hocket.keeper import files, platform, process_tree

_KILL_ROUND = 0.2


class Identity(NamedTuple):
    """A process that a later one with the same pid cannot be taken for."""

    pid: int
    start_time: int


def find_keeper(directory: str) -> Identity | None:
    """The living keeper of a run, found without the files of the run; None when there is none.

    It works in the run directory and holds a lock. The agent can make a process that does the same, but that one
    carries the run's mark, or is younger.
    """
    place, run = os.path.realpath(directory), os.path.basename(directory)
    found = [
        Identity(pid, started)
        for pid in platform.working_in(place)
        if platform.held_locks(pid)
        and not process_tree.is_carrying(pid, run)
        and (started := platform.start_time(pid, living=True)) is not None
    ]
    return min(found, key=lambda one: (one.start_time, one.pid), default=None)


def find_agent(directory: str) -> int | None:
    """The pid of a run's agent by the process table, for a run whose `pid` file cannot be read."""
    keeper = find_keeper(directory)
    return None if keeper is None else min(platform.children_of(keeper.pid), default=None)


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None when there is none."""
    started = platform.start_time(pid, living=True)
    return None if started is None else Identity(pid, started)


def is_at_work(keeper: Identity, directory: str, home: str) -> bool:
    """Whether this keeper lives and has processes of its run below it: then an exit record is not from it."""
    if platform.start_time(keeper.pid, living=True) != keeper.start_time:
        return False
    children = [pid for pid in platform.children_of(keeper.pid) if platform.start_time(pid, living=True) is not None]
    spared = process_tree.spare_others(home, directory) if children else process_tree.spare_nobody
    return not all(map(spared, children))


class Escalation:
    """What the server does about one run that is to end, beside ringing its bell."""

    def __init__(self, directory: str, cookie: str, home: str, keeper: Identity | None = None) -> None:
        self._directory = directory
        self._cookie = cookie
        self._spared = process_tree.spare_others(home, directory)
        self._keeper = keeper
        self._tree: process_tree.Found = {}
        self._was_suspended = False
        self._responds = True

    @property
    def is_obstructed(self) -> bool:
        """Whether the keeper was found suspended, or is without its bell, or was not found at all."""
        return self._was_suspended or not self._responds

    def wake_keeper(self) -> None:
        """Let the keeper go on if it is suspended, ask it to stop by the bell that it really has, record its tree."""
        keeper = self._find_keeper()
        if keeper is None:
            self._responds = False
            return
        self._tree |= process_tree.nearest_targets(keeper.pid, self._is_spared)
        self._was_suspended = self._was_suspended or platform.is_suspended(keeper.pid)
        platform.signal_process(keeper.pid, keeper.start_time, signal.SIGCONT)
        self._responds = self._ring_own_bell(keeper)

    def targets(self) -> process_tree.Found:
        """What is left of the run: the recorded tree as far as it lives, and what is found now."""
        keeper = self._find_keeper()
        root = 0 if keeper is None else keeper.pid
        found = (
            process_tree.sweep_targets(root, self._cookie, self._is_spared)
            if root
            else process_tree.carrying(self._cookie)
        )
        found |= {
            pid: started for pid, started in self._tree.items() if platform.start_time(pid, living=True) == started
        }
        self._tree |= found
        return {pid: started for pid, started in found.items() if pid != root and not self._is_spared(pid)}

    def kill(self, targets: process_tree.Found) -> None:
        """SIGKILL, then let the keeper go on, which collects what ended and writes the exit record."""
        process_tree.signal_all(targets, signal.SIGKILL)
        keeper = self._find_keeper()
        if keeper is not None:
            platform.signal_process(keeper.pid, keeper.start_time, signal.SIGCONT)
        platform.wait_gone(targets, _KILL_ROUND)

    def is_keeper_finishing(self) -> bool:
        """Whether the keeper has collected all its children: it is about to write the exit record."""
        keeper = self._find_keeper()
        if keeper is None or platform.is_suspended(keeper.pid):
            return False
        return all(self._is_spared(child) for child in platform.children_of(keeper.pid))

    def kill_keeper(self) -> None:
        keeper = self._find_keeper()
        if keeper is not None:
            platform.signal_process(keeper.pid, keeper.start_time, signal.SIGKILL)

    def _find_keeper(self) -> Identity | None:
        keeper = self._keeper
        if keeper is None or platform.start_time(keeper.pid, living=True) != keeper.start_time:
            self._keeper = find_keeper(self._directory)
        return self._keeper

    def _is_spared(self, pid: int) -> bool:
        return pid == os.getpid() or self._spared(pid)

    def _ring_own_bell(self, keeper: Identity) -> bool:
        """Ring the FIFO that the keeper has open, even if renamed; whether it is still the one in the directory.

        Where the descriptors of another process cannot be looked at, the name alone counts.
        """
        bell = os.path.join(self._directory, files.BELL)
        opened = platform.open_files(keeper.pid)
        if not opened or any(files.is_same(bell, status) for status in opened.values()):
            return files.ring(self._directory, files.BELL_STOP)
        keys = os.path.join(self._directory, files.KEYS)
        for path in (path for path, status in opened.items() if not files.is_same(keys, status)):
            with contextlib.suppress(OSError):
                # An unnamed pipe has no directory in its name.
                if os.path.dirname(os.readlink(path)) == os.path.realpath(self._directory):
                    files.ring_descriptor(path, files.BELL_STOP)
        return False
