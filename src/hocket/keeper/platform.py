"""Chooses the platform's process calls once; the rest of the package imports them from here."""

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
        held_locks,
        inherited_mark,
        is_suspended,
        open_files,
        open_identity,
        owner_of,
        processes,
        scan,
        set_inherited_mark,
        signal_process,
        start_time,
        wait_gone,
        working_directory,
        working_in,
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
        held_locks,
        inherited_mark,
        is_suspended,
        open_files,
        open_identity,
        owner_of,
        processes,
        scan,
        set_inherited_mark,
        signal_process,
        start_time,
        wait_gone,
        working_directory,
        working_in,
    )

__all__ = [
    "Inotify",
    "Process",
    "become_subreaper",
    "boot_id",
    "children_of",
    "die_with_parent",
    "environ_of",
    "held_locks",
    "inherited_mark",
    "is_suspended",
    "open_files",
    "open_identity",
    "owner_of",
    "processes",
    "scan",
    "set_inherited_mark",
    "signal_process",
    "start_time",
    "wait_gone",
    "working_directory",
    "working_in",
]
