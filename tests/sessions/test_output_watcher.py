"""Listening: what somebody waits for is heard at once, everything else in its time, and a flood no more than that."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from workflows.engine_fixture import until

from hocket.model import Kind, Run, Spec
from hocket.sessions.leaf import PACE, TALKERS_PACE, Leaf
from hocket.sessions.output_watcher import GATHER, Ears
from hocket.store import Offsets

SAID = b'{"type":"assistant"}\n'
ASKED = b'{"type":"control_request","for":"us"}\n'
QUESTION = b'{"type":"control_request"}\n'
UNBEARABLE = b'{"type":"control_request","for":"nobody"}\n'


class Listener:
    """Ears, and what they were told to do: delays by run, and lines that were answered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.touched: list[tuple[str, float]] = []
        self.answered: list[bytes] = []
        self.attended: list[float] = []
        self.ears = Ears(self._touch, self._answer)

    def leaf(self, name: str, provider: str = "claude") -> Leaf:
        run = Run(name, 1, Kind.LEAF, "a", provider, None, name, 0, "/", 0.0)
        (self._folder / name).mkdir()
        leaf = Leaf(run, Spec("a", provider, ("/bin/a",), "/", {}), self._folder / name, Offsets(), "")
        for path in (leaf.out, leaf.err):
            Path(path).touch()
        self.ears.watch(leaf)
        return leaf

    def has_answered(self, count: int) -> bool:
        return len(self.answered) == count

    def _touch(self, leaf: Leaf, delay: float) -> None:
        self.attended.append(time.monotonic())
        self.touched.append((leaf.id, delay))

    def _answer(self, leaf: Leaf, line: bytes) -> bool:
        if b'"for":"nobody"' in line:
            raise RuntimeError(line)
        if b'"for":"us"' in line:
            self.answered.append(line)
            return True
        return False


@asynccontextmanager
async def listener(folder: Path) -> AsyncIterator[Listener]:
    made = Listener(folder)
    made.ears.open()
    try:
        yield made
    finally:
        made.ears.close()


def write(path: str, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(content)


@pytest.mark.parametrize(
    ("provider", "said", "delay"),
    [("claude", SAID, TALKERS_PACE), ("claude", QUESTION, 0), ("executable", QUESTION, PACE)],
)
def test_what_nobody_waits_for_gathers_and_a_question_is_looked_at_at_once(
    tmp_path: Path, provider: str, said: bytes, delay: float
) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            write(heard.leaf("r1", provider).out, said)
            await until(lambda: heard.touched, "a look")
            assert heard.touched[0] == ("r1", delay)

    asyncio.run(scene())


def test_what_is_for_us_alone_is_answered_and_needs_no_look(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            leaf = heard.leaf("r1")
            for count in (1, 2, 3):
                write(leaf.out, ASKED)
                await until(partial(heard.has_answered, count), "an answer")
            assert heard.touched == []
            write(leaf.out, ASKED + SAID)
            await until(lambda: heard.touched, "a look at what came with it")
            assert (len(heard.answered), heard.touched) == (4, [("r1", 0)])

    asyncio.run(scene())


def test_errors_are_looked_at_though_the_output_says_nothing_new(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            leaf = heard.leaf("r1")
            write(leaf.err, b"oh\n")
            await until(lambda: heard.touched, "a look")
            assert heard.touched[0] == ("r1", TALKERS_PACE)

    asyncio.run(scene())


def test_after_an_overflow_everybody_may_have_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            for name, provider in (("r1", "claude"), ("r2", "executable")):
                heard.leaf(name, provider)
            lost = iter([[(-1, 0, "")]])
            monkeypatch.setattr(heard.ears._inotify, "read", lambda: next(lost, []))
            heard.ears._wake()
            assert {run for run, _delay in heard.touched} == {"r1", "r2"}

    asyncio.run(scene())


def test_what_cannot_be_glanced_at_is_looked_at(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            leaf = heard.leaf("r1")
            write(leaf.out, SAID)
            os.unlink(leaf.out)
            await until(lambda: heard.touched, "a look")
            assert heard.touched[0] == ("r1", 0)

    asyncio.run(scene())


def test_a_line_that_nobody_can_bear_costs_nobody_else_their_hearing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            odd, other = heard.leaf("r1"), heard.leaf("r2")
            write(odd.out, SAID)
            await until(lambda: heard.touched, "a look")
            write(odd.out, UNBEARABLE)
            write(other.out, QUESTION)
            await until(lambda: ("r2", 0) in heard.touched, "the other one's question")
            await until(lambda: odd.glanced == len(SAID + UNBEARABLE), "the odd line")
            write(other.out, ASKED)
            await until(partial(heard.has_answered, 1), "an answer after that")

    asyncio.run(scene())


def test_who_pretends_to_wait_all_the_time_is_not_heard_all_the_time(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            leaf = heard.leaf("r1")
            begin = time.monotonic()
            for _ in range(2000):
                write(leaf.out, QUESTION)
                await asyncio.sleep(0)
            await until(lambda: leaf.glanced == 2000 * len(QUESTION), "the last question")
            took = heard.attended[-1] - begin
            assert len(heard.touched) <= took / GATHER + 3

    asyncio.run(scene())


def test_who_has_ended_is_not_heard_and_nobody_else_is_missed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listener(tmp_path) as heard:
            gone, there = heard.leaf("r1"), heard.leaf("r2")
            write(gone.out, QUESTION)
            write(there.out, QUESTION)
            heard.ears.unwatch(gone)
            assert heard.touched == [("r2", 0)]

    asyncio.run(scene())
