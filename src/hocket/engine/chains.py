"""The chain driver: asks ``decide`` what comes next and does it. It remembers nothing that history does not tell.

A chain's run has one child per step: the leaf itself, or, for a step with ``:N``, a loop whose children are the leaves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from hocket import chain as chains
from hocket.chain import Finished, History, RunGate, Start
from hocket.engine.journal import RETRY_AFTER, Journal
from hocket.engine.processes import Processes
from hocket.engine.tasks import Tasks
from hocket.errors import HocketError
from hocket.keeper import tools, tree
from hocket.model import BoundChain, Event, Kind, Reason, Run, Spec, Status

GATE_TIMEOUT = 600.0
GATE_OUTPUT = 64 * 1024
GATE_RETRY = 0.1


class NewRun(Protocol):
    """Creates a run; the engine's own."""

    def __call__(
        self,
        kind: Kind,
        spec: Spec,
        parent: Run,
        depth: int,
        *,
        step: int,
        iteration: int | None = None,
        also: list[Event] | None = None,
    ) -> Awaitable[Run]: ...


class _Driver:
    """One live chain."""

    def __init__(self, run: Run, chain: BoundChain) -> None:
        self.id = run.id
        self.chain = chain
        self.history: History = chains.no_history(chain)
        self.runs: list[list[str]] = [[] for _ in chain.steps]
        self.loops: dict[int, str] = {}
        """The loop run of a step."""
        self.result: str | None = None
        self.cost: float | None = None
        self.tokens: int | None = None
        self.turn = asyncio.Lock()
        self.gate: Future[tools.ToolResult] | None = None
        self.leaving = False
        """No gate may begin any more."""
        self.deadline: asyncio.TimerHandle | None = None


