"""JSON-RPC and the Model Context Protocol: from a message to its response, without input or output.

Two generations of the protocol are spoken. In the older one a connection begins with ``initialize``; in the newer one
every request carries its version, and nothing is kept between requests. A message shows which one it belongs to, so
nothing is kept here either.
"""

from __future__ import annotations

import json
from typing import Any

from hocket import __version__
from hocket.input_limits import whole
from hocket.mcp.tools import LISTED, TOOLS

Message = dict[str, Any]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022

HANDSHAKES = ("2025-06-18", "2025-11-25")
"""The versions that begin with ``initialize``, oldest first."""
STATELESS = "2026-07-28"
VERSIONS = (STATELESS, *reversed(HANDSHAKES))

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes: the longest prompt, escaped as JSON."""

_META = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY, SERVER_KEY = (
    f"{_META}{key}" for key in ("protocolVersion", "clientCapabilities", "serverInfo")
)
FACTS_KEY = "hocket"
_SERVER = {"name": "hocket", "title": "Hocket", "version": __version__}
_CAPABILITIES: dict[str, Any] = {"tools": {}}
_CACHEABLE = {"ttlMs": 3_600_000, "cacheScope": "public"}
"""What is offered depends on the version of the program alone."""
INSTRUCTIONS = (
    "Hocket runs other agents for you. hand_off gives work to one and returns its final message alone; spawn starts "
    "one and returns at once with a run, which wait, status, send and stop take. Work continues even if a call is "
    "interrupted: wait with the same run returns the same result. ask puts a question to the people you work for."
)


class ProtocolError(Exception):
    """A message that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class ToolCall:
    """A request to call a tool."""

    __slots__ = ("arguments", "cancelled", "id", "name", "progressed", "stateless", "token")

    def __init__(self, id: Any, name: str, arguments: dict[str, Any], token: Any, stateless: bool) -> None:
        self.id = id
        self.name = name
        self.arguments = arguments
        self.token = token
        """Identifies its progress notifications; None if the client wants none."""
        self.stateless = stateless
        self.cancelled = False
        """The client does not wait for the response any more."""
        self.progressed = 0


def read(raw: bytes) -> Any:
    """The JSON value of a message."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise ProtocolError(PARSE_ERROR, "Parse error: not JSON in UTF-8") from None


def id_of(value: Any, name: str = "id") -> int | str | None:
    """The integer or string of this name; None if there is none."""
    id = whole(value.get(name)) if isinstance(value, dict) else None
    return id if isinstance(id, int | str) and not isinstance(id, bool) else None


def respond(message: Any) -> Message | ToolCall | None:
    """The response to a message, or the call that it asks for. None for a notification, which has no response."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return failure(None, ProtocolError(INVALID_REQUEST, "Invalid request: not a JSON-RPC 2.0 message"))
    if "id" not in message or ("method" not in message and ("result" in message or "error" in message)):
        return None
    id = id_of(message)
    if id is None:
        return failure(None, ProtocolError(INVALID_REQUEST, "Invalid request: id must be a string or an integer"))
    try:
        return _respond(id, message.get("method"), message.get("params"))
    except ProtocolError as error:
        return failure(id, error)


def _respond(id: Any, method: Any, params: Any) -> Message | ToolCall:
    if not isinstance(method, str):
        raise ProtocolError(INVALID_REQUEST, "Invalid request: method must be a string")
    given = {} if params is None else params
    meta = given.get("_meta", {}) if isinstance(given, dict) else None
    if not isinstance(meta, dict):
        raise ProtocolError(INVALID_PARAMS, "Invalid params: params and _meta must be objects")
    stateless = VERSION_KEY in meta or method == "server/discover"
    if stateless:
        _check_envelope(meta)
    if method == "tools/call":
        return _tool_call(id, given, meta, stateless)
    return success(id, _result(method, given, stateless), stateless)


