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
from hocket.api.wire import ResponseMeta
from hocket.errors import UsageError
from hocket.input_limits import NOT_TEXT, odd_text, whole

Handler = Callable[..., Awaitable[Response]]


class ArgumentSource(Struct, frozen=True):
    """Where an argument is read from, and its name there; without one from the query, by its own name."""

    place: str
    """``path``, ``query`` or ``header``."""
    name: str


Query = partial(ArgumentSource, "query")
Header = partial(ArgumentSource, "header")
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
    meta: Any = ResponseMeta
    """The type of ``meta`` in a success."""
    instead: Mapping[str, Any] = MappingProxyType({})
    """Other contents of a success, by media type."""
    responses: Mapping[int, Mapping[str, Any]] = MappingProxyType({})
    """Other responses, as OpenAPI describes them."""
    takes_any: bool = False
    """The handler reads the body itself."""
    operation_id: str | None = None
    """The published name in OpenAPI; None for the name of the handler."""


def content(description: str, media_type: str) -> dict[int, dict[str, Any]]:
    """Return ``responses`` for a success that is not JSON."""
    return {200: {"description": description, "content": {media_type: {}}}}


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
    parameters, body = handler_inputs(operation)

    async def respond(request: Request) -> Response:
        given = {one.argument: one.read(request) for one in parameters}
        if body is not None:
            given["body"] = body.read(await request.body())
        return await operation.handler(request, **given)

    return respond


# --- Inputs of a handler ------------------------------------------------------------------------------------


class Parameter(Struct, frozen=True):
    """A value in the path, the query or a header."""

    argument: str
    source: ArgumentSource
    type: Any
    default: Any

    def read(self, request: Request) -> Any:
        place, name = self.source.place, self.source.name
        if place == "path":
            return request.path_params[name]
        given: Mapping[str, str] = request.query_params if place == "query" else request.headers
        text = given.get(name)
        if text is None:
            return self.default
        try:
            return msgspec.convert(text, self.type, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(value_error(error, self.type, name)) from error


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


def handler_inputs(operation: Operation) -> tuple[list[Parameter], RequestBody | None]:
    """Return what a handler reads from a request, as its signature says."""
    hints = get_type_hints(operation.handler, include_extras=True)
    parameters: list[Parameter] = []
    body = None
    for argument in list(inspect.signature(operation.handler).parameters.values())[1:]:
        name, hint, default = argument.name, hints[argument.name], argument.default
        if name == "body":
            body = RequestBody(hint, default is None)
        elif f"{{{name}}}" in operation.path:
            parameters.append(Parameter(name, ArgumentSource("path", name), hint, None))
        elif default is inspect.Parameter.empty:
            raise TypeError(f"{name} of {operation.path} needs a default")
        else:
            marks = (mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, ArgumentSource))
            parameters.append(Parameter(name, next(marks, Query(name)), hint, default))
    return parameters, body


def _number(text: str) -> object:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is out of range")
    return whole(number)


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not JSON")
