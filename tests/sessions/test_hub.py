"""Following: no gap, no duplicate, only the subtree of the run, bounded memory, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from store.sample_events import created, ended, said
from workflows.engine_fixture import EventLog, note, open_event_log, until

from hocket.model import Run
from hocket.sessions import hub as hub_module
from hocket.sessions.hub import PAGE, PAGE_BYTES, Hub
from hocket.store import Batch, Committed, EventLine, NewRun, open_store


def seqs(lines: list[EventLine]) -> list[int]:
    return [line.seq for line in lines]


def waiting(log: EventLog) -> int:
    return sum(map(len, log.hub._waiting.values()))


def texts(lines: list[EventLine]) -> list[str]:
    return [json.loads(line.text)["data"]["text"] for line in lines if line.type == "text"]


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> int:
    """So that followers fall behind what is kept, and read the store, within a few events."""
    monkeypatch.setattr(hub_module, "RECENT_BYTES", 4000)
    return 4000


def test_follower_far_behind_catches_up_from_store(tmp_path: Path, small_memory: int) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            run = await log.create("r1", 1)
            for begin in range(0, 3 * PAGE, 100):
                await log.journal.write([note("r1", "r1", str(n)) for n in range(begin, begin + 100)])
            assert texts(await log.followed(run, wait=False)) == [str(n) for n in range(3 * PAGE)]
            follower = asyncio.create_task(log.followed(run))
            await log.say("r1", "r1", "last")
            await log.end("r1", "r1")
            got = await asyncio.wait_for(follower, 10)
            assert seqs(got) == list(range(1, 3 * PAGE + 4))

    asyncio.run(scene())


def test_follower_from_creation_needs_no_store(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            run = await log.create("r1", 1)
            log.hub._read = SimpleNamespace(parent=None)  # type: ignore[assignment]  # a read would fail
            follower = asyncio.create_task(log.followed(run))
            await log.say("r1", "r1", "first")
            await log.end("r1", "r1")
            assert seqs(await asyncio.wait_for(follower, 10)) == [1, 2, 3]

    asyncio.run(scene())


async def read_slowly(log: EventLog, run: Run, after: int, pauses: int) -> list[int]:
    """All that a follower gets who lets others go first ``pauses`` times after each page."""
    got: list[int] = []
    async for lines in log.hub.follow(run, after):
        got += seqs(lines)
        for _ in range(pauses):
            await asyncio.sleep(0)
    return got


@pytest.mark.parametrize("memory", [2000, 60_000, 8 * 1024**2])
def test_concurrent_publishing_causes_no_gap_or_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """Followers of the root, the loop and each leaf, quick and slow, from the start and from the middle."""
    monkeypatch.setattr(hub_module, "RECENT_BYTES", memory)
    expected: dict[str, list[int]] = {"rroot": [], "rloop": [], "rleaf1": [], "rleaf2": []}
    above = {"rroot": "rroot", "rloop": "rroot", "rleaf1": "rloop rroot", "rleaf2": "rloop rroot"}

    def remember(committed: Committed) -> None:
        for event in committed.events:
            for run in {event.run, *above[event.run].split()}:
                expected[run].append(event.seq)

    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            log.journal.listen(remember)
            runs = {"rroot": await log.create("rroot", 1)}
            runs["rloop"] = await log.create("rloop", 2, "rroot", "rroot")
            runs["rleaf1"] = await log.create("rleaf1", 3, "rloop", "rroot")
            runs["rleaf2"] = await log.create("rleaf2", 4, "rloop", "rroot")
            readers: list[tuple[str, int, asyncio.Task[list[int]]]] = []
            for turn in range(300):
                if turn % 30 == 0:
                    after = log.journal.read.last_seq() if turn % 60 else turn // 2
                    readers += [
                        (name, after, asyncio.create_task(read_slowly(log, run, after, 7 * (turn % 90 == 0))))
                        for name, run in runs.items()
                    ]
                name = ("rleaf1", "rleaf2", "rloop", "rroot")[turn % 4]
                await log.say(name, "rroot", *[f"{turn}"] * (1 + turn % 5))
            for name in ("rleaf1", "rleaf2", "rloop", "rroot"):
                await log.end(name, "rroot")
            for name, after, task in readers:
                got = await asyncio.wait_for(task, 10)
                assert got == [seq for seq in expected[name] if seq > after], (name, after)

    asyncio.run(scene())


@pytest.mark.parametrize("memory", [1, 8 * 1024**2])
def test_follower_sees_exactly_its_subtree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr(hub_module, "RECENT_BYTES", memory)

    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            root = await log.create("rroot", 1)
            loop = await log.create("rloop", 2, "rroot", "rroot")
            leaf = await log.create("rleaf1", 3, "rloop", "rroot")
            followers = {run.id: asyncio.create_task(log.followed(run)) for run in (root, loop, leaf)}
            await log.say("rleaf1", "rroot", "one")
            await log.create("rleafchild", 4, "rleaf1", "rroot")
            await log.say("rleafchild", "rroot", "child")
            await log.create("rleafbeside", 5, "rroot", "rroot")
            await log.say("rleafbeside", "rroot", "beside")
            await log.create("rleaf2", 6, "rloop", "rroot")
            await log.say("rleaf2", "rroot", "two")
            await log.say("rroot", "rroot", "root")
            for run in ("rleafchild", "rleafbeside", "rleaf1", "rleaf2", "rloop", "rroot"):
                await log.end(run, "rroot")
            told = {name: texts(await asyncio.wait_for(task, 10)) for name, task in followers.items()}
            assert told == {
                "rroot": ["one", "child", "beside", "two", "root"],
                "rloop": ["one", "child", "two"],
                "rleaf1": ["one", "child"],
            }
            assert texts(await log.followed(loop)) == ["one", "child", "two"]

    asyncio.run(scene())


def test_follower_gets_unpublished_commits(tmp_path: Path) -> None:
    """The store is a moment ahead of the hub; a run that has ended there must not lose its last event."""

    async def scene() -> None:
        store = open_store(tmp_path / "db")
        groups: queue.SimpleQueue[list[tuple[Batch, Committed | Exception]]] = queue.SimpleQueue()
        writer = store.start_writing(groups.put)
        hub = Hub(store.read, {})

        def commit(batch: Batch) -> Committed:
            writer.submit(batch)
            outcome = groups.get(timeout=10)[0][1]
            assert isinstance(outcome, Committed)
            return outcome

        first = commit(Batch([created("r1", 1)], {"r1": NewRun(b"{}")}))
        hub.publish(first)
        following = hub.follow(first.runs["r1"], 0)
        assert seqs(await anext(following)) == [1]
        last = commit(Batch([said("r1", "text", text="x"), ended("r1")]))
        rest = [line async for lines in following for line in lines]
        hub.publish(last)
        assert [line.type for line in rest] == ["text", "run.ended"]
        afterwards = Hub(store.read, {}).follow(first.runs["r1"], 1, wait=False)
        assert seqs([line async for lines in afterwards for line in lines]) == [2, 3]
        store.close()

    asyncio.run(scene())


def test_memory_of_the_hub_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "RECENT_BYTES", 50_000)

    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            for number in range(1, 21):
                await log.create(f"r{number}", number)
            for turn in range(300):
                run = f"r{1 + turn % 20}"
                await log.say(run, run, "x" * (turn * 37 % 3000))
                kept = [line for recent in log.hub._recent.values() for line in recent.lines]
                assert sum(len(line.text) for line in kept) == log.hub._size <= 50_000
                assert len(log.hub._order) == len(kept)
            await log.say("r1", "r1", "x" * 60_000)
            assert log.hub._size == 0
            assert not log.hub._recent
            assert not log.hub._order

    asyncio.run(scene())


def test_page_of_a_slow_follower_is_bounded(tmp_path: Path) -> None:
    """A slow reader holds one page; the rest stays in the store or in the shared memory."""
    big = "x" * 60_000

    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            run = await log.create("r1", 1)
            slow = log.hub.follow(run, 0)
            first = await anext(slow)
            for _ in range(30):
                await log.say("r1", "r1", *[big] * 10)
            await log.say("r1", "r1", *[""] * (3 * PAGE))
            await log.end("r1", "r1")
            pages = [first, *[page async for page in slow]]
            assert max(len(page) for page in pages) <= PAGE
            assert max(sum(len(line.text) for line in page) for page in pages) < PAGE_BYTES + len(big) + 1000
            assert [seq for page in pages for seq in seqs(page)] == list(range(1, 300 + 3 * PAGE + 3))
            assert log.hub._size <= hub_module.RECENT_BYTES

    asyncio.run(scene())


def test_page_is_made_without_copying_the_history() -> None:
    history = deque(EventLine(seq, "r1", "text", b"") for seq in range(100_000))

    def seconds(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    assert [line.seq for line in hub_module._page(history, -1)] == list(range(PAGE))
    copied = min(seconds(lambda: list(reversed(history))) for _ in range(5))
    assert min(seconds(lambda: hub_module._page(history, -1)) for _ in range(5)) < copied / 2


def test_cancelled_followers_leave_nothing_behind(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            runs = [await log.create(f"r{number}", number) for number in range(1, 11)]
            for _ in range(10):
                tasks = [asyncio.create_task(log.followed(runs[n % 10])) for n in range(100)]
                await until(lambda: waiting(log) == 100, "a hundred followers")
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                assert log.hub._waiting == {}
            await log.say("r1", "r1", "still served")
            assert "still served" in texts(await log.followed(runs[0], wait=False))

    asyncio.run(scene())


def test_heartbeat_is_an_empty_page(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            run = await log.create("r1", 1)
            following = log.hub.follow(run, 1, heartbeat=0.001)
            assert [await anext(following) for _ in range(3)] == [[], [], []]
            await log.end("r1", "r1")
            assert [line.type for page in [p async for p in following] for line in page] == ["run.ended"]
            assert log.hub._waiting == {}

    asyncio.run(scene())


def test_close_ends_every_follower(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            run = await log.create("r1", 1)
            followers = [asyncio.create_task(log.followed(run)) for _ in range(10)]
            await until(lambda: waiting(log) == 10, "ten followers")
            log.hub.close()
            assert [seqs(got) for got in await asyncio.wait_for(asyncio.gather(*followers), 5)] == [[1]] * 10

    asyncio.run(scene())


def test_last_text_is_known_while_run_is_live(tmp_path: Path) -> None:
    async def scene() -> None:
        async with open_event_log(tmp_path / "db") as log:
            await log.create("r1", 1)
            await log.say("r1", "r1", "first", "second" * 100)
            assert log.hub.last == {"r1": ("second" * 100)[:200]}
            await log.journal.write([said("r1", "text", "r1", text="looking", parent="t1", agent="Explore")])
            assert log.hub.last == {"r1": "Explore: looking"}
            await log.end("r1", "r1")
            assert log.hub.last == {}

    asyncio.run(scene())
