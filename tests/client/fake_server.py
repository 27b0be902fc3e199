"""A scripted server for tests of the client: it keeps its events in a file, and breaks where it is told to.

Run as a program: ``python fake_server.py HOME OPTIONS``. The options are JSON:

- ``events``: how many events the one run has; the last one is its ``run.ended``
- ``chunk``: how many bytes go into one chunk of a stream
- ``cut_after``: a stream's connection is cut after so many events, in the middle of the next one
- ``drop_posts``: so many POST requests are carried out and then not answered
- ``repeat``: a stream begins so many events too early
- ``hold_before``: this event is held back until a file ``go`` appears in the home
- ``version``: what the lock file says
- ``terminals``: so many streams of a terminal are cut; then the run has ended
- ``polite_end``: a stream that is cut ends in good order, as a server that shuts down would do
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

RUN = "rfake"
Launch = Callable[..., Callable[[], None]]
"""What the fixture ``launch`` gives: from options to a function that starts the server."""


def event(seq: int, last: int) -> dict[str, Any]:
    kind = "run.created" if seq == 1 else "run.ended" if seq == last else "text"
    data: dict[str, Any] = {"text": f"line {seq} äöü"}
    if seq == last:
        data = {"status": "done", "reason": "exit", "result": "all of it"}
    return {"v": 1, "seq": seq, "ts": 0.5, "run": RUN, "root": RUN, "type": kind, "data": data}


class FakeServer:
    def __init__(self, home: str, options: dict[str, Any]) -> None:
        self.home = home
        self.options = options
        self.last = options.get("events", 10)
        self.guard = threading.Lock()

    def count(self, name: str) -> int:
        """Count across restarts: one byte is appended each time."""
        with open(os.path.join(self.home, name), "ab") as file:
            file.write(b".")
            return file.tell()

    def note(self, line: str) -> None:
        with self.guard, open(os.path.join(self.home, "requests"), "a") as file:
            file.write(line + "\n")

    def serve(self) -> None:
        lock = os.open(os.path.join(self.home, "server.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(self.home, "sock")
        if os.path.exists(path):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        record = {"pid": os.getpid(), "version": self.options.get("version", "0.1.0"), "socket": path}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(record).encode(), 0)
        listener.listen(64)
        self.count("starts")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.handle, args=(connection,), daemon=True).start()

    def handle(self, connection: socket.socket) -> None:
        self.count("connections")
        with connection:
            self.handle_one(connection, connection.makefile("rb"))

    def handle_one(self, connection: socket.socket, file: BinaryIO) -> None:
        if first := file.readline().decode():
            method, path, _ = first.split()
            headers = {}
            while line := file.readline().strip().decode():
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            body = file.read(int(headers.get("content-length", 0)))
            self.note(f"{method} {path} {headers.get('idempotency-key', '-')} {headers.get('authorization', '-')}")
            with contextlib.suppress(OSError):
                self.answer(connection, method, path, headers, body)

    def answer(self, connection: socket.socket, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if path.endswith("/server/stop"):
            self.reply(connection, 202, {"data": {}})
            os._exit(0)
        if method == "POST" and self.count("posts") <= self.options.get("drop_posts", 0):
            return
        if "/events" in path:
            self.stream(connection, int(headers.get("last-event-id", "0")))
        elif "/output" in path:
            self.output(connection, int(path.rpartition("offset=")[2]))
        elif "/terminal" in path and method == "GET":
            self.terminal(connection)
        elif path == "/api/odd":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        elif path.startswith("/api/error/"):
            code = path.partition("?")[0].rpartition("/")[2]
            self.reply(connection, 409, {"error": {"code": code, "message": "no", "hint": "try"}})
        else:
            ended = os.path.exists(os.path.join(self.home, "over"))
            data = {"id": RUN, "status": "done" if ended else "running", "echo": json.loads(body or b"null")}
            self.reply(connection, 200, {"data": data})

    def reply(self, connection: socket.socket, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)

    def send_chunked(self, connection: socket.socket, content: bytes) -> None:
        size = self.options.get("chunk", 1000)
        for start in range(0, len(content), size):
            piece = content[start : start + size]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))

    def stream(self, connection: socket.socket, after: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.send_chunked(connection, b": hello\n\n")
        first = max(1, after + 1 - self.options.get("repeat", 0))
        for seq in range(first, self.last + 1):
            text = json.dumps(event(seq, self.last), ensure_ascii=False, separators=(",", ":")).encode()
            content = b"id: %d\ndata: %s\n\n" % (seq, text)
            while seq == self.options.get("hold_before") and not os.path.exists(os.path.join(self.home, "go")):
                time.sleep(0.005)
            if seq - first == self.options.get("cut_after"):
                self.cut(connection, content)
                return
            self.send_chunked(connection, content)
        open(os.path.join(self.home, "over"), "w").close()
        connection.sendall(b"0\r\n\r\n")

    def cut(self, connection: socket.socket, content: bytes) -> None:
        if self.options.get("polite_end"):
            connection.sendall(b"0\r\n\r\n")
            return
        self.send_chunked(connection, content[: len(content) // 2])
        if self.options.get("die"):
            os._exit(9)

    def output(self, connection: socket.socket, offset: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        content = bytes(range(256)) * 40
        limit = self.options.get("cut_output", len(content))
        self.send_chunked(connection, content[offset : offset + limit])
        if offset + limit >= len(content):
            open(os.path.join(self.home, "over"), "w").close()
            connection.sendall(b"0\r\n\r\n")

    def terminal(self, connection: socket.socket) -> None:
        number = self.count("terminals")
        if number > self.options.get("terminals", 1):
            open(os.path.join(self.home, "over"), "w").close()
            self.reply(connection, 409, {"error": {"code": "conflict", "message": "it has ended", "hint": None}})
            return
        head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nHocket-Viewer: v{number}\r\n\r\n"
        connection.sendall(head.encode())
        self.send_chunked(connection, b"screen %d" % number)
        self.cut(connection, b"")


if __name__ == "__main__":
    FakeServer(sys.argv[1], json.loads(sys.argv[2])).serve()
