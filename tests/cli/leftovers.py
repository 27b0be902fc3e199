"""What a command that has a Hocket of its own leaves behind: nothing, it is hoped."""

from __future__ import annotations

import os
import time
from pathlib import Path

from patience import PATIENCE


def living_below(folder: Path) -> list[str]:
    """Processes that work for a home below a folder, or were told of one, be that folder still there or not."""
    told, mark = os.fsencode(folder), b"HOCKET_HOME=" + os.fsencode(folder)
    return [
        entry.name
        for entry in Path("/proc").glob("[0-9]*")
        if mark in _read(entry / "environ") or told in _read(entry / "cmdline")
    ]


def wait_until_gone(folder: Path, pattern: str, seconds: float = PATIENCE) -> None:
    """Until no process is left and no folder that fits; nothing tells of it, so it keeps looking."""
    deadline = time.monotonic() + seconds
    while left := [*living_below(folder), *map(str, folder.glob(pattern))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # gone meanwhile, or another user's
