"""Routes as declarations: a handler's signature is how a request is taken apart, and how it is described.

A handler is ``async def show(request, ref, body, limit=100)``. An argument that the path names is taken from there, as
text; ``body`` is a struct, or one or None where it may be left out; every other one is of the query unless it is marked
as a header's, and has a default. No route stands here, and nothing about answers but what they are made of.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hocket.api.validation_errors import NO_BODY, body_objection, objection
from hocket.errors import UsageError
from hocket.input_limits import NOT_TEXT, odd_text, whole

Handler = Callable[..., Awaitable[Response]]


class Query(Struct, frozen=True):
    """Marks an argument that the query calls by another name."""

    name: str


class Header(Struct, frozen=True):
    """Marks an argument that comes in a header."""

    name: str


MAX_KEY = 200
Key = Annotated[Annotated[str, Meta(min_length=1, max_length=MAX_KEY)] | None, Header("Idempotency-Key")]


class Operation(Struct, frozen=True):
    """What one method does at one path."""

    method: str
    path: str
    handler: Handler
    returns: Any = None
    """The type of a success's ``data``, or several of which one fits; None where ``responses`` says more."""
    status: int = 200
    about: Any = None
    """The type of a success's ``meta`` where that says more than usual."""
    instead: Mapping[str, Any] = MappingProxyType({})
    """What else a success may be made of, by its media type."""
    responses: Mapping[int, Mapping[str, Any]] = MappingProxyType({})
    """What else it answers, in the words of the description."""
    takes_any: bool = False
    """Whether the handler reads the body by itself."""


def get(path: str, handler: Handler, returns: Any = None, **more: Any) -> Operation:
    return Operation("GET", path, handler, returns, **more)


def post(path: str, handler: Handler, returns: Any = None, **more: Any) -> Operation:
    return Operation("POST", path, handler, returns, **more)


def put(path: str, handler: Handler, returns: Any = None, **more: Any) -> Operation:
    return Operation("PUT", path, handler, returns, **more)


def delete(path: str, handler: Handler, returns: Any = None, **more: Any) -> Operation:
    return Operation("DELETE", path, handler, returns, **more)


def routes(operations: Iterable[Operation]) -> list[Route]:
    """One for each path, in the order of the first operation there."""
    paths: dict[str, dict[str, _Taker]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method] = _taker(one)
    return [_route(path, takers) for path, takers in paths.items()]


def _route(path: str, takers: dict[str, _Taker]) -> Route:
    route = Route(path, _Endpoint(takers), methods=list(takers))
    route.methods = set(takers)  # Without the HEAD that comes with every GET: we have none.
    return route


# --- What a handler takes -----------------------------------------------------------------------------------


class Parameter(Struct, frozen=True):
    """Something small that a request says."""

    argument: str
    place: str
    """``path``, ``query`` or ``header``."""
    name: str
    type: Any
    default: Any
    value: Callable[[str], Any] = str
    """What its text says."""

    def read(self, request: Request) -> Any:
        if self.place == "path":
            return request.path_params[self.argument]
        given: Mapping[str, str] = request.query_params if self.place == "query" else request.headers
        text = given.get(self.name)
        return self.default if text is None else self._checked(text)

    def _checked(self, text: str) -> Any:
        try:
            return msgspec.convert(self.value(text), self.type)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.name}: {objection(str(error), self.type)[1]}") from error
        except ValueError as error:
            raise UsageError(f"{self.name}: {error}") from error


class Body(Struct, frozen=True):
    """The struct that a body is read into."""

    type: Any
    may_be_missing: bool

    def read(self, content: bytes) -> Any:
        if not content:
            if self.may_be_missing:
                return None
            raise UsageError(NO_BODY)
        if _HALF.search(content):
            _check_text(content)
        try:
            return self._decoded(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(body_objection(error, self.type)) from error

    def _decoded(self, content: bytes) -> Any:
        """What is refused is looked at once more with 5.0 as 5: the library takes a decimal number for no whole one."""
        try:
            return msgspec.json.decode(content, type=self.type)
        except msgspec.ValidationError as error:
            try:
                plain = json.loads(content.decode(), parse_float=_number, parse_constant=_no_number)
            except (ValueError, RecursionError):
                raise error from None
            return msgspec.convert(plain, self.type)


class Taken(Struct, frozen=True):
    """All that a handler takes of a request."""

    parameters: list[Parameter]
    body: Body | None


def taken(operation: Operation) -> Taken:
    hints = get_type_hints(operation.handler, include_extras=True)
    body = None
    parameters = []
    for argument in list(inspect.signature(operation.handler).parameters.values())[1:]:
        hint = hints[argument.name]
        if argument.name == "body":
            body = Body(hint, argument.default is None)
        else:
            parameters.append(_parameter(argument, hint, operation.path))
    return Taken(parameters, body)


def _parameter(argument: inspect.Parameter, hint: Any, path: str) -> Parameter:
    if f"{{{argument.name}}}" in path:
        return Parameter(argument.name, "path", argument.name, hint, None)
    if argument.default is inspect.Parameter.empty:
        raise TypeError(f"{argument.name} of {path} is not always said, so it needs a default")
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Query | Header)]
    place = "header" if any(isinstance(mark, Header) for mark in marks) else "query"
    name = marks[0].name if marks else argument.name
    return Parameter(argument.name, place, name, hint, argument.default, _READERS.get(_kind(hint), str))


# --- Taking it ----------------------------------------------------------------------------------------------

_Taker = Callable[[Request], Awaitable[Response]]


def _taker(operation: Operation) -> _Taker:
    handler, takes = operation.handler, taken(operation)

    async def take(request: Request) -> Response:
        given = {one.argument: one.read(request) for one in takes.parameters}
        if takes.body is not None:
            given["body"] = takes.body.read(await request.body())
        return await handler(request, **given)

    return take


class _Endpoint:
    """All that is answered at one path. The framework's own kind of it looks for errors a second time."""

    def __init__(self, takers: Mapping[str, _Taker]) -> None:
        self._takers = takers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._takers[scope["method"]](Request(scope, receive, send))
        await response(scope, receive, send)


_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""How JSON spells half of a character. Most bodies have none, so that nothing in them needs to be looked at."""


def _check_text(content: bytes) -> None:
    """Names the text that could not be kept; whatever else is wrong with the body is found out later."""
    try:
        where = odd_text(json.loads(content))
    except (ValueError, RecursionError):
        return
    if where:
        raise UsageError(f"{where} {NOT_TEXT}")


def _number(text: str) -> object:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is out of range")
    return whole(number)


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def _kind(hint: Any) -> Any:
    """What it is without marks, constraints and None."""
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    some = [one for one in get_args(hint) if one is not NoneType]
    return _kind(some[0]) if len(some) == 1 else hint


_WHOLE = re.compile("-?[0-9]{1,4000}")


def _whole(text: str) -> int:
    """Digits alone: Python would also take blanks, a plus and underscores between them."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")


def _decimal(text: str) -> float:
    """A plain decimal number: Python would also take exponents, blanks and words such as ``nan``."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("must be a number")
    return float(text)


_YES = frozenset({"1", "true", "t", "yes", "y", "on"})
_NO = frozenset({"0", "false", "f", "no", "n", "off"})


def _boolean(text: str) -> bool:
    word = text.lower()
    if word not in _YES | _NO:
        raise ValueError("must be true or false")
    return word in _YES


_READERS: dict[Any, Callable[[str], Any]] = {int: _whole, float: _decimal, bool: _boolean}
