"""The worktrees of live chains: git runs in threads, for one worktree of a repository at a time.

The git commands are in ``worktrees``, and what an agent may do in a worktree is in ``isolation``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hocket.errors import UsageError
from hocket.keeper import process_tree
from hocket.model import Spec, Step, Worktree
from hocket.trust.approvals import is_trusted
from hocket.workflows import worktrees
from hocket.workflows.git import Git
from hocket.workflows.isolation import spec_in_directory
from hocket.workflows.worktrees import WorktreeStatus

T = TypeVar("T")

GRACE = 5.0
"""Seconds in which a cancelled git removes its locks and what it has begun to make."""


class Prepared(NamedTuple):
    """The spec of a step's next iteration, or why it cannot start."""

    spec: Spec
    error: str | None = None


class ChainWorktrees:
    """Prepares, inspects and locks the worktrees of live chains. One per server."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._threads = ThreadPoolExecutor(4, "hocket-worktree")
        # A pool of their own: what cancels a checkout must not wait behind checkouts.
        self._sweeps = ThreadPoolExecutor(1, "hocket-worktree-sweep")
        self._locks: dict[str, asyncio.Lock] = {}
        self.reuse = asyncio.Lock()
        """Held while a run is resumed and while worktrees are pruned."""
        self._active: set[str] = set()
        """The cookies of git processes that make a worktree."""

    def git(self, step: Step, cookie: str | None = None) -> Git:
        """Git for a step, trusted as far as the step's own folder is."""
        trusts = partial(is_trusted, home=self.home, environ=step.spec.env)
        return Git(step.spec.env, step.spec.cwd, trusts, cookie)

    async def exists(self, step: Step, tree: Worktree) -> bool:
        return await self.run(worktrees.exists, tree, self.git(step))

    async def prepare(self, cookie: str, step: Step, tree: Worktree, *, fresh: bool) -> Prepared:
        """Create the worktree if necessary; return the spec for it. Git carries the cookie meanwhile."""
        self._active.add(cookie)
        try:
            async with self.lock(tree):
                return await self.run(_prepare, step, tree, self.git(step, cookie), fresh)
        finally:
            self._active.discard(cookie)

    async def inspect(self, step: Step, tree: Worktree, *, tidy: bool) -> WorktreeStatus:
        """The status of a worktree. With ``tidy`` one that is spent is removed."""
        async with self.lock(tree):
            return await self.run(_inspect, tree, self.git(step), tidy)

    def lock(self, tree: Worktree) -> asyncio.Lock:
        """To be held while git works in a worktree's repository."""
        return self._locks.setdefault(tree.repository, asyncio.Lock())

    async def cancel(self, cookie: str, *, of_another: bool = False) -> None:
        """End a git that works for one step; with ``of_another`` also one that an earlier server started."""
        if of_another or cookie in self._active:
            sweep = partial(process_tree.sweep_cookie, cookie, GRACE)
            await asyncio.get_running_loop().run_in_executor(self._sweeps, sweep)

    async def close(self) -> None:
        await asyncio.gather(*(self.cancel(cookie) for cookie in list(self._active)))
        for pool in (self._threads, self._sweeps):
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that runs git, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args))


def _prepare(step: Step, tree: Worktree, git: Git, fresh: bool) -> Prepared:
    worktrees.ensure(tree, git, fresh=fresh)
    try:
        return Prepared(spec_in_directory(step, tree))
    except UsageError:
        if fresh:
            worktrees.discard_unused(tree, git)
        raise


def _inspect(tree: Worktree, git: Git, tidy: bool) -> WorktreeStatus:
    status = worktrees.status_of(tree, git)
    if tidy and status.is_spent and worktrees.remove(tree, git):
        return WorktreeStatus(None, is_spent=True)
    return status
