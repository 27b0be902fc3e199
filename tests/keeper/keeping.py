"""Shared by the tests of the keeper: making a run directory, starting a keeper on it, and bounded waits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from patience import PATIENCE

from hocket.keeper import files, linux

KEEPER = (sys.executable, "-m", "hocket.keeper.keeper")

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """The first true value of the condition; fails the test when it never comes."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience} s: {what}")
        time.sleep(0.002)
    return value


def is_alive(pid: int) -> bool:
    return pid in linux.scan()


class Runs:
    """Run directories below one folder, each with a keeper of its own, all gone when the test is over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def create(self, *argv: str, env: dict[str, str] | None = None, **spec: Any) -> str:
        self._count += 1
        directory = str(self.root / f"run{self._count}")
        # Of its own on the whole machine: a sweep looks everywhere, and tests run side by side.
        cookie = {"HOCKET_RUN": os.urandom(8).hex(), "PATH": "/usr/bin:/bin"}
        files.create(
            directory,
            {"argv": argv, "cwd": str(self.root), "env": cookie | (env or {}), "stdin": "empty", **spec},
        )
        return directory

    def python(self, code: str, *args: str, **spec: Any) -> str:
        return self.create(sys.executable, "-I", "-c", code, *args, **spec)

    def keep(self, directory: str, program: Sequence[str] = KEEPER) -> subprocess.Popen[bytes]:
        keeper = subprocess.Popen([*program, directory], start_new_session=True)
        self._keepers.append(keeper)
        return keeper

    def finish(self, directory: str, program: Sequence[str] = KEEPER) -> files.Exit:
        """Keep this run to its end."""
        assert self.keep(directory, program).wait(PATIENCE) == 0
        ending = files.read_exit(directory)
        assert ending is not None
        return ending

    def close(self) -> None:
        for keeper in self._keepers:
            keeper.kill()
            keeper.wait()


def cookie_of(directory: str) -> str:
    spec = files.read_spec(directory)
    assert spec is not None
    return str(spec["env"]["HOCKET_RUN"])


def out_of(directory: str, name: str = files.OUT) -> bytes:
    path = Path(directory, name)
    return path.read_bytes() if path.exists() else b""


def err_of(directory: str) -> bytes:
    return out_of(directory, files.ERR)


def wait_ended(directory: str) -> files.Exit:
    return wait_for(lambda: files.read_exit(directory), "the exit record")


def wait_pid(directory: str) -> files.AgentPid:
    return wait_for(lambda: files.read_pid(directory), "the agent's pid")


def wait_said(directory: str, word: bytes) -> bytes:
    """What the agent has written once `word` is in it."""

    def said() -> bytes | None:
        text = out_of(directory)
        return text if word in text else None

    return wait_for(said, repr(word))


def ring(directory: str, byte: bytes) -> None:
    wait_for(lambda: files.ring(directory, byte), "a keeper that hears the bell")


@contextlib.contextmanager
def process(code: str, **env: str) -> Iterator[int]:
    """A process of the test's own that has said that it is ready."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", "print('ready', flush=True)\n" + code],
        stdout=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.stdout.close()
        child.wait()
