"""The process tree of a run: who belongs to it, and ending all of it.

Two kinds of evidence make a process part of a run: it descends from the keeper (a subreaper, so nobody
escapes by a double fork), or it carries the run's cookie in its environment. Two marks spare a process:
HOCKET_SERVER (a server that an agent's command started serves other runs too) and another run's cookie.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hocket.keeper import platform

COOKIE = "HOCKET_RUN"
SERVER_MARK = "HOCKET_SERVER"
HOME = "HOCKET_HOME"

# How long SIGKILL is repeated before a process counts as a survivor (it hangs in the kernel, or is not ours).
KILL_PATIENCE = 5.0
_KILL_ROUND = 0.2
_LOOKS = 3

Found = dict[int, int]
"""Processes by pid, each with the start time that makes the pid an identity."""


class Sweep(NamedTuple):
    """How many processes were found and told to end, and the pids of those that would not."""

    swept: int
    survivors: list[int]


def descendants(root_pid: int) -> Found:
    """Everything below this process, itself not included."""
    table = platform.scan()
    return _below([root_pid], table, lambda pid: False)


def carrying(cookie: str) -> Found:
    """Every process of ours that carries this run's cookie."""
    return _carriers(platform.scan(), cookie)


def sweep_targets(keeper_pid: int, cookie: str) -> Found:
    """What must not outlive the run that this keeper keeps."""
    table = platform.scan()
    below = _below([keeper_pid], table, lambda pid: _is_spared(platform.environ_of(pid), cookie))
    return below | _own_carriers(table, cookie, keeper_pid)


def nearest_targets(keeper_pid: int, cookie: str) -> Found:
    """The living descendants that `sweep_targets` would find, by a walk that takes microseconds.

    What keeps forking away can be caught only if the look is quicker than the flight.
    """
    found: Found = {}
    pending = platform.children_of(keeper_pid)
    while pending:
        pid = pending.pop()
        started = platform.start_time(pid, living=True)
        if started is not None and pid not in found and not _is_spared(platform.environ_of(pid), cookie):
            found[pid] = started
            pending += platform.children_of(pid)
    return found


def has_own_child(keeper_pid: int, cookie: str) -> bool:
    """Whether a direct child of this keeper is there that nothing spares, be it one that ended just now."""
    return any(not _is_spared(platform.environ_of(pid), cookie) for pid in platform.children_of(keeper_pid))


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


def sweep_cookie(run_id: str, grace: float = 0.0) -> Sweep:
    """End what a run left behind whose keeper is gone: its cookie's carriers and what is below them."""

    def find() -> Found:
        table = platform.scan()
        carriers = _own_carriers(table, run_id, os.getpid())
        below = _below(carriers, table, lambda pid: _is_spared(platform.environ_of(pid), run_id))
        return below | carriers

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
    """SIGTERM, then SIGCONT: a stopped process gets its SIGTERM only when it goes on."""
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


def _is_spared(environ: Mapping[str, str], cookie: str) -> bool:
    return SERVER_MARK in environ or environ.get(COOKIE, cookie) != cookie


def _own_carriers(table: Mapping[int, platform.Process], cookie: str, self_pid: int) -> Found:
    carriers = _carriers(table, cookie)
    return {
        pid: started
        for pid, started in carriers.items()
        if pid != self_pid and SERVER_MARK not in platform.environ_of(pid)
    }


def _carriers(table: Mapping[int, platform.Process], cookie: str) -> Found:
    if not cookie:
        return {}
    uid = os.getuid()
    return {
        pid: process.start_time
        for pid, process in table.items()
        if platform.owner_of(pid) == uid and platform.environ_of(pid).get(COOKIE) == cookie
    }


def _below(roots: Iterable[int], table: Mapping[int, platform.Process], spared: Callable[[int], bool]) -> Found:
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
