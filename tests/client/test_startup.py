"""Whether a server is running, and starting one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from client import fake_server
from client.fake_server import Launch
from patience import PATIENCE

from hocket.client import Client
from hocket.client.startup import lock_held, parse_version, read_lock, wait_unlocked
from hocket.errors import ServerUnreachable, VersionMismatch


def _wait_for_server(home: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (home / "starts").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_request_starts_the_server(home: Path, launch: Launch) -> None:
    answer = Client(str(home), launch()).request("POST", "/api/runs", {"dsl": "a -> b"})
    assert answer["echo"] == {"dsl": "a -> b"}
    assert (home / "starts").read_bytes() == b"."


def test_missing_server_is_an_error_without_start(home: Path) -> None:
    with pytest.raises(ServerUnreachable) as caught:
        Client(str(home)).request("GET", "/api/runs")
    assert str(home) in caught.value.message


def test_failed_start_is_reported_with_the_log(home: Path) -> None:
    def fail() -> None:
        with (home / "server.log").open("a") as log:
            log.write("hocket: the database is damaged\n")

    (home / "server.log").write_text("hocket: an older complaint\n")
    began = time.monotonic()
    with pytest.raises(ServerUnreachable) as caught:
        Client(str(home), fail).request("GET", "/api/runs")
    assert "the database is damaged" in caught.value.message
    assert "older" not in caught.value.message
    assert time.monotonic() - began < 5


def test_start_refused_by_the_system_is_reported(home: Path) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", str(home))

    with pytest.raises(ServerUnreachable, match="Permission denied"):
        Client(str(home), refuse).request("GET", "/api/runs")


def test_stale_socket_is_replaced(home: Path, launch: Launch) -> None:
    first = Client(str(home), launch())
    first.request("GET", "/api/runs")
    os.kill(read_lock(str(home))["pid"], signal.SIGKILL)
    assert wait_unlocked(str(home), 5)
    assert (home / "sock").exists()
    assert first.request("GET", "/api/runs")["id"] == fake_server.RUN
    assert (home / "starts").read_bytes() == b".."


def test_older_server_is_replaced(home: Path, launch: Launch) -> None:
    launch(version="0.0.9")()
    _wait_for_server(home)
    client = Client(str(home), launch())
    client.request("GET", "/api/runs")
    assert read_lock(str(home))["version"] == "0.1.0"
    assert (home / "starts").read_bytes() == b".."


def test_newer_server_is_refused(home: Path, launch: Launch) -> None:
    launch(version="9.8.7")()
    _wait_for_server(home)
    with pytest.raises(VersionMismatch) as caught:
        Client(str(home), launch()).request("GET", "/api/runs")
    assert "9.8.7" in (caught.value.hint or "")
    assert lock_held(str(home))


def test_client_without_start_accepts_any_version(home: Path, launch: Launch) -> None:
    launch(version="9.8.7")()
    _wait_for_server(home)
    assert Client(str(home)).request("GET", "/api/runs")["id"] == fake_server.RUN


def test_unlocked_lock_file_means_no_server(home: Path) -> None:
    (home / "server.lock").write_text('{"pid": 1}')
    assert not lock_held(str(home))
    assert not lock_held(str(home / "nowhere"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"text"'])
def test_torn_lock_file_reads_as_empty(home: Path, content: bytes) -> None:
    (home / "server.lock").write_bytes(content)
    assert read_lock(str(home)) == {}


def test_socket_in_the_lock_file_is_used(home: Path, launch: Launch) -> None:
    launch()()
    _wait_for_server(home)
    elsewhere = Client(str(home), socket_path=str(home / "another"))
    assert elsewhere.request("GET", "/api/runs")["id"] == fake_server.RUN


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.1.0", (0, 1, 0)), ("1.10", (1, 10)), ("2.0.dev3", (2, 0)), ("1.2rc1", (1, 2)), ("", ())],
)
def test_versions_compare_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers
