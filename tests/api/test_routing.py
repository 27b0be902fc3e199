"""A request is taken apart as its handler's signature says, or refused with what is wrong with it."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

import httpx
import pytest
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from hocket.api import wire
from hocket.api.routing import Header, Key, Operation, Query, delete, get, post, put, routes
from hocket.errors import HocketError


class Thing(Struct, forbid_unknown_fields=True):
    text: str
    count: int = 1


async def show(
    request: Request,
    name: str,
    limit: Annotated[int, Meta(ge=1, le=100)] = 10,
    ended: Annotated[bool, Query("all")] = False,
    kind: Literal["out", "err"] | None = None,
    after: Annotated[int, Meta(ge=0), Header("Last-Event-ID")] = 0,
    key: Key = None,
) -> Response:
    return wire.success([name, limit, ended, kind, after, key])


async def make(request: Request, body: Thing) -> Response:
    return wire.success([body.text, body.count], 201)


async def change(request: Request, name: str, body: Thing | None = None) -> Response:
    return wire.success([name, body and body.text])


async def remove(request: Request, name: str) -> Response:
    return wire.success(name)


async def _ours(request: Request, error: Any) -> Response:
    return wire.error_response(error)


OPERATIONS = [
    get("/things/{name}", show),
    put("/things/{name}", change),
    delete("/things/{name}", remove),
    post("/things", make),
]
APP = Starlette(routes=routes(OPERATIONS), exception_handlers={HocketError: _ours})


def ask(method: str, path: str, content: bytes | None = None, **headers: str) -> httpx.Response:
    async def sent() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://x") as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, content=content, headers=named)

    return asyncio.run(sent())


def told(response: httpx.Response, status: int = 200) -> Any:
    assert response.status_code == status, response.text
    return response.json()["data"]


def refused(response: httpx.Response) -> str:
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "usage"
    message: str = response.json()["error"]["message"]
    return message


def test_arguments_are_read_from_path_query_and_headers() -> None:
    path = "/things/a%20b?limit=5&all=1&kind=err"
    assert told(ask("GET", path, last_event_id="7", idempotency_key="k")) == ["a b", 5, True, "err", 7, "k"]


def test_missing_arguments_have_their_defaults() -> None:
    assert told(ask("GET", "/things/a?more=1&ended=1")) == ["a", 10, False, None, 0, None]


@pytest.mark.parametrize("word", ["1", "true", "TRUE"])
def test_query_flag_is_true(word: str) -> None:
    assert told(ask("GET", f"/things/a?all={word}"))[2] is True


@pytest.mark.parametrize("word", ["0", "false", "False"])
def test_query_flag_is_false(word: str) -> None:
    assert told(ask("GET", f"/things/a?all={word}"))[2] is False


def test_last_value_in_the_query_wins() -> None:
    assert told(ask("GET", "/things/a?limit=nonsense&limit=7"))[1] == 7


BAD_QUERIES = {
    "limit=0": "limit: expected `int` >= 1",
    "limit=101": "limit: expected `int` <= 100",
    f"limit={9**30}": "limit: expected `int` <= 100",
    "limit=": "limit: expected `int`, got `str`",
    "limit=x": "limit: expected `int`, got `str`",
    "limit=1.5": "limit: expected `int`, got `str`",
    "limit=1_0": "limit: expected `int`, got `str`",
    "limit=%2B5": "limit: expected `int`, got `str`",
    "limit=٣": "limit: expected `int`, got `str`",
    f"limit={'9' * 5000}": "limit: integer value out of range",
    "all=": "all: expected `bool`, got `str`",
    "all=yes": "all: expected `bool`, got `str`",
    "all=perhaps": "all: expected `bool`, got `str`",
    "all=2": "all: expected `bool`, got `str`",
    "kind=in": "kind: invalid value 'in' (choose err or out)",
    "kind=out%0a": "kind: invalid value 'out\\n' (choose err or out)",
}


@pytest.mark.parametrize(("query", "message"), BAD_QUERIES.items())
def test_invalid_query_is_refused_by_name(query: str, message: str) -> None:
    assert refused(ask("GET", f"/things/a?{query}")) == message


def test_invalid_header_is_refused_by_name() -> None:
    assert refused(ask("GET", "/things/a", last_event_id="x")) == "Last-Event-ID: expected `int`, got `str`"
    assert refused(ask("GET", "/things/a", idempotency_key="")) == "Idempotency-Key: must not be empty"
    said = refused(ask("GET", "/things/a", idempotency_key="x" * 201))
    assert said == "Idempotency-Key: expected `str` of length <= 200"


def test_body_is_decoded_into_its_struct() -> None:
    assert told(ask("POST", "/things", b'{"text": "a", "count": 2}'), 201) == ["a", 2]
    assert told(ask("POST", "/things", '\n {"text": "ä🎵"} '.encode()), 201) == ["ä🎵", 1]


@pytest.mark.parametrize("number", [b"2.0", b"20e-1", b"2"])
def test_integer_may_be_written_as_decimal(number: bytes) -> None:
    """JSON tells no kinds of numbers apart, and JSON Schema says that 2.0 is an integer."""
    assert told(ask("POST", "/things", b'{"text": "a", "count": %s}' % number), 201) == ["a", 2]


def test_only_an_optional_body_may_be_missing() -> None:
    assert told(ask("PUT", "/things/a")) == ["a", None]
    assert told(ask("PUT", "/things/a", b"null")) == ["a", None]
    assert told(ask("PUT", "/things/a", b'{"text": "b"}')) == ["a", "b"]
    assert refused(ask("POST", "/things")) == "the request needs a body"
    assert refused(ask("POST", "/things", b"null")) == "the body: expected `object`, got `null`"


BAD_BODIES = {
    b"{": "the body is not valid JSON: Input data was truncated",
    b'{"text": ""} {}': "the body is not valid JSON: trailing characters (byte 14)",
    b'{"text": NaN}': "the body is not valid JSON: invalid character (byte 9)",
    b'{"text": "\xff"}': "the body is not valid JSON: not UTF-8",
    b"[]": "the body: expected `object`, got `array`",
    b"{}": "text: missing",
    b'{"text": "a", "colour": 1}': "colour: unknown field",
    b'{"text": 5}': "text: expected `str`, got `int`",
    b'{"text": "a", "count": "5"}': "count: expected `int`, got `str`",
    b'{"text": "a", "count": true}': "count: expected `int`, got `bool`",
    b'{"text": "a", "count": 1.5}': "count: expected `int`, got `float`",
    b'{"text": "a", "count": 1e300}': "count: expected `int`, got `float`",
    b'{"text": "a", "count": 2.0, "colour": 1e999}': "count: expected `int`, got `float`",
    b'{"count": 2.0, "text": 5}': "text: expected `str`, got `int`",
    b'{"count": 2.0, "text": NaN}': "count: expected `int`, got `float`",
    b'{"count": 2.0, "text": "a"': "count: expected `int`, got `float`",
    b'{"count": 2.0, "text": "\xff"}': "count: expected `int`, got `float`",
    b'{"text": "\\ud800"}': "text is not valid UTF-8",
    b'{"text": "\xed\xa0\x80"}': "text is not valid UTF-8",
    b'{"text": "\\ud83c\\udfb5", "count":': "the body is not valid JSON: Input data was truncated",
}


@pytest.mark.parametrize(("content", "message"), BAD_BODIES.items())
def test_invalid_body_is_refused_with_place_and_problem(content: bytes, message: str) -> None:
    assert refused(ask("POST", "/things", content)) == message


@pytest.mark.parametrize("content", [b"[" * 10**5, b'{"text":' * 10**5, b'{"a":[' + b'{"a":"\\ud800","b":[' * 10**5])
def test_deeply_nested_body_is_refused(content: bytes) -> None:
    assert refused(ask("POST", "/things", content))


def test_other_methods_get_405_with_allow() -> None:
    assert told(ask("DELETE", "/things/a")) == "a"
    for method in ("POST", "HEAD", "OPTIONS"):
        response = ask(method, "/things/a")
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == {"GET", "PUT", "DELETE"}


def test_query_argument_needs_a_default() -> None:
    async def bad(request: Request, limit: int) -> Response:
        return wire.success(limit)

    with pytest.raises(TypeError, match="limit of /bad"):
        routes([Operation("GET", "/bad", bad)])


def test_response_is_json() -> None:
    response = ask("GET", "/things/a")
    assert response.headers["content-type"] == "application/json"
    assert set(json.loads(response.content)) == {"data", "meta"}
