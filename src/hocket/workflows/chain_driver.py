"""The chain driver: asks ``decide`` what comes next and does it. It remembers nothing that history does not tell.

A chain's run has one child per stage: the leaf itself; for a step with ``:N``, a loop whose children are the leaves;
for steps that run at the same time, a group whose children are such leaves and loops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from hocket.chain import decide
from hocket.chain.decide import Ask, Decision, Finished, Measure, Outcome, RunGate, Start, Wait
from hocket.errors import HocketError, UsageError
from hocket.model import BoundChain, Event, Kind, Reason, Run, Spec, Status, Step, Worktree, apply, stage_number
from hocket.sessions import clock
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.stops import Stops, stopped_in
from hocket.sessions.supervisor import Supervisor
from hocket.store import Committed
from hocket.workflows import chain_worktrees, directory_state, gates, step_prompts
from hocket.workflows.budgets import Spent, is_capped
from hocket.workflows.chain_state import ChainState, hash_of, recalled, told_of
from hocket.workflows.isolation import has_restrictions, placed
from hocket.workflows.live_chains import LiveChains
from hocket.workflows.start import RunBatch, Starter
from hocket.workflows.worktrees import Beginning, Standing

LONGEST_NAP = 60.0
"""A machine that sleeps does not count the time, so an appointment is looked at again this often."""

_STUMBLED = "chain %s cannot go on for now"

log = logging.getLogger("hocket")
_spec_of = msgspec.json.Decoder(Spec)
_chain_spec = msgspec.json.Decoder(BoundChain)


class Next(NamedTuple):
    """An iteration that is about to come into being, with the loop and the group around it if they are new."""

    step: int
    spec: Spec
    leaf: str
    inner: Mapping[tuple[Kind, int], str]


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
        trees: chain_worktrees.Trees,
    ) -> None:
        self._journal = journal
        self._secrets = secrets
        self._starter = starter
        self._supervisor = supervisor
        self._stops = stops
        self._live = live
        self._tasks = BackgroundTasks()
        self._gates = gates.Gates()
        self._trees = trees
        self._looks = ThreadPoolExecutor(4, "hocket-look")
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
                self._live.by_run[run.id] = state = ChainState(run, self._chain(run))
                self._supervisor.need_server("chains", True)
                self._tasks.spawn(self._advance(state))
        if stopped := set(stopped_in(committed)):
            for state in self._live.by_run.values():
                if steps := state.members_of(stopped):
                    self._tasks.spawn(self._break_off(state, steps))
        for run in committed.runs.values():
            if run.ended:
                self._child_ended(run)

    def _chain(self, run: Run) -> BoundChain:
        return _chain_spec.decode(self._secrets.record(run))

    def _adopt(self, run: Run) -> None:
        """Read what happened, and go on from there. Nothing is replayed."""
        state = self._live.by_run[run.id] = recalled(run, self._chain(run), self._journal.read)
        live = (runs[-1] for runs, past in zip(state.runs, state.history, strict=True) if past.live)
        self._live.by_child.update(dict.fromkeys(live, state))
        self._arm(state, run)
        self._supervisor.need_server("chains", True)
        self._tasks.spawn(self._take_over(state))

    async def _take_over(self, state: ChainState) -> None:
        """A gate of the server that is gone may still be at work, or its git; they will be run again.

        Not before they are gone: an iteration that has ended meanwhile moves the chain on, and its new gates and the
        new git have the same cookies.
        """
        try:
            async with state.turn:
                for step, past in zip(state.chain.steps, state.history, strict=True):
                    gated = step.until or state.chain.until
                    if gated and past.last is not None and past.last.gate is None:
                        await self._gates.call_off(past.last.run)
                for index in state.trees:
                    if state.is_unused(index):
                        await self._trees.call_off(_cookie(state, index), of_another=True)
            for step_told in list(state.told):
                await self._withdraw(state, step_told)
        except Exception:
            log.exception(_STUMBLED, state.id)
            await asyncio.sleep(_pause(state))
        await self._advance(state)

    def _child_ended(self, run: Run) -> None:
        """Move on the chain of a run that ended, if it has one."""
        state, top = self._live.by_child.pop(run.id, None), self._live.by_run.get(run.root)
        if top is not None and top is not state and run.kind is Kind.LEAF:
            top.note_nested(run)
        if state is not None:
            state.note(run)
            if state.id in self._journal.live:
                self._tasks.spawn(self._advance(state))
        if (ended := self._live.by_run.pop(run.id, None)) is not None:
            self._supervisor.need_server("chains", bool(self._live.by_run))
            _hush(ended)

    def answered(self, run_id: str, question: str, *, allow: bool) -> None:
        """Told of every answer that was recorded; a chain may be waiting for it."""
        state = self._live.by_run.get(run_id)
        if state is not None:
            state.answered(question, allow=allow)
            self._tasks.spawn(self._advance(state))

    @property
    def due(self) -> float | None:
        """When the first of those that are parked goes on."""
        runs = (self._journal.live.get(run_id) for run_id in self._live.by_run)
        return min((run.parked_until for run in runs if run and run.parked_until is not None), default=None)

    async def close(self) -> None:
        self._closing = True
        for state in self._live.by_run.values():
            _hush(state)
        await self._gates.close()
        await self._trees.close()
        await self._tasks.close()
        self._looks.shutdown(wait=False, cancel_futures=True)

    # Going on

    async def _advance(self, state: ChainState) -> None:
        try:
            await self._go_on(state)
            state.stumbles = 0
        except HocketError:
            # It could not be recorded (a full disk, most likely), so it has not happened: try again later.
            self._later(RETRY_AFTER, state)
        except Exception:
            log.exception(_STUMBLED, state.id)
            self._later(_pause(state), state)

    def _later(self, delay: float, state: ChainState) -> None:
        self._loop.call_later(delay, lambda: self._tasks.spawn(self._advance(state)))

    async def _go_on(self, state: ChainState) -> None:
        async with state.turn:
            while not self._closing and (root := self._journal.live.get(state.id)) is not None:
                decision = self._decide(state)
                if isinstance(decision, Finished):
                    await self._finish(state, decision)
                    return
                await self._close_inner(state)
                if isinstance(decision, Wait):
                    await self._rest(state, root, decision)
                    return
                await self._do(state, root, decision)

    async def _do(self, state: ChainState, root: Run, decision: Start | RunGate | Measure | Ask) -> None:
        if isinstance(decision, Ask):
            await self._ask(state, root, decision.step)
        elif isinstance(decision, RunGate):
            self._send(state, decision.step, self._ask_gate(state, decision))
        elif isinstance(decision, Measure):
            self._send(state, decision.step, self._measure(state, decision))
        elif _lacks_a_place(state, decision.step):
            self._send(state, decision.step, self._prepare(state, decision.step))
        elif _lacks_a_baseline(state, decision.step):
            self._send(state, decision.step, self._take_baseline(state, decision.step))
        else:
            await self._start(state, root, decision)

    def _decide(self, state: ChainState) -> Decision:
        """What comes next; a step that was told to end does nothing any more."""
        while True:
            now = time.time()
            decision = decide.decide(state.chain, state.history, now)
            steps: list[int] = []
            if isinstance(decision, Start | RunGate | Measure | Ask):
                steps = [decision.step]
            elif isinstance(decision, Wait) and decision.until is not None:
                steps = decide.pausing(state.chain, state.history, now)
            told = {step: reason for step in steps if (reason := self._told(state, step)) is not None}
            if not told:
                return decision
            for step, reason in told.items():
                state.history = decide.halted(state.history, step, reason)
            state.told |= told

    def _told(self, state: ChainState, step: int) -> Reason | None:
        """Why a step has to end: it was told so, or the chain, the group or the loop around it was."""
        for run_id in (state.id, *state.owners(step)):
            run = self._journal.live.get(run_id)
            if run is not None and run.stop_reason is not None:
                return run.stop_reason
        return state.told.get(step)

    async def _break_off(self, state: ChainState, steps: Iterable[int]) -> None:
        """End what is being found out about these steps: its word no longer counts."""
        for step in steps:
            errand, last = state.errands.get(step), state.history[step].last
            if step in state.asked:
                state.asked.discard(step)
                self._dismiss(state, step)
                await self._withdraw(state, step)
            if errand is None:
                continue
            if last is not None:
                await self._gates.call_off(last.run)
            await self._trees.call_off(_cookie(state, step))
            if state.errands.get(step) is errand:
                self._dismiss(state, step)
        await self._advance(state)

    # Starting

    async def _start(self, state: ChainState, root: Run, start: Start) -> None:
        batch = RunBatch()
        coming = self._next(state, root, start, batch)
        self._set_going(state, coming, await self._starter.commit_runs(batch))

    def _next(self, state: ChainState, root: Run, start: Start, batch: RunBatch) -> Next:
        """What comes into being with an iteration, in the order in which it becomes true."""
        step = state.chain.steps[start.step]
        inner: dict[tuple[Kind, int], str] = {}
        if root.parked_until is not None:
            batch.events.append(_event(root, "unparked", {}))
        parent = _started(root, batch)
        if (first := state.group_of(start.step)) is not None:
            parent = self._inner(state, Kind.GROUP, first, parent, batch, inner)
        spec, error = self._spec(state, start)
        if step.loop:
            parent = self._inner(state, Kind.LOOP, start.step, parent, batch, inner, spec.prompt)
        if start.step in state.evidence and not state.history[start.step].started:
            batch.events.append(_event(parent, "progress", _baseline(start.step, state.evidence[start.step])))
        iteration = start.iteration if step.loop else None
        stage = stage_number(state.chain.steps, start.step)
        place = {"step": start.step, "stage": stage, "iteration": iteration}
        leaf = self._starter.stage_run(batch, Kind.LEAF, spec, parent, root.depth, place, error=error)
        return Next(start.step, spec, leaf.id, inner)

    def _inner(
        self,
        state: ChainState,
        kind: Kind,
        step: int,
        parent: Run,
        batch: RunBatch,
        inner: dict[tuple[Kind, int], str],
        prompt: str | None = None,
    ) -> Run:
        """The run of a loop or of a group, a new one if there is none yet; ``prompt`` is a loop's first one."""
        known = _inner_runs(state, kind).get(step)
        if known is not None:
            return _started(self._journal.live[known], batch)
        spec = _group_spec(state, step) if kind is Kind.GROUP else _loop_spec(state, step)
        stage = stage_number(state.chain.steps, step)
        spec, place = replace(spec, prompt=prompt), {"step": step, "stage": stage}
        run = self._starter.stage_run(batch, kind, spec, parent, parent.depth, place)
        inner[kind, step] = run.id
        return _started(run, batch)

    def _set_going(self, state: ChainState, coming: Next, born: Mapping[str, Run]) -> None:
        """Begin an iteration that has just come into being."""
        for (kind, step), run_id in coming.inner.items():
            _inner_runs(state, kind)[step] = run_id
        leaf = born[coming.leaf]
        state.note(leaf)
        self._arm(state, self._journal.live[state.id])
        if leaf.ended:
            return
        self._live.by_child[leaf.id] = state
        self._supervisor.start(leaf, coming.spec)
        if (reason := self._told(state, coming.step)) is not None:
            # The stop came while this iteration was being created, and did not see it.
            self._tasks.spawn(self._stops.insist([leaf], reason))

    def _spec(self, state: ChainState, start: Start) -> tuple[Spec, str | None]:
        """What to start, or why that cannot be."""
        step = state.chain.steps[start.step]
        prepared = state.prepared.pop(start.step, chain_worktrees.Prepared(step.spec))
        if prepared.error is not None:
            return prepared.spec, prepared.error
        again = self._again(start.after, step, prepared.spec) if start.after is not None else None
        spec = again or prepared.spec
        if step.loop:
            # The loop's run has said what there is to know about all iterations.
            spec = replace(spec, notices=tuple(text for text in spec.notices if text not in step.spec.notices))
        else:
            # A loop's run has the bound of all its iterations; a single one has it itself, and so has its next attempt.
            spec = _capped(step, spec, self._spent(state, start.step))
        if again is not None:
            return spec, None
        complaint = state.complaints.get(start.step)
        previous = step_prompts.previous_result(state.chain, start.step, state.results)
        try:
            return step_prompts.begun(spec, state.chain.task, previous, complaint.text if complaint else None), None
        except UsageError as error:
            return spec, error.message

    def _spent(self, state: ChainState, step: int) -> Spent:
        """What a step has used so far, with all that its agents started."""
        if not is_capped(state.chain.steps[step].bounds):
            return Spent()
        leaves = [leaf for run_id in state.runs[step] if (leaf := self._journal.run(run_id)) is not None]
        each = [self._journal.spent_below(leaf) for leaf in leaves]
        return Spent(sum(one.cost_usd or 0.0 for one in each), sum(one.tokens or 0 for one in each))

    def _again(self, run_id: str, step: Step, spec: Spec) -> Spec | None:
        """For an iteration in the place of one that was interrupted: it goes on with that one's session."""
        run = self._journal.run(run_id)
        if run is None or run.transcript is None or not os.path.exists(run.transcript):
            return None
        # Its record has no values of secret variables; all iterations of a step have one environment.
        before = replace(_spec_of.decode(self._journal.read.spec(run_id)), env=spec.env)
        if not has_restrictions(before, step.spec, spec):
            return None  # It had rights that this one is not to have.
        return step_prompts.resumed(before, run)

    async def _prepare(self, state: ChainState, index: int) -> None:
        """Have a step's worktree there before its next iteration, and see what its folder may bring along.

        A worktree is recorded before it is made, so that a later server does not make another.
        """
        step = state.chain.steps[index]
        try:
            if step.isolation is None:
                prepared = chain_worktrees.Prepared(await self._trees.ask(placed, step, None))
            else:
                tree = state.trees.get(index) or await self._find_tree(state, index)
                if tree is None:
                    return
                fresh = state.is_unused(index)
                prepared = await self._trees.prepare(_cookie(state, index), step, tree, fresh=fresh)
        except HocketError as error:
            prepared = chain_worktrees.Prepared(step.spec, error.message)
        if self._is_wanted(state, index):
            state.prepared[index] = prepared
            self._dismiss(state, index)
            await self._advance(state)

    async def _find_tree(self, state: ChainState, index: int) -> Worktree | None:
        """The worktree that a step had before, or a new one; None if it is not needed any more."""
        step, remarks = state.chain.steps[index], tuple[str, ...]()
        async with state.naming:
            tree = step.isolation.tree if step.isolation else None
            if tree is None or not await self._trees.exists(step, tree):
                peer = state.peer(index)
                start = Beginning(peer.base) if peer else await self._trees.beginning(step, state.trees_before(index))
                tree, remarks = self._name_tree(state, index, start.commit), start.remarks
            root = self._journal.live.get(state.id)
            if root is None or not self._is_wanted(state, index):
                return None
            told = [_event(root, "notice", {"kind": "worktree", "text": f"{step.agent}: {text}"}) for text in remarks]
            await self._journal.insist([_event(root, "worktree", told_of(tree, index, step.agent)), *told])
            state.trees[index] = tree
            return tree

    def _name_tree(self, state: ChainState, index: int, base: str) -> Worktree:
        number = state.chain.first + index + 1
        return self._trees.named(state.chain.steps[index], base, (state.number, state.id), number)

    # Finding out

    def _send(self, state: ChainState, step: int, errand: Coroutine[Any, Any, None]) -> None:
        """Have something found out about a step, while everything else goes on."""
        state.history = decide.busy(state.history, step)
        state.errands[step] = self._tasks.spawn(self._run_errand(state, step, errand))

    async def _run_errand(self, state: ChainState, step: int, errand: Coroutine[Any, Any, None]) -> None:
        try:
            await errand
        except Exception:
            log.exception(_STUMBLED, state.id)
            await asyncio.sleep(_pause(state))
            if self._is_wanted(state, step):  # Nothing else would start it again.
                await self._learned(state, step, None)

    def _dismiss(self, state: ChainState, step: int) -> None:
        state.errands.pop(step, None)
        state.history = decide.idle(state.history, step)

    def _is_wanted(self, state: ChainState, step: int) -> bool:
        """Whether what the task that asks has found out still matters."""
        return state.errands.get(step) is asyncio.current_task()

    async def _ask_gate(self, state: ChainState, ask: RunGate) -> None:
        """The user's own command, in the step's directory; its word is kept beside the iteration it judged."""
        step = state.chain.steps[ask.step]
        command = step.until or state.chain.until or "true"
        limit = state.chain.gate_timeout or gates.TIMEOUT
        begins = {"run": ask.run, "step": ask.step, "command": command}
        if not await self._tell(state, ask.step, "gate.started", begins):
            return
        verdict = await self._gates.run(ask.run, command, state.cwd(ask.step), step.spec.env, limit)
        if verdict is None:
            if self._is_wanted(state, ask.step):
                await self._learned(state, ask.step, None)
            return
        data = {"run": ask.run, "step": ask.step, "passed": verdict.passed, "command": command}
        data |= {"exit_code": verdict.code, "timed_out": verdict.timed_out, "output": verdict.output}
        data |= {"seconds": verdict.seconds}
        if await self._tell(state, ask.step, "gate", data):
            state.judged(ask.step, data)
            last = state.history[ask.step].last
            await self._learned(state, ask.step, last and replace(last, gate=verdict.passed))

    async def _measure(self, state: ChainState, ask: Measure) -> None:
        """Whether the last iteration changed anything, or said anything that was not said before."""
        seen = await self._look(state, ask.step)
        run = self._journal.run(ask.run)
        said = hash_of(run.result if run else None)
        is_news = said not in state.said.get(ask.step, ())
        before = state.evidence.get(ask.step)
        moved = before is None or directory_state.changed(before, seen)
        data = {"run": ask.run, "step": ask.step, "changed": moved or is_news, "files_changed": moved}
        data |= {"said": said, "said_before": not is_news, **seen._asdict()}
        if await self._tell(state, ask.step, "progress", data):
            state.measured(ask.step, data)
            last = state.history[ask.step].last
            await self._learned(state, ask.step, last and replace(last, progress=moved or is_news))

    async def _take_baseline(self, state: ChainState, step: int) -> None:
        """How things stand before the first iteration. It is kept with the event that tells of its start."""
        seen = await self._look(state, step)
        if self._is_wanted(state, step):
            state.measured(step, _baseline(step, seen))
            self._dismiss(state, step)
            await self._advance(state)

    async def _look(self, state: ChainState, step: int) -> directory_state.Evidence:
        cwd, git = state.cwd(step), self._trees.git(state.chain.steps[step])
        try:
            return await self._loop.run_in_executor(self._looks, directory_state.look, cwd, git)
        except Exception as error:  # noqa: BLE001 - no thread, no memory: work is not ended for want of evidence
            return directory_state.Evidence("", directory_state.UNREADABLE, f"{cwd} cannot be looked at: {error}")

    async def _tell(self, state: ChainState, step: int, kind: str, data: dict[str, Any]) -> bool:
        """Record a finding, unless it is obsolete; return whether it is still needed."""
        owner = self._journal.live.get([state.id, *state.owners(step)][-1])
        if owner is None or not self._is_wanted(state, step):
            return False
        await self._journal.insist([_event(owner, kind, data)])
        return self._is_wanted(state, step)

    async def _learned(self, state: ChainState, step: int, outcome: Outcome | None) -> None:
        """Go on with what is known now about the last iteration."""
        self._dismiss(state, step)
        if outcome is not None:
            state.history = decide.add(state.history, step, outcome)
        await self._advance(state)

    # Waiting

    async def _ask(self, state: ChainState, root: Run, step: int) -> None:
        """Ask the user what to do about a lost iteration. Other steps continue meanwhile."""
        question = state.question(step)
        state.asked.add(step)
        state.history = decide.busy(state.history, step)
        try:
            await self._journal.write([_event(root, "question", question)], durable=True)
        except HocketError:
            state.asked.discard(step)
            self._dismiss(state, step)
            raise

    async def _withdraw(self, state: ChainState, step: int) -> None:
        """Withdraw the question about a lost iteration."""
        root = self._journal.live.get(state.id)
        for question in root.open_questions if root is not None else ():
            if root is not None and state.step_asked_about(question["id"]) == step:
                answer = {"id": question["id"], "allow": False, "text": "its step was ended", "by": "hocket"}
                await self._journal.insist([_event(root, "answer", answer)])

    async def _rest(self, state: ChainState, root: Run, wait: Wait) -> None:
        """Nothing to do. Where only time has to pass, everybody is told until when."""
        if wait.until is None:
            return
        if state.is_still and root.parked_until != wait.until:
            await self._journal.write([_event(root, "parked", _parked(state, wait))])
        nap = min(max(0.01, wait.until - time.time()), LONGEST_NAP)
        if state.alarm is not None:
            state.alarm.cancel()
        state.alarm = self._loop.call_later(nap, lambda: self._tasks.spawn(self._advance(state)))

    # Ending

    async def _close_inner(self, state: ChainState) -> None:
        """Tell the ends of loops and groups that are over while the chain goes on."""
        ends = list(state.endings())
        if ends:
            await self._journal.write([_event(self._journal.live[end.run], "run.ended", end.data) for end in ends])
        for end in ends:
            state.forget_inner(end.run)

    async def _finish(self, state: ChainState, end: Finished) -> None:
        standings = await self._look_at_trees(state, tidy=end.status is Status.DONE)
        await self._journal.write(self._live.ends(state, end, standings))

    async def _look_at_trees(self, state: ChainState, *, tidy: bool) -> dict[int, Standing]:
        """What became of the worktrees. A chain that can be resumed keeps all of them."""
        standings: dict[int, Standing] = {}
        for index, tree in state.trees.items():
            step = state.chain.steps[index]
            try:
                standings[index] = await self._trees.look(step, tree, tidy=tidy or state.is_unused(index))
            except HocketError:  # Git is gone, and nothing is removed.
                standings[index] = Standing(tree.base, None, None, has_folder=True, branch=tree.branch)
        if tidy:
            await self._tidy_earlier(state)
        return standings

    async def _tidy_earlier(self, state: ChainState) -> None:
        """Those of the chain before, which were kept for this one."""
        for tree in (tree for members in (*state.chain.trees, state.chain.kept_trees) for tree in members):
            with suppress(HocketError):
                await self._trees.look(state.chain.steps[0], tree, tidy=True)

    def _arm(self, state: ChainState, root: Run) -> None:
        if state.chain.timeout is None or root.started_clock is None or state.deadline is not None:
            return
        if not clock.is_readable(root):
            # The machine was restarted: from now on, for this server and for those after it.
            self._tasks.spawn(self._count_anew(root))
        self._set_deadline(state, clock.left(root, state.chain.timeout))

    async def _count_anew(self, root: Run) -> None:
        await self._journal.insist([_event(root, "clock", clock.reading())])

    def _set_deadline(self, state: ChainState, delay: float) -> None:
        state.deadline = self._loop.call_later(delay, lambda: self._tasks.spawn(self._time_out(state)))

    async def _time_out(self, state: ChainState) -> None:
        try:
            await self._stops.request_below(state.id, Reason.TIMEOUT)
        except HocketError:
            self._set_deadline(state, RETRY_AFTER)  # It could not be recorded, so it has not happened.


