"""The thin client of the API: HTTP/1.1 over the server's unix socket, and what to do when that socket breaks.

Here belong: asking, following, the rule about versions. Here do not belong: how a server is brought up that is not up
(``presence``), how its process is made (``keeper``; its function is handed in as ``start``), where HOCKET_HOME lies
(``config``), and anything that prints. Every command loads this module, so it imports a handful of small stdlib
modules and nothing else: ``http.client`` alone would cost more than the whole of it, and so would ``json``, which
needs regular expressions. What those two are made of in C is all that is needed here. The errors are loaded where one
is met, because making some thirty classes takes a third as long as loading all that a run needs.
"""

from __future__ import annotations

import _json
import _socket as socket  # its C half: making enums of all its constants takes longer than talking to the server
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from hocket import __version__

if TYPE_CHECKING:
    from hocket.errors import HocketError, ServerUnreachable

Event = dict[str, Any]
Answer = TypeVar("Answer")

MAX_BODY = 64 * 1024 * 1024
MAX_LINE = 64 * 1024
CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 180.0
"""Longer than any stop may take: the server answers a stop when the whole tree is gone."""
SILENCE_SECONDS = 90.0
"""A stream says something (a heartbeat at least) well within this time, or its connection is dead."""
RETRY_SECONDS = 60.0

ENDED = frozenset({"done", "failed", "stopped", "lost"})
"""The statuses that nothing follows. ``model.Status`` says the same, but costs more to import than this."""

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_NAMED = {
    "runs": ("run", "`hocket ps -a` lists them"),
    "tasks": ("task", "`hocket task list` lists them"),
    "attachments": ("attachment", None),
    "handoffs": ("hand-off", None),
    "queue": ("item in the queue", None),
    "questions": ("question", None),
}
"""What is named behind such a part of a path, and where the names are told."""
_ABSENT = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError)
_BUSY = (BlockingIOError, InterruptedError)


class BrokenStreamError(ConnectionError):
    """The connection ended before the answer did."""


