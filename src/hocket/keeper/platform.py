"""Chooses the platform's process calls once; the rest of the room imports them from here."""

from __future__ import annotations

import sys

if sys.platform == "darwin":
    from hocket.keeper.darwin import (
        Inotify,
        Process,
        become_subreaper,
        boot_id,
        children_of,
        die_with_parent,
        environ_of,
        open_identity,
        owner_of,
        processes,
        scan,
        signal_process,
        start_time,
        wait_gone,
    )
else:
    from hocket.keeper.linux import (
        Inotify,
        Process,
        become_subreaper,
        boot_id,
        children_of,
        die_with_parent,
        environ_of,
        open_identity,
        owner_of,
        processes,
        scan,
        signal_process,
        start_time,
        wait_gone,
    )

__all__ = [
    "Inotify",
    "Process",
    "become_subreaper",
    "boot_id",
    "children_of",
    "die_with_parent",
    "environ_of",
    "open_identity",
    "owner_of",
    "processes",
    "scan",
    "signal_process",
    "start_time",
    "wait_gone",
]