def _event(run: Run, kind: str, data: dict[str, Any]) -> Event:
    return Event(0, time.time(), run.id, run.root, kind, data)


def _started(run: Run, batch: RunBatch) -> Run:
    """A run that has begun, at the latest with what comes into being now."""
    if run.status is not Status.STARTING:
        return run
    batch.events.append(_event(run, "run.started", clock.reading()))
    return apply(run, batch.events[-1])


def _inner_runs(state: ChainState, kind: Kind) -> dict[int, str]:
    return state.groups if kind is Kind.GROUP else state.loops


def _pause(state: ChainState) -> float:
    """Seconds until the next attempt after something failed that must not: each time twice as many."""
    state.stumbles += 1
    return float(min(RETRY_AFTER * 2.0 ** min(state.stumbles - 1, 10), LONGEST_NAP))


def _hush(state: ChainState) -> None:
    for timer in (state.deadline, state.alarm):
        if timer is not None:
            timer.cancel()


def _lacks_a_baseline(state: ChainState, step: int) -> bool:
    asked = state.chain.steps[step].loop and state.chain.steps[step].bounds.no_progress is not None
    return asked and not state.history[step].started and step not in state.evidence


def _lacks_a_place(state: ChainState, step: int) -> bool:
    wanted = state.chain.steps[step]
    return (wanted.isolation or wanted.approval) is not None and step not in state.prepared


