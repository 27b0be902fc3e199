"""Crash points: the server, the zygote and the keeper are killed at one system call after the other.

strace is attached to one of them and kills the process at the n-th call of a kind, for n = 1, 2, … until no call is
left to be hit. After each: the agent ran at most once, and its state is correct, or `lost` where the keeper
itself was the victim. Nothing gets stuck. A kind of call belongs to one home, and homes are tortured side by side.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from torture.installation import Installation, Run, child_named, kill, wait_for
from world import Bin, processes_of, wait_until_none

from hocket.keeper import files

ENOUGH = 45
SIDE_BY_SIDE = 4
ATTEMPTS = 3
"""How often a point is tried whose victims are unclear. A loss without the death of the keeper would recur."""
BOUND = 40.0
"""Seconds until a run must have ended. A keeper that dies before it has its lock is noticed only later."""
VICTIM = '#!/bin/sh\necho $$ >> "$1"\necho one\necho two\nexit "$2"\n'
WRITTEN = b"one\ntwo\n"
KILLED = re.compile(r"^(\d+) +\+\+\+ killed by SIGKILL", re.MULTILINE)

Target = Literal["zygote", "server"]


class Calls(NamedTuple):
    """The n-th calls of one kind. The count is of each process for itself, and threads count apart."""

    target: Target
    name: str
    numbers: Sequence[int] = range(1, 200)
    follow_agent: bool = False
    """Also into the agent's own program; otherwise it is let go when it begins."""


KEEPER_CALLS = [
    *(Calls("zygote", name) for name in ("write", "pwrite64", "fsync", "rename", "flock", "mkdir")),
    *(Calls("zygote", name) for name in ("clone", "dup2", "prctl", "setsid", "wait4", "pipe2", "poll")),
    *(Calls("zygote", name) for name in ("chdir", "umask")),
    Calls("zygote", "execve", follow_agent=True),
]
KEEPER_CALLS_SAMPLED = [
    Calls("zygote", "openat", range(1, 60, 4)),
    Calls("zygote", "close", range(1, 60, 8)),
    Calls("zygote", "newfstatat", range(1, 60, 8)),
    Calls("zygote", "read", range(1, 60, 8)),
]
SERVER_CALLS = [
    *(Calls("server", name) for name in ("mkdir", "mknodat", "rename")),
    *(Calls("server", name, range(1, 60, 3)) for name in ("fdatasync", "sendto")),
    Calls("server", "pwrite64", range(1, 60, 9)),
    Calls("server", "openat", range(1, 60, 12)),
    Calls("server", "write", range(1, 60, 12)),
]
EVERY_CALL = [
    *KEEPER_CALLS,
    *(calls._replace(numbers=range(1, 200)) for calls in KEEPER_CALLS_SAMPLED + SERVER_CALLS),
    *(Calls("zygote", name) for name in ("rt_sigaction", "rt_sigprocmask", "getpid", "close_range", "lseek")),
    *(Calls("server", name) for name in ("recvfrom", "read", "close", "fsync", "flock", "inotify_add_watch")),
    *(Calls("server", name) for name in ("pread64", "fcntl", "futex", "epoll_wait", "unlink", "ftruncate")),
]


class Trial(NamedTuple):
    """One run under one injection."""

    fired: bool
    wrong: list[str]
    is_unclear: bool = False
    """The keeper was lost as well, and the tracer was ended before it could log which of its victims there were."""


