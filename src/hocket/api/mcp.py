"""MCP over HTTP, one message per request, and the calls that runs make in their output.

Nothing is kept between requests. The requests of a call go through the same routes as all others, inside the process.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hocket.api.guard import Principal, caller_of
from hocket.api.routing import Operation, post
from hocket.api.stream import EVENTS
from hocket.client import check_names
from hocket.engine import Engine
from hocket.errors import HocketError, from_wire
from hocket.mcp import protocol
from hocket.mcp.calls import CallContext, EventAction, ProgressAction, RequestAction, ToolRun, stream_ended
from hocket.mcp.protocol import Message, ProtocolError, ToolCall
from hocket.mcp.tools import DEFAULT_WAIT
from hocket.model import Run

log = logging.getLogger("hocket")

TICK_SECONDS = 1.0
SILENT_WAIT = 50.0
"""Longest wait of a request without progress: most clients give up after a minute of silence."""

_TRANSPORT_ERRORS = (
    *(protocol.PARSE_ERROR, protocol.INVALID_REQUEST),
    *(protocol.HEADER_MISMATCH, protocol.UNSUPPORTED_VERSION),
)
_ANY = {"application/json": {"schema": {"type": "object"}}}
_RESPONSES: dict[int, dict[str, Any]] = {
    200: {"description": "The response; a stream if the client wants progress", "content": {**_ANY, EVENTS: {}}},
    202: {"description": "Accepted; a notification has no response"},
    400: {"description": "Invalid message", "content": _ANY},
    404: {"description": "Unknown method", "content": _ANY},
}


def operations() -> list[Operation]:
    return [post("/mcp", handle_message, operation_id="take", responses=_RESPONSES, takes_any=True)]


async def handle_message(request: Request) -> Response:
    """Handle one message of the Model Context Protocol."""
    message = None
    stateless = request.headers.get("mcp-protocol-version") == protocol.STATELESS
    try:
        message = protocol.read(await request.body())
        _check_headers(request.headers, message)
    except ProtocolError as error:
        return _reply(protocol.failure(protocol.id_of(message), error), stateless)
    found = protocol.respond(message)
    if not isinstance(found, ToolCall):
        return _reply(found, stateless)
    wants_progress = found.token is not None and EVENTS in request.headers.get("accept", "")
    caller, key = caller_of(request.scope), request.headers.get("idempotency-key")
    longest = float("inf") if wants_progress else SILENT_WAIT
    context = CallContext(
        run=caller.run.id if caller.run else None,
        task=caller.run.task if caller.run else None,
        default_wait=min(DEFAULT_WAIT, longest),
        max_wait=longest,
        key=hashlib.sha256(f"{key}\0{found.name}\0{found.id}".encode()).hexdigest() if key else None,
    )
    messages = _call_messages(request.app, caller, found, context)
    if wants_progress:
        return StreamingResponse(_streamed(messages), media_type=EVENTS, headers={"Cache-Control": "no-store"})
    return _reply([message async for message in messages][-1])


async def _streamed(messages: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    """Progress, and finally the response. A client that disconnects ends the wait, and none of the work."""
    async for message in messages:
        yield f"event: message\ndata: {json.dumps(message)}\n\n".encode()


def _reply(message: Message | None, stateless: bool = False) -> Response:
    if message is None:
        return Response(status_code=202)
    error = message.get("error")
    status = _status(error["code"], stateless) if error else 200
    return Response(json.dumps(message), status, media_type="application/json")


def _status(code: int, stateless: bool) -> int:
    """The HTTP status for an error. In the older generation 404 would mean that a session has ended."""
    if stateless and code != protocol.INTERNAL:
        return 404 if code == protocol.METHOD_NOT_FOUND else 400
    return 400 if code in _TRANSPORT_ERRORS else 200


# --- Headers ------------------------------------------------------------------------------------------------


def _check_headers(headers: Mapping[str, str], message: Any) -> None:
    """Refuse an unknown version and, in the newer generation, headers that differ from the message."""
    version = headers.get("mcp-protocol-version")
    if version is not None and version not in protocol.VERSIONS:
        raise protocol.unsupported(version)
    if not isinstance(message, dict) or "id" not in message:
        return
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    stated = meta.get(protocol.VERSION_KEY) if isinstance(meta, dict) else None
    if version != protocol.STATELESS and stated is None:
        return
    name = params.get("name") if isinstance(params, dict) and message.get("method") == "tools/call" else None
    for header, value in (("mcp-protocol-version", stated), ("mcp-method", message.get("method")), ("mcp-name", name)):
        if value is not None and _decoded(headers.get(header)) != value:
            raise ProtocolError(protocol.HEADER_MISMATCH, f"The header {header} differs from the message")
    if stated is None:
        raise ProtocolError(protocol.INVALID_PARAMS, f"Invalid params: _meta has no {protocol.VERSION_KEY}")


def _decoded(value: str | None) -> str | None:
    """The value of a header, which is wrapped in base64 where a header cannot hold it."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[len("=?base64?") : -len("?=")], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


