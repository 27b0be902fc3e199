"""Background tasks with an owner that ends them, work that is done once per key, and threads that read folders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
Known = Callable[[str], T | None]
"""Looks up an earlier result by its key."""

THREADS = 4

log = logging.getLogger("hocket")


class BackgroundTasks:
    """A set of running tasks that their owner ends together."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)

    async def close(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class OncePerKey:
    """Runs a coroutine once per key; a caller that is cancelled does not cancel it."""

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Task[Any]] = {}

    async def __call__(self, key: str | None, make: Callable[[], Coroutine[Any, Any, T]], known: Known[T]) -> T:
        """The result of ``make``, or of an earlier call with the same key."""
        if key is None:
            return await make()
        found = known(key)
        if found is not None:
            return found
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.create_task(make())
            making.add_done_callback(lambda _: self._making.pop(key, None))
        made: T = await asyncio.shield(making)
        return made


class FolderThreads:
    """Threads that read the files of projects, so that a slow project delays only itself.

    What a project's files cost to read is for their author to say, within bounds, and a disk may not answer at all. For
    each folder one thread works at a time; all other folders have the rest.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._count = threads
        self._pool = ThreadPoolExecutor(threads, "hocket-folder")
        self._folder_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def open(self) -> None:
        """Start all threads now: later the system might refuse one."""
        together = Barrier(self._count)
        for _ in range(self._count):
            self._pool.submit(together.wait, 1)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, folder: str, function: Callable[..., T], *args: Any) -> T:
        """What a function returns that reads files of this folder."""
        lock = self._folder_locks.setdefault(folder, asyncio.Lock())
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args))
