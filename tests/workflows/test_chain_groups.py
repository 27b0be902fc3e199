"""Steps that run at the same time: with real processes, through stops, failures and another engine."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin

from hocket.model import Kind, Reason, Run, Status

MEMBER = """
import os, sys, time
name = os.path.basename(sys.argv[0])
ledger = os.open("ledger", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(ledger, f"{name} in\\n".encode())
"""
MEETING = """
deadline = time.monotonic() + 8
while os.pread(ledger, 10_000, 0).count(b" in\\n") < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
"""
LAST = "os.write(ledger, f'{name} out\\n'.encode())\nprint(name, 'said', *sys.argv[1:])\n"


@pytest.fixture
def members(agent: Bin) -> Bin:
    agent("left", MEMBER + MEETING + LAST)
    agent("right", MEMBER + MEETING + LAST)
    agent("plain", MEMBER + LAST)
    agent("broken", MEMBER + LAST + "sys.exit(3)\n")
    agent("held", MEMBER + "open('door').read()\n" + LAST)
    agent("marking", MEMBER + LAST + "if os.pread(ledger, 10_000, 0).count(b'marking in') == 2:"
          " print('FORKHESTRA_COMPLETE')\n")  # fmt: skip
    agent("claiming", MEMBER + LAST + "print('FORKHESTRA_COMPLETE')\n")
    return agent


def ledger(project: Path) -> list[str]:
    path = project / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def tree(runner: EngineRunner, run: Run) -> list[tuple[str, str, int | None, str | None]]:
    """Everything below a chain: what it is, who it is, its step, how it ended."""
    below = runner.engine.read.below(run.id)[1:]
    return [(one.kind.value, one.agent, one.step, one.reason) for one in below]


def test_group_members_run_in_parallel(home: Path, project: Path, members: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("(left, right) -> plain", prompt="x"))
            assert (ended.status, ended.reason, ended.exit_code) == (Status.DONE, Reason.SINGLE_RUN, 0)
            lines = ledger(project)
            assert sorted(lines[:2]) == ["left in", "right in"]
            assert lines[4:] == ["plain in", "plain out"]
            assert tree(runner, ended) == [
                (Kind.GROUP, "(left, right)", 0, Reason.SINGLE_RUN),
                (Kind.LEAF, "left", 0, Reason.EXIT),
                (Kind.LEAF, "right", 1, Reason.EXIT),
                (Kind.LEAF, "plain", 2, Reason.EXIT),
            ]
            group, last = runner.engine.read.children(ended.id)
            assert group.result == "## left\n\nleft said x\n\n## right\n\nright said x"
            assert [leaf.parent for leaf in runner.engine.read.children(group.id)] == [group.id] * 2
            assert last.depth == group.depth == 0
            assert [step["agent"] for step in ended.steps] == ["left", "right", "plain"]

    asyncio.run(scene())


def test_loop_in_group_advances_on_its_own(home: Path, project: Path, members: Bin) -> None:
    os.mkfifo(project / "door")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("(held, marking:4)", prompt="x")

            def loop_is_over() -> bool:
                return any(one.kind is Kind.LOOP and one.ended for one in runner.engine.read.below(run.id))

            await until(loop_is_over, "the end of the loop")
            assert not runner.engine.find(run.id).ended
            (project / "door").write_text("")
            ended = await runner.wait(run)
            assert [(s["agent"], s["reason"], s["iterations"]) for s in ended.steps] == [
                ("held", "single_run", 1),
                ("marking", "marker", 2),
            ]
            kinds = {one.kind: one for one in runner.engine.read.below(run.id)}
            assert kinds[Kind.LOOP].parent == kinds[Kind.GROUP].id
            assert ended.result == ("## held\n\nheld said x\n\n## marking\n\nmarking said x\nFORKHESTRA_COMPLETE")

    asyncio.run(scene())


def test_other_members_finish_after_a_failure(home: Path, project: Path, members: Bin) -> None:
    os.mkfifo(project / "door")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("(broken, held) -> plain", prompt="x")
            await until(lambda: "broken out" in ledger(project), "the failure")
            assert not runner.engine.find(run.id).ended
            (project / "door").write_text("")
            ended = await runner.wait(run)
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.EXIT)
            assert [step["status"] for step in ended.steps] == ["failed", "done", "skipped"]
            assert tree(runner, ended)[0] == (Kind.GROUP, "(broken, held)", 0, Reason.EXIT)
        assert "held out" in ledger(project)
        assert "plain in" not in ledger(project)

    asyncio.run(scene())


def test_stop_ends_all_group_members(home: Path, project: Path, members: Bin) -> None:
    os.mkfifo(project / "door")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("(held, held:3) -> plain", prompt="x")
            await until(lambda: len(ledger(project)) == 2, "both members")
            told = await asyncio.wait_for(runner.engine.stop(run), 10)
            below = runner.engine.read.below(run.id)
            assert sorted(told["stopped"]) == sorted(one.id for one in below)
            assert {(one.status, one.reason) for one in below} == {(Status.STOPPED, Reason.STOPPED)}
            assert [one.kind for one in below] == [Kind.CHAIN, Kind.GROUP, Kind.LEAF, Kind.LOOP, Kind.LEAF]

    asyncio.run(scene())


def test_stopped_member_does_not_end_the_others(home: Path, project: Path, members: Bin) -> None:
    """Its loop takes no further part, not even for an engine that comes later."""
    os.mkfifo(project / "door")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("(claiming:9, held) -> plain", prompt="x", until="sleep 300")
            at_gate = partial(_has_busy_loop, runner, run)
            await until(at_gate, "the gate")
            (loop,) = [one for one in runner.engine.read.below(run.id) if one.kind is Kind.LOOP]
            await asyncio.wait_for(runner.engine.stop(loop), 10)
            assert runner.engine.find(loop.id).status is Status.STOPPED
            assert not runner.engine.find(run.id).ended
        async with engine_runner(home, project) as runner:
            (project / "door").write_text("")
            await until(lambda: "held out" in ledger(project), "the other member")
            await asyncio.wait_for(runner.engine.stop(run), 10)
            assert [step["status"] for step in runner.engine.find(run.id).steps] == ["stopped", "stopped", "skipped"]
        assert ledger(project).count("claiming in") == 1

    asyncio.run(scene())


def _has_busy_loop(runner: EngineRunner, run: Run) -> bool:
    """Whether the loop's first iteration has ended, so that only its gate can be at work."""
    leaves = [one for one in runner.engine.read.below(run.id) if one.agent == "claiming" and one.kind is Kind.LEAF]
    return bool(leaves) and leaves[0].ended


def test_next_engine_continues_a_group(home: Path, project: Path, members: Bin) -> None:
    os.mkfifo(project / "door")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("plain -> (held, marking:4) -> plain", prompt="x")
            await until(lambda: "held in" in ledger(project), "the group")
        async with engine_runner(home, project) as runner:
            (project / "door").write_text("")
            ended = await runner.wait(run)
            assert ended.status is Status.DONE
            assert [(step["agent"], step["iterations"]) for step in ended.steps] == [
                ("plain", 1),
                ("held", 1),
                ("marking", 2),
                ("plain", 1),
            ]
            kinds = [one.kind for one in runner.engine.read.below(run.id)]
            assert (kinds.count(Kind.GROUP), kinds.count(Kind.LOOP), kinds.count(Kind.LEAF)) == (1, 1, 5)
        assert len([line for line in ledger(project) if line.endswith(" in")]) == 5

    asyncio.run(scene())
