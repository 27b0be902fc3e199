"""The limits on what may be started, checked in the one place where runs are created, and the disk space for it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from hocket.config.settings import Limits
from hocket.errors import DiskLow, LimitReached
from hocket.model import BoundChain, Run, Spec, stages

LEAST_FREE_MB = 1
"""Below this nothing is started, regardless of the configuration."""
MIN_FILES = 256
"""A run makes eight, and the database a few: below this, nothing is started."""
RESERVE = "reserve"
SIZE = 4 * 1024**2
SLICE = 1024**2
NEEDED = 4 * SIZE
"""Free space from which the reserve is made."""
PROBE_BYTES = 256 * 1024
"""Room for this much is enough to open the database and to commit to it."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_disk(home: Path, limits: Limits) -> None:
    """Raise DiskLow unless there is space to record a run."""
    space = os.statvfs(home)
    if limits.min_free_mb and space.f_files and space.f_favail < MIN_FILES:
        raise DiskLow(f"the file system of {home} has room for {space.f_favail} more files only", "Remove some files")
    reserve = Reserve(home)
    if reserve.in_use:
        with contextlib.suppress(OSError):
            reserve.make()  # There may be room again that the next regular check has not seen yet.
    if reserve.in_use:
        raise DiskLow(
            f"the disk of {home} is full",
            f"Free some space, {NEEDED // 1024**2} MB at least."
            " Runs already in progress can still be listed and stopped",
        )
    free, least = space.f_bavail * space.f_frsize // 1024**2, max(limits.min_free_mb, LEAST_FREE_MB)
    if free < least:
        raise DiskLow(
            f"only {free} MB are free in {home}; nothing is started below {least} MB",
            "Free some space, or lower min_free_mb under [limits] in config.toml. Live runs go on",
        )


def depth_below(parent: Run | None, limits: Limits) -> int:
    """The depth of a new run. Chains and loops add none: only an agent that starts an agent does."""
    if parent is None:
        return 0
    depth = parent.depth + (1 if parent.has_process else 0)
    if depth > limits.depth:
        raise LimitReached(
            f"depth {depth} is over the limit of {limits.depth}",
            "Agents that start agents may nest only so deep; raise depth under [limits] in config.toml",
        )
    return depth


def width(bound: Spec | BoundChain) -> int:
    """How many agents this is at the same time: of a chain its widest group, whenever that comes."""
    return 1 if isinstance(bound, Spec) else max(map(len, stages(bound.steps)), default=1)


def check_children(parent: Run | None, live: int, wanted: int, limits: Limits) -> None:
    """How many live children one agent may have at once, those in groups of its chains included."""
    if parent is None or not parent.has_process or live + wanted <= limits.children:
        return
    remedy = "Make the group smaller" if wanted > max(limits.children, 1) else "Wait until enough have ended"
    relation = "which is" if wanted == 1 else f"and {wanted} more at once would be over"
    raise LimitReached(
        f"children: run {parent.number} has {live} live ones, {relation} the limit of {limits.children}",
        f"{remedy}, or raise children under [limits] in config.toml",
    )


class Reserve:
    """Disk space that is kept back: a file in HOCKET_HOME that is given up in slices when the disk is full.

    Runs can then still be listed, stopped and recorded. Only a slice at a time, because a program that has filled the
    disk may take what is freed before it can be used here. All state is the size of the file.
    """

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
