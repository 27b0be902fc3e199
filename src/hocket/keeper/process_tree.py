"""The process tree of a run: which processes belong to it, and ending all of it.

Three kinds of evidence make a process part of a run: it descends from the keeper (a subreaper, so a double fork cannot
escape), it carries the run's cookie in its environment, or it has inherited the run's mark, which a process keeps
when it clears its environment. Any process can write an environment, so nothing in it spares a process. Spared are the
holders of a lock that proves it: the server of the run's home, the keeper of another live run, and their descendants.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hocket.keeper import files, platform
from hocket.keeper.server_watch import SERVER_LOCK

COOKIE = "HOCKET_RUN"
SERVER_MARK = "HOCKET_SERVER"
HOME = "HOCKET_HOME"
RUNS = "runs"

# How long SIGKILL is repeated before a process counts as a survivor (it hangs in the kernel, or is not ours).
KILL_PATIENCE = 5.0
_KILL_ROUND = 0.2
_LOOKS = 3

Found = dict[int, int]
"""Processes by pid, each with the start time that makes the pid an identity."""


Spared = Callable[[int], bool]
"""Whether a process is left alone, together with everything below it."""


class Sweep(NamedTuple):
    """How many processes were found and signalled, and the pids of those that survived."""

    swept: int
    survivors: list[int]


def mark_of(cookie: str) -> int:
    """The number that processes of the run with this cookie inherit: 62 bits, so that no real limit looks like one."""
    number = 0xCBF29CE484222325
    for byte in cookie.encode("utf-8", "surrogateescape"):
        number = (number ^ byte) * 0x100000001B3 % (1 << 64)  # FNV-1a: this process must not load a library for it
    return number >> 3 | 1 << 61


def spare_nobody(pid: int) -> bool:
    return False


def spare_others(home: str, own: str) -> Spared:
    """Spare the server of this home and the keepers of its live runs, but for the one of the run directory ``own``.

    The mark of a server in the environment is no proof, it only saves the look at most processes.
    """

    def is_other(pid: int) -> bool:
        if not home or SERVER_MARK not in platform.environ_of(pid):
            return False
        place = platform.working_directory(pid) or ""
        locks = [os.path.join(home, SERVER_LOCK)]
        is_run = os.path.dirname(os.path.dirname(place)) == os.path.join(os.path.realpath(home), RUNS)
        if is_run and place != os.path.realpath(own):
            locks.append(os.path.join(place, files.LOCK))
        return any(files.is_same(lock, held) for held in platform.held_locks(pid) for lock in locks)

    return is_other


def carrying(cookie: str) -> Found:
    """Every process of ours that carries this run's cookie, or its mark."""
    return _carriers(platform.scan(), cookie)


def is_carrying(pid: int, cookie: str) -> bool:
    """Whether this process carries the cookie of a run, or its mark. Its keeper carries neither."""
    return platform.inherited_mark(pid) == mark_of(cookie) or platform.environ_of(pid).get(COOKIE) == cookie


def below(pid: int) -> Found:
    """All processes below this one."""
    return _below((pid,), platform.scan(), spare_nobody)


def sweep_targets(keeper_pid: int, cookie: str, spared: Spared = spare_nobody) -> Found:
    """What must not outlive the run that this keeper keeps."""
    table = platform.scan()
    return _below([keeper_pid], table, spared) | _own_carriers(table, cookie, keeper_pid, spared)


def nearest_targets(keeper_pid: int, spared: Spared = spare_nobody) -> Found:
    """The living descendants that `sweep_targets` would find, by a walk over the children alone.

    A process that keeps forking can be caught only by a fast walk.
    """
    found: Found = {}
    pending = platform.children_of(keeper_pid)
    while pending:
        pid = pending.pop()
        started = platform.start_time(pid, living=True)
        if started is not None and pid not in found and not spared(pid):
            found[pid] = started
            pending += platform.children_of(pid)
    return found


