"""Fixtures on a real store: a journal with its hub, and a complete engine."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE
from store.sample_events import created, ended, said
from world import processes_of

from hocket.config.settings import Limits
from hocket.engine import Engine
from hocket.errors import HocketError
from hocket.keeper.server_watch import SERVER_LOCK
from hocket.model import Event, Run
from hocket.sessions.home import DATABASE
from hocket.sessions.hub import Hub
from hocket.sessions.journal import Journal
from hocket.store import Committed, EventLine, NewRun, open_store
from hocket.workflows.request import StartRequest

SECRET = b"a secret of the tests"


@dataclass
class EventLog:
    """A journal and a hub that gets its commits."""

    journal: Journal
    hub: Hub

    async def create(self, run: str, number: int, parent: str | None = None, root: str | None = None) -> Run:
        kind = "leaf" if run.startswith("rleaf") else "chain"
        event = created(run, number, parent, root, kind)
        return (await self.journal.write([event], new={run: NewRun(b"{}")})).runs[run]

    async def say(self, run: str, root: str, *texts: str) -> Committed:
        return await self.journal.write([said(run, "text", root, text=text) for text in texts])

    async def end(self, run: str, root: str) -> Committed:
        return await self.journal.write([ended(run, root)])

    async def followed(self, run: Run, after: int = 0, *, wait: bool = True) -> list[EventLine]:
        """Everything that one follower gets."""
        return [line async for lines in self.hub.follow(run, after, wait=wait) for line in lines]


@asynccontextmanager
async def open_event_log(path: Path) -> AsyncIterator[EventLog]:
    store = open_store(path)
    journal = Journal(store, asyncio.get_running_loop())
    hub = Hub(journal.read, journal.live)
    journal.listen(hub.publish)
    try:
        yield EventLog(journal, hub)
    finally:
        hub.close()
        store.close()


class EngineRunner:
    """An engine with small programs as its agents."""

    def __init__(self, engine: Engine, project: Path, programs: Path) -> None:
        self.engine = engine
        self.project = project
        self._path = f"{programs}:{os.environ['PATH']}"

    def request(self, **options: Any) -> StartRequest:
        return StartRequest(cwd=str(self.project), env={"PATH": self._path}, **{"variables": {}, **options})

    async def start(self, agent: str, parent: Run | None = None, key: str | None = None, **options: Any) -> Run:
        return await self.engine.start(self.request(agent=agent, **options), key, parent)

    async def chain(self, dsl: str, parent: Run | None = None, **options: Any) -> Run:
        return await self.engine.start(self.request(dsl=dsl, **options), None, parent)

    async def wait(self, run: Run) -> Run:
        return await asyncio.wait_for(self.engine.wait(run), PATIENCE)

    async def events(self, run: Run, after: int = 0, *, wait: bool = False) -> list[dict[str, Any]]:
        pages = self.engine.follow(run, after, wait=wait)
        return [json.loads(line.text) async for lines in pages for line in lines]

    async def running(self, run: Run) -> Run:
        """The run once its process lives."""
        async with asyncio.timeout(PATIENCE):
            async for lines in self.engine.follow(run, 0):
                if any(line.type in ("run.started", "run.ended") and line.run == run.id for line in lines):
                    break
        return self.engine.find(run.id)


@asynccontextmanager
async def engine_runner(home: Path, project: Path, **limits: int) -> AsyncIterator[EngineRunner]:
    """Holds the server's lock, because keepers start a server if it is free."""
    lock = os.open(home / SERVER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        bounds = Limits(**{"min_free_mb": 0, **limits})
        engine = Engine(home, str(home / "sock"), SECRET, open_store(home / DATABASE), bounds)
        engine.open()
        runner = EngineRunner(engine, project, home.parent / "bin")
        try:
            yield runner
        finally:
            alone = not engine.live()
            await engine.close()
            if alone:
                # A keeper that is just ending must still find the lock held.
                await until(lambda: not processes_of(home), "the last keeper's end")
    finally:
        os.close(lock)


async def stop_all(engine: Engine) -> None:
    """End every run, so that the test leaves no process behind."""
    for run in engine.live():
        with suppress(HocketError):
            await asyncio.wait_for(engine.stop(run), PATIENCE)


async def until(condition: Callable[[], object], what: str) -> None:
    """Poll the condition until it is true: another process may write a file without a notification."""
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def note(run: str, root: str, text: str) -> Event:
    return said(run, "text", root, text=text)
