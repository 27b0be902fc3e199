"""The journal: when ``write`` returns, everything that follows from it is in place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from store.stories import created, ended, said
from workflows.engine_fixture import desk_at, note

from hocket.errors import StoreError
from hocket.model import Status
from hocket.store import Committed, NewRun


def test_a_write_returns_when_it_is_stored_alive_and_told(tmp_path: Path) -> None:
    async def scene() -> None:
        told: list[Committed] = []
        async with desk_at(tmp_path / "db") as desk:
            desk.journal.listen(told.append)
            committed = await desk.journal.write([created("r1", 1)], new={"r1": NewRun(b"{}")})
            assert told == [committed]
            assert desk.journal.live["r1"] == committed.runs["r1"] == desk.journal.read.run("r1")
            await desk.journal.write([said("r1", "run.started", pid=1)])
            assert desk.journal.live["r1"].status is Status.RUNNING
            await desk.journal.write([ended("r1")])
            assert desk.journal.live == {}
            gone = desk.journal.run("r1")
            assert gone is not None
            assert gone.ended

    asyncio.run(scene())


def test_concurrent_writes_are_told_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    async def scene() -> None:
        numbers: list[int] = []
        async with desk_at(tmp_path / "db") as desk:
            desk.journal.listen(lambda committed: numbers.extend(event.seq for event in committed.events))
            await desk.create("r1", 1)
            results = await asyncio.gather(*(desk.say("r1", "r1", str(n), "x") for n in range(100)))
            assert numbers == list(range(1, 202))
            assert [result.events[0].data["text"] for result in results] == [str(n) for n in range(100)]

    asyncio.run(scene())


def test_a_refused_write_is_told_to_its_own_caller_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with desk_at(tmp_path / "db") as desk:
            await desk.create("r1", 1)
            outcomes = await asyncio.gather(
                desk.say("r1", "r1", "good"),
                desk.journal.write([created("r2", 1)], new={"r2": NewRun(b"{}")}),
                desk.journal.write([said("r1", "text", text=object())]),
                desk.say("r1", "r1", "good too"),
                return_exceptions=True,
            )
            kinds = [type(outcome) for outcome in outcomes]
            assert kinds == [Committed, StoreError, StoreError, Committed]
            assert list(desk.journal.live) == ["r1"]
            assert [e.data["text"] for e in desk.journal.read.events("r1")[1:]] == ["good", "good too"]

    asyncio.run(scene())


def test_a_write_whose_caller_has_gone_is_committed_all_the_same(tmp_path: Path) -> None:
    async def scene() -> None:
        async with desk_at(tmp_path / "db") as desk:
            await desk.create("r1", 1)
            task = asyncio.create_task(desk.say("r1", "r1", "unheard"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await desk.say("r1", "r1", "heard")
            assert [e.data["text"] for e in desk.journal.read.events("r1")[1:]] == ["unheard", "heard"]

    asyncio.run(scene())


def test_what_is_alive_is_known_again_after_a_restart(tmp_path: Path) -> None:
    async def scene() -> None:
        async with desk_at(tmp_path / "db") as desk:
            await desk.create("r1", 1)
            await desk.create("r2", 2)
            await desk.journal.write([note("r1", "r1", "x"), ended("r2")])
            before = dict(desk.journal.live)
        async with desk_at(tmp_path / "db") as desk:
            assert desk.journal.live == before
            assert list(before) == ["r1"]

    asyncio.run(scene())
