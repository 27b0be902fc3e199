"""Removing the directories of ended runs, and measuring directories: by descriptors, and never through a link."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import NamedTuple

from hocket.keeper.files import SPEC

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512
"""Bytes of a unit of ``st_blocks``."""


class _Descriptor:
    """An open directory, for ``closing``."""

    def __init__(self, path: str, parent: int | None = None) -> None:
        self.number = os.open(path, _FOLDER, dir_fd=parent)

    def close(self) -> None:
        os.close(self.number)


def remove_runs(folder: str, month: str, names: Iterable[str]) -> dict[str, str]:
    """Remove run directories in a month's folder; return those that could not be removed, each with the reason.

    What is removed is gone after a power cut as well when this returns.
    """
    names = list(names)
    failed: dict[str, str] = {}
    try:
        with closing(_Descriptor(folder)) as runs, closing(_Descriptor(month, runs.number)) as parent:
            for name in names:
                try:
                    _remove(parent.number, name)
                except (OSError, RecursionError) as error:
                    failed[name] = str(error)
            os.fsync(parent.number)
    except FileNotFoundError:
        return {}
    except OSError as error:
        return dict.fromkeys(names, str(error))
    return failed


def _remove(parent: int, name: str) -> None:
    if name in ("", ".", "..") or "/" in name:
        raise OSError(f"{name!r} is not the name of a directory")
    try:
        with closing(_Descriptor(name, parent)) as directory, suppress(FileNotFoundError, IsADirectoryError):
            # First what makes it a run: if this is cut short, `doctor --restore` brings back no half of it.
            os.unlink(SPEC, dir_fd=directory.number)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)  # An agent has put it in the place of its directory.
        return
    shutil.rmtree(name, dir_fd=parent)


class DiskUse(NamedTuple):
    """How much space a directory takes."""

    bytes: int
    is_complete: bool = True
    """False if there was no time to look at all of it."""


def disk_use(path: str, deadline: float | None = None) -> DiskUse:
    """Return the space that a directory and everything in it take. ``deadline`` is a monotonic time to end by."""
    total, left = 0, [path]
    with suppress(OSError):
        total += os.lstat(path).st_blocks * _BLOCK
    while left:
        if deadline is not None and time.monotonic() > deadline:
            return DiskUse(total, is_complete=False)
        # Entries may vanish meanwhile, and an agent can have made a directory unreadable.
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
    return DiskUse(total)
