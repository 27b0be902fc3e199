"""The JSON of teams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class TeammateOut(Struct, rename="camel", kw_only=True):
    """A member of a team, other than its lead."""

    name: str
    agent_id: str
    """Its id in the team, such as ``alice@session-1a2b3c4d``."""
    team_lead_id: str
    """The run of the lead."""
    team_name: str
    status: Literal["active", "idle", "stopped"]
    current_task: str | UnsetType = UNSET
    """The subject of the shared task that it works on; absent if there is none."""
    run: str | None
    """Its own run, below that of the lead."""
    agent: str | None
    """What it is an instance of."""
    model: str | None


class TeamTaskOut(Struct, rename="camel", kw_only=True):
    """A task that a team shares."""

    id: str
    subject: str
    description: str
    status: Literal["pending", "in_progress", "completed"]
    owner: str | UnsetType = UNSET
    """Who works on it; absent if it is given to none."""
    blocks: list[str]
    """The tasks that wait for this one."""
    blocked_by: list[str]


class OrphanTeamOut(Struct):
    """What a lead that died has left of a team."""

    run: str
    number: int
    team: str
    paths: list[str]


class CleanedTeamOut(Struct):
    """What was moved to the trash of Hocket, where it can be found again."""

    run: str
    teams: list[str]
    moved: list[str]
    """Where it was."""
    trash: list[str]
    """The folders where it is now."""


def teammate_out(data: Mapping[str, Any]) -> TeammateOut:
    """Return a teammate of the engine as JSON."""
    fields: dict[str, Any] = {name: data.get(name) for name in TeammateOut.__struct_fields__}
    return TeammateOut(**_without_null(fields, "current_task"))


def team_task_out(data: Mapping[str, Any]) -> TeamTaskOut:
    """Return a shared task of the engine as JSON."""
    fields: dict[str, Any] = {name: data.get(name) for name in TeamTaskOut.__struct_fields__}
    fields |= {name: str(fields[name] or "") for name in ("id", "subject", "description")}
    fields |= {name: [str(one) for one in fields[name] or ()] for name in ("blocks", "blocked_by")}
    return TeamTaskOut(**_without_null(fields, "owner"))


def _without_null(fields: Mapping[str, Any], optional: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != optional or value is not None}
