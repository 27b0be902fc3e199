"""Recognises runs that a restart of the machine has ended, and leaves a note of it.

The note is a file in the home that a server writes and the next command removes, so that it is shown once.
"""

from __future__ import annotations

import contextlib
import os

from hocket.keeper import files

NOTE = "restarted"
_MOST = 16


def ended_by_restart(directory: str) -> bool:
    """Whether a run was live when the machine went down: another boot id, and no exit record."""
    from hocket.keeper.platform import boot_id  # Not needed to take the note.

    known = files.read_pid(directory)
    if known is None or not known.boot_id or files.read_exit(directory) is not None:
        return False
    return known.boot_id != boot_id()


def leave_note(home: str, runs: int) -> None:
    """Write how many runs were lost; without room on the disk there is no note."""
    with contextlib.suppress(OSError):
        files.replace(home, NOTE, f"{runs}\n".encode())


def take_note(home: str) -> int:
    """How many runs the last restart of the machine ended; 0 from the second call on."""
    path = os.path.join(home, NOTE)
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST)
        os.unlink(path)
    except OSError:
        return 0
    return int(text) if text.strip().isdigit() else 0
