"""Chains with real processes: order, loops, gates, stops, and going on in another engine with nothing run twice."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from workflows.engine_fixture import engine_runner, until
from world import Bin

from hocket.errors import StoreError
from hocket.keeper.zygote import Zygote
from hocket.model import Event, Kind, Reason, Run, Status
from hocket.sessions import supervisor
from hocket.sessions.journal import Journal
from hocket.store import Committed

WORKER = """
import os, sys
ledger = os.open("ledger", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(ledger, (sys.argv[1].split()[0] + "\\n").encode())
turn = len(os.pread(ledger, 10_000, 0).split())
print(sys.argv[1], turn)
"""


@pytest.fixture
def worker(agent: Bin) -> Bin:
    """Programs that write their prompt into one ledger, once for each time that they are run."""
    agent("worker", WORKER)
    agent("marking", WORKER + "if turn == 2: print('FORKHESTRA_COMPLETE')\n")
    agent("claiming", WORKER + "print('FORKHESTRA_COMPLETE')\n")
    agent("failing", WORKER + "sys.exit(4)\n")
    agent("at_door", WORKER + "sys.stdout.flush()\nopen(f'door{turn}').read()\nprint('through')\n")
    return agent


def ledger(project: Path) -> list[str]:
    path = project / "ledger"
    return path.read_text().split() if path.exists() else []


def shape(run: Run) -> tuple[str, str | None, str]:
    return run.kind, run.reason, run.status


def short(step: dict[str, Any] | Any) -> tuple[Any, ...]:
    return step["agent"], step["status"], step["reason"], step["iterations"], step["max_iterations"]


def test_loop_and_its_first_iteration_are_created_together(home: Path, project: Path, worker: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            commits: list[list[str]] = []
            runner.engine.listen(lambda committed: commits.append([event.type for event in committed.events]))
            run = await runner.chain("worker:2", prompt="a")
            await runner.wait(run)
            assert commits[:2] == [["run.created"], ["run.started", "run.created", "run.started", "run.created"]]
            assert ledger(project) == ["a", "a"]

    asyncio.run(scene())


def test_every_run_of_a_chain_ends_once(home: Path, project: Path, worker: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            commits: list[list[str]] = []
            runner.engine.listen(
                lambda committed: commits.append([event.run for event in committed.events if event.type == "run.ended"])
            )
            ended = await runner.wait(await runner.chain("worker:2", prompt="a"))
            ends = [run for commit in commits for run in commit]
            assert sorted(ends) == sorted(one.id for one in runner.engine.read.below(ended.id))
            assert [runner.engine.find(run).kind for run in commits[-1]] == [Kind.LOOP, Kind.CHAIN]
            assert not runner.engine._chains._live.by_run

    asyncio.run(scene())


def test_server_is_needed_while_a_chain_is_live(
    home: Path, project: Path, worker: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Zygote, "need_server", lambda self, home: said.append(home))

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            for _ in range(2):
                await runner.wait(await runner.chain("worker", prompt="a"))
                await until(lambda: said[-1] == "", "the end of the need")
            assert [home for home, _ in itertools.groupby(said)] == [str(home), "", str(home), ""]

    asyncio.run(scene())


def test_chain_ends_before_run_its_agent_left(home: Path, project: Path, worker: Bin) -> None:
    for number in (1, 2):
        os.mkfifo(project / f"door{number}")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            commits: list[list[str]] = []
            runner.engine.listen(
                lambda committed: commits.append([event.run for event in committed.events if event.type == "run.ended"])
            )
            chain = await runner.chain("at_door", prompt="a")
            await until(lambda: ledger(project) == ["a"], "the agent")
            (leaf,) = runner.engine.read.children(chain.id)
            left = await runner.start("at_door", runner.engine.find(leaf.id), prompt="b")
            await until(lambda: ledger(project) == ["a", "b"], "whom it left at work")
            await asyncio.to_thread((project / "door1").write_text, "")
            await runner.wait(chain)
            assert [commit for commit in commits if commit] == [[leaf.id], [chain.id]]
            await asyncio.to_thread((project / "door2").write_text, "")
            await runner.wait(left)

    asyncio.run(scene())


@pytest.mark.req("S1-B14", "S1-B16")
def test_steps_run_in_order_and_last_result_counts(home: Path, project: Path, worker: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("worker -> worker", prompt="a"))
            assert (ended.status, ended.reason, ended.exit_code) == (Status.DONE, Reason.SINGLE_RUN, 0)
            assert ended.result == "a 2\n"
            assert [short(step) for step in ended.steps] == [("worker", "done", "single_run", 1, 1)] * 2
            leaves = runner.engine.read.children(ended.id)
            assert [(leaf.kind, leaf.step, leaf.iteration) for leaf in leaves] == [("leaf", 0, None), ("leaf", 1, None)]
            assert [step["runs"] for step in ended.steps] == [[leaf.id] for leaf in leaves]

    asyncio.run(scene())


@pytest.mark.req("S1-B15")
def test_loop_run_ends_with_its_marker(home: Path, project: Path, worker: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("marking:5 -> worker", prompt="a"))
            assert [short(step) for step in ended.steps] == [
                ("marking", "done", "marker", 2, 5),
                ("worker", "done", "single_run", 1, 1),
            ]
            loop, last = runner.engine.read.children(ended.id)
            assert shape(loop) == (Kind.LOOP, Reason.MARKER, Status.DONE)
            leaves = runner.engine.read.children(loop.id)
            assert [(leaf.step, leaf.iteration) for leaf in leaves] == [(0, 1), (0, 2)]
            assert [leaf.marker for leaf in leaves] == [False, True]
            assert last.depth == loop.depth == leaves[0].depth == 0
            inside = {event["run"] for event in await runner.events(loop)}
            assert inside == {loop.id, *(leaf.id for leaf in leaves)}

    asyncio.run(scene())


@pytest.mark.req("S1-B15", "S1-B16")
def test_incomplete_step_ends_the_chain(home: Path, project: Path, worker: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("failing:2 -> worker", prompt="a"))
            assert (ended.status, ended.reason, ended.exit_code) == (Status.FAILED, Reason.MAX_ITERATIONS, 4)
            assert [short(step)[:2] for step in ended.steps] == [("failing", "failed"), ("worker", "skipped")]
            assert ledger(project) == ["a", "a"]

    asyncio.run(scene())


def test_gate_runs_after_each_marker_and_is_recorded(home: Path, project: Path, worker: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("claiming:5", prompt="a", until="test $(wc -l < ledger) -ge 3")
            ended = await runner.wait(run)
            assert (ended.status, ended.steps[0]["iterations"]) == (Status.DONE, 3)
            gates = [event["data"]["passed"] for event in await runner.events(run) if event["type"] == "gate"]
            assert gates == [False, False, True]

    asyncio.run(scene())


def test_next_engine_continues_a_loop(home: Path, project: Path, worker: Bin) -> None:
    for number in range(1, 6):
        os.mkfifo(project / f"door{number}")

    def at_work(number: int) -> bool:
        return len(ledger(project)) >= number

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("at_door:5", prompt="a")
            await until(partial(at_work, 1), "the first iteration")
        for number in range(1, 5):
            async with engine_runner(home, project):
                (project / f"door{number}").write_text("")
                await until(partial(at_work, number + 1), "the next iteration")
        (project / "door5").write_text("")
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            assert [short(step) for step in ended.steps] == [("at_door", "failed", "max_iterations", 5, 5)]
            (loop,) = runner.engine.read.children(run.id)
            assert [leaf.iteration for leaf in runner.engine.read.children(loop.id)] == [1, 2, 3, 4, 5]
        assert ledger(project) == ["a"] * 5

    asyncio.run(scene())


def test_next_engine_finishes_a_complete_chain(home: Path, project: Path, worker: Bin) -> None:
    for number in range(1, 4):
        os.mkfifo(project / f"door{number}")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("at_door -> at_door", prompt="a")
            await until(lambda: len(ledger(project)) == 1, "the first step")
            (project / "door1").write_text("")
            await until(lambda: len(ledger(project)) == 2, "the second step")
            first = runner.engine.read.last_seq()
        async with engine_runner(home, project) as runner:
            (project / "door2").write_text("")
            ended = await runner.wait(run)
            assert (ended.status, [step["iterations"] for step in ended.steps]) == (Status.DONE, [1, 1])
            later = await runner.events(run, first)
            assert [event["type"] for event in later if event["run"] == run.id] == ["run.ended"]
        assert ledger(project) == ["a", "a"]

    asyncio.run(scene())


def test_chain_ends_once_after_full_disk_and_kill(
    home: Path, project: Path, worker: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the last agent is recorded, that of the chain is not before another server has taken over."""
    write = Journal.write
    refused: list[str] = []

    async def full(journal: Journal, events: Sequence[Event], **more: Any) -> Committed:
        ends = [event.run for event in events if event.type == "run.ended"]
        if any(journal.live[run].kind is not Kind.LEAF for run in ends):
            refused.extend(ends)
            raise StoreError("the disk is full")
        return await write(journal, events, **more)

    async def scene() -> None:
        monkeypatch.setattr(Journal, "write", full)
        async with engine_runner(home, project) as runner:
            run = await runner.chain("worker -> worker:2", prompt="a")
            await until(lambda: len(refused) == 6, "the third attempt to record the end of the loop and of the chain")
            assert [one.kind for one in runner.engine.live()] == [Kind.CHAIN, Kind.LOOP]
        monkeypatch.setattr(Journal, "write", write)
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            assert [short(step) for step in ended.steps] == [
                ("worker", "done", "single_run", 1, 1),
                ("worker", "failed", "max_iterations", 2, 2),
            ]
            events = await runner.events(run)
            ends = [event["run"] for event in events if event["type"] == "run.ended"]
            assert (len(ends), ends[-1]) == (len(set(ends)), run.id)
        assert len(ledger(project)) == 3

    asyncio.run(scene())


def test_next_engine_repeats_a_running_gate(home: Path, project: Path, worker: Bin) -> None:
    """Its command is the user's own check; only agents must not run twice."""
    os.mkfifo(project / "gate")
    asks = "echo asked >> asked; test -e open || { cat gate; false; }"

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("claiming:2", prompt="a", until=asks)
            await until((project / "asked").exists, "the gate")
        (project / "open").touch()
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            assert (ended.status, ended.steps[0]["iterations"]) == (Status.DONE, 1)
        assert ledger(project) == ["a"]

    asyncio.run(scene())


def test_stopped_chain_ends_loop_and_leaf(home: Path, project: Path, worker: Bin) -> None:
    os.mkfifo(project / "door1")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("at_door:3 -> worker", prompt="a")
            await until(lambda: ledger(project), "the first iteration")
            told = await asyncio.wait_for(runner.engine.stop(run), 10)
            below = runner.engine.read.below(run.id)
            assert sorted(told["stopped"]) == sorted(one.id for one in below)
            assert [shape(one) for one in below] == [
                (Kind.CHAIN, Reason.STOPPED, Status.STOPPED),
                (Kind.LOOP, Reason.STOPPED, Status.STOPPED),
                (Kind.LEAF, Reason.STOPPED, Status.STOPPED),
            ]
        assert ledger(project) == ["a"]

    asyncio.run(scene())


def test_chain_timeout_ends_the_chain(home: Path, project: Path, worker: Bin) -> None:
    os.mkfifo(project / "door1")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("at_door:3 -> worker", prompt="a", timeout=0.3))
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.TIMEOUT)
            assert runner.engine.live() == []

    asyncio.run(scene())


