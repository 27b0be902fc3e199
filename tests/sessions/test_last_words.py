"""An agent that has done its work: its input ends at once, and its last words are recorded once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin

from hocket.keeper import files
from hocket.model import Run, Status
from hocket.sessions.messages import END

SPEAKING = """
import json, os, sys
def say(**line):
    print(json.dumps(line), flush=True)
sys.stdin.readline()
open("begin").read()
say(type="system", subtype="init", session_id="s", cwd=os.getcwd(), tools=[], model="m")
say(type="result", subtype="success", is_error=False, result="done it", session_id="s", total_cost_usd=0.5)
sys.stdin.read()
"""
WHOLE = ["run.created", "run.started", "session", "turn.started", "usage", "turn.ended", "run.ended"]
WAITS_AT_GATE = SPEAKING + "open('gate').read()\n"


@pytest.fixture(autouse=True)
def gates(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FIFOs that the agent waits at. Without the periodic scan, which would hide a missed notification."""
    monkeypatch.setattr("hocket.sessions.supervisor.SCAN_EVERY", 60.0)
    for name in ("begin", "gate"):
        os.mkfifo(project / name)


async def begun(runner: EngineRunner) -> Run:
    """It speaks once it is known to have begun: else that and all it says may become known together."""
    run = await runner.running(await runner.start("claude", prompt="go", on_question="ask"))
    await asyncio.to_thread((runner.project / "begin").write_text, "")
    return run


async def input_ended(runner: EngineRunner) -> Run:
    """A run that has said all, and whose input has ended."""
    run = await begun(runner)
    place = str(runner.engine.directory(run))
    await until(lambda: files.has_input(place, END), "the end of its input")
    return run


async def count_events(runner: EngineRunner, run: Run, kind: str) -> int:
    return sum(event["type"] == kind for event in await runner.events(run))


def test_last_words_are_recorded_before_a_slow_end(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", WAITS_AT_GATE)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await input_ended(runner)
            async for lines in runner.engine.follow(run, 0):
                if any(line.type == "turn.ended" for line in lines):
                    break
            assert not runner.engine.find(run.id).ended
            await asyncio.to_thread((project / "gate").write_text, "")
            assert (await runner.wait(run)).result == "done it"
            assert await count_events(runner, run, "turn.ended") == 1

    asyncio.run(scene())


def test_last_words_survive_a_new_server(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", WAITS_AT_GATE)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await input_ended(runner)
        async with engine_runner(home, project) as runner:
            await asyncio.to_thread((project / "gate").write_text, "")
            over = await runner.wait(run)
            assert (over.status, over.result, over.cost_usd) == (Status.DONE, "done it", 0.5)
            assert [event["type"] for event in await runner.events(run)] == WHOLE

    asyncio.run(scene())


def test_last_words_survive_a_stop(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", WAITS_AT_GATE)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await input_ended(runner)
            await runner.engine.stop(run)
            over = runner.engine.find(run.id)
            assert (over.result, over.cost_usd, over.ended) == ("done it", 0.5, True)
            kinds = [event["type"] for event in await runner.events(run)]
            assert sorted(kinds) == sorted([*WHOLE, "input"])
            assert kinds[-1] == "run.ended"

    asyncio.run(scene())


def test_last_words_survive_a_killed_keeper(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", WAITS_AT_GATE)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await input_ended(runner)
            known = files.read_pid(str(runner.engine.directory(run)))
            assert known is not None
            os.kill(known.keeper, signal.SIGKILL)
            over = await runner.wait(run)
            assert (over.status, over.result, over.cost_usd) == (Status.LOST, "done it", 0.5)
            assert [event["type"] for event in await runner.events(run)] == WHOLE

    asyncio.run(scene())
