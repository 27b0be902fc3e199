"""Process calls of macOS, best effort, under the names of `linux.py`.

macOS has no subreaper, no parent-death signal and no pidfd. So a sweep relies on the cookie in each
process's environment, a keeper's sudden death leaves its agent to the engine's sweep, and between the
identity check and the signal lies an instant in which a pid could be reused. `doctor` names these limits.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

_TICK = 0.02

# Typed loosely, so that the types of the rest of this file are checked on Linux too.
_kqueue: Any = select


class Process(NamedTuple):
    """One line of the process table; `start_time` is in microseconds since the epoch."""

    ppid: int
    start_time: int


def become_subreaper() -> None:
    """There is no such thing: orphans go to launchd and are found by their cookie."""


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """There is no such thing: the engine sweeps the cookie of a run whose keeper is gone."""


def boot_id() -> str:
    """The boot's session number, or an empty string when the system does not tell it."""
    answer = subprocess.run(
        ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()


def start_time(pid: int, living: bool = False) -> int | None:
    """When this process started; None when there is no such process, or a zombie."""
    process = scan().get(pid)
    return None if process is None else process.start_time


def scan() -> dict[int, Process]:
    """Every living process that we may look at."""
    import psutil

    table: dict[int, Process] = {}
    for process in psutil.process_iter(["ppid", "create_time", "status"]):
        facts = process.info
        if facts["create_time"] is not None and facts["status"] != psutil.STATUS_ZOMBIE:
            table[process.pid] = Process(facts["ppid"] or 0, int(facts["create_time"] * 1_000_000))
    return table


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    return [child for child, process in scan().items() if process.ppid == pid]


def environ_of(pid: int) -> dict[str, str]:
    """The environment of this process; empty when it is gone or protected by the system."""
    import psutil

    try:
        return dict(psutil.Process(pid).environ())
    except (psutil.Error, OSError):
        return {}


def set_inherited_mark(mark: int | None) -> None:
    """There is no such thing."""


def inherited_mark(pid: int) -> int | None:
    """There is no such thing."""
    return None


def working_in(directory: str) -> list[int]:
    """The processes that work in this directory, a path without links."""
    return [pid for pid in scan() if working_directory(pid) == directory]


def working_directory(pid: int) -> str | None:
    """Where this process works; None when it is gone or protected by the system."""
    import psutil

    try:
        return str(psutil.Process(pid).cwd())
    except (psutil.Error, OSError):
        return None


def is_suspended(pid: int) -> bool:
    """Whether a signal has stopped this process."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except (psutil.Error, OSError):
        return False


def open_files(pid: int) -> dict[str, os.stat_result]:
    """Other processes' descriptors cannot be opened here: always empty."""
    return {}


def held_locks(pid: int) -> list[os.stat_result]:
    """The files that this process has open: the system does not say who holds a lock on them."""
    import psutil

    held = []
    with contextlib.suppress(psutil.Error, OSError):
        for file in psutil.Process(pid).open_files():
            with contextlib.suppress(OSError):
                held.append(os.stat(file.path))
    return held


def owner_of(pid: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(pid).uids().effective)
    except (psutil.Error, OSError):
        return None


def open_identity(pid: int, started: int) -> int | None:
    """There are no pidfds here: always None."""
    return None


def signal_process(pid: int, started: int, sig: int) -> bool:
    """Signal this process if its start time still fits; False when it is gone."""
    if start_time(pid) != started:
        return False
    try:
        os.kill(pid, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def wait_gone(found: Mapping[int, int], timeout: float) -> bool:
    """Wait until these processes have ended or the time is up; whether all have ended."""
    deadline = time.monotonic() + timeout
    while True:
        table = scan()
        if not any(pid in table and table[pid].start_time == started for pid, started in found.items()):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_TICK)


class Inotify:
    """A kqueue behind inotify's face. A directory tells only that an entry came or went, and no name."""

    def __init__(self) -> None:
        self._queue = _kqueue.kqueue()

    def fileno(self) -> int:
        return int(self._queue.fileno())

    def watch(self, path: str, *news: str) -> int:
        """Watch a file or a directory; the number returned comes with each event. All kinds of news are reported."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        event = _kqueue.kevent(
            descriptor,
            filter=_kqueue.KQ_FILTER_VNODE,
            flags=_kqueue.KQ_EV_ADD | _kqueue.KQ_EV_CLEAR,
            fflags=_kqueue.KQ_NOTE_WRITE | _kqueue.KQ_NOTE_EXTEND | _kqueue.KQ_NOTE_RENAME,
        )
        self._queue.control([event], 0, 0)
        return descriptor

    def unwatch(self, watch: int) -> None:
        """Forget a watch; closing its descriptor removes it from the queue."""
        os.close(watch)

    def read(self) -> list[tuple[int, int, str]]:
        """What has happened: (watch, mask, an empty name)."""
        return [(event.ident, event.fflags, "") for event in self._queue.control(None, 256, 0)]

    def close(self) -> None:
        self._queue.close()
