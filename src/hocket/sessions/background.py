"""Background tasks with an owner that ends them, and work that is done once per key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Known = Callable[[str], T | None]
"""Looks up an earlier result by its key."""

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
