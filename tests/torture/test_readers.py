"""Stalled readers, and many short ones: no other client is delayed, and memory does not grow."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from patience import PATIENCE
from torture.installation import Installation, rss_mb, verdict
from world import Bin

TALKER = """
import sys
for number in range(int(sys.argv[1])):
    print(number, "x" * 200, flush=number % 100 == 0)
"""


@contextlib.contextmanager
def subscriptions(path: str, run: str, count: int) -> Iterator[list[socket.socket]]:
    """Followers that ask for a run's events and then read nothing."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.settimeout(PATIENCE)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(path)
            one.sendall(f"GET /api/runs/{run}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert one.recv(15) == b"HTTP/1.1 200 OK"
            sockets.append(one)
        yield sockets


def test_stalled_readers_delay_no_request(installation: Installation, agent: Bin) -> None:
    agent("talker", TALKER)
    server = installation.server_pid()
    installation.ended(installation.spawn("talker", "20000"), 30)
    before = rss_mb(server)
    run = installation.spawn("talker", "20000")
    with subscriptions(str(installation.home / "sock"), run, 20):
        slowest = 0.0
        ended = None
        while ended is None:
            began = time.monotonic()
            other = installation.run(run)
            slowest = max(slowest, time.monotonic() - began)
            ended = other if other["ended_at"] else None
        assert verdict(ended) == ("done", "exit", 0)
        assert slowest < 2.0
        assert rss_mb(server) - before < 24
    events = installation.events(run)
    assert sum(event["type"] == "text" for event in events) == 20000


def test_closed_readers_leave_nothing_behind(installation: Installation, agent: Bin) -> None:
    agent("talker", TALKER)
    run = installation.spawn("sleep", "120")
    server = installation.server_pid()
    path = str(installation.home / "sock")
    sizes = []
    for _ in range(10):
        for _ in range(5):
            with subscriptions(path, run, 20):
                pass
        sizes.append(rss_mb(server))
    assert sizes[-1] - sizes[3] < 6
    assert len(list(Path(f"/proc/{server}/fd").iterdir())) < 60
    assert verdict(installation.ended(installation.spawn("talker", "10"))) == ("done", "exit", 0)
    installation.client.request("POST", f"/api/runs/{run}/stop", {})
