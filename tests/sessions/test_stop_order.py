"""Stopping a tree of runs from the bottom up: each run has ended before its parent is asked to end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin

from hocket.model import Reason, Run, Status

MEMBER = """
import os, signal, sys, time
name = os.path.basename(sys.argv[0])
def note(what):
    descriptor = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{name} {what}\\n".encode())
def end(*_):
    note("asked")
    time.sleep(0.2)  # Long enough for another one that was asked at the same time.
    note("gone")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note("ready")
while True:
    signal.pause()
"""


async def family(runner: EngineRunner, agent: Bin) -> list[Run]:
    """An agent, one that it started, a chain of that one, and the agent of the chain; all of them at work."""
    for name in ("top", "middle", "bottom"):
        agent(name, MEMBER)
    top = await runner.running(await runner.start("top"))
    middle = await runner.running(await runner.start("middle", top))
    chain = await runner.chain("bottom -> bottom", middle)
    ledger = runner.project / "ledger"
    await until(lambda: ledger.exists() and ledger.read_text().count("ready") == 3, "three agents at work")
    bottom = next(run for run in runner.engine.live() if run.agent == "bottom")
    return [top, middle, chain, bottom]


def asked_and_gone(project: Path) -> list[str]:
    return [line for line in (project / "ledger").read_text().splitlines() if not line.endswith("ready")]


IN_ORDER = [f"{name} {what}" for name in ("bottom", "middle", "top") for what in ("asked", "gone")]


@pytest.mark.req("S3-60")
@pytest.mark.req("S3-37")
def test_stop_ends_children_before_parents(home: Path, project: Path, agent: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            members = await family(runner, agent)
            stopped = await runner.engine.stop(members[0])
            assert asked_and_gone(project) == IN_ORDER
            assert stopped["survivors"] == []
            assert set(stopped["stopped"]) == {run.id for run in members}
            ends = [event for event in await runner.events(members[0]) if event["type"] == "run.ended"]
            assert [event["run"] for event in ends] == [run.id for run in reversed(members)]
            now = [runner.engine.find(run.id) for run in members]
            assert {(run.status, run.reason) for run in now} == {(Status.STOPPED, Reason.STOPPED)}

    asyncio.run(scene())


@pytest.mark.req("S3-38")
def test_next_server_completes_the_stop_in_order(home: Path, project: Path, agent: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            members = await family(runner, agent)
            # The server closes between recording the stop and carrying it out above the bottom.
            stopping = asyncio.create_task(runner.engine.stop(members[0]))
            await until(lambda: "bottom asked" in asked_and_gone(project), "the first signal")
            stopping.cancel()
        async with engine_runner(home, project) as runner:
            for run in members:
                await runner.wait(run)
            assert asked_and_gone(project) == IN_ORDER
            assert {runner.engine.find(run.id).status for run in members} == {Status.STOPPED}

    asyncio.run(scene())


def test_parent_timeout_does_not_wait_for_children(home: Path, project: Path, agent: Bin) -> None:
    """Both have the same deadline, and the child does not end when it is asked to."""
    agent("sleeper", "import signal; signal.pause()")
    stubborn = "import os, signal; signal.signal(15, signal.SIG_IGN); open('ready', 'w'); os.read(os.open('go', 0), 1)"
    agent("stubborn", stubborn)
    os.mkfifo(project / "go")
    (home / "config.toml").write_text("[run]\nstop_grace = 60\n")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            parent = await runner.running(await runner.start("sleeper", timeout=2))
            child = await runner.running(await runner.start("stubborn", parent))
            await until((project / "ready").exists, "a child that ignores the request to end")
            assert (await runner.wait(parent)).reason is Reason.TIMEOUT
            assert runner.engine.find(child.id).status is Status.RUNNING
            (project / "go").write_text("x")
            assert (await runner.wait(child)).ended

    asyncio.run(scene())
