"""The client of a server: requests that are repeated until a complete response arrives, and followed runs."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from hocket.client import startup
from hocket.client.transport import (
    SILENCE_SECONDS,
    BrokenStreamError,
    Connection,
    check_names,
    quote,
    read_response,
    sse_events,
)
from hocket.errors import Conflict, ServerUnreachable, VersionMismatch

Event = dict[str, Any]

ENDED = frozenset({"done", "failed", "stopped", "lost"})
"""The final statuses of a run. Those of ``model.Status``, whose import is too slow for every command."""
ANSWER_SECONDS = 180.0
"""Longer than any stop may take: the server answers a stop when all processes of the tree are gone."""
ONCE_SECONDS = 10.0
RETRY_SECONDS = 60.0
FIRST_PAUSE, LAST_PAUSE = 0.02, 1.0
"""Seconds between attempts; each pause is twice as long as the one before."""


class Client:
    """The server of one HOCKET_HOME: requests, and runs that are followed while the server comes and goes.

    ``start`` makes a server process when one is needed. Without it nothing is started, and a server of any version
    will do. ``notice`` is called when following is interrupted for more than a moment, and when it continues.
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
        self.home = os.fspath(home)
        self.notice = notice
        self._start = start
        self._socket_path = socket_path or os.path.join(self.home, "sock")
        self._token = token
        self._version_checked = start is None

    def without_start(self) -> Client:
        """A client of the same server that never starts it; it may be used in another thread."""
        return Client(self.home, socket_path=self._socket_path, token=self._token)

    def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """Send a request and return the ``data`` of its response, retrying until a complete response arrives.

        A POST carries an idempotency key, so that a repeated one has no second effect.
        """
        return self.exchange(method, path, body, key)["data"]

    def exchange(self, method: str, path: str, body: Any = None, key: str | None = None) -> dict[str, Any]:
        """The same, with the whole response: ``data`` and ``meta``. Attempts are repeated for RETRY_SECONDS."""
        if method == "POST":
            key = key or os.urandom(16).hex()
        check_names(path)
        payload = b"" if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + RETRY_SECONDS
        pause = FIRST_PAUSE
        while True:
            try:
                with self._connect() as connection:
                    connection.send(self._head(method, path, payload, key) + payload, ANSWER_SECONDS)
                    if connection.status != 503:
                        return read_response(connection)
                reason = "the server is shutting down"
            except OSError as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() > deadline:
                raise ServerUnreachable(f"no response from the server: {reason}", "see: hocket doctor")
            time.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    def post_once(self, path: str, body: Any) -> None:
        """Send a POST that must not be repeated. ServerUnreachable means that no server has taken it.

        OSError means that it may have been carried out: the connection broke, or there was no response in time.
        """
        payload = json.dumps(body).encode()
        with self._connect() as connection:
            connection.send(self._head("POST", check_names(path), payload, None) + payload, ONCE_SECONDS)
            if connection.status == 503:
                raise ServerUnreachable("the server is shutting down")
            read_response(connection)

    def download(self, path: str) -> bytes:
        """The body of a response that is not JSON."""
        try:
            return b"".join(self._stream(path))
        except OSError as error:
            raise ServerUnreachable(f"the connection broke: {error}", "try again") from error

    def run(self, ref: str) -> dict[str, Any]:
        """One run by id, unique prefix or number."""
        run: dict[str, Any] = self.request("GET", f"/api/runs/{quote(ref)}")
        return run

    def follow(self, run: str, after: int = 0, follow: bool = True) -> Iterator[Event]:
        """Every event of a run and of its tree after ``after``, each once, up to the run's own ``run.ended``.

        When the connection breaks or the server restarts, it continues after the last event yielded.
        """
        return (event for event in self.follow_ticking(run, None, after, follow) if event is not None)

    def follow_ticking(
        self, run: str, tick: float | None, after: int = 0, follow: bool = True
    ) -> Iterator[Event | None]:
        """The same, with None whenever there is nothing more for now, and after every ``tick`` seconds of silence."""

        def open_stream(live: bool) -> Iterator[list[Event]]:
            path = f"/api/runs/{quote(run)}/events?follow={live:d}"
            return sse_events(self._stream(path, f"Last-Event-ID: {after}", tick=tick))

        for burst in self._reconnecting(run, open_stream, follow, tick):
            for event in burst:
                if event["seq"] > after:
                    after = event["seq"]
                    yield event
                    if event["type"] == "run.ended" and event["run"] == run:
                        return
            yield None

    def output(self, run: str, stream: str = "out", follow: bool = False, offset: int = 0) -> Iterator[bytes]:
        """What the agent wrote, byte for byte, from ``offset`` on."""
        path = f"/api/runs/{quote(run)}/output?stream={quote(stream)}"
        pieces = self._reconnecting(run, lambda live: self._stream(f"{path}&follow={live:d}&offset={offset}"), follow)
        for piece in pieces:
            offset += len(piece)
            yield piece

    def terminal(
        self, run: str, size: Callable[[], tuple[int, int]], connected: Callable[[Connection], None]
    ) -> Iterator[bytes]:
        """What the terminal of a run shows, until the run ends; an empty piece while the connection is interrupted.

        ``connected`` gets each connection before it begins: its headers will name the viewer, and it can be broken off.
        """

        def open_stream(live: bool) -> Iterator[bytes]:
            if not live:
                return
            columns, rows = size()
            path = f"/api/runs/{quote(run)}/terminal?columns={columns}&rows={rows}"
            try:
                yield from self._stream(path, connected=connected)
            except Conflict:
                if self.run(run)["status"] not in ENDED:
                    raise

        return (piece or b"" for piece in self._reconnecting(run, open_stream, True, RETRY_SECONDS))

    def inbox(self) -> Iterator[list[dict[str, Any]]]:
        """The open questions, now and after each change, without an end."""
        bursts = self._reconnecting(None, lambda live: sse_events(self._stream("/api/inbox/events")), follow=True)
        return (questions for burst in bursts for questions in burst)

    def changes(self, tick: float) -> Iterator[dict[str, Any] | None]:
        """All live runs and open questions, then what changes, without an end; None as in ``follow_ticking``.

        Each connection begins with a ``complete`` message.
        """

        def open_stream(live: bool) -> Iterator[list[dict[str, Any]]]:
            return sse_events(self._stream("/api/runs/events", tick=tick))

        for burst in self._reconnecting(None, open_stream, True, tick):
            yield from burst
            yield None

    def _reconnecting(
        self, run: str | None, open_stream: Callable[[bool], Iterator[Any]], follow: bool, tick: float | None = None
    ) -> Iterator[Any]:
        """The items of ``open_stream(live)``, opened again until the run has ended and everything is read.

        A stream that ends normally may only mean that the server was stopped, so the run's status decides. Without a
        run there is no end.
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
                follow = run is None or self.run(run)["status"] not in ENDED
            except (OSError, ServerUnreachable) as error:
                if pause >= LAST_PAUSE and not interrupted:
                    self._notify(f"lost the server, still trying: {error}")
                    interrupted = True
            time.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)
            if tick is not None:
                yield []

    def _notify(self, text: str) -> None:
        if self.notice:
            self.notice(text)

    def _stream(
        self,
        path: str,
        *headers: str,
        tick: float | None = None,
        connected: Callable[[Connection], None] | None = None,
    ) -> Iterator[bytes]:
        """The pieces of a response, as ``Connection.body`` yields them. One that is ``connected`` may be silent."""
        check_names(path)
        with self._connect() as connection:
            if connected is not None:
                connected(connection)
            connection.send(self._head("GET", path, b"", None, *headers), SILENCE_SECONDS)
            if connection.status == 503:
                raise BrokenStreamError("the server is shutting down")
            if connection.status != 200:
                read_response(connection)
            if connected is not None:
                connection.allow_silence()
            yield from connection.body(tick)

    def _head(self, method: str, path: str, payload: bytes, key: str | None, *more: str) -> bytes:
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *more]
        if method in ("POST", "PUT"):
            head += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        if key:
            head.append(f"Idempotency-Key: {key}")
        if self._token:
            head.append(f"Authorization: Bearer {self._token}")
        return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")

    def _connect(self) -> Connection:
        """A connection to a server of a suitable version, started if that is allowed and needed."""
        sock = self._open_socket()
        try:
            is_outdated = not self._version_checked and startup.is_outdated(self.home)
        except VersionMismatch:
            sock.close()
            raise
        if is_outdated:
            sock.close()
            self._stop_server()
            sock = self._open_socket()
        self._version_checked = True
        return Connection(sock)

    def _open_socket(self) -> socket.socket:
        if sock := startup.connect(self.home, self._socket_path):
            return sock
        if self._start is None:
            raise ServerUnreachable(f"no server is running for {self.home}", "start one with: hocket serve")
        return startup.start_and_connect(self.home, self._socket_path, self._start)

    def _stop_server(self) -> None:
        """Stop an older server and wait until it is gone. Its runs go on without it."""
        with suppress(ServerUnreachable):
            self.without_start().request("POST", "/api/server/stop", {})
        if not startup.wait_unlocked(self.home, startup.CONNECT_SECONDS):
            raise startup.unreachable(self.home, "the older server does not stop")
