"""A command on a pseudo-terminal of its own, and what a terminal emulator shows of it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte
from patience import PATIENCE

COLUMNS, ROWS = 100, 30


def _control_terminal() -> None:
    os.setsid()
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def _without_a_size() -> dict[str, str]:
    """What a test runner may leave in the environment would count more than the size that the terminal has."""
    return {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}


def _readable(text: bytes) -> int:
    """A descriptor from which this and nothing more is read."""
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


class Terminal:
    """A command on a terminal of its own."""

    def __init__(
        self, *args: str, cwd: Path, rows: int = ROWS, columns: int = COLUMNS, stdin: bytes | None = None, **env: str
    ) -> None:
        self.columns = columns
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        given = slave if stdin is None else _readable(stdin)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hocket", *args],
            stdin=given,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**_without_a_size(), "TERM": "xterm-256color", **env},
            # Its own session with this terminal in control: keys such as ^C then work as they do for a person.
            preexec_fn=_control_terminal,  # noqa: PLW1509 - one thread, and nothing but two system calls
        )
        os.close(slave)
        if stdin is not None:
            os.close(given)
        self.received = b""

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_for(self, wanted: str) -> None:
        self.wait_until(lambda: wanted in self.text(), f"{wanted!r} is not on the screen")

    def wait_until(self, is_so: Callable[[], bool], complaint: str = "it is not so", seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, f"{complaint}:\n{self.text()}"
            self._read(0.1)

    def read_for(self, seconds: float) -> bool:
        """Show what comes within so many seconds; whether more may come."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._read(left):
                return False
        return True

    def is_canonical(self) -> bool:
        """True while the terminal delivers whole lines; False while a program reads single keys."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ICANON)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # what Linux says when the other side has closed
            return False
        self.received += data
        self._stream.feed(data)
        return bool(data)

    def resize(self, rows: int, columns: int | None = None) -> None:
        """Change the size of the window."""
        self.columns = columns or self.columns
        self.screen.resize(rows, self.columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, self.columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        while self._read(0.1):
            if self.process.poll() is not None and not select.select([self._master], [], [], 0)[0]:
                break
        return self.process.wait(timeout=PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
