"""Removal of trees: what is gone, what stays, what refuses it, and numbers that never come back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store.sample_events import StoreWriter, created, ended, said

from hocket.errors import Conflict, NotFound
from hocket.model.task import Archive, Begin, Create, SetStatus, Task, TaskStatus
from hocket.store import Batch, NewRun, Store, open_store
from hocket.store.removal import ROWS_AT_ONCE

TREE = ("rchain", "rleaf", "rother")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "hocket.db")
    yield opened
    opened.close()


@pytest.fixture
def writer(store: Store) -> StoreWriter:
    """A chain with one leaf, which asked and spent something, and another run after it; all have ended."""
    made = StoreWriter(store)
    made.write(
        created("rchain", 1, kind="chain"),
        created("rleaf", 2, "rchain", "rchain"),
        said("rleaf", "session", "rchain", session_id="11111111-2222"),
        said("rleaf", "question", "rchain", id="q1", text="?"),
        said("rleaf", "usage", "rchain", cost_usd=1.0, tokens=5),
        created("rother", 3),
        said("rother", "text", text="stays"),
        ended("rother"),
        ended("rleaf", "rchain"),
        ended("rchain"),
        new={name: NewRun(b"{}") for name in TREE},
    )
    return made


def count(path: Path, table: str, run: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        column = "id" if table in ("runs", "removed_runs") else "run"
        sql = f"SELECT count(*) FROM {table} WHERE {column} = ?"  # noqa: S608 - names of this test
        return int(database.execute(sql, (run,)).fetchone()[0])


def refusal(writer: StoreWriter, *roots: str) -> str:
    outcome = writer.attempt(Batch([], removed_trees=roots))
    assert isinstance(outcome, Conflict), outcome
    return outcome.message


def test_removed_tree_and_its_events_are_gone(store: Store, writer: StoreWriter) -> None:
    writer.write(removed_trees=("rchain",))
    for ref in ("rchain", "rleaf", "1", "2"):
        with pytest.raises(NotFound, match="removed by `hocket gc`"):
            store.read.find(ref)
    with pytest.raises(NotFound):
        store.read.find("11111111-2222")
    assert [run.id for run in store.read.recent(10)] == ["rother"]
    assert store.read.known_sessions(["11111111-2222"]) == set()
    assert [one.id for one in store.read.being_removed(0, 10)] == ["rchain", "rleaf"]
    assert writer.write(swept=("rchain", "rleaf")).swept == {"rchain", "rleaf"}
    assert store.read.being_removed(0, 10) == []
    for table in ("events", "questions", "usage", "offsets", "transcripts"):
        assert count(store.path, table, "rleaf") == 0, table
    assert count(store.path, "events", "rother") == 3


def test_numbers_of_removed_runs_are_not_reused(store: Store, writer: StoreWriter) -> None:
    last = store.read.last_seq()
    writer.write(removed_trees=("rchain",))
    writer.write(removed_trees=("rother",))
    writer.write(swept=TREE)
    assert (store.read.last_number(), store.read.last_seq()) == (3, last)
    path = store.path
    store.close()
    again = open_store(path)
    assert (again.read.last_number(), again.read.last_seq()) == (3, last)
    assert [event.seq for event in StoreWriter(again).create("rnew", 4).events] == [last + 1]
    again.close()


def test_database_opens_without_log_after_removal(store: Store, writer: StoreWriter, tmp_path: Path) -> None:
    """What another program leaves of a killed server: it has put the log into the database and removed it."""
    writer.write(removed_trees=("rchain",))
    writer.write(removed_trees=("rother",))
    writer.write(swept=TREE)
    killed = tmp_path / "killed"
    killed.mkdir()
    with closing(sqlite3.connect(store.path)) as database, closing(sqlite3.connect(killed / "hocket.db")) as copy:
        database.backup(copy)
    (killed / "hocket.db.state").write_bytes(store.path.with_name("hocket.db.state").read_bytes())
    assert b"open" in (killed / "hocket.db.state").read_bytes()
    open_store(killed / "hocket.db").close()


def test_tree_with_a_live_run_is_refused(store: Store, writer: StoreWriter) -> None:
    writer.write(created("rlive", 4, kind="chain"), new={"rlive": NewRun(b"{}")})
    assert refusal(writer, "rlive") == "run 4 has not ended"
    assert refusal(writer, "rother", "rlive") == "run 4 has not ended"
    assert store.read.find("3").id == "rother", "all or none"
    assert refusal(writer, "rnothing") == "it was removed meanwhile"


def test_trees_that_resume_one_another_are_removed_together(store: Store, writer: StoreWriter) -> None:
    begun = created("ragain", 4)
    begun.data["resumed_from"] = "rleaf"  # type: ignore[index]
    writer.write(begun, ended("ragain"), new={"ragain": NewRun(b"{}")})
    assert store.read.resumptions() == [("rchain", "ragain")]
    assert refusal(writer, "rchain") == "run 4 resumes it"
    assert refusal(writer, "ragain") == "run 4 resumes a run that would stay"
    writer.write(removed_trees=("rchain", "ragain"))
    assert [run.id for run in store.read.recent(10)] == ["rother"]


def handed_off(writer: StoreWriter) -> str:
    """A task that a run has worked on, which has ended."""
    task = Task("t1", 0, "Paint it", 1.0, 1.0)
    begun = created("rhand", 4)
    begun.data.update(task="t1", handoff="h1", prompt="paint [redacted]")  # type: ignore[attr-defined]
    orders = [Create(task), Begin("t1", "h1", "rhand", "a", 0)]
    writer.write(begun, new={"rhand": NewRun(b'{"prompt": "paint secret"}')}, orders=orders)
    writer.write(said("rhand", "session", session_id="33333333-4444"))
    writer.write(ended("rhand", result="painted"))
    return "rhand"


@pytest.mark.parametrize("way", ["archived", "completed", "failed"])
def test_run_is_kept_until_its_task_is_over(store: Store, writer: StoreWriter, way: str) -> None:
    run = handed_off(writer)
    assert store.read.trees_of_open_tasks() == {run: 1}
    assert refusal(writer, run) == "task 1 is neither finished nor archived"
    order: Any = Archive("t1", archived=True) if way == "archived" else SetStatus("t1", TaskStatus(way))
    writer.write(orders=[order])
    assert store.read.trees_of_open_tasks() == {}
    writer.write(removed_trees=(run,))
    (record,) = store.read.handoffs("t1")
    assert (record.output, record.prompt, record.session) == ("painted", "paint [redacted]", "33333333-4444")


def test_sweep_deletes_a_bounded_number_of_events(store: Store, writer: StoreWriter) -> None:
    writer.write(created("rlong", 4), new={"rlong": NewRun(b"{}")})
    writer.write(*(said("rlong", "text", text=str(number)) for number in range(ROWS_AT_ONCE)))
    writer.write(ended("rlong"))
    writer.write(removed_trees=("rlong",))
    assert writer.write(swept=("rlong",)).swept == set()
    assert count(store.path, "events", "rlong") == 2
    assert [one.id for one in store.read.being_removed(0, 10)] == ["rlong"]
    assert writer.write(swept=("rlong",)).swept == {"rlong"}
    assert count(store.path, "events", "rlong") == 0


def test_size_of_a_tree_counts_its_rows(store: Store, writer: StoreWriter) -> None:
    before = store.read.bytes_of_tree("rother")
    writer.write(created("rbig", 4), said("rbig", "text", text="x" * 50_000), new={"rbig": NewRun(b"{}")})
    writer.write(ended("rbig"))
    assert 49_000 <= store.read.bytes_of_tree("rbig") - before < 51_000
    assert [(tree.root, tree.runs, tree.live) for tree in store.read.trees()] == [
        ("rbig", 1, None),
        ("rchain", 2, None),
        ("rother", 1, None),
    ]
