"""HOCKET_HOME itself: made private, refused where it is not ours, and the few small files that lie in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from hocket import __version__
from hocket.errors import HomeError, ServerRunning
from hocket.keeper.platform import start_time
from hocket.keeper.server_watch import ALIVE, SERVER_LOCK

TOKEN = "token"  # noqa: S105 - the name of a file
SECRET = "secret"  # noqa: S105 - the name of a file
PORT = "port"
DATABASE = "hocket.db"
PROGRAMS = "bin"

_HINT = "Choose another directory with HOCKET_HOME, or mend this one"


def prepare(home: Path) -> None:
    """Make it if it is missing; raise unless it is a private directory of ours that can be written."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = home.lstat()
    except OSError as error:
        raise HomeError(f"HOCKET_HOME {home} cannot be used: {error.strerror}", _HINT) from error
    if stat.S_ISLNK(found.st_mode):
        raise HomeError(f"HOCKET_HOME {home} is a symbolic link", "Give the directory that it points to")
    if not stat.S_ISDIR(found.st_mode):
        raise HomeError(f"HOCKET_HOME {home} is not a directory", _HINT)
    if found.st_uid != os.geteuid():
        raise HomeError(f"HOCKET_HOME {home} belongs to another user", _HINT)
    try:
        if stat.S_IMODE(found.st_mode) & 0o077:
            home.chmod(0o700)
        # An empty file needs no room, so a full disk passes and a read-only one does not.
        probe = home / f".writable.{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise HomeError(f"HOCKET_HOME {home} cannot be written: {error.strerror}", _HINT) from error


def secret_of(home: Path, name: str) -> str:
    """A random text that is made once and then kept, readable by its owner alone."""
    path = home / name
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        text = path.read_text().strip()
        if len(text) >= 32:
            return text
        path.unlink()  # Incomplete after a crash, and never used.
        return secret_of(home, name)
    with os.fdopen(descriptor, "w") as file:
        text = secrets.token_urlsafe(32)
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    return text


def lay_out_program(home: Path, python: str) -> None:
    """Put the command itself where agents find it, independent of the PATH they were started with.

    In a folder of its own: an agent must not come upon the other programs that lie beside this interpreter.
    """
    folder = home / PROGRAMS
    folder.mkdir(mode=0o700, exist_ok=True)
    # Not as a module: finding one by its name takes longer. Safe path: the agent's directory decides nothing.
    code = "import sys; from hocket.cli import main; sys.exit(main())"
    content = f'#!/bin/sh\nexec {shlex.quote(python)} -P -c {shlex.quote(code)} "$@"\n'
    program = folder / "hocket"
    if program.is_file() and program.read_text() == content:
        return
    unfinished = folder / ".hocket.new"
    unfinished.write_text(content)
    unfinished.chmod(0o700)
    unfinished.replace(program)


@contextlib.contextmanager
def locked(home: Path) -> Iterator[int]:
    """The lock of this home's one server: released with the process however it ends, and not inherited."""
    with contextlib.ExitStack() as descriptors:
        lock = os.open(home / SERVER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        descriptors.callback(os.close, lock)
        if not _take(lock):
            raise _running(os.read(lock, 65536), home)
        describe_holder(lock)
        # The FIFO whose closing shows keepers that their server is gone. Opened for reading as well: for writing only,
        # it would need a reader.
        with contextlib.suppress(FileExistsError):
            os.mkfifo(home / ALIVE, 0o600)
        descriptors.callback(os.close, os.open(home / ALIVE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        yield lock


def describe_holder(lock: int, **more: str) -> None:
    """What the lock file says of this process: at once who it is, later where it listens."""
    pid = os.getpid()
    about = {"pid": pid, "start_time": start_time(pid), "version": __version__, **more}
    content = json.dumps(about).encode() + b"\n"
    os.pwrite(lock, content, 0)
    os.ftruncate(lock, len(content))


def _take(descriptor: int) -> bool:
    """Retry the lock: a process that only checks for a server holds it for an instant too."""
    for pause in (0.0, 0.02, 0.05, 0.1):
        time.sleep(pause)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _running(content: bytes, home: Path) -> ServerRunning:
    try:
        pid = json.loads(content)["pid"]
    except (ValueError, KeyError, TypeError):
        pid = "not known yet"
    return ServerRunning(f"a server is running already for {home} (pid {pid})", "`hocket server status` shows it")
