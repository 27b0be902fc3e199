"""Inspecting and pruning the worktrees of ended chains: those that failed or were stopped keep theirs to be resumed."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from hocket.errors import HocketError, NotFound
from hocket.model import BoundChain, Kind, Run, Worktree
from hocket.sessions.journal import Journal
from hocket.workflows import worktrees
from hocket.workflows.chain_state import LiveChains, worktree_of_event, worktree_report
from hocket.workflows.chain_worktrees import ChainWorktrees
from hocket.workflows.git import Git
from hocket.workflows.start import Starter
from hocket.workflows.worktrees import Contents

_NUMBER = re.compile("([0-9]{1,18})-")
_UNKNOWN = Contents()
_INSPECT_SECONDS = 5.0
"""For ``show``, which has the recorded state as well."""
_chain_spec = msgspec.json.Decoder(BoundChain)


@dataclass(frozen=True, slots=True)
class KeptWorktree:
    """One worktree, and what is known about it."""

    run: Run
    """The chain that made it."""
    last: Run
    """That chain, or the last one that resumed it."""
    agent: str
    tree: Worktree
    git: Git
    contents: Contents = _UNKNOWN
    why: str | None = None
    """Why it is kept; None when nothing would be lost with it."""
    removed: bool = False
    branch_removed: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """Its JSON row."""
        return {
            "run": self.run.id,
            "number": self.run.number,
            "status": str(self.last.status),
            "ended_at": self.last.ended_at,
            "agent": self.agent,
            "repository": self.tree.repository,
            "path": self.tree.path,
            "branch": self.tree.branch,
            "uncommitted": self.contents.uncommitted,
            "commits": self.contents.unmerged,
            "also_on": self.contents.also_on,
            "why": self.why,
            "removed": self.removed,
            "branch_removed": self.branch_removed,
        }


class WorktreeCleanup:
    """Lists and prunes the worktrees of one home."""

    def __init__(
        self, home: str, journal: Journal, trees: ChainWorktrees, chains: LiveChains, starter: Starter
    ) -> None:
        self._home = home
        self._journal = journal
        self._read = journal.read
        self._trees = trees
        self._chains = chains
        self._starter = starter

    async def listed(self) -> list[KeptWorktree]:
        """All of them, the oldest first."""
        names = await asyncio.to_thread(_names, os.path.join(self._home, worktrees.FOLDER))
        return [await self._inspect(one) for one in self._find(names)]

    async def prune(self, runs: Collection[str], older: float, *, dry: bool) -> list[KeptWorktree]:
        """Remove worktrees without unsaved work, of these runs or of all.

        Their chains ended at least ``older`` seconds ago.
        """
        async with self._trees.reuse:
            chosen = [one for one in await self.listed() if not runs or one.run.id in runs or one.last.id in runs]
            return [await self._prune_one(one, older, dry) for one in chosen]

    async def current_steps(self, run: Run) -> list[dict[str, Any]]:
        """The steps of a chain's report, each with its worktree and branch as they are now."""
        steps = [dict(step) for step in run.steps]
        if any(step.get("repository") for step in steps):
            with suppress(HocketError, TimeoutError):
                await asyncio.wait_for(self._update(run, steps), _INSPECT_SECONDS)
        return steps

    async def _update(self, run: Run, steps: list[dict[str, Any]]) -> None:
        bound = _chain_spec.decode(self._read.spec(run.id)).steps
        trees = {one.data["step"]: worktree_of_event(one.data) for one in self._read.events_of_type(run.id, "worktree")}
        for index, step in enumerate(steps):
            if step.get("repository") and index in trees:
                git = self._trees.git(bound[index])
                step.update(await self._trees.run(_report_now, trees[index], git, step.get("head")))

    def _find(self, names: Collection[str]) -> Iterator[KeptWorktree]:
        for number in sorted({int(found[1]) for name in names if (found := _NUMBER.match(name))}):
            with suppress(NotFound):  # not a folder of ours
                run = self._read.find(str(number))
                yield from self._of_chain(run, names) if run.kind is Kind.CHAIN else ()

    def _of_chain(self, run: Run, names: Collection[str]) -> Iterator[KeptWorktree]:
        last = run
        while (later := self._read.last_resuming(last)) is not None:
            last = later
        steps = _chain_spec.decode(self._read.spec(run.id)).steps
        for data in [event.data for event in self._read.events_of_type(run.id, "worktree")]:
            tree = worktree_of_event(data)
            # A chain that resumes another has events of the same worktrees again.
            is_own = f"/{run.number}-{run.id[-6:]}/" in tree.branch
            if is_own and os.path.basename(tree.path) in names:
                yield KeptWorktree(run, last, str(data.get("agent", "?")), tree, self._trees.git(steps[data["step"]]))

    async def _inspect(self, one: KeptWorktree) -> KeptWorktree:
        try:
            async with self._trees.lock(one.tree):
                contents = await self._trees.run(worktrees.contents_of, one.tree, one.git)
        except HocketError as error:
            return replace(one, contents=Contents(uncommitted=None), why=error.message)
        return replace(one, contents=contents, why=await self._in_use(one) or contents.why)

    async def _in_use(self, one: KeptWorktree) -> str | None:
        if not one.last.ended:
            return f"run {one.last.number} has not ended"
        live = {run.cwd for run in self._journal.live.values()}
        folders = live | self._starter.reserved_directories | self._chains.worktree_paths()
        # In a thread: a directory may be on a disk that does not answer.
        if await self._trees.run(_is_any_inside, folders, one.tree.path):
            return "a run uses it"
        return None

    async def _prune_one(self, one: KeptWorktree, older: float, dry: bool) -> KeptWorktree:
        ended = one.last.ended_at
        if one.why is None and older and (ended is None or time.time() - ended < older):
            one = replace(one, why="its chain ended later than that")
        if one.why is not None or dry:
            return one
        try:
            async with self._trees.lock(one.tree):
                # Checked again under the lock that new users of the worktree wait for.
                if (why := await self._in_use(one)) is not None:
                    return replace(one, why=why)
                result = await self._trees.run(worktrees.prune, one.tree, one.git)
        except HocketError as error:
            return replace(one, why=error.message)
        # The branch that had its commits may have been removed meanwhile, with another worktree.
        contents = one.contents._replace(also_on=result.also_on)
        removed = result.why is None
        return replace(one, contents=contents, why=result.why, removed=removed, branch_removed=result.branch)


def _report_now(tree: Worktree, git: Git, head: str | None) -> dict[str, Any]:
    """The report of a worktree. If branch and folder are gone, name another branch that contains ``head``."""
    status = worktrees.status_of(tree, git)
    if not status.is_gone:
        return worktree_report(tree, status)
    also_on = next(iter(worktrees.branches_with(tree, git, head)), None) if head else None
    return {"worktree": None, "branch": None, "uncommitted": 0, "besides": None, "also_on": also_on}


def _is_any_inside(folders: Collection[str], top: str) -> bool:
    """Whether one of these folders is ``top`` or below it, symbolic links resolved."""
    real = os.path.realpath(top)
    return any(f"{os.path.realpath(folder)}{os.sep}".startswith(real + os.sep) for folder in folders)


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []
