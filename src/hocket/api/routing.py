"""Routes as declarations: the signature of a handler says what is read from a request, and is what OpenAPI shows.

A handler is ``async def show(request, ref, body, limit=100)``. Arguments named in the path are read from there as
text; ``body`` is a struct, optional if its default is None; all others are read from the query, or from a header if
they are marked so, and have a default.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hocket.api.validation_errors import body_error, value_error
from hocket.errors import UsageError
from hocket.input_limits import NOT_TEXT, odd_text, whole

Handler = Callable[..., Awaitable[Response]]


class Query(Struct, frozen=True):
    """Marks an argument that has another name in the query."""

    name: str


class Header(Struct, frozen=True):
    """Marks an argument that is read from a header."""

    name: str


MAX_KEY = 200
Key = Annotated[Annotated[str, Meta(min_length=1, max_length=MAX_KEY)] | None, Header("Idempotency-Key")]


class Operation(Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    returns: Any = None
    """The type of ``data`` in a success, or a tuple of alternatives; None if ``responses`` describes it."""
    status: int = 200
    about: Any = None
    """The type of ``meta`` in a success, if it is not ``ResponseMeta``."""
    instead: Mapping[str, Any] = MappingProxyType({})
    """Other contents of a success, by media type."""
    responses: Mapping[int, Mapping[str, Any]] = MappingProxyType({})
    """Other responses, as OpenAPI describes them."""
    takes_any: bool = False
    """The handler reads the body itself."""


get = partial(Operation, "GET")
post = partial(Operation, "POST")
put = partial(Operation, "PUT")
delete = partial(Operation, "DELETE")


def routes(operations: Iterable[Operation]) -> list[Route]:
    """Return one route for each path."""
    paths: dict[str, dict[str, Handler]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method] = _endpoint(one)
    return [_route(path, endpoints) for path, endpoints in paths.items()]


def _route(path: str, endpoints: Mapping[str, Handler]) -> Route:
    async def respond(request: Request) -> Response:
        return await endpoints[request.method](request)

    route = Route(path, respond, methods=list(endpoints))
    route.methods = set(endpoints)  # without the HEAD that starlette adds to every GET
    return route


def _endpoint(operation: Operation) -> Handler:
    handler, inputs = operation.handler, handler_inputs(operation)

    async def respond(request: Request) -> Response:
        given = {one.argument: one.read(request) for one in inputs.parameters}
        if inputs.body is not None:
            given["body"] = inputs.body.read(await request.body())
        return await handler(request, **given)

    return respond


# --- Inputs of a handler ------------------------------------------------------------------------------------


class Parameter(Struct, frozen=True):
    """A value in the path, the query or a header."""

    argument: str
    place: str
    """``path``, ``query`` or ``header``."""
    name: str
    type: Any
    default: Any

    def read(self, request: Request) -> Any:
        if self.place == "path":
            return request.path_params[self.argument]
        given: Mapping[str, str] = request.query_params if self.place == "query" else request.headers
        text = given.get(self.name)
        if text is None:
            return self.default
        try:
            return msgspec.convert(text, self.type, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(value_error(error, self.type, self.name)) from error


class RequestBody(Struct, frozen=True):
    """The struct that a body is decoded into."""

    type: Any
    optional: bool

    def read(self, content: bytes) -> Any:
        if not content:
            if self.optional:
                return None
            raise UsageError("the request needs a body")
        try:
            return msgspec.json.decode(content, type=self.type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._read_again(content, error)

    def _read_again(self, content: bytes, error: Exception) -> Any:
        """Accept 5.0 for an integer, as JSON Schema does; name a text that is not valid UTF-8."""
        try:
            plain = json.loads(content, parse_float=_number, parse_constant=_no_number)
            where = odd_text(plain)
        except (ValueError, RecursionError):
            raise UsageError(body_error(error, self.type)) from error
        if where is not None:
            raise UsageError(f"{where} {NOT_TEXT}") from error
        try:
            return msgspec.convert(plain, self.type)
        except msgspec.ValidationError as refused:
            raise UsageError(body_error(refused, self.type)) from refused


class HandlerInputs(Struct, frozen=True):
    """What a handler reads from a request."""

    parameters: list[Parameter]
    body: RequestBody | None


def handler_inputs(operation: Operation) -> HandlerInputs:
    hints = get_type_hints(operation.handler, include_extras=True)
    body = None
    parameters = []
    for argument in list(inspect.signature(operation.handler).parameters.values())[1:]:
        hint = hints[argument.name]
        if argument.name == "body":
            body = RequestBody(hint, argument.default is None)
        else:
            parameters.append(_parameter(argument, hint, operation.path))
    return HandlerInputs(parameters, body)


def _parameter(argument: inspect.Parameter, hint: Any, path: str) -> Parameter:
    if f"{{{argument.name}}}" in path:
        return Parameter(argument.name, "path", argument.name, hint, None)
    if argument.default is inspect.Parameter.empty:
        raise TypeError(f"{argument.name} of {path} needs a default")
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Query | Header)]
    place = "header" if any(isinstance(mark, Header) for mark in marks) else "query"
    return Parameter(argument.name, place, marks[0].name if marks else argument.name, hint, argument.default)


def _number(text: str) -> object:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is out of range")
    return whole(number)


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not JSON")
