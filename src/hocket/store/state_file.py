"""The state file beside the database: whether it is ``open`` or was ``closed`` properly, and its last committed event.

A database that was open when its process died has a write-ahead log. If the log is missing, either another program has
checkpointed it, or it was removed: then the database ends before the event recorded here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class State(NamedTuple):
    """The content of the file."""

    status: str
    seq: int | None = None
    """The last committed event; None in files of versions that did not record it."""


class OpenMark:
    """The file of a database that is open.

    It is written in place, which works on a full disk and is atomic for a killed process. It is not flushed: it has to
    outlive this process, not the machine.
    """

    def __init__(self, path: Path, seq: int) -> None:
        self._descriptor = os.open(_file(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._write("open", seq)
        self._seq = seq

    def note(self, seq: int) -> None:
        """Record a commit. A failure is ignored, because the commit is done."""
        self._seq = seq
        with contextlib.suppress(OSError):
            self._write("open", seq)

    def close(self) -> None:
        """Record that the database was closed properly and needs no log."""
        try:
            self._write("closed", self._seq)
        finally:
            os.close(self._descriptor)

    def _write(self, status: str, seq: int) -> None:
        content = f"{status:6} {seq:020}\n".encode()
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


def _file(path: Path) -> Path:
    return path.with_name(path.name + ".state")


def read_state(path: Path) -> State | None:
    """Return the state, or None if there was never a database."""
    try:
        status, *rest = _file(path).read_text().split() or [""]
    except FileNotFoundError:
        return None
    return State(status, int(rest[0]) if rest and rest[0].isdigit() else None)
