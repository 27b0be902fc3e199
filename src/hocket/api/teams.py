"""Routes of teams: the teammates and the shared tasks of a lead, and what leads that died have left."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hocket.api import wire
from hocket.api.guard import engine_of, require_operator, run_named
from hocket.api.routing import Operation, get, post
from hocket.api.wire_teams import (
    CleanedTeamOut,
    OrphanTeamOut,
    TeammateOut,
    TeamTaskOut,
    team_task_out,
    teammate_out,
)


def operations() -> list[Operation]:
    return [
        get("/api/agents/{ref}/teammates", list_teammates, list[TeammateOut]),
        get("/api/agents/{ref}/team-tasks", list_team_tasks, list[TeamTaskOut]),
        get("/api/teams/orphans", list_orphan_teams, list[OrphanTeamOut]),
        post("/api/teams/orphans/{ref}/clean", clean_orphan_team, CleanedTeamOut),
    ]


async def list_teammates(request: Request, ref: str) -> Response:
    """List the teammates of a run, by its id, unique prefix or number; none if it leads no team.

    Those that have stopped are listed too.
    """
    found = engine_of(request).teammates(run_named(request, ref))
    return wire.success([teammate_out(one) for one in found])


async def list_team_tasks(request: Request, ref: str) -> Response:
    """List the tasks that the team of a run shares; none if it leads no team."""
    found = engine_of(request).team_tasks(run_named(request, ref))
    return wire.success([team_task_out(one) for one in found])


async def list_orphan_teams(request: Request) -> Response:
    """List the teams that leads have left which died, with the exact paths."""
    require_operator(request, "list what teams have left")
    return wire.success(engine_of(request).orphan_teams())


async def clean_orphan_team(request: Request, ref: str, body: wire.EmptyBody | None = None) -> Response:
    """Move what the team of an ended lead has left to the trash in HOCKET_HOME."""
    require_operator(request, "clean up teams")
    engine = engine_of(request)
    return wire.success(await engine.clean_orphan(engine.find(ref)))
