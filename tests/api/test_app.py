"""Every route, by its answers: shapes, statuses, and the description that the server gives of itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.serving import Server, wait_for
from api.test_fuzz import NOT_FUZZED, OPERATIONS

RUN_KEYS = {
    *("id", "number", "kind", "agent", "provider", "status", "reason", "parent", "root", "depth", "task", "cwd"),
    *("pid", "session_id", "transcript", "started_at", "ended_at", "exit_code", "result", "cost_usd", "tokens"),
    "needs_you",
}


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "hint"}
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found


# --- what works ---------------------------------------------------------------------------------------------


def test_started_run_has_all_keys(shared: Server) -> None:
    response = shared.post("/api/runs", {"agent": "echo-args", "prompt": "hi", "cwd": str(shared.project)})
    assert response.status_code == 201
    body = response.json()
    assert set(body) == {"data", "meta"}
    assert isinstance(body["meta"]["timestamp"], float)
    run = body["data"]
    assert set(run) >= RUN_KEYS
    assert (run["status"], run["kind"], run["parent"], run["depth"]) == ("starting", "leaf", None, 0)
    assert run["root"] == run["id"]
    ended = shared.ended(run["id"])
    assert (ended["status"], ended["exit_code"], ended["result"]) == ("done", 0, "hi\n")


@pytest.mark.parametrize("unix", [False, True])
def test_tcp_and_socket_show_the_same_runs(shared: Server, unix: bool) -> None:
    run = shared.start_run("echo-args", unix=unix)
    assert shared.get(f"/api/runs/{run['id']}", unix=not unix).json()["data"]["id"] == run["id"]


def test_run_is_shown_by_id_prefix_and_number(shared: Server) -> None:
    chain = shared.start_run("echo-args -> failing", dsl=True)
    ended = shared.ended(chain["id"])
    assert {shared.show(ref)["id"] for ref in (chain["id"], chain["id"][:9], chain["number"])} == {chain["id"]}
    assert [child["agent"] for child in ended["children"]] == ["echo-args", "failing"]
    assert set(ended["children"][0]) >= RUN_KEYS
    assert Path(ended["dir"]).is_relative_to(shared.home / "runs")
    assert [step["status"] for step in ended["steps"]] == ["done", "failed"]
    assert set(ended["steps"][0]) == {
        *("agent", "status", "reason", "iterations", "max_iterations", "exit_code", "runs"),
        *("cost_usd", "tokens"),
    }


def test_list_has_live_runs_or_all_runs(shared: Server) -> None:
    over = shared.ended(shared.start_run("echo-args")["id"])
    live = shared.start_run("sleeper")
    now = shared.get("/api/runs").json()["data"]
    assert live["id"] in {run["id"] for run in now}
    assert over["id"] not in {run["id"] for run in now}
    every = shared.get("/api/runs?all=true").json()["data"]
    assert [run["number"] for run in every] == sorted(run["number"] for run in every)
    assert {live["id"], over["id"]} <= {run["id"] for run in every}
    assert [run["id"] for run in shared.get("/api/runs?all=true&limit=1").json()["data"]] == [every[-1]["id"]]
    shared.post(f"/api/runs/{live['id']}/stop", {})


def test_each_run_is_on_one_page(shared: Server) -> None:
    started = [shared.ended(shared.start_run("echo-args")["id"])["id"] for _ in range(3)]
    pages: list[list[str]] = []
    top: str | None = ""
    while top is not None:
        told = shared.get(f"/api/runs?all=1&limit=2{top}").json()
        pages.append([run["id"] for run in told["data"]])
        top = None if told["meta"]["next"] is None else f"&before={told['meta']['next']}"
    assert {len(page) for page in pages[:-1]} == {2}
    every = [id for page in reversed(pages) for id in page]
    assert every == [run["id"] for run in shared.get("/api/runs?all=1&limit=10000").json()["data"]]
    assert every[-3:] == started
    assert shared.get("/api/runs?all=1&before=0").json()["data"] == []


def test_stop_responds_when_all_processes_ended(shared: Server) -> None:
    chain = shared.start_run("sleeper:2", dsl=True)
    wait_for(lambda: shared.show(chain["id"])["children"], "the loop")
    loop = shared.show(chain["id"])["children"][0]
    wait_for(lambda: shared.show(loop["id"])["children"], "the leaf")
    told = shared.post(f"/api/runs/{chain['id']}/stop", {}).json()["data"]
    assert (told["run"], told["status"], told["reason"]) == (chain["id"], "stopped", "stopped")
    assert told["survivors"] == []
    assert {shared.show(run)["status"] for run in told["stopped"]} == {"stopped"}
    assert len(told["stopped"]) == 3
    again = shared.post(f"/api/runs/{chain['id']}/stop", {}).json()["data"]
    assert (again["status"], again["stopped"]) == ("stopped", [])


def test_health_has_the_addresses_of_the_server(shared: Server) -> None:
    health = shared.get("/api/health").json()["data"]
    assert shared.process is not None
    assert health["pid"] == shared.process.pid
    assert health["home"] == str(shared.home)
    assert health["socket"] == shared.socket
    assert health["url"] == f"http://127.0.0.1:{shared.port}"
    assert Path(health["token_file"]).read_text().strip() == shared.token
    assert health["environment"] == {"PATH": shared.env["PATH"]}


def test_output_is_served_from_any_offset(shared: Server) -> None:
    shared.agent("noisy", "import os; os.write(1, bytes(range(256)) * 3000); os.write(2, b'\\xff\\0err')")
    run = shared.ended(shared.start_run("noisy")["id"])
    content = bytes(range(256)) * 3000
    path = f"/api/runs/{run['id']}/output"
    assert shared.get(path).content == content
    assert shared.get(f"{path}?offset=700000").content == content[700_000:]
    assert shared.get(f"{path}?offset=999999999").content == b""
    assert shared.get(f"{path}?stream=err").content == b"\xff\0err"
    assert shared.get(f"{path}?follow=1").content == content


def test_removed_output_is_not_found(shared: Server) -> None:
    run = shared.ended(shared.start_run("echo-args")["id"])
    Path(run["dir"], "out").unlink()
    gone = shared.get(f"/api/runs/{run['id']}/output")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
    assert "is missing" in gone.json()["error"]["message"]
    assert shared.get(f"/api/runs/{run['id']}/output?stream=err").content == b""


def test_start_uses_environment_and_arguments_of_the_caller(shared: Server) -> None:
    shared.agent("env", "import os, sys; print(os.environ.get('LANG'), os.environ.get('SECRET'), *sys.argv[1:])")
    path = shared.env["PATH"]
    run = shared.start_run("env", env={"PATH": path, "LANG": "xx", "SECRET": "no"}, args=["-x", "--y"], prompt="p")
    assert shared.ended(run["id"])["result"] == "xx None -x --y p\n"


def test_runs_survive_a_stop_of_the_server(server: Server) -> None:
    run = server.start_run("sleeper")
    response = server.post("/api/server/stop", {})
    assert response.status_code == 202
    assert server.process is not None
    assert response.json()["data"] == {"pid": server.process.pid}
    assert server.process.wait(10) == 0
    server.start()
    assert server.show(run["id"])["status"] in ("starting", "running")


# --- what does not ------------------------------------------------------------------------------------------

BAD_BODIES: dict[str, bytes] = {
    "no JSON": b"{",
    "no object": b"[]",
    "null": b"null",
    "empty": b"",
    "nothing to start": b"{}",
    "two things to start": b'{"agent":"a","dsl":"b","cwd":"/"}',
    "an unknown key": b'{"agent":"echo-args","cwd":"/","colour":"red"}',
    "a key of the wrong type": b'{"agent":7,"cwd":"/"}',
    "no directory": b'{"agent":"echo-args"}',
    "a directory that is not there": b'{"agent":"echo-args","cwd":"/no/such/place"}',
    "a relative directory": b'{"agent":"echo-args","cwd":"here"}',
    "a directory with a zero": b'{"agent":"echo-args","cwd":"/\\u0000"}',
    "an agent that is not there": b'{"agent":"no-such-program","cwd":"/"}',
    "an agent with a zero": b'{"agent":"a\\u0000b","cwd":"/"}',
    "an empty agent": b'{"agent":"","cwd":"/"}',
    "an agent that is a directory": b'{"agent":"/tmp","cwd":"/"}',
    "an agent that climbs": b'{"agent":"../../../etc/passwd","cwd":"/"}',
    "half a character": b'{"agent":"\\ud800","cwd":"/"}',
    "bytes that are no text": b'{"agent":"\xff","cwd":"/"}',
    "a chain with a hole": b'{"dsl":"a -> -> b","cwd":"/"}',
    "an endless loop": b'{"dsl":"echo-args:0","cwd":"/"}',
    "a chain that is not there": b'{"chain":"unknown","cwd":"/"}',
    "a negative time limit": b'{"agent":"echo-args","cwd":"/","timeout":-1}',
    "an infinite time limit": b'{"agent":"echo-args","cwd":"/","timeout":1e999}',
    "no number for a time limit": b'{"agent":"echo-args","cwd":"/","timeout":NaN}',
    "a prompt too long for an argument": b'{"agent":"echo-args","cwd":"/","prompt":"%s"}' % (b"x" * 70_000),
    "an argument with a zero": b'{"agent":"echo-args","cwd":"/","args":["\\u0000"]}',
    "a variable with a zero": b'{"agent":"echo-args","cwd":"/","env":{"LANG":"\\u0000","PATH":"/bin"}}',
    "an unknown way with questions": b'{"agent":"echo-args","cwd":"/","on_question":"perhaps"}',
    "a session of a program that reads no messages": b'{"agent":"echo-args","cwd":"/","session":true}',
    "a session of a chain": b'{"dsl":"echo-args","cwd":"/","session":true}',
    "a gate for a single agent": b'{"agent":"echo-args","cwd":"/","until":"true"}',
    "a negative budget": b'{"dsl":"echo-args","cwd":"/","budgetUsd":-1}',
    "no number for a budget": b'{"dsl":"echo-args","cwd":"/","budgetUsd":NaN}',
    "half a token": b'{"dsl":"echo-args","cwd":"/","budgetTokens":1.5}',
    "no silence at all": b'{"dsl":"echo-args","cwd":"/","idleTimeout":0}',
    "a loop's bound for a single agent": b'{"agent":"echo-args","cwd":"/","noProgress":2}',
    "an unknown way with what is lost": b'{"dsl":"echo-args","cwd":"/","onLost":"panic"}',
    "a marker of two lines": b'{"dsl":"echo-args:2","cwd":"/","marker":"a\\nb"}',
    "JSON a hundred thousand deep": b"[" * 100_000 + b"]" * 100_000,
    "an object a hundred thousand deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a number of a million digits": b'{"agent":' + b"9" * 1_000_000 + b"}",
}


@pytest.mark.parametrize("half", [b"\\ud800", b"\\uDFFF", b"\xed\xa0\x80"])
@pytest.mark.parametrize(
    ("method", "path", "body", "named"),
    [
        ("POST", "/api/runs", b'{"dsl":"echo-args","cwd":"/","prompt":"%s"}', "prompt"),
        ("POST", "/api/runs", b'{"dsl":"echo-args","cwd":"/","until":"test %s"}', "until"),
        ("POST", "/api/runs", b'{"dsl":"echo-args","cwd":"/","variables":{"A":"%s"}}', "variables.A"),
        ("POST", "/api/runs", b'{"dsl":"echo-args","cwd":"/","env":{"LANG":"%s"}}', "env.LANG"),
        ("POST", "/api/runs", b'{"agent":"echo-args","cwd":"/","args":["%s"]}', "args"),
        ("POST", "/api/tasks", b'{"description":"%s"}', "description"),
        ("POST", "/api/tasks", b'{"description":"x","source":{"sourceType":"%s"}}', "source.sourceType"),
        ("PUT", "/api/tasks/1/planning", b'{"plan":["%s"]}', "plan"),
        ("PUT", "/api/tasks/1/handoff/complete", b'{"output":"%s"}', "output"),
        ("POST", "/api/tasks/1/queue", b'{"agentName":"echo-args","prompt":"%s"}', "prompt"),
        ("POST", "/api/handoffs", b'{"agentName":"echo-args","cwd":"/","prompt":"%s"}', "prompt"),
        ("POST", "/api/runs/1/messages", b'{"text":"%s"}', "text"),
        ("POST", "/api/runs/1/answer", b'{"allow":true,"text":"%s"}', "text"),
    ],
)
def test_invalid_utf8_is_refused_everywhere(
    shared: Server, method: str, path: str, body: bytes, named: str, half: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    response = shared.request(method, path, content=body % (b"x" + half), headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{named} is not valid UTF-8")


def test_escaped_characters_are_kept(shared: Server) -> None:
    body = b'{"description":"\\ud83c\\udfb5 \xf0\x9f\x8e\xb5 \\\\ud800"}'
    made = shared.request("POST", "/api/tasks", content=body, headers={"Content-Type": "application/json"})
    assert made.json()["data"]["description"] == "🎵 🎵 \\ud800"


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=list(BAD_BODIES))
def test_impossible_start_leaves_no_run(shared: Server, body: bytes) -> None:
    before = shared.count()
    response = shared.request("POST", "/api/runs", content=body, headers={"content-type": "application/json"})
    error_of(response, 400)
    assert shared.count() == before


BAD_QUERIES = [
    *("/api/runs?limit=0", "/api/runs?limit=x", "/api/runs?limit=99999", "/api/runs?all=perhaps"),
    *("/api/runs?status=fine", "/api/runs?since=soon", "/api/runs?since=nan", "/api/runs?since=-1"),
    *("/api/runs?project=relative", "/api/runs?agent="),
    *("/api/runs/1/diff?text=all", "/api/runs/1/diff?columns=1"),
    *("/api/runs/1/output?offset=-1", f"/api/runs/1/output?offset={9**30}", "/api/runs/1/output?stream=in"),
    "/api/runs/1/events?follow=perhaps",
]


@pytest.mark.parametrize("path", BAD_QUERIES)
def test_invalid_query_is_refused(shared: Server, path: str) -> None:
    shared.start_run("echo-args")
    error_of(shared.get(path), 400)


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "", "9" * 30])
def test_invalid_cursor_is_refused(shared: Server, cursor: str) -> None:
    run = shared.start_run("echo-args")
    error_of(shared.get(f"/api/runs/{run['id']}/events", headers={"last-event-id": cursor}), 400)


REFS = ["runknown", "0", "999999", "9" * 30, "%00", "%2e%2e%2f", "a%2Fb", "%EF%BC%8F", "foo%0a", "--flag", "x" * 5000]


@pytest.mark.parametrize("ref", REFS)
def test_unknown_run_is_404_everywhere(shared: Server, ref: str) -> None:
    for method, path in [
        ("GET", f"/api/runs/{ref}"),
        ("GET", f"/api/runs/{ref}/events"),
        ("GET", f"/api/runs/{ref}/output"),
        ("GET", f"/api/runs/{ref}/diff"),
        ("GET", f"/api/runs/{ref}/evidence"),
        ("GET", f"/api/runs/{ref}/transcript"),
        ("POST", f"/api/runs/{ref}/stop"),
        ("POST", f"/api/runs/{ref}/messages"),
        ("POST", f"/api/runs/{ref}/answer"),
        ("POST", f"/api/runs/{ref}/resume"),
    ]:
        bodies: dict[str, dict[str, Any]] = {"messages": {"text": "x"}, "answer": {"allow": True}}
        error_of(shared.request(method, path, json=bodies.get(path.rpartition("/")[2], {})), 404)


def test_ambiguous_prefix_is_refused(shared: Server) -> None:
    shared.start_run("echo-args")
    shared.start_run("echo-args")
    assert error_of(shared.get("/api/runs/r"), 400)["code"] == "ambiguous_run"


ROUTES_TO_NOWHERE = ["/", "/api", "/api/", "/api/runs/", "/api/nothing", "/docs", "/redoc", "/api/runs/1/2/3"]


@pytest.mark.parametrize("path", ROUTES_TO_NOWHERE)
def test_unknown_route_is_404(shared: Server, path: str) -> None:
    assert error_of(shared.get(path), 404)["code"] == "not_found"


OTHER_METHODS = [("DELETE", "/api/runs"), ("PUT", "/api/runs/1"), ("GET", "/api/server/stop")]


@pytest.mark.parametrize(("method", "path"), OTHER_METHODS)
def test_other_method_is_405(shared: Server, method: str, path: str) -> None:
    error_of(shared.request(method, path, json={}), 405)


def test_conflict_with_state_of_run_is_409(shared: Server) -> None:
    over = shared.ended(shared.start_run("echo-args")["id"])
    live = shared.start_run("sleeper")
    error_of(shared.post(f"/api/runs/{over['id']}/messages", {"text": "hi"}), 409)
    error_of(shared.post(f"/api/runs/{live['id']}/messages", {"text": "hi"}), 409)
    before = shared.count()
    shared.start_run("echo-args", parent=over["id"], expect=409)
    assert shared.count() == before
    shared.post(f"/api/runs/{live['id']}/stop", {})


def test_exceeded_limit_is_409_and_named(server: Server) -> None:
    server.leave()
    server.configure("[limits]\ndepth = 1\nchildren = 2\n")
    server.start()
    top = server.start_run("sleeper")
    children = [server.start_run("sleeper", parent=top["id"]) for _ in range(2)]
    width = server.start_run("sleeper", parent=top["id"], expect=409)
    depth = server.start_run("sleeper", parent=children[0]["id"], expect=409)
    assert (width["code"], depth["code"]) == ("limit", "limit")
    assert "children" in width["message"]
    assert "depth" in depth["message"]
    assert server.count() == 3


def test_low_disk_is_507_while_live_runs_continue(server: Server) -> None:
    server.agent("at-door", "open('door').read(); print('through')")
    door = server.project / "door"
    os.mkfifo(door)
    run = server.start_run("at-door")
    wait_for(lambda: server.show(run["id"])["pid"], "its process")
    server.kill()
    server.configure("[limits]\nmin_free_mb = 900000000\n")
    server.start()
    refused = server.start_run("echo-args", expect=507)
    assert refused["code"] == "disk_low"
    assert "min_free_mb" in refused["hint"]
    door.write_text("")
    assert server.ended(run["id"])["result"] == "through\n"
    assert server.count() == 1


# --- the description ----------------------------------------------------------------------------------------


def test_openapi_lists_every_status_but_422(shared: Server) -> None:
    document = shared.get("/openapi.json", checked=False).json()
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert routes == {*OPERATIONS, *NOT_FUZZED}
    assert "422" not in json.dumps(document)
    for methods in document["paths"].values():
        for operation in methods.values():
            assert set(operation["responses"]) >= {"400", "401", "403", "404", "409", "413", "415", "507"}


def test_contract_check_detects_a_violation(shared: Server) -> None:
    """The helper that every test of this room relies on can fail."""
    assert shared.contract is not None
    for broken in (
        httpx.Response(200, json={"data": []}),
        httpx.Response(200, json={"data": [{"id": 1}], "meta": {"timestamp": 1}}),
        httpx.Response(418, json={}),
        httpx.Response(200, text="x"),
    ):
        with pytest.raises((AssertionError, ValueError)):
            shared.contract.check("GET", "/api/runs", broken)
