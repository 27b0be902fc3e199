"""Disk space that is kept back: a file in HOCKET_HOME that gives way when the disk is full.

What is under way can then still be listed, stopped and recorded. It is given up in slices, because a program that has
filled the disk may take what is freed before it can be used here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

RESERVE = "reserve"
SIZE = 4 * 1024**2
SLICE = 1024**2
NEEDED = 4 * SIZE
"""Free space from which the reserve is made."""
PROBE_BYTES = 256 * 1024
"""Room for this much is enough to open the database and to commit to it."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """That of one home. All of its state is the size of the file; a missing one was never made."""

    def __init__(self, home: Path) -> None:
        self._path = home / RESERVE

    @property
    def in_use(self) -> bool:
        """Whether a part of it was given up and is not back yet."""
        return 0 <= self._size() < SIZE

    def make(self) -> None:
        """Bring it to its full size, where the disk has enough to spare."""
        space = os.statvfs(self._path.parent)
        if self._size() == SIZE or space.f_bavail * space.f_frsize < NEEDED:
            return
        # Random bytes, because a file system may store zeros without giving them any room.
        whole = self._path.with_name(f"{RESERVE}.new")
        _write(whole, os.urandom(SIZE))
        whole.replace(self._path)  # One that is half made would look like one that is in use.

    def make_room(self) -> bool:
        """Give up a slice if the disk is full; whether that was so, and it is worth trying again."""
        if self.has_room():
            return False
        size = self._size()
        if size <= 0:
            return False
        descriptor = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, max(0, size - SLICE))
        finally:
            os.close(descriptor)
        return True

    def has_room(self) -> bool:
        """Whether the disk takes a file of a moderate size."""
        probe = self._path.with_name(f"{RESERVE}.probe")
        try:
            _write(probe, bytes(PROBE_BYTES))
        except OSError as error:
            return error.errno not in _FULL
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return True

    def _size(self) -> int:
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return -1
        return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _write(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        while content:
            content = content[file.write(content) :]
