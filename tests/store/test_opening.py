"""Opening: migrations, and refusals. A refused database is byte for byte unchanged afterwards."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from store.sample_events import StoreWriter, contents, ended, migration, said

from hocket.errors import StoreError
from hocket.store import check, open_store
from hocket.store.schema import LATEST, MIGRATIONS

NEXT = LATEST + 1
GOOD = migration(NEXT, "CREATE TABLE more (x BIGINT)", "INSERT INTO more VALUES (1)")
BAD = migration(NEXT + 1, "CREATE TABLE half (x BIGINT)", "INSERT INTO nowhere VALUES (1)")


@pytest.fixture
def place(world: Path) -> Path:
    """Where a database may lie with nothing else beside it."""
    folder = world / "db"
    folder.mkdir()
    return folder / "hocket.db"


def fill(path: Path) -> None:
    """A database with one ended run, closed in order."""
    store = open_store(path)
    store_writer = StoreWriter(store)
    store_writer.create("r1", 1)
    for number in range(50):
        store_writer.write(said("r1", "text", text=f"{number} " + "x" * 1000))
    store_writer.write(ended("r1"))
    store.close()


KILLED = """
import sys
from pathlib import Path
from store.sample_events import StoreWriter
from hocket.store import open_store
store_writer = StoreWriter(open_store(Path(sys.argv[1])))
store_writer.create("r2", 2)
print("written", flush=True)
sys.stdin.read()
"""


def write_and_be_killed(path: Path, code: str = KILLED) -> None:
    """A process commits one more run and gets SIGKILL before it can close anything."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)


def refused(path: Path, *words: str) -> StoreError:
    """Opening fails with a message that names the file, and every file stays as it was."""
    before = contents(path.parent)
    with pytest.raises(StoreError) as caught:
        open_store(path)
    assert str(path) in caught.value.message
    assert all(word in caught.value.message for word in words), caught.value.message
    assert caught.value.hint
    assert contents(path.parent) == before
    return caught.value


# --- migrations ---------------------------------------------------------------------------------------------


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [one.number for one in MIGRATIONS] == list(range(1, LATEST + 1))


def test_new_database_gets_all_migrations_without_copy(place: Path) -> None:
    open_store(place).close()
    with closing(sqlite3.connect(place)) as connection:
        assert [row[0] for row in connection.execute("SELECT number FROM migrations")] == list(range(1, LATEST + 1))
    assert {path.name for path in place.parent.iterdir()} == {"hocket.db", "hocket.db.state"}
    assert place.stat().st_mode & 0o777 == 0o600


def test_migration_is_applied_once_after_a_copy(place: Path) -> None:
    fill(place)
    for _ in range(2):
        store = open_store(place, (*MIGRATIONS, GOOD))
        assert store.read.find("r1").ended
        store.close()
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT count(*) FROM more").fetchone() == (1,)
    copy = place.with_name(f"hocket.db.schema-{LATEST}.copy")
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as connection:
        assert connection.execute("SELECT max(number) FROM migrations").fetchone() == (LATEST,)
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (52,)


def test_failed_migration_leaves_database_unchanged(place: Path) -> None:
    """Also those before it in the same upgrade: half an upgrade is no known schema."""
    fill(place)
    before = contents(place.parent)
    with pytest.raises(StoreError):
        open_store(place, (*MIGRATIONS, GOOD, BAD))
    copy = f"hocket.db.schema-{LATEST}.copy"
    assert {name: hash_ for name, hash_ in contents(place.parent).items() if name != copy} == before
    store = open_store(place)
    assert store.read.find("r1").ended
    store.close()


def test_failed_migration_after_kill_keeps_the_log(place: Path) -> None:
    fill(place)
    write_and_be_killed(place)
    with pytest.raises(StoreError):
        open_store(place, (*MIGRATIONS, BAD))
    store = open_store(place)
    assert [run.id for run in store.read.recent(10)] == ["r1", "r2"]
    store.close()


# --- after a crash ------------------------------------------------------------------------------------------


def test_killed_process_loses_no_commit(place: Path) -> None:
    fill(place)
    for _ in range(2):
        store = open_store(place)
        if store.read.run("r2") is None:
            store.close()
            write_and_be_killed(place)
            continue
        assert [run.id for run in store.read.live()] == ["r2"]
        store.close()


def test_kill_during_checkpoint_is_not_damage(place: Path) -> None:
    """The first page says already how long the file will be, the last pages are still in the log alone."""
    fill(place)
    write_and_be_killed(place, KILLED.replace('"r2", 2)', '"r2", 2, agent="x" * 100_000)'))
    log = place.with_name("hocket.db-wal").read_bytes()
    short = place.read_bytes()
    open_store(place).close()
    place.write_bytes(place.read_bytes()[: len(short)])
    place.with_name("hocket.db-wal").write_bytes(log)
    place.with_name("hocket.db.state").write_text("open")
    store = open_store(place)
    assert [run.id for run in store.read.recent(10)] == ["r1", "r2"]
    store.close()
    assert check(place) is None


def test_store_opens_after_kill_before_first_commit(place: Path) -> None:
    open_store(place).close()
    write_and_be_killed(place, KILLED.replace('store_writer.create("r2", 2)', "pass"))
    open_store(place).close()


def test_empty_file_becomes_a_database(place: Path) -> None:
    place.touch()
    open_store(place).close()
    assert check(place) is None


# --- refusals -----------------------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"this is not a database at all")


def cut_to(share: float) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    return cut


