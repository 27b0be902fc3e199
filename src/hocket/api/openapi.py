"""``/openapi.json``: the same declarations that requests are taken apart by, told to programs that read OpenAPI 3.1."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hocket import __version__
from hocket.api import wire, wire_tasks
from hocket.api.routing import Operation, Parameter, Taken, taken
from hocket.workflows import request as requests

_REFUSALS = {
    "400": "The request cannot be understood",
    "401": "The token is missing or wrong",
    "403": "A Host, an Origin or a scope that is not served",
    "404": "There is no such run or agent",
    "409": "The run's state, or a limit, forbids it",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "500": "A fault of the server's own",
    "507": "Too little free disk",
    "default": "Any other failure",
}

Schemas = Mapping[Any, dict[str, Any]]
"""What describes a type, by the type."""


class Description:
    """The document of one app, made when somebody asks for it: no request of ours needs it."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = list(operations)
        self._document: bytes | None = None

    async def show(self, request: Request) -> Response:
        if self._document is None:
            self._document = msgspec.json.encode(document(self._operations))
        return Response(self._document, media_type="application/json")


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    takes = [(one, taken(one)) for one in operations]
    types = list(dict.fromkeys([wire.Failure, *(kind for pair in takes for kind in _types(*pair))]))
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(types, found, strict=True))
    _add_notes(components)
    paths: dict[str, dict[str, Any]] = {}
    for one, what in takes:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, what, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hocket", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(operation: Operation, takes: Taken) -> Iterable[Any]:
    yield from (one.type for one in takes.parameters)
    if takes.body is not None:
        yield takes.body.type
    if operation.returns is not None:
        yield from (_about(operation), *_data(operation))


def _about(operation: Operation) -> Any:
    return operation.about or wire.About


def _data(operation: Operation) -> tuple[Any, ...]:
    return operation.returns if isinstance(operation.returns, tuple) else (operation.returns,)


def _operation(operation: Operation, takes: Taken, schemas: Schemas) -> dict[str, Any]:
    told = inspect.getdoc(operation.handler) or ""
    found: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": told.partition("\n")[0],
        "description": told,
        "parameters": [_parameter(one, schemas) for one in takes.parameters],
        "responses": _responses(operation, schemas),
    }
    if operation.takes_any:
        found["requestBody"] = {"required": True, "content": _json({"type": "object"})}
    elif takes.body is not None:
        found["requestBody"] = {
            "required": not takes.body.may_be_missing,
            "content": _json(schemas[takes.body.type]),
        }
    return found


def _parameter(parameter: Parameter, schemas: Schemas) -> dict[str, Any]:
    schema = schemas[parameter.type]
    if parameter.place == "path":
        return {"name": parameter.name, "in": "path", "required": True, "schema": schema}
    default = {} if parameter.default is None else {"default": parameter.default}
    return {"name": parameter.name, "in": parameter.place, "required": False, "schema": {**schema, **default}}


def _responses(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    success = {} if operation.returns is None else {str(operation.status): _success(operation, schemas)}
    failures = {
        status: {"description": text, "content": _json(schemas[wire.Failure])} for status, text in _REFUSALS.items()
    }
    return success | failures | {str(status): told for status, told in operation.responses.items()}


_WHERE = {"Location": {"description": "The run, where its events are the answer", "schema": {"type": "string"}}}


def _success(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    kinds = [schemas[kind] for kind in _data(operation)]
    parts = {"data": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}, "meta": schemas[_about(operation)]}
    return {
        "description": "Success",
        **({"headers": _WHERE} if operation.instead else {}),
        "content": _json({"type": "object", "properties": parts, "required": list(parts)}) | dict(operation.instead),
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


# --- What stands under a field ------------------------------------------------------------------------------


def _add_notes(components: Mapping[str, Any]) -> None:
    """A struct's own words are in the description already; those under its fields only its source has."""
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
    """By class and field; nothing where the source was not installed."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except OSError:
        return {}
    return {node.name: dict(_fields(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(field.target, ast.Name):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(below.value))