@pytest.mark.parametrize("is_chain", [True, False])
def test_timeout_is_recorded_once_there_is_room(
    home: Path, project: Path, worker: Bin, monkeypatch: pytest.MonkeyPatch, is_chain: bool
) -> None:
    os.mkfifo(project / "door1")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            begin = runner.chain if is_chain else runner.start
            run = await begin("at_door", prompt="a", timeout=0.5)
            await until(lambda: ledger(project), "the agent")
            refused: list[object] = []

            async def no_room(*what: object, **how: object) -> Committed:
                refused.append(what)
                raise StoreError("the disk is full")

            with monkeypatch.context() as full:
                full.setattr(runner.engine._journal, "write", no_room)
                await until(lambda: refused, "the time limit")
            ended = await runner.wait(run)
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.TIMEOUT)

    asyncio.run(scene())


@pytest.mark.parametrize("by_time", [True, False])
def test_stop_of_chain_reaches_orphaned_runs(home: Path, project: Path, worker: Bin, by_time: bool) -> None:
    for number in range(1, 4):
        os.mkfifo(project / f"door{number}")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("at_door -> at_door", prompt="a", timeout=3.0 if by_time else None)
            await until(lambda: any(one.pid for one in runner.engine.live()), "the first step")
            (parent,) = (one for one in runner.engine.live() if one.kind is Kind.LEAF)
            await until(lambda: len(ledger(project)) == 1, "the first step's door")
            nested = await runner.start("at_door", parent=parent, prompt="b")
            await until(lambda: len(ledger(project)) == 2, "the nested one's door")
            (project / "door1").write_text("")
            await until(lambda: len(ledger(project)) == 3, "the second step")
            told = {} if by_time else await asyncio.wait_for(runner.engine.stop(run), 10)
            reason = Reason.TIMEOUT if by_time else Reason.STOPPED
            assert [(await runner.wait(one)).reason for one in (run, nested)] == [reason, reason]
            assert by_time or nested.id in told["stopped"]

    asyncio.run(scene())


