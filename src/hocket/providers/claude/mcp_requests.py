"""Requests of the Claude CLI to an MCP server inside its stream: in its output, answered in its input.

They cause no events. The state remembers ids of tool calls without a result; a server that takes the run over
reads the requests again in the output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from hocket.providers.base import McpRequest, State
from hocket.providers.output_lines import decoded, dict_in, text_in, with_newest

_SUBTYPE = "mcp_message"
_MESSAGE, _CANCEL = b'"mcp_message"', b'"control_cancel_request"'
"""One of them is in every request, and in hardly any other line: a quote inside of a text is escaped."""
_HEAD = re.compile(r'"request_id":"([^"\\]+)".{0,100}"server_name":"([^"\\]*)"')
_TOOL = "claudecode/toolUseId"


def request(line: bytes) -> McpRequest | None:
    """The request in a line. One that was truncated or is broken still has an id, for the refusal."""
    if _MESSAGE not in line and _CANCEL not in line:
        return None
    value = decoded(line)
    if value is None:
        found = _HEAD.search(line.decode(errors="replace"))
        return McpRequest(found[1], found[2], None) if found else None
    identity, kind = text_in(value, "request_id"), text_in(value, "type")
    if identity and kind == "control_cancel_request":
        return McpRequest(identity, "", None, withdrawn=True)
    if not identity or kind != "control_request" or not is_request(value):
        return None
    content = dict_in(value, "request")
    return McpRequest(identity, text_in(content, "server_name"), content.get("message"))


def is_request(line: dict[str, Any]) -> bool:
    return text_in(dict_in(line, "request"), "subtype") == _SUBTYPE


def note(state: State, line: dict[str, Any]) -> None:
    """Remember a tool call, or forget one that is cancelled."""
    message = dict_in(dict_in(line, "request"), "message")
    params = dict_in(message, "params")
    if text_in(message, "method") == "tools/call":
        call = {"id": message.get("id"), "tool": text_in(dict_in(params, "_meta"), _TOOL)}
        state["calls"] = with_newest(state.get("calls") or {}, text_in(line, "request_id"), call)
    elif text_in(message, "method") == "notifications/cancelled":
        _keep(state, lambda request, call: call["id"] != params.get("requestId"))


def withdraw(state: State, identity: str) -> bool:
    """Forget the call with this id; False if there is none."""
    known = identity in pending(state)
    _keep(state, lambda request, call: request != identity)
    return known


def settle(state: State, tool: str) -> None:
    """Forget the call of a tool that has ended."""
    _keep(state, lambda request, call: call["tool"] != tool)


def pending(state: State) -> Collection[str]:
    return state.get("calls") or ()


def _keep(state: State, is_open: Callable[[str, dict[str, Any]], bool]) -> None:
    if calls := state.get("calls"):
        state["calls"] = {request: call for request, call in calls.items() if is_open(request, call)}


def reply(request: str, message: Any) -> str:
    return _response({"subtype": "success", "request_id": request, "response": {"mcp_response": message}})


def refusal(request: str, reason: str) -> str:
    return _response({"subtype": "error", "request_id": request, "error": reason})


def _response(response: dict[str, Any]) -> str:
    """In ASCII: a result may contain a lone surrogate, and must be delivered all the same."""
    return json.dumps({"type": "control_response", "response": response}, separators=(",", ":")) + "\n"
