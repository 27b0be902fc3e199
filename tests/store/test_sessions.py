"""Sessions: which run has each of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from store.sample_events import StoreWriter, created, downgrade, said

from hocket.errors import AmbiguousRun, NotFound
from hocket.model import Kind, Run
from hocket.store import NewRun, Store, open_store
from hocket.store.opening import connect

FIRST, SECOND = "11111111-2222-4333-8444-555555555555", "11111111-9999-4333-8444-555555555555"
NEW = {"r1": NewRun(b"{}"), "r2": NewRun(b"{}")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "hocket.db")


def test_run_is_found_by_each_of_its_sessions(store: Store) -> None:
    writer = StoreWriter(store)
    begun = [said("r1", "session", session_id=FIRST), said("r1", "session", session_id=SECOND, instead_of=FIRST)]
    writer.write(created("r1", 1), created("r2", 2), *begun, said("r2", "session", session_id=None), new=NEW)
    found = [store.read.run_of_session(session) for session in (FIRST, SECOND, "other")]
    assert [run and run.id for run in found] == ["r1", "r1", None]
    assert store.read.known_sessions([FIRST, "other", SECOND]) == {FIRST, SECOND}
    assert store.read.find(SECOND).id == store.read.find(SECOND[:12]).id == "r1"
    store.close()


def test_session_prefix_names_one_run_or_none(store: Store) -> None:
    writer = StoreWriter(store)
    sessions = [said("r1", "session", session_id=FIRST), said("r2", "session", session_id=SECOND)]
    writer.write(created("r1", 1), created("r2", 2), *sessions, new=NEW)
    with pytest.raises(AmbiguousRun):
        store.read.find(FIRST[:8])
    for ref in (FIRST[:7], "1' OR '1'='1", "11111111%"):
        with pytest.raises(NotFound, match="there is no run"):
            store.read.find(ref)
    for ref in (f"{FIRST}x-", "99999999"):
        with pytest.raises(NotFound, match="there is no run") as caught:
            store.read.find(ref)
        assert f"hocket import {ref}" in (caught.value.hint or "")
    store.close()


def test_known_sessions_of_a_large_home(store: Store) -> None:
    StoreWriter(store).write(created("r1", 1), said("r1", "session", session_id=FIRST), new={"r1": NewRun(b"{}")})
    assert store.read.known_sessions([*map(str, range(5000)), FIRST]) == {FIRST}
    store.close()


def test_sessions_of_earlier_versions_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "hocket.db"
    open_store(path).close()
    downgrade(path, 3)
    run = Run("r1", 1, Kind.LEAF, "a", "claude", None, "r1", 0, "/p", 1.0, session_id=FIRST)
    connection = connect(path)
    columns = "(id, number, root, status, created_at, state, spec) VALUES ('r1', 1, 'r1', 'done', 1.0, ?, '{}')"
    connection.execute(f"INSERT INTO runs {columns}", (msgspec.json.encode(run).decode(),))
    connection.close()
    store = open_store(path)
    found = store.read.run_of_session(FIRST)
    assert found is not None
    assert (found.id, found.is_observed) == ("r1", False)
    store.close()
