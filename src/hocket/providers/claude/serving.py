"""What the program wants of an MCP server that is whoever drives it: it asks in its output, among everything else.

Nothing of that is told to people. The state remembers which calls of tools have been asked for and not come back, in a
few words each: what was asked stands in the output, and is read there again by a server that has to know.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hocket.providers.base import Said, State, Wanted
from hocket.providers.json_values import decoded, dict_in, text_in, with_newest

_SUBTYPE = "mcp_message"
_MESSAGE, _CANCEL = b'"mcp_message"', b'"control_cancel_request"'
"""One of them is in every line that is meant for us, and in hardly any other: a quote inside of a text is escaped."""
_HEAD = re.compile(r'"request_id":"([^"\\]+)".{0,100}"server_name":"([^"\\]*)"')
_TOOL = "claudecode/toolUseId"


def wanted(line: bytes) -> Wanted | None:
    """What a line wants of us. One that was cut, or is broken, still says whom the refusal is for."""
    if _MESSAGE not in line and _CANCEL not in line:
        return None
    value = decoded(line)
    if value is None:
        found = _HEAD.search(line.decode(errors="replace"))
        return Wanted(found[1], found[2], None) if found else None
    identity, kind = text_in(value, "request_id"), text_in(value, "type")
    if identity and kind == "control_cancel_request":
        return Wanted(identity, "", None, withdrawn=True)
    if not identity or kind != "control_request" or not is_wanted(value):
        return None
    request = dict_in(value, "request")
    return Wanted(identity, text_in(request, "server_name"), request.get("message"))


def is_wanted(line: dict[str, Any]) -> bool:
    return text_in(dict_in(line, "request"), "subtype") == _SUBTYPE


def noted(state: State, line: dict[str, Any]) -> list[Said]:
    """A call is kept in mind, and forgotten when it is called off."""
    message = dict_in(dict_in(line, "request"), "message")
    params, calls = dict_in(message, "params"), state.get("calls") or {}
    if text_in(message, "method") == "tools/call":
        call = {"id": message.get("id"), "tool": text_in(dict_in(params, "_meta"), _TOOL)}
        state["calls"] = with_newest(calls, text_in(line, "request_id"), call)
    elif text_in(message, "method") == "notifications/cancelled":
        _keep(state, lambda call: call["id"] != params.get("requestId"))
    return []


def withdrawn(state: State, identity: str) -> bool:
    """Whether it was a call that is no longer waited for."""
    calls = state.get("calls") or {}
    if identity not in calls:
        return False
    state["calls"] = {other: call for other, call in calls.items() if other != identity}
    return True


def settle(state: State, tool: str) -> None:
    """A tool that has ended waits for no answer."""
    _keep(state, lambda call: call["tool"] != tool)


def _keep(state: State, is_open: Any) -> None:
    if calls := state.get("calls"):
        state["calls"] = {request: call for request, call in calls.items() if is_open(call)}


def reply(wanted: str, message: Any) -> str:
    return _response({"subtype": "success", "request_id": wanted, "response": {"mcp_response": message}})


def refusal(wanted: str, why: str) -> str:
    return _response({"subtype": "error", "request_id": wanted, "error": why})


def _response(response: dict[str, Any]) -> str:
    """In letters that every program reads: a result may have half a character in it, and must not be held back."""
    return json.dumps({"type": "control_response", "response": response}, separators=(",", ":")) + "\n"
