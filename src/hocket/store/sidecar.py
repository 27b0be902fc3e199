"""A small file beside the database: whether it is ``open`` or was ``closed`` in order, and its last committed event.

A database that was open when its process died has a write-ahead log. Where the log is missing, either another program
that opened the database has folded it in, or it was removed: then the database ends before the event named here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class State(NamedTuple):
    """What the file says."""

    word: str
    seq: int | None = None
    """The last event that was committed; None in files of versions that did not record it."""


class OpenMark:
    """The file of a database that is open. Noting an event costs one write in place, which is not flushed:
    it has to outlive this process, not the machine."""

    def __init__(self, path: Path, seq: int) -> None:
        write_state(path, _open(seq))
        self._descriptor = os.open(_file(path), os.O_WRONLY | os.O_CLOEXEC)

    def note(self, seq: int) -> None:
        """Record a commit. The commit counts in any case, so a failure is ignored."""
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, _open(seq).encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def _open(seq: int) -> str:
    """Always of the same length, to be written in place."""
    return f"open {seq:020}\n"


def _file(path: Path) -> Path:
    return path.with_name(path.name + ".state")


def write_state(path: Path, text: str) -> None:
    """Written by rename, so that it is the old text or the new one."""
    beside = _file(path)
    temporary = beside.with_name(beside.name + ".new")
    temporary.write_text(text)
    temporary.replace(beside)


def read_state(path: Path) -> State | None:
    """The state, or ``None`` where there was never a database."""
    try:
        word, *rest = _file(path).read_text().split() or [""]
    except FileNotFoundError:
        return None
    return State(word, int(rest[0]) if rest and rest[0].isdigit() else None)
