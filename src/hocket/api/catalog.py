"""Routes of the catalog: agents and configured chains. Read-only.

Discovery reads files, so it runs in a thread. A name in a request is looked up among the agents that were found; it
never becomes part of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from hocket import config
from hocket.api import wire
from hocket.api.guard import caller_of
from hocket.api.routing import Operation, get
from hocket.api.scope import engine_of
from hocket.catalog.entries import Catalog
from hocket.catalog.report import find
from hocket.catalog.routing_table import Table, routing_table
from hocket.engine import Engine
from hocket.trust.check import configuration, needs
from hocket.workflows.bind import check_directory
from hocket.workflows.named_chains import survey

Project = Annotated[str, Meta(max_length=4096)] | None


def operations() -> list[Operation]:
    return [
        get("/api/agents", list_agents, list[wire.AgentOut]),
        get("/api/agents/{name}", show_agent, wire.AgentDetail),
        get("/api/catalog", show_catalog, wire.CatalogOut),
        get("/api/chains", list_chains, wire.ChainsOut),
    ]


async def list_agents(request: Request, project: Project = None) -> Response:
    """List the agents of ``project``; by default those of the calling run's directory, else the global ones."""
    table = await _in_thread(request, project, _table)
    return wire.answer([wire.agent_out(row) for row in table["by_name"].values()])


async def show_agent(request: Request, name: str, project: Project = None) -> Response:
    """Show one agent by its name or address."""
    return wire.answer(wire.agent_detail(await _in_thread(request, project, _row, name)))


async def show_catalog(request: Request, project: Project = None) -> Response:
    """Show the routing table: agents by name, tag and location, overrides and problems."""
    return wire.answer(await _in_thread(request, project, _table))


async def list_chains(request: Request, project: Project = None) -> Response:
    """List the configured chains of ``project``; by default of the calling run's directory, else the user's own."""
    return wire.answer(await _in_thread(request, project, _chains))


class _Scope(NamedTuple):
    """Where agents are looked for; without a project only global ones are found."""

    engine: Engine
    project: str | None
    env: Mapping[str, str]

    @property
    def home(self) -> str:
        return str(self.engine.home)


async def _in_thread(request: Request, project: str | None, look_up: Callable[..., Table], *words: str) -> Table:
    """Call ``look_up`` in a thread, with the directory and the environment of the calling run as defaults."""
    engine, run = engine_of(request), caller_of(request.scope).run
    if run is None:
        scope = _Scope(engine, project, config.caller_environment())
    else:
        scope = _Scope(engine, run.cwd if project is None else project, engine.environment(run))
    return await engine.look_in(scope.project or scope.home, look_up, scope, *words)


def _table(scope: _Scope) -> Table:
    return _table_and_catalog(scope)[0]


def _row(scope: _Scope, word: str) -> Table:
    table, catalog = _table_and_catalog(scope)
    row: Table = table["by_name"][find(catalog, word)]
    return row


def _table_and_catalog(scope: _Scope) -> tuple[Table, Catalog]:
    if scope.project is not None:
        check_directory(scope.project)
    approvals, problems = configuration(scope.project or scope.home, scope.home, scope.env)
    catalog = scope.engine.catalogs.get(scope.project, scope.env, approvals.config, approvals)
    whole = replace(catalog, problems=(*catalog.problems, *problems))
    return routing_table(whole, lambda entry: needs(entry, catalog, approvals)), catalog


def _chains(scope: _Scope) -> Table:
    return survey(scope.project or scope.home, scope.home, scope.env)
