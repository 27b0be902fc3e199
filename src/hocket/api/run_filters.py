"""The filters of ``GET /api/runs``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from msgspec import Struct

from hocket.engine import Engine
from hocket.errors import UsageError
from hocket.model import Run, Status
from hocket.store import LATEST, below_test

PAGE = 200
"""Runs that are read from the store before other requests get their turn."""


class RunFilter(Struct, frozen=True):
    """Conditions for a run to be listed; None matches all."""

    status: Status | None = None
    agent: str | None = None
    project: str | None = None
    since: float | None = None

    def check(self) -> None:
        if self.project is not None and not self.project.startswith("/"):
            raise UsageError(f"project: must be an absolute path; got {self.project[:200]!r}")


async def select(
    engine: Engine, filters: RunFilter, *, ended_too: bool, before: int | None, limit: int, caller: Run | None
) -> list[Run]:
    """Return the newest ``limit`` runs below the number ``before`` that the caller may access, oldest first."""
    filters.check()
    if filters.status is not None:
        ended_too = filters.status.ended
    top = LATEST if before is None else before
    match = _Match(engine, filters)
    if caller is not None:
        return await _below(engine, caller, match, ended_too=ended_too, top=top, limit=limit)
    if not ended_too:
        return list(match(run for run in engine.live() if run.number < top))[-limit:]
    found: list[Run] = []
    while page := engine.read.recent(PAGE, top, filters.status, filters.since):
        found = [*match(page), *found]
        top = page[0].number
        if len(found) >= limit or len(page) < PAGE:
            break
        await asyncio.sleep(0)
    return found[-limit:]


async def _below(engine: Engine, caller: Run, match: _Match, *, ended_too: bool, top: int, limit: int) -> list[Run]:
    """Select among a run and its descendants."""
    is_below = below_test(caller.id, engine.read.parent)
    found: list[Run] = []
    while len(found) < limit and (page := engine.read.in_tree(caller.root, top, PAGE)):
        own = [run for run in page if (ended_too or not run.ended) and is_below(run.id)]
        found += match(own)
        top = page[-1].number
        await asyncio.sleep(0)
    return found[:limit][::-1]


class _Match:
    """Yields the runs that match a filter."""

    def __init__(self, engine: Engine, filters: RunFilter) -> None:
        self._engine = engine
        self._filters = filters
        self._roots: dict[str, bool] = {}
        """By id: whether a root works in the project."""

    def __call__(self, runs: Iterable[Run]) -> Iterator[Run]:
        filters = self._filters
        for run in runs:
            if (
                (filters.agent is None or run.agent == filters.agent)
                and (filters.since is None or run.created_at >= filters.since)
                and (filters.status is None or self._engine.resting(run).status is filters.status)
                and (filters.project is None or self._is_inside(run.cwd) or self._is_root_inside(run))
            ):
                yield run

    def _is_inside(self, cwd: str) -> bool:
        project = (self._filters.project or "").rstrip("/")
        return cwd == project or cwd.startswith(f"{project}/")

    def _is_root_inside(self, run: Run) -> bool:
        """True if the root works in the project: a step may work in a worktree elsewhere."""
        if run.root == run.id:
            return False
        if run.root not in self._roots:
            root = self._engine.read.run(run.root)  # None after an incomplete restore
            self._roots[run.root] = root is not None and self._is_inside(root.cwd)
        return self._roots[run.root]
