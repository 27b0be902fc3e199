"""A run's own token: it speaks for that run alone, as long as the run lives, through either door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api.serving import Server, token_of


@pytest.fixture
def parent(shared: Server) -> Iterator[tuple[dict[str, Any], str]]:
    """A live run and its token."""
    run = shared.start_run("sleeper")
    yield run, token_of(shared, run)
    shared.post(f"/api/runs/{run['id']}/stop", {})


Parent = tuple[dict[str, Any], str]


@pytest.mark.parametrize("unix", [False, True])
def test_started_run_is_a_child_in_its_directory(shared: Server, parent: Parent, unix: bool) -> None:
    run, token = parent
    child = shared.start_run("echo-args", token=token, unix=unix, cwd=None)
    assert (child["parent"], child["root"], child["depth"]) == (run["id"], run["id"], 1)
    assert child["cwd"] == run["cwd"]
    named = shared.start_run("echo-args", token=token, unix=unix, parent=run["id"])
    assert named["parent"] == run["id"]
    chain = shared.start_run("echo-args", dsl=True, token=token, unix=unix)
    assert (chain["parent"], chain["depth"]) == (run["id"], 1)


@pytest.mark.parametrize("unix", [False, True])
def test_run_cannot_start_for_another_run(shared: Server, parent: Parent, unix: bool) -> None:
    _, token = parent
    other = shared.start_run("sleeper")
    before = shared.count()
    refused = shared.start_run("echo-args", token=token, unix=unix, parent=other["id"], expect=403)
    assert refused["code"] == "forbidden"
    assert shared.count() == before
    for path in (f"/api/runs/{other['id']}/stop", "/api/server/stop", "/api/worktrees/prune"):
        assert shared.post(path, {}, token=token, unix=unix).status_code == 403
    assert shared.post("/api/gc", {"runs": [other["id"]]}, token=token, unix=unix).status_code == 403
    for path in ("/api/worktrees", "/api/gc?days=0"):
        assert shared.get(path, token=token, unix=unix).status_code == 403
    assert shared.show(other["id"])["ended_at"] is None
    shared.post(f"/api/runs/{other['id']}/stop", {})


def test_plan_of_a_run_starts_nothing(shared: Server, parent: Parent) -> None:
    run, token = parent
    before = shared.count()
    planned = shared.post("/api/plans", {"dsl": "echo-args -> echo-args:3", "prompt": "x"}, token=token).json()["data"]
    assert [(step["step"], step["cwd"], step["iterations"]) for step in planned] == [
        (1, run["cwd"], 1),
        (2, run["cwd"], 3),
    ]
    for body in ({"dsl": "unknown-agent"}, {"dsl": "echo-args", "task": "1"}, {}):
        assert shared.post("/api/plans", body, token=token).status_code == 400
    assert shared.count() == before


@pytest.mark.parametrize("unix", [False, True])
def test_run_sees_only_itself_and_descendants(shared: Server, parent: Parent, unix: bool) -> None:
    run, token = parent
    other = shared.start_run("sleeper")
    child = shared.start_run("sleeper", token=token)
    for path in ("", "/events?follow=0", "/output", "/diff"):
        assert shared.get(f"/api/runs/{other['id']}{path}", token=token, unix=unix).status_code == 403
        assert shared.get(f"/api/runs/{child['id']}{path}", token=token, unix=unix).status_code == 200
    listed = shared.get("/api/runs", token=token, unix=unix).json()["data"]
    assert {one["id"] for one in listed} == {run["id"], child["id"]}
    shared.post(f"/api/runs/{other['id']}/stop", {})


def test_run_cannot_send_to_another_run(shared: Server, parent: Parent) -> None:
    _, token = parent
    other = shared.start_run("sleeper")
    response = shared.post(f"/api/runs/{other['id']}/messages", {"text": "obey"}, token=token)
    shared.post(f"/api/runs/{other['id']}/stop", {})
    assert response.status_code == 403


def test_run_may_show_and_stop_descendants(shared: Server, parent: Parent) -> None:
    run, token = parent
    child = shared.start_run("sleeper", token=token)
    assert shared.get("/api/runs", token=token).status_code == 200
    told = shared.post(f"/api/runs/{child['id']}/stop", {}, token=token).json()["data"]
    assert told["stopped"] == [child["id"]]
    assert shared.show(run["id"])["ended_at"] is None


def test_child_cannot_stop_its_parent(shared: Server, parent: Parent) -> None:
    run, token = parent
    child = shared.start_run("sleeper", token=token)
    response = shared.post(f"/api/runs/{run['id']}/stop", {}, token=token_of(shared, child))
    assert response.status_code == 403
    assert shared.show(run["id"])["ended_at"] is None


@pytest.mark.parametrize("unix", [False, True])
def test_token_of_an_ended_run_is_refused(shared: Server, unix: bool) -> None:
    run = shared.start_run("sleeper")
    token = token_of(shared, run)
    assert shared.get("/api/health", token=token, unix=unix).status_code == 200
    shared.post(f"/api/runs/{run['id']}/stop", {})
    assert shared.get("/api/health", token=token, unix=unix).status_code == 403
    shared.start_run("echo-args", token=token, unix=unix, expect=403)


def test_token_survives_a_restart_and_is_not_stored(server: Server) -> None:
    run = server.start_run("sleeper")
    token = token_of(server, run)
    server.kill()
    server.start()
    assert server.start_run("echo-args", token=token)["parent"] == run["id"]
    stored = b"".join(path.read_bytes() for path in server.home.glob("hocket.db*"))
    assert run["id"].encode() in stored
    assert token.partition(".")[2].encode() not in stored
