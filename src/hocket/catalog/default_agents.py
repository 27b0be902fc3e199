"""The default agents of a new HOCKET_HOME: written once, and never over a file of the user's."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from hocket.catalog.configs import DEFAULTS, folder
from hocket.secret_files import sync_directory

UNFINISHED = ".seeding"
"""Exists while the configs are being written, so that a crash in between is repaired."""


def seed(home: Path) -> bool:
    """Create the folder of configs with the default ones unless it has any. Return True if they were written.

    Requires exclusive use of the home: the server's lock, or that no server has it yet. After a crash the next call
    writes what is missing.
    """
    place = Path(folder(str(home)))
    for made in (place.parent, place):
        made.mkdir(mode=0o700, exist_ok=True)
    mark = place / UNFINISHED
    if not mark.exists():
        if any(place.glob("*.json")):
            return False
        mark.touch(mode=0o600)
        sync_directory(place)
    for config in DEFAULTS:
        _write(place, config)
    sync_directory(place)
    mark.unlink()
    return True


def _write(place: Path, config: Mapping[str, str]) -> None:
    """Write a config atomically, unless it exists."""
    unfinished = place / f".{config['name']}.unfinished"
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        # Unlike a rename, a link replaces nothing.
        os.link(unfinished, place / f"{config['name']}.json")
    unfinished.unlink()
