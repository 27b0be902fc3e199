"""Copying what the agent writes: from a pipe or a terminal into `out`, from another pipe into `err`.

The agent never gets the files themselves, because a program that opens `/dev/stdout` anew would truncate them. What
does not belong here: when to copy, and how long to wait for a full disk. The keeper decides both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time

RETRY = 0.25
"""Seconds until a write that failed is tried again."""
_CHUNK = 65536
_COUNT = struct.Struct("i")


class Output:
    """One output stream of the agent: a pipe, unless it is given other ``ends``, to read from and for the agent.

    No call blocks, except for as long as the disk takes to write a chunk.
    """

    def __init__(self, file: int, ends: tuple[int, int] | None = None) -> None:
        self.file = file
        # The keeper keeps both ends open: the agent never gets SIGPIPE, and the pipe never reports its end.
        self._source, self.sink = ends or os.pipe()
        os.set_blocking(self._source, False)
        self._held = memoryview(b"")
        self._left: int | None = None
        self.lost = 0
        """Bytes that could not be written to the file."""
        self.retry_at: float | None = None
        """When to try again what has failed: to write a chunk that is held."""

    @property
    def source(self) -> int | None:
        """The descriptor to poll for more output; None until a retry, so that the agent waits as well."""
        return None if self.retry_at is not None else self._source

    @property
    def is_complete(self) -> bool:
        """True once everything up to `seal` is written, or counted as lost."""
        return self._left == 0 and not self._held

    def seal(self) -> None:
        """From now on copy only what the pipe holds at this moment.

        A process that outlives the run may write for ever, or keep the pipe open in silence.
        """
        self._left = _COUNT.unpack(fcntl.ioctl(self._source, termios.FIONREAD, bytes(_COUNT.size)))[0]

    def copy(self) -> None:
        """Write the chunk that is held, or else the next one that the agent has written."""
        self.retry_at = None
        if not self._held:
            self._held = memoryview(self._make_fit(self._read()))
        while self._held:
            try:
                self._held = self._held[os.write(self.file, self._held) :]
            except OSError as error:
                if error.errno == errno.EFBIG:
                    self._drop()  # A limit on the size of files does not go away.
                else:
                    self.retry_at = time.monotonic() + RETRY
                return

    def give_up(self) -> None:
        """Count as lost what is held, and what is left in the pipe after `seal`."""
        self._drop()
        while self._left:
            self.lost += len(self._read())

    def _read(self) -> bytes:
        try:
            chunk = os.read(self._source, _CHUNK if self._left is None else min(_CHUNK, self._left))
        except BlockingIOError:
            chunk = b""
        if self._left is not None:
            # Nothing although there was something: the agent itself has read it.
            self._left = self._left - len(chunk) if chunk else 0
        return chunk

    def _make_fit(self, chunk: bytes) -> bytes:
        """What is to be appended to the file for this chunk."""
        return chunk

    def _drop(self) -> None:
        self.lost += len(self._held)
        self._held = memoryview(b"")
        self.retry_at = None
