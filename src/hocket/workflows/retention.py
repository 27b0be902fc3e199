"""Retention: which ended runs may be removed, by age, number and size, and removing them.

Trees of runs that resume one another are a family: they are kept or removed together. Removal has three steps, and a
server that starts completes it from wherever it was: the records go in one transaction, from which on nothing shows
the runs, then their directories, then their events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hocket.config.loading import load
from hocket.config.settings import Keep
from hocket.errors import Conflict, DiskLow, HocketError, UsageError
from hocket.keeper import files, run_directories
from hocket.model import Run
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.run_identity import RUNS, month_of
from hocket.store import Queries, RunPlace, RunTree
from hocket.store.removal import open_task
from hocket.views.text import size_text
from hocket.workflows.chain_worktrees import ChainWorktrees
from hocket.workflows.worktrees import FOLDER

AT_ONCE = 100
"""Families that are measured, or removed in one transaction, before other work gets its turn."""
MOST = 10_000
"""Families in one plan, the oldest ones."""
_DAY = 86400.0
_OF_WORKTREE = re.compile("([0-9]{1,18})-")

log = logging.getLogger("hocket")


@dataclass(frozen=True, slots=True)
class Family:
    """Trees of runs that resume one another, the newest first."""

    trees: tuple[RunTree, ...]
    blocked: str | None = None
    """Why it may not be removed."""
    reason: str = ""
    """Why the policy does not keep it."""
    bytes: int = 0

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(tree.root for tree in self.trees)

    @property
    def ended_at(self) -> float:
        """When the last run ended; later than everything while one has not."""
        return max(tree.ended_at or 0.0 if tree.live is None else float("inf") for tree in self.trees)


class Removal(NamedTuple):
    """What was removed, or would be, and what is kept although the policy does not keep it. Rows are JSON values."""

    removed: list[dict[str, Any]]
    kept: list[dict[str, Any]]
    left: list[dict[str, Any]]
    """Directories that could not be removed; the next server, or the next removal, tries again."""
    more: int = 0
    """How many would be listed by the plans after this one."""


class Retention:
    """Lists and removes ended runs. One per server."""

    def __init__(self, home: Path, journal: Journal, worktrees: ChainWorktrees) -> None:
        self._home = home
        self._journal = journal
        self._worktrees = worktrees
        self._background = BackgroundTasks()
        self._completing = asyncio.Lock()

    def open(self) -> None:
        """Complete what an earlier server has begun to remove."""
        if self._journal.read.being_removed(0, 1):
            self._background.spawn(self._insist())

    async def close(self) -> None:
        await self._background.close()

    async def plan(self, given: Keep) -> Removal:
        """What the policy would remove now. A value that is given replaces that of the configuration."""
        own = (await asyncio.to_thread(load, str(self._home), str(self._home))).keep
        keep = own._replace(**{name: value for name, value in given._asdict().items() if value is not None})
        if keep == Keep():
            raise UsageError(
                "nothing was removed: nothing says what to keep",
                "give --days, --runs or --bytes, or set them under [keep] in config.toml",
            )
        families = await self._find(None)
        if keep.bytes is not None:
            families = await self._measured(families)
        chosen = await asyncio.to_thread(choose, families, keep, time.time())
        listed = chosen[:MOST] if keep.bytes is not None else await self._measured(chosen[:MOST])
        plan = await self._journal.read_aside(partial(_planned, families=listed))
        return plan._replace(more=len(chosen) - len(listed))

    async def remove(self, roots: Collection[str]) -> Removal:
        """Remove the trees with these roots, the oldest first, as far as nothing needs them."""
        found = sorted(await self._measured(await self._find(frozenset(roots))), key=_age)
        result = Removal([], [], [])
        for root in sorted(set(roots) - {root for one in found for root in one.roots}):
            number = self._journal.read.removed_number(root)
            if number is not None:
                result.removed.append({"run": root, "number": number, "bytes": 0})
            else:
                result.kept.append({"run": root, "reason": "there is no such run, or another run started it"})
        full: list[Family] = []
        for start in range(0, len(found), AT_ONCE):
            full += await self._remove_some(found[start : start + AT_ONCE], result, has_retry=True)
        # The disk had no room for the record of these; by now there is as much as the others took.
        await self._remove_some(full, result, has_retry=False)
        return result

    async def _remove_some(self, families: Sequence[Family], result: Removal, *, has_retry: bool) -> list[Family]:
        """Remove these families and add their rows to a result; return those that a full disk prevented."""
        rows = await self._journal.read_aside(partial(_rows, families=families))
        # Resuming takes this lock too: what is being resumed stays.
        async with self._worktrees.reuse:
            outcomes = await asyncio.gather(*map(self._remove_records, families))
        full = []
        for family, row, error in zip(families, rows, outcomes, strict=True):
            if error is None:
                result.removed.append({name: row[name] for name in ("run", "number", "bytes")})
            elif has_retry and isinstance(error, DiskLow):
                full.append(family)
            else:
                result.kept.append({**row, "reason": error.message})
        try:
            result.left[:] = await self._complete()
        except HocketError as error:
            log.warning("what is left of removed runs is deleted later: %s", error.message)
            self._background.spawn(self._insist())
        return full

    async def _remove_records(self, family: Family) -> HocketError | None:
        """Remove a family from the history; return why that is refused."""
        if family.blocked is not None:
            return Conflict(family.blocked)
        try:
            await self._journal.write([], removed_trees=family.roots, durable=True)
        except HocketError as error:
            return error
        return None

    # Directories and events

    async def _insist(self) -> None:
        """Complete all removals, also if there is no room for that now."""
        while True:
            try:
                left = await self._complete()
            except HocketError:
                await asyncio.sleep(RETRY_AFTER)
                continue
            if left:
                log.warning("%d directories of removed runs cannot be removed: %s", len(left), left[0]["error"])
            return

    async def _complete(self) -> list[dict[str, Any]]:
        """Remove the directories and events of all removed runs; return the directories that are left."""
        left: list[dict[str, Any]] = []
        last = 0
        async with self._completing:
            while page := await self._journal.read_aside(partial(Queries.being_removed, after=last, limit=AT_ONCE)):
                failed = await asyncio.to_thread(_remove_directories, self._home, page)
                left += [{"run": one.id, "number": one.number, **failed[one.id]} for one in page if one.id in failed]
                last = page[-1].number
                await self._sweep([one.id for one in page if one.id not in failed])
        return left

    async def _sweep(self, runs: list[str]) -> None:
        while runs:
            swept = (await self._journal.write([], swept=runs)).swept
            runs = [run for run in runs if run not in swept]

    # Looking

    async def _find(self, only: frozenset[str] | None) -> list[Family]:
        names = await asyncio.to_thread(_names, self._home / FOLDER)
        return await self._journal.read_aside(partial(find_families, worktrees=names, only=only))

    async def _measured(self, families: Sequence[Family]) -> list[Family]:
        """The same with their sizes; one that still has a keeper is blocked."""
        measured: list[Family] = []
        for start in range(0, len(families), AT_ONCE):
            some = families[start : start + AT_ONCE]
            contents = await self._journal.read_aside(partial(_contents_of, families=some))
            measured += await asyncio.to_thread(_measure, self._home, some, contents)
        return measured


def find_families(read: Queries, worktrees: Collection[str] = (), only: frozenset[str] | None = None) -> list[Family]:
    """Return all families, or those that some trees form by themselves. ``worktrees`` are the names of those left."""
    trees = {tree.root: tree for tree in read.trees() if only is None or tree.root in only}
    above = {root: root for root in trees}

    def top(root: str) -> str:
        while above[root] != root:
            above[root] = root = above[above[root]]
        return root

    for old, new in read.resumptions():
        if old in trees and new in trees:
            above[top(old)] = top(new)
    members: dict[str, list[RunTree]] = {}
    for root, tree in trees.items():
        members.setdefault(top(root), []).append(tree)
    tasks, kept = read.trees_of_open_tasks(), _trees_with_worktrees(read, worktrees)
    return [
        Family(tuple(sorted(one, key=lambda tree: -tree.number)), _obstacle(one, tasks, kept))
        for one in members.values()
    ]


def _obstacle(trees: Iterable[RunTree], tasks: Mapping[str, int], worktrees: Mapping[str, str]) -> str | None:
    """Why these trees may not be removed."""
    for tree in trees:
        if tree.live is not None:
            return f"run {tree.live} has not ended"
        if tree.root in tasks:
            return open_task(tasks[tree.root])
        if tree.root in worktrees:
            return f"its worktree {worktrees[tree.root]} is left: hocket worktrees prune"
    return None


def _trees_with_worktrees(read: Queries, names: Collection[str]) -> dict[str, str]:
    """Return the name of a worktree by the root of the chain that made it."""
    found = {name: match for name in names if (match := _OF_WORKTREE.match(name))}
    roots = {name: read.root_of_number(int(match[1])) for name, match in found.items()}
    return {root: name for name, root in roots.items() if root is not None}


def choose(families: Iterable[Family], keep: Keep, now: float) -> list[Family]:
    """Return the families that are not to be kept, the oldest first, each with the reason."""
    chosen: list[Family] = []
    size = 0
    for place, family in enumerate(sorted(families, key=_age, reverse=True), 1):
        size += family.bytes
        reason = None
        if keep.days is not None and now - family.ended_at > keep.days * _DAY:
            reason = f"ended more than {keep.days:g} days ago" if keep.days else "has ended"
        elif keep.runs is not None and place > keep.runs:
            reason = f"not among the newest {keep.runs}"
        elif keep.bytes is not None and size > keep.bytes:
            reason = f"beyond the newest {size_text(keep.bytes)}"
        if reason is not None:
            chosen.append(replace(family, reason=reason))
    return chosen[::-1]


def _age(family: Family) -> tuple[float, int]:
    return family.ended_at, family.trees[0].number


class _Contents(NamedTuple):
    """What a family has in the database, and its runs."""

    bytes: int
    runs: list[RunPlace]


def _contents_of(read: Queries, families: Sequence[Family]) -> list[_Contents]:
    return [_contents(read, one) for one in families]


def _contents(read: Queries, family: Family) -> _Contents:
    runs = [run for root in family.roots for run in read.places_of_tree(root)]
    return _Contents(sum(map(read.bytes_of_tree, family.roots)), runs)


def _measure(home: Path, families: Sequence[Family], contents: Sequence[_Contents]) -> list[Family]:
    return [_with_size(home, family, inside) for family, inside in zip(families, contents, strict=True)]


def _with_size(home: Path, family: Family, contents: _Contents) -> Family:
    places = {run.number: str(_directory(home, run)) for run in contents.runs}
    size = contents.bytes + sum(run_directories.disk_use(place).bytes for place in places.values())
    locked = next((number for number, place in places.items() if files.is_locked(place)), None)
    blocked = family.blocked or (f"the keeper of run {locked} has not ended" if locked is not None else None)
    return replace(family, bytes=size, blocked=blocked)


def _directory(home: Path, run: RunPlace) -> Path:
    return home / RUNS / month_of(run.created_at) / run.id


def _remove_directories(home: Path, runs: Sequence[RunPlace]) -> dict[str, dict[str, str]]:
    """Remove the directories of runs; return those that are left, by run."""
    months: dict[str, list[RunPlace]] = {}
    for run in runs:
        months.setdefault(month_of(run.created_at), []).append(run)
    left: dict[str, dict[str, str]] = {}
    for month, some in months.items():
        failed = run_directories.remove_runs(str(home / RUNS), month, [run.id for run in some])
        for run in some:
            if run.id in failed:
                left[run.id] = {"dir": str(_directory(home, run)), "error": failed[run.id]}
    return left


def _planned(read: Queries, families: Sequence[Family]) -> Removal:
    """Return the rows of these families, by whether something needs them."""
    rows = list(zip(_rows(read, families), (one.blocked for one in families), strict=True))
    kept = [{**row, "reason": why} for row, why in rows if why is not None]
    return Removal([row for row, why in rows if why is None], kept, [])


def _rows(read: Queries, families: Sequence[Family]) -> list[dict[str, Any]]:
    """The rows of families, each by its newest tree."""
    return [_row(family, read.run(family.roots[0])) for family in families]


def _row(family: Family, root: Run | None) -> dict[str, Any]:
    newest, *others = family.trees
    return {
        "run": newest.root,
        "number": newest.number,
        "agent": root.agent if root is not None else "?",
        "status": str(root.status) if root is not None else "lost",
        "ended_at": family.ended_at if family.ended_at != float("inf") else None,
        "runs": sum(tree.runs for tree in family.trees),
        "also": [tree.root for tree in others],
        "bytes": family.bytes,
        "reason": family.reason,
    }


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []
