"""Chains over HTTP: those that have a name, and how far one may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from api.serving import Server
from api.test_app import error_of
from workflows.repositories import make_repository


@pytest.fixture
def shop(shared: Server) -> Path:
    """A project with two chains, one of which names an unknown agent."""
    folder = shared.root / "shop"
    (folder / "forge").mkdir(parents=True, exist_ok=True)
    steps = [{"agent": "counter"}, {"group": [{"agent": "echo-args", "iterations": 2}, {"agent": "counter"}]}]
    chains = {
        "ship": {"description": "both", "budgetUsd": 2, "steps": steps},
        "x": {"steps": [{"agent": "unknown-agent"}]},
    }
    (folder / "forge/chains.json").write_text(json.dumps({"chains": chains}))
    return folder


def chains_of(server: Server, query: str) -> Any:
    response = server.get(f"/api/chains{query}")
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_chains_of_a_project_have_steps_and_problems(shared: Server, shop: Path) -> None:
    found = chains_of(shared, f"?project={shop}")
    ship, lost = found["chains"]
    assert (ship["name"], ship["text"], ship["problem"]) == ("ship", "counter -> (echo-args:2, counter)", None)
    assert (ship["file"], ship["budget_usd"]) == (str(shop / "forge/chains.json"), 2)
    assert [(step["step"], step["grouped"]) for step in ship["steps"]] == [(1, False), (2, True), (2, True)]
    assert "unknown-agent" in lost["problem"]
    assert found["problems"] == []


def test_broken_file_is_one_problem(shared: Server) -> None:
    folder = shared.root / "broken"
    folder.mkdir(exist_ok=True)
    (folder / "hocket.toml").write_text("[chains\n")
    found = chains_of(shared, f"?project={folder}")
    assert found["chains"] == []
    assert (found["problems"][0]["path"], found["problems"][0]["line"]) == (str(folder / "hocket.toml"), 1)


def test_only_user_chains_without_a_project(shared: Server, shop: Path) -> None:
    assert chains_of(shared, "")["chains"] == []


def test_missing_project_is_refused(shared: Server) -> None:
    error_of(shared.get("/api/chains?project=/no/such/place"), 400)
    error_of(shared.get("/api/chains?project=relative"), 400)


@pytest.mark.parametrize(
    "bounds",
    [
        {"budgetUsd": 3, "budgetTokens": 9, "idleTimeout": 60, "noProgress": 2, "gateTimeout": 5, "onLost": "retry"},
        {"budget_usd": 3, "budget_tokens": 9, "idle_timeout": 60, "no_progress": 2, "gate_timeout": 5, "failures": 2},
    ],
    ids=["camelCase", "snake_case"],
)
def test_chain_starts_with_its_bounds(shared: Server, bounds: dict[str, Any]) -> None:
    body = {"dsl": "(echo-args, counter)", "cwd": str(shared.project), **bounds}
    response = shared.request("POST", "/api/runs", json=body)
    assert response.status_code == 201, response.text
    ended = shared.ended(response.json()["data"]["id"])
    assert (ended["status"], len(ended["steps"])) == ("done", 2)


def test_chain_in_worktrees_needs_a_repository(shared: Server) -> None:
    body = {"dsl": "echo-args", "cwd": str(shared.project), "isolation": "worktree"}
    refused = error_of(shared.request("POST", "/api/runs", json=body), 400)
    assert "needs a git repository" in refused["message"]
    error_of(shared.request("POST", "/api/runs", json={**body, "isolation": "vm"}), 400)
    make_repository(shared.root / "repository")
    response = shared.request("POST", "/api/runs", json={**body, "cwd": str(shared.root / "repository")})
    assert response.status_code == 201, response.text
    run = response.json()["data"]["id"]
    (step,) = shared.ended(run)["steps"]
    assert (step["status"], step["worktree"], step["branch"]) == ("done", None, None)
