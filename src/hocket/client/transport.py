"""HTTP/1.1 over the server's unix socket: requests that are repeated until a complete response arrives."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from hocket.client import startup
from hocket.errors import HocketError, ServerUnreachable, ValidationError, from_wire

Result = TypeVar("Result")

MAX_BODY = 64 * 1024 * 1024
MAX_LINE = 64 * 1024
ANSWER_SECONDS = 180.0
"""Longer than any stop may take: the server answers a stop when all processes of the tree are gone."""
SILENCE_SECONDS = 90.0
"""A stream brings something, a heartbeat at least, well within this time, or its connection is dead."""
RETRY_SECONDS = 60.0
FIRST_PAUSE, LAST_PAUSE = 0.02, 1.0
"""Seconds between attempts; each pause is twice as long as the one before."""

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_NAMED = {
    "runs": ("run", "`hocket ps -a` lists them"),
    "tasks": ("task", "`hocket task list` lists them"),
    "attachments": ("attachment", None),
    "handoffs": ("hand-off", None),
    "queue": ("queue item", None),
    "questions": ("question", None),
}
"""What the next part of a path names, and a hint."""


def quote(text: str) -> str:
    """Percent-encode one segment of a path."""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode(errors="replace"))


def check_names(path: str) -> str:
    """Return the path. Raises where the name of a run, a task or the like would make it another path."""
    before = ""
    for segment in path.partition("?")[0].split("/"):
        if before in _NAMED and (segment in ("", ".", "..") or "%2F" in segment):
            from urllib.parse import unquote

            kind, hint = _NAMED[before]
            raise ValidationError(f"there is no {kind} {unquote(segment)!r}", hint)
        before = segment
    return path


class BrokenStreamError(ConnectionError):
    """The connection ended before the response did."""


class Connection:
    """One request and its response. As a context manager it closes the socket, unless ``keep_open`` was called."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self._timeout = 0.0
        self._silence = 0.0
        self._kept = False
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._sock.close()
        self._kept = False

    def keep_open(self) -> Connection:
        """Let the connection outlive the current ``with`` block, for reading the rest of a stream later."""
        self._kept = True
        self._timeout = SILENCE_SECONDS
        return self

    def send(self, data: bytes, seconds: float) -> None:
        """Send a request and read the head of its response; ``seconds`` limits each wait."""
        self._timeout = seconds
        self._sock.settimeout(seconds)
        self._sock.sendall(data)
        status = self._line().split(None, 2)
        if len(status) < 2 or not status[1].isdigit():
            raise BrokenStreamError("no HTTP response")
        self.status = int(status[1])
        while line := self._line():
            name, _, value = line.partition(b":")
            self.headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")

    def body(self, tick: float | None = None) -> Iterator[bytes]:
        """The pieces of the body. Ends normally only with the body; a connection that breaks raises.

        With ``tick`` an empty piece is yielded after each ``tick`` seconds in which nothing came.
        """
        if "chunked" in self.headers.get("transfer-encoding", ""):
            yield from self._chunks(tick)
        elif (length := self.headers.get("content-length")) is not None:
            yield from self._counted(int(length))
        else:
            yield from self._rest()

    def content(self) -> bytes:
        """The whole body. Raises if it is larger than MAX_BODY."""
        pieces: list[bytes] = []
        size = 0
        for piece in self.body():
            size += len(piece)
            if size > MAX_BODY:
                raise too_large("response")
            pieces.append(piece)
        return b"".join(pieces)

    def _receive(self, seconds: float) -> bytes:
        self._sock.settimeout(seconds)
        data = self._sock.recv(65536)
        if not data:
            raise BrokenStreamError("the server closed the connection")
        return data

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE:
                raise BrokenStreamError("header line too long")
            self._buffer += self._receive(self._timeout)
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return line.rstrip(b"\r")

    def _counted(self, left: int) -> Iterator[bytes]:
        while left > 0:
            piece = self._buffer or self._receive(self._timeout)
            piece, self._buffer = piece[:left], piece[left:]
            left -= len(piece)
            yield piece

    def _chunks(self, tick: float | None) -> Iterator[bytes]:
        while True:
            while tick is not None and not self._receives_within(tick):
                yield b""
            size = self._chunk_size()
            if not size:
                break
            if len(self._buffer) > size + 1:  # the whole chunk and its line end, as nearly always
                piece, self._buffer = self._buffer[:size], self._buffer[size + 2 :]
                yield piece
            else:
                yield from self._counted(size)
                self._line()
        while self._line():
            pass

    def _receives_within(self, tick: float) -> bool:
        """Whether something comes within ``tick`` seconds, or is there already."""
        if self._buffer:
            return True
        try:
            self._buffer = self._receive(tick)
        except TimeoutError:
            self._silence += tick
            if self._silence > SILENCE_SECONDS:
                raise BrokenStreamError(f"no data from the server for {SILENCE_SECONDS:.0f} s") from None
            return False
        self._silence = 0.0
        return True

    def _chunk_size(self) -> int:
        text = self._line().partition(b";")[0].strip()
        try:
            return int(text, 16)
        except ValueError:
            raise BrokenStreamError("chunk without a size") from None

    def _rest(self) -> Iterator[bytes]:
        if self._buffer:
            yield self._buffer
        while data := self._sock.recv(65536):
            yield data


