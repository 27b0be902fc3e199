"""The terminal of a run over HTTP: shown to several viewers, typed into, resized, and refused where it must be."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from api.serving import Server, token_of, wait_for
from patience import PATIENCE
from sessions.screen_runs import leave_screen_run


class Viewer:
    """A client that reads the stream of a terminal, in a thread."""

    def __init__(self, server: Server, run: str, columns: int, rows: int) -> None:
        self._client = httpx.Client(transport=httpx.HTTPTransport(uds=server.socket), timeout=PATIENCE)
        url = f"http://localhost/api/runs/{run}/terminal?columns={columns}&rows={rows}"
        self._response = self._client.send(self._client.build_request("GET", url), stream=True)
        assert self._response.status_code == 200
        self.headers = self._response.headers
        self.id = self.headers["hocket-viewer"]
        self.received = b""
        self.has_ended = False
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with suppress(httpx.HTTPError):  # hung up
            for piece in self._response.iter_raw():
                self.received += piece
            self.has_ended = True

    def until(self, wanted: bytes, after: int = 0) -> int:
        wait_for(lambda: wanted in self.received[after:], f"{wanted!r} on the terminal")
        return self.received.index(wanted, after) + len(wanted)

    def hang_up(self) -> None:
        """Close the connection in the middle, as the end of a client does."""
        stream = self._response.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError):  # it has ended
            stream.shutdown(socket.SHUT_RDWR)
        self._reading.join(PATIENCE)
        self._response.close()
        self._client.close()


@pytest.fixture(scope="module")
def terminals() -> Iterator[Server]:
    """A server with two runs that have a terminal: 1 is ended, 2 is not."""
    made = Server()
    try:
        for _ in range(2):
            leave_screen_run(made.home, made.project, made.agent)
        made.agent("sleeper", "import signal; signal.pause()")
        made.start()
        made.post("/api/runs/1/stop", {})
        yield made
    finally:
        made.close()


@pytest.fixture
def attach(terminals: Server) -> Iterator[Callable[..., Viewer]]:
    viewers: list[Viewer] = []

    def start(columns: int = 80, rows: int = 24) -> Viewer:
        viewers.append(Viewer(terminals, "2", columns, rows))
        return viewers[-1]

    yield start
    for one in viewers:
        one.hang_up()


def say(server: Server, run: object = 2, **body: Any) -> httpx.Response:
    token = body.pop("token", None)
    return server.post(f"/api/runs/{run}/terminal", body, token=token)


def test_two_viewers_see_what_is_typed(terminals: Server, attach: Callable[..., Viewer]) -> None:
    first, second = attach(100, 30), attach(100, 30)
    assert first.id != second.id
    assert first.headers["content-type"] == "application/octet-stream"
    assert "content-length" not in first.headers
    seen = [viewer.until(b"size 100x30") for viewer in (first, second)]
    assert say(terminals, keys="é").json()["data"] == {"run": terminals.show(2)["id"], "typed": 2}
    data = base64.b64encode(b"\xff\x00").decode()
    assert say(terminals, data=data).json()["data"]["typed"] == 2
    for viewer, begin in zip((first, second), seen, strict=True):
        viewer.until("é".encode().hex().encode() + b"ff00", begin)


def test_viewer_that_hangs_up_is_removed(terminals: Server, attach: Callable[..., Viewer]) -> None:
    first, second = attach(100, 30), attach(60, 20)
    seen = first.until(b"size 60x20")
    second.hang_up()
    first.until(b"size 100x30", seen)
    assert say(terminals, viewer=second.id, columns=10, rows=10).status_code == 404


def test_viewer_changes_its_size(terminals: Server, attach: Callable[..., Viewer]) -> None:
    viewer = attach(100, 30)
    seen = viewer.until(b"size 100x30")
    assert say(terminals, viewer=viewer.id, columns=70, rows=12, keys="x").json()["data"]["typed"] == 1
    viewer.until(b"size 70x12", seen)


def test_stream_ends_with_the_run(server: Server) -> None:
    server.leave()
    run = leave_screen_run(server.home, server.project, server.agent)
    server.start_instead()
    viewer = Viewer(server, run.id, 80, 24)
    viewer.until(b"size 80x24")
    assert say(server, run.id, keys="QUIT").status_code == 200
    wait_for(lambda: viewer.has_ended, "the end of the stream")
    viewer.hang_up()
    assert viewer.received.endswith(b"the last words\r\n")
    assert server.ended(run.id)["status"] == "done"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "give `keys`, `data`, or `columns` and `rows`"),
        ({"viewer": "v"}, "give `keys`, `data`, or `columns` and `rows`"),
        ({"keys": "a", "data": "YQ=="}, "give `keys` or `data`, not both"),
        ({"keys": ""}, "keys: must not be empty"),
        ({"data": "not base64"}, "data: invalid base64 encoded string"),
        ({"viewer": "v", "columns": 80}, "give `columns` and `rows` together"),
        ({"columns": 80, "rows": 24}, "a size needs the `viewer` that has it"),
        ({"viewer": "v", "columns": 0, "rows": 24}, "columns: expected `int` >= 1"),
        ({"viewer": "v", "columns": 80, "rows": 1001}, "rows: expected `int` <= 1000"),
        ({"size": 3}, "size: unknown field"),
    ],
)
def test_invalid_input_is_refused(terminals: Server, body: dict[str, Any], message: str) -> None:
    response = say(terminals, **body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize("query", ["columns=0", "rows=1001", "columns=wide"])
def test_invalid_size_is_refused(terminals: Server, query: str) -> None:
    assert terminals.get(f"/api/runs/2/terminal?{query}").status_code == 400


def test_only_operator_may_use_a_terminal(terminals: Server) -> None:
    token = token_of(terminals, terminals.show(2))
    assert terminals.get("/api/runs/2/terminal", token=token).status_code == 403
    refused = say(terminals, keys="x", token=token)
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        403,
        "only the operator can type into a terminal",
    )


def test_run_without_live_terminal_is_a_conflict(terminals: Server) -> None:
    plain = terminals.start_run("sleeper")
    for ref, message in ((plain["id"], "has no terminal"), (1, "run 1 has ended")):
        for response in (terminals.get(f"/api/runs/{ref}/terminal"), say(terminals, ref, keys="x")):
            assert response.status_code == 409
            assert message in response.json()["error"]["message"]
    assert terminals.get("/api/runs/unknown/terminal").status_code == 404
    terminals.post(f"/api/runs/{plain['id']}/stop", {})


def test_run_says_that_it_has_a_terminal(terminals: Server) -> None:
    plain = terminals.start_run("sleeper")
    assert [terminals.show(ref)["terminal"] for ref in (1, 2, plain["id"])] == [True, True, False]
    terminals.post(f"/api/runs/{plain['id']}/stop", {})
