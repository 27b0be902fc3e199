"""A loop that goes nowhere ends, and the evidence is in the events."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin

from hocket.model import Reason, Run, Status

COUNTING = """
import os, sys
# Beside the project: what a test counts must not count as progress.
turns = os.open("../turns", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(turns, b".")
turn = os.fstat(turns).st_size
"""


@pytest.fixture
def programs(agent: Bin) -> Bin:
    agent("stuck", COUNTING + "print('I am looking into it')\n")
    agent("talking", COUNTING + "print('now at', turn if turn < 4 else 4)\n")
    agent("writing", COUNTING + "open('work', 'w').write(str(min(turn, 3)))\nprint('the same words')\n")
    agent("at_door", COUNTING + "open(f'../door{turn}').read()\nprint('the same words')\n")
    return agent


async def looks(runner: EngineRunner, run: Run) -> list[dict[str, Any]]:
    return [event["data"] for event in await runner.events(run) if event["type"] == "progress"]


def test_loop_without_progress_ends(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("stuck:9", prompt="x", no_progress=2))
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.NO_PROGRESS)
            # The first iteration had a new result.
            assert ended.steps[0]["iterations"] == 3
            before, *after = await looks(runner, ended)
            assert (before["run"], before["changed"]) == (None, None)
            assert [one["run"] for one in after] == ended.steps[0]["runs"]
            assert [one["changed"] for one in after] == [True, False, False]
            assert [one["files_changed"] for one in after] == [False] * 3
            assert len({one["state"] for one in (before, *after)}) == 1

    asyncio.run(scene())


@pytest.mark.parametrize(("agent_name", "iterations"), [("talking", 6), ("writing", 5)])
def test_new_words_or_changed_files_are_progress(
    home: Path, project: Path, programs: Bin, agent_name: str, iterations: int
) -> None:
    """Each goes on for a while and then repeats itself twice."""

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain(f"{agent_name}:9", prompt="x", no_progress=2))
            assert (ended.reason, ended.steps[0]["iterations"]) == (Reason.NO_PROGRESS, iterations)

    asyncio.run(scene())


def test_next_engine_compares_with_earlier_snapshot(home: Path, project: Path, programs: Bin) -> None:
    doors = [project.parent / f"door{turn}" for turn in (1, 2, 3)]
    for door in doors:
        os.mkfifo(door)
    turns = project.parent / "turns"

    def has_begun(turn: int) -> bool:
        return turns.exists() and turns.stat().st_size >= turn

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("at_door:9", prompt="x", no_progress=2)
            await until(partial(has_begun, 1), "the first iteration")
        for turn, door in enumerate(doors, 1):
            async with engine_runner(home, project) as runner:
                door.write_text("")
                if turn < 3:
                    await until(partial(has_begun, turn + 1), "the next iteration")
                    continue
                ended = await runner.wait(run)
                assert (ended.reason, ended.steps[0]["iterations"]) == (Reason.NO_PROGRESS, 3)
                assert [one["changed"] for one in await looks(runner, run)] == [None, True, False, False]

    asyncio.run(scene())
