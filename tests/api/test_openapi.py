"""The OpenAPI document is generated from the declared operations."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from hocket.api import wire
from hocket.api.openapi import document
from hocket.api.routing import Key, Query, get, post


async def show(
    request: Request,
    ref: str,
    limit: Annotated[int, Meta(ge=1, le=9)] = 3,
    ended: Annotated[bool, Query("all")] = False,
) -> Response:
    """One thing.

    And more about it.
    """
    return Response()


async def make(request: Request, body: wire.ResumeBody, key: Key = None) -> Response:
    return Response()


async def stop(request: Request, ref: str, body: wire.EmptyBody | None = None) -> Response:
    return Response()


async def take(request: Request) -> Response:
    return Response()


class Page(wire.ResponseMeta):
    """With a number."""

    next: int


BYTES = {200: {"description": "Bytes", "content": {"application/octet-stream": {}}}}


@pytest.fixture
def described() -> dict[str, Any]:
    return document(
        [
            get("/things/{ref}", show, wire.AgentDetail, meta=Page),
            post("/things", make, (list[wire.AgentOut], wire.AskedQuestion), status=201),
            post("/things/{ref}", stop, responses=BYTES),
            post("/any", take, dict[str, Any], takes_any=True),
        ]
    )


def schema_of(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["content"]["application/json"]["schema"]
    return found


def test_parameters_have_place_type_bounds_and_default(described: dict[str, Any]) -> None:
    assert described["paths"]["/things/{ref}"]["get"]["parameters"] == [
        {"name": "ref", "in": "path", "required": True, "schema": {"type": "string"}},
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "schema": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
        },
        {"name": "all", "in": "query", "required": False, "schema": {"type": "boolean", "default": False}},
    ]
    (key,) = described["paths"]["/things"]["post"]["parameters"]
    assert (key["name"], key["in"]) == ("Idempotency-Key", "header")


def test_operation_has_the_docstring_of_its_handler(described: dict[str, Any]) -> None:
    told = described["paths"]["/things/{ref}"]["get"]
    assert told["operationId"] == "show"
    assert told["summary"] == "One thing."
    assert told["description"] == "One thing.\n\nAnd more about it."


def test_body_is_required_unless_optional(described: dict[str, Any]) -> None:
    needed = described["paths"]["/things"]["post"]["requestBody"]
    assert needed["required"]
    assert schema_of(needed) == {"$ref": "#/components/schemas/ResumeBody"}
    missing = described["paths"]["/things/{ref}"]["post"]["requestBody"]
    assert not missing["required"]
    either = schema_of(missing)["anyOf"]
    assert len(either) == 2
    assert {"$ref": "#/components/schemas/EmptyBody"} in either
    assert {"type": "null"} in either
    assert schema_of(described["paths"]["/any"]["post"]["requestBody"]) == {"type": "object"}
    assert "requestBody" not in described["paths"]["/things/{ref}"]["get"]


def test_success_is_described_with_its_envelope(described: dict[str, Any]) -> None:
    one = schema_of(described["paths"]["/things/{ref}"]["get"]["responses"]["200"])
    assert one["required"] == ["data", "meta"]
    assert one["properties"] == {
        "data": {"$ref": "#/components/schemas/AgentDetail"},
        "meta": {"$ref": "#/components/schemas/Page"},
    }
    several = schema_of(described["paths"]["/things"]["post"]["responses"]["201"])["properties"]
    assert several["meta"] == {"$ref": "#/components/schemas/ResponseMeta"}
    assert len(several["data"]["anyOf"]) == 2
    assert "200" not in described["paths"]["/things"]["post"]["responses"]


def test_declared_responses_are_added_to_the_errors(described: dict[str, Any]) -> None:
    answers = described["paths"]["/things/{ref}"]["post"]["responses"]
    assert answers["200"] == BYTES[200]
    assert schema_of(answers["409"]) == {"$ref": "#/components/schemas/ErrorResponse"}
    assert "default" in answers


def test_fields_have_wire_names_and_docstrings(
    described: dict[str, Any],
) -> None:
    schemas = described["components"]["schemas"]
    body = schemas["ResumeBody"]
    assert body["additionalProperties"] is False
    assert "from" in body["properties"]
    assert body["properties"]["from"]["description"].startswith("The step of a chain to begin with")
    inherited = schemas["AgentDetail"]["properties"]["needsTrust"]
    assert inherited["description"].startswith("What the user has to approve")
