"""What the next engine finds of a chain: running gates, questions of ended runs, old clocks."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin, processes_of

from hocket.errors import Conflict
from hocket.keeper import files
from hocket.keeper.server_watch import SERVER_LOCK
from hocket.model import Kind, Reason, Run, Status
from hocket.sessions import clock

CLAIMING = "print('FORKHESTRA_COMPLETE')\n"
HELD = "open('door').read()\n" + CLAIMING
GATE = "echo asked >> asked; sleep 1"


def asked(project: Path) -> int:
    path = project / "asked"
    return path.read_text().count("asked") if path.exists() else 0


def leaves(runner: EngineRunner, agent: str) -> int:
    """How many processes of an agent are alive."""
    return sum(1 for run in runner.engine.live() if run.kind is Kind.LEAF and run.agent == agent and run.pid)


@contextmanager
def without_server(home: Path) -> Iterator[None]:
    """A time without an engine in which a keeper that ends starts no server either."""
    with (home / SERVER_LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@pytest.mark.parametrize("members", [1, 2])
def test_member_ended_during_restart_keeps_other_gates(home: Path, project: Path, agent: Bin, members: int) -> None:
    """Its end moves the chain on while the gates of the engine before are still being swept."""
    agent("claiming", CLAIMING)
    agent("held", HELD)
    os.mkfifo(project / "door")
    dsl = f"({', '.join(['claiming:3'] * members)}, held:3)"

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain(dsl, until=GATE)
            await until(lambda: asked(project) == members and leaves(runner, "held") == 1, "gates and a member")
        with without_server(home):
            (project / "door").write_text("")
            await until(lambda: not processes_of(home), "the member's end")
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            gates = [event["data"] for event in await runner.events(ended) if event["type"] == "gate"]
            assert (ended.status, [step["iterations"] for step in ended.steps]) == (Status.DONE, [1] * (members + 1))
            assert [gate["exit_code"] for gate in gates] == [0] * (members + 1)

    asyncio.run(scene())


@pytest.mark.parametrize("restarts", [True, False])
def test_question_is_withdrawn_when_loop_is_stopped(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """Also by the engine after the one that died before it came to that."""
    agent("slow", "import signal; signal.pause()\n")
    agent("held", "open('door').read()\n")
    os.mkfifo(project / "door")

    async def too_late(*_: object) -> None:
        """In the place of an engine that dies at that moment."""

    async def ask(runner: EngineRunner) -> Run:
        run = await runner.chain("(slow:2, held)", on_question="ask")
        await until(lambda: leaves(runner, "slow") + leaves(runner, "held") == 2, "both members")
        (slow,) = (one for one in runner.engine.live() if one.agent == "slow" and one.kind is Kind.LEAF)
        known = files.read_pid(str(runner.engine.directory(slow)))
        assert known is not None
        os.kill(known.keeper, signal.SIGKILL)
        await until(lambda: runner.engine.find(run.id).needs_you, "the question")
        (loop,) = (one for one in runner.engine.live() if one.kind is Kind.LOOP)
        await asyncio.wait_for(runner.engine.stop(loop), 10)
        return run

    async def finish(runner: EngineRunner, run: Run) -> None:
        # By what the engine itself goes by: the database has it a moment earlier.
        await until(lambda: not any(one.open_questions for one in runner.engine.live()), "the question's end")
        assert runner.engine.find(run.id).status is Status.RUNNING
        with pytest.raises(Conflict):
            await runner.engine.answer(runner.engine.find(run.id), None, True, None, "operator")
        (project / "door").write_text("")
        ended = await runner.wait(run)
        assert (ended.status, ended.reason) == (Status.STOPPED, Reason.STOPPED)
        assert [(step["status"], len(step["runs"])) for step in ended.steps] == [("stopped", 1), ("done", 1)]

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            if restarts:
                monkeypatch.setattr(runner.engine._chains, "_withdraw", too_late)
            run = await ask(runner)
            if not restarts:
                await finish(runner, run)
        if restarts:
            async with engine_runner(home, project) as runner:
                await finish(runner, run)

    asyncio.run(scene())


@pytest.mark.parametrize("later", [-1.0, 1e9], ids=["a longer uptime", "a shorter uptime"])
def test_timeout_restarts_after_a_machine_restart(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    """Once: the next server of the same machine goes on counting."""
    agent("held", "open('door').read()\n")
    os.mkfifo(project / "door")
    before = {"clock": later, "boot": "another start of the machine"}

    async def scene() -> None:
        with monkeypatch.context() as earlier:
            earlier.setattr(clock, "reading", lambda: before)
            async with engine_runner(home, project) as runner:
                run = await runner.chain("held", timeout=100.0)
                await until(lambda: leaves(runner, "held"), "the agent")
        async with engine_runner(home, project) as runner:
            await until(lambda: runner.engine.find(run.id).started_boot != before["boot"], "the new clock")
            now = runner.engine.find(run.id)
            assert 99 < clock.left(now, 100.0) <= 100
            deadline = runner.engine._chains._live.by_run[run.id].timeout_timer
            assert deadline is not None
            assert 99 < deadline.when() - asyncio.get_running_loop().time() <= 100
        async with engine_runner(home, project) as runner:
            assert runner.engine.find(run.id).started_clock == now.started_clock
            (project / "door").write_text("")
            assert (await runner.wait(run)).status is Status.DONE

    asyncio.run(scene())
