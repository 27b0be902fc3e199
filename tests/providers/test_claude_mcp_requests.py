"""Requests of the CLI to an MCP server in its streams: recognised, kept in the state, answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from providers.streams.recorded import assistant, init, line, read_all, result, system, text, tool_result

from hocket.providers.base import McpRequest
from hocket.providers.claude import mcp_requests

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def asks(request: str, message: Any, server: str = "hocket") -> bytes:
    inside = {"subtype": "mcp_message", "server_name": server, "message": message}
    return line("control_request", request_id=request, request=inside)


def calls(request: str, id: int, tool: str) -> bytes:
    params = {"name": "wait", "arguments": {}, "_meta": {"claudecode/toolUseId": tool}}
    return asks(request, {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


def cancels(request: str, id: int) -> bytes:
    return asks(request, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})


def test_message_for_server_is_recognised() -> None:
    assert mcp_requests.request(asks("q1", PING)) == McpRequest("q1", "hocket", PING)
    assert mcp_requests.request(asks("q1", PING, "theirs")) == McpRequest("q1", "theirs", PING)


def test_withdrawn_request_is_recognised() -> None:
    assert mcp_requests.request(line("control_cancel_request", request_id="q1")) == McpRequest(
        "q1", "", None, withdrawn=True
    )


def test_truncated_request_has_id_for_refusal() -> None:
    compact = json.dumps(json.loads(calls("q1", 1, "t")), separators=(",", ":")).encode()
    assert mcp_requests.request(compact[:-20]) == McpRequest("q1", "hocket", None)


@pytest.mark.parametrize(
    "other",
    [
        init(),
        assistant(text('{"type":"control_request","request":{"subtype":"mcp_message"}}')),
        line("control_request", request_id="q1", request={"subtype": "can_use_tool", "tool_name": "mcp_message"}),
        line("control_request", request={"subtype": "mcp_message", "message": PING}),
        b'{"mcp_message"',
        b'["mcp_message"]',
    ],
)
def test_other_lines_are_not_requests(other: bytes) -> None:
    assert mcp_requests.request(other) is None


@given(st.binary())
def test_malformed_requests_never_raise(rubbish: bytes) -> None:
    assert mcp_requests.request(b'{"mcp_message"' + rubbish) is None


def test_broken_line_with_invalid_bytes_can_be_refused() -> None:
    broken = b'{"request_id":"\xff","request":{"subtype":"mcp_message","server_name":"\xfe","message":{'
    assert mcp_requests.request(broken) == McpRequest("\ufffd", "\ufffd", None)


def test_mcp_requests_cause_no_events() -> None:
    lines = [asks("q1", PING), calls("q2", 2, "t"), cancels("q3", 2), line("control_cancel_request", request_id="q2")]
    assert read_all(lines[:3])[1] == []
    assert read_all([lines[1], lines[3]])[1] == []


@pytest.mark.parametrize(
    ("then", "left"),
    [
        ([], ["q1", "q2"]),
        ([asks("q9", PING)], ["q1", "q2"]),
        ([tool_result("tool1", "ok")], ["q2"]),
        ([cancels("q9", 2)], ["q1"]),
        ([line("control_cancel_request", request_id="q1")], ["q2"]),
        ([result()], []),
        ([system("task_started", task_id="a", task_type="local_agent", is_backgrounded=True), result()], ["q1", "q2"]),
    ],
    ids=["nothing", "another", "its end", "called off", "taken back", "the turn's end", "one in the background"],
)
def test_calls_are_pending_until_their_tools_end(then: list[bytes], left: list[str]) -> None:
    state, _said = read_all([init(), calls("q1", 1, "tool1"), calls("q2", 2, "tool2"), *then])
    assert list(state.get("calls") or {}) == left


def test_state_of_a_call_is_small() -> None:
    long = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"arguments": {"prompt": "x" * 100_000}}}
    state, _said = read_all([asks("q1", long)])
    assert len(json.dumps(state)) < 1000


def test_replies_and_refusals_name_their_request() -> None:
    half = {"jsonrpc": "2.0", "id": 1, "result": {"text": "half a \ud83d"}}
    said, refused = mcp_requests.reply("q1", half), mcp_requests.refusal("q2", "there is none")
    assert all(one.endswith("\n") and one.count("\n") == 1 and one.isascii() for one in (said, refused))
    assert json.loads(said) == {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": "q1", "response": {"mcp_response": half}},
    }
    assert json.loads(refused)["response"] == {"subtype": "error", "request_id": "q2", "error": "there is none"}
