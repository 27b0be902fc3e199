"""A database of an earlier version loses the values of secret variables; what is live finds them in its file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store.sample_events import StoreWriter, created, downgrade, ended, said

from hocket.secret_files import read_values
from hocket.store import NewRun, Store, open_store
from hocket.store.schema import LATEST

KEY = "sk-test-0123456789abcdef0123456789"
LIVE, OTHER, ENDED = ("r" + letter * 15 for letter in "abc")
BEFORE = 2


@pytest.fixture
def place(world: Path) -> Path:
    """Where a database may lie with nothing else beside it."""
    folder = world / "db"
    folder.mkdir()
    return folder / "hocket.db"


def record(key: str, **more: Any) -> bytes:
    return json.dumps({"agent": "a", "env": {"PATH": "/bin", "A_KEY": key}, **more}).encode()


def step(key: str) -> dict[str, Any]:
    spec = json.loads(record(key))
    return {"agent": "a", "spec": spec, "approval": {"without": spec}}


def fill(path: Path) -> None:
    """Live and ended runs as the version before wrote them, and pages that it has freed."""
    store = open_store(path)
    store_writer = StoreWriter(store)
    chain = record(KEY, name="a -> a", steps=[step(KEY), step(KEY)])
    store_writer.write(created(LIVE, 1, kind="chain"), new={LIVE: NewRun(chain)})
    store_writer.write(created(OTHER, 2, parent=LIVE, root=LIVE), new={OTHER: NewRun(record(KEY + "2"))})
    store_writer.write(created(ENDED, 3), new={ENDED: NewRun(record(KEY, prompt="x" * 20_000))})
    for number in range(20):
        store_writer.write(said(ENDED, "text", text=f"{number}"))
    store_writer.write(ended(OTHER, LIVE), ended(ENDED, result="y" * 20_000))
    store.close()
    downgrade(path, BEFORE)


def holders(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if KEY.encode() in path.read_bytes()}


def specs(store: Store) -> list[dict[str, Any]]:
    return [json.loads(store.read.spec(run)) for run in (LIVE, OTHER, ENDED)]


def test_values_are_in_files_of_live_roots_alone(place: Path) -> None:
    fill(place)
    assert holders(place.parent) == {"hocket.db"}
    store = open_store(place)
    assert holders(place.parent) == {f"secrets/{LIVE}"}
    assert read_values(place.parent / "secrets", LIVE) == {"A_KEY": [KEY, KEY + "2"]}
    live, other, ended_ = specs(store)
    holder = {"agent": "a", "env": {"PATH": "/bin"}, "secrets": {"A_KEY": 0}}
    assert live == {
        **holder,
        "name": "a -> a",
        "steps": [{"agent": "a", "spec": holder, "approval": {"without": holder}}] * 2,
    }
    assert (other["secrets"], ended_["secrets"]) == ({"A_KEY": 1}, {"A_KEY": 0})
    store.close()
    assert holders(place.parent) == {f"secrets/{LIVE}"}
    assert (place.parent / f"hocket.db.schema-{BEFORE}.copy").exists()


def test_attempt_that_was_killed_is_made_again(place: Path) -> None:
    """The files were written and the rows were not changed, or were and it was not recorded."""
    fill(place)
    for _ in range(2):
        open_store(place).close()
        downgrade(place, BEFORE)
    store = open_store(place)
    assert [one["secrets"] for one in specs(store)] == [{"A_KEY": 0}, {"A_KEY": 1}, {"A_KEY": 0}]
    assert read_values(place.parent / "secrets", LIVE) == {"A_KEY": [KEY, KEY + "2"]}
    store.close()


def test_copies_of_earlier_migrations_lose_their_values(place: Path) -> None:
    fill(place)
    copy = place.with_name("hocket.db.schema-1.copy")
    with closing(sqlite3.connect(place)) as database, closing(sqlite3.connect(copy)) as kept:
        database.backup(kept)
        kept.execute("DROP TABLE tasks")
    place.with_name("hocket.db.schema-0.copy").write_bytes(b"no database at all")
    open_store(place).close()
    assert holders(place.parent) == {f"secrets/{LIVE}"}
    with closing(sqlite3.connect(copy)) as kept:
        assert kept.execute("SELECT count(*) FROM runs").fetchone() == (3,)


def test_database_of_this_version_is_not_looked_through(place: Path) -> None:
    fill(place)
    open_store(place).close()
    with closing(sqlite3.connect(place)) as database, database:
        assert database.execute("SELECT max(number) FROM migrations").fetchone() == (LATEST,)
        database.execute("UPDATE runs SET spec = ? WHERE id = ?", (record("left-as-it-is").decode(), ENDED))
    store = open_store(place)
    assert specs(store)[2]["env"]["A_KEY"] == "left-as-it-is"
    store.close()
