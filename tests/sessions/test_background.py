"""Work that is done once per key and outlives the request."""

from __future__ import annotations

import asyncio

import pytest

from hocket.sessions.background import OncePerKey


class Maker:
    """Makes a number, once ``open`` is set."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.kept: dict[str, int] = {}
        self.open = asyncio.Event()

    async def make(self) -> int:
        number = len(self.made)
        self.made.append(number)
        await self.open.wait()
        return number


def test_concurrent_requests_share_one_result() -> None:
    async def work() -> None:
        maker, once = Maker(), OncePerKey()
        asking = [asyncio.create_task(once("key", maker.make, maker.kept.get)) for _ in range(5)]
        other = asyncio.create_task(once("another", maker.make, maker.kept.get))
        keyless = [asyncio.create_task(once(None, maker.make, maker.kept.get)) for _ in range(2)]
        await asyncio.sleep(0)
        maker.open.set()
        assert len(set(await asyncio.gather(*asking))) == 1
        assert len({await one for one in (asking[0], other, *keyless)}) == 4
        assert len(maker.made) == 4

    asyncio.run(work())


def test_known_result_is_not_made_again() -> None:
    async def work() -> None:
        maker = Maker()
        maker.kept["key"] = 7
        assert await OncePerKey()("key", maker.make, maker.kept.get) == 7
        assert maker.made == []

    asyncio.run(work())


def test_cancelled_request_does_not_cancel_the_others() -> None:
    async def work() -> None:
        maker, once = Maker(), OncePerKey()
        first, second = (asyncio.create_task(once("key", maker.make, maker.kept.get)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        maker.open.set()
        assert await second == 0

    asyncio.run(work())


def test_failed_work_may_be_repeated() -> None:
    async def fail() -> int:
        raise ValueError("no")

    async def work() -> None:
        maker, once = Maker(), OncePerKey()
        with pytest.raises(ValueError, match="no"):
            await once("key", fail, maker.kept.get)
        maker.open.set()
        assert await once("key", maker.make, maker.kept.get) == 0

    asyncio.run(work())
