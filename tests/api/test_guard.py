"""The guard: a table of requests over raw sockets. What is refused reaches no handler: no run comes of it."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

import pytest
from api.serving import Server, raw

from hocket.api.guard import MAX_BODY

OWN_HOST = "Host: 127.0.0.1:{port}"
BEARER = "Authorization: Bearer {token}"
JSON = "Content-Type: application/json"
UPGRADE = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


class Row(NamedTuple):
    """One request and what must become of it."""

    name: str
    expected: int | tuple[int, ...]
    head: str
    headers: tuple[str, ...]


def get(name: str, expected: int | tuple[int, ...], *headers: str, path: str = "/api/runs") -> Row:
    return Row(name, expected, f"GET {path} HTTP/1.1", headers)


def post(name: str, expected: int | tuple[int, ...], *headers: str, path: str = "/api/runs") -> Row:
    return Row(name, expected, f"POST {path} HTTP/1.1", headers)


def host(name: str, expected: int | tuple[int, ...], *hosts: str) -> Row:
    return post(f"host {name}", expected, *(f"Host: {value}" for value in hosts), BEARER, JSON)


def more(name: str, expected: int | tuple[int, ...], *headers: str) -> Row:
    """A start that would work, but for these headers."""
    return post(name, expected, OWN_HOST, BEARER, JSON, *headers)


def token(name: str, expected: int, *values: str) -> Row:
    return post(f"token {name}", expected, OWN_HOST, JSON, *(f"Authorization: {value}" for value in values))


def body(name: str, expected: int, *kinds: str) -> Row:
    return post(f"body {name}", expected, OWN_HOST, BEARER, *(f"Content-Type: {kind}" for kind in kinds))


TABLE = [
    host("ours", 201, "127.0.0.1:{port}"),
    host("by name", 201, "localhost:{port}"),
    host("by name in capitals", 201, "LOCALHOST:{port}"),
    host("of IPv6", 201, "[::1]:{port}"),
    host("evil", 403, "evil.example:{port}"),
    host("evil without a port", 403, "evil.example"),
    host("that a name server points at us", 403, "127.0.0.1.nip.io:{port}"),
    host("with a final dot", 403, "localhost.:{port}"),
    host("below ours", 403, "x.localhost:{port}"),
    host("with another port", 403, "127.0.0.1:1"),
    host("without a port", 403, "127.0.0.1"),
    host("with a longer port", 403, "127.0.0.1:{port}0"),
    host("empty", 403, ""),
    host("missing", 400),
    host("twice", (400, 403), "127.0.0.1:{port}", "evil.example"),
    host("of every address", 403, "0.0.0.0:{port}"),
    host("of another loopback", 403, "127.0.0.2:{port}"),
    host("written short", 403, "127.1:{port}"),
    host("as one number", 403, "2130706433:{port}"),
    host("with a user", (400, 403), "a@127.0.0.1:{port}"),
    Row("host missing in HTTP/1.0", 403, "POST /api/runs HTTP/1.0", (BEARER, JSON)),
    Row("host in the target", (400, 403, 404), "POST http://evil.example/api/runs HTTP/1.1", (OWN_HOST, BEARER, JSON)),
    more("origin ours", 201, "Origin: http://127.0.0.1:{port}"),
    more("origin ours by name", 201, "Origin: http://localhost:{port}"),
    more("origin evil", 403, "Origin: http://evil.example"),
    more("origin null", 403, "Origin: null"),
    more("origin empty", 403, "Origin:"),
    more("origin of https", 403, "Origin: https://127.0.0.1:{port}"),
    more("origin of another port", 403, "Origin: http://127.0.0.1:3000"),
    more("origin that begins like ours", 403, "Origin: http://127.0.0.1:{port}.evil.example"),
    more("origin that ends like ours", 403, "Origin: http://evil.example/http://127.0.0.1:{port}"),
    more("origin with a user", 403, "Origin: http://127.0.0.1:{port}@evil.example"),
    more("origin twice", 403, "Origin: http://127.0.0.1:{port}", "Origin: http://evil.example"),
    more("origin of a page in a file", 403, "Origin: file://"),
    more("origin of an extension", 403, "Origin: chrome-extension://abcdef"),
    more("site same-origin", 201, "Sec-Fetch-Site: same-origin"),
    more("site none", 201, "Sec-Fetch-Site: none"),
    more("site cross-site", 403, "Sec-Fetch-Site: cross-site"),
    more("site in capitals", 403, "Sec-Fetch-Site: CROSS-SITE"),
    more("site same-site", 403, "Sec-Fetch-Site: same-site"),
    more("site of no meaning", 403, "Sec-Fetch-Site: anything"),
    more("site twice", 403, "Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"),
    token("right", 201, "Bearer {token}"),
    token("right with the scheme in small letters", 201, "bearer {token}"),
    token("missing", 401),
    token("empty", 401, "Bearer "),
    token("without a scheme", 401, "{token}"),
    token("of another scheme", 401, "Basic {token}"),
    token("in the other case", 401, "Bearer {swapped}"),
    token("cut", 401, "Bearer {short}"),
    token("with one letter more", 401, "Bearer {token}x"),
    token("behind two spaces", 401, "Bearer  {token}"),
    token("of a run that never was", 401, "Bearer runknown.0123456789abcdef"),
    token("of a run without a proof", 401, "Bearer runknown."),
    token("of no ASCII", 401, "Bearer é{token}"),
    token("twice", 403, "Bearer {token}", "Bearer {token}"),
    post("token in a cookie", 401, OWN_HOST, JSON, "Cookie: token={token}"),
    post("token in the query", 401, OWN_HOST, JSON, path="/api/runs?token={token}"),
    body("of JSON", 201, "application/json"),
    body("of JSON with a charset", 201, "application/json; charset=utf-8"),
    body("of JSON in capitals", 201, "APPLICATION/JSON;CHARSET=UTF-8"),
    body("of plain text", 415, "text/plain"),
    body("of plain text that mentions JSON", 415, "text/plain; application/json"),
    body("of a form", 415, "application/x-www-form-urlencoded"),
    body("of a form with parts", 415, "multipart/form-data; boundary=x"),
    body("of nearly JSON", 415, "application/json-patch+json"),
    body("of JSON with a suffix", 415, "application/jsonx"),
    body("of nothing said", 415),
    body("of two kinds", 403, "application/json", "text/plain"),
    get("a read without a token", 401, OWN_HOST),
    get("a read from elsewhere", 403, OWN_HOST, BEARER, "Origin: http://evil.example"),
    get("a read through another name", 403, "Host: evil.example:{port}", BEARER),
    get("a stream without a token", 401, OWN_HOST, path="/api/runs/1/events"),
    get("a stream from elsewhere", 403, OWN_HOST, BEARER, "Origin: http://evil.example", path="/api/runs/1/events"),
    get("a stream from a page in a sandbox", 403, OWN_HOST, BEARER, "Origin: null", path="/api/runs/1/events"),
    get("the description without a token", 401, OWN_HOST, path="/openapi.json"),
    get("health without a token", 401, OWN_HOST, path="/api/health"),
    get("a route that is not there, without a token", 401, OWN_HOST, path="/api/nothing"),
    get("a web socket from elsewhere", 403, OWN_HOST, BEARER, *UPGRADE, "Origin: http://evil.example", path="/api/ws"),
    get("a web socket through another name", 403, "Host: evil.example", BEARER, *UPGRADE, path="/api/ws"),
    get("a web socket without a token", 401, OWN_HOST, *UPGRADE, "Origin: http://127.0.0.1:{port}", path="/api/ws"),
    Row("a preflight from elsewhere", 403, "OPTIONS /api/runs HTTP/1.1", (OWN_HOST, "Origin: http://evil.example")),
    Row("a preflight without a token", 401, "OPTIONS /api/runs HTTP/1.1", (OWN_HOST,)),
    Row("a put of plain text", 415, "PUT /api/runs HTTP/1.1", (OWN_HOST, BEARER, "Content-Type: text/plain")),
    Row("no HTTP at all", 400, "HELLO", ()),
    post("a length that is none", 400, OWN_HOST, BEARER, JSON, "Content-Length: -1"),
    post("a length of two minds", 400, OWN_HOST, BEARER, JSON, "Content-Length: 1", "Content-Length: 2"),
]


def test_request_table_has_unique_names() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE) >= 40


@pytest.mark.parametrize("row", TABLE, ids=[row.name.replace(" ", "-") for row in TABLE])
def test_request_is_admitted_or_refused(shared: Server, row: Row) -> None:
    before = shared.count()
    content = json.dumps({"agent": "echo-args", "cwd": str(shared.project)}).encode()
    words = {
        "port": shared.port,
        "token": shared.token,
        "swapped": shared.token.swapcase(),
        "short": shared.token[:-1],
    }
    lines = [row.head, *row.headers]
    if row.head.startswith(("POST", "PUT")) and not any("Length" in line for line in row.headers):
        lines.append(f"Content-Length: {len(content)}")
    if not any(line.startswith("Connection") for line in lines):
        lines.append("Connection: close")
    head = "\r\n".join(lines).format(**words).encode("latin-1")
    status, answer = raw(shared.port, head + b"\r\n\r\n" + (content if b"Length" in head else b""))
    expected = row.expected if isinstance(row.expected, tuple) else (row.expected,)
    assert status in expected, answer
    assert shared.count() == before + (status == 201)
    if status in (401, 403, 415):
        assert set(json.loads(answer)["error"]) == {"code", "message", "hint"}


# --- bodies that are too large ------------------------------------------------------------------------------


def chunked(size: int, piece: int = 1024 * 1024) -> bytes:
    chunk = b"%x\r\n" % piece + b" " * piece + b"\r\n"
    return chunk * (size // piece) + b"0\r\n\r\n"


def start(shared: Server, *headers: str) -> bytes:
    lines = ["POST /api/runs HTTP/1.1", OWN_HOST, BEARER, JSON, *headers, "Connection: close"]
    return ("\r\n".join(lines).format(port=shared.port, token=shared.token) + "\r\n\r\n").encode()


def test_large_content_length_is_413(shared: Server) -> None:
    status, answer = raw(shared.port, start(shared, f"Content-Length: {MAX_BODY + 1}"))
    assert (status, json.loads(answer)["error"]["code"]) == (413, "too_large")


def test_large_chunked_body_is_413(shared: Server) -> None:
    data = start(shared, "Transfer-Encoding: chunked") + chunked(MAX_BODY + 4 * 1024**2)
    status, answer = raw(shared.port, data)
    assert status == 413, answer
    assert b"too_large" in answer


def test_body_within_the_limit_is_read(shared: Server) -> None:
    content = json.dumps({"agent": "echo-args", "cwd": str(shared.project)}).encode().ljust(MAX_BODY)
    status, _ = raw(shared.port, start(shared, f"Content-Length: {MAX_BODY}") + content)
    assert status == 201


def test_unauthorized_body_is_not_read(shared: Server) -> None:
    lines = ["POST /api/runs HTTP/1.1", OWN_HOST, JSON, f"Content-Length: {10**12}", "Connection: close"]
    status, _ = raw(shared.port, ("\r\n".join(lines).format(port=shared.port) + "\r\n\r\n").encode())
    assert status == 401


# --- the other door -----------------------------------------------------------------------------------------


def test_unix_socket_is_private_and_needs_no_token(shared: Server) -> None:
    assert os.stat(shared.socket).st_mode & 0o777 == 0o600
    assert shared.get("/api/runs", unix=True).status_code == 200
    assert shared.get("/api/runs", unix=True, headers={"host": "anything"}).status_code == 200


def test_wrong_token_is_refused_on_the_unix_socket(shared: Server) -> None:
    assert shared.get("/api/runs", unix=True, token="wrong").status_code == 401
    assert shared.get("/api/runs", unix=True, token="runknown.x").status_code == 401
    assert shared.request("POST", "/api/runs", unix=True, content=b"{}").status_code == 415
