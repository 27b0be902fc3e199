"""Runs are stopped while they start, finish, time out or are stopped already: each has one end, with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from patience import PATIENCE
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin

from hocket.errors import HocketError
from hocket.keeper import process_tree
from hocket.model import Reason, Run, Status

T = TypeVar("T")

PROGRAMS = {
    "brief": "print('done')",
    "bad": "import sys; sys.exit(3)",
    "sleeper": "import signal; signal.pause()",
    "deaf": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()",
    # It may end by itself while it is being stopped.
    "gated": "import os, time\nwhile not os.path.exists('gates/' + os.environ['HOCKET_RUN']): time.sleep(0.005)",
}
OWN_END = {
    "brief": (Status.DONE, Reason.EXIT),
    "bad": (Status.FAILED, Reason.EXIT),
    "gated": (Status.DONE, Reason.EXIT),
}
"""How the programs end that end by themselves."""
PLACES = 3
"""So that some runs wait for one."""


class Servers:
    """One engine after another on the same home."""

    def __init__(self, home: Path, project: Path) -> None:
        self.project = project
        self._home = home
        self._runner = asyncio.Runner()
        self._context: AbstractAsyncContextManager[EngineRunner] | None = None
        self.open()

    def open(self) -> None:
        self._context = engine_runner(self._home, self.project, leaves=PLACES)
        self.now = self.do(self._context.__aenter__())

    def close(self) -> None:
        assert self._context is not None
        self.do(self._context.__aexit__(None, None, None))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the loop go on until this is done; otherwise it stands still."""
        return self._runner.run(work)

    def end(self) -> None:
        self.close()
        self._runner.close()


