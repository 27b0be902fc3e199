"""The thin client against a scripted server that breaks in every way we know."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cli import fake_server

from hocket.client import Client, quote, transport, type_in
from hocket.client.startup import lock_held, parse_version, read_lock, wait_unlocked
from hocket.client.stream import lines, sse_events
from hocket.client.transport import Connection
from hocket.errors import BY_CODE, HocketError, NotFound, ServerUnreachable, ValidationError, VersionMismatch

Launch = Callable[..., Callable[[], None]]


@pytest.fixture
def launch(home: Path) -> Iterator[Launch]:
    """``launch(**options)`` gives a function that starts the scripted server; all are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def prepare(**options: Any) -> Callable[[], None]:
        def start() -> None:
            log = (home / "server.log").open("ab")
            command = [sys.executable, "-IS", fake_server.__file__, str(home), json.dumps(options)]
            started.append(subprocess.Popen(command, stderr=log))
            log.close()

        return start

    yield prepare
    for process in started:
        process.kill()
        process.wait()


def requests(home: Path) -> list[str]:
    return (home / "requests").read_text().splitlines()


def seqs(events: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


def test_a_request_starts_the_server_and_returns_the_data(home: Path, launch: Launch) -> None:
    answer = Client(str(home), launch()).request("POST", "/api/runs", {"dsl": "a -> b"})
    assert answer["echo"] == {"dsl": "a -> b"}
    assert (home / "starts").read_bytes() == b"."


def test_without_permission_to_start_a_missing_server_is_an_error(home: Path) -> None:
    with pytest.raises(ServerUnreachable) as caught:
        Client(str(home)).request("GET", "/api/runs")
    assert str(home) in caught.value.message


def test_a_server_that_fails_to_start_is_reported_with_its_log(home: Path) -> None:
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


def test_a_start_that_is_refused_by_the_system_is_an_error_at_once(home: Path) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", str(home))

    with pytest.raises(ServerUnreachable, match="Permission denied"):
        Client(str(home), refuse).request("GET", "/api/runs")


def test_a_stale_socket_is_no_server(home: Path, launch: Launch) -> None:
    first = Client(str(home), launch())
    first.request("GET", "/api/runs")
    os.kill(read_lock(str(home))["pid"], signal.SIGKILL)
    assert wait_unlocked(str(home), 5)
    assert (home / "sock").exists()
    assert first.request("GET", "/api/runs")["id"] == fake_server.RUN
    assert (home / "starts").read_bytes() == b".."


def test_a_post_whose_answer_was_lost_is_repeated_with_the_same_key(home: Path, launch: Launch) -> None:
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


def test_an_answer_can_be_had_whole_and_a_put_has_a_body(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    assert client.exchange("GET", "/api/runs")["data"]["id"] == fake_server.RUN
    assert client.request("PUT", "/api/tasks/1/status", {"a": 1})["echo"] == {"a": 1}
    assert client.download("/api/odd") == b"hello"
    with pytest.raises(NotFound):
        client.download("/api/error/not_found")


def test_a_token_travels_with_every_request(home: Path, launch: Launch) -> None:
    Client(str(home), launch(), token="s3cret").request("GET", "/api/runs")
    assert "Bearer s3cret" in (home / "requests").read_text()


@pytest.mark.parametrize("code", [*BY_CODE, "something_new"])
def test_an_error_answer_becomes_the_error_it_was(home: Path, launch: Launch, code: str) -> None:
    with pytest.raises(HocketError) as caught:
        Client(str(home), launch()).request("GET", f"/api/error/{code}")
    assert type(caught.value) is BY_CODE.get(code, HocketError)
    assert (caught.value.message, caught.value.hint) == ("no", "try")


def test_an_answer_that_is_no_json_is_an_error(home: Path, launch: Launch) -> None:
    with pytest.raises(HocketError, match="unexpected response"):
        Client(str(home), launch()).request("GET", "/api/odd")


def test_following_yields_every_event_once_and_ends(home: Path, launch: Launch) -> None:
    events = list(Client(str(home), launch(events=50)).follow(fake_server.RUN))
    assert seqs(events) == list(range(1, 51))
    assert events[7]["data"]["text"] == "line 8 äöü"


def test_a_run_is_followed_by_the_answer_that_tells_of_its_start(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    run = client.start_followed("/api/runs", {"dsl": "a"})
    assert run == fake_server.RUN
    assert seqs(list(client.follow(run))) == list(range(1, 11))
    assert [line.split()[:2] for line in requests(home)] == [["POST", "/api/runs?follow=1"]]


def test_who_follows_the_same_run_again_asks_for_it(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    run = client.start_followed("/api/runs", {"dsl": "a"})
    assert seqs(list(client.follow(run, after=8))) == [9, 10]
    assert seqs(list(client.follow(run))) == list(range(1, 11))
    assert seqs(list(client.follow(run))) == list(range(1, 11))


def test_a_start_that_is_followed_and_not_answered_is_asked_for_again(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch(drop_posts=1))
    assert seqs(list(client.follow(client.start_followed("/api/runs", {"dsl": "a"})))) == list(range(1, 11))
    first, second = requests(home)
    assert first == second, "with the same key, so that there is one run"


@pytest.mark.parametrize("fault", [{"die": True}, {}, {"polite_end": True}], ids=["killed", "cut", "shut down"])
def test_a_start_whose_answer_breaks_costs_no_event(home: Path, launch: Launch, fault: dict[str, bool]) -> None:
    client = Client(str(home), launch(cut_after=3, **fault))
    run = client.start_followed("/api/runs", {"dsl": "a"})
    assert seqs(list(client.follow(run))) == list(range(1, 11))


def test_a_server_that_only_starts_is_asked_for_the_rest(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    assert seqs(list(client.follow(client.start_followed("/api/earlier", {"dsl": "a"})))) == list(range(1, 11))
    assert len(requests(home)) == 2


def test_a_start_that_is_refused_is_followed_by_nothing(home: Path, launch: Launch) -> None:
    with pytest.raises(HocketError) as caught:
        Client(str(home), launch()).start_followed("/api/error/conflict", {"dsl": "a"})
    assert caught.value.message == "no"


@pytest.mark.parametrize("chunk", range(1, 12))
def test_chunks_may_be_cut_anywhere(home: Path, launch: Launch, chunk: int) -> None:
    events = list(Client(str(home), launch(events=6, chunk=chunk)).follow(fake_server.RUN))
    assert seqs(events) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fault", [{"die": True}, {}, {"polite_end": True}], ids=["killed", "cut", "shut down"])
@pytest.mark.parametrize("repeat", [0, 3], ids=["exact", "repeating"])
def test_following_survives_breaks_without_gap_or_duplicate(
    home: Path, launch: Launch, fault: dict[str, bool], repeat: int
) -> None:
    start = launch(events=30, cut_after=repeat + 5, repeat=repeat, **fault)
    events = list(Client(str(home), start).follow(fake_server.RUN))
    assert seqs(events) == list(range(1, 31))
    assert [event["type"] for event in events].count("run.ended") == 1
    if fault.get("die"):
        assert len((home / "starts").read_bytes()) >= 5


def test_following_goes_on_behind_a_given_event(home: Path, launch: Launch) -> None:
    events = Client(str(home), launch(events=9)).follow(fake_server.RUN, after=6)
    assert seqs(list(events)) == [7, 8, 9]


def test_following_behind_the_last_event_ends(home: Path, launch: Launch) -> None:
    assert list(Client(str(home), launch(events=9)).follow(fake_server.RUN, after=9)) == []


def test_ticks_come_while_nothing_happens(home: Path, launch: Launch) -> None:
    ticking = Client(str(home), launch(events=3, hold_before=2)).follow_ticking(fake_server.RUN, 0.01)
    before: list[dict[str, Any] | None] = []
    while len(before) < 3 or before[-1] is not None or before.count(None) == len(before):
        before.append(next(ticking))
    (home / "go").touch()
    after = list(ticking)
    assert seqs([event for event in [*before, *after] if event is not None]) == [1, 2, 3]


def test_what_came_together_is_one_burst_and_silence_is_an_empty_one(home: Path, launch: Launch) -> None:
    bursts = Client(str(home), launch(events=3, hold_before=2)).follow_bursts(fake_server.RUN, 0.01)
    before = [next(bursts)]
    while before[-1] or not any(before):
        before.append(next(bursts))
    assert seqs([event for burst in before for event in burst]) == [1]
    (home / "go").touch()
    assert seqs([event for burst in bursts for event in burst]) == [2, 3]


def told(kind: str, /, **data: object) -> bytes:
    """An event as the server writes it."""
    text = json.dumps({"v": 1, "seq": 1, "type": kind, "data": data}, separators=(",", ":"))
    return f"id: 1\ndata: {text}\n\n".encode()


def test_what_nobody_reads_is_left_out_whatever_others_say() -> None:
    said = [told("text", text='"type":"usage"'), told("usage"), told("notice", type="usage"), told("usages")]
    (events,) = sse_events(iter([b"".join(said)]), lambda text: type_in(text) == b"usage")
    assert [event if event == 1 else event["type"] for event in events] == ["text", 1, "notice", "usages"]


def test_following_is_taken_up_behind_what_was_left_unread(home: Path, launch: Launch) -> None:
    """The server breaks off after five events each time: whoever forgot those would never get any further."""
    client = Client(str(home), launch(events=30, cut_after=5))
    bursts = client.follow_bursts(fake_server.RUN, None, skipped=lambda text: type_in(text) != b"run.ended")
    assert seqs([event for burst in islice(bursts, 100) for event in burst]) == [30]


def test_a_piece_brings_the_events_that_end_in_it() -> None:
    stream = told("text") + told("usage")
    pieces = [stream[:10], stream[10:-1], stream[-1:], b""]
    assert [len(events) for events in sse_events(iter(pieces))] == [0, 1, 1, 0]


def test_output_is_taken_up_again_at_the_right_byte(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch(cut_output=999, chunk=7))
    assert b"".join(client.output(fake_server.RUN, "out", follow=True)) == bytes(range(256)) * 40


def test_an_older_server_is_replaced(home: Path, launch: Launch) -> None:
    launch(version="0.0.9")()
    _wait_for_server(home)
    client = Client(str(home), launch())
    client.request("GET", "/api/runs")
    assert read_lock(str(home))["version"] == "0.1.0"
    assert (home / "starts").read_bytes() == b".."


def test_a_newer_server_is_left_alone_and_named(home: Path, launch: Launch) -> None:
    launch(version="9.8.7")()
    _wait_for_server(home)
    with pytest.raises(VersionMismatch) as caught:
        Client(str(home), launch()).request("GET", "/api/runs")
    assert "9.8.7" in (caught.value.hint or "")
    assert lock_held(str(home))


def test_a_client_that_may_not_start_servers_talks_to_any_version(home: Path, launch: Launch) -> None:
    launch(version="9.8.7")()
    _wait_for_server(home)
    assert Client(str(home)).request("GET", "/api/runs")["id"] == fake_server.RUN


def test_a_following_client_outlives_an_upgrade_of_the_server(home: Path, launch: Launch) -> None:
    versions = iter([launch(events=20, cut_after=8, die=True), launch(events=20, version="9.8.7")])

    def start_next() -> None:
        next(versions)()

    events = list(Client(str(home), start_next).follow(fake_server.RUN))
    assert seqs(events) == list(range(1, 21))


def test_the_lock_file_alone_is_no_sign_of_life(home: Path) -> None:
    (home / "server.lock").write_text('{"pid": 1}')
    assert not lock_held(str(home))
    assert not lock_held(str(home / "nowhere"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"text"'])
def test_a_torn_lock_file_reads_as_empty(home: Path, content: bytes) -> None:
    (home / "server.lock").write_bytes(content)
    assert read_lock(str(home)) == {}


def test_the_socket_named_by_the_lock_file_is_used(home: Path, launch: Launch) -> None:
    launch()()
    _wait_for_server(home)
    elsewhere = Client(str(home), socket_path=str(home / "another"))
    assert elsewhere.request("GET", "/api/runs")["id"] == fake_server.RUN


def _wait_for_server(home: Path) -> None:
    deadline = time.monotonic() + 10
    while not (home / "starts").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


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


@pytest.mark.parametrize("place", range(1, len(STREAM)))
def test_an_answer_may_arrive_in_any_two_pieces(place: int) -> None:
    connection = Connection(_Bytes([STREAM[:place], STREAM[place:]]))  # type: ignore[arg-type]
    connection.send(b"", 1)
    assert [event for events in sse_events(connection.body()) for event in events] == [{"a": 1}]


@pytest.mark.parametrize("place", range(60, len(STREAM) - 4))
def test_a_cut_answer_never_looks_complete(place: int) -> None:
    connection = Connection(_Bytes([STREAM[:place]]))  # type: ignore[arg-type]
    connection.send(b"", 1)
    with pytest.raises(ConnectionError):
        list(connection.body())


def test_an_answer_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BODY", 1000)
    connection = Connection(_Bytes([b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 2000]))  # type: ignore[arg-type]
    connection.send(b"", 1)
    with pytest.raises(HocketError, match="larger"):
        connection.content()
    with pytest.raises(HocketError, match="larger"):
        list(lines(iter([b"x" * 2000])))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.1.0", (0, 1, 0)), ("1.10", (1, 10)), ("2.0.dev3", (2, 0)), ("1.2rc1", (1, 2)), ("", ())],
)
def test_versions_compare_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers


def test_names_are_quoted_for_a_path() -> None:
    assert quote("r1-a_b.c~") == "r1-a_b.c~"
    assert quote("../a b/ä?\r\n") == "..%2Fa%20b%2F%C3%A4%3F%0D%0A"


@pytest.mark.parametrize("name", ["", ".", "..", "/", "../../etc", "1/output", "1/"])
def test_a_name_that_would_lead_elsewhere_is_unknown_and_nobody_is_asked(name: str, home: Path) -> None:
    client = Client(str(home))
    with pytest.raises(ValidationError, match=f"^there is no run {re.escape(repr(name))}$") as refused:
        client.run(name)
    assert (refused.value.exit_code, refused.value.hint) == (2, "`hocket ps -a` lists them")
    with pytest.raises(ValidationError, match="there is no task"):
        client.request("PUT", f"/api/tasks/{quote(name)}/status", {})
    with pytest.raises(ValidationError, match="there is no attachment"):
        client.download(f"/api/tasks/1/attachments/{quote(name)}?x=1")


def test_an_unknown_run_is_not_followed_for_ever(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    with pytest.raises(NotFound):
        client.request("GET", "/api/error/not_found")


def test_the_client_loads_nothing_heavy() -> None:
    heavy = "asyncio ssl email http.client dataclasses rich msgspec subprocess"
    program = f"import hocket.client, sys; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
