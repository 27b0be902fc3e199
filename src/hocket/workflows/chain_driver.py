"""The chain driver: carries out the decisions of ``decide``. All its state can be restored from events.

A chain's run has one child per stage: the leaf itself; for a step with ``:N``, a loop whose children are the leaves;
for steps that run at the same time, a group whose children are such leaves and loops.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from hocket.chain import decide
from hocket.chain.decide import AskUser, Decision, Finished, Measure, Outcome, Pause, RunGate, Start
from hocket.errors import HocketError, UsageError
from hocket.model import BoundChain, Event, Kind, Reason, Run, Spec, Status, Step, Worktree, apply, stage_number
from hocket.sessions import clock
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.stops import Stops, stopped_in
from hocket.sessions.supervisor import Supervisor
from hocket.store import Committed
from hocket.workflows import directory_state, gates, step_prompts
from hocket.workflows.budgets import is_capped
from hocket.workflows.chain_state import ChainState, LiveChains, restore_state, result_hash, worktree_event
from hocket.workflows.chain_worktrees import ChainWorktrees, Prepared
from hocket.workflows.directory_state import Snapshot
from hocket.workflows.isolation import has_restrictions, spec_in_directory
from hocket.workflows.start import RunBatch, Starter
from hocket.workflows.worktrees import WorktreeStatus, find_base, worktree_for

MAX_DELAY = 60.0
"""A timer does not count while the machine sleeps, so a pause is checked again this often."""

UNEXPECTED_RETRY = 10.0
"""Seconds until the next attempt after an unexpected error."""
_ADVANCE_FAILED = "chain %s cannot advance for now"

log = logging.getLogger("hocket")
_spec_of = msgspec.json.Decoder(Spec)
_chain_spec = msgspec.json.Decoder(BoundChain)


class Chains:
    """All live chains of this server."""

    def __init__(
        self,
        journal: Journal,
        secrets: SecretStore,
        starter: Starter,
        supervisor: Supervisor,
        stops: Stops,
        live: LiveChains,
        worktrees: ChainWorktrees,
    ) -> None:
        self._journal = journal
        self._secrets = secrets
        self._starter = starter
        self._supervisor = supervisor
        self._stops = stops
        self._live = live
        self._tasks = BackgroundTasks()
        self._gates = gates.Gates()
        self._worktrees = worktrees
        self._snapshot_threads = ThreadPoolExecutor(4, "hocket-snapshot")
        self._loop = asyncio.get_running_loop()
        self._closing = False

    def open(self) -> None:
        """Take over the live chains of an earlier server, and every chain that is created from now on."""
        for run in [run for run in self._journal.live.values() if run.kind is Kind.CHAIN]:
            self._adopt(run)
        self._journal.listen(self._on_commit)

    def _on_commit(self, committed: Committed) -> None:
        for event in committed.events:
            if event.type == "run.created" and (run := committed.runs[event.run]).kind is Kind.CHAIN:
                self._live.by_run[run.id] = state = ChainState(run, _chain_spec.decode(self._secrets.record(run)))
                self._supervisor.need_server("chains", True)
                self._tasks.spawn(self._advance(state))
        if stopped := set(stopped_in(committed)):
            for state in self._live.by_run.values():
                if steps := state.steps_of(stopped):
                    self._tasks.spawn(self._cancel_jobs(state, steps))
        for run in committed.runs.values():
            if run.ended:
                self._on_end(run)

    def _adopt(self, run: Run) -> None:
        """Restore a chain from its events, and continue it. Nothing is replayed."""
        chain = _chain_spec.decode(self._secrets.record(run))
        self._live.by_run[run.id] = state = restore_state(run, chain, self._journal.read)
        live = (runs[-1] for runs, past in zip(state.runs, state.history, strict=True) if past.live)
        self._live.by_leaf.update(dict.fromkeys(live, state))
        self._start_timeout(state, run)
        self._supervisor.need_server("chains", True)
        self._tasks.spawn(self._take_over(state))

    async def _take_over(self, state: ChainState) -> None:
        """End the gates and git processes of the earlier server, which will be started again.

        Only then is the chain advanced: new gates and git processes have the same cookies.
        """
        try:
            async with state.lock:
                for step, past in zip(state.chain.steps, state.history, strict=True):
                    gated = step.until or state.chain.until
                    if gated and past.last is not None and past.last.gate is None:
                        await self._gates.cancel(past.last.run)
                for index in state.trees:
                    if state.is_unused(index):
                        await self._worktrees.cancel(_cookie(state, index), of_another=True)
            for stopped in list(state.stop_reasons):
                await self._withdraw(state, stopped)
        except Exception:
            log.exception(_ADVANCE_FAILED, state.id)
            await asyncio.sleep(UNEXPECTED_RETRY)
        await self._advance(state)

    def _on_end(self, run: Run) -> None:
        """Advance the chain of a run that has ended, if it has one."""
        state, top = self._live.by_leaf.pop(run.id, None), self._live.by_run.get(run.root)
        if top is not None and top is not state and run.is_counted:
            top.add_nested(run)
        if state is not None:
            state.add_leaf(run)
            if state.id in self._journal.live:
                self._tasks.spawn(self._advance(state))
        if (ended := self._live.by_run.pop(run.id, None)) is not None:
            self._supervisor.need_server("chains", bool(self._live.by_run))
            _cancel_timers(ended)

    def answered(self, run_id: str, question: str, *, allow: bool) -> None:
        """Called after every recorded answer; a chain may be waiting for it."""
        state = self._live.by_run.get(run_id)
        if state is not None:
            state.add_answer(question, allow=allow)
            self._tasks.spawn(self._advance(state))

    @property
    def due(self) -> float | None:
        """When the first of the parked chains continues."""
        runs = (self._journal.live.get(run_id) for run_id in self._live.by_run)
        return min((run.parked_until for run in runs if run and run.parked_until is not None), default=None)

    async def close(self) -> None:
        self._closing = True
        for state in self._live.by_run.values():
            _cancel_timers(state)
        await self._gates.close()
        await self._worktrees.close()
        await self._tasks.close()
        self._snapshot_threads.shutdown(wait=False, cancel_futures=True)

    # Advancing

    async def _advance(self, state: ChainState) -> None:
        try:
            async with state.lock:
                while not self._closing and (root := self._journal.live.get(state.id)) is not None:
                    if not await self._do_next(state, root):
                        break
        except HocketError:
            # It could not be recorded (a full disk, most likely), so it has not happened: try again later.
            self._advance_later(RETRY_AFTER, state)
        except Exception:
            log.exception(_ADVANCE_FAILED, state.id)
            self._advance_later(UNEXPECTED_RETRY, state)

    def _advance_later(self, delay: float, state: ChainState) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, lambda: self._tasks.spawn(self._advance(state)))

    async def _do_next(self, state: ChainState, root: Run) -> bool:
        """Do what comes next; return whether there may be more to do now."""
        decision = self._decide(state)
        if isinstance(decision, Finished):
            await self._finish(state, decision)
            return False
        if ends := state.inner_ends():
            await self._journal.write(self._end_events(ends))
            state.remove_inner(ends)
        if isinstance(decision, Pause):
            await self._pause(state, root, decision)
            return False
        step = decision.step
        if isinstance(decision, AskUser):
            await self._ask(state, root, step)
        elif isinstance(decision, RunGate):
            self._start_job(state, step, self._run_gate(state, decision))
        elif isinstance(decision, Measure):
            self._start_job(state, step, self._measure(state, decision))
        elif _needs_preparation(state, step):
            self._start_job(state, step, self._prepare(state, step))
        elif _needs_baseline(state, step):
            self._start_job(state, step, self._take_baseline(state, step))
        else:
            await self._start(state, root, decision)
        return True

    def _decide(self, state: ChainState) -> Decision:
        """What comes next; a step that was stopped does nothing more."""
        while True:
            now = time.time()
            decision = decide.decide(state.chain, state.history, now)
            steps: list[int] = []
            if isinstance(decision, Start | RunGate | Measure | AskUser):
                steps = [decision.step]
            elif isinstance(decision, Pause) and decision.until is not None:
                steps = decide.pausing(state.chain, state.history, now)
            stopped = {step: reason for step in steps if (reason := self._stop_reason(state, step)) is not None}
            if not stopped:
                return decision
            for step, reason in stopped.items():
                state.history = decide.halted(state.history, step, reason)
            state.stop_reasons |= stopped

    def _stop_reason(self, state: ChainState, step: int) -> Reason | None:
        """Why a step has to end: it was stopped, or the chain, the group or the loop around it was."""
        for run_id in (state.id, *state.owners(step)):
            run = self._journal.live.get(run_id)
            if run is not None and run.stop_reason is not None:
                return run.stop_reason
        return state.stop_reasons.get(step)

    # Starting

    async def _start(self, state: ChainState, root: Run, start: Start) -> None:
        """Create and start an iteration, together with the loop and the group around it if they are new."""
        index, step, batch = start.step, state.chain.steps[start.step], RunBatch()
        new_inner: dict[tuple[Kind, int], str] = {}
        if root.parked_until is not None:
            batch.events.append(_event(root, "unparked", {}))
        parent = _mark_started(root, batch)
        if (first := state.group_of(index)) is not None:
            parent = self._inner_run(state, (Kind.GROUP, first), parent, batch, new_inner)
        spec, error = self._spec(state, start)
        if step.loop:
            parent = self._inner_run(state, (Kind.LOOP, index), parent, batch, new_inner, spec.prompt)
        if index in state.snapshots and not state.history[index].started:
            batch.events.append(_event(parent, "progress", _baseline(index, state.snapshots[index])))
        iteration = start.iteration if step.loop else None
        place = {"step": index, "stage": stage_number(state.chain.steps, index), "iteration": iteration}
        staged = self._starter.stage_run(batch, Kind.LEAF, spec, parent, root.depth, place, error=error)
        leaf = (await self._starter.commit_runs(batch))[staged.id]
        state.inner |= new_inner
        state.add_leaf(leaf)
        self._start_timeout(state, self._journal.live[state.id])
        if leaf.ended:
            return
        self._live.by_leaf[leaf.id] = state
        self._supervisor.start(leaf, spec)
        if (reason := self._stop_reason(state, index)) is not None:
            # The stop came while this iteration was being created, and did not include it.
            self._tasks.spawn(self._stops.insist([leaf], reason))

    def _inner_run(
        self,
        state: ChainState,
        key: tuple[Kind, int],
        parent: Run,
        batch: RunBatch,
        new_inner: dict[tuple[Kind, int], str],
        prompt: str | None = None,
    ) -> Run:
        """The run of a loop or of a group, a new one if there is none yet; ``prompt`` is a loop's first one."""
        if key in state.inner:
            return _mark_started(self._journal.live[state.inner[key]], batch)
        kind, step = key
        spec = _group_spec(state, step) if kind is Kind.GROUP else _loop_spec(state, step)
        place = {"step": step, "stage": stage_number(state.chain.steps, step)}
        run = self._starter.stage_run(batch, kind, replace(spec, prompt=prompt), parent, parent.depth, place)
        new_inner[key] = run.id
        return _mark_started(run, batch)

    def _spec(self, state: ChainState, start: Start) -> tuple[Spec, str | None]:
        """What to start, or why that is impossible."""
        step = state.chain.steps[start.step]
        prepared = state.prepared.pop(start.step, Prepared(step.spec))
        if prepared.error is not None:
            return prepared.spec, prepared.error
        resumed = self._resume_interrupted(start.after, step, prepared.spec) if start.after is not None else None
        spec = resumed or prepared.spec
        if step.loop:
            # The loop's run has the notices that are about all iterations.
            spec = replace(spec, notices=tuple(text for text in spec.notices if text not in step.spec.notices))
        else:
            # A loop's run has the budget of all its iterations; a single run has it itself, as has its next attempt.
            spec = self._with_budget(state, start.step, spec)
        if resumed is not None:
            return spec, None
        previous = step_prompts.previous_result(state.chain, start.step, state.results)
        try:
            feedback = state.feedback.get(start.step)
            return step_prompts.iteration_spec(spec, state.chain.task, previous, feedback), None
        except UsageError as error:
            return spec, error.message

    def _with_budget(self, state: ChainState, step: int, spec: Spec) -> Spec:
        """The spec with the step's budget, less what the step and all that its agents started have used so far."""
        bounds = state.chain.steps[step].bounds
        if not is_capped(bounds):
            return replace(spec, budget_usd=None, budget_tokens=None)
        leaves = [leaf for run_id in state.runs[step] if (leaf := self._journal.run(run_id)) is not None]
        used = [self._journal.spent_below(leaf) for leaf in leaves]
        usd, tokens = sum(one.cost_usd or 0.0 for one in used), sum(one.tokens or 0 for one in used)
        return replace(
            spec,
            budget_usd=None if bounds.budget_usd is None else max(0.0, bounds.budget_usd - usd),
            budget_tokens=None if bounds.budget_tokens is None else max(0, bounds.budget_tokens - tokens),
        )

    def _resume_interrupted(self, run_id: str, step: Step, spec: Spec) -> Spec | None:
        """The spec that continues the session of an interrupted iteration; None if that is impossible."""
        run = self._journal.run(run_id)
        if run is None or run.transcript is None or not os.path.exists(run.transcript):
            return None
        # Its record has no values of secret variables; all iterations of a step have one environment.
        before = replace(_spec_of.decode(self._journal.read.spec(run_id)), env=spec.env)
        if not has_restrictions(before, step.spec, spec):
            return None  # It had rights that this one is not to have.
        return step_prompts.resume_interrupted(before, run)

    # Jobs: what has to be done for a step between two runs, while other steps continue

    def _start_job(self, state: ChainState, step: int, job: Coroutine[Any, Any, Outcome | None]) -> None:
        state.history = decide.busy(state.history, step)
        state.jobs[step] = self._tasks.spawn(self._run_job(state, step, job))

    async def _run_job(self, state: ChainState, step: int, job: Coroutine[Any, Any, Outcome | None]) -> None:
        """Run a job, add what it found out about the last iteration, and advance the chain."""
        try:
            outcome = await job
        except Exception:
            log.exception(_ADVANCE_FAILED, state.id)
            await asyncio.sleep(UNEXPECTED_RETRY)
            outcome = None  # The next decision starts it again.
        if self._is_current_job(state, step):
            self._end_job(state, step)
            if outcome is not None:
                state.history = decide.add(state.history, step, outcome)
            await self._advance(state)

    def _end_job(self, state: ChainState, step: int) -> None:
        state.jobs.pop(step, None)
        state.history = decide.idle(state.history, step)

    def _is_current_job(self, state: ChainState, step: int) -> bool:
        """Whether the job that calls this was not cancelled meanwhile."""
        return state.jobs.get(step) is asyncio.current_task()

    async def _cancel_jobs(self, state: ChainState, steps: Iterable[int]) -> None:
        """End the jobs and questions of steps that were stopped."""
        for step in steps:
            job, last = state.jobs.get(step), state.history[step].last
            if step in state.questions:
                state.questions.discard(step)
                self._end_job(state, step)
                await self._withdraw(state, step)
            if job is None:
                continue
            if last is not None:
                await self._gates.cancel(last.run)
            await self._worktrees.cancel(_cookie(state, step))
            if state.jobs.get(step) is job:
                self._end_job(state, step)
        await self._advance(state)

    async def _prepare(self, state: ChainState, index: int) -> None:
        """Create a step's worktree if necessary, and check its directory before the next iteration.

        A worktree is recorded before it is made, so that a later server does not make another.
        """
        step = state.chain.steps[index]
        try:
            if step.isolation is None:
                prepared = Prepared(await self._worktrees.run(spec_in_directory, step, None))
            else:
                tree = state.trees.get(index) or await self._choose_worktree(state, index, step.isolation.repository)
                if tree is None:
                    return
                fresh = state.is_unused(index)
                prepared = await self._worktrees.prepare(_cookie(state, index), step, tree, fresh=fresh)
        except HocketError as error:
            prepared = Prepared(step.spec, error.message)
        if self._is_current_job(state, index):
            state.prepared[index] = prepared

    async def _choose_worktree(self, state: ChainState, index: int, repository: str) -> Worktree | None:
        """The worktree that a step had before, or a new one; None if it is not needed any more."""
        step, remarks = state.chain.steps[index], tuple[str, ...]()
        async with state.base_lock:
            tree = step.isolation.tree if step.isolation else None
            if tree is None or not await self._worktrees.exists(step, tree):
                if (peer := state.peer_tree(index)) is not None:
                    base = peer.base
                else:
                    before, git = state.trees_before(index), self._worktrees.git(step)
                    base, remarks = await self._worktrees.run(find_base, repository, before, git)
                number, chain = state.chain.first + index + 1, (state.number, state.id)
                tree = worktree_for(self._worktrees.home, repository, base, chain, number, step.agent)
            root = self._journal.live.get(state.id)
            if root is None or not self._is_current_job(state, index):
                return None
            notices = [{"kind": "worktree", "text": f"{step.agent}: {text}"} for text in remarks]
            event = _event(root, "worktree", worktree_event(tree, index, step.agent))
            await self._journal.insist([event, *(_event(root, "notice", data) for data in notices)])
            state.trees[index] = tree
            return tree

    async def _run_gate(self, state: ChainState, decision: RunGate) -> Outcome | None:
        """Run the gate in the step's directory, and record its verdict on the last iteration."""
        index, step = decision.step, state.chain.steps[decision.step]
        command = step.until or state.chain.until or "true"
        limit = state.chain.gate_timeout or gates.TIMEOUT
        data: dict[str, Any] = {"run": decision.run, "step": index, "command": command}
        if not await self._record(state, index, "gate.started", data):
            return None
        argv = ["/bin/sh", "-c", command]
        verdict = await self._gates.run(decision.run, argv, state.cwd(index), step.spec.env, limit)
        if verdict is None:
            return None
        data = {**data, "passed": verdict.passed, "exit_code": verdict.code, "timed_out": verdict.timed_out}
        data |= {"output": verdict.output, "seconds": verdict.seconds}
        if not await self._record(state, index, "gate", data):
            return None
        state.add_gate(index, data)
        last = state.history[index].last
        return last and dataclasses.replace(last, gate=verdict.passed)

    async def _measure(self, state: ChainState, decision: Measure) -> Outcome | None:
        """Record whether the last iteration changed anything, or had a result that no earlier one had."""
        step = decision.step
        snapshot = await self._snapshot(state, step)
        run, before = self._journal.run(decision.run), state.snapshots.get(step)
        hashed = result_hash(run.result if run else None)
        is_new = hashed not in state.result_hashes.get(step, ())
        changed = before is None or directory_state.changed(before, snapshot)
        data = {"run": decision.run, "step": step, "changed": changed or is_new, "files_changed": changed}
        data |= {"said": hashed, "said_before": not is_new, **snapshot._asdict()}
        if not await self._record(state, step, "progress", data):
            return None
        state.add_snapshot(step, data)
        last = state.history[step].last
        return last and dataclasses.replace(last, progress=changed or is_new)

    async def _take_baseline(self, state: ChainState, step: int) -> None:
        """Take the snapshot before the first iteration. It is recorded together with the start of that one."""
        snapshot = await self._snapshot(state, step)
        if self._is_current_job(state, step):
            state.snapshots[step] = snapshot

    async def _snapshot(self, state: ChainState, step: int) -> Snapshot:
        cwd, git = state.cwd(step), self._worktrees.git(state.chain.steps[step])
        try:
            return await self._loop.run_in_executor(self._snapshot_threads, directory_state.take_snapshot, cwd, git)
        except Exception as error:  # noqa: BLE001 - no thread, no memory: work is not ended for lack of evidence
            return Snapshot("", directory_state.UNREADABLE, f"{cwd} cannot be examined: {error}")

    async def _record(self, state: ChainState, step: int, kind: str, data: dict[str, Any]) -> bool:
        """Record a finding, unless it is obsolete; return whether it is still needed."""
        owner = self._journal.live.get([state.id, *state.owners(step)][-1])
        if owner is None or not self._is_current_job(state, step):
            return False
        await self._journal.insist([_event(owner, kind, data)])
        return self._is_current_job(state, step)

    # Waiting

    async def _ask(self, state: ChainState, root: Run, step: int) -> None:
        """Ask the user what to do about a lost iteration. Other steps continue meanwhile."""
        question = state.question(step)
        state.questions.add(step)
        state.history = decide.busy(state.history, step)
        try:
            await self._journal.write([_event(root, "question", question)], durable=True)
        except HocketError:
            state.questions.discard(step)
            self._end_job(state, step)
            raise

    async def _withdraw(self, state: ChainState, step: int) -> None:
        """Withdraw the question about a lost iteration."""
        root = self._journal.live.get(state.id)
        for question in root.open_questions if root is not None else ():
            if root is not None and state.step_of_question(question["id"]) == step:
                answer = {"id": question["id"], "allow": False, "text": "its step was ended", "by": "hocket"}
                await self._journal.insist([_event(root, "answer", answer)])

    async def _pause(self, state: ChainState, root: Run, pause: Pause) -> None:
        """Nothing to do. If only time has to pass, record until when."""
        if pause.until is None:
            return
        if state.is_idle and root.parked_until != pause.until:
            await self._journal.write([_event(root, "parked", _parked(state, pause))])
        if state.pause_timer is not None:
            state.pause_timer.cancel()
        delay = min(max(0.01, pause.until - time.time()), MAX_DELAY)
        state.pause_timer = self._advance_later(delay, state)

    def _start_timeout(self, state: ChainState, root: Run) -> None:
        if state.chain.timeout is None or root.started_clock is None or state.timeout_timer is not None:
            return
        if not clock.is_readable(root):
            # The machine was restarted: count from now on, for this server and for later ones.
            self._tasks.spawn(self._restart_clock(root))
        state.timeout_timer = self._loop.call_later(
            clock.left(root, state.chain.timeout),
            lambda: self._tasks.spawn(self._stops.insist_below(state.id, Reason.TIMEOUT)),
        )

    async def _restart_clock(self, root: Run) -> None:
        await self._journal.insist([_event(root, "clock", clock.reading())])

    # Ending

    async def _finish(self, state: ChainState, end: Finished) -> None:
        """Record the end of a chain. One that can be resumed keeps its worktrees."""
        is_done = end.status is Status.DONE
        statuses: dict[int, WorktreeStatus] = {}
        for index, tree in state.trees.items():
            step = state.chain.steps[index]
            try:
                statuses[index] = await self._worktrees.inspect(step, tree, tidy=is_done or state.is_unused(index))
            except HocketError:  # Git cannot be run, so nothing is removed.
                statuses[index] = WorktreeStatus(tree.base, None, None, has_folder=True, branch=tree.branch)
        for tree in state.earlier_trees() if is_done else ():
            with suppress(HocketError):
                await self._worktrees.inspect(state.chain.steps[0], tree, tidy=True)
        await self._journal.write(self._end_events({**state.inner_ends(end), state.id: state.report(end, statuses)}))

    def _end_events(self, ends: Mapping[str, dict[str, Any]]) -> list[Event]:
        return [_event(self._journal.live[run_id], "run.ended", data) for run_id, data in ends.items()]


