"""The output watcher: each change is reported, a burst in few batches, and ended runs not at all."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from workflows.engine_fixture import until

from hocket.keeper import files
from hocket.sessions.output_watcher import INTERVAL, OutputWatcher


class Recorder:
    """A watcher and what it has reported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.changes: list[tuple[str, bool]] = []
        self.overflows = 0
        self.watcher = OutputWatcher(lambda run, closed: self.changes.append((run, closed)), self._on_overflow)

    def _on_overflow(self) -> None:
        self.overflows += 1

    def run(self, name: str) -> str:
        directory = str(self._folder / name)
        files.create(directory, {"argv": ["/bin/true"]})
        self.watcher.watch(name, directory)
        return directory


@asynccontextmanager
async def recorder(folder: Path) -> AsyncIterator[Recorder]:
    made = Recorder(folder)
    made.watcher.open()
    try:
        yield made
    finally:
        made.watcher.close()


def write(directory: str, name: str, content: bytes = b"a line\n") -> None:
    with open(os.path.join(directory, name), "ab") as file:
        file.write(content)


@pytest.mark.parametrize("name", [files.OUT, files.ERR])
def test_output_is_reported(tmp_path: Path, name: str) -> None:
    async def scene() -> None:
        async with recorder(tmp_path) as seen:
            write(seen.run("r1"), name)
            await until(lambda: seen.changes, "a report")
            assert seen.changes[0] == ("r1", False)

    asyncio.run(scene())


@pytest.mark.parametrize("name", [files.PID, files.EXIT])
def test_a_record_in_its_place_is_reported(tmp_path: Path, name: str) -> None:
    async def scene() -> None:
        async with recorder(tmp_path) as seen:
            directory = seen.run("r1")
            files.replace(directory, "other", b"")
            files.replace(directory, name, b"")
            await until(lambda: seen.changes, "a report")
            assert seen.changes == [("r1", False)]

    asyncio.run(scene())


def test_a_closed_lock_is_reported_as_such(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder(tmp_path) as seen:
            os.close(os.open(os.path.join(seen.run("r1"), files.LOCK), os.O_RDWR))
            await until(lambda: seen.changes, "a report")
            assert seen.changes == [("r1", True)]

    asyncio.run(scene())


def test_lost_events_are_reported_as_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with recorder(tmp_path) as seen:
            directory = seen.run("r1")
            lost = iter([[(-1, 0, "")]])
            monkeypatch.setattr(seen.watcher._inotify, "read", lambda: next(lost, []))
            write(directory, files.OUT)
            await until(lambda: seen.overflows, "an overflow")
            assert (seen.changes, seen.overflows) == ([], 1)

    asyncio.run(scene())


def test_a_burst_is_reported_in_few_batches(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder(tmp_path) as seen:
            directory = seen.run("r1")
            begin = time.monotonic()
            for _ in range(2000):
                write(directory, files.OUT)
                await asyncio.sleep(0)
            reported = len(seen.changes)
            assert 1 <= reported <= (time.monotonic() - begin) / INTERVAL + 1
            await until(lambda: len(seen.changes) > reported, "the last lines")

    asyncio.run(scene())


def test_an_unwatched_run_is_not_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder(tmp_path) as seen:
            ended, live = seen.run("r1"), seen.run("r2")
            write(ended, files.OUT)
            write(live, files.OUT)
            seen.watcher.unwatch("r1")
            await until(lambda: seen.changes, "a report")
            assert seen.changes == [("r2", False)]

    asyncio.run(scene())


def test_a_run_watched_twice_is_unwatched_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder(tmp_path) as seen:
            seen.watcher.watch("r1", seen.run("r1"))
            seen.watcher.unwatch("r1")
            seen.watcher.unwatch("r1")

    asyncio.run(scene())
