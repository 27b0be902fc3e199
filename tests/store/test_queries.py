"""Queries: names of runs, trees, pages, and the indexes that keep it quick however long history grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store.sample_events import StoreWriter, created, ended, plain, said

from hocket.errors import AmbiguousRun, NotFound
from hocket.model import Run, Status
from hocket.model.task import Handoff, Restore, Task
from hocket.store import Batch, EventLine, NewRun, Queries, Store, below_test, open_store

HUGE = 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "hocket.db")
    yield opened
    opened.close()


@pytest.fixture
def tree(store: Store) -> Queries:
    """A chain with a loop of two leaves, the first of which started an agent; and a run beside it."""
    store_writer = StoreWriter(store)
    family = [
        created("rchain", 1, kind="chain"),
        created("rloop", 2, "rchain", "rchain", "loop"),
        created("rleaf1", 3, "rloop", "rchain"),
        said("rleaf1", "text", "rchain", text="one"),
        created("rchild", 4, "rleaf1", "rchain"),
        said("rchild", "text", "rchain", text="child"),
        created("rother", 5),
        said("rother", "text", text="other"),
        ended("rleaf1", "rchain"),
        created("rleaf2", 6, "rloop", "rchain"),
        said("rleaf2", "text", "rchain", text="two"),
    ]
    store_writer.write(*family, new={event.run: NewRun(b'{"s":1}') for event in family if event.type == "run.created"})
    return store.read


def test_run_is_found_by_id_prefix_or_number(tree: Queries) -> None:
    assert {tree.find(ref).id for ref in ("rchain", "rcha", "1")} == {"rchain"}
    assert tree.find("rleaf1").number == 3


UNKNOWN = ["x", "0", "99", "9" * 18, "9" * 40, "", "r%", "r_", "'", "rchain ", "RCHAIN", "ä", "\0"]


@pytest.mark.parametrize("ref", UNKNOWN)
def test_unknown_name_is_not_found(tree: Queries, ref: str) -> None:
    with pytest.raises(NotFound):
        tree.find(ref)


def test_ambiguous_prefix_is_refused_by_query(tree: Queries) -> None:
    with pytest.raises(AmbiguousRun):
        tree.find("rleaf")


def test_complete_id_wins_over_prefix(store: Store) -> None:
    store_writer = StoreWriter(store)
    store_writer.create("rab", 1)
    store_writer.create("rabc", 2)
    assert store.read.find("rab").number == 1


def test_live_recent_children_and_below(tree: Queries) -> None:
    def ids(runs: list[Run]) -> list[str]:
        return [run.id for run in runs]

    assert ids(tree.live()) == ["rchain", "rloop", "rchild", "rother", "rleaf2"]
    assert ids(tree.recent(2)) == ["rother", "rleaf2"]
    assert ids(tree.children("rloop")) == ["rleaf1", "rleaf2"]
    assert ids(tree.below("rloop")) == ["rloop", "rleaf1", "rchild", "rleaf2"]
    assert tree.last_number() == 6
    assert tree.last_seq() == 11
    assert tree.spec("rloop") == b'{"s":1}'


def words(lines: list[EventLine]) -> list[str]:
    return [decode(line)["data"]["text"] for line in lines if line.type == "text"]


def decode(line: EventLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.text)
    return found


def test_page_has_events_of_tree_or_run(tree: Queries) -> None:
    assert words(tree.event_page("root", "rchain", 0, 500, HUGE)) == ["one", "child", "two"]
    assert words(tree.event_page("run", "rleaf1", 0, 500, HUGE)) == ["one"]
    one_by_one: list[EventLine] = []
    while page := tree.event_page("root", "rchain", one_by_one[-1].seq if one_by_one else 0, 1, HUGE):
        one_by_one += page
    assert words(one_by_one) == ["one", "child", "two"]


def test_ancestors_are_found_by_the_parents(tree: Queries) -> None:
    is_below = below_test("rloop", tree.parent)
    family = ("rchain", "rloop", "rleaf1", "rchild", "rleaf2", "rother", "unknown")
    assert [run for run in family if is_below(run)] == ["rloop", "rleaf1", "rchild", "rleaf2"]


def test_line_is_the_wire_form_of_the_event(tree: Queries) -> None:
    line = next(line for line in tree.event_page("run", "rother", 0, 500, HUGE) if line.type == "text")
    assert decode(line) == {
        "v": 1, "seq": 8, "ts": 1000.5, "run": "rother", "root": "rother", "type": "text", "data": {"text": "other"},
    }  # fmt: skip


def test_page_ends_at_byte_limit_after_one_line(store: Store) -> None:
    store_writer = StoreWriter(store)
    store_writer.create("r1", 1)
    store_writer.write(*(said("r1", "text", text="x" * 1000) for _ in range(10)))
    assert len(store.read.event_page("run", "r1", 1, 500, 2500)) == 3
    assert len(store.read.event_page("run", "r1", 1, 500, 1)) == 1
    # An unfinished cursor would keep an old picture of the database, and its log from being cut.
    store_writer.write(said("r1", "text", text="new"))
    assert store.read.event_page("run", "r1", 11, 500, HUGE) != []


def test_stored_run_reads_back_unchanged(store: Store) -> None:
    store_writer = StoreWriter(store)
    store_writer.create("r1", 1)
    last = store_writer.write(ended("r1", steps=[{"agent": "ä", "runs": ["r1"]}], result="\0\x1b[31m\u2028"))
    assert plain(store.read.run("r1")) == plain(last.runs["r1"])
    assert store.read.run("unknown") is None
    with pytest.raises(NotFound):
        store.read.spec("unknown")


# --- quick, however long history is -------------------------------------------------------------------------


class Asked:
    """Records the statements that a reading sends."""

    def __init__(self, read: Queries) -> None:
        self.statements: list[str] = []
        self._connection = read._connection
        self._connection.set_trace_callback(self.statements.append)

    def plans(self) -> list[str]:
        self._connection.set_trace_callback(None)
        explain = self._connection.execute
        return [row[3] for sql in self.statements for row in explain(f"EXPLAIN QUERY PLAN {sql}").fetchall()]


def test_live_runs_use_their_index(tree: Queries) -> None:
    asked = Asked(tree)
    tree.live()
    assert [plan for plan in asked.plans() if "runs_live" not in plan] == []


def test_prefix_lookup_uses_the_primary_key(tree: Queries) -> None:
    asked = Asked(tree)
    tree.find("rcha")
    (plan,) = asked.plans()
    assert plan.startswith("SEARCH runs USING INDEX sqlite_autoindex_runs_1 (id>? AND id<?)")


def test_no_question_reads_a_whole_table(tree: Queries) -> None:
    asked = Asked(tree)
    for ref in ("rchain", "rleaf2", "1"):
        run = tree.find(ref)
        tree.event_page("root", run.root, 3, 500, HUGE)
        tree.event_page("run", run.id, 3, 500, HUGE)
    for ask in (tree.run, tree.children, tree.below, tree.events, tree.offsets, tree.by_request, tree.spec):
        ask("rchain")
    tree.last_seq(), tree.last_number(), tree.recent(5)
    scans = [plan for plan in asked.plans() if plan.startswith("SCAN")]
    assert [plan for plan in scans if plan != "SCAN below" and " USING " not in plan] == []


@pytest.mark.parametrize("ref", ["rchain", "rleaf2"])
def test_event_page_uses_an_index(tree: Queries, ref: str) -> None:
    asked = Asked(tree)
    tree.event_page("root", ref, 3, 500, HUGE)
    tree.event_page("run", ref, 3, 500, HUGE)
    assert [plan for plan in asked.plans() if "SCAN" in plan or "TEMP B-TREE" in plan] == []


def test_last_closed_handoff_ignores_imported_ones(store: Store) -> None:
    task = Task("t1", 1, "d", 1.0, 1.0, handoffs=3, brought=True, brought_handoffs=1)
    ahead = Handoff("h1", "t1", 1, None, "qa", 0, 1.0, 9e9, Status.DONE)
    outer = Handoff("h2", "t1", 2, "r2", "boss", 0, 2.0, 5.0, Status.FAILED)
    inner = Handoff("h3", "t1", 3, "r3", "worker", 1, 3.0, 4.0, Status.DONE)
    store.write_all([Batch([], orders=[Restore(task, (ahead, outer, inner))])])
    assert store.read.last_closed_handoff(task) == outer
