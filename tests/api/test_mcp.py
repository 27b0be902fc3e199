"""The MCP server over HTTP: the same guard, the same rules, and nothing kept between two requests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from api.serving import Server, token_of, wait_for
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from patience import PATIENCE
from scripted_claude import install_claude

from hocket.mcp import protocol
from hocket.mcp.tools import TOOLS

BOTH = {"accept": "application/json, text/event-stream"}


def message(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def post(server: Server, body: Any, **more: Any) -> httpx.Response:
    return server.post("/mcp", body, **more)


def call(server: Server, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    """The result of a call that is answered in one piece."""
    response = post(server, message("tools/call", {"name": name, "arguments": arguments or {}}), **more)
    assert response.status_code == 200, response.text
    return response.json()["result"]


def text_of(result: Any) -> str:
    return str(result["content"][0]["text"])


def stateless(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    meta = {protocol.VERSION_KEY: protocol.STATELESS, protocol.CAPABILITIES_KEY: {}}
    return message(method, {**(params or {}), "_meta": meta})


def headers(method: str, name: str | None = None, version: str = protocol.STATELESS) -> dict[str, str]:
    return {"mcp-protocol-version": version, "mcp-method": method, **({"mcp-name": name} if name else {})}


# --- Messages ---


def test_handshake_leaves_no_session(shared: Server) -> None:
    response = post(shared, message("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}}), headers=BOTH)
    assert response.json()["result"]["protocolVersion"] == "2025-06-18"
    assert "mcp-session-id" not in response.headers


def test_tools_are_listed_without_a_handshake(shared: Server) -> None:
    assert [tool["name"] for tool in post(shared, message("tools/list")).json()["result"]["tools"]] == list(TOOLS)


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/cancelled", "nope"])
def test_notification_is_accepted_without_response(shared: Server, method: str) -> None:
    response = post(shared, {"jsonrpc": "2.0", "method": method}, checked=False)
    assert (response.status_code, response.content) == (202, b"")


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_other_http_methods_are_refused(shared: Server, method: str) -> None:
    assert shared.request(method, "/mcp").status_code == 405


@pytest.mark.parametrize(
    ("raw", "code"),
    [(b"{", -32700), (b"\xff", -32700), (b"[" * 50_000, -32700), (b"7", -32600), (b"{}", -32600), (b"[]", -32600)],
    ids=["broken", "no text", "deep", "no object", "no message", "empty"],
)
def test_invalid_message_is_refused(shared: Server, raw: bytes, code: int) -> None:
    response = shared.request("POST", "/mcp", content=raw, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"], response.json()["id"]) == (400, code, None)


def test_older_protocol_reports_errors_with_200(shared: Server) -> None:
    """There a status of 404 would tell it that its session is over."""
    response = post(shared, message("nope"))
    assert (response.status_code, response.json()["error"]["code"]) == (200, protocol.METHOD_NOT_FOUND)


def test_batch_is_refused(shared: Server) -> None:
    response = post(shared, [message("ping", id="a")])
    assert (response.status_code, response.json()["error"]["code"]) == (400, protocol.INVALID_REQUEST)


def test_unknown_version_is_refused(shared: Server) -> None:
    response = post(shared, message("ping"), headers={"mcp-protocol-version": "2030-01-01"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, protocol.UNSUPPORTED_VERSION)


# --- The newer generation ---


def test_server_is_discovered(shared: Server) -> None:
    response = post(shared, stateless("server/discover"), headers=headers("server/discover"))
    assert (response.status_code, response.json()["result"]["resultType"]) == (200, "complete")


def test_unknown_method_is_not_found(shared: Server) -> None:
    response = post(shared, stateless("nope"), headers=headers("nope"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, protocol.METHOD_NOT_FOUND)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        headers("tools/list", "status"),
        headers("tools/call", "stop"),
        headers("tools/call"),
        headers("tools/call", "status", "2025-11-25"),
        headers("tools/call", "=?base64?!!?="),
    ],
)
def test_headers_that_differ_are_refused(shared: Server, sent: dict[str, str]) -> None:
    response = post(shared, stateless("tools/call", {"name": "status"}), headers=sent)
    assert (response.status_code, response.json()["error"]["code"]) == (400, protocol.HEADER_MISMATCH)


def test_header_may_be_base64(shared: Server) -> None:
    wrapped = f"=?base64?{base64.b64encode(b'status').decode()}?="
    response = post(shared, stateless("tools/call", {"name": "status"}), headers=headers("tools/call", wrapped))
    assert response.status_code == 200


def test_request_without_envelope_is_refused(shared: Server) -> None:
    response = post(shared, message("tools/list"), headers=headers("tools/list"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, protocol.INVALID_PARAMS)


# --- Who may ---


def test_request_without_token_is_refused(shared: Server) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{shared.port}") as client:
        assert client.post("/mcp", json=message("ping")).status_code == 401
        wrong = client.post("/mcp", json=message("ping"), headers={"authorization": "Bearer no"})
        assert wrong.status_code == 401


@pytest.mark.parametrize(
    "sent", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}]
)
def test_foreign_origin_is_refused(shared: Server, sent: dict[str, str]) -> None:
    assert post(shared, message("ping"), headers=sent).status_code == 403


def test_other_content_type_is_refused(shared: Server) -> None:
    assert shared.request("POST", "/mcp", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415


def test_run_sees_only_what_it_started(server: Server) -> None:
    server.configure('[agents.sleepy]\npath = "sleeper"\n')
    other = server.start_run("sleeper")
    mine = server.start_run("sleeper")
    token = token_of(server, mine)
    assert text_of(call(server, "status", token=token)) == "You have started no runs."
    made = call(server, "spawn", {"agent": "sleepy", "prompt": "x"}, token=token)
    child = made["_meta"]["hocket"]["run"]
    assert server.show(child)["parent"] == mine["id"]
    assert server.show(child)["cwd"] == mine["cwd"]
    assert child in text_of(call(server, "status", token=token))
    for name in ("status", "stop", "wait"):
        refused = call(server, name, {"run": other["id"]}, token=token)
        assert (refused["isError"], refused["structuredContent"]["reason"]) == (True, "forbidden")
    for name in ("stop", "wait"):
        refused = call(server, name, {"run": mine["id"]}, token=token)
        assert (refused["isError"], "your own run" in text_of(refused)) == (True, True)
    assert call(server, "stop", {"run": child}, token=token)["isError"] is False
    assert server.show(other["id"])["status"] == "running"


# --- Calls ---


@pytest.fixture
def gate(shared: Server) -> Iterator[Path]:
    path = shared.root / "gate"
    os.mkfifo(path)
    shared.agent("waiter", f"print('begun', flush=True); open({str(path)!r}).read(); print('final words')")
    yield path
    path.unlink()


def test_hand_off_returns_the_final_message(shared: Server) -> None:
    given = {"agent": "echo-args", "prompt": "it's $(done)", "cwd": str(shared.project)}
    result = call(shared, "hand_off", given)
    assert (result["isError"], text_of(result)) == (False, "it's $(done)\n")
    facts = result["_meta"]["hocket"]
    again = call(shared, "wait", {"handoff": facts["handoff"], "task": facts["task"]})
    assert (text_of(again), again["_meta"]["hocket"]) == (text_of(result), facts)


def test_hand_off_from_outside_needs_a_directory(shared: Server) -> None:
    refused = call(shared, "spawn", {"agent": "echo-args", "prompt": "x"})
    assert (refused["isError"], "working directory" in text_of(refused)) == (True, True)


def test_progress_stream_ends_with_the_response(shared: Server, gate: Path) -> None:
    params = {
        "name": "hand_off",
        "arguments": {"agent": "waiter", "prompt": "x", "cwd": str(shared.project)},
        "_meta": {"progressToken": "t"},
    }
    sent = {"authorization": f"Bearer {shared.token}", **BOTH}
    told: list[Any] = []
    url = f"http://127.0.0.1:{shared.port}/mcp"
    with httpx.stream("POST", url, json=message("tools/call", params), headers=sent, timeout=PATIENCE) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                told.append(json.loads(line[6:]))
                if len(told) == 1:
                    gate.write_text("")
    *progress, answer = told
    assert [one["method"] for one in progress] == ["notifications/progress"] * len(progress)
    assert progress[0]["params"]["progressToken"] == "t"
    assert text_of(answer["result"]) == "begun\nfinal words\n"


def test_disconnect_ends_the_wait_alone(shared: Server, gate: Path) -> None:
    run = shared.start_run("waiter")
    params = {"name": "wait", "arguments": {"run": run["id"]}, "_meta": {"progressToken": 1}}
    sent = {"authorization": f"Bearer {shared.token}", **BOTH}
    url = f"http://127.0.0.1:{shared.port}/mcp"
    with httpx.stream("POST", url, json=message("tools/call", params), headers=sent, timeout=PATIENCE) as response:
        assert next(response.iter_lines())
    gate.write_text("")
    assert shared.ended(run["id"])["result"] == "begun\nfinal words\n"
    assert text_of(call(shared, "wait", {"run": run["id"]})) == "begun\nfinal words\n"


def test_wait_that_times_out_names_the_run(shared: Server, gate: Path) -> None:
    given = {"agent": "waiter", "prompt": "x", "cwd": str(shared.project), "timeout": 0.2}
    result = call(shared, "hand_off", given)
    facts = result["structuredContent"]
    assert (result["isError"], facts["reason"]) == (True, "wait_timeout")
    gate.write_text("")
    assert text_of(call(shared, "wait", {"run": facts["run"]})) == "begun\nfinal words\n"


def test_repeated_key_makes_one_hand_off(shared: Server) -> None:
    before = shared.count()
    given = {"agent": "echo-args", "prompt": "once", "cwd": str(shared.project)}
    results = [call(shared, "hand_off", given, headers={"idempotency-key": "k1"}) for _ in range(3)]
    assert [text_of(result) for result in results] == ["once\n"] * 3
    assert shared.count() == before + 1


def test_agents_are_listed_with_descriptions(shared: Server) -> None:
    text = text_of(call(shared, "list_agents"))
    assert "planner: " in text
    assert text_of(call(shared, "list_agents", {"contains": "no such thing"})) == "No agent matches 'no such thing'."


def define(folder: Path, file: str, name: str = "", **more: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"name": name or file, "description": f"about {name or file}", **more}
    lines = "".join(f"{key}: {value}\n" for key, value in fields.items())
    (folder / f"{file}.md").write_text(f"---\n{lines}---\nWork.\n")


@pytest.fixture
def with_agents(server: Server) -> Server:
    """A server, and a project with agents from every kind of place that needs no installation."""
    install_claude(server.agent.folder)
    server.agent("tool", "print('said')")
    agents = server.project / ".claude/agents"
    define(agents, "builder")
    define(agents, "reviewer", "code reviewer")
    define(agents, "wild", permissionMode="bypassPermissions")
    define(agents, "lead", allowedAgents="[builder, claude]")
    define(server.root / "user/.claude/agents", "mine")
    aliases = '[agents.tooler]\npath = "tool"\n[agents."my tool"]\npath = "tool"\n[agents.smart]\npath = "claude"\n'
    (server.project / "hocket.toml").write_text(aliases)
    return server


SEEDED = {"developer", "developer-review", "orchestrator", "planner", "qa"}
OF_PROJECT = {"builder", "code-reviewer", "lead", "my-tool", "smart", "tooler", "wild"}


def listed(server: Server, arguments: dict[str, Any] | None = None, **more: Any) -> set[str]:
    """The agents that are listed, of which each has a line of text."""
    result = call(server, "list_agents", arguments, **more)
    names = result["_meta"]["hocket"]["agents"]
    assert [line.partition(" ")[0].rstrip(":") for line in text_of(result).splitlines()] == names
    return set(names)


def check_reach(server: Server, names: set[str], **more: Any) -> None:
    """Each listed agent can be handed to, except for the one that is said to be refused."""
    for name in names:
        plan = server.post("/api/plans", {"agent": name, "prompt": "x", "cwd": str(server.project)}, **more)
        assert plan.status_code == (403 if name == "wild" else 200), plan.text


def test_listed_agents_accept_a_hand_off(with_agents: Server) -> None:
    server, here = with_agents, {"cwd": str(with_agents.project)}
    assert listed(server) == {*SEEDED, "mine", "claude"}
    found = listed(server, here)
    assert found == {*SEEDED, *OF_PROJECT, "mine", "claude"}
    check_reach(server, found)
    text = text_of(call(server, "list_agents", here))
    assert "code-reviewer (code reviewer): about code reviewer" in text
    assert "wild: about wild (not approved: it will be refused)" in text
    given = {"agent": "code-reviewer", "prompt": "hello", **here}
    assert text_of(call(server, "hand_off", given)) == "you said: hello"


def test_run_lists_agents_it_can_start(with_agents: Server) -> None:
    server = with_agents
    token = token_of(server, server.start_run("sleeper"))
    found = listed(server, token=token)
    assert found == {*SEEDED, *OF_PROJECT, "mine", "claude"}
    check_reach(server, found, token=token)
    lead = server.start_run("lead", prompt="hello", session=True)
    token = token_of(server, lead)
    found = listed(server, token=token)
    assert found == {"builder", "claude"}
    check_reach(server, found, token=token)
    refused = server.post("/api/plans", {"agent": "mine", "prompt": "x"}, token=token)
    assert refused.status_code == 403
    builder = server.start_run("builder", prompt="hello", session=True)
    found = listed(server, token=token_of(server, builder))
    assert found == {*SEEDED, *OF_PROJECT, "mine", "claude"} - {"builder", "my-tool", "tooler"}


def test_untrusted_project_programs_are_not_listed(with_agents: Server) -> None:
    server = with_agents
    token = token_of(server, server.start_run("smart", prompt="hello", session=True))
    found = listed(server, token=token)
    assert found == {*SEEDED, *OF_PROJECT, "mine", "claude"} - {"my-tool", "tooler"}
    check_reach(server, found, token=token)
    refused = server.post("/api/plans", {"agent": "tooler", "prompt": "x"}, token=token)
    assert refused.status_code == 403


def test_run_lists_agents_of_its_task_directory(with_agents: Server, tmp_path: Path) -> None:
    server = with_agents
    task = server.post("/api/tasks", {"description": "x", "cwd": str(server.project)}).json()["data"]["id"]
    body = {"agentName": "sleeper", "prompt": "x", "cwd": str(tmp_path)}
    run = server.post(f"/api/tasks/{task}/handoff", body).json()["meta"]["run"]
    token = token_of(server, {"id": run})
    assert "builder" in listed(server, token=token)
    assert "builder" not in listed(server, {"cwd": str(tmp_path)}, token=token)


# --- Questions ---


def test_agent_asks_and_gets_the_answer(server: Server) -> None:
    mine = server.start_run("sleeper")
    token = token_of(server, mine)
    given = {"question": "Which one?", "options": ["left", "right"], "timeout": 0.2}
    asked = call(server, "ask", given, token=token)
    assert (asked["isError"], text_of(asked).startswith("timeout: not answered yet")) == (True, True)
    question = asked["structuredContent"]["question"]
    assert wait_for(lambda: server.show(mine["id"])["needs_you"], "the question")
    body = {"question": question, "allow": True, "text": "right"}
    assert server.post(f"/api/runs/{mine['id']}/answer", body).status_code == 200
    answered = call(server, "wait", {"question": question}, token=token)
    assert (answered["isError"], text_of(answered)) == (False, "right")


def test_denied_question_is_a_failure(server: Server) -> None:
    mine = server.start_run("sleeper")
    token = token_of(server, mine)
    asked = call(server, "ask", {"question": "May I?", "timeout": 0.2}, token=token)
    question = asked["structuredContent"]["question"]
    server.post(f"/api/runs/{mine['id']}/answer", {"question": question, "allow": False, "text": "not today"})
    denied = call(server, "wait", {"question": question}, token=token)
    assert (denied["isError"], text_of(denied)) == (True, "denied: not today")


# --- The official client ---


def talk(server: Server, mode: str, what: Callable[[Client], Awaitable[None]]) -> None:
    async def whole() -> None:
        url = f"http://127.0.0.1:{server.port}/mcp"
        sent = {"authorization": f"Bearer {server.token}"}
        async with (
            httpx2.AsyncClient(headers=sent, timeout=PATIENCE) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            await what(client)

    asyncio.run(whole())


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
def test_official_client_hands_work_over(shared: Server, gate: Path, mode: str, version: str) -> None:
    told: list[float] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)
        if len(told) == 1:
            await asyncio.to_thread(gate.write_text, "")

    async def what(client: Client) -> None:
        assert client.protocol_version == version
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)
        given = {"agent": "waiter", "prompt": "x", "cwd": str(shared.project)}
        result: Any = await client.call_tool("hand_off", given, progress_callback=heard)
        assert (result.is_error, result.content[0].text, told[0]) == (False, "begun\nfinal words\n", 1)

    talk(shared, mode, what)
