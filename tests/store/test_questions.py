"""Questions and usage: written with their events, found by an index, and filled in for databases that had none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store.sample_events import StoreWriter, created, downgrade, ended, said
from store.test_queries import Asked

from hocket.model.task import Create, Enqueue, Queued, Task, Unqueue
from hocket.store import LATEST, NewRun, Queries, Question, Store, UsageTotal, below_test, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "hocket.db")
    yield opened
    opened.close()


def ask(run: str, name: str, root: str | None = None) -> dict[str, object]:
    return {"id": name, "kind": "ask", "text": f"{run} asks {name}"}


def fill(store: Store) -> None:
    """A chain with a loop of two agents that ask and spend, one of which has ended; and an agent beside it."""
    store_writer = StoreWriter(store)
    family = [
        created("rchain", 1, kind="chain"),
        created("rloop", 2, "rchain", "rchain", "loop"),
        created("rone", 3, "rloop", "rchain"),
        created("rtwo", 4, "rloop", "rchain"),
        created("rother", 5),
    ]
    store_writer.write(*family, new={event.run: NewRun(b"{}") for event in family})
    for run, root in (("rone", "rchain"), ("rtwo", "rchain"), ("rother", "rother")):
        store_writer.write(said(run, "question", root, **ask(run, "q1")), said(run, "question", root, **ask(run, "q2")))
        store_writer.write(said(run, "answer", root, id="q1", allow=True, text=run, by="operator", key=f"key-{run}"))
        store_writer.write(said(run, "usage", root, cost_usd=0.25), said(run, "usage", root, cost_usd=0.5, tokens=7))
    store_writer.write(ended("rone", "rchain", cost_usd=0.75, tokens=9))
    later = created("rlater", 6, kind="chain")
    store_writer.write(
        said("rlater", "run.created", **{**later.data, "resumed_from": "rchain"}), new={"rlater": NewRun(b"{}")}
    )
    item = Queued("q123", "p", None, 1.0)
    orders = [Create(Task("t1", 0, "d", 1.0, 1.0)), Enqueue("t1", item), Unqueue("t1", "q123", "k1")]
    store_writer.write(orders=orders)


def check(read: Queries) -> None:
    """What the lookup tables say about that."""
    asked = read.question("rone", "q1")
    assert asked == read.answered_with("rchain", "key-rone") == read.last_answered("q", "rone")
    assert asked is not None
    assert (asked.data, asked.answer and asked.answer["text"]) == (ask("rone", "q1"), "rone")
    open_ = read.question("rtwo", "q2")
    assert isinstance(open_, Question)
    assert (open_.answer, open_.answered_at) == (None, None)
    assert (read.question("rone", "q"), read.answered_with("rother", "key-rone")) == (None, None)
    everywhere = [read.last_answered(prefix) for prefix in ("", "q", "q1", "q2", "x")]
    assert [one and one.run for one in everywhere] == ["rother", "rother", "rother", None, None]
    below = read.last_answered_below("rchain", "q", below_test("rloop", read.parent))
    assert below is not None
    assert below.run == "rtwo"
    for run, total in (("rchain", UsageTotal(0.75, 9)), ("rloop", UsageTotal(0.75, 9)), ("rother", UsageTotal())):
        assert read.ended_usage(read.find(run), LATEST) == total
    assert read.ended_usage(read.find("rchain"), 5) == UsageTotal()
    assert [(one.id, one.cost_usd) for one in read.ended_usage_of_tree("rchain")] == [("rone", 0.75)]
    resumed = read.last_resuming(read.find("rchain"))
    assert resumed is not None
    assert resumed.id == "rlater"
    queued, taken = read.task_change("t1", "q123"), read.task_change("t1", "k1")
    assert queued is not None
    assert taken is not None
    assert (queued["event"], taken["event"], read.task_change("t1", "k2")) == ("queued", "unqueued", None)


def test_lookups_are_written_with_their_events(store: Store) -> None:
    fill(store)
    check(store.read)


def test_lookups_are_filled_in_by_the_migration(tmp_path: Path) -> None:
    path = tmp_path / "hocket.db"
    store = open_store(path)
    fill(store)
    store.close()
    downgrade(path, 3)
    store = open_store(path)
    check(store.read)
    store.close()
    assert path.with_name("hocket.db.schema-3.copy").exists()


def test_lookups_read_no_whole_table(store: Store) -> None:
    fill(store)
    asked = Asked(store.read)
    check(store.read)
    list(store.read.events_of_type("rone", "question", "run.ended"))
    store.read.shown_prompt("rone")
    store.read.said_to("rone")
    scans = [plan for plan in asked.plans() if plan.startswith("SCAN")]
    assert [plan for plan in scans if plan not in ("SCAN below", "SCAN usage") and " USING " not in plan] == []


def test_queries_aside_see_what_is_committed(store: Store) -> None:
    fill(store)
    assert store.read_aside(lambda read: read.last_number()).result(10) == 6
    store.read_aside(check).result(10)
