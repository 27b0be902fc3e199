"""Streams: resumed where they broke, with no gap and no duplicate, also through the server's own death."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from api.serving import Server, wait_for
from patience import PATIENCE

from hocket.api.stream import event_stream
from hocket.client.transport import sse_events
from hocket.errors import HocketError, StoreError

SLOW_TELLER = """
import sys
for n in range(30):
    print('line', n, flush=True)
    if n % 10 == 9:
        open(f'door{n // 10}').read()
"""


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["text"] for event in events if event["type"] == "text"]


def test_events_have_the_documented_keys(shared: Server) -> None:
    run = shared.start_run("counter")
    events = shared.events(run["id"])
    assert all(set(event) == {"v", "seq", "ts", "run", "root", "type", "data"} for event in events)
    assert {(event["v"], event["run"], event["root"]) for event in events} == {(1, run["id"], run["id"])}
    assert [event["type"] for event in events] == ["run.created", "run.started", *["text"] * 100, "run.ended"]
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    assert events[-1]["data"]["status"] == "done"


@pytest.mark.parametrize("dsl", [False, True])
def test_followed_start_streams_events(shared: Server, dsl: bool) -> None:
    body = {"dsl" if dsl else "agent": "counter", "cwd": str(shared.project)}
    first, again = (shared.post("/api/runs?follow=1", body, headers={"idempotency-key": f"f{dsl}"}) for _ in range(2))
    assert (first.status_code, first.headers["content-type"].partition(";")[0]) == (201, "text/event-stream")
    run = first.headers["location"].removeprefix("/api/runs/")
    told = [json.loads(line[6:]) for line in first.text.splitlines() if line.startswith("data: ")]
    assert told == shared.events(run)
    assert (again.headers["location"], again.text) == (first.headers["location"], first.text)


def test_refused_start_with_follow_is_an_error(shared: Server) -> None:
    refused = shared.post("/api/runs?follow=1", {"agent": "unknown-agent", "cwd": str(shared.project)})
    plain = shared.post("/api/runs", {"agent": "unknown-agent", "cwd": str(shared.project)})
    assert (refused.status_code, refused.json()) == (plain.status_code, plain.json())
    assert refused.status_code == 400


@pytest.mark.parametrize("unix", [False, True])
def test_resumed_stream_has_no_gap_or_duplicate(shared: Server, unix: bool) -> None:
    run = shared.start_run("counter")
    whole = shared.events(run["id"], unix=unix)
    for position in (0, 1, 2, 50, len(whole) - 1):
        part = shared.events(run["id"], most=position, unix=unix) if position else []
        rest = shared.events(run["id"], after=part[-1]["seq"] if part else 0, unix=unix)
        assert part + rest == whole
    assert shared.events(run["id"], after=whole[-1]["seq"], unix=unix) == []


def test_stream_without_follow_ends_at_once(shared: Server) -> None:
    run = shared.start_run("sleeper")
    wait_for(lambda: shared.show(run["id"])["pid"], "its process")
    assert [event["type"] for event in shared.events(run["id"], follow=0)] == ["run.created", "run.started"]
    shared.post(f"/api/runs/{run['id']}/stop", {})


def test_stream_of_a_step_has_only_its_events(shared: Server) -> None:
    chain = shared.start_run("counter:2 -> echo-args", dsl=True)
    ended = shared.ended(chain["id"])
    loop = shared.show(ended["children"][0]["id"])
    leaf = loop["children"][1]
    whole = shared.events(chain["id"])
    assert shared.events(loop["id"]) == [
        event for event in whole if event["run"] in {loop["id"], *(child["id"] for child in loop["children"])}
    ]
    assert shared.events(leaf["id"]) == [event for event in whole if event["run"] == leaf["id"]]
    assert whole[-1]["run"] == chain["id"]


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_stream_continues_at_the_next_server(server: Server, end: str) -> None:
    server.agent("teller", SLOW_TELLER)
    for number in range(3):
        os.mkfifo(server.project / f"door{number}")
    run = server.start_run("teller")
    got: list[dict[str, Any]] = []
    for number in range(3):
        wanted = 10 * (number + 1) + 2 - len(got)
        got += server.events(run["id"], after=got[-1]["seq"] if got else 0, most=wanted)
        getattr(server, end)()
        if number < 2:
            (server.project / f"door{number}").write_text("")
        server.start()
    # A run that ends while there is no server starts one of its own, and two want one lock.
    (server.project / "door2").write_text("")
    got += server.events(run["id"], after=got[-1]["seq"])
    assert texts(got) == [f"line {n}" for n in range(30)]
    assert [event["type"] for event in got if event["type"] != "text"] == ["run.created", "run.started", "run.ended"]
    assert got == server.events(run["id"])


def test_disconnecting_clients_do_no_harm(shared: Server) -> None:
    run = shared.start_run("sleeper")
    wait_for(lambda: shared.show(run["id"])["pid"], "its process")
    for _ in range(100):
        assert [event["type"] for event in shared.events(run["id"], most=1)] == ["run.created"]
    assert shared.get("/api/health").json()["data"]["runs_live"] >= 1
    shared.post(f"/api/runs/{run['id']}/stop", {})
    assert shared.events(run["id"])[-1]["type"] == "run.ended"


# --- The response itself ------------------------------------------------------------------------------------


class Reader:
    """A client that records everything and disconnects on demand."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.disconnects = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.disconnects.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(dict(message))


async def _stream(reader: Reader, pieces: AsyncIterator[bytes]) -> None:
    await asyncio.wait_for(event_stream(pieces)({"type": "http"}, reader.receive, reader.send), PATIENCE)


def test_event_stream_sends_every_piece_and_an_end() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async def main() -> Reader:
        reader = Reader()
        await _stream(reader, pieces())
        return reader

    start, *body = asyncio.run(main()).messages
    assert start["status"] == 200
    assert dict(start["headers"])[b"cache-control"] == b"no-store"
    assert b"content-length" not in dict(start["headers"])
    assert [(one["body"], one["more_body"]) for one in body] == [(b"one", True), (b"two", True), (b"", False)]


def test_event_stream_ends_when_the_client_disconnects() -> None:
    ended = []

    async def pieces(reader: Reader) -> AsyncIterator[bytes]:
        try:
            yield b"one"
            reader.disconnects.set()
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main() -> Reader:
        reader = Reader()
        await _stream(reader, pieces(reader))
        return reader

    assert [one.get("body") for one in asyncio.run(main()).messages] == [None, b"one"]
    assert ended == [True]


@pytest.mark.parametrize(
    ("trouble", "code"), [(StoreError("half-way", "do this"), "store"), (RuntimeError("half-way"), "error")]
)
def test_error_is_the_last_event_of_a_stream(trouble: Exception, code: str) -> None:
    """A stream that broke off would be opened again without end."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'id: 1\ndata: {"seq": 1}\n\n'
        raise trouble

    async def main() -> list[bytes]:
        reader = Reader()
        await _stream(reader, pieces())
        assert reader.messages[-1]["more_body"] is False
        return [one["body"] for one in reader.messages[1:]]

    events = sse_events(iter(asyncio.run(main())))
    assert next(events) == [{"seq": 1}]
    assert next(events) == []
    with pytest.raises(HocketError) as caught:
        next(events)
    assert caught.value.code == code
