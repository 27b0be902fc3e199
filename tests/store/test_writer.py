"""The writer: one thread, one sequence, groups of batches, and a bad batch that fails alone."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from store.sample_events import StoreWriter, created, ended, plain, said

from hocket.errors import DiskLow, StoreError
from hocket.model import Event, apply, fold
from hocket.store import Batch, Committed, NewRun, Offsets, Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "hocket.db")
    yield opened
    opened.close()


def test_commit_returns_numbered_events_and_runs(store: Store) -> None:
    done = StoreWriter(store).create("r1", 1)
    assert [event.seq for event in done.events] == [1]
    assert plain(done.runs["r1"]) == plain(store.read.run("r1"))
    assert b'"seq":1,' in done.lines[0]
    assert b'"type":"run.created"' in done.lines[0]


def test_grouped_batches_have_dense_ordered_sequence(store: Store) -> None:
    """While the thread is held in its report of one group, the next ones gather into a single commit."""
    gate, groups = threading.Event(), []

    def slow(group: list[tuple[Batch, Committed | Exception]]) -> None:
        groups.append([outcome for _, outcome in group])
        gate.wait(10)

    writer = store.start_writing(slow)
    writer.submit(Batch([created("r1", 1)], {"r1": NewRun(b"{}")}))
    for number in range(200):
        writer.submit(Batch([said("r1", "text", text=str(number)), said("r1", "raw", text="x")]))
    gate.set()
    writer.close()
    outcomes = [outcome for group in groups for outcome in group]
    assert len(outcomes) == 201
    assert len(groups) <= 3
    numbers = [event.seq for outcome in outcomes if isinstance(outcome, Committed) for event in outcome.events]
    assert numbers == list(range(1, 402))
    texts = [event.data["text"] for event in store.read.events("r1") if event.type == "text"]
    assert texts == [str(number) for number in range(200)]


BAD: dict[str, Batch] = {
    "a request key that is taken": Batch([created("r2", 2)], {"r2": NewRun(b"{}", "key")}),
    "a number that is taken": Batch([created("r2", 1)], {"r2": NewRun(b"{}")}),
    "a run that exists": Batch([created("r1", 9)], {"r1": NewRun(b"{}")}),
    "something that is not JSON": Batch([said("r1", "text", text=object())]),
    "text that is no text": Batch([said("r1", "text", text="\ud800")]),
    "a status that does not exist": Batch([said("r1", "run.ended", status="fine", reason="exit")]),
    "a birth that comes second": Batch([said("r2", "run.started"), created("r2", 2)], {"r2": NewRun(b"{}")}),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_bad_batch_fails_alone(store: Store, bad: Batch) -> None:
    gate = threading.Event()
    outcomes: list[tuple[Batch, Committed | Exception]] = []

    def slow(group: list[tuple[Batch, Committed | Exception]]) -> None:
        outcomes.extend(group)
        gate.wait(10)

    writer = store.start_writing(slow)
    writer.submit(Batch([created("r1", 1)], {"r1": NewRun(b"{}", "key")}))
    good = [Batch([said("r1", "text", text=word)]) for word in ("before", "after")]
    for batch in (good[0], bad, good[1]):
        writer.submit(batch)
    gate.set()
    writer.close()
    assert [batch for batch, outcome in outcomes if isinstance(outcome, StoreError)] == [bad]
    events = store.read.events("r1")
    assert [event.data.get("text") for event in events] == [None, "before", "after"]
    assert [event.seq for event in events] == [1, 2, 3]
    assert plain(store.read.run("r1")) == plain(fold(events))
    assert store.read.run("r2") is None


def test_full_disk_is_reported_and_recovers_without_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path / "hocket.db")
    store_writer = StoreWriter(store)
    store_writer.create("r1", 1)
    size = store._writing.execute("PRAGMA page_count").fetchone()[0]
    store._writing.execute(f"PRAGMA max_page_count={size}")
    refused = store_writer.attempt(Batch([said("r1", "text", text="x" * 100_000)]))
    assert isinstance(refused, DiskLow)
    store._writing.execute("PRAGMA max_page_count=1000000")
    assert store_writer.write(said("r1", "text", text="x" * 100_000)).events[0].seq == 2
    store.close()


def test_late_events_do_not_change_ended_run(store: Store) -> None:
    store_writer = StoreWriter(store)
    store_writer.create("r1", 1)
    store_writer.write(ended("r1", result="bye"))
    before = plain(store.read.run("r1"))
    store_writer.write(said("r1", "text", text="late"), said("r1", "run.started", pid=1), created("r1", 1))
    assert plain(store.read.run("r1")) == before
    assert [event.type for event in store.read.events("r1")][2:] == ["text", "run.started", "run.created"]


def test_offsets_are_true_exactly_when_their_events_are(store: Store) -> None:
    store_writer = StoreWriter(store)
    store_writer.create("r1", 1)
    store_writer.write(said("r1", "text", text="a"), offsets={"r1": Offsets(2, 0, {"marker": True})})
    assert store.read.offsets("r1") == Offsets(2, 0, {"marker": True})
    spoiled = Batch([said("r1", "text", text=object())], offsets={"r1": Offsets(99, 99, {})})
    assert isinstance(store_writer.attempt(spoiled), StoreError)
    assert store.read.offsets("r1") == Offsets(2, 0, {"marker": True})
    assert store.read.offsets("unknown") == Offsets()


def test_sequence_continues_after_a_restart(tmp_path: Path) -> None:
    for number in range(1, 4):
        store = open_store(tmp_path / "hocket.db")
        assert [event.seq for event in StoreWriter(store).create(f"r{number}", number).events] == [number]
        assert [run.id for run in store.read.live()] == [f"r{n}" for n in range(1, number + 1)]
        store.close()


# --- fold(events) == what is stored -------------------------------------------------------------------------

RUNS = ("r1", "r2", "r3")
happenings = st.one_of(
    st.just(("run.created", {})),
    st.builds(lambda pid: ("run.started", {"pid": pid, "clock": 1.5}), st.none() | st.integers(1, 9)),
    st.builds(lambda text: ("text", {"text": text}), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    st.builds(lambda cost: ("usage", {"cost_usd": cost}), st.floats(0, 9)),
    st.just(("usage", {"tokens": 5})),
    st.sampled_from([("marker", {"line": "M"}), ("gate", {"passed": False}), ("session", {"session_id": "s"})]),
    st.builds(lambda why: ("input", {"kind": "stop", "reason": why}), st.sampled_from(["stopped", "timeout"])),
    st.builds(
        lambda how: ("run.ended", {"status": how[0], "reason": how[1], "result": "ü", "steps": [{"agent": "a"}]}),
        st.sampled_from([("done", "exit"), ("failed", "signal"), ("lost", "lost"), ("stopped", "stopped")]),
    ),
)
stories = st.lists(st.lists(st.tuples(st.sampled_from(RUNS), happenings), min_size=1, max_size=5), max_size=12)


def as_batches(story: list[list[tuple[str, tuple[str, dict[str, Any]]]]]) -> list[Batch]:
    """Only the first event of a run is its birth; a second one is a late arrival like any other."""
    known: set[str] = set()
    batches = []
    for moment in story:
        batch = Batch([])
        for run, (kind, data) in moment:
            if run not in known:
                known.add(run)
                batch.events.append(created(run, len(known)))
                batch.new[run] = NewRun(b"{}")
            elif kind == "run.created":
                if run not in batch.new:
                    batch.events.append(created(run, 99))
            else:
                batch.events.append(said(run, kind, **data))
        batches.append(batch)
    return batches


@settings(max_examples=60, deadline=None)
@given(story=stories, restart_every=st.integers(1, 6))
def test_stored_run_is_the_fold_of_its_events(
    tmp_path_factory: pytest.TempPathFactory,
    story: list[list[tuple[str, tuple[str, dict[str, Any]]]]],
    restart_every: int,
) -> None:
    path = tmp_path_factory.mktemp("fold") / "hocket.db"
    batches = as_batches(story)
    told: dict[str, list[Event]] = {}
    for begin in range(0, len(batches) + 1, restart_every):
        store = open_store(path)
        store_writer = StoreWriter(store)
        part = batches[begin : begin + restart_every]
        for batch in part:
            store_writer.writer.submit(batch)
        for _, outcome in store_writer.outcomes(len(part)):
            assert isinstance(outcome, Committed), outcome
            for event in outcome.events:
                told.setdefault(event.run, []).append(event)
        for run, events in told.items():
            folded = fold(events)
            assert plain(store.read.run(run)) == plain(folded)
            assert plain(store.read.events(run)) == plain(events)
            assert (run in {live.id for live in store.read.live()}) == (not folded.ended)
        store.close()
    numbers = sorted(event.seq for events in told.values() for event in events)
    assert numbers == list(range(1, len(numbers) + 1))


def test_committed_runs_reflect_all_events(store: Store) -> None:
    store_writer = StoreWriter(store)
    first = store_writer.create("r1", 1)
    later = store_writer.write(said("r1", "run.started", pid=3), said("r1", "marker"), ended("r1"))
    expected = first.runs["r1"]
    for event in later.events:
        expected = apply(expected, event)
    assert later.runs == {"r1": expected}


# --- durability ---------------------------------------------------------------------------------------------

FLUSHING = """
import sys
from pathlib import Path
from store.sample_events import StoreWriter, said
from hocket.store import open_store
store = open_store(Path(sys.argv[1]))
store_writer = StoreWriter(store)
store_writer.create("r1", 1)
print("MARK", file=sys.stderr, flush=True)
for _ in range(20):
    store_writer.write(said("r1", "text", text="x"), durable=sys.argv[2] == "durable")
