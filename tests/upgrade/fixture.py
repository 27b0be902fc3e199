"""A recorded HOCKET_HOME as text: how files become text in ``recorded/``, and how they are laid out again.

The formats are those of the version that was recorded, spelled out here: nothing of ``hocket`` is imported, because
the current version must be able to read what another one wrote.
"""

from __future__ import annotations

import binascii
import http.client
import json
import os
import shutil
import socket
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"
TREE = RECORDED / "tree"
MANIFEST = RECORDED / "manifest.txt"
DUMP = RECORDED / "database.sql"
EXPECTED = RECORDED / "expected.json"

ROOT = "@ROOT@"
"""Stands for the folder that everything lies below."""
BOOT = "@BOOT@"
"""Stands for the boot id of the machine, in the files of runs."""
DATABASE = "h/hocket.db"
OTHER_BOOT = "00000000-0000-4000-8000-000000000000"
"""The boot id of the clocks in the database, which cannot be compared with those of this machine."""
_EXIT_BODY = 4096 - 10


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# --- Recording ----------------------------------------------------------------------------------------------


def record(root: Path, relative: Path) -> str:
    """Copy one file into the tree, as text; its line for the manifest: mode, kind, name, and for a link its target."""
    path = root / relative
    status = path.lstat()
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if stat.S_ISDIR(status.st_mode):
        return f"{mode} folder {relative}"
    if stat.S_ISFIFO(status.st_mode):
        return f"{mode} fifo {relative}"
    if path.name == "started":
        return f"{mode} link {relative} lock"
    content = path.read_bytes()
    if not content.strip():
        return f"{mode} {'blank' if content else 'empty'} {relative}"
    kind, text = "text", content.decode()
    if path.name == "exit":
        kind, text = "exit", json.dumps(json.loads(content[:_EXIT_BODY]), indent=1) + "\n"
    target = TREE / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace(str(root), ROOT).replace(boot_id(), BOOT), encoding="utf-8")
    return f"{mode} {kind} {relative}"


def dump(root: Path, database: Path) -> str:
    """The database as SQL."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        text = "\n".join(connection.iterdump()) + "\n"
    return text.replace(str(root), ROOT).replace(boot_id(), OTHER_BOOT)


# --- Laying out ---------------------------------------------------------------------------------------------


def lay_out(root: Path) -> None:
    """Restore the recorded home below a new root, for this machine."""
    for mode, kind, relative, *rest in map(str.split, MANIFEST.read_text(encoding="utf-8").splitlines()):
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "folder":
            path.mkdir(exist_ok=True)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "link":
            os.link(path.with_name(rest[0]), path)
        else:
            path.write_bytes(_content(kind, relative, root))
        path.chmod(int(mode, 8))
    _restore_database(root)


def here(text: str, root: Path) -> str:
    """A recorded text with the places of this machine."""
    return text.replace(ROOT, str(root)).replace(BOOT, boot_id())


def _content(kind: str, relative: str, root: Path) -> bytes:
    if kind == "empty":
        return b""
    if kind == "blank":
        return b" " * (_EXIT_BODY + 10)
    text = here((TREE / relative).read_text(encoding="utf-8"), root)
    return exit_record(json.loads(text)) if kind == "exit" else text.encode()


def exit_record(fields: dict[str, Any]) -> bytes:
    """How a run ended, as a keeper writes it: JSON, padding, and a checksum over both."""
    body = json.dumps(fields, separators=(",", ":")).encode().ljust(_EXIT_BODY)
    return body + b"\n%08x\n" % binascii.crc32(body)


def _restore_database(root: Path) -> None:
    path = root / DATABASE
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(here(DUMP.read_text(encoding="utf-8"), root))
    path.chmod(0o600)


def rows(root: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a query finds in the database as it was recorded."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(here(DUMP.read_text(encoding="utf-8"), root))
        return connection.execute(sql).fetchall()


def expected(root: Path) -> Any:
    """The output of the recorded version."""
    return json.loads(here(EXPECTED.read_text(encoding="utf-8"), root))


def get(home: Path, path: str) -> Any:
    """The response of the server of a home to a GET over its socket."""
    with closing(http.client.HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(home / "sock"))
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())["data"]


def forget() -> None:
    """Remove the previous recording."""
    shutil.rmtree(RECORDED, ignore_errors=True)
    TREE.mkdir(parents=True)


def walk(root: Path, folder: str) -> Iterator[Path]:
    """Every file and folder below a folder of the root, in a fixed order, a folder before what is in it."""
    for path in sorted((root / folder).rglob("*")):
        yield path.relative_to(root)
