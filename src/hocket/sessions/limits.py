"""The limits on what may be started, checked in the one place where runs are created."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from hocket.errors import DiskLow, LimitReached
from hocket.model import BoundChain, Kind, Run, Spec, stages
from hocket.sessions.disk_reserve import NEEDED, Reserve

LEAST_FREE = 1024**2
"""Below this nothing is started, regardless of the configuration."""
MIN_FILES = 256
"""A run makes eight, and the database a few: below this, nothing is started."""


class Limits(NamedTuple):
    """Of one server; the user's configuration may change them, a project's may not."""

    depth: int = 5
    children: int = 8
    leaves: int = 64
    min_free: int = 200 * 1024**2
    usd_per_mtok: float = 15.0
    """The assumed price of a million tokens where a CLI reports none."""


def check_disk(home: Path, limits: Limits) -> None:
    """A run is started only where its outcome can be written down."""
    space = os.statvfs(home)
    if limits.min_free and space.f_files and space.f_favail < MIN_FILES:
        raise DiskLow(f"the file system of {home} has room for {space.f_favail} more files only", "Remove some files")
    reserve = Reserve(home)
    if reserve.in_use:
        with contextlib.suppress(OSError):
            reserve.make()  # There may be room again that the next regular check has not seen yet.
    if reserve.in_use:
        raise DiskLow(
            f"the disk of {home} is full",
            f"Free some space, {NEEDED // 1024**2} MB at least; what runs already can be listed and stopped",
        )
    free, least = space.f_bavail * space.f_frsize, max(limits.min_free, LEAST_FREE)
    if free < least:
        raise DiskLow(
            f"only {free // 1024**2} MB are free in {home}; nothing is started below {least // 1024**2} MB",
            "Free some space, or lower min_free_mb under [limits] in config.toml. Live runs go on",
        )


def depth_below(parent: Run | None, limits: Limits) -> int:
    """The depth of a new run. Chains and loops add none: only an agent that starts an agent does."""
    if parent is None:
        return 0
    depth = parent.depth + (1 if parent.kind in (Kind.LEAF, Kind.LEAD) else 0)
    if depth > limits.depth:
        raise LimitReached(
            f"depth {depth} is over the limit of {limits.depth}",
            "Agents that start agents may nest only so deep; raise depth under [limits] in config.toml",
        )
    return depth


def width(bound: Spec | BoundChain) -> int:
    """How many agents this is at the same time: of a chain its widest group, whenever that comes."""
    return 1 if isinstance(bound, Spec) else max(map(len, stages(bound.steps)), default=1)


def check_children(parent: Run | None, live: int, wanted: int, limits: Limits) -> None:
    """How many live children one agent may have at once, those in groups of its chains included."""
    if parent is None or parent.kind not in (Kind.LEAF, Kind.LEAD) or live + wanted <= limits.children:
        return
    remedy = "Make the group smaller" if wanted > max(limits.children, 1) else "Wait until enough have ended"
    relation = "which is" if wanted == 1 else f"and {wanted} more at once would be over"
    raise LimitReached(
        f"children: run {parent.number} has {live} live ones, {relation} the limit of {limits.children}",
        f"{remedy}, or raise children under [limits] in config.toml",
    )