class Transport:
    """Requests to the server of one HOCKET_HOME, which is started when needed if ``start`` is given.

    ``start`` makes a server process. Without it nothing is started, and a server of any version will do.
    """

    def __init__(
        self,
        home: str,
        start: Callable[[], None] | None = None,
        *,
        socket_path: str | None = None,
        token: str | None = None,
    ) -> None:
        self.home = os.fspath(home)
        self._start = start
        self._socket_path = socket_path or os.path.join(self.home, "sock")
        self._token = token
        self._version_checked = start is None

    def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """Send a request and return the ``data`` of its response, retrying until a complete response arrives.

        A POST carries an idempotency key, so that a repeated one has no second effect.
        """
        return self.exchange(method, path, body, key)["data"]

    def exchange(self, method: str, path: str, body: Any = None, key: str | None = None) -> dict[str, Any]:
        """The same, with the whole response: ``data`` and ``meta``."""
        return self._retry(method, path, body, key, read_response)

    def download(self, path: str) -> bytes:
        """The body of a response that is not JSON."""
        try:
            return b"".join(self._stream(path))
        except OSError as error:
            raise ServerUnreachable(f"the connection broke: {error}", "try again") from error

    def _retry(
        self, method: str, path: str, body: Any, key: str | None, read: Callable[[Connection], Result]
    ) -> Result:
        """What ``read`` makes of the response, after as many attempts as RETRY_SECONDS allow."""
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
                        return read(connection)
                reason = "the server is shutting down"
            except OSError as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() > deadline:
                raise ServerUnreachable(f"no response from the server: {reason}", "see: hocket doctor")
            time.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    def _stream(self, path: str, *headers: str, tick: float | None = None) -> Iterator[bytes]:
        """The pieces of a response, as ``Connection.body`` yields them."""
        check_names(path)
        with self._connect() as connection:
            connection.send(self._head("GET", path, b"", None, *headers), SILENCE_SECONDS)
            if connection.status == 503:
                raise BrokenStreamError("the server is shutting down")
            if connection.status != 200:
                read_response(connection)
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
        if self._version_checked:
            return Connection(sock)
        try:
            outdated = startup.is_outdated(self.home)
        except Exception:
            sock.close()
            raise
        self._version_checked = True
        if not outdated:
            return Connection(sock)
        sock.close()
        self._stop_server()
        return Connection(self._open_socket())

    def _open_socket(self) -> socket.socket:
        if sock := startup.connect(self.home, self._socket_path):
            return sock
        if self._start is None:
            raise ServerUnreachable(f"no server is running for {self.home}", "start one with: hocket serve")
        return startup.start_and_connect(self.home, self._socket_path, self._start)

    def _stop_server(self) -> None:
        """Stop an older server and wait until it is gone. Its runs go on without it."""
        with suppress(ServerUnreachable):
            Transport(self.home, socket_path=self._socket_path, token=self._token).request(
                "POST", "/api/server/stop", {}
            )
        if not startup.wait_unlocked(self.home, startup.CONNECT_SECONDS):
            raise startup.unreachable(self.home, "the older server does not stop")


def read_response(connection: Connection) -> dict[str, Any]:
    """The whole response. Raises the error that it carries."""
    try:
        response = json.loads(connection.content())
    except ValueError:
        response = None
    if connection.status < 400 and isinstance(response, dict) and "data" in response:
        return response
    raise error_of(response, f" (status {connection.status})")


def error_of(response: Any, about: str = "") -> HocketError:
    """The error that a response, or the last event of a stream, carries."""
    error = response.get("error") if isinstance(response, dict) else None
    if isinstance(error, dict):
        return from_wire(str(error.get("code")), str(error.get("message")), error.get("hint"))
    return HocketError(f"unexpected response from server{about}", "see: hocket doctor")


def too_large(what: str) -> HocketError:
    """The error for a response that is larger than MAX_BODY."""
    return HocketError(f"the server sent a {what} larger than {MAX_BODY // 2**20} MB")
