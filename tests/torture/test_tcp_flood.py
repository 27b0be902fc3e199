"""A program without a token that opens TCP connections and finishes no request."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from torture.installation import Installation, verdict, wait_for
from world import Bin

FLOOD = 1500
HALF = b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Let the test itself open as many connections as it needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FLOOD + 500:
        pytest.skip("too few descriptors for the flood")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FLOOD + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def port_of(home: Path) -> int:
    return int((home / "port").read_text())


def connect(port: int, data: bytes) -> socket.socket:
    """A connection that has sent these bytes; one that the server closed meanwhile stays as it is."""
    connection = socket.create_connection(("127.0.0.1", port), 10)
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)
    return connection


def head(home: Path, method: str, path: str, *more: str, token: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port_of(home)}", *more]
    lines += [f"Authorization: Bearer {(home / 'token').read_text().strip()}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; what it said before is read and thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def is_closed_though_fed(connection: socket.socket) -> bool:
    """The same, for a client that keeps sending one byte at a time."""
    try:
        connection.send(b"x")
    except BlockingIOError:
        pass
    except ConnectionError:
        return True
    return is_closed(connection)


def read_until(connection: socket.socket, word: bytes) -> bytes:
    connection.setblocking(True)
    connection.settimeout(PATIENCE)
    text = b""
    while word not in text:
        piece = connection.recv(65536)
        assert piece, text
        text += piece
    return text


@pytest.mark.usefixtures("many_descriptors")
def test_half_sent_requests_leave_the_unix_socket_free(home: Path, project: Path, agent: Bin) -> None:
    """Torture row 54."""
    agent("held", "import sys\nprint(1, flush=True)\nopen(sys.argv[1]).read()")
    os.mkfifo(project / "gate")
    installation = Installation(home, project, ["prlimit", "--nofile=1024:1024"])
    run = installation.spawn("held", str(project / "gate"))
    installation.said(run, b"1")
    server, port = installation.server_pid(), port_of(home)
    descriptors = Path(f"/proc/{server}/fd")
    with contextlib.ExitStack() as stack:
        following = stack.enter_context(connect(port, head(home, "GET", f"/api/runs/{run}/events?follow=true")))
        read_until(following, b"run.started")
        flood = [stack.enter_context(connect(port, HALF)) for _ in range(FLOOD)]
        assert installation.server_pid() == server
        assert verdict(installation.ended(installation.spawn("/bin/true"))) == ("done", "exit", 0)
        assert len(list(descriptors.iterdir())) < 512
        asking = stack.enter_context(connect(port, head(home, "GET", "/api/health")))
        assert b"200 OK" in read_until(asking, b"runs_live")
        body = head(home, "POST", "/api/runs", "Content-Type: application/json", "Content-Length: 9999", token=False)
        feeding = stack.enter_context(connect(port, body))
        wait_for(lambda: all(is_closed(one) for one in flood), "the deadline of every head", 30)
        wait_for(lambda: is_closed_though_fed(feeding), "the deadline of a slow body", 30)
        (project / "gate").open("w").close()
        read_until(following, b"run.ended")
    assert installation.server_pid() == server


@pytest.mark.slow
@pytest.mark.timeout(120)  # the deadline of a body
def test_slow_body_with_token_has_a_deadline(home: Path, project: Path) -> None:
    installation = Installation(home, project)
    installation.server_pid()
    slow = head(home, "POST", "/api/runs", "Content-Type: application/json", "Content-Length: 999999")
    with connect(port_of(home), slow) as feeding:
        wait_for(lambda: is_closed_though_fed(feeding), "the deadline of the body", 90)
