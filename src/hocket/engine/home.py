"""HOCKET_HOME itself: made private, refused where it is not ours, and the few small files that lie in it."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from hocket.errors import HomeError

TOKEN = "token"  # noqa: S105 - the name of a file
SECRET = "secret"  # noqa: S105 - the name of a file
PORT = "port"
DATABASE = "hocket.db"
SERVER_LOCK = "server.lock"

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
        _try_to_write(home)
    except OSError as error:
        raise HomeError(f"HOCKET_HOME {home} cannot be written: {error.strerror}", _HINT) from error


def _try_to_write(home: Path) -> None:
    """An empty file needs no room, so a full disk passes and a read-only one does not."""
    probe = home / f".writable.{os.getpid()}"
    probe.touch(mode=0o600)
    probe.unlink()


def secret_of(home: Path, name: str) -> str:
    """A random text that is made once and then kept, readable by its owner alone."""
    path = home / name
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        text = path.read_text().strip()
        if len(text) >= 32:
            return text
        path.unlink()  # Cut short by a crash before anybody can have used it.
        return secret_of(home, name)
    with os.fdopen(descriptor, "w") as file:
        text = secrets.token_urlsafe(32)
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    return text
