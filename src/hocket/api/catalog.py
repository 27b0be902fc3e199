"""The routes of what can run: read-only, and the same catalog that the command line and the chains use.

Finding agents reads files, so it happens in a thread. A name from a request is looked up among those that were found;
it never becomes part of a path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple, cast

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from hocket import config
from hocket.api import wire
from hocket.api.guard import caller_of
from hocket.api.routing import Operation, get
from hocket.catalog.cache import Catalogs
from hocket.catalog.entries import Catalog, Problem
from hocket.catalog.report import find
from hocket.catalog.routing_table import Table, routing_table
from hocket.engine import Engine
from hocket.trust.approvals import Approvals
from hocket.trust.check import configuration, needs
from hocket.workflows.bind import check_directory
from hocket.workflows.named_chains import survey

MOST_TABLES = 16

Project = Annotated[str, Meta(max_length=4096)] | None


class Asked(NamedTuple):
    """For whom agents are looked for, and where; without a directory only what is nobody's project."""

    project: str | None
    env: Mapping[str, str]


class Shelf:
    """The tables that were made of the server's catalogs. Any thread may ask."""

    def __init__(self, home: str, catalogs: Catalogs) -> None:
        self._home = home
        self._catalogs = catalogs
        self._tables: OrderedDict[int, tuple[Catalog, Table]] = OrderedDict()
        self._lock = threading.Lock()

    def table(self, asked: Asked) -> Table:
        """All that can run. Whoever gets it must not change it."""
        catalog, approvals, problems = self._found(asked)
        with self._lock:
            known = self._tables.get(id(catalog))
        if known:
            return known[1]
        whole = replace(catalog, problems=(*catalog.problems, *problems))
        table = routing_table(whole, lambda entry: needs(entry, catalog, approvals))
        with self._lock:
            # What a table depends on is what its catalog depends on, so it is good while the catalog is the same one;
            # which is kept beside it, or another could come to have its number.
            self._tables[id(catalog)] = catalog, table
            while len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        return table

    def row(self, asked: Asked, word: str) -> Table:
        """The row of one agent, without the cost of all the others."""
        catalog, approvals, _ = self._found(asked)
        name = find(catalog, word)
        alone = replace(catalog, ranked={name: catalog.ranked[name]})
        row: Table = routing_table(alone, lambda entry: needs(entry, catalog, approvals))["by_name"][name]
        return row

    def _found(self, asked: Asked) -> tuple[Catalog, Approvals, list[Problem]]:
        if asked.project is not None:
            check_directory(asked.project)
        approvals, problems = configuration(asked.project or self._home, self._home, asked.env)
        return self._catalogs.get(asked.project, asked.env, approvals.config, approvals), approvals, problems


def operations() -> list[Operation]:
    return [
        get("/api/agents", list_agents, list[wire.AgentOut]),
        get("/api/agents/{name}", show_agent, wire.AgentDetail),
        get("/api/catalog", show_catalog, wire.CatalogOut),
        get("/api/chains", list_chains, wire.ChainsOut),
    ]


def _asked(request: Request, project: str | None) -> Asked:
    """A run asks for its own directory unless it says another one, and with its own environment."""
    run = caller_of(request.scope).run
    if run is None:
        return Asked(project, config.caller_environment())
    engine = cast(Engine, request.app.state.engine)
    return Asked(run.cwd if project is None else project, engine.environment(run))


def _shelf(request: Request) -> Shelf:
    return cast(Shelf, request.app.state.shelf)


async def _looked_up(request: Request, see: Callable[..., Table], asked: Asked, *words: str) -> Table:
    """In a thread for this folder: finding agents reads what its author wrote."""
    engine = cast(Engine, request.app.state.engine)
    return await engine.look_in(asked.project or str(engine.home), see, asked, *words)


async def list_agents(request: Request, project: Project = None) -> Response:
    """Every agent that can run: in ``project``, else for a run where it works, else what is no project's."""
    table = await _looked_up(request, _shelf(request).table, _asked(request, project))
    return wire.answer([wire.agent_out(row) for row in table["by_name"].values()])


async def show_agent(request: Request, name: str, project: Project = None) -> Response:
    """One agent, by its name or its address."""
    row = await _looked_up(request, _shelf(request).row, _asked(request, project), name)
    return wire.answer(wire.agent_detail(row))


async def show_catalog(request: Request, project: Project = None) -> Response:
    """The routing table: agents by name, tag and place, what they override, and which files have something wrong."""
    return wire.answer(await _looked_up(request, _shelf(request).table, _asked(request, project)))


async def list_chains(request: Request, project: Project = None) -> Response:
    """The chains that have a name in ``project``, for a run where it works, else the user's own."""
    asked = _asked(request, project)
    engine = cast(Engine, request.app.state.engine)
    home = str(engine.home)
    folder = asked.project or home
    return wire.answer(await engine.look_in(folder, survey, folder, home, asked.env))
