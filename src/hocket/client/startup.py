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
MAX_STARTS = 3
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


# --- The lock file ------------------------------------------------------------------------------------------


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


# --- Connecting ---------------------------------------------------------------------------------------------


def connect(home: str, socket_path: str) -> socket.socket | None:
    """A connection to the running server, or None if there is none. One that is busy is waited for."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(_address(home, socket_path))
            return sock
        except OSError as error:
            sock.close()
            if isinstance(error, _ABSENT):
                return None
            if not isinstance(error, _BUSY) or time.monotonic() > deadline:
                raise unreachable(home, str(error)) from error
        time.sleep(0.01)


def _address(home: str, socket_path: str) -> str:
    """Where the server says it listens, else the expected path: its environment may have differed from ours."""
    path = read_lock(home).get("socket")
    return path if isinstance(path, str) and path else socket_path


def start_and_connect(home: str, socket_path: str, start: Callable[[], None]) -> socket.socket:
    """A connection to a server that ``start`` brings up, or that another client has started meanwhile."""
    attempt = ServerStart(home, start)
    while True:
        time.sleep(attempt.pause())
        if sock := connect(home, socket_path):
            return sock
        if attempt.has_failed():
            log = attempt.log()
            raise unreachable(home, "it did not start" + (f"; its log ends with:\n{log}" if log else ""))


def unreachable(home: str, reason: str) -> ServerUnreachable:
    """The error for a server that cannot be reached."""
    return ServerUnreachable(f"cannot reach the server of {home}: {reason}", "see: hocket doctor")


class ServerStart:
    """An attempt to start a server: how long to wait, when to start another one, when to give up.

    The lock decides which server may run, so starting one too many does no harm. Another one is needed when the
    first met the lock of a server that was shutting down.
    """

    def __init__(self, home: str, start: Callable[[], None]) -> None:
        self._home = home
        self._start = start
        self._deadline = time.monotonic() + CONNECT_SECONDS
        self._pause = 0.005
        self._starts = 0
        self._start_server()

    def pause(self) -> float:
        """Seconds to wait before the next look, longer each time."""
        self._pause = min(self._pause * 1.5, 0.1)
        return self._pause

    def has_failed(self) -> bool:
        """Whether waiting is of no use. Starts the server again where that may help."""
        now = time.monotonic()
        if now > self._deadline:
            return True
        logged = self._log_since(self._log_offset)
        failed = b"hocket: " in logged
        if failed and LOG_LOCKED not in logged:
            return True
        was_ready = LOG_READY in logged
        if not (failed or was_ready) and now - self._started_at < RESTART_SECONDS:
            return False
        if lock_held(self._home):
            return False
        if was_ready:
            self._starts = 0  # it ran until something ended it, which says nothing against another start
        if self._starts >= MAX_STARTS:
            return True
        self._start_server()
        return False

    def log(self) -> str:
        """The end of what the server has logged since it was started."""
        return self._log_since(self._log_offset)[-LOG_TAIL:].decode(errors="replace").strip()

    def _start_server(self) -> None:
        self._starts += 1
        self._started_at = time.monotonic()
        self._log_offset = self._log_size()
        try:
            self._start()
        except OSError as error:
            raise ServerUnreachable(f"cannot start the server: {error}", "see: hocket doctor") from error

    def _log_path(self) -> str:
        return os.path.join(self._home, "server.log")

    def _log_size(self) -> int:
        try:
            return os.stat(self._log_path()).st_size
        except OSError:
            return 0

    def _log_since(self, offset: int) -> bytes:
        try:
            with open(self._log_path(), "rb") as file:
                file.seek(max(offset, self._log_size() - 64 * 1024))
                return file.read(64 * 1024)
        except OSError:
            return b""
