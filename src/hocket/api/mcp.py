"""The MCP server over HTTP, one message or batch for each request, and what carries out the calls of Claude runs.

Nothing is kept between two requests. The guard has looked at whoever asks, as it does for every route; a run that
asks in its own output is known by that. What a call asks of the server goes through the same
routes as everybody's requests, without leaving the process, so no rule has a second door.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hocket.api.guard import Caller, caller_of
from hocket.api.routing import Operation, post
from hocket.api.stream import EVENTS
from hocket.client import check_names
from hocket.engine import Engine
from hocket.errors import HocketError, from_wire
from hocket.input_limits import whole
from hocket.mcp import protocol
from hocket.mcp.calls import Ask, Me, Next, Outcome, Progress, broken_off, carry_out
from hocket.mcp.protocol import Call, Refused
from hocket.mcp.tools import DEFAULT_WAIT
from hocket.model import Run

if TYPE_CHECKING:
    from hocket.mcp.calls import Steps
    from hocket.mcp.protocol import Message

log = logging.getLogger("hocket")

TICK_SECONDS = 1.0
SILENT_WAIT = 50.0
"""A request that hears nothing meanwhile is given up by most clients after a minute; so it is answered before."""
MAX_BATCH = 50

_UNREADABLE = (
    *(protocol.PARSE_ERROR, protocol.INVALID_REQUEST),
    *(protocol.HEADER_MISMATCH, protocol.UNSUPPORTED_VERSION),
)
_ANY = {"application/json": {"schema": {"type": ["object", "array"]}}}
_RESPONSES: dict[int, dict[str, Any]] = {
    200: {"description": "The answer; a stream where progress is wanted", "content": {**_ANY, EVENTS: {}}},
    202: {"description": "Nothing is answered to a notification"},
    400: {"description": "The message cannot be understood", "content": _ANY},
    404: {"description": "There is no such method", "content": _ANY},
}


def operations() -> list[Operation]:
    return [post("/mcp", take, responses=_RESPONSES, takes_any=True)]


async def take(request: Request) -> Response:
    """The Model Context Protocol: a message in, its answer out."""
    message = None
    stateless = request.headers.get("mcp-protocol-version") == protocol.STATELESS
    try:
        message = protocol.read(await request.body())
        _check_headers(request.headers, message)
    except Refused as refused:
        return _reply(protocol.failure(_id(message), refused), stateless)
    if isinstance(message, list):
        return await _take_batch(request, message)
    answer = protocol.answer(message)
    if not isinstance(answer, Call):
        return _reply(answer, stateless)
    if answer.token is not None and EVENTS in request.headers.get("accept", ""):
        return StreamingResponse(_streamed(request, answer), media_type=EVENTS, headers={"Cache-Control": "no-store"})
    return _reply(await _carried_out(request, answer, SILENT_WAIT))


def _id(message: Any) -> Any:
    id = whole(message.get("id")) if isinstance(message, dict) else None
    return id if isinstance(id, int | str) and not isinstance(id, bool) else None


def _reply(answer: Message | list[Message] | None, stateless: bool = False) -> Response:
    if not answer:
        return Response(status_code=202)
    error = answer.get("error") if isinstance(answer, dict) else None
    return Response(
        json.dumps(answer), _status(error["code"], stateless) if error else 200, media_type="application/json"
    )


def _status(code: int, stateless: bool) -> int:
    """In the older age of the protocol a status tells of the transport: 404 would mean that a session is over."""
    if stateless and code != protocol.INTERNAL:
        return 404 if code == protocol.METHOD_NOT_FOUND else 400
    return 400 if code in _UNREADABLE else 200


# --- Headers ------------------------------------------------------------------------------------------------


def _check_headers(headers: Mapping[str, str], message: Any) -> None:
    """What the headers say must be known to us, and, in the newer age of the protocol, be what the message says."""
    version = headers.get("mcp-protocol-version")
    if version is not None and version not in (*protocol.HANDSHAKES, protocol.STATELESS):
        raise protocol.unsupported(version)
    if isinstance(message, list):
        if version not in (None, *protocol.BATCHING) or not 0 < len(message) <= MAX_BATCH:
            raise protocol.no_batch()
        return
    if not isinstance(message, dict) or "id" not in message:
        return
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    stated = meta.get(protocol.VERSION_KEY) if isinstance(meta, dict) else None
    if version != protocol.STATELESS and stated is None:
        return
    name = params.get("name") if isinstance(params, dict) and message.get("method") == "tools/call" else None
    for header, said in (("mcp-protocol-version", stated), ("mcp-method", message.get("method")), ("mcp-name", name)):
        if said is not None and _decoded(headers.get(header)) != said:
            raise Refused(protocol.HEADER_MISMATCH, f"The header {header} is not what the message says")
    if stated is None:
        raise Refused(protocol.INVALID_PARAMS, f"Invalid params: _meta has no {protocol.VERSION_KEY}")


def _decoded(value: str | None) -> str | None:
    """A header's value; what a header cannot hold is wrapped in base64."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    import base64
    import binascii

    try:
        return base64.b64decode(value[len("=?base64?") : -len("?=")], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


# --- Calls --------------------------------------------------------------------------------------------------


async def _take_batch(request: Request, messages: list[Any]) -> Response:
    answers = [protocol.answer(message) for message in messages]
    carried_out = await asyncio.gather(
        *(_carried_out(request, one, SILENT_WAIT) for one in answers if isinstance(one, Call))
    )
    at_once = [one for one in answers if one is not None and not isinstance(one, Call)]
    return _reply([*at_once, *(answer for answer in carried_out if answer is not None)])


async def _streamed(request: Request, call: Call) -> AsyncIterator[bytes]:
    """Progress, and at last the answer. Whoever hangs up ends the wait, and none of the work."""
    async for message in _messages(request, call, DEFAULT_WAIT):
        yield f"event: message\ndata: {json.dumps(message)}\n\n".encode()


async def _carried_out(request: Request, call: Call, longest: float) -> Message | None:
    """The last message of a call, which is its answer."""
    answer: Message | None = None
    async for message in _messages(request, call, longest):
        answer = message
    return answer


async def _messages(request: Request, call: Call, longest: float) -> AsyncIterator[Message]:
    run = caller_of(request.scope).run
    me = Me(
        run.id if run else None,
        run.task if run else None,
        longest=longest,
        most=SILENT_WAIT if longest == SILENT_WAIT else float("inf"),
        key=_key(request.headers.get("idempotency-key"), call),
    )
    async for message in _told(request.app, caller_of(request.scope), call, me):
        yield message


async def _told(app: Starlette, caller: Caller, call: Call, me: Me) -> AsyncIterator[Message]:
    try:
        async for one in _Steps(app, caller, call).run(carry_out(call.name, call.arguments, me)):
            if isinstance(one, Outcome):
                yield protocol.done(call, one.text, one.is_error, one.facts)
            elif (told := protocol.progress(call, one.text)) is not None:
                yield told
    except Exception:  # whatever it is, somebody waits for an answer
        log.exception("the call of %s failed", call.name)
        yield protocol.failure(call.id, Refused(protocol.INTERNAL, "Internal error; the server's log has more"))


def in_stream(app: Starlette) -> Callable[[Run, Call, str], Awaitable[Message]]:
    """Carries out what a run calls in its own output, with that run's rights and no others."""

    async def carried_out(run: Run, call: Call, key: str) -> Message:
        call.token = None  # The program shows nobody how a call is getting on, and waits without being told.
        answer = protocol.failure(call.id, Refused(protocol.INTERNAL, "Nobody waits for it any more"))
        async for message in _told(app, Caller(run), call, Me(run.id, run.task, key=key)):
            answer = message
        return answer

    return carried_out


def _key(given: str | None, call: Call) -> str | None:
    """A key of the caller's own is good for each call of a batch by itself."""
    return hashlib.sha256(f"{given}\0{call.name}\0{call.id}".encode()).hexdigest() if given else None


class _Steps:
    """Carries out the steps of one call inside the server."""

    def __init__(self, app: Starlette, caller: Caller, call: Call) -> None:
        self._app = app
        self._caller = caller
        self._call = call
        self._events: AsyncIterator[dict[str, Any] | None] | None = None

    async def run(self, steps: Steps) -> AsyncIterator[Progress | Outcome]:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Progress):
                    yield step
                    step = steps.send(None)
                    continue
                try:
                    value = await self._do(step)
                except HocketError as error:
                    step = steps.throw(error)
                    continue
                # What was asked for is done, whoever waits; but nobody is waited for in vain.
                if self._call.cancelled and value is None:
                    steps.close()
                    return
                step = steps.send(value)
        except StopIteration as end:
            yield end.value

    async def _do(self, step: Ask | Next) -> Any:
        if isinstance(step, Ask):
            return await _ask(self._app, self._caller, step)
        if self._events is None:
            self._events = _followed(self._app.state.engine, step)
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            raise broken_off() from None


async def _followed(engine: Engine, step: Next) -> AsyncIterator[dict[str, Any] | None]:
    """The events of a run that the steps have been let to look at; None when there is none for a while."""
    async for lines in engine.follow(engine.find(step.run), step.after, heartbeat=TICK_SECONDS):
        for line in lines:
            yield msgspec.json.decode(line.text)
        if not lines:
            yield None


async def _ask(app: Starlette, caller: Caller, step: Ask) -> dict[str, Any]:
    """A request to ourselves, on behalf of whoever called."""
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
    answer = _Answer(body)
    await app(scope, answer.receive, answer.send)
    return answer.content()


class _Answer:
    """Both ends of a request that never leaves the process."""

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
