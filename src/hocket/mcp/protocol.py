"""From a message to its answer: JSON-RPC and the Model Context Protocol, with no input or output of any kind.

Two ages of the protocol are spoken. In the older one a connection begins with ``initialize``; in the newer one every
request says for itself which version it is in, and nothing is remembered between two of them. Which of the two a
message is of can be told from the message alone, so nothing is remembered here either.
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

HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions that begin with ``initialize``, oldest first."""
STATELESS = "2026-07-28"
BATCHING = HANDSHAKES[:2]
"""Those in which several messages may come as one."""

MAX_MESSAGE = 16 * 1024 * 1024
"""In bytes: a prompt of the longest kind, and what JSON makes of it."""

_META = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY, SERVER_KEY = (
    f"{_META}protocolVersion",
    f"{_META}clientCapabilities",
    f"{_META}serverInfo",
)
FACTS_KEY = "hocket"
_SERVER = {"name": "hocket", "title": "Hocket", "version": __version__}
_CAPABILITIES: dict[str, Any] = {"tools": {}}
_UNCHANGING = {"ttlMs": 3_600_000, "cacheScope": "public"}
"""What is offered is the same for everybody, as long as the program is."""
INSTRUCTIONS = (
    "Hocket runs other agents for you. hand_off gives work to one and returns its final message alone; spawn starts "
    "one and comes back at once with a run, which wait, status, send and stop take. Work goes on whatever happens to a "
    "call: wait with the same run returns the same result. ask puts a question to the people you work for."
)


class Refused(Exception):
    """A message that gets an error of the protocol."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Call:
    """A tool that somebody wants to have called."""

    __slots__ = ("arguments", "cancelled", "id", "name", "progressed", "stateless", "token")

    def __init__(self, id: Any, name: str, arguments: dict[str, Any], token: Any, stateless: bool) -> None:
        self.id = id
        self.name = name
        self.arguments = arguments
        self.token = token
        """What its progress is told under; None when nobody wants to know."""
        self.stateless = stateless
        self.cancelled = False
        """Nobody waits for its answer any more."""
        self.progressed = 0


def read(raw: bytes) -> Any:
    """The JSON value of a message, or of several."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(PARSE_ERROR, "Parse error: this is no JSON text in UTF-8") from None


