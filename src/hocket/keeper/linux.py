"""Process calls of Linux: prctl, /proc, pidfd and inotify, through the standard library and ctypes.

What belongs here: calls whose meaning is the kernel's. What does not: any rule about whom to signal.
`darwin.py` has the same names.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Mapping
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# A limit that Linux has not enforced since 2.4, and that every process still inherits: so its value can be a mark.
_RLIMIT_LOCKS = 10

_IN_MODIFY = 0x2
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DONT_FOLLOW = 0x02000000
_IN_MASK_ADD = 0x20000000
_NEWS = {"written": _IN_MODIFY, "closed": _IN_CLOSE_WRITE, "placed": _IN_MOVED_TO, "created": _IN_CREATE}
_EVENT_HEAD = struct.Struct("iIII")

# More pidfds than this are waited for in turns, so that a fork bomb cannot exhaust our descriptors.
_MAX_PIDFDS = 128

_libc = ctypes.CDLL(None, use_errno=True)
_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Process(NamedTuple):
    """One line of the process table; with its pid, `start_time` is an identity that reuse cannot fake."""

    ppid: int
    start_time: int


def become_subreaper() -> None:
    """Have every orphan among our descendants re-parented to us instead of to init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Get `sig` when the parent *thread* ends; check `getppid` afterwards to close the race."""
    _prctl(_PR_SET_PDEATHSIG, sig)


@functools.cache
def boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def start_time(pid: int, living: bool = False) -> int | None:
    """When this process started, in clock ticks since boot; None when there is no such (living) process."""
    process = _stat(pid, living)
    return None if process is None else process.start_time


def scan() -> dict[int, Process]:
    """Every living process. A zombie is not one: it runs nothing, and reaping it is its parent's business."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid: process for pid in pids if (process := _stat(pid, living=True)) is not None}


def children_of(pid: int) -> list[int]:
    """The direct children of a process, zombies included: far quicker than a look at the whole table."""
    if not _KERNEL_LISTS_CHILDREN:
        return [child for child, process in scan().items() if process.ppid == pid]
    children: list[int] = []
    with contextlib.suppress(OSError):
        # A child belongs to the thread that forked it.
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return children


def environ_of(pid: int) -> dict[str, str]:
    """The environment this process was started with; empty when it is gone, a zombie or not ours to read."""
    try:
        content = _read(f"/proc/{pid}/environ")
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def set_inherited_mark(mark: int | None) -> None:
    """Mark this process and everything it starts from now on, also with another environment; None takes it away.

    Best effort: a system may refuse. Only the soft limit is set, so that a started program can have its own mark.
    """
    hard = resource.getrlimit(_RLIMIT_LOCKS)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(_RLIMIT_LOCKS, (hard if mark is None else mark, hard))


def inherited_mark(pid: int) -> int | None:
    """The mark that this process inherited; one without has the usual limit. None when it is not ours to ask."""
    try:
        return resource.prlimit(pid, _RLIMIT_LOCKS)[0]
    except OSError:
        return None


def working_in(directory: str) -> list[int]:
    """The processes that work in this directory, a path without links."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and working_directory(int(name)) == directory]


def working_directory(pid: int) -> str | None:
    """Where this process works, a path without links; None when it is gone or not ours to ask."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def is_suspended(pid: int) -> bool:
    """Whether a signal has stopped this process."""
    try:
        return _stat_fields(pid)[0] in b"Tt"
    except OSError:
        return False


def open_files(pid: int) -> dict[str, os.stat_result]:
    """What this process has open, by the path of the descriptor below /proc; empty when it is not ours to ask."""
    found: dict[str, os.stat_result] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found[f"/proc/{pid}/fd/{name}"] = os.stat(f"/proc/{pid}/fd/{name}")
    return found


def held_locks(pid: int) -> list[os.stat_result]:
    """The files on which this very process holds an exclusive flock."""
    held = []
    for path, status in open_files(pid).items():
        with contextlib.suppress(OSError):
            about = _read(path.replace("/fd/", "/fdinfo/"))
            if any(
                line.startswith(b"lock:") and b" FLOCK " in line and b" WRITE " in line for line in about.splitlines()
            ):
                held.append(status)
    return held


def owner_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def open_identity(pid: int, started: int) -> int | None:
    """A pidfd for exactly the process that had this start time, or None when it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Checked after opening: from here on the descriptor cannot come to mean another process.
    if start_time(pid) == started:
        return descriptor
    os.close(descriptor)
    return None


def signal_process(pid: int, started: int, sig: int) -> bool:
    """Signal this very process; False when it is gone, even if its pid is in use again."""
    descriptor = open_identity(pid, started)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, sig)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def wait_gone(found: Mapping[int, int], timeout: float) -> bool:
    """Wait until these processes ({pid: start time}) have ended or the time is up; whether all have ended."""
    deadline = time.monotonic() + timeout
    pending = list(found.items())
    while pending:
        batch, pending = pending[:_MAX_PIDFDS], pending[_MAX_PIDFDS:]
        descriptors = [pidfd for pid, started in batch if (pidfd := open_identity(pid, started)) is not None]
        try:
            if not _all_readable(descriptors, deadline):
                return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    return True


class Inotify:
    """A watch over files and directories. Events are hints: a name that changed, never what changed."""

    def __init__(self) -> None:
        self._descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        return self._descriptor

    def watch(self, path: str, *news: str) -> int:
        """Watch a file, never what a link points to, or the entries of a directory.

        The number returned comes back with each event; another watch of the same file has the same number, and the
        news of both. With no ``news``, report all: written, closed after writing, moved into place, created.
        """
        mask = functools.reduce(operator.or_, map(_NEWS.__getitem__, news or _NEWS), _IN_DONT_FOLLOW | _IN_MASK_ADD)
        return _checked(_libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask))

    def unwatch(self, watch: int) -> None:
        """Forget a watch; one whose file is gone has already been forgotten by the kernel."""
        _libc.inotify_rm_watch(self._descriptor, watch)

    def read(self) -> list[tuple[int, int, str]]:
        """What has happened: (watch, mask, name). A watch of -1: events were lost, look at everything."""
        try:
            content = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return []
        found, position = [], 0
        while position < len(content):
            watch, mask, _, length = _EVENT_HEAD.unpack_from(content, position)
            position += _EVENT_HEAD.size
            found.append((watch, mask, os.fsdecode(content[position : position + length].rstrip(b"\0"))))
            position += length
        return found

    def close(self) -> None:
        os.close(self._descriptor)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of its `stat` from the state on. The command's name before them may hold blanks and parentheses."""
    return _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()


def _stat(pid: int, living: bool = False) -> Process | None:
    try:
        fields = _stat_fields(pid)
    except OSError:
        return None
    # A main thread that ended before its siblings shows as a zombie too, but then more threads are counted.
    if living and fields[0] in b"ZX" and int(fields[17]) <= 1:
        return None
    return Process(int(fields[1]), int(fields[19]))


def _all_readable(descriptors: list[int], deadline: float) -> bool:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    waiting = len(descriptors)
    while waiting:
        left = deadline - time.monotonic()
        ready = poll.poll(max(0.0, left) * 1000)
        if not ready and left <= 0:
            return False
        for descriptor, _ in ready:
            poll.unregister(descriptor)
        waiting -= len(ready)
    return True
