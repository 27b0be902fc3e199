"""Following runs, against a scripted server that breaks."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from client import fake_server
from client.fake_server import Launch

from hocket.client import Client, type_in
from hocket.client.stream import sse_events
from hocket.errors import HocketError, NotFound


def requests(home: Path) -> list[str]:
    return (home / "requests").read_text().splitlines()


def seqs(events: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


def told(kind: str, /, **data: object) -> bytes:
    """An event as the server writes it."""
    text = json.dumps({"v": 1, "seq": 1, "type": kind, "data": data}, separators=(",", ":"))
    return f"id: 1\ndata: {text}\n\n".encode()


def test_follow_yields_every_event_once(home: Path, launch: Launch) -> None:
    events = list(Client(str(home), launch(events=50)).follow(fake_server.RUN))
    assert seqs(events) == list(range(1, 51))
    assert events[7]["data"]["text"] == "line 8 äöü"


def test_started_run_is_followed_in_the_same_response(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    run = client.start_followed("/api/runs", {"dsl": "a"})
    assert run == fake_server.RUN
    assert seqs(list(client.follow(run))) == list(range(1, 11))
    assert [line.split()[:2] for line in requests(home)] == [["POST", "/api/runs?follow=1"]]


def test_second_follow_opens_a_new_stream(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    run = client.start_followed("/api/runs", {"dsl": "a"})
    assert seqs(list(client.follow(run, after=8))) == [9, 10]
    assert seqs(list(client.follow(run))) == list(range(1, 11))
    assert seqs(list(client.follow(run))) == list(range(1, 11))


def test_followed_start_is_repeated_when_unanswered(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch(drop_posts=1))
    assert seqs(list(client.follow(client.start_followed("/api/runs", {"dsl": "a"})))) == list(range(1, 11))
    first, second = requests(home)
    assert first == second, "with the same key, so that there is one run"


@pytest.mark.parametrize("fault", [{"die": True}, {}, {"polite_end": True}], ids=["killed", "cut", "shut down"])
def test_followed_start_that_breaks_loses_no_event(home: Path, launch: Launch, fault: dict[str, bool]) -> None:
    client = Client(str(home), launch(cut_after=3, **fault))
    run = client.start_followed("/api/runs", {"dsl": "a"})
    assert seqs(list(client.follow(run))) == list(range(1, 11))


def test_server_without_follow_is_asked_for_events(home: Path, launch: Launch) -> None:
    client = Client(str(home), launch())
    assert seqs(list(client.follow(client.start_followed("/api/earlier", {"dsl": "a"})))) == list(range(1, 11))
    assert len(requests(home)) == 2


def test_refused_start_raises(home: Path, launch: Launch) -> None:
    with pytest.raises(HocketError) as caught:
        Client(str(home), launch()).start_followed("/api/error/conflict", {"dsl": "a"})
    assert caught.value.message == "no"


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


def test_events_come_in_bursts(home: Path, launch: Launch) -> None:
    bursts = Client(str(home), launch(events=3, hold_before=2)).follow_bursts(fake_server.RUN, 0.01)
    before = [next(bursts)]
    while before[-1] or not any(before):
        before.append(next(bursts))
    assert seqs([event for burst in before for event in burst]) == [1]
    (home / "go").touch()
    assert seqs([event for burst in bursts for event in burst]) == [2, 3]


def test_skipped_events_are_not_decoded() -> None:
    said = [told("text", text='"type":"usage"'), told("usage"), told("notice", type="usage"), told("usages")]
    (events,) = sse_events(iter([b"".join(said)]), lambda text: type_in(text) == b"usage")
    assert [event if event == 1 else event["type"] for event in events] == ["text", 1, "notice", "usages"]


def test_follow_continues_after_skipped_events(home: Path, launch: Launch) -> None:
    """The server breaks off after five events each time: a client that forgot them would never get further."""
    client = Client(str(home), launch(events=30, cut_after=5))
    bursts = client.follow_bursts(fake_server.RUN, None, skipped=lambda text: type_in(text) != b"run.ended")
    assert seqs([event for burst in islice(bursts, 100) for event in burst]) == [30]


def test_piece_yields_the_events_it_completes() -> None:
    stream = told("text") + told("usage")
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
