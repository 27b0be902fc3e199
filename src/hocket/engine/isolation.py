"""Steps that work in a worktree of their own: what that means for their rights, and the worktrees while chains run.

A worktree has what was committed, which need not be what the user approved in the project itself. So an agent that is
trusted there is started as a trusted one here only when the settings are the same. How git is asked is in
``worktrees``, when a step needs its worktree is the chain driver's business.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hocket.config.pins import Cover
from hocket.config.settings import Config
from hocket.engine import worktrees
from hocket.engine.worktrees import Beginning, Git, Place, Standing
from hocket.errors import NotTrusted, UsageError
from hocket.keeper import tree as processes
from hocket.model import Agent, Isolation, Spec, Step, Worktree

T = TypeVar("T")

# --- Rights -------------------------------------------------------------------------------------------------


def in_a_worktree(agent: Agent, config: Config) -> Agent:
    """The same agent where its project is another folder: its CLI finds servers in all folders above, which are others.

    What the user has switched off for the project it knows here as well: to it a worktree is its repository.
    """
    if not agent.trusted:
        return agent
    above = config.strangers(config.home) if config.home else ()
    return replace(agent, strangers=tuple(sorted({*agent.strangers, *above})))


def untrusted(agent: Agent) -> Agent:
    return replace(agent, trusted=False, strangers=())


def isolation_of(place: Place, agent: Agent, cwd: str, config: Config, unapproved: Callable[[], Spec]) -> Isolation:
    """What has to be known of a step before there is a worktree for it.

    Who vouches for a folder and all that comes to be in it vouches for its commits as well; an approval is one of the
    files as they are.
    """
    if not agent.trusted or config.lists(cwd) or config.pins is None:
        return Isolation(place.repository, place.inside)
    notice = (
        f"the settings in its worktree are not those that you approved in {cwd}, so they are off, with all hooks and"
        " servers; commit the approved ones"
    )
    spec = unapproved()
    spec = replace(spec, notices=(*spec.notices, notice))
    return Isolation(place.repository, place.inside, config.pins.cover.fingerprint(cwd), spec)


def placed(step: Step, tree: Worktree) -> Spec:
    """A step's process in its worktree. ``UsageError`` when the worktree lacks the folder that it is to work in."""
    isolation = step.isolation
    if isolation is None:
        return step.spec
    cwd = folder(step, tree)
    if not os.path.isdir(cwd):
        raise UsageError(f"{isolation.inside} is not in the commit that the worktree begins with ({tree.base[:12]})")
    chosen = step.spec
    if isolation.unapproved is not None and _fingerprint(cwd) != isolation.approved:
        chosen = isolation.unapproved
    return replace(chosen, cwd=cwd)


def has_restrictions(before: Spec, trusted: Spec, spec: Spec) -> bool:
    """Whether an earlier start was restricted as this one is, where that is more than the trusted one."""
    return {word for word in spec.argv if word not in trusted.argv} <= set(before.argv)


def folder(step: Step, tree: Worktree) -> str:
    """Where a step works in its worktree."""
    inside = step.isolation.inside if step.isolation else ""
    return os.path.join(tree.path, inside) if inside else tree.path


def _fingerprint(cwd: str) -> str | None:
    try:
        return Cover().fingerprint(cwd)
    except NotTrusted:
        return None


# --- While a chain runs -------------------------------------------------------------------------------------


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
        self._busy: set[str] = set()

    async def beginning(self, step: Step, before: Sequence[Sequence[Worktree]]) -> Beginning:
        """Where a new worktree of a step is to begin."""
        repository = step.isolation.repository if step.isolation else ""
        return await self._ask(worktrees.beginning, repository, before, Git(step.spec.env))

    def named(self, step: Step, base: str, chain: tuple[int, str], number: int) -> Worktree:
        repository = step.isolation.repository if step.isolation else ""
        return worktrees.named(self._home, repository, base, chain, number, step.agent)

    async def exists(self, step: Step, tree: Worktree) -> bool:
        return await self._ask(worktrees.exists, tree, Git(step.spec.env))

    async def prepare(self, cookie: str, step: Step, tree: Worktree, *, fresh: bool) -> Prepared:
        """Have the worktree there, and the step's process made for it. Carries the cookie while git is at work."""
        self._busy.add(cookie)
        try:
            async with self._locks.setdefault(tree.repository, asyncio.Lock()):
                return await self._ask(_prepare, step, tree, Git(step.spec.env, cookie), fresh)
        finally:
            self._busy.discard(cookie)

    async def look(self, step: Step, tree: Worktree, *, tidy: bool) -> Standing:
        """How a worktree stands. With ``tidy`` one that is spent is taken away, and is None afterwards."""
        async with self._locks.setdefault(tree.repository, asyncio.Lock()):
            return await self._ask(_look, tree, Git(step.spec.env), tidy)

    async def call_off(self, cookie: str, *, of_another: bool = False) -> None:
        """End a git that is at work for one step; ``of_another`` server, too, which cannot tell us that it is."""
        if of_another or cookie in self._busy:
            sweep = partial(processes.sweep_cookie, cookie)
            await asyncio.get_running_loop().run_in_executor(self._sweeps, sweep)

    async def close(self) -> None:
        await asyncio.gather(*(self.call_off(cookie) for cookie in list(self._busy)))
        for pool in (self._threads, self._sweeps):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, function: Callable[..., T], *words: Any) -> T:
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
