"""Whether a server lives, and bringing one up: what a command needs only where there is none, or an older one.

Talking to it is ``client``'s, and its process is made by a function that is handed in.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

RESTART_SECONDS = 4.0
MAX_STARTS = 3
LOG_TAIL = 2000
LOST_THE_RACE = b"running already"
CAME_UP = b" serves "
"""What a server says of itself in its log: that another one has the lock, or that it is there."""


def parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: enough to tell which of two is newer."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def lock_held(home: str) -> bool:
    """Whether a server lives: it holds this lock as long as it does, so no process id has to be trusted."""
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
    """Wait for the server to be gone; false if it is not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while lock_held(home):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Attempt:
    """Bringing a server up: how long to wait, when to start once more, when to give up.

    The server decides by its lock who may live, so starting one too many does no harm. One more is needed
    when ours met the lock of a server that was just leaving.
    """

    def __init__(self, home: str, start: Callable[[], None], seconds: float) -> None:
        self._home = home
        self._start = start
        self._deadline = time.monotonic() + seconds
        self._pause = 0.005
        self._starts = 0
        self._start_once_more()

    def pause(self) -> float:
        self._pause = min(self._pause * 1.5, 0.1)
        return self._pause

    def hopeless(self) -> bool:
        now = time.monotonic()
        if now > self._deadline:
            return True
        said = self._log_since(self._seen_from)
        failed = b"hocket: " in said
        if failed and LOST_THE_RACE not in said:
            return True
        came_up = CAME_UP in said
        if not (failed or came_up) and now - self._started_at < RESTART_SECONDS:
            return False
        if lock_held(self._home):
            return False
        if came_up:
            self._starts = 0  # It lived, and something ended it: that says nothing against the next one.
        if self._starts >= MAX_STARTS:
            return True
        self._start_once_more()
        return False

    def log(self) -> str:
        return self._log_since(self._seen_from)[-LOG_TAIL:].decode(errors="replace").strip()

    def _start_once_more(self) -> None:
        self._starts += 1
        self._started_at = time.monotonic()
        self._seen_from = self._log_size()
        self._start()

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
