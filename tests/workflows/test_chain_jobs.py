"""A job of a chain, such as a gate or a snapshot, may fail unexpectedly; the chain continues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from workflows.engine_fixture import engine_runner
from world import Bin

from hocket.model import Event, Reason, Status
from hocket.store import Committed
from hocket.workflows import chain_driver, directory_state


@pytest.fixture
def claiming(agent: Bin) -> Bin:
    agent("claiming", "print('FORKHESTRA_COMPLETE')\n")
    agent("worker", "print('the same')\n")
    return agent


def no_thread(*_: Any) -> Any:
    raise RuntimeError("can't start new thread")


def test_gate_without_a_thread_fails(home: Path, project: Path, claiming: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            monkeypatch.setattr(runner.engine._chains._gates._threads, "submit", no_thread)
            ended = await runner.wait(await runner.chain("claiming:2", until="true"))
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.GATE)
            gates = [event["data"] for event in await runner.events(ended) if event["type"] == "gate"]
            assert [(gate["exit_code"], gate["output"]) for gate in gates] == [
                (127, "RuntimeError: can't start new thread")
            ] * 2

    asyncio.run(scene())


def test_failed_snapshot_is_unreadable_and_ends_nothing(
    home: Path, project: Path, claiming: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(cwd: str, env: object) -> directory_state.Snapshot:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(directory_state, "take_snapshot", too_deep)
    (project / "hocket.toml").write_text('[chains.c]\nsteps = [{agent = "worker", iterations = 3, no_progress = 1}]\n')

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.engine.start(runner.request(chain="c")))
            assert ended.reason is Reason.MAX_ITERATIONS
            looks = [event["data"] for event in await runner.events(ended) if event["type"] == "progress"]
            assert {look["kind"] for look in looks} == {"unreadable"}

    asyncio.run(scene())


def test_unexpected_error_is_retried(home: Path, project: Path, claiming: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once where a gate's word is recorded, and once where the chain decides what comes next."""
    monkeypatch.setattr(chain_driver, "UNEXPECTED_RETRY", 0.05)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            journal, failures = runner.engine._journal, {"gate", "run.ended"}
            insist, write = journal.insist, journal.write

            def stumble(events: list[Event]) -> None:
                # A leaf's end is not recorded by the chain.
                kinds = {event.type for event in events if event.run == event.root or event.type == "gate"} & failures
                for kind in kinds:
                    failures.discard(kind)
                    raise RuntimeError(kind)

            async def once_insist(events: list[Event], **more: Any) -> Committed:
                stumble(events)
                return await insist(events, **more)

            async def once_write(events: list[Event], **more: Any) -> Committed:
                stumble(events)
                return await write(events, **more)

            monkeypatch.setattr(journal, "insist", once_insist)
            monkeypatch.setattr(journal, "write", once_write)
            ended = await runner.wait(await runner.chain("claiming:2", until="true"))
            assert (ended.status, failures) == (Status.DONE, set())

    asyncio.run(scene())
