"""The terminal of an agent that needs one: a pseudo-terminal that its keeper holds.

What belongs here: its size, what is typed into it, and its bounded copy in `out`. What does not: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import termios
import time
from collections.abc import Mapping
from typing import Any

from hocket.keeper import files
from hocket.keeper.input_feed import Feed
from hocket.keeper.output import RETRY, Output

SIZE = (120, 40)
"""Columns and rows, unless the run says otherwise."""
LIMIT = 64 << 20
"""Bytes that `out` may have, unless the run says otherwise (`screen_limit`)."""
_KEPT = 4
"""The part of the limit that stays when `out` is cut: one in so many."""
_LONGEST_LINE = 4096
_KEYS = 4096
_MOST_HELD = 1 << 20
"""More bytes than the system holds for the reader of a terminal."""
# In Python since 3.13; the same on Linux and macOS.
_IUTF8 = 0o40000


class PseudoTerminal:
    """Both ends of it. The keeper has the slave end open too, so that the master end never reports an end."""

    def __init__(self, directory: str, spec: Mapping[str, Any]) -> None:
        self._directory = directory
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        modes = termios.tcgetattr(self.slave)
        modes[0] |= _IUTF8
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self._set_size(files.usable_size(spec.get("size")) or SIZE)
        self.resize()

    def resize(self) -> None:
        """Take the size that the file `size` names, if there is one. The kernel tells the agent of a change."""
        if (size := files.read_size(self._directory)) is not None:
            self._set_size(size)

    def control_this_session(self) -> None:
        """Become the controlling terminal of the caller, which has just begun a session."""
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def _set_size(self, size: tuple[int, int]) -> None:
        columns, rows = size
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetwinsize(self.master, (rows, columns))


class TerminalOutput(Output):
    """What comes out of a terminal, in a file that is cut when it becomes too long.

    A cut leaves the last quarter of the limit, from the beginning of a line where there is one. So a reader finds a
    file that is shorter than before, and starts again at its beginning.
    """

    def __init__(self, file: int, terminal: PseudoTerminal, limit: object = None) -> None:
        super().__init__(file, (terminal.master, terminal.slave))
        self._limit = limit if type(limit) is int and limit > 0 else LIMIT

    def seal(self) -> None:
        # The system does not tell how much it holds. A read that finds nothing is the end, or this bound is.
        self._left = _MOST_HELD

    def _read(self) -> bytes:
        try:
            return super()._read()
        except OSError:
            # Hung up: on macOS by the end of the agent. Otherwise the agent may open it again.
            self._left = None if self._left is None else 0
            self.retry_at = time.monotonic() + RETRY
            return b""

    def _make_fit(self, chunk: bytes) -> bytes:
        return self._cut() + chunk if os.fstat(self.file).st_size + len(chunk) > self._limit else chunk

    def _cut(self) -> bytes:
        """Empty the file; what is to be its beginning."""
        kept = self._limit // _KEPT
        try:
            tail = os.pread(self.file, kept, max(0, os.fstat(self.file).st_size - kept))
            os.ftruncate(self.file, 0)
        except OSError:
            return b""
        return tail[tail.find(b"\n", 0, _LONGEST_LINE) + 1 :]


class TerminalFeed(Feed):
    """Types records into a terminal, and between them the keys of attached people.

    The end of the input ends the records; the terminal stays open.
    """

    def __init__(self, directory: str, terminal: PseudoTerminal) -> None:
        # A descriptor of its own: the same one cannot be polled twice, and the output is read from the other.
        super().__init__(directory, os.dup(terminal.master))
        self._keys = files.open_fifo(os.path.join(directory, files.KEYS), os.O_RDWR)
        self._may_take_keys = True
        self._is_over = False

    @property
    def awaited(self) -> dict[int, int]:
        """Keys are not even read before what is begun is typed: so their sender waits as well."""
        if self._data is not None or self._pipe is None or self._keys is None:
            return super().awaited
        return {self._keys: select.POLLIN}

    def pump(self) -> None:
        self._may_take_keys = True
        super().pump()

    def _end(self) -> None:
        self._is_over = True

    def _next(self) -> bool:
        return self._take_keys() or (not self._is_over and super()._next())

    def _take_keys(self) -> bool:
        """Begin with keys, if there are some. Once in a round: a flood of them must not delay anything else."""
        if self._keys is None or not self._may_take_keys:
            return False
        self._may_take_keys = False
        with contextlib.suppress(BlockingIOError):
            self._data = memoryview(os.read(self._keys, _KEYS)) or None
        return self._data is not None
