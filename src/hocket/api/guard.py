"""Who may come in: one place, for every kind of connection, before any handler sees a byte.

Two doors lead to the same app. The unix socket is guarded by its file mode. The TCP port is reachable by every web
page that the user's browser shows, so there the Host, the Origin and the browser's own word on where a request comes
from are checked before the token is even looked at.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import cast

from msgspec import Struct
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hocket.api import wire
from hocket.api.routing import MAX_KEY
from hocket.errors import Forbidden, HocketError, TooLarge, Unauthorized, WrongMediaType
from hocket.model import Run

MAX_BODY = 16 * 1024 * 1024
_KEY = b"idempotency-key"
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_OWN_SITE = frozenset({"same-origin", "none"})

RunOfToken = Callable[[str], Run]


class Caller(Struct, frozen=True):
    """Who asks: the operator, or a run by its capability."""

    run: Run | None = None


class Door(Struct, frozen=True):
    """What one listening socket demands. ``hosts`` is ``None`` for the unix socket, where the file mode is the key."""

    hosts: frozenset[str] | None
    token: str


def tcp_door(port: int, token: str, *extra_hosts: str) -> Door:
    names = ("127.0.0.1", "localhost", "[::1]", *extra_hosts)
    return Door(frozenset(f"{name}:{port}" for name in names), token)


class Guard:
    """The ASGI middleware in front of everything."""

    def __init__(self, app: ASGIApp, door: Door, run_of_token: RunOfToken) -> None:
        self._app = app
        self._door = door
        self._run_of_token = run_of_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        try:
            headers = _headers(scope)
            caller = self._check(headers)
            if scope["type"] == "http" and scope["method"] in _BODY_METHODS:
                _check_body(headers)
        except HocketError as error:
            await _refuse(scope, receive, send, error)
            return
        scope.setdefault("state", {})["caller"] = caller
        _set_apart(scope, caller)
        await self._app(scope, _bounded(receive), send)

    def _check(self, headers: dict[str, str]) -> Caller:
        hosts = self._door.hosts
        if hosts is not None:
            _check_host(headers, hosts)
            _check_origin(headers, hosts)
        return self._check_token(headers.get("authorization"))

    def _check_token(self, header: str | None) -> Caller:
        if header is None:
            if self._door.hosts is None:
                return Caller()
            raise Unauthorized("a token is needed", "Send `Authorization: Bearer …` with the content of the token file")
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer":
            raise Unauthorized("the Authorization header must be of the Bearer kind")
        if hmac.compare_digest(token.encode(), self._door.token.encode()):
            return Caller()
        if "." in token:
            return Caller(self._run_of_token(token))
        raise Unauthorized("that is not the token of this server")


def _set_apart(scope: Scope, caller: Caller) -> None:
    """An Idempotency-Key is its caller's own: whoever guesses another one's must not be given what that one got."""
    if caller.run is not None:
        mark = f"{caller.run.id}:".encode()
        scope["headers"] = [
            (name, mark + hashlib.sha256(value).hexdigest().encode() if _is_key(name, value) else value)
            for name, value in scope["headers"]
        ]


def _is_key(name: bytes, value: bytes) -> bool:
    """One that is no key stays as it is, and is refused."""
    return name.lower() == _KEY and 0 < len(value) <= MAX_KEY


def _headers(scope: Scope) -> dict[str, str]:
    """One value a name: what is said twice cannot be trusted either time."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "authorization", "content-type", "sec-fetch-site"):
            raise Forbidden(f"the header {name} came twice")
        found[name] = raw_value.decode("latin-1")
    return found


def _check_host(headers: dict[str, str], hosts: frozenset[str]) -> None:
    if headers.get("host", "").lower() not in hosts:
        raise Forbidden("this Host is not served here", f"Use one of {', '.join(sorted(hosts))}")


def _check_origin(headers: dict[str, str], hosts: frozenset[str]) -> None:
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"http://{host}" for host in hosts}:
        raise Forbidden("requests from that Origin are not served")
    if headers.get("sec-fetch-site", "none").lower() not in _OWN_SITE:
        raise Forbidden("requests from another site are not served")


def _check_body(headers: dict[str, str]) -> None:
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if not has_body and "content-type" not in headers:
        return
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongMediaType("bodies must be application/json")
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY:
        raise too_large()


def too_large() -> TooLarge:
    return TooLarge(f"the body is over {MAX_BODY // 1024**2} MB")


def _bounded(receive: Receive) -> Receive:
    """The length that a client announces is only its word; what comes is counted."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise too_large()
        return message

    return counted


async def _refuse(scope: Scope, receive: Receive, send: Send, error: HocketError) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": error.message[:100]})
        return
    response: Response = wire.error_response(error)
    await response(scope, receive, send)


def caller_of(scope: Scope) -> Caller:
    """Who is asking, as the guard found out."""
    return cast(Caller, scope["state"]["caller"])
