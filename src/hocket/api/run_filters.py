"""The filters of ``GET /api/runs``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import msgspec
from msgspec import Struct

from hocket.config import caller_environment
from hocket.engine import Engine
from hocket.errors import UsageError
from hocket.model import Run, Status
from hocket.sessions.observed.discovery import AGE_SHOWN
from hocket.store import LATEST, Queries, UsageTotal, below_test
from hocket.workflows.request import Variables
from hocket.workflows.session_import import ListedRun

MOST = 10_000
"""Runs below those of one page that are listed with them."""
PAGE = 200
"""Runs that are read from the store before other requests get their turn."""


class RunFilter(Struct, frozen=True):
    """Conditions for a run to be listed; None matches all."""

    status: Status | None = None
    agent: str | None = None
    project: str | None = None
    since: float | None = None


async def select(
    engine: Engine, filters: RunFilter, *, ended_too: bool, before: int | None, limit: int, caller: Run | None
) -> list[Run]:
    """Return the newest ``limit`` runs below the number ``before`` that the caller may access, oldest first."""
    _check(filters)
    if filters.status is not None:
        ended_too = filters.status.ended
    top = LATEST if before is None else before
    matches = _matcher(engine, filters)
    if caller is None and not ended_too:
        return [run for run in engine.live() if run.number < top and matches(run)][-limit:]
    is_below = below_test(caller.id, engine.read.parent) if caller else None
    found: list[Run] = []
    while len(found) < limit:
        if caller is None:
            page = engine.read.recent(PAGE, top, filters.status, filters.since)[::-1]
        else:
            page = engine.read.in_tree(caller.root, top, PAGE)
        listed = [run for run in page if (ended_too or not run.ended) and (is_below is None or is_below(run.id))]
        found += filter(matches, listed)
        if len(page) < PAGE:
            break
        top = page[-1].number
        await asyncio.sleep(0)
    return found[:limit][::-1]


async def read_families(
    engine: Engine, runs: Sequence[Run], *, ended_too: bool, caller: Run | None
) -> tuple[Sequence[Run], dict[str, UsageTotal]]:
    """Return these runs with what is above and below them, and what each and everything below it have used."""

    def read(queries: Queries) -> tuple[list[Run], dict[str, UsageTotal]]:
        found = queries.families([run.id for run in runs], ended_too=ended_too, limit=MOST)
        if caller is not None:
            is_below = below_test(caller.id, queries.parent)
            found = [run for run in found if is_below(run.id)]
        return found, queries.usage_below(sorted({run.root for run in found}))

    return await engine.read_aside(read)


async def select_observed(
    engine: Engine, filters: RunFilter, env: str | None, *, ended_too: bool, limit: int
) -> list[ListedRun]:
    """Return the newest ``limit`` sessions that Hocket did not start, the newest last."""
    _check(filters)
    since = filters.since
    if since is None:
        since = 0.0 if ended_too else time.time() - AGE_SHOWN
    matches = _matcher(engine, msgspec.structs.replace(filters, since=None))
    return await engine.observed(_environment(env), since, limit, matches)


def _environment(text: str | None) -> Mapping[str, str]:
    if text is None:
        return caller_environment()
    try:
        given: Mapping[str, str] = msgspec.json.decode(text, type=Variables)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"env: must be a JSON object of texts: {error}") from error
    return {**caller_environment(), **given}


def _check(filters: RunFilter) -> None:
    if filters.project is not None and not filters.project.startswith("/"):
        raise UsageError(f"project: must be an absolute path; got {filters.project[:200]!r}")


def _matcher(engine: Engine, filters: RunFilter) -> Callable[[Run], bool]:
    project = (filters.project or "").rstrip("/")

    def is_inside(run: Run | None) -> bool:
        return run is not None and (run.cwd == project or run.cwd.startswith(f"{project}/"))

    @cache
    def is_root_inside(root: str) -> bool:
        """True if the root works in the project: a step may work in a worktree elsewhere."""
        return is_inside(engine.read.run(root))  # None after an incomplete restore

    def matches(run: Run) -> bool:
        return (
            (filters.agent is None or run.agent == filters.agent)
            and (filters.since is None or run.created_at >= filters.since)
            and (filters.status is None or engine.displayed(run).status is filters.status)
            and (filters.project is None or is_inside(run) or (run.root != run.id and is_root_inside(run.root)))
        )

    return matches
