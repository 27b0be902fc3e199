"""Snapshots of a directory that can be compared, to detect whether work has changed anything.

In a git repository a snapshot has its HEAD, its status and the contents of what the status lists; elsewhere, and where
the repository's configuration would have to be approved first, the files themselves. Both are bounded, nothing is
written, and nothing raises: an unreadable directory counts as changed, because work must not be ended without evidence.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from hocket.config.schema import REGISTRY_FILE
from hocket.errors import NotTrusted, ProgramNotFound, UsageError
from hocket.registry.session_markers import FOLDER as MARKERS
from hocket.workflows.git import QUICK, Git

MOST_FILES = 2_000
MOST_BYTES = 64 * 1024**2
"""The contents that one snapshot reads; beyond that only size and modification time count."""
MOST_ENTRIES = 50_000
WALK_PATIENCE = 20.0

UNREADABLE = "unreadable"
_PIECE = 1024**2
_BY_PRODUCTS = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj"),
        *("node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox", ".eggs"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache", ".gradle", ".DS_Store"),
    }
)
"""Files that tools generate: they change with every test run and are not progress."""


def is_by_product(path: str) -> bool:
    """Whether a path is, or is in, something that tools generate."""
    return any(name in _BY_PRODUCTS or _is_of_registry(name) for name in path.split("/"))


def _is_of_registry(name: str) -> bool:
    """Whether a file, by its usual name, shows our own runs: it changes with each of them."""
    return name.startswith(REGISTRY_FILE) or name == MARKERS


class Snapshot(NamedTuple):
    """The state of a directory."""

    state: str
    """A hash of everything that was examined."""
    kind: str
    """``git``, ``files`` or ``unreadable``."""
    detail: str
    """For display: what was examined, or why that failed."""


def take_snapshot(cwd: str, git: Git) -> Snapshot:
    """The current state of a directory. Blocks: call it from a thread."""
    try:
        return _git_snapshot(cwd, git) or _file_snapshot(cwd)
    except (OSError, ValueError) as error:
        return Snapshot("", UNREADABLE, f"{cwd} cannot be examined: {error}")


def changed(before: Snapshot, now: Snapshot) -> bool:
    """Whether anything differs; True if that is unknown."""
    if UNREADABLE in (before.kind, now.kind):
        return True
    return (before.kind, before.state) != (now.kind, now.state)


# --- Git ----------------------------------------------------------------------------------------------------


def _git_snapshot(cwd: str, git: Git) -> Snapshot | None:
    """None if git is not installed, this is no repository, or git may not be run in it."""
    try:
        where = git(cwd, "rev-parse", "--show-toplevel")
        if where.code != 0 or not where.output.startswith(b"/"):
            return None
        top = where.output.removesuffix(b"\n")
        if not git.is_trusted and os.path.lexists(os.path.join(top, b".gitmodules")):
            return None  # Changes within submodules would go unseen.
        head = git(cwd, "rev-parse", "--verify", "--quiet", "HEAD")
        status = git.status(cwd)
    except (ProgramNotFound, NotTrusted, UsageError):
        return None
    if status.code != 0:
        why = f"took longer than {QUICK:.0f} s" if status.timed_out else "failed"
        return Snapshot("", UNREADABLE, f"{cwd}: git status {why}")
    changes = b"\0".join(entry for entry in status.output.split(b"\0") if not _shows_registry(entry))
    listed = _listed(changes)
    state, limit = hashlib.sha256(head.output + b"\0" + changes), _ReadLimit()
    for path in listed:
        state.update(b"\0" + path + b"\0" + _state_of(os.path.join(top, path), limit))
    commit = head.output.decode(errors="replace")[:12] if head.code == 0 else "none yet"
    return Snapshot(state.hexdigest(), "git", f"HEAD {commit}, {len(listed)} changed paths{limit.remark}")


def _shows_registry(entry: bytes) -> bool:
    return any(map(_is_of_registry, os.fsdecode(entry[3:]).split("/")))


def _listed(status: bytes) -> list[bytes]:
    """The paths of a status. A renamed file has an additional entry with its old name, which is skipped."""
    entries = iter(status.split(b"\0"))
    paths = []
    for entry in entries:
        if len(entry) > 3:
            paths.append(entry[3:])
            if entry[:1] in b"RC":
                next(entries, None)
    return paths


# --- Files --------------------------------------------------------------------------------------------------


class _ReadLimit:
    """How much one snapshot has read, and whether it could read everything."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self.skimmed = 0

    def may_read(self, size: int) -> bool:
        if self.files >= MOST_FILES or self.bytes + size > MOST_BYTES:
            self.skimmed += 1
            return False
        self.files += 1
        self.bytes += size
        return True

    @property
    def remark(self) -> str:
        return f" ({self.skimmed} by size and time only)" if self.skimmed else ""


def _file_snapshot(cwd: str) -> Snapshot:
    state, limit, count = hashlib.sha256(), _ReadLimit(), 0
    deadline = time.monotonic() + WALK_PATIENCE
    more = ""
    # The directory itself must be readable; what is in it need not be.
    os.scandir(cwd).close()
    for path in walk(os.fsencode(cwd)):
        if count >= MOST_ENTRIES or time.monotonic() > deadline:
            more = "; there are more"
            break
        count += 1
        state.update(path + b"\0" + _state_of(path, limit) + b"\0")
    return Snapshot(state.hexdigest(), "files", f"{count} files{limit.remark}{more}")


def walk(folder: bytes) -> Iterator[bytes]:
    """Every file below, always in the same order. Links are not followed."""
    pending = _entries(folder)
    while pending:
        entry = pending.pop()
        if is_by_product(os.fsdecode(entry.name)):
            continue
        if entry.is_dir(follow_symlinks=False):
            pending += _entries(entry.path)
        else:
            yield entry.path


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    """The entries of a folder, the last one first; none if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name, reverse=True)
    except OSError:
        return []


def _state_of(path: bytes, limit: _ReadLimit) -> bytes:
    """What identifies a file's state: its contents if they are small enough, else its size and modification time."""
    try:
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            return b"link " + os.readlink(path)
        if stat.S_ISDIR(about.st_mode):
            # A repository inside another one is listed by its folder alone.
            return b"folder " + b"\0".join(_size_and_time(inner) for inner in islice(walk(path), MOST_FILES))
        if stat.S_ISREG(about.st_mode) and limit.may_read(about.st_size):
            return b"%o " % stat.S_IMODE(about.st_mode) + _hash_of(path)
        return _size_and_time(path)
    except OSError as error:
        return b"none %d" % (error.errno or 0)


def _size_and_time(path: bytes) -> bytes:
    about = os.lstat(path)
    return path + b" %o %d %d" % (about.st_mode, about.st_size, about.st_mtime_ns)


def _hash_of(path: bytes) -> bytes:
    found = hashlib.sha256()
    # Without O_NONBLOCK this would wait if a FIFO had replaced the file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        left = MOST_BYTES
        while left > 0 and (piece := os.read(descriptor, min(_PIECE, left))):
            found.update(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    return found.digest()
