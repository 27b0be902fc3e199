"""Following runs: events and output as they come, reconnecting whenever a connection breaks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from hocket.client import transport
from hocket.client.transport import FIRST_PAUSE, LAST_PAUSE, Connection, Transport, quote
from hocket.errors import HocketError, ServerUnreachable

Event = dict[str, Any]

ENDED = frozenset({"done", "failed", "stopped", "lost"})
"""The final statuses of a run. Those of ``model.Status``, whose import is too slow for every command."""


def lines(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The lines that each piece completes; an empty piece gives an empty list."""
    torn: list[bytes] = []
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        if whole and torn:
            whole[0] = b"".join([*torn, whole[0]])
            torn, size = [], 0
        if rest:
            torn.append(rest)
            size += len(rest)
            if size > transport.MAX_BODY:
                raise transport.too_large("line")
        if whole or not piece:
            yield whole


def sse_events(pieces: Iterator[bytes], skipped: Callable[[bytes], bool] | None = None) -> Iterator[list[Any]]:
    """The server-sent events that each piece completes; for one whose text is ``skipped``, its number alone.

    An event is complete with its blank line. The error that ends a stream is raised.
    """
    data: list[bytes] = []
    number = b"0"
    failed = False
    for whole in lines(pieces):
        events: list[Any] = []
        for line in whole:
            if line.startswith(b"data:"):
                data.append(line[5:])
            elif line.startswith(b"id:"):
                number = line[3:]
            elif line.startswith(b"event:"):
                failed = line[6:].strip() == b"error"
            elif data and line in (b"", b"\r"):
                text = b"\n".join(data)
                if failed:
                    yield events
                    raise transport.error_of(_decoded(text))
                events.append(int(number) if skipped is not None and skipped(text) else _decoded(text))
                data = []
        yield events


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise HocketError(f"the server sent an event that is not JSON: {error}", "see: hocket doctor") from error


def type_in(text: bytes) -> bytes:
    """The type of an event that is not decoded. The server writes it before any text of others."""
    begin = text.find(b'"type":"') + 8
    return text[begin : text.find(b'"', begin)]


