"""Opening the database. One that cannot be read is refused and left unchanged."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from hocket import secret_files
from hocket.errors import NewerStore, StoreError
from hocket.store.connection import ReadConnection
from hocket.store.schema import MIGRATIONS, Migration
from hocket.store.secret_migration import MOVED, clean_copy, move_secrets
from hocket.store.state_file import read_state
from hocket.store.store import Store
from hocket.store.writer import MakeRoom

_MAGIC = b"SQLite format 3\x00"
_HEAD = 100
_RESTORE = "Nothing was changed. Put a copy back in its place, or run `hocket doctor --restore` to rebuild it"


def open_store(
    path: Path, migrations: tuple[Migration, ...] = MIGRATIONS, make_room: MakeRoom = lambda: False
) -> Store:
    """Open the store at ``path``, migrated to the newest schema; create it if there was never one.

    After a failure, and when there is no room for a commit, it tries again if ``make_room`` returns True.
    """
    while True:
        try:
            return _open(path, migrations, make_room)
        except StoreError:
            if not make_room():
                raise


def _open(path: Path, migrations: tuple[Migration, ...], make_room: MakeRoom) -> Store:
    try:
        fresh = _look_before_opening(path)
        if not fresh:
            _look_inside(path, migrations[-1].number)
        writer = connect(path)
        try:
            _migrate(writer, path, migrations)
            return Store(path, writer, partial(connect, path, reading=True, kind=ReadConnection), make_room)
        except BaseException:
            writer.close()
            raise
    except (OSError, sqlite3.OperationalError) as error:
        raise _not_writable(path, error) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error


def connect(
    path: Path, reading: bool = False, kind: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open one connection. Transactions are begun by the caller."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if reading else 'rwc'}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=kind)
    try:
        if not reading:
            path.chmod(0o600)
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA busy_timeout=5000")
    except BaseException:
        connection.close()
        raise
    return connection


def check(path: Path) -> StoreError | None:
    """Return what is wrong with the database, or None. It is not changed."""
    try:
        # Even a read-only connection creates an empty log where the real one was removed.
        if _look_before_opening(path):
            return None
        with closing(connect(path, reading=True)) as connection:
            _refuse_newer(path, _version(connection), MIGRATIONS[-1].number)
            found = _found_wrong(connection)
        return None if found == ["ok"] else _damaged(path, "; ".join(found))
    except StoreError as error:
        return error
    except (OSError, sqlite3.OperationalError) as error:
        return _not_writable(path, error)
    except sqlite3.Error as error:
        return _damaged(path, error)


def sqlite_version() -> str:
    """Return the version of the SQLite library in use."""
    return sqlite3.sqlite_version


def _found_wrong(connection: sqlite3.Connection) -> list[str]:
    return [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _look_before_opening(path: Path) -> bool:
    """Return True if there is no database yet. Raise if opening one would hide or damage what was there."""
    state = read_state(path)
    if not path.exists():
        if state is not None:
            raise StoreError(f"the database {path} is missing, but it existed before", _RESTORE)
        return True
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if not head and state is None:
        return True
    if head != _MAGIC:
        raise _damaged(path, "it has no SQLite header")
    committed = (state.seq or 0) if state is not None and state.status == "open" else 0
    if committed and not _wal(path).exists() and _last_event(path) < committed:
        raise StoreError(
            f"the write-ahead log of {path} is gone, and the newest records with it",
            "Put hocket.db-wal back, or remove hocket.db.state to continue with what is left",
        )
    return False


def _look_inside(path: Path, latest: int) -> None:
    """Raise if the database is newer or cut short. Uses a read-only connection: a refused database is not changed."""
    with closing(connect(path, reading=True)) as connection:
        version = _version(connection)
        has_log = _wal(path).exists() and _wal(path).stat().st_size > 0
        # A kill during a checkpoint also leaves a short file; then the log has what is missing.
        cut = _is_short(path) and (not has_log or _found_wrong(connection) != ["ok"])
    _refuse_newer(path, version, latest)
    if cut:
        raise _damaged(path, "it was cut short")


def _refuse_newer(path: Path, version: int, latest: int) -> None:
    if version > latest:
        raise NewerStore(
            f"the database {path} was written by a newer Hocket (schema {version}, this one knows {latest})",
            "Upgrade Hocket, or use another HOCKET_HOME",
        )


def _damaged(path: Path, why: object) -> StoreError:
    return StoreError(f"the database {path} is damaged: {why}", _RESTORE)


def _is_short(path: Path) -> bool:
    """Return True if the file has fewer pages than its header says. SQLite itself trusts the log's header instead."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    page_size, pages = int.from_bytes(head[16:18]), int.from_bytes(head[28:32])
    return len(head) < _HEAD or path.stat().st_size < pages * (page_size if page_size > 1 else 65536)


def _last_event(path: Path) -> int:
    """Return the last event in the file itself, also a removed one, without its log. No file is created or locked."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        with_seq = [name for name in ("events", "removed_runs") if name in tables]
        numbers = [connection.execute(f"SELECT coalesce(max(seq), 0) FROM {name}").fetchone()[0] for name in with_seq]
    return int(max(numbers, default=0))


def _version(connection: sqlite3.Connection) -> int:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone()
    if known is None:
        return 0
    (number,) = connection.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()
    return int(number)


def _migrate(connection: sqlite3.Connection, path: Path, migrations: tuple[Migration, ...]) -> None:
    """Apply the missing migrations in one transaction: a failure leaves the database as it was."""
    version = _version(connection)
    missing = [migration for migration in migrations if migration.number > version]
    if not missing:
        return
    if 0 < version < MOVED:
        # Before a copy is kept, because the copy stays.
        move_secrets(connection, path.parent / secret_files.FOLDER)
        for copy in path.parent.glob(f"{path.name}.schema-*.copy"):
            clean_copy(copy)
    if version:
        _keep_copy(connection, path, version)
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (number BIGINT PRIMARY KEY, name TEXT NOT NULL)")
        for migration in missing:
            for statement in migration.statements:
                connection.execute(statement)
            if migration.fill is not None:
                migration.fill(connection)
            connection.execute("INSERT INTO migrations VALUES (?, ?)", (migration.number, migration.name))
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _keep_copy(connection: sqlite3.Connection, path: Path, version: int) -> None:
    target = path.with_name(f"{path.name}.schema-{version}.copy")
    temporary = target.with_name(target.name + ".new")
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(temporary)) as copy:
        connection.backup(copy)
    temporary.chmod(0o600)
    temporary.replace(target)


def _not_writable(path: Path, error: Exception) -> StoreError:
    if "locked" in str(error):
        return StoreError(f"the database {path} cannot be opened: {error}", "Close the program that has it open")
    hint = "Is the disk full or read-only?" if os.access(path.parent, os.W_OK) else f"{path.parent} cannot be written"
    return StoreError(f"the database {path} cannot be opened: {error}", hint)
