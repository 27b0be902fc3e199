"""A Hocket installation whose server can be killed, its processes by their roles, and bounded waits.

Nothing here decides what is right; the tests do. Every process that is started here is ended by the world of its
test, and every wait has a bound.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from patience import PATIENCE

from hocket.client import ENDED, Client
from hocket.client.startup import lock_held, read_lock
from hocket.keeper import files, linux

START = "import os, sys; from hocket.keeper.server_start import start_server; start_server(sys.argv[1], os.environ)"

T = TypeVar("T")
Run = dict[str, Any]


def wait_for(condition: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
    """The first true value of the condition; fails the test when it never comes."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.005)
    return value


def is_alive(pid: int) -> bool:
    """A zombie runs nothing, so it does not count."""
    return pid in linux.scan()


def kill(pid: int, sig: int = signal.SIGKILL, seconds: float = PATIENCE) -> None:
    """Signal a process and wait until it has ended, by a descriptor that cannot come to mean another one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, sig)
        if not select.select([descriptor], [], [], seconds)[0]:
            raise AssertionError(f"process {pid} does not react to signal {sig}")
    finally:
        os.close(descriptor)


def rss_mb(pid: int) -> float:
    """Resident memory that is the process's own: pages of mapped files come and go with the cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


class Installation:
    """One HOCKET_HOME, used through its API; the server comes up by itself whenever it is needed."""

    def __init__(self, home: Path, cwd: Path, wrapper: Sequence[str] = ()) -> None:
        self.home = home
        self.cwd = cwd
        self._wrapper = tuple(wrapper)
        """A program that starts the server for us, with a limit for example."""
        self.client = Client(str(home), self.start_server)

    def start_server(self) -> None:
        # Not forked here: a test process may have threads.
        command = [*self._wrapper, sys.executable, "-c", START, str(self.home)]
        environment = {**os.environ, "HOCKET_HOME": str(self.home)}
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment, timeout=PATIENCE)

    # The server and its kin

    def server_pid(self) -> int:
        """Of the server that answers now; one is started if there is none."""
        return int(self.client.request("GET", "/api/health")["pid"])

    def living_server(self) -> int | None:
        """The pid behind the lock, or None; starts nothing."""
        return read_lock(str(self.home)).get("pid") if lock_held(str(self.home)) else None

    def kill_server(self, sig: int = signal.SIGKILL) -> int:
        pid = self.server_pid()
        kill(pid, sig)
        return pid

    def zygote_pid(self) -> int:
        server = self.server_pid()
        return wait_for(lambda: child_named(server, "zygote"), "the zygote")

    # Runs

    def spawn(self, agent: str, *args: str, key: str | None = None, **more: Any) -> str:
        body = {"agent": agent, "args": list(args), "cwd": str(self.cwd), "env": environment(), **more}
        return str(self.client.request("POST", "/api/runs", body, key)["id"])

    def run(self, ref: str) -> Run:
        return self.client.run(ref)

    def folder(self, ref: str) -> Path:
        return Path(self.run(ref)["dir"])

    def out(self, ref: str) -> bytes:
        return b"".join(self.client.output(ref))

    def events(self, ref: str) -> list[dict[str, Any]]:
        return list(self.client.follow(ref, follow=False))

    def ended(self, ref: str, seconds: float = PATIENCE) -> Run:
        """The run, once it has ended and its keeper is gone."""
        deadline = time.monotonic() + seconds
        for _ in self.client.follow_ticking(ref, 0.1):
            if time.monotonic() > deadline:
                raise AssertionError(f"not ended within {seconds} s: {self.run(ref)}")
        run = self.run(ref)
        assert run["status"] in ENDED
        # Its keeper leaves a little later; one that finds the server killed by then would start another.
        wait_for(lambda: not files.is_locked(run["dir"]), "the end of the keeper")
        return run

    def said(self, ref: str, word: bytes) -> bytes:
        """What the agent has written once the word is in it; read from its file, so no server is needed."""
        path = self.folder(ref) / files.OUT

        def content() -> bytes | None:
            text = path.read_bytes() if path.exists() else b""
            return text if word in text else None

        return wait_for(content, repr(word))

    def identity(self, ref: str) -> files.AgentPid:
        folder = str(self.folder(ref))
        return wait_for(lambda: files.read_pid(folder), "the agent's pid")


def environment() -> dict[str, str]:
    """What a client sends along."""
    return {name: os.environ[name] for name in ("PATH", "HOME")}


def verdict(run: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return run["status"], run["reason"], run["exit_code"]


def all_gone(pids: Iterable[int], seconds: float = PATIENCE) -> bool:
    """Whether these processes are gone within that time."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > deadline:
            return False
        pids = left
        time.sleep(0.005)
    return True


def child_named(parent: int, word: str) -> int | None:
    for pid, process in linux.scan().items():
        if process.ppid == parent and word in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    return None