def has_own_child(keeper_pid: int, spared: Spared = spare_nobody) -> bool:
    """Whether a direct child of this keeper is there that nothing spares, be it one that ended just now."""
    return any(not spared(pid) for pid in platform.children_of(keeper_pid))


def end_all(
    find: Callable[[], Found],
    grace: float,
    reap: Callable[[], None] = lambda: None,
    wait: Callable[[Found, float], object] = platform.wait_gone,
) -> Sweep:
    """End everything that `find` finds: SIGTERM, a time of grace, then SIGKILL until a look finds nothing.

    `find` is asked again after every round, so what is forked meanwhile is caught too. `reap` lets a caller
    that is the parent of some of them collect their statuses on the way. `wait` waits until they have ended, or
    for so many seconds; a caller that has other work to do meanwhile brings its own.
    """
    found = _look(find)
    seen = set(found)
    deadline = time.monotonic() + grace
    fresh = found
    while found and (left := deadline - time.monotonic()) > 0:
        ask_to_end(fresh)
        wait(found, left)
        reap()
        found = _look(find)
        fresh = {pid: started for pid, started in found.items() if pid not in seen}
        seen |= found.keys()
    deadline = time.monotonic() + KILL_PATIENCE
    while found and time.monotonic() < deadline:
        signal_all(found, signal.SIGKILL)
        wait(found, _KILL_ROUND)
        reap()
        found = _look(find)
        seen |= found.keys()
    return Sweep(len(seen), sorted(found))


def sweep_cookie(run_id: str, grace: float = 0.0, spared: Spared = spare_nobody) -> Sweep:
    """End what a run left behind whose keeper is gone: who carries its cookie or its mark, and what is below them.

    The caller is spared: it is the server, or has nothing to do with the run.
    """
    own = os.getpid()

    def find() -> Found:
        table = platform.scan()
        carriers = _own_carriers(table, run_id, own, spared)
        return _below(carriers, table, lambda pid: pid == own or spared(pid)) | carriers

    return end_all(find, grace)


def sweep_home(home: str, grace: float = 0.0) -> Sweep:
    """End all that works for a home that is about to be removed: servers, keepers and agents, but not the caller."""

    def find() -> Found:
        uid, own = os.getuid(), os.getpid()
        return {
            pid: process.start_time
            for pid, process in platform.scan().items()
            if pid != own and platform.owner_of(pid) == uid and platform.environ_of(pid).get(HOME) == home
        }

    return end_all(find, grace)


def ask_to_end(found: Mapping[int, int]) -> None:
    """SIGTERM, then SIGCONT: a stopped process gets its SIGTERM only when it continues."""
    signal_all(found, signal.SIGTERM)
    signal_all(found, signal.SIGCONT)


def signal_all(found: Mapping[int, int], sig: int) -> None:
    for pid, started in found.items():
        platform.signal_process(pid, started, sig)


def _look(find: Callable[[], Found]) -> Found:
    # Reading the process table takes time: a process that forked and ended during it can hide its child.
    for _ in range(_LOOKS):
        if found := find():
            return found
    return {}


def _own_carriers(table: Mapping[int, platform.Process], cookie: str, self_pid: int, spared: Spared) -> Found:
    carriers = _carriers(table, cookie)
    return {pid: started for pid, started in carriers.items() if pid != self_pid and not spared(pid)}


def _carriers(table: Mapping[int, platform.Process], cookie: str) -> Found:
    if not cookie:
        return {}
    uid = os.getuid()
    return {
        pid: process.start_time
        for pid, process in table.items()
        if platform.owner_of(pid) == uid and is_carrying(pid, cookie)
    }


def _below(roots: Iterable[int], table: Mapping[int, platform.Process], spared: Spared) -> Found:
    """All processes below the roots; a spared one is left out together with everything below it."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.ppid, []).append(pid)
    below: Found = {}
    pending = [child for root in roots for child in children.get(root, ())]
    while pending:
        pid = pending.pop()
        if pid not in below and not spared(pid):
            below[pid] = table[pid].start_time
            pending += children.get(pid, ())
    return below