def _cookie(state: ChainState, step: int) -> str:
    """What git carries while it makes a step's worktree."""
    return f"{state.id}-{step}"


def _baseline(step: int, seen: directory_state.Evidence) -> dict[str, Any]:
    return {"run": None, "step": step, "changed": None, "said": None, **seen._asdict()}


def _parked(state: ChainState, wait: Wait) -> dict[str, Any]:
    steps = decide.pausing(state.chain, state.history, time.time())
    names = ", ".join(dict.fromkeys(state.chain.steps[step].agent for step in steps))
    what = "the usage limit is reached" if wait.limited else "the service is overloaded or cannot be reached"
    return {
        "until": wait.until,
        "reason": Reason.RATE_LIMITED.value if wait.limited else "overloaded",
        "text": f"{names}: {what}",
    }


def _group_spec(state: ChainState, first: int) -> Spec:
    """What a group's run is created from: it starts nothing itself."""
    members = [state.chain.steps[step] for step in step_prompts.stage(state.chain, first)]
    name = ", ".join(f"{step.agent}:{step.iterations}" if step.loop else step.agent for step in members)
    return Spec(f"({name})", members[0].spec.provider, (), state.chain.cwd, state.chain.env)


def _loop_spec(state: ChainState, step: int) -> Spec:
    return replace(_capped(state.chain.steps[step]), cwd=state.cwd(step))


def _capped(step: Step, spec: Spec | None = None, spent: Spent = Spent()) -> Spec:  # noqa: B008 - a tuple
    """The spec of the run that stands for a whole step, with what the step may still spend."""
    usd, tokens = step.bounds.budget_usd, step.bounds.budget_tokens
    return replace(
        spec or step.spec,
        budget_usd=None if usd is None else max(0.0, usd - spent.usd),
        budget_tokens=None if tokens is None else max(0, tokens - spent.tokens),
    )
