"""MCP over HTTP, one message per request, and the calls that runs make in their output.

Nothing is kept between requests. The requests of a call go through the same routes as all others, inside the process.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
from hocket.input_limits import whole
from hocket.mcp import protocol
from hocket.mcp.calls import CallContext, EventStep, ProgressStep, RequestStep, ToolRun, stream_ended
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
    return [post("/mcp", take, responses=_RESPONSES, takes_any=True)]


async def take(request: Request) -> Response:
    """Handle one message of the Model Context Protocol."""
    message = None
    stateless = request.headers.get("mcp-protocol-version") == protocol.STATELESS
    try:
        message = protocol.read(await request.body())
        _check_headers(request.headers, message)
    except ProtocolError as error:
        return _reply(protocol.failure(_id(message), error), stateless)
    found = protocol.respond(message)
    if not isinstance(found, ToolCall):
        return _reply(found, stateless)
    if found.token is not None and EVENTS in request.headers.get("accept", ""):
        return StreamingResponse(_streamed(request, found), media_type=EVENTS, headers={"Cache-Control": "no-store"})
    return _reply(await _last_message(request, found))


def _id(message: Any) -> Any:
    id = whole(message.get("id")) if isinstance(message, dict) else None
    return id if isinstance(id, int | str) and not isinstance(id, bool) else None


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


async def _streamed(request: Request, call: ToolCall) -> AsyncIterator[bytes]:
    """Progress, and finally the response. A client that disconnects ends the wait, and none of the work."""
    async for message in _messages(request, call, DEFAULT_WAIT, float("inf")):
        yield f"event: message\ndata: {json.dumps(message)}\n\n".encode()


async def _last_message(request: Request, call: ToolCall) -> Message | None:
    """The response to a call, for a client that gets no progress."""
    response: Message | None = None
    async for message in _messages(request, call, SILENT_WAIT, SILENT_WAIT):
        response = message
    return response


async def _messages(request: Request, call: ToolCall, default_wait: float, max_wait: float) -> AsyncIterator[Message]:
    caller = caller_of(request.scope)
    run, task = (caller.run.id, caller.run.task) if caller.run else (None, None)
    key = _key(request.headers.get("idempotency-key"), call)
    context = CallContext(run, task, default_wait=default_wait, max_wait=max_wait, key=key)
    async for message in _call_messages(request.app, caller, call, context):
        yield message


async def _call_messages(
    app: Starlette, caller: Principal, call: ToolCall, context: CallContext
) -> AsyncIterator[Message]:
    """Perform a call; yield its progress notifications, then its response."""
    tool = ToolRun(call, context)
    events: AsyncIterator[dict[str, Any] | None] | None = None
    try:
        value: dict[str, Any] | None
        while (step := tool.step) is not None:
            if isinstance(step, ProgressStep):
                if (progress := protocol.progress(call, step.text)) is not None:
                    yield progress
                tool.resume(None)
                continue
            try:
                if isinstance(step, RequestStep):
                    value = await _request(app, caller, step)
                else:
                    events = events or _followed(app.state.engine, step)
                    value = await _next_event(events)
            except HocketError as error:
                tool.fail(error)
            else:
                tool.resume(value)
        if tool.response is not None:
            yield tool.response
    except Exception:  # the client waits for a response
        log.exception("the call of %s failed", call.name)
        yield protocol.failure(call.id, ProtocolError(protocol.INTERNAL, "Internal error: see the log of the server"))


async def _next_event(events: AsyncIterator[dict[str, Any] | None]) -> dict[str, Any] | None:
    try:
        return await anext(events)
    except StopAsyncIteration:
        raise stream_ended() from None


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


def _key(given: str | None, call: ToolCall) -> str | None:
    """The idempotency key of a call, made of the key of its request."""
    return hashlib.sha256(f"{given}\0{call.name}\0{call.id}".encode()).hexdigest() if given else None


async def _followed(engine: Engine, step: EventStep) -> AsyncIterator[dict[str, Any] | None]:
    """The events of a run, with None when there is none for a while. The steps have requested the run before."""
    async for lines in engine.follow(engine.find(step.run), step.after, heartbeat=TICK_SECONDS):
        for line in lines:
            yield msgspec.json.decode(line.text)
        if not lines:
            yield None


async def _request(app: Starlette, caller: Principal, step: RequestStep) -> dict[str, Any]:
    """A request to this server in the name of the caller."""
    path, _, query = check_names(step.path).partition("?")
    body = b"" if step.body is None else json.dumps(step.body).encode()
    headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
    headers += [(b"content-type", b"application/json")] if body else []
    headers += [(b"idempotency-key", step.key.encode())] if step.key else []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": step.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "state": {"caller": caller},
    }
    exchange = _InternalExchange(body)
    await app(scope, exchange.receive, exchange.send)
    return exchange.content()


class _InternalExchange:
    """A request that stays inside the process, and its response."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 500
        self._pieces: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        if self._body is None:
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Mapping[str, Any]) -> None:
        self._status = message.get("status", self._status)
        self._pieces.append(message.get("body", b""))

    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(b"".join(self._pieces))
        if self._status < 400:
            return found
        error = found["error"]
        raise from_wire(error["code"], error["message"], error["hint"])
