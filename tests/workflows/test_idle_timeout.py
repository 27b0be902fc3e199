"""Idle timeouts: agents without output are stopped, except while they wait for an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from store.sample_events import created, ended, said
from workflows.engine_fixture import EventLog, engine_runner, open_event_log, stop_all, until
from world import Bin

from hocket.model import Event, Reason, Status
from hocket.model.task import Create, Task
from hocket.sessions.stops import Stops, stopped_in
from hocket.store import Committed, NewRun
from hocket.workflows.idle_timeout import IdleTimeouts

SLEEPER = "import signal; signal.pause()"
SPEAKER = """
import select
for number in range(12):
    print(number, flush=True)
    select.select([], [], [], 0.15)
"""
LIMIT = 0.6


class WatchedJournal:
    """A journal with idle timeouts, and the runs that these have stopped."""

    def __init__(self, log: EventLog) -> None:
        self.journal = log.journal
        self.ends: dict[str, float] = {}
        self.reasons: set[Reason] = set()
        self.timeouts = IdleTimeouts(log.journal, Stops(Path(), log.journal))
        self.timeouts.open()
        self.journal.listen(self._note_stops)

    def _note_stops(self, committed: Committed) -> None:
        for run_id in stopped_in(committed):
            self.ends[run_id] = time.monotonic()
            self.reasons |= {run.stop_reason for run in committed.runs.values() if run.stop_reason is not None}

    async def create(self, run: str, number: int, parent: str | None = None, **more: Any) -> None:
        event = created(run, number, parent)
        event = Event(0, event.ts, run, run, event.type, {**event.data, **more})
        await self.journal.write([event], new={run: NewRun(b"{}")})

    async def add_event(self, run: str, kind: str, **data: Any) -> float:
        await self.journal.write([said(run, kind, **data)])
        return time.monotonic()

    async def ended(self, run: str) -> float:
        await until(lambda: run in self.ends, f"the end of {run}")
        return self.ends[run]


@asynccontextmanager
async def watched_journal(path: Path) -> AsyncIterator[WatchedJournal]:
    async with open_event_log(path) as log:
        watched = WatchedJournal(log)
        try:
            yield watched
        finally:
            await watched.timeouts.close()


def test_idle_time_counts_from_the_last_event(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched_journal(tmp_path / "db") as watched:
            await watched.create("r1", 1, idle_timeout=0.2)
            await watched.create("r2", 2, idle_timeout=0.2)
            await watched.create("r3", 3)
            for run in ("r1", "r3"):
                began = await watched.add_event(run, "run.started")
            last = began
            while time.monotonic() < began + 0.5:
                last = await watched.add_event("r1", "text", text="x")
            assert watched.ends == {}
            assert await watched.ended("r1") >= last + 0.19
            assert (set(watched.ends), watched.reasons) == ({"r1"}, {Reason.IDLE_TIMEOUT})

    asyncio.run(scene())


def test_waiting_for_an_answer_is_not_idle(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched_journal(tmp_path / "db") as watched:
            await watched.create("rasks", 1, idle_timeout=0.3)
            await watched.create("rclock", 2, idle_timeout=0.8)
            await watched.add_event("rasks", "run.started")
            await watched.add_event("rasks", "question", id="q")
            await watched.add_event("rclock", "run.started")
            await watched.ended("rclock")
            assert "rasks" not in watched.ends
            answered = await watched.add_event("rasks", "answer", id="q")
            assert await watched.ended("rasks") >= answered + 0.29

    asyncio.run(scene())


def test_events_of_runs_below_count(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched_journal(tmp_path / "db") as watched:
            await watched.create("rabove", 1, idle_timeout=0.2)
            await watched.create("rbelow", 2, "rabove")
            for run in ("rabove", "rbelow"):
                began = await watched.add_event(run, "run.started")
            while time.monotonic() < began + 0.5:
                last = await watched.add_event("rbelow", "text", text="x")
            assert watched.ends == {}
            assert await watched.ended("rabove") >= last + 0.19

    asyncio.run(scene())


def test_last_event_of_ended_child_counts(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched_journal(tmp_path / "db") as watched:
            await watched.create("rtop", 1, idle_timeout=0.4)
            await watched.create("rmiddle", 2, "rtop")
            await watched.create("rbelow", 3, "rmiddle")
            for run in ("rtop", "rmiddle", "rbelow"):
                began = await watched.add_event(run, "run.started")
            await until(lambda: time.monotonic() > began + 0.3, "most of its time")
            await watched.journal.write([ended("rmiddle")])
            gone = time.monotonic()
            await until(lambda: time.monotonic() > gone + 0.3, "more than the rest of it")
            assert watched.ends == {}, "the end of one below is news"
            last = await watched.add_event("rbelow", "text", text="x")
            assert await watched.ended("rtop") >= last + 0.39
            assert set(watched.timeouts._last_event) == {"rtop", "rbelow"}, (
                "of those that are gone nothing is remembered"
            )

    asyncio.run(scene())


def test_ended_run_is_removed_and_next_server_restarts(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched_journal(tmp_path / "db") as watched:
            for number, run in enumerate(("r1", "r2"), 1):
                await watched.create(run, number, idle_timeout=0.2)
                await watched.add_event(run, "run.started")
            await watched.journal.write([ended("r1")])
            assert set(watched.timeouts._timers) == {"r2"}
        async with watched_journal(tmp_path / "db") as watched:
            opened = time.monotonic()
            assert await watched.ended("r2") >= opened + 0.15
            assert set(watched.ends) == {"r2"}

    asyncio.run(scene())


def test_task_events_are_not_stored(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched_journal(tmp_path / "db") as watched:
            await watched.create("r1", 1, idle_timeout=60.0)
            await watched.add_event("r1", "run.started")
            wish = Task("t1", 1, "a wish", 1.0, 1.0)
            told = await watched.journal.write([], orders=[Create(wish)])
            assert [event.run for event in told.events] == ["t1"]
            assert set(watched.timeouts._last_event) == {"r1"}

    asyncio.run(scene())


# --- With processes -----------------------------------------------------------------------------------------


def test_idle_agent_ends_its_chain(home: Path, project: Path, agent: Bin) -> None:
    agent("speaker", SPEAKER)
    agent("sleeper", SLEEPER)
    agent("never", "open('never', 'w')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("speaker -> sleeper:3 -> never", idle_timeout=LIMIT)
            over = await runner.wait(run)
            assert (over.status, over.reason) == (Status.FAILED, Reason.IDLE_TIMEOUT)
            assert [(step["status"], step["reason"]) for step in over.steps] == [
                ("done", "single_run"),
                ("failed", "idle_timeout"),
                ("skipped", None),
            ]
            assert over.steps[1]["iterations"] == 1
            assert not (project / "never").exists()

    asyncio.run(scene())


def test_single_agent_idle_timeout_survives_restart(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.running(await runner.start("sleeper", idle_timeout=2.0))
            assert run.idle_timeout == 2.0
        async with engine_runner(home, project) as runner:
            over = await runner.wait(run)
            assert (over.status, over.reason) == (Status.FAILED, Reason.IDLE_TIMEOUT)

    asyncio.run(scene())


def test_run_without_idle_timeout_continues(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            patient = await runner.running(await runner.start("sleeper"))
            clock = await runner.start("sleeper", idle_timeout=LIMIT)
            await runner.wait(clock)
            assert runner.engine.find(patient.id).status is Status.RUNNING
            await stop_all(runner.engine)

    asyncio.run(scene())
