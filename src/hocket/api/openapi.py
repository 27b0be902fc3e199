"""``/openapi.json``: an OpenAPI 3.1 document, generated from the declared operations."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hocket import __version__
from hocket.api import wire, wire_tasks
from hocket.api.routing import Operation, Parameter, RequestBody, handler_inputs
from hocket.workflows import request as requests

_ERRORS = {
    "400": "Invalid request",
    "401": "The token is missing or wrong",
    "403": "Host, Origin or scope not allowed",
    "404": "Not found",
    "409": "Conflict with the current state, or a limit",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "500": "Internal server error",
    "507": "Too little free disk space",
    "default": "Any other error",
}

Schemas = Mapping[Any, dict[str, Any]]
"""Schemas by type."""


def route(operations: Iterable[Operation]) -> Route:
    """Return the route of the document, which is generated with the first request."""
    declared = list(operations)
    encoded = cache(lambda: msgspec.json.encode(document(declared)))

    async def show(request: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    return Route("/openapi.json", show)


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    declared = [(one, *handler_inputs(one)) for one in operations]
    types = list(dict.fromkeys([wire.ErrorResponse, *(kind for one in declared for kind in _types(*one))]))
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(types, found, strict=True))
    _add_notes(components)
    paths: dict[str, dict[str, Any]] = {}
    for one, parameters, body in declared:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, parameters, body, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hocket", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(operation: Operation, parameters: list[Parameter], body: RequestBody | None) -> Iterable[Any]:
    yield from (one.type for one in parameters)
    if body is not None:
        yield body.type
    if operation.returns is not None:
        yield from (operation.meta, *_data(operation))


def _data(operation: Operation) -> tuple[Any, ...]:
    return operation.returns if isinstance(operation.returns, tuple) else (operation.returns,)


def _operation(
    operation: Operation, parameters: list[Parameter], body: RequestBody | None, schemas: Schemas
) -> dict[str, Any]:
    text = inspect.getdoc(operation.handler) or ""
    found: dict[str, Any] = {
        "operationId": operation.operation_id or operation.handler.__name__,
        "summary": text.partition("\n")[0],
        "description": text,
        "parameters": [_parameter(one, schemas) for one in parameters],
        "responses": _responses(operation, schemas),
    }
    if operation.takes_any:
        found["requestBody"] = {"required": True, "content": _json({"type": "object"})}
    elif body is not None:
        found["requestBody"] = {"required": not body.optional, "content": _json(schemas[body.type])}
    return found


def _parameter(parameter: Parameter, schemas: Schemas) -> dict[str, Any]:
    place, default = parameter.source.place, parameter.default
    schema = schemas[parameter.type] | ({} if default is None else {"default": default})
    return {"name": parameter.source.name, "in": place, "required": place == "path", "schema": schema}


def _responses(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    success = {} if operation.returns is None else {str(operation.status): _success(operation, schemas)}
    failures = {
        status: {"description": text, "content": _json(schemas[wire.ErrorResponse])} for status, text in _ERRORS.items()
    }
    return success | failures | {str(status): response for status, response in operation.responses.items()}


_LOCATION = {"Location": {"description": "The run, if the response is its events", "schema": {"type": "string"}}}


def _success(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    kinds = [schemas[kind] for kind in _data(operation)]
    parts = {"data": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}, "meta": schemas[operation.meta]}
    return {
        "description": "Success",
        **({"headers": _LOCATION} if operation.instead else {}),
        "content": _json({"type": "object", "properties": parts, "required": list(parts)}) | dict(operation.instead),
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


# --- Descriptions of fields ---------------------------------------------------------------------------------


def _add_notes(components: Mapping[str, Any]) -> None:
    """Add the docstrings under the fields of structs, which only their source has."""
    notes = _notes(wire) | _notes(wire_tasks) | _notes(requests)
    for name, struct in (vars(wire) | vars(wire_tasks)).items():
        if name not in components or not issubclass(struct, msgspec.Struct):
            continue
        described = components[name]["properties"]
        for field, called in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
            found = (notes.get(base.__name__, {}).get(field) for base in struct.__mro__)
            if note := next((one for one in found if one), None):
                described[called]["description"] = note


def _notes(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return the docstrings by class and field; empty if the source is not installed."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except OSError:
        return {}
    return {node.name: dict(_fields(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(field.target, ast.Name):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(below.value))
