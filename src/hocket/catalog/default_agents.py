"""The agents of a new HOCKET_HOME: written once, by the first server, and never over anything of the user's.

What is in them is said in the catalog.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from hocket.catalog.configs import DEFAULTS, AgentFile, folder
from hocket.secret_files import sync_directory

UNFINISHED = ".seeding"
"""Lies among the configs while they are being written, so that a crash in between is noticed and made good."""


def seed(home: Path) -> bool:
    """Make the folder of configs, and give it the five that Hocket brings along unless it has any. True if it did.

    Only where nobody else does so for this home: for the holder of its server's lock, or while no server has it yet.
    Called again after a crash it writes what is missing.
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


def _write(place: Path, config: AgentFile) -> None:
    """Whole or not at all, and only where nothing is."""
    unfinished = place / f".{config.name}.unfinished"
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(config.as_json(), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        # Unlike a rename this replaces nothing.
        os.link(unfinished, place / f"{config.name}.json")
    unfinished.unlink()