class _AnyValue:
    """What the scanner asks of a decoder: nothing special about any kind of value."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_int, parse_float, parse_constant = int, float, float


_scan = _json.make_scanner(_AnyValue)  # type: ignore[arg-type]  # it asks for those attributes and nothing more
_spell = _json.make_encoder(None, None, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)  # type: ignore[arg-type]


def from_json(text: bytes) -> Any:
    """The value that a JSON text stands for. Whatever is wrong with a text, ``json`` says it."""
    try:
        spelled = text.decode().strip()
        value, end = _scan(spelled, 0)
        if end == len(spelled):
            return value
    except (ValueError, StopIteration, SystemError):
        pass  # the scanner by itself has no words for what it does not understand
    import json

    return json.loads(text)


def to_json(value: Any) -> str:
    """On one line, in ASCII. Of text, numbers, lists and dictionaries; nothing that contains itself."""
    return "".join(_spell(value, 0))


def snake_keys(value: Any) -> Any:
    """The same value with its keys in our own spelling: the routes of tasks and teams have another one."""
    return _respelled(value, _snake)


def camel_keys(value: Any) -> Any:
    """The way back."""
    return _respelled(value, _camel)


def _respelled(value: Any, spell: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {spell(key): _respelled(one, spell) for key, one in value.items()}
    return [_respelled(one, spell) for one in value] if isinstance(value, list) else value


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def quote(text: str) -> str:
    """One path segment, percent-encoded."""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode(errors="replace"))


def check_names(path: str) -> str:
    """The same path, in which every name can be one. Others would lead elsewhere: so they are unknown right here."""
    before = ""
    for segment in path.partition("?")[0].split("/"):
        if before in _NAMED and (segment in ("", ".", "..") or "%2F" in segment):
            from urllib.parse import unquote

            from hocket.errors import ValidationError

            kind, hint = _NAMED[before]
            raise ValidationError(f"there is no {kind} {unquote(segment)!r}", hint)
        before = segment
    return path


def read_lock(home: str) -> dict[str, Any]:
    """What the newest server of this home wrote about itself; empty when there is nothing readable."""
    try:
        handle = os.open(os.path.join(home, "server.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        record = from_json(os.read(handle, MAX_LINE))
    except (OSError, ValueError):
        return {}
    finally:
        os.close(handle)
    return record if isinstance(record, dict) else {}


class Connection:
    """One request and its answer, with the framing of HTTP/1.1 taken off."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self._patience = self._silence = self._limit = 0.0
        self._kept = False
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._sock.close()
        self._kept = False

    def kept(self) -> Connection:
        """The same, for whoever reads on: it outlives the block that it was made for."""
        self._kept = True
        self._patience = SILENCE_SECONDS
        return self

    def send(self, data: bytes, seconds: float) -> None:
        """Send a request, then read the head of its answer; ``seconds`` bounds each wait."""
        self._patience = self._limit = seconds
        self._sock.settimeout(seconds)
        self._sock.sendall(data)
        status = self._line().split(None, 2)
        if len(status) < 2 or not status[1].isdigit():
            raise BrokenStreamError("no HTTP answer")
        self.status = int(status[1])
        while line := self._line():
            name, _, value = line.partition(b":")
            self.headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")

    def body(self, tick: float | None = None) -> Iterator[bytes]:
        """The pieces of the body. Ends normally only when the body did, not when the connection broke.

        With ``tick`` an empty piece says that nothing came for so many seconds, and again after each so many more.
        """
        if "chunked" in self.headers.get("transfer-encoding", ""):
            yield from self._chunks(tick)
        elif (length := self.headers.get("content-length")) is not None:
            yield from self._counted(int(length))
        else:
            yield from self._rest()

    def content(self) -> bytes:
        """The whole body, bounded."""
        pieces: list[bytes] = []
        size = 0
        for piece in self.body():
            size += len(piece)
            if size > MAX_BODY:
                raise _too_large("answer")
            pieces.append(piece)
        return b"".join(pieces)

    def _receive(self, seconds: float) -> bytes:
        """What comes next, within so many seconds, by the socket's own clock: ``select`` would have to be loaded."""
        if seconds != self._limit:
            self._sock.settimeout(seconds)
            self._limit = seconds
        data = self._sock.recv(65536)
        if not data:
            raise BrokenStreamError("the server closed the connection")
        return data

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE:
                raise BrokenStreamError("a header line without an end")
            self._buffer += self._receive(self._patience)
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return line.rstrip(b"\r")

    def _counted(self, left: int) -> Iterator[bytes]:
        while left > 0:
            piece = self._buffer or self._receive(self._patience)
            piece, self._buffer = piece[:left], piece[left:]
            left -= len(piece)
            yield piece

    def _chunks(self, tick: float | None) -> Iterator[bytes]:
        while True:
            while tick is not None and not self._comes_within(tick):
                yield b""
            size = self._chunk_size()
            if not size:
                break
            if len(self._buffer) > size + 1:  # all of it is there, and the end of its line: so it is nearly always
                piece, self._buffer = self._buffer[:size], self._buffer[size + 2 :]
                yield piece
            else:
                yield from self._counted(size)
                self._line()
        while self._line():
            pass

    def _comes_within(self, tick: float) -> bool:
        """Whether there is something to read; waits for it up to ``tick``."""
        if self._buffer:
            return True
        try:
            self._buffer = self._receive(tick)
        except TimeoutError:
            self._silence += tick
            if self._silence > SILENCE_SECONDS:
                raise BrokenStreamError("the server has gone silent") from None
            return False
        self._silence = 0.0
        return True

    def _chunk_size(self) -> int:
        text = self._line().partition(b";")[0].strip()
        try:
            return int(text, 16)
        except ValueError:
            raise BrokenStreamError("a chunk without a size") from None

    def _rest(self) -> Iterator[bytes]:
        if self._buffer:
            yield self._buffer
        while data := self._sock.recv(65536):
            yield data


