"""The zygote: a small process that forks keepers, because forking a server with threads is slow and unsafe.

It is exec'ed with one descriptor, its socket, and exits when that closes; its keepers live on. Before that it starts
another server if this one died while chains were waiting, for a gate or for a time, and no keeper would do so. For a
server that closed on purpose, a child of the zygote stays until the first of those times.

The server's side is `Zygote`, the child's side is `main`. Requests and answers are single lines of JSON: `{"dir": …}`
is answered by `{"pid": …}` or `{"errno": …}`; `{"wake": …}`, a home whose server must be restarted if it dies, or by
the time `"at"`, has no answer. With a `dir` comes `"env"`, its secret variables, which no file of the run holds.
What does not belong here: anything a keeper does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hocket.keeper import files

if TYPE_CHECKING:
    # The server's side imports these where it needs them: every keeper would carry them along otherwise.
    import socket
    import subprocess

    from hocket.keeper.server_watch import ScheduledStart

_BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from hocket.keeper.zygote import main; main()"
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_END_PATIENCE = 5.0
_SOCKET = 0
_LEAST_LIFE = 5.0
"""Seconds between the starts of two servers: one that dies at once would do so for ever."""


class ZygoteGone(ConnectionError):
    """The zygote is dead or out of step. Start it again, and look at the run's state before asking again."""


class Zygote:
    """The server's end: ask for a keeper, one request at a time."""

    def __init__(self, env: Mapping[str, str]) -> None:
        import threading

        self._env = dict(env)
        self._request_lock = threading.Lock()
        self._writing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._needed_in = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it, or start it anew after ZygoteGone."""
        import socket
        import subprocess

        from hocket.keeper.programs import starting_children
        from hocket.keeper.server_start import server_environment

        self._end()
        ours, theirs = socket.socketpair()
        with theirs, starting_children(None):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE_PARENT],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=server_environment(self._env),
                start_new_session=True,
            )
        with self._writing:
            self._socket = ours
            if self._needed_in:
                self._send({"wake": self._needed_in})

    def fork(self, directory: str, timeout: float, secrets: Mapping[str, str] | None = None) -> int:
        """The pid of a new keeper for this directory; OSError when the system refuses to fork."""
        with self._request_lock:
            answer = self._ask({"dir": directory, "env": dict(secrets or {})}, timeout)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), directory)
        return int(answer["pid"])

    def need_server(self, home: str) -> None:
        """From now on, start the server of this home again if it dies; "" for no home.

        Does not block, so any thread may call it. A zygote that is not there learns it when it is started again.
        """
        # Under the lock: a start in another thread must not send the new zygote an outdated value.
        with self._writing, contextlib.suppress(ZygoteGone):
            if home != self._needed_in:
                self._needed_in = home
                self._send({"wake": home})

    def close(self, home: str = "", at: float | None = None) -> None:
        """Close its socket, which ends it. The server of ``home`` is started ``at`` a wall time."""
        if self._needed_in or at is not None:
            with self._writing, contextlib.suppress(ZygoteGone):
                self._send({"wake": ""} if at is None else {"wake": home, "at": at})
        self._needed_in = ""
        self._end()

    def _end(self) -> None:
        import subprocess

        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(_END_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        with self._writing:
            asked = self._send(request)
        try:
            asked.settimeout(timeout)
            with asked.makefile("rb") as lines:
                answer = lines.readline()
            if not answer.endswith(b"\n"):
                raise ConnectionResetError("its socket is closed")
        except OSError as error:
            # After a timeout its answer may still come and would be taken for that of the next request.
            asked.close()
            self._socket = None
            raise ZygoteGone(f"the zygote does not answer: {error}") from error
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def _send(self, request: Mapping[str, Any]) -> socket.socket:
        """Send a request, under the lock for writing; return the socket that an answer would come by."""
        connection = self._socket
        if connection is None:
            raise ZygoteGone("the zygote is not running")
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise ZygoteGone(f"the zygote does not listen: {error}") from error
        return connection


def main() -> None:
    """The zygote's whole life, in the exec'ed child; its socket is descriptor 0."""
    # Imported before the first fork, so that every keeper shares these pages.
    from hocket.keeper.keeper import keep
    from hocket.keeper.platform import boot_id
    from hocket.keeper.server_watch import ScheduledStart

    boot_id()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    home, scheduled, on_purpose, began = "", None, False, time.monotonic()
    with contextlib.suppress(OSError), open(_SOCKET, "rb", closefd=False) as requests:
        for line in requests:
            if not line.endswith(b"\n"):
                break  # The server was killed while it wrote this.
            request = json.loads(line)
            if "wake" in request:
                home, on_purpose = request["wake"], "at" in request
                scheduled = ScheduledStart(home, request.get("at", 0.0)) if home else None
            else:
                files.write_all(_SOCKET, json.dumps(_forked(request["dir"], request["env"], keep)).encode() + b"\n")
    with contextlib.suppress(OSError):
        if scheduled is not None and not (
            on_purpose and os.fork()
        ):  # A server that closes on purpose waits for our end.
            _wake(home, scheduled, began)
    os._exit(0)


def _wake(home: str, scheduled: ScheduledStart, began: float) -> None:
    """Start a server if the last one died with work left and no other process was faster."""
    from hocket.keeper.server_watch import wake_server

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    umask = os.umask(0o077)
    if scheduled.wait(max(0.0, began + _LEAST_LIFE - time.monotonic())):
        wake_server({"home": home}, umask)


def _forked(directory: str, secrets: dict[str, str], keep: Callable[[str, dict[str, str]], None]) -> dict[str, int]:
    try:
        pid = os.fork()
    except OSError as error:
        return {"errno": error.errno or 0}
    if pid == 0:
        # The keeper must never return into the zygote's loop.
        try:
            keep(directory, secrets)
        finally:
            os._exit(0)
    return {"pid": pid}
