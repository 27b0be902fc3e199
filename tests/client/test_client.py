"""Following runs, against a scripted server that breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from client import fake_server
from client.fake_server import Launch

from hocket.client import Client
from hocket.client.transport import Connection, sse_events
from hocket.errors import NotFound, ServerUnreachable


def seqs(events: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


def encoded(kind: str, /, **data: object) -> bytes:
    """An event as the server writes it."""
    text = json.dumps({"v": 1, "seq": 1, "type": kind, "data": data}, separators=(",", ":"))
    return f"id: 1\ndata: {text}\n\n".encode()


def test_follow_yields_every_event_once(home: Path, launch: Launch) -> None:
    events = list(Client(str(home), launch(events=50)).follow(fake_server.RUN))
    assert seqs(events) == list(range(1, 51))
    assert events[7]["data"]["text"] == "line 8 äöü"


@pytest.mark.parametrize("chunk", range(1, 12))
def test_chunks_may_be_cut_anywhere(home: Path, launch: Launch, chunk: int) -> None:
    events = list(Client(str(home), launch(events=6, chunk=chunk)).follow(fake_server.RUN))
    assert seqs(events) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fault", [{"die": True}, {}, {"polite_end": True}], ids=["killed", "cut", "shut down"])
@pytest.mark.parametrize("repeat", [0, 3], ids=["exact", "repeating"])
def test_follow_survives_breaks_without_gap_or_duplicate(
    home: Path, launch: Launch, fault: dict[str, bool], repeat: int
) -> None:
    start = launch(events=30, cut_after=repeat + 5, repeat=repeat, **fault)
    events = list(Client(str(home), start).follow(fake_server.RUN))
    assert seqs(events) == list(range(1, 31))
    assert [event["type"] for event in events].count("run.ended") == 1
    if fault.get("die"):
        assert len((home / "starts").read_bytes()) >= 5


def test_follow_continues_after_a_given_event(home: Path, launch: Launch) -> None:
    events = Client(str(home), launch(events=9)).follow(fake_server.RUN, after=6)
    assert seqs(list(events)) == [7, 8, 9]


def test_follow_after_the_last_event_ends(home: Path, launch: Launch) -> None:
    assert list(Client(str(home), launch(events=9)).follow(fake_server.RUN, after=9)) == []


def test_ticks_come_during_silence(home: Path, launch: Launch) -> None:
    ticking = Client(str(home), launch(events=3, hold_before=2)).follow_ticking(fake_server.RUN, 0.01)
    before: list[dict[str, Any] | None] = []
    while len(before) < 3 or before[-1] is not None or before.count(None) == len(before):
        before.append(next(ticking))
    (home / "go").touch()
    after = list(ticking)
    assert seqs([event for event in [*before, *after] if event is not None]) == [1, 2, 3]


def test_piece_yields_the_events_it_completes() -> None:
    stream = encoded("text") + encoded("usage")
    pieces = [stream[:10], stream[10:-1], stream[-1:], b""]
    assert [len(events) for events in sse_events(iter(pieces))] == [0, 1, 1, 0]


def test_output_continues_at_the_right_byte(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch(cut_output=999, chunk=7))
    assert b"".join(client.output(fake_server.RUN, "out", follow=True)) == bytes(range(256)) * 40


def test_follow_survives_an_upgrade_of_the_server(home: Path, launch: Launch) -> None:
    versions = iter([launch(events=20, cut_after=8, die=True), launch(events=20, version="9.8.7")])

    def start_next() -> None:
        next(versions)()

    events = list(Client(str(home), start_next).follow(fake_server.RUN))
    assert seqs(events) == list(range(1, 21))


def test_unknown_run_is_not_followed(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    with pytest.raises(NotFound):
        client.request("GET", "/api/error/not_found")


@pytest.mark.parametrize("fault", [{"die": True}, {}, {"polite_end": True}], ids=["killed", "cut", "shut down"])
def test_terminal_is_shown_until_the_run_ends(home: Path, launch: Launch, fault: dict[str, bool]) -> None:
    sizes = iter([(80, 24), (100, 30), (120, 40)])
    connections: list[Connection] = []
    client = Client(str(home), launch(terminals=2, **fault))
    pieces = list(client.terminal(fake_server.RUN, lambda: next(sizes), connections.append))
    assert [piece for piece in pieces if piece] == [b"screen 1", b"screen 2"]
    assert b"" in pieces[1:-1], "the connection was interrupted"
    assert [one.headers.get("hocket-viewer") for one in connections if one.status == 200] == ["v1", "v2"]
    asked = [line.split()[1] for line in (home / "requests").read_text().splitlines() if "/terminal" in line]
    assert asked[0].endswith("/terminal?columns=80&rows=24")
    assert asked[1].endswith("/terminal?columns=100&rows=30")


def test_unanswered_post_is_sent_once(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch(drop_posts=1))
    client.request("GET", "/api/runs/x")
    with pytest.raises(ConnectionError):
        client.post_once("/api/runs/x/terminal", {"keys": "a"})
    client.post_once("/api/runs/x/terminal", {"keys": "b"})
    assert len((home / "posts").read_bytes()) == 2


def test_post_without_a_server_is_not_sent(home: Path) -> None:
    with pytest.raises(ServerUnreachable):
        Client(str(home)).post_once("/api/runs/x/terminal", {"keys": "a"})
