"""Requests over the socket, against a scripted server that breaks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from client import fake_server
from client.fake_server import Launch

from hocket.client import Client, quote, transport
from hocket.client.transport import Connection, lines, sse_events
from hocket.errors import BY_CODE, HocketError, NotFound, ValidationError


def requests(home: Path) -> list[str]:
    return (home / "requests").read_text().splitlines()


class _Bytes:
    """A socket that gives out prepared pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def settimeout(self, seconds: float) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


STREAM = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'6\r\n: beat\r\nC;x=y\r\n\n\ndata: {"a"\r\n4\r\n:1}\n\r\n1\r\n\n\r\n0\r\nTrailer: x\r\n\r\n'
)


def test_post_is_repeated_with_the_same_key(home: Path, launch: Launch) -> None:
    Client(str(home), launch(drop_posts=2)).request("POST", "/api/runs", {})
    posts = [line for line in requests(home) if line.startswith("POST")]
    assert len(posts) == 3
    assert len(set(posts)) == 1


def test_different_posts_have_different_keys(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    client.request("POST", "/api/runs", {})
    client.request("POST", "/api/runs", {})
    first, second = requests(home)
    assert first != second


def test_exchange_returns_the_whole_response(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    assert client.exchange("GET", "/api/runs")["data"]["id"] == fake_server.RUN
    assert client.request("PUT", "/api/tasks/1/status", {"a": 1})["echo"] == {"a": 1}
    assert client.download("/api/odd") == b"hello"
    with pytest.raises(NotFound):
        client.download("/api/error/not_found")


def test_token_is_sent_with_every_request(home: Path, launch: Launch) -> None:
    Client(str(home), launch(), token="s3cret").request("GET", "/api/runs")
    assert "Bearer s3cret" in (home / "requests").read_text()


@pytest.mark.parametrize("code", [*BY_CODE, "something_new"])
def test_error_response_becomes_its_error(home: Path, launch: Launch, code: str) -> None:
    with pytest.raises(HocketError) as caught:
        Client(str(home), launch()).request("GET", f"/api/error/{code}")
    assert type(caught.value) is BY_CODE.get(code, HocketError)
    assert (caught.value.message, caught.value.hint) == ("no", "try")


def test_response_that_is_not_json_is_an_error(home: Path, launch: Launch) -> None:
    with pytest.raises(HocketError, match="unexpected response"):
        Client(str(home), launch()).request("GET", "/api/odd")


@pytest.mark.parametrize("place", range(1, len(STREAM)))
def test_response_may_arrive_in_any_two_pieces(place: int) -> None:
    connection = Connection(_Bytes([STREAM[:place], STREAM[place:]]))  # type: ignore[arg-type]
    connection.send(b"", 1)
    assert [event for events in sse_events(connection.body()) for event in events] == [{"a": 1}]


@pytest.mark.parametrize("place", range(60, len(STREAM) - 4))
def test_cut_response_never_looks_complete(place: int) -> None:
    connection = Connection(_Bytes([STREAM[:place]]))  # type: ignore[arg-type]
    connection.send(b"", 1)
    with pytest.raises(ConnectionError):
        list(connection.body())


def test_response_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BODY", 1000)
    connection = Connection(_Bytes([b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n", b"x" * 2000]))  # type: ignore[arg-type]
    connection.send(b"", 1)
    with pytest.raises(HocketError, match="larger"):
        connection.content()
    with pytest.raises(HocketError, match="larger"):
        list(lines(iter([b"x" * 2000])))


def test_names_are_quoted_for_a_path() -> None:
    assert quote("r1-a_b.c~") == "r1-a_b.c~"
    assert quote("../a b/ä?\r\n") == "..%2Fa%20b%2F%C3%A4%3F%0D%0A"


@pytest.mark.parametrize("name", ["", ".", "..", "/", "../../etc", "1/output", "1/"])
def test_name_that_changes_the_path_is_refused(name: str, home: Path) -> None:
    client = Client(str(home))
    with pytest.raises(ValidationError, match=f"^there is no run {re.escape(repr(name))}$") as refused:
        client.run(name)
    assert (refused.value.exit_code, refused.value.hint) == (2, "`hocket ps -a` lists them")
    with pytest.raises(ValidationError, match="there is no task"):
        client.request("PUT", f"/api/tasks/{quote(name)}/status", {})
    with pytest.raises(ValidationError, match="there is no attachment"):
        client.download(f"/api/tasks/1/attachments/{quote(name)}?x=1")


def test_client_loads_nothing_heavy() -> None:
    heavy = "asyncio ssl email http.client dataclasses rich msgspec subprocess"
    program = f"import hocket.client, sys; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
