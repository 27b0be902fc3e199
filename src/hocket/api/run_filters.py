"""Which runs ``GET /api/runs`` lists: those that have not ended, or the newest of all, narrowed down by filters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from msgspec import Struct

from hocket.engine import Engine
from hocket.errors import UsageError
from hocket.model import Run, Status
from hocket.store import LATEST, below_test

PAGE = 200
"""Runs that are read at once while the store is searched; in between the server sees to everything else."""


class Filter(Struct, frozen=True):
    """What a run has to be like to be listed; None does not matter."""

    status: Status | None = None
    agent: str | None = None
    project: str | None = None
    since: float | None = None

    def check(self) -> None:
        if self.project is not None and not self.project.startswith("/"):
            raise UsageError(f"project: must be an absolute path, not {self.project[:200]!r}")


async def select(
    engine: Engine, wanted: Filter, *, ended_too: bool, before: int | None, limit: int, caller: Run | None
) -> list[Run]:
    """The newest ``limit`` runs below the number ``before`` that the caller may see, oldest first."""
    wanted.check()
    if wanted.status is not None:
        ended_too = wanted.status.ended
    top = LATEST if before is None else before
    match = _Match(engine, wanted)
    if caller is not None:
        return await _below(engine, caller, match, ended_too=ended_too, top=top, limit=limit)
    if not ended_too:
        return list(match(run for run in engine.live() if run.number < top))[-limit:]
    found: list[Run] = []
    while page := engine.read.recent(PAGE, top, wanted.status, wanted.since):
        found = [*match(page), *found]
        top = page[0].number
        if len(found) >= limit or len(page) < PAGE:
            break
        await asyncio.sleep(0)
    return found[-limit:]


async def _below(engine: Engine, caller: Run, match: _Match, *, ended_too: bool, top: int, limit: int) -> list[Run]:
    """The same for a run: itself and those below it."""
    is_below = below_test(caller.id, engine.read.parent)
    found: list[Run] = []
    while len(found) < limit and (page := engine.read.in_tree(caller.root, top, PAGE)):
        own = [run for run in page if (ended_too or not run.ended) and is_below(run.id)]
        found += match(own)
        top = page[-1].number
        await asyncio.sleep(0)
    return found[:limit][::-1]


class _Match:
    """Picks the runs that a filter wants."""

    def __init__(self, engine: Engine, wanted: Filter) -> None:
        self._engine = engine
        self._wanted = wanted
        self._roots: dict[str, bool] = {}
        """Whether the root of a tree works in the project that is wanted."""

    def __call__(self, runs: Iterable[Run]) -> Iterator[Run]:
        wanted = self._wanted
        for run in runs:
            if (
                (wanted.agent is None or run.agent == wanted.agent)
                and (wanted.since is None or run.created_at >= wanted.since)
                and (wanted.status is None or self._engine.resting(run).status is wanted.status)
                and (wanted.project is None or self._is_inside(run.cwd) or self._is_root_inside(run))
            ):
                yield run

    def _is_inside(self, cwd: str) -> bool:
        project = (self._wanted.project or "").rstrip("/")
        return cwd == project or cwd.startswith(f"{project}/")

    def _is_root_inside(self, run: Run) -> bool:
        """A step may work elsewhere, in a worktree of its own for instance, and belongs to the project all the same."""
        if run.root == run.id:
            return False
        if run.root not in self._roots:
            root = self._engine.read.run(run.root)  # none after a restore that did not find its files
            self._roots[run.root] = root is not None and self._is_inside(root.cwd)
        return self._roots[run.root]
