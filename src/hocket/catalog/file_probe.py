"""Reading files during discovery: bounded, and recording the signature of every path that a result depends on."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import REFUSED, Fault

MAX_FILE = 256 * 1024
MAX_DOCUMENT = 8 * 1024 * 1024
ABSENT = "-"
"""The signature of a missing path."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without O_NONBLOCK, opening a FIFO would block
_KINDS = {"d": "a directory", "p": "a FIFO", "s": "a socket", "c": "a device", "b": "a device"}
_CHUNK = 4 * 1024


def kind_of(mode: int) -> str:
    """Name the kind of something that is not a regular file."""
    return _KINDS.get(stat.filemode(mode)[0], "not a regular file")


_TICK_NS = 50_000_000
"""More than the resolution of any file system's clock."""


def signature(found: os.stat_result) -> str:
    """Return a value that changes with a file's content or a folder's list."""
    return f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_size} {found.st_ino} {found.st_mode}"


def signature_at(path: str) -> str:
    """Return the current signature of a path, links followed."""
    try:
        return signature(os.stat(path))
    except (OSError, ValueError):
        return ABSENT


def changed_recently(known: str, begun: int, ended: int) -> bool:
    """True if something with this signature changed so recently that the next change may not show.

    A time in the future is that of a file older than a clock that was set back.
    """
    changed = known.split(" ", 2)[1:2]
    return bool(changed) and begun - _TICK_NS < int(changed[0]) < ended + _TICK_NS


def real_path(path: str) -> str:
    """Resolve links, as a process working there sees the path."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a NUL, which no path can contain
        return os.path.normpath(path)


class FileProbe:
    """Access to the disk for one discovery; ``seen`` holds the signature of every path it depends on."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def stat(self, path: str) -> os.stat_result | None:
        """Stat a path, links followed; None if it does not exist."""
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
        """List a folder sorted by name; empty if it cannot be listed."""
        found = self.listing(folder)
        return [] if isinstance(found, Fault) else sorted(found, key=attrgetter("name"))

    def listing(self, folder: str) -> list[os.DirEntry[str]] | Fault:
        """List a folder in the order of the file system."""
        # The signature comes first: a change in between only causes another discovery.
        self.stat(folder)
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except (OSError, ValueError) as error:
            return _unreadable(error)

    def head(self, path: str) -> bytes | Fault:
        """Read a regular file up to the end of its frontmatter."""
        return self._read(path, MAX_FILE, DEFINITIONS.end_of)

    def content(self, path: str, limit: int) -> bytes | Fault | None:
        """Read a whole regular file; None if it does not exist."""
        found = self._read(path, limit, lambda _: None)
        return None if self.seen[path] == ABSENT else found

    def read_object(self, path: str, limit: int = MAX_DOCUMENT) -> dict[str, Any] | Fault | None:
        """Read a file that holds one JSON object; None if it does not exist."""
        content = self.content(path, limit)
        return parse_object(content) if isinstance(content, bytes) else content

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
                is_hocket_limit = found.st_size <= DEFINITIONS.largest_file
                return Fault(1, f"is larger than {largest // 1024} kB", REFUSED, is_hocket_limit)
            return _read_until(descriptor, largest, find_end)
        except OSError as error:
            return _unreadable(error)
        finally:
            os.close(descriptor)


def _unreadable(error: OSError | ValueError) -> Fault:
    return Fault(1, f"cannot be read: {getattr(error, 'strerror', None) or error}", REFUSED)


def _read_until(descriptor: int, largest: int, find_end: Callable[[bytes], int | None]) -> bytes:
    content = os.read(descriptor, _CHUNK)
    # Doubling keeps the searches linear. The limit ends the reading of a file that grows meanwhile.
    while (end := find_end(content)) is None and len(content) <= largest:
        chunk = os.read(descriptor, max(_CHUNK, len(content)))
        if not chunk:
            break
        content += chunk
    return content[:end]


def parse_object(content: bytes) -> dict[str, Any] | Fault:
    """Parse a file that holds one JSON object."""
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        return Fault(error.lineno, f"is not JSON: {error.msg}")
    except UnicodeDecodeError as error:
        return Fault(content[: error.start].count(b"\n") + 1, "is not UTF-8 text")
    except (RecursionError, ValueError) as error:  # thousands of brackets; a number with thousands of digits
        return Fault(1, f"cannot be read as JSON: {error}")
    return found if isinstance(found, dict) else Fault(1, "is not one JSON object")