print("MARK", file=sys.stderr, flush=True)
store.close()
"""


def flushes(folder: Path, kind: str) -> int:
    """How often the log was flushed to the disk during twenty commits."""
    trace = folder / f"{kind}.trace"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fdatasync,fsync,write"]
    program = [sys.executable, "-c", FLUSHING, str(folder / f"{kind}.db"), kind]
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([*command, *program], env=environment, check=True, timeout=PATIENCE, capture_output=True)
    between = itertools.dropwhile(lambda line: "MARK" not in line, trace.read_text().splitlines())
    next(between)
    return sum("sync(" in line for line in itertools.takewhile(lambda line: "MARK" not in line, between))


def test_only_durable_batches_are_flushed(tmp_path: Path) -> None:
    assert flushes(tmp_path, "durable") >= 20
    assert flushes(tmp_path, "ordinary") == 0


def test_commit_is_flushed_only_when_durable(store: Store) -> None:
    seen: list[int] = []
    store_writer = StoreWriter(store)
    store_writer.create("r1", 1)
    for durable in (False, True, False):
        store_writer.write(said("r1", "text", text="x"), durable=durable)
        seen.append(store._writing.execute("PRAGMA synchronous").fetchone()[0])
    normal, full = 1, 2
    assert seen == [normal, full, normal]
