"""The worktrees of chains that run: made, looked at and taken away in threads, while everything else goes on.

How git is asked is in ``worktrees``, what an agent may do there in ``isolation``; when a step needs its worktree is the
chain driver's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hocket.errors import UsageError
from hocket.keeper import process_tree as processes
from hocket.model import Spec, Step, Worktree
from hocket.trust.approvals import is_trusted
from hocket.workflows import worktrees
from hocket.workflows.git import Git
from hocket.workflows.isolation import placed
from hocket.workflows.worktrees import Beginning, Standing

T = TypeVar("T")

GRACE = 5.0
"""Seconds for a git that is to end: it takes its locks away, and what it has begun to make."""


class Prepared(NamedTuple):
    """What the next iteration of a step is started with, or why that cannot be."""

    spec: Spec
    error: str | None = None


class Trees:
    """All worktrees that this server is busy with. Git is asked for one of a repository at a time."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._threads = ThreadPoolExecutor(4, "hocket-tree")
        # Of their own: what ends a checkout must not wait behind checkouts.
        self._sweeps = ThreadPoolExecutor(1, "hocket-tree-sweep")
        self._locks: dict[str, asyncio.Lock] = {}
        self.reuse = asyncio.Lock()
        """Held while a run is resumed and while worktrees are pruned."""
        self._busy: set[str] = set()

    def git(self, step: Step, cookie: str | None = None) -> Git:
        """Git for a step, as far as the folder is trusted that the step was asked for in."""
        trusts = partial(is_trusted, home=self._home, environ=step.spec.env)
        return Git(step.spec.env, step.spec.cwd, trusts, cookie)

    async def beginning(self, step: Step, before: Sequence[Sequence[Worktree]]) -> Beginning:
        """Where a new worktree of a step is to begin."""
        repository = step.isolation.repository if step.isolation else ""
        return await self.ask(worktrees.beginning, repository, before, self.git(step))

    def named(self, step: Step, base: str, chain: tuple[int, str], number: int) -> Worktree:
        repository = step.isolation.repository if step.isolation else ""
        return worktrees.named(self._home, repository, base, chain, number, step.agent)

    async def exists(self, step: Step, tree: Worktree) -> bool:
        return await self.ask(worktrees.exists, tree, self.git(step))

    async def prepare(self, cookie: str, step: Step, tree: Worktree, *, fresh: bool) -> Prepared:
        """Have the worktree there, and the step's process made for it. Carries the cookie while git is at work."""
        self._busy.add(cookie)
        try:
            async with self.alone(tree):
                return await self.ask(_prepare, step, tree, self.git(step, cookie), fresh)
        finally:
            self._busy.discard(cookie)

    async def restore(self, cookie: str, step: Step, tree: Worktree) -> Prepared:
        """Have a worktree there again that was removed: of its branch, or, without that, as it began."""
        return await self.prepare(cookie, step, tree, fresh=not await self.exists(step, tree))

    async def look(self, step: Step, tree: Worktree, *, tidy: bool) -> Standing:
        """How a worktree stands. With ``tidy`` one that is spent is taken away, and is None afterwards."""
        async with self.alone(tree):
            return await self.ask(_look, tree, self.git(step), tidy)

    def alone(self, tree: Worktree) -> asyncio.Lock:
        """To be held while something is asked about a worktree's repository."""
        return self._locks.setdefault(tree.repository, asyncio.Lock())

    async def call_off(self, cookie: str, *, of_another: bool = False) -> None:
        """End a git that is at work for one step; ``of_another`` server, too, which cannot tell us that it is."""
        if of_another or cookie in self._busy:
            sweep = partial(processes.sweep_cookie, cookie, GRACE)
            await asyncio.get_running_loop().run_in_executor(self._sweeps, sweep)

    async def close(self) -> None:
        await asyncio.gather(*(self.call_off(cookie) for cookie in list(self._busy)))
        for pool in (self._threads, self._sweeps):
            pool.shutdown(wait=False, cancel_futures=True)

    async def ask(self, function: Callable[..., T], *words: Any) -> T:
        """What a function says that has to wait for git."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *words))


def _prepare(step: Step, tree: Worktree, git: Git, fresh: bool) -> Prepared:
    worktrees.ensure(tree, git, fresh=fresh)
    try:
        return Prepared(placed(step, tree))
    except UsageError:
        if fresh:
            worktrees.discard_unused(tree, git)
        raise


def _look(tree: Worktree, git: Git, tidy: bool) -> Standing:
    standing = worktrees.look(tree, git)
    if tidy and standing.is_spent and worktrees.remove(tree, git):
        return Standing(None, is_spent=True)
    return standing
