"""Threads that read the files of projects, so that a slow project delays only itself.

What a project's files cost to read is for their author to say, within bounds, and a disk may not answer at all. For
each folder one thread works at a time; all other folders have the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

THREADS = 4


class FolderThreads:
    """Runs functions that read files, in turn for one folder and side by side for several."""

    def __init__(self, threads: int = THREADS) -> None:
        self._count = threads
        self._pool = ThreadPoolExecutor(threads, "hocket-folder")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def open(self) -> None:
        """Start all threads now: later the system might refuse one."""
        together = Barrier(self._count)
        for _ in range(self._count):
            self._pool.submit(_meet, together)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, folder: str, function: Callable[..., T], *words: Any) -> T:
        """What a function returns that reads files of this folder."""
        turn = self._turns.setdefault(folder, asyncio.Lock())
        async with turn:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *words))


def _meet(barrier: Barrier) -> None:
    try:
        barrier.wait(timeout=1)
    except BrokenBarrierError:
        return