def answer(message: Any) -> Message | Call | None:
    """What one message gets: an answer at once, a call to be carried out, or nothing, as a notification does."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return failure(None, Refused(INVALID_REQUEST, "Invalid request: no JSON-RPC 2.0 message"))
    if "id" not in message or ("method" not in message and ("result" in message or "error" in message)):
        return None
    id = whole(message["id"])
    if isinstance(id, bool) or not isinstance(id, int | str):
        return failure(None, Refused(INVALID_REQUEST, "Invalid request: an id is a text or a whole number"))
    try:
        return _answered(id, message.get("method"), message.get("params"))
    except Refused as refused:
        return failure(id, refused)


def _answered(id: Any, method: Any, params: Any) -> Message | Call:
    if not isinstance(method, str):
        raise Refused(INVALID_REQUEST, "Invalid request: it has no method")
    given = {} if params is None else params
    meta = given.get("_meta", {}) if isinstance(given, dict) else None
    if not isinstance(meta, dict):
        raise Refused(INVALID_PARAMS, "Invalid params: they must be an object, and so must their _meta")
    stateless = VERSION_KEY in meta or method == "server/discover"
    if stateless:
        _check_envelope(meta)
    if method == "tools/call":
        return _called(id, given, meta, stateless)
    return success(id, _told(method, given, stateless), stateless)


def _check_envelope(meta: dict[str, Any]) -> None:
    """What a request of the newer age must say about itself."""
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise Refused(INVALID_PARAMS, f"Invalid params: _meta has no {' and no '.join(missing)}")
    wanted = meta[VERSION_KEY]
    if not isinstance(wanted, str) or not isinstance(meta[CAPABILITIES_KEY], dict):
        raise Refused(INVALID_PARAMS, "Invalid params: the version in _meta is no text, or the capabilities no object")
    if wanted != STATELESS:
        raise unsupported(wanted)


def unsupported(wanted: str) -> Refused:
    known = {"supported": [STATELESS, *reversed(HANDSHAKES)], "requested": wanted}
    return Refused(UNSUPPORTED_VERSION, f"Unsupported protocol version: {wanted[:40]!r}", known)


def _told(method: str, params: dict[str, Any], stateless: bool) -> dict[str, Any]:
    """The result of what needs nobody else."""
    if method == "tools/list":
        if params.get("cursor") is not None:
            raise Refused(INVALID_PARAMS, "Invalid params: there is only one page of tools")
        return {"tools": LISTED, **(_UNCHANGING if stateless else {})}
    if method == "ping":
        return {}
    about: dict[str, Any] = {"capabilities": _CAPABILITIES, "instructions": INSTRUCTIONS}
    if method == "server/discover":
        return {"supportedVersions": [STATELESS, *reversed(HANDSHAKES)], **about, **_UNCHANGING}
    if method == "initialize" and not stateless:
        wanted = params.get("protocolVersion")
        return {
            "protocolVersion": wanted if wanted in HANDSHAKES else HANDSHAKES[-1],
            "serverInfo": _SERVER,
            **about,
        }
    raise Refused(METHOD_NOT_FOUND, f"Method not found: {method[:80]}")


def _called(id: Any, params: dict[str, Any], meta: dict[str, Any], stateless: bool) -> Call:
    name, arguments = params.get("name"), params.get("arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Refused(INVALID_PARAMS, "Invalid params: a call has a name and an object with arguments")
    if name not in TOOLS:
        raise Refused(INVALID_PARAMS, f"Unknown tool: {name[:80]}")
    token = whole(meta.get("progressToken"))
    usable = isinstance(token, int | str) and not isinstance(token, bool)
    return Call(id, name, arguments, token if usable else None, stateless)


def cancelled(message: Any) -> Any:
    """The id of the request that a message calls off; None for every other message."""
    if not isinstance(message, dict) or message.get("method") != "notifications/cancelled" or "id" in message:
        return None
    params = message.get("params")
    id = whole(params.get("requestId")) if isinstance(params, dict) else None
    return id if isinstance(id, int | str) and not isinstance(id, bool) else None


def agreed(reply: Message) -> str | None:
    """The version that the answer to an ``initialize`` settles on; None for every other answer."""
    result = reply.get("result")
    found = result.get("protocolVersion") if isinstance(result, dict) else None
    return found if isinstance(found, str) else None


# --- Answers ------------------------------------------------------------------------------------------------


def success(id: Any, result: dict[str, Any], stateless: bool = False) -> Message:
    if stateless:
        result = {**result, "resultType": "complete", "_meta": {**result.get("_meta", {}), SERVER_KEY: _SERVER}}
    return {"jsonrpc": "2.0", "id": id, "result": result}


def failure(id: Any, refused: Refused) -> Message:
    error: dict[str, Any] = {"code": refused.code, "message": refused.message}
    if refused.data is not None:
        error["data"] = refused.data
    return {"jsonrpc": "2.0", "id": id, "error": error}


def done(call: Call, text: str, is_error: bool, facts: dict[str, Any]) -> Message:
    """The answer to a call: its text is for the model, the facts are for programs.

    Claude shows its model the structured content of a success and not its text, so there the facts only stand beside.
    """
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": is_error}
    result |= {"structuredContent": facts} if is_error else {}
    return success(call.id, {**result, "_meta": {FACTS_KEY: facts}}, call.stateless)


def progress(call: Call, text: str) -> Message | None:
    """How a call is getting on, where somebody wants to know."""
    if call.token is None:
        return None
    call.progressed += 1
    params = {"progressToken": call.token, "progress": call.progressed, "message": text}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def no_batch() -> Refused:
    return Refused(INVALID_REQUEST, "Invalid request: this version of the protocol has no batches")


def too_long() -> Refused:
    return Refused(INVALID_REQUEST, f"Invalid request: a message has at most {MAX_MESSAGE // 2**20} MB")