def cut_by_one_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_to_a_whole_page(path: Path) -> None:
    os.truncate(path, 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def gone(path: Path) -> None:
    path.unlink()


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (garbage, "damaged"),
    (cut_to(0.5), "damaged"),
    (cut_to(0.99), "damaged"),
    (cut_by_one_byte, "damaged"),
    (cut_to_a_whole_page, "damaged"),
    (cut_to(0.001), "damaged"),
    (empty, "damaged"),
    (gone, "missing"),
]


@pytest.mark.parametrize(("harm", "word"), DAMAGE, ids=[f"{n}-{harm.__name__}" for n, (harm, _) in enumerate(DAMAGE)])
def test_damaged_database_is_refused_unchanged(place: Path, harm: Callable[[Path], None], word: str) -> None:
    fill(place)
    harm(place)
    refused(place, word)
    refused(place, word)


@pytest.mark.parametrize("harm", [garbage, cut_to(0.5), empty, gone], ids=["garbage", "cut", "empty", "gone"])
def test_damage_after_a_kill_is_refused_too(place: Path, harm: Callable[[Path], None]) -> None:
    fill(place)
    write_and_be_killed(place)
    harm(place)
    refused(place)


def test_log_deleted_after_a_kill_is_reported(place: Path) -> None:
    fill(place)
    write_and_be_killed(place)
    place.with_name("hocket.db-wal").unlink()
    error = refused(place, "write-ahead log", "gone")
    assert "hocket.db.state" in (error.hint or "")
    place.with_name("hocket.db.state").unlink()
    store = open_store(place)
    assert store.read.find("r1").ended
    store.close()


def read_by_another_program(path: Path) -> None:
    """Any reader is the last to close the database of a killed process: it folds the log in and removes it."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2,)
    assert not path.with_name("hocket.db-wal").exists()


def test_log_checkpointed_by_another_program_is_accepted(place: Path) -> None:
    """Torture row 57."""
    fill(place)
    write_and_be_killed(place)
    read_by_another_program(place)
    assert check(place) is None
    store = open_store(place)
    assert [run.id for run in store.read.recent(10)] == ["r1", "r2"]
    store.close()


def test_log_deleted_after_another_program_is_reported(place: Path) -> None:
    fill(place)
    write_and_be_killed(place)
    read_by_another_program(place)
    write_and_be_killed(place, KILLED.replace('"r2", 2', '"r3", 3'))
    place.with_name("hocket.db-wal").unlink()
    refused(place, "write-ahead log", "gone")


def test_missing_log_of_older_version_is_accepted(place: Path) -> None:
    """Older versions did not record how far the database went, so nothing can be said."""
    fill(place)
    place.with_name("hocket.db.state").write_text("open")
    open_store(place).close()


@pytest.mark.parametrize("killed", [False, True])
def test_newer_schema_is_refused_and_left_unchanged(place: Path, killed: bool) -> None:
    newer = (*MIGRATIONS, GOOD)
    fill(place)
    open_store(place, newer).close()
    if killed:
        write_by_the_newer_program_and_be_killed(place)
    refused(place, "newer", str(NEXT))
    store = open_store(place, newer)
    assert store.read.find("r1").ended
    assert (store.read.run("r2") is not None) == killed
    store.close()


def write_by_the_newer_program_and_be_killed(path: Path) -> None:
    statements = repr(GOOD.statements)
    newer = f"(*MIGRATIONS, Migration({NEXT}, 'x', {statements}))"
    code = KILLED.replace("open_store(Path(sys.argv[1]))", f"open_store(Path(sys.argv[1]), {newer})")
    write_and_be_killed(path, "from hocket.store.schema import MIGRATIONS, Migration\n" + code)


@contextmanager
def unprivileged_user() -> Iterator[None]:
    """Root may write everywhere, so a test that is run by root becomes another user for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("filled", [False, True])
def test_read_only_directory_is_refused(place: Path, filled: bool) -> None:
    if filled:
        fill(place)
        place.chmod(0o444)
    place.parent.parent.chmod(0o755)
    place.parent.chmod(0o555)
    with unprivileged_user():
        error = refused(place, "cannot be opened")
        found = check(place)
    assert str(place.parent) in (error.hint or "")
    assert found is None or (filled and found.hint == error.hint), "nothing is damaged"
    place.parent.chmod(0o755)


def test_foreign_database_is_left_unchanged(place: Path) -> None:
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("CREATE TABLE migrations (number BIGINT, name TEXT)")
        connection.execute("INSERT INTO migrations VALUES (4711, 'theirs')")
        connection.commit()
    refused(place, "newer")


# --- checking without touching ------------------------------------------------------------------------------


def test_check_of_sound_database_changes_nothing(place: Path) -> None:
    assert check(place) is None
    fill(place)
    write_and_be_killed(place)
    before = contents(place.parent)
    assert check(place) is None
    assert contents(place.parent) == before
    open_store(place).close()


def test_check_reports_what_is_wrong(place: Path) -> None:
    fill(place)
    garbage(place)
    assert "has no SQLite header" in str(check(place))


@pytest.mark.parametrize("harm", [cut_to(0.5), empty, gone], ids=["cut", "empty", "gone"])
def test_check_reports_what_opening_would_refuse(place: Path, harm: Callable[[Path], None]) -> None:
    fill(place)
    harm(place)
    before = contents(place.parent)
    assert check(place) is not None
    assert contents(place.parent) == before


def test_check_reports_missing_log(place: Path) -> None:
    fill(place)
    write_and_be_killed(place)
    place.with_name("hocket.db-wal").unlink()
    assert "write-ahead log" in str(check(place))
    refused(place, "write-ahead log")