def lines(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The whole lines that each piece brings to their end, wherever it was cut. An empty piece brings none."""
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
                raise _too_large("line")
        if whole or not piece:
            yield whole


def sse_events(pieces: Iterator[bytes], unread: Callable[[bytes], bool] | None = None) -> Iterator[list[Any]]:
    """The events that each piece of a stream brings to their end; of one whose text is to stay ``unread`` its number.

    An event counts when its blank line has come: a torn one is never seen. The error that ends a stream is raised.
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
                    raise _error_of(_event(text))
                events.append(int(number) if unread is not None and unread(text) else _event(text))
                data = []
        yield events


def _event(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        from hocket.errors import HocketError

        raise HocketError(f"the server sent an event that is not JSON: {error}", "see: hocket doctor") from error


def type_in(text: bytes) -> bytes:
    """The type of an event that nobody has decoded: the server writes it before anything that others have said."""
    begin = text.find(b'"type":"') + 8
    return text[begin : text.find(b'"', begin)]


class Client:
    """The server of one HOCKET_HOME, whether it lives at the moment or not.

    ``start`` makes a server process; without it nothing is ever started and the version rule is not applied.
    ``notice`` is told when following is interrupted for longer than a moment, and when it goes on.
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
        self._start = start
        self._socket_path = socket_path or os.path.join(self.home, "sock")
        self._token = token
        self.notice = notice
        self._version_checked = start is None
        self._met: set[str] = set()
        """Ids that the server has told: whoever follows one of those need not ask which run is meant."""
        self._opened: dict[str, Connection] = {}
        """Where the events of a run come that was just started: one request more costs both ends more than it looks."""

    def never_starting(self) -> Client:
        """A client of the same server that leaves starting it to others; safe to use in a thread."""
        return Client(self.home, socket_path=self._socket_path, token=self._token)

    # Asking

    def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """The ``data`` of an answer. After a broken connection it asks again: the key makes a POST safe."""
        return self.exchange(method, path, body, key)["data"]

    def exchange(self, method: str, path: str, body: Any = None, key: str | None = None) -> dict[str, Any]:
        """The whole of an answer, for those who need its ``meta`` too."""
        return self._insist(method, path, body, key, _answer_of)

    def _insist(
        self, method: str, path: str, body: Any, key: str | None, take: Callable[[Connection], Answer]
    ) -> Answer:
        """What is taken of an answer. A connection that breaks before that is no answer, so it asks again."""
        if method == "POST":
            key = key or os.urandom(16).hex()
        check_names(path)
        payload = b"" if body is None else to_json(body).encode()
        deadline = time.monotonic() + RETRY_SECONDS
        pause = 0.02
        while True:
            try:
                with self._connect() as connection:
                    connection.send(self._head(method, path, payload, key) + payload, ANSWER_SECONDS)
                    if connection.status != 503:
                        return take(connection)
                trouble = "the server is shutting down"
            except OSError as broken:
                trouble = str(broken) or type(broken).__name__
            if time.monotonic() > deadline:
                raise _unreachable(f"the server does not answer: {trouble}", "see: hocket doctor")
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def download(self, path: str) -> bytes:
        """A body that is no JSON, whole."""
        try:
            return b"".join(self._stream(path))
        except OSError as broken:
            raise _unreachable(f"the connection broke: {broken}", "ask again") from broken

    def run(self, ref: str) -> dict[str, Any]:
        """One run by id, unique prefix or number."""
        return self._meet(self.request("GET", f"/api/runs/{quote(ref)}"))

    def start_followed(self, path: str, body: dict[str, Any]) -> str:
        """The id of the run that a POST has started; whoever follows it now reads on where that answer goes on."""
        return self._insist("POST", f"{path}?follow=1", body, None, self._open)

    def _open(self, connection: Connection) -> str:
        if "location" not in connection.headers:  # It is refused, or the server is of an age that does not know this.
            return str(self._meet(_answer_of(connection)["data"])["id"])
        run = connection.headers["location"].rpartition("/")[2]
        self._opened[run] = connection.kept()
        self._met.add(run)
        return run

    def _meet(self, run: dict[str, Any]) -> dict[str, Any]:
        self._met.add(run["id"])
        return run

    def _id(self, ref: str) -> str:
        return ref if ref in self._met else str(self.run(ref)["id"])

    def _head(self, method: str, path: str, payload: bytes, key: str | None, *more: str) -> bytes:
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *more]
        if method in ("POST", "PUT"):
            head += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        if key:
            head.append(f"Idempotency-Key: {key}")
        if self._token:
            head.append(f"Authorization: Bearer {self._token}")
        return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")

    # Following

    def follow(self, ref: str, after: int = 0, follow: bool = True) -> Iterator[Event]:
        """Every event of a run and of its tree after ``after``, each once, up to the run's own ``run.ended``.

        Whatever happens to the server meanwhile, the stream is taken up again behind the last event yielded.
        """
        return (event for burst in self.follow_bursts(ref, None, after, follow) for event in burst)

    def follow_ticking(
        self, ref: str, tick: float | None, after: int = 0, follow: bool = True
    ) -> Iterator[Event | None]:
        """The same, with None when there is nothing more for now, and after every ``tick`` seconds of that."""
        for burst in self.follow_bursts(ref, tick, after, follow):
            yield from burst
            yield None

    def follow_bursts(
        self,
        ref: str,
        tick: float | None,
        after: int = 0,
        follow: bool = True,
        unread: Callable[[bytes], bool] | None = None,
    ) -> Iterator[list[Event]]:
        """The same, with what came together in one list, and an empty one after every ``tick`` seconds of silence.

        Events whose text is ``unread`` are left out: whoever shows nothing of them need not have them decoded.
        """
        run = self._id(ref)

        def behind_the_last(live: bool) -> Iterator[list[Event]]:
            return sse_events(self._events(run, after, live, tick), unread)

        for burst in self._resumed(run, behind_the_last, follow, tick):
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
        """What the agent wrote, byte for byte, from ``offset`` on; taken up again where a connection broke."""
        run = self._id(ref)
        path = f"/api/runs/{quote(run)}/output?stream={quote(stream)}"
        pieces = self._resumed(run, lambda live: self._stream(f"{path}&follow={live:d}&offset={offset}"), follow)
        for piece in pieces:
            offset += len(piece)
            yield piece

    def inbox(self) -> Iterator[list[dict[str, Any]]]:
        """Every open question, now and after each change, for ever; taken up again when a connection breaks."""
        pause = 0.02
        while True:
            try:
                for told in sse_events(self._stream("/api/inbox/events")):
                    pause = 0.02
                    yield from told
            except Exception as broken:
                if not _may_pass(broken):
                    raise
                if pause >= 1.0:
                    self._say(f"lost the server, still trying: {broken}")
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _resumed(
        self, run: str, open_stream: Callable[[bool], Iterator[Any]], follow: bool, tick: float | None = None
    ) -> Iterator[Any]:
        """The items of ``open_stream(live)``, opened again until the run is over and nothing is left to read.

        A stream that ends in good order may only mean that the server was asked to leave, so the run decides.
        """
        pause = 0.02
        interrupted = False
        while True:
            try:
                for item in open_stream(follow):
                    if item:
                        interrupted = interrupted and self._say("connected again")
                        pause = 0.02
                    yield item
                if not follow:
                    return
                follow = self.run(run)["status"] not in ENDED
            except Exception as broken:
                if not _may_pass(broken):
                    raise
                if pause >= 1.0 and not interrupted:
                    interrupted = not self._say(f"lost the server, still trying: {broken}")
            time.sleep(pause)
            pause = min(pause * 2, 1.0)
            if tick is not None:
                yield []

    def _events(self, run: str, after: int, follow: bool, tick: float | None) -> Iterator[bytes]:
        if after == 0 and follow and (opened := self._opened.pop(run, None)) is not None:
            with opened:
                yield from opened.body(tick)
            return
        path = f"/api/runs/{quote(run)}/events?follow={follow:d}"
        yield from self._stream(path, f"Last-Event-ID: {after}", tick=tick)

    def _stream(self, path: str, *headers: str, tick: float | None = None) -> Iterator[bytes]:
        """The pieces of an answer."""
        check_names(path)
        with self._connect() as connection:
            connection.send(self._head("GET", path, b"", None, *headers), SILENCE_SECONDS)
            if connection.status == 503:
                raise BrokenStreamError("the server is shutting down")
            if connection.status != 200:
                _answer_of(connection)
            yield from connection.body(tick)

    def _say(self, text: str) -> bool:
        """Tell the caller; false, so that callers can use it to set a flag."""
        if self.notice:
            self.notice(text)
        return False

    # Reaching the server

    def _connect(self) -> Connection:
        """A connection to a server of a version we can talk to, started if that is allowed and needed."""
        sock = self._try_connect() or self._start_and_connect()
        if self._version_checked:
            return Connection(sock)
        try:
            outdated = self._server_is_outdated()
        except Exception:
            sock.close()
            raise
        self._version_checked = True
        if not outdated:
            return Connection(sock)
        sock.close()
        self._ask_to_leave()
        return Connection(self._try_connect() or self._start_and_connect())

    def _try_connect(self) -> socket.socket | None:
        """None when nobody listens. A full queue is waited for: that server lives and is busy."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                sock.connect(self._address())
                return sock
            except OSError as error:
                sock.close()
                if isinstance(error, _ABSENT):
                    return None
                if not isinstance(error, _BUSY) or time.monotonic() > deadline:
                    raise self._out_of_reach(str(error)) from error
            time.sleep(0.01)

    def _address(self) -> str:
        """The running server knows best where it listens: its environment may have differed from ours."""
        path = read_lock(self.home).get("socket")
        return path if isinstance(path, str) and path else self._socket_path

    def _start_and_connect(self) -> socket.socket:
        start = self._start
        if start is None:
            raise _unreachable(f"no server is running for {self.home}", "start one with: hocket serve")
        from hocket.presence import Attempt

        attempt = Attempt(self.home, lambda: _make_server(start), CONNECT_SECONDS)
        while True:
            time.sleep(attempt.pause())
            if sock := self._try_connect():
                return sock
            if attempt.hopeless():
                raise self._out_of_reach("it did not come up", attempt.log())

    def _out_of_reach(self, why: str, log: str = "") -> ServerUnreachable:
        told = f"; its log ends with:\n{log}" if log else ""
        return _unreachable(f"cannot reach the server of {self.home}: {why}{told}", "look at it with: hocket doctor")

    def _server_is_outdated(self) -> bool:
        """Whether the living server is older than we are; a newer one is refused: we might misread it."""
        version = read_lock(self.home).get("version")
        if not isinstance(version, str) or version == __version__:
            return False
        from hocket.presence import parse_version

        theirs, ours = parse_version(version), parse_version(__version__)
        if theirs > ours:
            from hocket.errors import VersionMismatch

            raise VersionMismatch(
                f"the server is version {version} and this program is {__version__}",
                f"install hocket {version} here, or stop that server with: hocket server stop",
            )
        return theirs < ours

    def _ask_to_leave(self) -> None:
        """Stop the older server and wait until its lock is free. Runs live on without it."""
        from contextlib import suppress

        from hocket.errors import ServerUnreachable
        from hocket.presence import wait_unlocked

        leaving = self.never_starting()
        with suppress(ServerUnreachable):
            leaving.request("POST", "/api/server/stop", {})
        if not wait_unlocked(self.home, CONNECT_SECONDS):
            raise self._out_of_reach("the older server does not leave")


def _make_server(start: Callable[[], None]) -> None:
    try:
        start()
    except OSError as error:
        raise _unreachable(f"cannot start the server: {error}", "see: hocket doctor") from error


def _answer_of(connection: Connection) -> dict[str, Any]:
    """All of an answer; what it refuses is raised."""
    status = connection.status
    try:
        answer = from_json(connection.content())
    except ValueError:
        answer = None
    if status < 400 and isinstance(answer, dict) and "data" in answer:
        return answer
    raise _error_of(answer, f" (status {status})")


def _error_of(answer: Any, about: str = "") -> HocketError:
    """The error that a response, or the end of a stream, tells."""
    from hocket.errors import HocketError, from_wire

    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        return from_wire(str(error.get("code")), str(error.get("message")), error.get("hint"))
    return HocketError(f"unexpected response from server{about}", "see: hocket doctor")


def _too_large(what: str) -> HocketError:
    from hocket.errors import HocketError

    return HocketError(f"the server sent a larger {what} than {MAX_BODY // 2**20} MB")


def _unreachable(message: str, hint: str) -> ServerUnreachable:
    from hocket.errors import ServerUnreachable

    return ServerUnreachable(message, hint)


def _may_pass(trouble: Exception) -> bool:
    """Whether trying again can help."""
    if isinstance(trouble, OSError):
        return True
    from hocket.errors import ServerUnreachable

    return isinstance(trouble, ServerUnreachable)
