"""The file watcher: each change is reported, a burst in few batches, an unwatched file not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from workflows.engine_fixture import until

from hocket.sessions.file_watcher import INTERVAL, FileWatcher


class Recorder:
    """A watcher and what it has reported."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.overflows = 0
        self.watcher = FileWatcher()
        self.watcher.on_overflow(self._on_overflow)

    def _on_overflow(self) -> None:
        self.overflows += 1

    def watch(self, owner: str, path: Path, *news: str, names: tuple[str, ...] | None = None) -> Path:
        self.watcher.watch(owner, str(path), partial(self.changes.append, owner), *news, names=names)
        return path

    def file(self, folder: Path, owner: str) -> Path:
        """A file whose growth is reported."""
        path = folder / owner
        path.touch()
        return self.watch(owner, path, "written")


@asynccontextmanager
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    made.watcher.open()
    try:
        yield made
    finally:
        made.watcher.close()


def write(path: Path, content: bytes = b"a line\n") -> None:
    with path.open("ab") as file:
        file.write(content)


def test_growth_is_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder() as seen:
            write(seen.file(tmp_path, "one"))
            await until(lambda: seen.changes, "a report")
            assert seen.changes == ["one"]

    asyncio.run(scene())


@pytest.mark.parametrize("news", ["created", "placed"])
def test_new_entry_is_reported_by_its_name(tmp_path: Path, news: str) -> None:
    async def scene() -> None:
        async with recorder() as seen:
            folder = tmp_path / "watched"
            folder.mkdir()
            (tmp_path / "elsewhere").touch()
            seen.watch("one", folder, news, names=("awaited",))
            (folder / "other").touch()
            (folder / "other").rename(folder / "another")
            if news == "created":
                (folder / "awaited").touch()
            else:
                (tmp_path / "elsewhere").rename(folder / "awaited")
            await until(lambda: seen.changes, "a report")
            assert seen.changes == ["one"]

    asyncio.run(scene())


def test_each_owner_of_a_file_gets_reports(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder() as seen:
            folder = seen.watch("one", tmp_path, "created")
            seen.watch("two", tmp_path, "placed")
            (folder / "a").touch()
            await until(lambda: len(seen.changes) == 2, "both reports")
            seen.watcher.unwatch("one")
            (folder / "b").touch()
            (folder / "b").rename(folder / "c")
            await until(lambda: len(seen.changes) > 2, "a report")
            assert sorted(seen.changes) == ["one", "two", "two"]

    asyncio.run(scene())


def test_lost_events_are_reported_as_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with recorder() as seen:
            path = seen.file(tmp_path, "one")
            lost = iter([[(-1, 0, "")]])
            monkeypatch.setattr(seen.watcher._inotify, "read", lambda: next(lost, []))
            write(path)
            await until(lambda: seen.overflows, "an overflow")
            assert (seen.changes, seen.overflows) == ([], 1)

    asyncio.run(scene())


def test_burst_is_reported_in_few_batches(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder() as seen:
            path = seen.file(tmp_path, "one")
            begin = time.monotonic()
            for _ in range(2000):
                write(path)
                await asyncio.sleep(0)
            reported = len(seen.changes)
            assert 1 <= reported <= (time.monotonic() - begin) / INTERVAL + 1
            await until(lambda: len(seen.changes) > reported, "the last lines")

    asyncio.run(scene())


def test_unwatched_file_is_not_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder() as seen:
            left, kept = seen.file(tmp_path, "one"), seen.file(tmp_path, "two")
            write(left)
            write(kept)
            seen.watcher.unwatch("one")
            await until(lambda: seen.changes, "a report")
            assert seen.changes == ["two"]

    asyncio.run(scene())


def test_unwatching_an_owner_ends_all_its_watches(tmp_path: Path) -> None:
    async def scene() -> None:
        async with recorder() as seen:
            path = seen.file(tmp_path, "one")
            seen.watch("one", path, "written")
            seen.watch("one", tmp_path, "created")
            seen.watcher.unwatch("one")
            seen.watcher.unwatch("one")
            kept = seen.file(tmp_path, "two")
            write(path)
            write(kept)
            await until(lambda: seen.changes, "a report")
            assert seen.changes == ["two"]

    asyncio.run(scene())
