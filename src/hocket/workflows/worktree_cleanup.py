"""Worktrees that steps of chains have left: which there are, what each holds, and taking away those that hold nothing.

A chain that failed or was stopped keeps its worktrees, so that it can be resumed; in time they pile up. Git is
asked by way of ``worktrees``, and has the last word.
"""

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
from hocket.workflows.chain_state import tree_of
from hocket.workflows.chain_worktrees import Trees
from hocket.workflows.git import Git
from hocket.workflows.live_chains import LiveChains
from hocket.workflows.start import Starter
from hocket.workflows.worktrees import Holding, Removal

_NOT_LOOKED_AT = Holding()
_NUMBER = re.compile("([0-9]{1,18})-")
_chain_spec = msgspec.json.Decoder(BoundChain)


@dataclass(frozen=True, slots=True)
class KeptWorktree:
    """One worktree, and what is known of it."""

    run: Run
    """The chain that made it."""
    last: Run
    """That chain, or the last one that went on with it."""
    agent: str
    tree: Worktree
    git: Git
    holding: Holding = _NOT_LOOKED_AT
    why: str | None = None
    """Why it stays; None when nothing would be lost with it."""
    removed: bool = False
    branch_removed: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """For programs."""
        return {
            "run": self.run.id,
            "number": self.run.number,
            "status": str(self.last.status),
            "ended_at": self.last.ended_at,
            "agent": self.agent,
            "repository": self.tree.repository,
            "path": self.tree.path,
            "branch": self.tree.branch,
            "uncommitted": self.holding.uncommitted,
            "commits": self.holding.unmerged,
            "why": self.why,
            "removed": self.removed,
            "branch_removed": self.branch_removed,
        }


class WorktreeCleanup:
    """Lists and prunes the worktrees of one home."""

    def __init__(self, home: str, journal: Journal, trees: Trees, chains: LiveChains, starter: Starter) -> None:
        self._home = home
        self._journal = journal
        self._read = journal.read
        self._trees = trees
        self._chains = chains
        self._starter = starter

    async def listed(self) -> list[KeptWorktree]:
        """All of them, the oldest first."""
        names = await asyncio.to_thread(_names, os.path.join(self._home, worktrees.FOLDER))
        return [await self._looked_at(one) for one in self._found(names)]

    async def prune(self, runs: Collection[str], older: float, *, dry: bool) -> list[KeptWorktree]:
        """Take away what holds nothing: of these runs, or of all, whose chains have ended so many seconds ago."""
        async with self._trees.reuse:
            chosen = [one for one in await self.listed() if not runs or one.run.id in runs or one.last.id in runs]
            return [await self._pruned(one, older, dry) for one in chosen]

    def _directories_in_use(self) -> set[str]:
        """The working directories of live runs and of runs being created, and all worktrees of live chains."""
        live = {run.cwd for run in self._journal.live.values()}
        return live | self._starter.reserved_directories | self._chains.worktree_paths()

    def _found(self, names: Collection[str]) -> Iterator[KeptWorktree]:
        numbers = {int(found[1]) for name in names if (found := _NUMBER.match(name))}
        for number in sorted(numbers):
            with suppress(NotFound):  # what lies there is not ours
                yield from self._of_chain(self._read.find(str(number)), names)

    def _of_chain(self, run: Run, names: Collection[str]) -> Iterator[KeptWorktree]:
        if run.kind is not Kind.CHAIN:
            return
        last = run
        while (later := self._read.last_resuming(last)) is not None:
            last = later
        steps = _chain_spec.decode(self._read.spec(run.id)).steps
        for data in [event.data for event in self._read.events_of_type(run.id, "worktree")]:
            tree = tree_of(data)
            # A chain that goes on with another tells of the same ones again.
            is_own = f"/{run.number}-{run.id[-6:]}/" in tree.branch
            if is_own and os.path.basename(tree.path) in names:
                yield KeptWorktree(run, last, str(data.get("agent", "?")), tree, self._trees.git(steps[data["step"]]))

    async def _looked_at(self, one: KeptWorktree) -> KeptWorktree:
        try:
            async with self._trees.alone(one.tree):
                holding = await self._trees.ask(worktrees.holding, one.tree, one.git)
        except HocketError as error:
            return replace(one, holding=Holding(uncommitted=None), why=error.message)
        return replace(one, holding=holding, why=await self._busy(one) or holding.why)

    async def _busy(self, one: KeptWorktree) -> str | None:
        if not one.last.ended:
            return f"run {one.last.number} has not ended"
        # In a thread: a directory may be on a disk that does not answer.
        if await self._trees.ask(_is_any_inside, self._directories_in_use(), one.tree.path):
            return "a run uses it"
        return None

    async def _pruned(self, one: KeptWorktree, older: float, dry: bool) -> KeptWorktree:
        ended = one.last.ended_at
        if one.why is None and older and (ended is None or time.time() - ended < older):
            one = replace(one, why="its chain ended later than that")
        if one.why is not None or dry:
            return one
        try:
            async with self._trees.alone(one.tree):
                # Checked again under the lock that new users of the worktree wait for.
                why = await self._busy(one)
                removal = Removal(why) if why else await self._trees.ask(worktrees.prune, one.tree, one.git)
        except HocketError as error:
            return replace(one, why=error.message)
        return replace(one, why=removal.why, removed=removal.why is None, branch_removed=removal.branch)


def _is_any_inside(folders: Collection[str], top: str) -> bool:
    """Whether one of these folders is ``top`` or below it, by whichever links each of them was named."""
    real = os.path.realpath(top)
    return any(f"{os.path.realpath(folder)}{os.sep}".startswith(real + os.sep) for folder in folders)


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []
