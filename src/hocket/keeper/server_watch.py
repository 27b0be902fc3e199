"""Notices that the server of a home is gone, and starts one when a run cannot continue without it.

The end of a run needs a server to record it. A run with open input needs one sooner: when it has finished or asks a
question, it writes so and waits, and only a server reads that. A home may also need one at a given time while none of
its runs is live (`ScheduledStart`). The output is not interpreted here: only that it grew and then stopped matters.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from hocket.keeper import files
from hocket.keeper.server_start import start_server

SERVER_LOCK = "server.lock"
WAKE_LOCK = "wake.lock"
ALIVE = "alive"
"""A FIFO whose writing end the server holds open: when the server is gone, its readers see a hang-up."""

TICK = 2.0
"""Seconds between two looks at a run without a server; also the silence after which its agent counts as waiting."""
STEP = 30.0
"""Seconds after which a scheduled start is checked again: the machine may have slept, or the clock changed."""
_STILL_THERE = 0.2
"""Seconds between two checks of a server that is still closing at the time of its return."""
_PATIENCE = 5.0
_RETRY = 0.01
_MOST = 65536
"""Bytes read of the server's lock file."""


class ServerWatch:
    """Watches whether a run has a server, and starts one when it needs it."""

    def __init__(self, spec: Mapping[str, Any], out: int, umask: int) -> None:
        self._home = str(spec.get("home") or "")
        self._out = out
        self._umask = umask
        self._alive = _open_alive(self._home) if spec.get("needs_server") else None
        self._size = 0
        self._grew = False
        self._wake_lock: int | None = None
        self.due: float | None = None
        """When to look again; None while there is a server."""
        if self._alive is not None and not _is_there(self._home):
            self.begin()  # The server was gone before the FIFO was open.

    @property
    def watched(self) -> int | None:
        """The descriptor that hangs up with the server."""
        return self._alive if self.due is None else None

    def begin(self) -> None:
        """The server is gone. What was written just before may not have been read by it."""
        status = os.fstat(self._out)
        self._size = status.st_size
        self._grew = time.time() - status.st_mtime < TICK
        self.due = time.monotonic() + TICK

    def look(self) -> None:
        """Once a tick: the server is back, or the agent works, or it waits for a server."""
        self.release_wake_lock()
        if _is_there(self._home):
            self.due = None
            return
        self.due = time.monotonic() + TICK
        size = os.fstat(self._out).st_size
        if size != self._size:
            self._size, self._grew = size, True
        elif self._grew:
            self._grew = False
            # Held until the next look: by then the new server has its lock.
            self._wake_lock = start_server_once(self._home, self._umask)

    def release_wake_lock(self) -> None:
        """Let others start a server: the one that was started may have been ended with the agent's tree."""
        if self._wake_lock is not None:
            os.close(self._wake_lock)
        self._wake_lock = None


class ScheduledStart:
    """A time at which a home is to have a server again, should the one that makes it be gone; 0 is at once."""

    def __init__(self, home: str, at: float) -> None:
        self._home = home
        self._at = at
        self._maker, _ = _holder(home)

    def wait(self, pause: float, step: float = STEP) -> bool:
        """Until it is time, and for ``pause`` seconds at least; whether it is still to be kept.

        Not when there was another server meanwhile: that one knows better. One that never got so far as to listen was
        none.
        """
        earliest = time.monotonic() + pause
        while self._maker is not None:
            holder, has_listened = _holder(self._home)
            if holder is None or (has_listened and holder != self._maker):
                return False
            left = max(self._at - time.time(), earliest - time.monotonic())
            if left <= 0 and not _is_there(self._home):
                return True
            time.sleep(min(max(left, _STILL_THERE), step))
        return False


def _holder(home: str) -> tuple[tuple[object, object] | None, bool]:
    """Which server had the lock last, by pid and start (None if unknown), and whether it got so far as to listen."""
    try:
        about = json.loads(files.read_regular(os.path.join(home, SERVER_LOCK), _MOST) or b"")
        return (about["pid"], about["start_time"]), "socket" in about
    except (OSError, ValueError, KeyError, TypeError):
        return None, False


def wake_server(spec: Mapping[str, Any], umask: int) -> None:
    """Start the server when a home has lost it, so that a chain continues unattended."""
    home = str(spec.get("home") or "")
    wake_lock = None if not home or _is_there(home) else start_server_once(home, umask)
    if wake_lock is None:
        return
    deadline = time.monotonic() + _PATIENCE
    while not _is_there(home) and time.monotonic() < deadline:
        time.sleep(_RETRY)


def start_server_once(home: str, umask: int) -> int | None:
    """Start a server unless another process is starting one.

    Return the lock's descriptor; hold it until the server runs.
    """
    with contextlib.suppress(OSError):
        if not os.path.exists(os.path.join(home, SERVER_LOCK)):
            return None  # It never had one.
        # Hundreds of keepers may notice together; one of them is enough.
        wake_lock = os.open(os.path.join(home, WAKE_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(wake_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(wake_lock)
            return None
        # A server must not pass our umask on to agents of other runs. The environment is that of the one before it.
        ours = os.umask(umask)
        start_server(home, dict(os.environ))
        os.umask(ours)
        return wake_lock
    return None


def _is_there(home: str) -> bool:
    try:
        return files.is_held(os.path.join(home, SERVER_LOCK))
    except OSError:
        return False


def _open_alive(home: str) -> int | None:
    try:
        return os.open(os.path.join(home, ALIVE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
