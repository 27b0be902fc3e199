"""The journal: when ``write`` returns, everything that follows from it is in place."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from patience import PATIENCE
from store.sample_events import created, ended, said
from workflows.engine_fixture import note, open_event_log

from hocket.errors import StoreError
from hocket.model import Status
from hocket.store import Committed, NewRun


def test_write_returns_after_store_and_listeners(tmp_path: Path) -> None:
    async def scene() -> None:
        told: list[Committed] = []
        async with open_event_log(tmp_path / "db") as log:
            log.journal.listen(told.append)
            committed = await log.journal.write([created("r1", 1)], new={"r1": NewRun(b"{}")})
            assert told == [committed]
            assert log.journal.live["r1"] == committed.runs["r1"] == log.journal.read.run("r1")
            await log.journal.write([said("r1", "run.started", pid=1)])
            assert log.journal.live["r1"].status is Status.RUNNING
            await log.journal.write([ended("r1")])
            assert log.journal.live == {}
            gone = log.journal.run("r1")
            assert gone is not None
            assert gone.ended

    asyncio.run(scene())


def test_applied_seq_is_not_ahead_of_the_runs(tmp_path: Path) -> None:
    """A follower that begins behind it must get the end of a run that is shown as live."""

    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            await log.create("r1", 1)
            before = log.journal.read.last_seq()
            write = asyncio.ensure_future(log.journal.write([ended("r1")]))
            await asyncio.sleep(0)
            deadline = time.monotonic() + PATIENCE
            while log.journal.read.last_seq() == before:  # The loop waits, so nothing is applied.
                assert time.monotonic() < deadline
            assert (log.journal.applied_seq, "r1" in log.journal.live) == (before, True)
            await write
            assert (log.journal.applied_seq, "r1" in log.journal.live) == (before + 1, False)

    asyncio.run(scene())


def test_concurrent_writes_are_published_in_sequence(tmp_path: Path) -> None:
    async def scene() -> None:
        numbers: list[int] = []
        async with open_event_log(tmp_path / "db") as log:
            log.journal.listen(lambda committed: numbers.extend(event.seq for event in committed.events))
            await log.create("r1", 1)
            results = await asyncio.gather(*(log.say("r1", "r1", str(n), "x") for n in range(100)))
            assert numbers == list(range(1, 202))
            assert [result.events[0].data["text"] for result in results] == [str(n) for n in range(100)]

    asyncio.run(scene())


def test_refused_write_fails_only_its_caller(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            await log.create("r1", 1)
            outcomes = await asyncio.gather(
                log.say("r1", "r1", "good"),
                log.journal.write([created("r2", 1)], new={"r2": NewRun(b"{}")}),
                log.journal.write([said("r1", "text", text=object())]),
                log.say("r1", "r1", "good too"),
                return_exceptions=True,
            )
            kinds = [type(outcome) for outcome in outcomes]
            assert kinds == [Committed, StoreError, StoreError, Committed]
            assert list(log.journal.live) == ["r1"]
            assert [e.data["text"] for e in log.journal.read.events("r1")[1:]] == ["good", "good too"]

    asyncio.run(scene())


def test_write_of_a_cancelled_caller_is_committed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            await log.create("r1", 1)
            task = asyncio.create_task(log.say("r1", "r1", "unheard"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await log.say("r1", "r1", "heard")
            assert [e.data["text"] for e in log.journal.read.events("r1")[1:]] == ["unheard", "heard"]

    asyncio.run(scene())


def test_live_runs_are_known_after_a_restart(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            await log.create("r1", 1)
            await log.create("r2", 2)
            await log.journal.write([note("r1", "r1", "x"), ended("r2")])
            before = dict(log.journal.live)
        async with open_event_log(tmp_path / "db") as log:
            assert log.journal.live == before
            assert list(before) == ["r1"]

    asyncio.run(scene())