class Client(Transport):
    """The server of one HOCKET_HOME: requests, and runs that are followed while the server comes and goes.

    ``notice`` is called when following is interrupted for more than a moment, and when it continues.
    """

    def __init__(
        self,
        home: str,
        start: Callable[[], None] | None = None,
        *,
        socket_path: str | None = None,
        token: str | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(home, start, socket_path=socket_path, token=token)
        self.notice = notice
        self._known_ids: set[str] = set()
        """Ids that the server has sent: they need not be resolved before they are followed."""
        self._open_streams: dict[str, Connection] = {}
        """Responses of ``start_followed`` that go on with the events of the run they started."""

    def without_start(self) -> Client:
        """A client of the same server that never starts it; it may be used in another thread."""
        return Client(self.home, socket_path=self._socket_path, token=self._token)

    def run(self, ref: str) -> dict[str, Any]:
        """One run by id, unique prefix or number."""
        return self._remember(self.request("GET", f"/api/runs/{quote(ref)}"))

    def start_followed(self, path: str, body: dict[str, Any]) -> str:
        """Start a run by a POST and return its id. Its events come with the same response: follow it next."""
        return self._retry("POST", f"{path}?follow=1", body, None, self._keep_stream)

    def _keep_stream(self, connection: Connection) -> str:
        if "location" not in connection.headers:  # refused, or a server that does not know ``follow``
            return str(self._remember(transport.read_response(connection)["data"])["id"])
        run = connection.headers["location"].rpartition("/")[2]
        self._open_streams[run] = connection.keep_open()
        self._known_ids.add(run)
        return run

    def _remember(self, run: dict[str, Any]) -> dict[str, Any]:
        self._known_ids.add(run["id"])
        return run

    def _resolve(self, ref: str) -> str:
        return ref if ref in self._known_ids else str(self.run(ref)["id"])

    def follow(self, ref: str, after: int = 0, follow: bool = True) -> Iterator[Event]:
        """Every event of a run and of its tree after ``after``, each once, up to the run's own ``run.ended``.

        When the connection breaks or the server restarts, it continues after the last event yielded.
        """
        return (event for burst in self.follow_bursts(ref, None, after, follow) for event in burst)

    def follow_ticking(
        self, ref: str, tick: float | None, after: int = 0, follow: bool = True
    ) -> Iterator[Event | None]:
        """The same, with None whenever there is nothing more for now, and after every ``tick`` seconds of silence."""
        for burst in self.follow_bursts(ref, tick, after, follow):
            yield from burst
            yield None

    def follow_bursts(
        self,
        ref: str,
        tick: float | None,
        after: int = 0,
        follow: bool = True,
        skipped: Callable[[bytes], bool] | None = None,
    ) -> Iterator[list[Event]]:
        """The same, in lists of events that came together; an empty one after every ``tick`` seconds of silence.

        Events whose text is ``skipped`` are neither decoded nor yielded.
        """
        run = self._resolve(ref)

        def open_stream(live: bool) -> Iterator[list[Event]]:
            return sse_events(self._events(run, after, live, tick), skipped)

        for burst in self._reconnecting(run, open_stream, follow, tick):
            fresh: list[Event] = []
            for event in burst:
                number = event if isinstance(event, int) else event["seq"]
                if number <= after:
                    continue
                after = number
                if event is not number:
                    fresh.append(event)
                    if event["type"] == "run.ended" and event["run"] == run:
                        yield fresh
                        return
            yield fresh

    def output(self, ref: str, stream: str = "out", follow: bool = False, offset: int = 0) -> Iterator[bytes]:
        """What the agent wrote, byte for byte, from ``offset`` on."""
        run = self._resolve(ref)
        path = f"/api/runs/{quote(run)}/output?stream={quote(stream)}"
        pieces = self._reconnecting(run, lambda live: self._stream(f"{path}&follow={live:d}&offset={offset}"), follow)
        for piece in pieces:
            offset += len(piece)
            yield piece

    def inbox(self) -> Iterator[list[dict[str, Any]]]:
        """The open questions, now and after each change, without an end."""
        pause = FIRST_PAUSE
        while True:
            try:
                for burst in sse_events(self._stream("/api/inbox/events")):
                    pause = FIRST_PAUSE
                    yield from burst
            except (OSError, ServerUnreachable) as error:
                if pause >= LAST_PAUSE:
                    self._notify(f"lost the server, still trying: {error}")
            time.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    def _reconnecting(
        self, run: str, open_stream: Callable[[bool], Iterator[Any]], follow: bool, tick: float | None = None
    ) -> Iterator[Any]:
        """The items of ``open_stream(live)``, opened again until the run has ended and everything is read.

        A stream that ends normally may only mean that the server was stopped, so the run's status decides.
        """
        pause = FIRST_PAUSE
        interrupted = False
        while True:
            try:
                for item in open_stream(follow):
                    if item:
                        if interrupted:
                            self._notify("connected again")
                        interrupted, pause = False, FIRST_PAUSE
                    yield item
                if not follow:
                    return
                follow = self.run(run)["status"] not in ENDED
            except (OSError, ServerUnreachable) as error:
                if pause >= LAST_PAUSE and not interrupted:
                    self._notify(f"lost the server, still trying: {error}")
                    interrupted = True
            time.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)
            if tick is not None:
                yield []

    def _events(self, run: str, after: int, follow: bool, tick: float | None) -> Iterator[bytes]:
        if after == 0 and follow and (opened := self._open_streams.pop(run, None)) is not None:
            with opened:
                yield from opened.body(tick)
            return
        path = f"/api/runs/{quote(run)}/events?follow={follow:d}"
        yield from self._stream(path, f"Last-Event-ID: {after}", tick=tick)

    def _notify(self, text: str) -> None:
        if self.notice:
            self.notice(text)