class Home:
    """A home of its own for some kinds of calls, with a ledger for each run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.place = folder / "h"
        self.place.mkdir(mode=0o700)
        self.installation = Installation(self.place, folder)
        self._numbers = itertools.count()

    def try_point(self, calls: Calls, nth: int) -> Trial:
        number = next(self._numbers)
        code, ledger = number % 2 * 3, self.folder / f"ledger-{number}"
        log = self.folder / f"strace-{number}"
        traced = self._process_of(calls.target)
        with strace(traced, calls, nth, log) as tracer:
            run = self.installation.spawn("victim", str(ledger), str(code), key=f"key-{number}")
            self._see_to_the_end(run, tracer, log)
        killed = {int(pid) for pid in KILLED.findall(log.read_text())}
        starts = len(ledger.read_text().splitlines()) if ledger.exists() else 0
        may_be_lost = calls.target == "zygote" and killed != {traced}
        ended = self.installation.run(run)
        wrong = self._judge(ended, code, starts, may_be_lost)
        is_unclear = calls.target == "zygote" and killed == {traced} and ended["status"] == "lost"
        return Trial(bool(killed), [f"{calls.name} {nth} of {calls.target}: {line}" for line in wrong], is_unclear)

    def close(self) -> dict[int, str]:
        """Ends the server; returns what else was still there."""
        deadline = time.monotonic() + BOUND
        while processes_of(self.place) and time.monotonic() < deadline:
            # More than one: the last keeper may have started another server, which is still on its way.
            if (pid := self.installation.living_server()) is not None:
                kill(pid, signal.SIGTERM)
            wait_until_none(self.place, 0.1)
        left = processes_of(self.place)
        for pid in left:
            kill(pid)
        return left

    def _process_of(self, target: Target) -> int:
        server = self.installation.server_pid()
        if target == "server":
            return server
        if child_named(server, "zygote") is None:
            # It was killed before; the next run brings it back.
            self.installation.ended(self.installation.spawn("/bin/true"))
        return self.installation.zygote_pid()

    def _see_to_the_end(self, run: str, tracer: subprocess.Popen[str], log: Path) -> None:
        deadline = time.monotonic() + BOUND
        for _ in self.installation.client.follow_ticking(run, 0.01):
            if tracer.poll() is None and KILLED.search(log.read_text()):
                # Once is enough: the successor of the victim must not be killed. Killed, because a tracer
                # that is asked to end waits for threads which the death of their process has already taken.
                tracer.kill()
            if time.monotonic() > deadline:
                raise AssertionError(f"stuck: {self.installation.run(run)}")
        # A run is over for its readers a little before its keeper is; the last calls are to be hit too.
        folder = str(self.installation.folder(run))
        wait_for(lambda: not files.is_locked(folder), "the end of the keeper")

    def _judge(self, run: Run, code: int, starts: int, may_be_lost: bool) -> list[str]:
        output = (Path(run["dir"]) / "out").read_bytes() if (Path(run["dir"]) / "out").exists() else b""
        told = f"{run['status']} {run['reason']} {run['exit_code']}, started {starts} times, wrote {output!r}"
        if starts > 1:
            return [told]
        if (run["reason"], run["exit_code"]) == ("exit", code):
            as_it_was = run["status"] == ("failed" if code else "done") and starts == 1 and output == WRITTEN
            return [] if as_it_was else [told]
        if may_be_lost and run["status"] == "lost":
            return []
        # The victim can be the agent itself, before its program began or after.
        agent_killed = (run["status"], run["reason"], run["exit_code"]) == ("failed", "signal", 137)
        return [] if may_be_lost and agent_killed else [told]


@contextlib.contextmanager
def strace(pid: int, calls: Calls, nth: int, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Attached while the block runs. It fails where strace is missing or may not attach."""
    inject = f"inject={calls.name}:signal=SIGKILL:when={nth}"
    let_go = [] if calls.follow_agent else ["-b", "execve"]
    log.touch()
    command = ["strace", "-f", *let_go, "-o", str(log), "-e", f"trace={calls.name}", "-e", inject]
    with subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stderr is not None
            line = tracer.stderr.readline()
            assert "attached" in line, f"strace cannot attach: {line}"
            yield tracer
        finally:
            tracer.kill()


def exhaust(home: Home, calls: Calls) -> list[Trial]:
    """One point after the other, until nothing is hit any more."""
    trials: list[Trial] = []
    for nth in calls.numbers:
        attempts = (home.try_point(calls, nth) for _ in range(ATTEMPTS))
        lost = Trial(True, [f"{calls.name} {nth} of {calls.target}: lost {ATTEMPTS} times"])
        trials.append(next((trial for trial in attempts if not trial.is_unclear), lost))
        if not trials[-1].fired:
            break
    return trials


def torture(folder: Path, every: Sequence[Calls]) -> list[Trial]:
    """All points, side by side in homes of their own; the waits of one are the working time of another."""
    folder.mkdir()
    homes = [Home(folder / str(number)) for number in range(SIDE_BY_SIDE)]
    free = list(homes)

    def work(calls: Calls) -> list[Trial]:
        home = free.pop()
        try:
            return exhaust(home, calls)
        finally:
            free.append(home)

    try:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return [trial for trials in pool.map(work, every) for trial in trials]
    finally:
        left = {pid: line for home in homes for pid, line in home.close().items()}
        assert left == {}


def check(trials: Sequence[Trial], enough: int) -> None:
    assert [line for trial in trials for line in trial.wrong] == []
    assert sum(trial.fired for trial in trials) >= enough


@pytest.mark.timeout(240)  # some sixty points, a third of which cost a start of the server
def test_run_starts_once_when_killed_at_sampled_calls(agent: Bin, world: Path) -> None:
    agent("victim", VICTIM)
    check(torture(world / "t", KEEPER_CALLS + KEEPER_CALLS_SAMPLED + SERVER_CALLS), ENOUGH)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # every call of every kind, several hundred
def test_run_starts_once_when_killed_at_every_call(agent: Bin, world: Path) -> None:
    agent("victim", VICTIM)
    check(torture(world / "t", EVERY_CALL), 180)
