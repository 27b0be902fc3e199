"""A restart of the machine ends every run. Here such an end is told from others, and a note of it is left.

The note is a file in the home that a server leaves and the next command that talks to its user takes away, so that it
is told once. What it is told with does not belong here.
"""

from __future__ import annotations

import contextlib
import os

from hocket.keeper import files

NOTE = "restarted"
_MOST = 16


def ended_by_restart(directory: str) -> bool:
    """Whether a run was at work when the machine went down: it began under another start of it, and has no end."""
    from hocket.keeper.platform import boot_id  # not for those who only look for the note

    known = files.read_pid(directory)
    if known is None or not known.boot_id or files.read_exit(directory) is not None:
        return False
    return known.boot_id != boot_id()


def leave_note(home: str, runs: int) -> None:
    """Remember how many were lost. It is no more than a courtesy: a home without room goes without."""
    with contextlib.suppress(OSError):
        files.replace(home, NOTE, f"{runs}\n".encode())


def take_note(home: str) -> int:
    """How many runs the last restart of the machine ended, for the first who asks; 0 for everybody after."""
    path = os.path.join(home, NOTE)
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST)
        os.unlink(path)
    except OSError:
        return 0
    return int(text) if text.strip().isdigit() else 0
