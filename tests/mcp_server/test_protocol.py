"""Messages and responses of each kind, in both versions of the protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.mcp import protocol
from hocket.mcp.protocol import ProtocolError, ToolCall, call_result, cancelled, progress, read, respond
from hocket.mcp.tools import TOOLS

ENVELOPE = {protocol.VERSION_KEY: protocol.STATELESS, protocol.CAPABILITIES_KEY: {}}


def request(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def result(method: str, params: Any = None) -> Any:
    found = respond(request(method, params))
    assert isinstance(found, dict)
    return found["result"]


def code(message: Any) -> int:
    found = respond(message)
    assert isinstance(found, dict)
    assert found["jsonrpc"] == "2.0"
    return int(found["error"]["code"])


def call(**more: Any) -> ToolCall:
    found = respond(request("tools/call", {"name": "wait", "arguments": {"run": "1"}, **more}))
    assert isinstance(found, ToolCall)
    return found


# --- The older version ---


@pytest.mark.parametrize(
    ("wanted", "agreed"),
    [
        *((version, version) for version in protocol.HANDSHAKES),
        *(("2024-11-05", "2025-11-25"), ("2026-07-28", "2025-11-25")),
        *((None, "2025-11-25"), (7, "2025-11-25"), ([], "2025-11-25")),
    ],
)
def test_handshake_agrees_on_known_version(wanted: Any, agreed: str) -> None:
    found = result("initialize", {"protocolVersion": wanted, "capabilities": {}})
    assert (found["protocolVersion"], found["serverInfo"]["name"]) == (agreed, "hocket")
    assert found["capabilities"] == {"tools": {}}


def test_tools_are_listed_with_their_schemas() -> None:
    tools = result("tools/list")["tools"]
    assert [tool["name"] for tool in tools] == list(TOOLS)
    assert all(tool["inputSchema"]["type"] == "object" and tool["description"] for tool in tools)
    assert [tool["name"] for tool in tools if tool["annotations"]["readOnlyHint"]] == ["list_agents", "wait", "status"]


def test_list_of_tools_is_short() -> None:
    assert len(json.dumps(result("tools/list"))) < 6000


def test_ping_is_answered() -> None:
    assert result("ping") == {}


@pytest.mark.parametrize(
    "method", ["nope", "resources/list", "prompts/list", "logging/setLevel", "", "notifications/x"]
)
def test_unknown_method_is_refused(method: str) -> None:
    assert code(request(method)) == protocol.METHOD_NOT_FOUND


def test_tools_have_no_second_page() -> None:
    assert code(request("tools/list", {"cursor": "x"})) == protocol.INVALID_PARAMS


# --- Calls ---


def test_call_has_its_arguments() -> None:
    found = call(_meta={"progressToken": 0})
    assert (found.id, found.name, found.arguments, found.token, found.stateless) == (1, "wait", {"run": "1"}, 0, False)


def test_whole_float_counts_as_integer() -> None:
    assert respond({**request("ping", {}), "id": 7.0}) == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert call(_meta={"progressToken": 3.0}).token == 3
    assert cancelled({"method": "notifications/cancelled", "params": {"requestId": 7.0}}) == 7


@pytest.mark.parametrize("token", [None, True, 1.5, [], {}])
def test_invalid_progress_token_is_ignored(token: Any) -> None:
    assert call(_meta={"progressToken": token}).token is None


@pytest.mark.parametrize(
    "params",
    [
        {"name": "nope"},
        {"name": 7},
        {},
        None,
        {"name": "wait", "arguments": []},
        {"name": "wait", "arguments": "x"},
        [],
        "x",
        {"_meta": 5, "name": "wait"},
    ],
)
def test_invalid_call_is_refused(params: Any) -> None:
    assert code(request("tools/call", params)) == protocol.INVALID_PARAMS


def test_success_has_text_and_facts() -> None:
    """Claude shows its model the structured content in place of the text."""
    found = call_result(call(), "built", False, {"run": "r1"})["result"]
    assert found == {
        "content": [{"type": "text", "text": "built"}],
        "isError": False,
        "_meta": {"hocket": {"run": "r1"}},
    }


def test_failure_has_structured_content() -> None:
    found = call_result(call(), "failed (exit): no", True, {"status": "failed"})["result"]
    assert (found["isError"], found["structuredContent"]) == (True, {"status": "failed"})


def test_requested_progress_counts_up() -> None:
    wanted = call(_meta={"progressToken": "t"})
    found = [progress(wanted, text) for text in ("a", "b")]
    assert [one["params"] for one in found if one] == [
        {"progressToken": "t", "progress": 1, "message": "a"},
        {"progressToken": "t", "progress": 2, "message": "b"},
    ]
    assert all(one is not None and "id" not in one for one in found)
    assert progress(call(), "a") is None


# --- The newer version ---


def test_discovery_needs_no_handshake() -> None:
    found = result("server/discover", {"_meta": ENVELOPE})
    assert found["supportedVersions"][0] == "2026-07-28"
    assert (found["resultType"], found["capabilities"], found["cacheScope"]) == ("complete", {"tools": {}}, "public")
    assert found["_meta"][protocol.SERVER_KEY]["name"] == "hocket"


def test_newer_results_are_marked_complete() -> None:
    found = result("tools/list", {"_meta": ENVELOPE})
    assert (found["resultType"], found["ttlMs"] > 0) == ("complete", True)
    made = call_result(call(_meta=ENVELOPE), "x", False, {"run": "r1"})["result"]
    assert (made["resultType"], made["_meta"]["hocket"]) == ("complete", {"run": "r1"})
    assert protocol.SERVER_KEY in made["_meta"]


def test_unknown_version_is_refused_with_known_ones() -> None:
    found = respond(request("tools/list", {"_meta": ENVELOPE | {protocol.VERSION_KEY: "2030-01-01"}}))
    assert isinstance(found, dict)
    assert found["error"]["code"] == protocol.UNSUPPORTED_VERSION
    assert found["error"]["data"] == {
        "supported": ["2026-07-28", "2025-11-25", "2025-06-18"],
        "requested": "2030-01-01",
    }


@pytest.mark.parametrize(
    "meta",
    [{}, {protocol.VERSION_KEY: "2026-07-28"}, ENVELOPE | {protocol.VERSION_KEY: 7}, {protocol.CAPABILITIES_KEY: {}}],
)
def test_incomplete_envelope_is_refused(meta: Any) -> None:
    assert code(request("server/discover", {"_meta": meta})) == protocol.INVALID_PARAMS


def test_newer_protocol_has_no_handshake() -> None:
    assert code(request("initialize", {"_meta": ENVELOPE})) == protocol.METHOD_NOT_FOUND


# --- Notifications and invalid messages ---


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "stop", "arguments": {"run": "1"}}},
        {"jsonrpc": "2.0", "method": "nope"},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "id": 3, "result": {}},
        {"jsonrpc": "2.0", "id": 3, "error": {"code": 1, "message": "x"}},
    ],
)
def test_notification_gets_no_response(message: Any) -> None:
    assert respond(message) is None


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        "x",
        [],
        {},
        {"id": 1, "method": "ping"},
        {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": None, "method": "ping"},
        {"jsonrpc": "2.0", "id": True, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "ping"},
        {"jsonrpc": "2.0", "id": [], "method": "ping"},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "method": 7},
    ],
)
def test_invalid_message_is_refused(message: Any) -> None:
    assert code(message) == protocol.INVALID_REQUEST


@pytest.mark.parametrize(
    ("message", "id"),
    [
        ({"method": "notifications/cancelled", "params": {"requestId": "a"}}, "a"),
        ({"method": "notifications/cancelled", "params": {"requestId": 0}}, 0),
        ({"method": "notifications/cancelled", "params": {"requestId": []}}, None),
        ({"method": "notifications/cancelled"}, None),
        ({"method": "notifications/cancelled", "id": 1, "params": {"requestId": 0}}, None),
        ({"method": "notifications/other", "params": {"requestId": 0}}, None),
        ([], None),
    ],
)
def test_cancellation_names_a_request(message: Any, id: Any) -> None:
    assert cancelled(message) == id


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"nope", b'{"a":}', b"[" * 100_000, b'{"a": 1} {}'])
def test_invalid_json_is_a_parse_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        read(raw)
    assert refused.value.code == protocol.PARSE_ERROR


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
METHODS = ["ping", "tools/list", "tools/call", "initialize", "server/discover", "x"]
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": JSON,
        "method": st.sampled_from(METHODS) | JSON,
        "params": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(list(TOOLS)) | JSON, "arguments": JSON, "_meta": JSON, "cursor": JSON}
        )
        | JSON,
    },
)


@given(MESSAGES | JSON)
def test_any_message_gets_a_valid_response_or_none(message: Any) -> None:
    found = respond(message)
    cancelled(message)
    if isinstance(found, dict):
        assert found["jsonrpc"] == "2.0"
        assert ("result" in found) != ("error" in found)
        assert json.loads(json.dumps(found)) == found
