"""HTTP/1.1 over the server's unix socket: one request and its response, whole or as a stream of events."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hocket.errors import HocketError, ValidationError, from_wire

MAX_BODY = 64 * 1024 * 1024
MAX_LINE = 64 * 1024
SILENCE_SECONDS = 90.0
"""A stream brings something, a heartbeat at least, well within this time, or its connection is dead."""

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
    """One request and its response. As a context manager it closes the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self._timeout: float | None = 0.0
        self._silence = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

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

    def allow_silence(self) -> None:
        """Wait for the body without a limit: it has no heartbeats."""
        self._timeout = None

    def break_off(self) -> None:
        """End the connection, from any thread: what reads from it raises."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def body(self, tick: float | None = None) -> Iterator[bytes]:
        """The pieces of the body. Ends normally only with the body; a connection that breaks raises.

        With ``tick`` an empty piece is yielded after each ``tick`` seconds in which nothing came.
        """
        if "chunked" in self.headers.get("transfer-encoding", ""):
            yield from self._chunks(tick)
        else:
            yield from self._counted(int(self.headers.get("content-length", 0)))

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

    def _receive(self, seconds: float | None) -> bytes:
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
            try:
                size = int(self._line().partition(b";")[0].strip(), 16)
            except ValueError:
                raise BrokenStreamError("chunk without a size") from None
            if not size:
                break
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
            if size > MAX_BODY:
                raise too_large("line")
        if whole or not piece:
            yield whole


def sse_events(pieces: Iterator[bytes]) -> Iterator[list[Any]]:
    """The server-sent events that each piece completes. The error that ends a stream is raised."""
    data: list[bytes] = []
    failed = False
    for whole in lines(pieces):
        events: list[Any] = []
        for line in whole:
            if line.startswith(b"data:"):
                data.append(line[5:])
            elif line.startswith(b"event:"):
                failed = line[6:].strip() == b"error"
            elif data and line in (b"", b"\r"):
                try:
                    event = json.loads(b"\n".join(data))
                except ValueError as error:
                    text = f"the server sent an event that is not JSON: {error}"
                    raise HocketError(text, "see: hocket doctor") from error
                if failed:
                    yield events
                    raise error_of(event)
                events.append(event)
                data = []
        yield events