class Chains:
    """All live chains of this server."""

    def __init__(self, journal: Journal, new_run: NewRun, processes: Processes) -> None:
        self._journal = journal
        self._new_run = new_run
        self._processes = processes
        self._drivers: dict[str, _Driver] = {}
        self._by_child: dict[str, _Driver] = {}
        self._tasks = Tasks()
        self._gates = ThreadPoolExecutor(16, "hocket-gate")
        # Of their own: what ends a gate must not wait behind gates.
        self._sweeps = ThreadPoolExecutor(4, "hocket-sweep")
        self._loop = asyncio.get_running_loop()
        self._closing = False

    def begin(self, run: Run, chain: BoundChain) -> None:
        driver = self._drivers[run.id] = _Driver(run, chain)
        self._tasks.spawn(self._advance(driver))

    def adopt(self, run: Run, chain: BoundChain) -> None:
        """Read what happened, and go on from there. Nothing is replayed."""
        driver = self._drivers[run.id] = _Driver(run, chain)
        read = self._journal.read
        steps = read.children(run.id)
        loops = [step for step in steps if step.kind is Kind.LOOP]
        gates: dict[str, bool] = {}
        for owner in (run, *loops):
            gates |= {e.data["run"]: bool(e.data["passed"]) for e in read.events(owner.id) if e.type == "gate"}
        leaves = [step for step in steps if step.kind is Kind.LEAF]
        leaves += [leaf for loop in loops for leaf in read.children(loop.id)]
        driver.loops = {loop.step: loop.id for loop in loops if loop.step is not None and not loop.ended}
        for leaf in sorted(leaves, key=lambda one: one.number):
            self._note(driver, leaf, gates.get(leaf.id))
        self._arm(driver, run)
        # A gate of the server that is gone may still be at work; it will be run again.
        self._tasks.spawn(self._sweep_then_advance(driver))

    def child_ended(self, run: Run) -> None:
        """Told of every run that ended; those of our chains move them on."""
        driver = self._by_child.pop(run.id, None)
        if driver is not None:
            self._note(driver, run)
            self._tasks.spawn(self._advance(driver))

    def stopping(self, runs: Iterable[Run]) -> None:
        """Told after a stop was recorded: a chain between two iterations has nobody else to tell it."""
        asked = {run.id for run in runs}
        for driver in self._drivers.values():
            if driver.id in asked or asked & set(driver.loops.values()):
                driver.leaving = True
                self._tasks.spawn(self._sweep_then_advance(driver))

    async def close(self) -> None:
        for driver in self._drivers.values():
            if driver.deadline is not None:
                driver.deadline.cancel()
        self._closing = True
        for driver in self._drivers.values():
            driver.leaving = True
            await self._end_gate(driver)
        await self._tasks.close()
        for pool in (self._gates, self._sweeps):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _sweep_then_advance(self, driver: _Driver) -> None:
        """End a gate that may be at work, then go on: its word no longer counts."""
        await self._end_gate(driver)
        await self._advance(driver)

    async def _end_gate(self, driver: _Driver) -> None:
        """Also one that is only about to begin, and one that a server before us began."""
        if driver.chain.until is None:
            return
        await self._loop.run_in_executor(self._sweeps, partial(tree.sweep_cookie, driver.id))
        while driver.gate is not None and driver.leaving and not driver.gate.done():
            driver.gate.cancel()  # It may still wait for a thread.
            await asyncio.sleep(GATE_RETRY)
            await self._loop.run_in_executor(self._sweeps, partial(tree.sweep_cookie, driver.id))

    def _note(self, driver: _Driver, leaf: Run, gate: bool | None = None) -> None:
        """One more fact about an iteration."""
        if leaf.step is None:  # Started by an agent, not by the chain.
            return
        driver.history = chains.add(driver.history, leaf.step, chains.outcome_of(leaf, gate))
        if driver.runs[leaf.step][-1:] != [leaf.id]:
            driver.runs[leaf.step].append(leaf.id)
        if leaf.ended:
            driver.result = leaf.result
            if leaf.cost_usd is not None:
                driver.cost = (driver.cost or 0.0) + leaf.cost_usd
            if leaf.tokens is not None:
                driver.tokens = (driver.tokens or 0) + leaf.tokens
        else:
            self._by_child[leaf.id] = driver

    async def _advance(self, driver: _Driver) -> None:
        try:
            await self._go_on(driver)
        except HocketError:
            # It could not be recorded (a full disk, most likely), so it has not happened: try again later.
            self._loop.call_later(RETRY_AFTER, lambda: self._tasks.spawn(self._advance(driver)))

    async def _go_on(self, driver: _Driver) -> None:
        async with driver.turn:
            while not self._closing:
                root = self._journal.live.get(driver.id)
                if root is None:
                    return
                decision = self._decide(driver, root)
                if isinstance(decision, Start):
                    await self._start(driver, root, decision)
                elif isinstance(decision, RunGate):
                    await self._run_gate(driver, root, decision)
                elif isinstance(decision, Finished):
                    await self._finish(driver, root, decision)
                    return
                else:
                    return

    def _decide(self, driver: _Driver, root: Run) -> chains.Decision:
        decision = chains.decide(driver.chain, driver.history)
        reason = self._stop_reason(driver)
        if reason is None or isinstance(decision, Finished | chains.Wait):
            return decision
        return Finished(Status.STOPPED if reason is Reason.STOPPED else Status.FAILED, reason, None)

    def _stop_reason(self, driver: _Driver) -> Reason | None:
        """Of the chain, or of the loop that is its step at work."""
        for run_id in (driver.id, *driver.loops.values()):
            run = self._journal.live.get(run_id)
            if run is not None and run.stop_reason is not None:
                return run.stop_reason
        return None

    async def _start(self, driver: _Driver, root: Run, decision: Start) -> None:
        step = driver.chain.steps[decision.step]
        also = self._close_loops(driver, before=decision.step)
        if root.status is Status.STARTING:
            also.append(self._event(root, "run.started", {"clock": time.monotonic()}))
        parent = root
        if step.loop:
            parent = await self._loop_run(driver, root, decision.step, also)
        leaf = await self._new_run(
            Kind.LEAF,
            step.spec,
            parent,
            root.depth,
            step=decision.step,
            iteration=decision.iteration if step.loop else None,
            also=also,
        )
        self._note(driver, leaf)
        self._arm(driver, self._journal.live[driver.id])
        self._processes.begin(leaf, step.spec)
        if (reason := self._stop_reason(driver)) is not None:
            # The stop came while this iteration was being created, and did not see it.
            await self._processes.ask_to_stop([leaf], reason)

    async def _loop_run(self, driver: _Driver, root: Run, index: int, also: list[Event]) -> Run:
        known = driver.loops.get(index)
        if known is not None:
            return self._journal.live[known]
        step = driver.chain.steps[index]
        loop = await self._new_run(Kind.LOOP, step.spec, root, root.depth, step=index, also=list(also))
        also[:] = [self._event(loop, "run.started", {"clock": time.monotonic()})]
        driver.loops[index] = loop.id
        return loop

    def _close_loops(self, driver: _Driver, before: int, end: Finished | None = None) -> list[Event]:
        """The ends of loops whose step is over. They are told with whatever happens next."""
        live = self._journal.live
        over = [index for index, loop in driver.loops.items() if index < before and loop in live]
        reports = chains.step_reports(driver.chain, driver.history, driver.runs, end) if over else []
        events = []
        for index in over:
            report = reports[index]
            data = {key: report[key] for key in ("status", "reason", "exit_code")}
            data |= {"result": driver.result, "iterations": report["iterations"]}
            events.append(self._event(live[driver.loops[index]], "run.ended", data))
        return events

    async def _run_gate(self, driver: _Driver, root: Run, decision: RunGate) -> None:
        """The user's own command, in the step's directory; its word is kept beside the iteration it judged."""
        spec = driver.chain.steps[decision.step].spec
        command = driver.chain.until or "true"
        env = {**spec.env, "HOCKET_RUN": driver.id}
        call = partial(
            tools.run_tool, ["/bin/sh", "-c", command], spec.cwd, env, GATE_TIMEOUT, output_limit=GATE_OUTPUT
        )
        began = time.monotonic()
        driver.gate = self._gates.submit(_alone, driver, call)
        try:
            outcome = await asyncio.wrap_future(driver.gate)
            code, output, timed_out = outcome.code, outcome.output.decode(errors="replace"), outcome.timed_out
        except OSError as error:
            code, output, timed_out = 127, str(error), False
        except asyncio.CancelledError:
            if not driver.leaving:
                raise
            return
        if driver.leaving or self._stop_reason(driver) is not None:
            return
        owner = self._journal.live[driver.loops.get(decision.step, driver.id)]
        data = {"run": decision.run, "passed": code == 0 and not timed_out, "command": command, "exit_code": code}
        data |= {"timed_out": timed_out, "output": output, "seconds": round(time.monotonic() - began, 3)}
        await self._journal.write([self._event(owner, "gate", data)], durable=True)
        last = driver.history[decision.step].last
        if last is not None:
            judged = replace(last, gate=bool(data["passed"]))
            driver.history = chains.add(driver.history, decision.step, judged)

    async def _finish(self, driver: _Driver, root: Run, end: Finished) -> None:
        events = self._close_loops(driver, before=len(driver.chain.steps), end=end)
        steps = chains.step_reports(driver.chain, driver.history, driver.runs, end)
        codes = [report["exit_code"] for report in steps if report["status"] != "skipped"]
        data = {
            "status": end.status,
            "reason": end.reason,
            "result": driver.result,
            "exit_code": codes[-1] if codes else None,
            "cost_usd": driver.cost,
            "tokens": driver.tokens,
            "steps": steps,
        }
        if end.failed_step is not None:
            data["failed_step"] = end.failed_step
        await self._journal.write([*events, self._event(root, "run.ended", data)])
        self._drivers.pop(driver.id, None)
        if driver.deadline is not None:
            driver.deadline.cancel()

    def _event(self, run: Run, kind: str, data: dict[str, Any]) -> Event:
        return Event(0, time.time(), run.id, run.root, kind, data)

    def _arm(self, driver: _Driver, root: Run) -> None:
        if driver.chain.timeout is None or root.started_clock is None or driver.deadline is not None:
            return
        elapsed = max(0.0, time.monotonic() - root.started_clock)
        delay = max(0.0, driver.chain.timeout - elapsed)
        driver.deadline = self._loop.call_later(delay, lambda: self._tasks.spawn(self._time_out(driver)))

    async def _time_out(self, driver: _Driver) -> None:
        mine = {driver.id, *driver.loops.values()}
        mine |= {leaf for leaf, owner in self._by_child.items() if owner is driver}
        runs = [run for run in self._journal.live.values() if run.id in mine]
        await self._processes.ask_to_stop(runs, Reason.TIMEOUT)
        driver.leaving = True
        await self._sweep_then_advance(driver)


def _alone(driver: _Driver, call: Callable[[], tools.ToolResult]) -> tools.ToolResult:
    """In a thread: the gate, and then the end of whatever it left running."""
    if driver.leaving:
        return tools.ToolResult(1, b"", timed_out=False)
    try:
        return call()
    finally:
        tree.sweep_cookie(driver.id)
