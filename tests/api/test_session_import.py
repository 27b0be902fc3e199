"""Importing sessions over HTTP."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from api.serving import Server, token_of
from sessions.claude_home import ClaudeHome, start_process

PATH = "/api/runs/import"


@pytest.fixture
def claude(shared: Server) -> ClaudeHome:
    return ClaudeHome(shared.root / "user/.claude")


def assert_error(response: httpx.Response, status: int) -> None:
    assert (response.status_code, response.json()["error"]["message"] != "") == (status, True)


def test_import_answers_with_the_run(shared: Server, claude: ClaudeHome) -> None:
    session = claude.talk("go", "done")
    response = shared.post(PATH, {"session": session})
    run = response.json()["data"]
    assert (response.status_code, run["origin"], run["status"], run["result"]) == (201, "observed", "lost", "done")
    assert shared.get(f"/api/runs/{run['number']}").json()["data"]["id"] == run["id"]


def test_simultaneous_imports_give_one_run(shared: Server, claude: ClaudeHome) -> None:
    session = claude.talk("go", "done")
    with ThreadPoolExecutor(8) as threads:
        responses = list(threads.map(lambda _: shared.post(PATH, {"session": session}), range(8)))
    assert len({response.json()["data"]["id"] for response in responses}) == 1


def test_environment_of_the_caller_says_where_sessions_are(shared: Server) -> None:
    moved = ClaudeHome(shared.root / "moved")
    session = moved.talk("go", "done")
    assert_error(shared.post(PATH, {"session": session}), 404)
    run = shared.post(PATH, {"session": session, "env": {"CLAUDE_CONFIG_DIR": str(moved.root)}}).json()["data"]
    assert run["transcript"] == str(moved.path(session))


def test_run_cannot_import(shared: Server, claude: ClaudeHome) -> None:
    run = shared.start_run("sleeper")
    assert_error(shared.post(PATH, {"session": claude.talk("go", "done")}, token=token_of(shared, run)), 403)
    shared.post(f"/api/runs/{run['id']}/stop", {})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"session": ""},
        {"session": 5},
        {"session": "x" * 200},
        {"session": "../../x", "more": 1},
        {"session": "a\0b-----"},
    ],
)
def test_invalid_import_is_refused(shared: Server, body: dict[str, object]) -> None:
    assert_error(shared.post(PATH, body), 400)


@pytest.mark.parametrize("name", ["HOME", "CLAUDE_CONFIG_DIR"])
def test_place_with_nul_is_refused(shared: Server, name: str) -> None:
    env = {name: "/a\0b"}
    refused = shared.post(PATH, {"session": str(uuid.uuid4()), "env": env})
    assert_error(refused, 400)
    assert "must not contain NUL" in refused.text
    assert_error(shared.get("/api/runs", params={"observed": 1, "env": json.dumps(env)}), 400)
    assert_error(shared.post("/api/runs", {"agent": "sleeper", "cwd": str(shared.project), "env": env}), 400)


def test_unknown_session_is_not_found(shared: Server) -> None:
    for env in (None, {}, {"HOME": "relative"}, {"HOME": "/dev/null"}):
        assert_error(shared.post(PATH, {"session": str(uuid.uuid4()), "env": env}), 404)


def test_live_observed_run_gets_no_children(shared: Server, claude: ClaudeHome) -> None:
    session = claude.talk("go", "done")
    with start_process() as process:
        claude.live(session, process.pid)
        run = shared.post(PATH, {"session": session}).json()["data"]
        start = {"agent": "echo-args", "cwd": str(shared.project), "parent": run["id"]}
        refused = shared.post("/api/runs", start)
        process.kill()
    assert_error(refused, 409)
    assert "did not start run" in refused.text