class StopMachine(RuleBasedStateMachine):
    """Starts and stops in any order, with the loop at a standstill in between."""

    servers: Servers

    def __init__(self) -> None:
        super().__init__()
        self.programs: dict[str, str] = {}
        """By the id of a run, in the order of their start."""
        self.ends: dict[str, Run] = {}
        self.stops: list[tuple[str, asyncio.Task[dict[str, Any]]]] = []

    @property
    def server(self) -> EngineRunner:
        return self.servers.now

    def pick(self, place: int) -> Run:
        return self.server.engine.find(list(self.programs)[place % len(self.programs)])

    @rule(
        program=st.sampled_from(sorted(PROGRAMS)), below=st.integers(0, 9), timeout=st.sampled_from([None, None, 0.05])
    )
    def start(self, program: str, below: int, timeout: float | None) -> None:
        """At the top, or below a run that has not ended, which may be being stopped."""
        parent = self.pick(below) if below and self.programs else None
        parent = parent if parent is not None and not parent.ended else None
        try:
            run = self.servers.do(self.server.start(program, parent, timeout=timeout))
        except HocketError:
            assert parent is not None, "only a parent can be a reason for a refusal"
            return
        self.programs[run.id] = program

    @precondition(lambda self: self.programs)
    @rule(place=st.integers(0, 20), times=st.integers(1, 3))
    def stop(self, place: int, times: int) -> None:
        """Several times at once; the loop does not yet carry it out."""
        run = self.pick(place)

        async def begin() -> None:
            self.stops += [(run.id, asyncio.create_task(self.server.engine.stop(run))) for _ in range(times)]

        self.servers.do(begin())

    @precondition(lambda self: self.programs)
    @rule(place=st.integers(0, 20))
    def let_finish(self, place: int) -> None:
        (self.servers.project / "gates" / self.pick(place).id).touch()

    @rule(turns=st.integers(1, 30))
    def go_on(self, turns: int) -> None:
        async def take_turns() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.servers.do(take_turns())

    @precondition(lambda self: self.programs)
    @rule(place=st.integers(0, 20))
    def wait_for_start(self, place: int) -> None:
        run = self.pick(place)
        engine = self.server.engine
        if engine._supervisor.queue_place(run.id) is None:
            self.servers.do(until(lambda: engine.find(run.id).status is not Status.STARTING, "a start"))

    @precondition(lambda self: self.stops)
    @rule(place=st.integers(0, 20))
    def wait_for_stop(self, place: int) -> None:
        _, task = self.stops[place % len(self.stops)]

        async def wait() -> None:
            await asyncio.wait([task], timeout=PATIENCE)

        self.servers.do(wait())

    @precondition(lambda self: self.programs)
    @rule()
    def restart_server(self) -> None:
        """What is recorded is carried out by the next one."""
        self._collect_stops(wait=False)
        self.servers.close()
        self.servers.open()

    @invariant()
    def ends_are_final(self) -> None:
        for run_id in self.programs:
            run = self.server.engine.find(run_id)
            if run_id in self.ends:
                before = self.ends[run_id]
                assert (run.status, run.reason, run.ended_at) == (before.status, before.reason, before.ended_at)
            elif run.ended:
                self.ends[run_id] = run

    def teardown(self) -> None:
        self.servers.do(self._stop_everything())
        self._collect_stops(wait=True)
        for run_id, program in self.programs.items():
            self._check(self.server.engine.find(run_id), program)

    async def _stop_everything(self) -> None:
        """Twice at once, and all at once."""
        engine = self.server.engine
        runs = [engine.find(run_id) for run_id in self.programs] * 2
        told = await asyncio.wait_for(asyncio.gather(*map(engine.stop, runs)), PATIENCE)
        for run, report in zip(runs, told, strict=True):
            now = engine.find(run.id)
            assert (report["status"], report["reason"], report["survivors"]) == (now.status, now.reason, [])

    def _collect_stops(self, *, wait: bool) -> None:
        """Check what stops have reported; without ``wait`` give up those that are not complete."""

        async def collect() -> None:
            for run_id, task in self.stops:
                if not wait and not task.done():
                    task.cancel()
                    await asyncio.wait([task])
                    continue
                report, now = await asyncio.wait_for(task, PATIENCE), self.server.engine.find(run_id)
                assert (report["status"], report["reason"], report["survivors"]) == (now.status, now.reason, [])

        self.servers.do(collect())
        self.stops.clear()

    def _check(self, run: Run, program: str) -> None:
        """One end; stopped or timed out only if that was recorded before; otherwise as the program ended by itself."""
        events = self.server.engine.read.events(run.id)
        (end,) = [event for event in events if event.type == "run.ended"]
        assert (end.data["status"], end.data["reason"]) == (run.status, run.reason)
        stops = [event for event in events if event.type == "input" and event.data.get("kind") == "stop"]
        if run.reason in (Reason.STOPPED, Reason.TIMEOUT):
            assert run.status is (Status.STOPPED if run.reason is Reason.STOPPED else Status.FAILED)
            assert stops[0].seq < end.seq
            assert stops[0].data["reason"] == run.reason == run.stop_reason, "the first one counts"
        else:
            assert (run.status, run.reason) == OWN_END[program]
        assert process_tree.carrying(run.id) == {}


def run_machine(home: Path, project: Path, agent: Bin, **bounds: Any) -> None:
    (home / "config.toml").write_text("[run]\nstop_grace = 0.1\n")
    (project / "gates").mkdir()
    for name, body in PROGRAMS.items():
        agent(name, body)
    servers = Servers(home, project)
    try:
        machine = type("Machine", (StopMachine,), {"servers": servers})
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
        run_state_machine_as_test(
            machine, settings=settings(deadline=None, database=None, suppress_health_check=checks, **bounds)
        )
    finally:
        servers.end()


@pytest.mark.req("S3-38")
@pytest.mark.req("S3-37")
def test_run_has_one_end_however_it_is_stopped(home: Path, project: Path, agent: Bin) -> None:
    run_machine(home, project, agent, max_examples=30, stateful_step_count=15, derandomize=True)


@pytest.mark.slow
def test_run_has_one_end_in_many_orders(home: Path, project: Path, agent: Bin) -> None:
    run_machine(home, project, agent, max_examples=150, stateful_step_count=25)
