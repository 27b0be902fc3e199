"""Run directories made ahead of time, while their server has nothing better to do.

Making a file is the dearest thing in a start: half a millisecond each on some file systems, and a run needs eight.
A spare is a directory like any other run's, empty of meaning until it is renamed; one that a crash left is used again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hocket.keeper import files

COUNT = 4


class Spares:
    """A few spare directories. Used from one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._ready: list[str] = []
        self._found = sorted(folder.glob("*"))

    def take(self) -> str | None:
        """One that is ready, if any is."""
        return self._ready.pop() if self._ready else None

    def refill(self) -> None:
        """Make what is missing. A disk that is full has no spares, and starts say so themselves."""
        with suppress(OSError):
            while self._found:
                # A crash may have left it half made.
                left = str(self._found.pop())
                files.make_skeleton(left)
                self._ready.append(left)
            while len(self._ready) < COUNT:
                self._made += 1
                spare = str(self._folder / f"{os.getpid()}-{self._made}")
                files.make_skeleton(spare)
                self._ready.append(spare)
