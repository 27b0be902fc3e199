"""What a command that has a Hocket of its own leaves behind: nothing, it is hoped."""

from __future__ import annotations

import os
from pathlib import Path


def living_below(folder: Path) -> list[str]:
    """Processes that work for a home below a folder, be that home still there or not."""
    mark = b"HOCKET_HOME=" + os.fsencode(folder)
    return [entry.parent.name for entry in Path("/proc").glob("[0-9]*/environ") if mark in _read(entry)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # gone meanwhile, or another user's
