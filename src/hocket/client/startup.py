"""Whether a server is running, how to reach it, and starting one where there is none."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from hocket import __version__
from hocket.errors import ServerUnreachable, VersionMismatch

CONNECT_SECONDS = 15.0
RESTART_SECONDS = 4.0
MAX_RECORD = 64 * 1024
LOG_TAIL = 2000
LOG_LOCKED = b"running already"
LOG_READY = b" serves "
"""What a server logs when another one has the lock, and when it is ready."""
_ABSENT = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError)
_BUSY = (BlockingIOError, InterruptedError)


def parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparing two of them."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def read_lock(home: str) -> dict[str, Any]:
    """What the newest server of this home wrote about itself; empty if that is not readable."""
    try:
        with open(os.path.join(home, "server.lock"), "rb") as file:
            record = json.loads(file.read(MAX_RECORD))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def lock_held(home: str) -> bool:
    """Whether a server is running. It holds this lock while it lives, so no process id has to be trusted."""
    try:
        handle = os.open(os.path.join(home, "server.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def wait_unlocked(home: str, seconds: float) -> bool:
    """Wait until no server is running; false if one still is after ``seconds``."""
    deadline = time.monotonic() + seconds
    while lock_held(home):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_outdated(home: str) -> bool:
    """Whether the running server is older than this program. A newer one is refused: its answers may have changed."""
    version = read_lock(home).get("version")
    if not isinstance(version, str) or version == __version__:
        return False
    theirs, ours = parse_version(version), parse_version(__version__)
    if theirs > ours:
        raise VersionMismatch(
            f"the server is version {version} and this program is {__version__}",
            f"install hocket {version} here, or stop that server with: hocket server stop",
        )
    return theirs < ours


def connect(home: str, socket_path: str) -> socket.socket | None:
    """A connection to the running server, or None if there is none. One that is busy is waited for."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        # Where the server says it listens: its environment may have differed from ours.
        recorded = read_lock(home).get("socket")
        try:
            sock.connect(recorded if isinstance(recorded, str) and recorded else socket_path)
            return sock
        except OSError as error:
            sock.close()
            if isinstance(error, _ABSENT):
                return None
            if not isinstance(error, _BUSY) or time.monotonic() > deadline:
                raise unreachable(home, str(error)) from error
        time.sleep(0.01)


def start_and_connect(home: str, socket_path: str, start: Callable[[], None]) -> socket.socket:
    """A connection to a server that ``start`` brings up, or that another client has started meanwhile.

    The lock decides which server may run, so starting one too many does no harm. Another one is needed when the
    first met the lock of a server that was shutting down.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    started_at, offset = _start_server(home, start)
    pause = 0.005
    while True:
        pause = min(pause * 1.5, 0.1)
        time.sleep(pause)
        if sock := connect(home, socket_path):
            return sock
        now, log = time.monotonic(), _log_since(home, offset)
        failed = b"hocket: " in log
        if now > deadline or (failed and LOG_LOCKED not in log):
            end = log[-LOG_TAIL:].decode(errors="replace").strip()
            raise unreachable(home, "it did not start" + (f"; its log ends with:\n{end}" if end else ""))
        has_ended = failed or LOG_READY in log or now - started_at > RESTART_SECONDS
        if has_ended and not lock_held(home):
            started_at, offset = _start_server(home, start)


def _start_server(home: str, start: Callable[[], None]) -> tuple[float, int]:
    """Start a server; returns when that was, and how long its log was before."""
    try:
        offset = os.stat(os.path.join(home, "server.log")).st_size
    except OSError:
        offset = 0
    try:
        start()
    except OSError as error:
        raise ServerUnreachable(f"cannot start the server: {error}", "see: hocket doctor") from error
    return time.monotonic(), offset


def _log_since(home: str, offset: int) -> bytes:
    """What the server has logged since, at most its last 64 kB."""
    try:
        with open(os.path.join(home, "server.log"), "rb") as file:
            file.seek(max(offset, os.fstat(file.fileno()).st_size - MAX_RECORD))
            return file.read(MAX_RECORD)
    except OSError:
        return b""


def unreachable(home: str, reason: str) -> ServerUnreachable:
    """The error for a server that cannot be reached."""
    return ServerUnreachable(f"cannot reach the server of {home}: {reason}", "see: hocket doctor")
