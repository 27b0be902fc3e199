"""Authentication and request checks, in one place for all connections, and what a caller may access.

The unix socket is protected by its file mode. The TCP port is reachable from every web page in the user's browser, so
Host, Origin and Sec-Fetch-Site are checked before the token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import cast

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hocket.api import wire
from hocket.api.routing import MAX_KEY
from hocket.engine import Engine
from hocket.errors import Forbidden, HocketError, TooLarge, Unauthorized, WrongMediaType
from hocket.model import Run

MAX_BODY = 16 * 1024 * 1024
_KEY = b"idempotency-key"
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_OWN_SITE = frozenset({"same-origin", "none"})

RunOfToken = Callable[[str], Run]


class Principal(Struct, frozen=True):
    """The authenticated sender of a request: the operator, or a run by its token."""

    run: Run | None = None


class AccessPolicy(Struct, frozen=True):
    """What a listening socket requires. ``hosts`` is None for the unix socket, which its file mode protects."""

    hosts: frozenset[str] | None
    token: str


def tcp_policy(port: int, token: str, *extra_hosts: str) -> AccessPolicy:
    names = ("127.0.0.1", "localhost", "[::1]", *extra_hosts)
    return AccessPolicy(frozenset(f"{name}:{port}" for name in names), token)


class Guard:
    """ASGI middleware that authenticates and checks every request."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, run_of_token: RunOfToken) -> None:
        self._app = app
        self._policy = policy
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
        _separate_keys(scope, caller)
        await self._app(scope, _bounded(receive), send)

    def _check(self, headers: dict[str, str]) -> Principal:
        hosts = self._policy.hosts
        if hosts is not None:
            _check_host(headers, hosts)
            _check_origin(headers, hosts)
        return self._check_token(headers.get("authorization"))

    def _check_token(self, header: str | None) -> Principal:
        if header is None:
            if self._policy.hosts is None:
                return Principal()
            raise Unauthorized("missing token", "Send `Authorization: Bearer …` with the content of the token file")
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer":
            raise Unauthorized("the Authorization header must use the Bearer scheme")
        if hmac.compare_digest(token.encode(), self._policy.token.encode()):
            return Principal()
        if "." in token:
            return Principal(self._run_of_token(token))
        raise Unauthorized("invalid token", "Use the content of this server's token file")


def _separate_keys(scope: Scope, caller: Principal) -> None:
    """Give each run its own Idempotency-Keys: guessing another run's key must not return that run's response."""
    if caller.run is not None:
        prefix = f"{caller.run.id}:".encode()
        scope["headers"] = [
            (name, prefix + hashlib.sha256(value).hexdigest().encode() if _is_key(name, value) else value)
            for name, value in scope["headers"]
        ]


def _is_key(name: bytes, value: bytes) -> bool:
    """True for a valid key; an invalid one stays as it is, and is refused later."""
    return name.lower() == _KEY and 0 < len(value) <= MAX_KEY


def _headers(scope: Scope) -> dict[str, str]:
    """Return headers by lower-case name; refuse a repeated header that the guard relies on."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "authorization", "content-type", "sec-fetch-site"):
            raise Forbidden(f"repeated header: {name}")
        found[name] = raw_value.decode("latin-1")
    return found


def _check_host(headers: dict[str, str], hosts: frozenset[str]) -> None:
    if headers.get("host", "").lower() not in hosts:
        raise Forbidden("Host not allowed", f"Use one of {', '.join(sorted(hosts))}")


def _check_origin(headers: dict[str, str], hosts: frozenset[str]) -> None:
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"http://{host}" for host in hosts}:
        raise Forbidden(f"Origin not allowed: {origin[:100]!r}")
    if headers.get("sec-fetch-site", "none").lower() not in _OWN_SITE:
        raise Forbidden("cross-site requests are not allowed")


def _check_body(headers: dict[str, str]) -> None:
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if not has_body and "content-type" not in headers:
        return
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongMediaType("the Content-Type of a body must be application/json")
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY:
        raise too_large()


def too_large() -> TooLarge:
    return TooLarge(f"the body is larger than {MAX_BODY // 1024**2} MB")


def _bounded(receive: Receive) -> Receive:
    """Count the bytes that arrive; Content-Length may be wrong."""
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


# --- For handlers -------------------------------------------------------------------------------------------


def caller_of(scope: Scope) -> Principal:
    """Return the sender of a request, as the guard has authenticated it."""
    return cast(Principal, scope["state"]["caller"])


def engine_of(request: Request) -> Engine:
    return cast(Engine, request.app.state.engine)


def run_named(request: Request, ref: str) -> Run:
    """Return the named run. A run may only access itself and its descendants."""
    engine = engine_of(request)
    run = engine.find(ref)
    if not reaches(engine, caller_of(request.scope).run, run):
        raise Forbidden("a run can access only itself and its descendants")
    return run


def sender_from_below(request: Request, ref: str) -> Run | None:
    """Return the calling run if the named run is one of its ancestors, to which it may send messages; else None."""
    caller, run = caller_of(request.scope).run, engine_of(request).find(ref)
    above = engine_of(request).above(caller)[1:] if caller is not None else []
    return caller if any(one.id == run.id for one in above) else None


def reaches(engine: Engine, caller: Run | None, run: Run) -> bool:
    """True if the caller, a run or the operator (None), may access a run."""
    return caller is None or any(one.id == caller.id for one in engine.above(run))


def require_operator(request: Request, action: str) -> None:
    if caller_of(request.scope).run is not None:
        raise Forbidden(f"only the operator can {action}")