def _event(run: Run, kind: str, data: dict[str, Any]) -> Event:
    return Event(0, time.time(), run.id, run.root, kind, data)


def _mark_started(run: Run, batch: RunBatch) -> Run:
    """Start the run of a chain, loop or group together with the first run in it."""
    if run.status is not Status.STARTING:
        return run
    batch.events.append(_event(run, "run.started", clock.reading()))
    return apply(run, batch.events[-1])


def _cancel_timers(state: ChainState) -> None:
    for timer in (state.timeout_timer, state.pause_timer):
        if timer is not None:
            timer.cancel()


def _needs_baseline(state: ChainState, index: int) -> bool:
    step = state.chain.steps[index]
    is_measured = step.loop and step.bounds.no_progress is not None
    return is_measured and not state.history[index].started and index not in state.snapshots


def _needs_preparation(state: ChainState, index: int) -> bool:
    step = state.chain.steps[index]
    return (step.isolation or step.approval) is not None and index not in state.prepared


def _cookie(state: ChainState, step: int) -> str:
    """Marks the git processes that create a step's worktree."""
    return f"{state.id}-{step}"


def _baseline(step: int, snapshot: Snapshot) -> dict[str, Any]:
    return {"run": None, "step": step, "changed": None, "said": None, **snapshot._asdict()}


def _parked(state: ChainState, pause: Pause) -> dict[str, Any]:
    steps = decide.pausing(state.chain, state.history, time.time())
    names = ", ".join(dict.fromkeys(state.chain.steps[step].agent for step in steps))
    what = "the usage limit is reached" if pause.limited else "the service is overloaded or cannot be reached"
    return {
        "until": pause.until,
        "reason": Reason.RATE_LIMITED.value if pause.limited else "overloaded",
        "text": f"{names}: {what}",
    }


def _group_spec(state: ChainState, first: int) -> Spec:
    """What a group's run is created from: it starts nothing itself."""
    members = [state.chain.steps[step] for step in step_prompts.stage_of(state.chain, first)]
    name = ", ".join(f"{step.agent}:{step.iterations}" if step.loop else step.agent for step in members)
    return Spec(f"({name})", members[0].spec.provider, (), state.chain.cwd, state.chain.env)


def _loop_spec(state: ChainState, index: int) -> Spec:
    bounds, spec = state.chain.steps[index].bounds, state.chain.steps[index].spec
    return replace(spec, cwd=state.cwd(index), budget_usd=bounds.budget_usd, budget_tokens=bounds.budget_tokens)
