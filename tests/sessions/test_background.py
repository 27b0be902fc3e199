"""Work that outlives who asked for it, and is done once."""

from __future__ import annotations

import asyncio

import pytest

from hocket.sessions.background import OncePerKey


class Workshop:
    """Makes things one at a time when it is let."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.kept: dict[str, int] = {}
        self.open = asyncio.Event()

    async def make(self) -> int:
        number = len(self.made)
        self.made.append(number)
        await self.open.wait()
        return number


def test_all_who_ask_at_the_same_time_get_the_same() -> None:
    async def work() -> None:
        shop, once = Workshop(), OncePerKey()
        asking = [asyncio.create_task(once("key", shop.make, shop.kept.get)) for _ in range(5)]
        other = asyncio.create_task(once("another", shop.make, shop.kept.get))
        keyless = [asyncio.create_task(once(None, shop.make, shop.kept.get)) for _ in range(2)]
        await asyncio.sleep(0)
        shop.open.set()
        assert len(set(await asyncio.gather(*asking))) == 1
        assert len({await one for one in (asking[0], other, *keyless)}) == 4
        assert len(shop.made) == 4

    asyncio.run(work())


def test_what_is_known_is_not_made_again() -> None:
    async def work() -> None:
        shop = Workshop()
        shop.kept["key"] = 7
        assert await OncePerKey()("key", shop.make, shop.kept.get) == 7
        assert shop.made == []

    asyncio.run(work())


def test_who_gives_up_ends_nothing_for_the_others() -> None:
    async def work() -> None:
        shop, once = Workshop(), OncePerKey()
        first, second = (asyncio.create_task(once("key", shop.make, shop.kept.get)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        shop.open.set()
        assert await second == 0

    asyncio.run(work())


def test_after_a_failure_it_may_be_tried_again() -> None:
    async def fail() -> int:
        raise ValueError("no")

    async def work() -> None:
        shop, once = Workshop(), OncePerKey()
        with pytest.raises(ValueError, match="no"):
            await once("key", fail, shop.kept.get)
        shop.open.set()
        assert await once("key", shop.make, shop.kept.get) == 0

    asyncio.run(work())