def _check_envelope(meta: dict[str, Any]) -> None:
    """Refuse a request of the newer generation without a version and capabilities that are known."""
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise ProtocolError(INVALID_PARAMS, f"Invalid params: _meta has no {' and no '.join(missing)}")
    wanted = meta[VERSION_KEY]
    if not isinstance(wanted, str) or not isinstance(meta[CAPABILITIES_KEY], dict):
        raise ProtocolError(
            INVALID_PARAMS, f"Invalid params: {VERSION_KEY} must be a string and {CAPABILITIES_KEY} an object"
        )
    if wanted != STATELESS:
        raise unsupported(wanted)


def unsupported(wanted: str) -> ProtocolError:
    """The error for a version that is not spoken here."""
    known = {"supported": list(VERSIONS), "requested": wanted}
    return ProtocolError(UNSUPPORTED_VERSION, f"Unsupported protocol version: {wanted[:40]!r}", known)


def _result(method: str, params: dict[str, Any], stateless: bool) -> dict[str, Any]:
    """The result of a method that needs no server."""
    if method == "tools/list":
        if params.get("cursor") is not None:
            raise ProtocolError(INVALID_PARAMS, "Invalid params: the list of tools has one page")
        return {"tools": LISTED, **(_CACHEABLE if stateless else {})}
    if method == "ping":
        return {}
    about: dict[str, Any] = {"capabilities": _CAPABILITIES, "instructions": INSTRUCTIONS}
    if method == "server/discover":
        return {"supportedVersions": list(VERSIONS), **about, **_CACHEABLE}
    if method == "initialize" and not stateless:
        wanted = params.get("protocolVersion")
        version = wanted if wanted in HANDSHAKES else HANDSHAKES[-1]
        return {"protocolVersion": version, "serverInfo": _SERVER, **about}
    raise ProtocolError(METHOD_NOT_FOUND, f"Method not found: {method[:80]}")


def _tool_call(id: Any, params: dict[str, Any], meta: dict[str, Any], stateless: bool) -> ToolCall:
    name, arguments = params.get("name"), params.get("arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ProtocolError(INVALID_PARAMS, "Invalid params: name must be a string and arguments an object")
    if name not in TOOLS:
        raise ProtocolError(INVALID_PARAMS, f"Unknown tool: {name[:80]}")
    return ToolCall(id, name, arguments, id_of(meta, "progressToken"), stateless)


def cancelled(message: Any) -> Any:
    """The id of the request that a message cancels; None for every other message."""
    if not isinstance(message, dict) or message.get("method") != "notifications/cancelled" or "id" in message:
        return None
    return id_of(message.get("params"), "requestId")


# --- Responses ----------------------------------------------------------------------------------------------


def success(id: Any, result: dict[str, Any], stateless: bool = False) -> Message:
    """The response with a result."""
    if stateless:
        result = {**result, "resultType": "complete", "_meta": {**result.get("_meta", {}), SERVER_KEY: _SERVER}}
    return {"jsonrpc": "2.0", "id": id, "result": result}


def failure(id: Any, error: ProtocolError) -> Message:
    """The response with an error."""
    details: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        details["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": details}


def call_result(call: ToolCall, text: str, is_error: bool, facts: dict[str, Any]) -> Message:
    """The response to a call: text for the model, facts for programs.

    Some CLIs show their model the structured content of a success instead of the text, so a success has its facts in
    ``_meta`` alone.
    """
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": is_error}
    result |= {"structuredContent": facts} if is_error else {}
    return success(call.id, {**result, "_meta": {FACTS_KEY: facts}}, call.stateless)


def progress(call: ToolCall, text: str) -> Message | None:
    """A progress notification; None if the client wants none."""
    if call.token is None:
        return None
    call.progressed += 1
    params = {"progressToken": call.token, "progress": call.progressed, "message": text}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def too_long() -> ProtocolError:
    """The error for a message of more than MAX_MESSAGE bytes."""
    return ProtocolError(INVALID_REQUEST, f"Invalid request: a message may have at most {MAX_MESSAGE // 2**20} MB")
