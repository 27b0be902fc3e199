"""Reading the files of projects: a slow folder delays only requests for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from patience import PATIENCE
from workflows.engine_fixture import engine_runner
from world import Bin

from hocket.model import Status
from hocket.sessions.background import THREADS, FolderThreads


def test_slow_folder_does_not_delay_other_starts(home: Path, project: Path, agent: Bin) -> None:
    """Torture row 53."""
    agent("quick", "print('done')")
    release = threading.Event()

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            slow = [asyncio.create_task(runner.engine.run_in_folder("/slow", release.wait)) for _ in range(2 * THREADS)]
            try:
                run = await asyncio.wait_for(runner.start("quick"), PATIENCE)
                assert (await runner.wait(run)).status is Status.DONE
                assert not any(task.done() for task in slow)
            finally:
                release.set()
            assert await asyncio.gather(*slow) == [True] * len(slow)

    asyncio.run(scene())


def test_folder_is_read_by_one_thread_only() -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def read() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.01)
        with lock:
            inside -= 1

    async def scene() -> None:
        threads = FolderThreads()
        threads.open()
        await asyncio.gather(*(threads.run("/a", read) for _ in range(10)))
        threads.close()

    asyncio.run(scene())
    assert most == 1


def test_all_threads_are_created_at_open() -> None:
    """Later the system may refuse to make one."""

    async def scene() -> None:
        before = threading.active_count()
        threads = FolderThreads()
        threads.open()
        assert threading.active_count() == before + THREADS
        threads.close()

    asyncio.run(scene())