def test_chain_stops_while_gates_occupy_all_threads(home: Path, project: Path, worker: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            gate = "echo x >> gates; sleep 300"
            chains = [await runner.chain("worker", prompt="a", until=gate) for _ in range(17)]
            asked = project / "gates"
            await until(lambda: asked.exists() and asked.stat().st_size == 2 * 16, "all gates")
            waits_for_a_thread, at_gate, *others = sorted(chains, key=lambda run: run.number, reverse=True)
            for chain in (waits_for_a_thread, at_gate):
                stopped = await asyncio.wait_for(runner.engine.stop(chain), 8)
                assert stopped["status"] == Status.STOPPED
            await asyncio.gather(*(runner.engine.stop(chain) for chain in others))

    asyncio.run(scene())


@pytest.mark.parametrize("turns", range(0, 40, 4))
def test_stop_includes_runs_created_meanwhile(home: Path, project: Path, worker: Bin, turns: int) -> None:
    """Its agent may be committed after the runs to stop were listed, and before the stop is."""
    os.mkfifo(project / "door1")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("at_door", prompt="a")
            for _ in range(turns):
                await asyncio.sleep(0)  # the stop comes a little later each time
            told = await asyncio.wait_for(runner.engine.stop(run), 15)
            assert told["status"] is Status.STOPPED
            assert runner.engine.live() == []

    asyncio.run(scene())


def test_stop_of_new_run_is_retried_until_recorded(
    home: Path, project: Path, worker: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain is told to stop while its second agent comes into being, and then there is no room for a while."""
    os.mkfifo(project / "door2")
    monkeypatch.setattr(supervisor, "RETRY_AFTER", 0.01)
    write = Journal.write
    refused: list[str] = []

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            coming, stopped = asyncio.Event(), asyncio.Event()

            async def narrow(journal: Journal, events: Sequence[Event], **more: Any) -> Committed:
                told = {(event.type, event.run == run.id) for event in events}
                if ("run.created", False) in told:
                    coming.set()
                    await stopped.wait()
                if ("input", False) in told and len(refused) < 3:
                    refused.append(events[0].run)
                    raise StoreError("no room")
                done = await write(journal, events, **more)
                if ("input", True) in told:
                    stopped.set()
                return done

            run = await runner.chain("worker -> at_door", prompt="a")
            monkeypatch.setattr(Journal, "write", narrow)
            await asyncio.wait_for(coming.wait(), 15)
            told = await asyncio.wait_for(runner.engine.stop(run), 15)
            assert told["status"] is Status.STOPPED
            assert (len(refused), len(set(refused))) == (3, 1)
            assert runner.engine.live() == []

    asyncio.run(scene())
