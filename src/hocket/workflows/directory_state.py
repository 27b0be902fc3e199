"""Whether work leaves a trace: how a directory stands now, as a value that can be compared with an earlier one.

In a git repository that is its HEAD, its status and the contents of what the status lists; elsewhere, and where the
repository's configuration would have to be approved first, the files themselves. Both are bounded, nothing is written,
and nothing raises: what cannot be looked at counts as changed, because work must not be ended for want of evidence.
What follows from the comparison is the chain's business.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from hocket.errors import NotTrusted, ProgramNotFound, UsageError
from hocket.workflows.git import QUICK, Git

MOST_FILES = 2_000
MOST_BYTES = 64 * 1024**2
"""Contents that are read in one look; of what is beyond only size and time of change count."""
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
"""What tools make by themselves: it changes with every test run and is not progress."""


def is_by_product(path: str) -> bool:
    """Whether a path is, or lies in, what tools make by themselves."""
    return not _BY_PRODUCTS.isdisjoint(path.split("/"))


class Evidence(NamedTuple):
    """How a directory stands."""

    state: str
    """A hash of all that was looked at."""
    kind: str
    """``git``, ``files`` or ``unreadable``."""
    detail: str
    """For people: what was looked at, or why it could not be."""


def look(cwd: str, git: Git) -> Evidence:
    """How a directory stands now. Blocks for as long as the looking takes: call it from a thread."""
    try:
        return _look_with_git(cwd, git) or _look_at_files(cwd)
    except (OSError, ValueError) as error:
        return Evidence("", UNREADABLE, f"{cwd} cannot be looked at: {error}")


def changed(before: Evidence, now: Evidence) -> bool:
    """Whether anything is different, as far as one can tell."""
    if UNREADABLE in (before.kind, now.kind):
        return True
    return (before.kind, before.state) != (now.kind, now.state)


# --- Git ----------------------------------------------------------------------------------------------------


def _look_with_git(cwd: str, git: Git) -> Evidence | None:
    """None where git is not there, this is no repository, or it is one that git may not be run in."""
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
        return Evidence("", UNREADABLE, f"{cwd}: git status {why}")
    listed = _listed(status.output)
    state, reading = hashlib.sha256(head.output + b"\0" + status.output), _Reading()
    for path in listed:
        state.update(b"\0" + path + b"\0" + _trace(os.path.join(top, path), reading))
    commit = head.output.decode(errors="replace")[:12] if head.code == 0 else "none yet"
    return Evidence(state.hexdigest(), "git", f"HEAD {commit}, {len(listed)} changed paths{reading.remark}")


def _listed(status: bytes) -> list[bytes]:
    """The paths of a status. What was renamed brings its old name as an entry of its own, which is gone."""
    entries = iter(status.split(b"\0"))
    paths = []
    for entry in entries:
        if len(entry) > 3:
            paths.append(entry[3:])
            if entry[:1] in b"RC":
                next(entries, None)
    return paths


# --- Files --------------------------------------------------------------------------------------------------


class _Reading:
    """How much has been read in one look, and whether all of it could be."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self.skimmed = 0

    def has_room_for(self, size: int) -> bool:
        if self.files >= MOST_FILES or self.bytes + size > MOST_BYTES:
            self.skimmed += 1
            return False
        self.files += 1
        self.bytes += size
        return True

    @property
    def remark(self) -> str:
        return f" ({self.skimmed} by size and time only)" if self.skimmed else ""


def _look_at_files(cwd: str) -> Evidence:
    state, reading, count = hashlib.sha256(), _Reading(), 0
    deadline = time.monotonic() + WALK_PATIENCE
    more = ""
    # The place itself must be readable; what is inside of it need not be.
    os.scandir(cwd).close()
    for path in _walk(os.fsencode(cwd)):
        if count >= MOST_ENTRIES or time.monotonic() > deadline:
            more = "; there are more"
            break
        count += 1
        state.update(path + b"\0" + _trace(path, reading) + b"\0")
    return Evidence(state.hexdigest(), "files", f"{count} files{reading.remark}{more}")


def _walk(folder: bytes) -> Iterator[bytes]:
    """Every file below, always in the same order. Links are not followed."""
    ahead = _entries(folder)
    while ahead:
        entry = ahead.pop()
        if os.fsdecode(entry.name) in _BY_PRODUCTS:
            continue
        if entry.is_dir(follow_symlinks=False):
            ahead += _entries(entry.path)
        else:
            yield entry.path


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    """What is in a folder, the last one first; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name, reverse=True)
    except OSError:
        return []


def _trace(path: bytes, reading: _Reading) -> bytes:
    """What a file has of its own: its contents where they are small enough, else its size and time of change."""
    try:
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            return b"link " + os.readlink(path)
        if stat.S_ISDIR(about.st_mode):
            # A repository inside of another one is listed by its folder alone.
            return b"folder " + b"\0".join(_skim(inner) for inner in _some(path))
        if stat.S_ISREG(about.st_mode) and reading.has_room_for(about.st_size):
            return b"%o " % stat.S_IMODE(about.st_mode) + _hash_of(path)
        return _skim(path)
    except OSError as error:
        return b"none %d" % (error.errno or 0)


def _some(folder: bytes) -> Iterator[bytes]:
    for _, path in zip(range(MOST_FILES), _walk(folder), strict=False):
        yield path


def _skim(path: bytes) -> bytes:
    about = os.lstat(path)
    return path + b" %o %d %d" % (about.st_mode, about.st_size, about.st_mtime_ns)


def _hash_of(path: bytes) -> bytes:
    found = hashlib.sha256()
    # If something else has replaced the file, it is not waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        left = MOST_BYTES
        while left > 0 and (piece := os.read(descriptor, min(_PIECE, left))):
            found.update(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    return found.digest()
