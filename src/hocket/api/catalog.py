"""Routes of the catalog: agents and configured chains. Read-only.

Discovery reads files, so it runs in a thread. A name in a request is looked up among the agents that were found; it
never becomes part of a path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple, TypeVar

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from hocket import config
from hocket.api import wire
from hocket.api.guard import caller_of, engine_of
from hocket.api.routing import Operation, get
from hocket.catalog.entries import Catalog
from hocket.catalog.report import find
from hocket.catalog.resolve import usable_clis
from hocket.catalog.routing_table import Table
from hocket.trust.approvals import Approvals
from hocket.trust.check import configuration, table_of
from hocket.trust.delegation import UNLIMITED, DelegationLimits, above, allowed_names, refused_names
from hocket.workflows.bind import check_directory
from hocket.workflows.named_chains import survey

T = TypeVar("T")
Project = Annotated[str, Meta(max_length=4096)] | None


def operations() -> list[Operation]:
    return [
        get("/api/agents", list_agents, list[wire.AgentOut], meta=wire.AgentListMeta),
        get("/api/agents/{name}", show_agent, wire.AgentDetail),
        get("/api/catalog", show_catalog, wire.CatalogOut),
        get("/api/chains", list_chains, wire.ChainsOut),
    ]


async def list_agents(request: Request, project: Project = None) -> Response:
    """List the agents of ``project``; by default those of the calling run's directory, else the global ones.

    A run gets only those that it may start.
    """
    limits = _limits(request)

    def select(found: _Found) -> tuple[list[Table], list[str]]:
        allowed = allowed_names(limits, found.catalog)
        refused = refused_names(limits, found.approvals, found.catalog, found.env)

        def may_start(name: str) -> bool:
            return name not in refused and (allowed is None or name in allowed)

        rows = [row for name, row in found.table["by_name"].items() if may_start(name)]
        return rows, [name for name in found.clis if may_start(name)]

    rows, clis = await _select(request, project, select)
    return wire.success([wire.agent_out(row) for row in rows], clis=clis)


async def show_agent(request: Request, name: str, project: Project = None) -> Response:
    """Show one agent by its name or address."""
    row = await _select(request, project, lambda found: found.table["by_name"][find(found.catalog, name)])
    return wire.success(wire.agent_detail(row))


async def show_catalog(request: Request, project: Project = None) -> Response:
    """Show the routing table: agents by name, tag and location, overrides and problems."""
    return wire.success(await _select(request, project, lambda found: found.table))


async def list_chains(request: Request, project: Project = None) -> Response:
    """List the configured chains of ``project``; by default of the calling run's directory, else the user's own."""
    project, env = _location(request, project)
    engine = engine_of(request)
    home = str(engine.home)
    return wire.success(await engine.run_in_folder(project or home, survey, project or home, home, env))


def _location(request: Request, project: str | None) -> tuple[str | None, Mapping[str, str]]:
    """Return the directory and the environment to look in: by default those of the calling run."""
    run = caller_of(request.scope).run
    if run is None:
        return project, config.caller_environment()
    return run.cwd if project is None else project, engine_of(request).environment(run)


def _limits(request: Request) -> DelegationLimits:
    run, engine = caller_of(request.scope).run, engine_of(request)
    return UNLIMITED if run is None else above(engine.above(run), engine.secrets.record, time.monotonic())


class _Found(NamedTuple):
    """The catalog of a directory, and the CLIs that can be run there."""

    table: Table
    catalog: Catalog
    clis: list[str]
    approvals: Approvals
    env: Mapping[str, str]


async def _select(request: Request, project: str | None, select: Callable[[_Found], T]) -> T:
    """Return what is selected from what is found, in a thread: the names for a hint are slow to compare."""
    project, env = _location(request, project)
    engine = engine_of(request)
    home = str(engine.home)

    def look_up() -> T:
        if project is not None:
            check_directory(project)
        approvals, problems = configuration(project or home, home, env)
        catalog = engine.catalogs.get(project, env, approvals.config, approvals)
        whole = replace(catalog, problems=(*catalog.problems, *problems))
        clis = usable_clis(project or home, env, approvals.config, lambda: catalog)
        return select(_Found(table_of(whole, approvals, env), catalog, clis, approvals, env))

    return await engine.run_in_folder(project or home, look_up)