# --- Calls --------------------------------------------------------------------------------------------------


async def _call_messages(
    app: Starlette, caller: Principal, call: ToolCall, context: CallContext
) -> AsyncIterator[Message]:
    """Perform a call; yield its progress notifications, then its response."""
    tool = ToolRun(call, context)
    events: AsyncIterator[dict[str, Any] | None] | None = None
    try:
        value: dict[str, Any] | None
        while (action := tool.action) is not None:
            if isinstance(action, ProgressAction):
                if (progress := protocol.progress(call, action.text)) is not None:
                    yield progress
                tool.resume(None)
                continue
            try:
                if isinstance(action, RequestAction):
                    value = await _request(app, caller, action)
                else:
                    events = events or _followed(app.state.engine, action)
                    value = await anext(events)
            except HocketError as error:
                tool.fail(error)
            else:
                tool.resume(value)
        if tool.response is not None:
            yield tool.response
    except Exception:  # the client waits for a response
        log.exception("the call of %s failed", call.name)
        yield protocol.failure(call.id, ProtocolError(protocol.INTERNAL, "Internal error: see the log of the server"))


def in_stream(app: Starlette) -> Callable[[Run, ToolCall, str], Awaitable[Message]]:
    """A function that performs the calls of a run in its own output, with the rights of that run."""

    async def perform(run: Run, call: ToolCall, key: str) -> Message:
        call.token = None  # the CLI neither shows progress nor needs it to keep waiting
        response = protocol.failure(call.id, ProtocolError(protocol.INTERNAL, "The call was cancelled"))
        context = CallContext(run.id, run.task, key=key)
        async for message in _call_messages(app, Principal(run), call, context):
            response = message
        return response

    return perform


async def _followed(engine: Engine, action: EventAction) -> AsyncIterator[dict[str, Any] | None]:
    """The events of a run, with None when there is none for a while. The actions have requested the run before."""
    async for lines in engine.follow(engine.find(action.run), action.after, heartbeat=TICK_SECONDS):
        for line in lines:
            yield msgspec.json.decode(line.text)
        if not lines:
            yield None
    raise stream_ended()


async def _request(app: Starlette, caller: Principal, action: RequestAction) -> dict[str, Any]:
    """A request to this server in the name of the caller."""
    path, _, query = check_names(action.path).partition("?")
    body = b"" if action.body is None else json.dumps(action.body).encode()
    headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
    headers += [(b"content-type", b"application/json")] if body else []
    headers += [(b"idempotency-key", action.key.encode())] if action.key else []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": action.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "state": {"caller": caller},
    }
    responded: list[Mapping[str, Any]] = []
    requested: Iterator[dict[str, Any]] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(requested, {"type": "http.disconnect"})

    async def send(message: Mapping[str, Any]) -> None:
        responded.append(message)

    await app(scope, receive, send)
    found: dict[str, Any] = msgspec.json.decode(b"".join(message.get("body", b"") for message in responded))
    if responded[0]["status"] < 400:
        return found
    error = found["error"]
    raise from_wire(error["code"], error["message"], error["hint"])
