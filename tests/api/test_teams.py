"""The routes of teams: their JSON, the runs that they accept, and who may call them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from api.serving import Server, token_of

from hocket.api.wire_teams import team_task_out, teammate_out

ROUTES = ("teammates", "team-tasks")


def sent(value: Any) -> Any:
    return msgspec.to_builtins(value)


@pytest.mark.req("S5-28")
def test_teammate_has_the_documented_names() -> None:
    known = {
        "name": "alice",
        "agent_id": "alice@session-1a2b3c4d",
        "team_lead_id": "r1",
        "team_name": "session-1a2b3c4d",
        "status": "active",
        "current_task": "Write the tests",
        "run": "r2",
    }
    assert sent(teammate_out(known)) == {
        "name": "alice",
        "agentId": "alice@session-1a2b3c4d",
        "teamLeadId": "r1",
        "teamName": "session-1a2b3c4d",
        "status": "active",
        "currentTask": "Write the tests",
        "run": "r2",
        "agent": None,
        "model": None,
    }


@pytest.mark.req("S5-27", "S5-28", "S5-29")
def test_optional_names_are_absent_when_there_is_nothing() -> None:
    mate = {"name": "a", "agent_id": "a@t", "team_lead_id": "r", "team_name": "t", "status": "idle", "run": "r2"}
    assert "currentTask" not in sent(teammate_out({**mate, "current_task": None}))
    assert "owner" not in sent(team_task_out({"id": "1", "status": "pending", "owner": None}))


@pytest.mark.req("S5-29")
def test_shared_task_has_the_documented_names() -> None:
    known = {"id": "3", "subject": "Write", "description": None, "status": "in_progress", "owner": "alice"}
    assert sent(team_task_out({**known, "blocks": [4], "blocked_by": ("1", "2")})) == {
        "id": "3",
        "subject": "Write",
        "description": "",
        "status": "in_progress",
        "owner": "alice",
        "blocks": ["4"],
        "blockedBy": ["1", "2"],
    }


@pytest.mark.req("S5-28", "S5-29")
@pytest.mark.parametrize("route", ROUTES)
def test_run_without_team_has_empty_lists(shared: Server, route: str) -> None:
    run = shared.start_run("sleeper")
    for ref in (run["id"], run["id"][:12], run["number"]):
        answer = shared.get(f"/api/agents/{ref}/{route}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"] == []
        assert answer.json()["meta"]["timestamp"] > 0
    shared.post(f"/api/runs/{run['id']}/stop", {})


@pytest.mark.req("S5-28", "S5-29")
@pytest.mark.parametrize("route", ROUTES)
def test_unknown_run_is_not_found(shared: Server, route: str) -> None:
    answer = shared.get(f"/api/agents/r-unknown/{route}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.req("S5-30")
@pytest.mark.parametrize("route", ROUTES)
def test_run_reads_only_its_own_team(shared: Server, route: str) -> None:
    own, other = shared.start_run("sleeper"), shared.start_run("sleeper")
    token = token_of(shared, own)
    assert shared.get(f"/api/agents/{own['id']}/{route}", token=token).status_code == 200
    assert shared.get(f"/api/agents/{other['id']}/{route}", token=token).status_code == 403
    assert shared.get(f"/api/agents/{own['id']}/{route}", token="wrong").status_code == 401
    for run in (own, other):
        shared.post(f"/api/runs/{run['id']}/stop", {})


@pytest.mark.req("S5-30")
def test_only_the_operator_cleans_up(shared: Server) -> None:
    run = shared.start_run("sleeper")
    token = token_of(shared, run)
    assert shared.get("/api/teams/orphans").json()["data"] == []
    assert shared.get("/api/teams/orphans", token=token).status_code == 403
    path = f"/api/teams/orphans/{run['id']}/clean"
    assert shared.post(path, {}, token=token).status_code == 403
    assert shared.post(path, {}).status_code in (404, 409)
    shared.post(f"/api/runs/{run['id']}/stop", {})


@pytest.mark.req("S5-01")
@pytest.mark.parametrize("value", ["yes", 1, None, []], ids=repr)
def test_teams_that_are_no_boolean_are_refused(shared: Server, value: Any) -> None:
    for name in ("agentTeams", "agent_teams"):
        answer = shared.post("/api/runs", {"agent": "sleeper", "cwd": "/tmp", name: value})
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert message.startswith(f"{name}: expected `bool`"), message


@pytest.mark.req("S5-01")
def test_program_without_teams_is_refused_by_name(shared: Server) -> None:
    before = len(shared.get("/api/runs?all=1").json()["data"])
    answer = shared.post("/api/runs", {"agent": "sleeper", "cwd": "/tmp", "agentTeams": True})
    assert answer.status_code == 400
    assert "sleeper cannot lead a team" in answer.json()["error"]["message"]
    assert len(shared.get("/api/runs?all=1").json()["data"]) == before


def test_listed_run_says_whether_it_is_idle(shared: Server) -> None:
    run = shared.start_run("sleeper")
    (row,) = (one for one in shared.get("/api/runs").json()["data"] if one["id"] == run["id"])
    assert (row["teammate"], row["teammates"], row["open_tasks"], row["idle_in"]) == (None, None, 0, None)
    shared.post(f"/api/runs/{run['id']}/stop", {})
