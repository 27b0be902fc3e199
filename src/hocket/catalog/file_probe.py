"""The eyes of discovery: every path that is looked at, and how it was then.

The catalog's only way to the disk while it searches, so that a result knows what it depends on: it is good for as long
as every path in ``seen`` still has its signature. What the bytes mean belongs to whoever asked for them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from operator import attrgetter

from hocket.catalog.entries import REFUSED
from hocket.catalog.frontmatter import Fault, end_of

MAX_FILE = 256 * 1024
ABSENT = "-"
"""The signature of a path where nothing is."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without the last, a FIFO that nobody writes to would hold us
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def kind_of(mode: int) -> str:
    """What sort of thing it is that is no regular file, in words."""
    return next((words for fits, words in _KINDS if fits(mode)), "no regular file")


def signature(found: os.stat_result) -> str:
    """A value that changes with a file's content or a folder's list."""
    return f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_size} {found.st_ino} {found.st_mode}"


def signature_at(path: str) -> str:
    """The signature of what a path leads to now."""
    try:
        return signature(os.stat(path))
    except (OSError, ValueError):
        return ABSENT


def normal(path: str) -> str:
    """A directory's path without links, as a process working there sees it."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a NUL, which no path can contain
        return os.path.normpath(path)


class Look:
    """One search: asks the disk, and remembers everything that it was told."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def stat(self, path: str) -> os.stat_result | None:
        """Links are followed. None for what is not there."""
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            self.seen[path] = ABSENT
            return None
        self.seen[path] = signature(found)
        return found

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        """What a folder has, sorted by name; nothing when it cannot be listed."""
        found = self.listing(folder)
        return [] if isinstance(found, Fault) else sorted(found, key=attrgetter("name"))

    def listing(self, folder: str) -> list[os.DirEntry[str]] | Fault:
        """What a folder has, in the order in which the system lists it, or why that cannot be told."""
        # Its signature comes first: a change in between then only makes us look once more.
        self.stat(folder)
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except (OSError, ValueError) as error:
            return _unreadable(error)

    def head(self, path: str, largest: int = MAX_FILE) -> bytes | Fault:
        """As much of a regular file as holds its head."""
        return self._read(path, largest, end_of)

    def content(self, path: str, limit: int) -> bytes | Fault | None:
        """A whole regular file; None when there is none, a fault when it cannot be read or is larger than the limit."""
        found = self._read(path, limit, lambda _: None)
        return None if self.seen[path] == ABSENT else found

    def _read(self, path: str, largest: int, find_end: Callable[[bytes], int | None]) -> bytes | Fault:
        try:
            descriptor = os.open(path, _FLAGS)
        except (OSError, ValueError) as error:
            self.stat(path)
            return _unreadable(error)
        try:
            found = os.fstat(descriptor)
            self.seen[path] = signature(found)
            if not stat.S_ISREG(found.st_mode):
                return Fault(1, f"is {kind_of(found.st_mode)}, not a file", REFUSED)
            if found.st_size > largest:
                return Fault(1, f"is larger than {largest // 1024} kB", REFUSED, ours=True)
            return _read_until(descriptor, largest, find_end)
        except OSError as error:
            return _unreadable(error)
        finally:
            os.close(descriptor)


def _unreadable(error: OSError | ValueError) -> Fault:
    return Fault(1, f"cannot be read: {getattr(error, 'strerror', None) or error}", REFUSED)


_CHUNK = 4 * 1024
"""Most heads are shorter, and what is longer costs one more call."""


def _read_until(descriptor: int, largest: int, find_end: Callable[[bytes], int | None]) -> bytes:
    content = os.read(descriptor, _CHUNK)
    # Each time as much again, so that looking at all of it so often costs no more than reading it twice. A file that
    # grows while it is read has an end all the same.
    while (end := find_end(content)) is None and len(content) <= largest:
        chunk = os.read(descriptor, max(_CHUNK, len(content)))
        if not chunk:
            break
        content += chunk
    return content[:end]
