"""The state of a live chain: the history of its steps, their results and costs, and its worktrees.

All of it is recorded in events, so that another server can restore it (``restore_state``). Nothing is started, measured
or written here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hocket.chain import decide
from hocket.chain.decide import Finished, History
from hocket.model import BoundChain, Kind, Reason, Run, Status, Step, Worktree, stage_number, stages
from hocket.store import Queries, RunUsage
from hocket.workflows.chain_worktrees import Prepared
from hocket.workflows.directory_state import Snapshot
from hocket.workflows.isolation import working_directory
from hocket.workflows.step_prompts import gate_feedback, stage_of, stage_result
from hocket.workflows.worktrees import WorktreeStatus

NO_WORKTREES: Mapping[int, WorktreeStatus] = MappingProxyType({})
_LOST = "lost-"
"""The prefix of the id of a question about a lost run."""
_NOT_ENDED = (Status.RUNNING.value, "skipped")


@dataclass(slots=True)
class _Usage:
    """The cost and tokens of several runs; None as long as no run has reported any."""

    cost_usd: float | None = None
    tokens: int | None = None
    cost_estimated: bool = False

    def add(self, more: Run | RunUsage | _Usage) -> None:
        if more.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0) + more.cost_usd
        if more.tokens is not None:
            self.tokens = (self.tokens or 0) + more.tokens
        self.cost_estimated |= more.cost_estimated

    def report(self) -> dict[str, Any]:
        mark = {"cost_estimated": True} if self.cost_estimated else {}
        return {"cost_usd": self.cost_usd, "tokens": self.tokens, **mark}


def _total(parts: Iterable[_Usage]) -> _Usage:
    total = _Usage()
    for part in parts:
        total.add(part)
    return total


class ChainState:
    """One live chain."""

    def __init__(self, run: Run, chain: BoundChain) -> None:
        self.id = run.id
        self.number = run.number
        self.chain = chain
        self.history: History = decide.no_history(chain)
        self.runs: list[list[str]] = [[] for _ in chain.steps]
        self.results: list[str | None] = [None for _ in chain.steps]
        self.usage = [_Usage() for _ in chain.steps]
        self.nested = _Usage()
        """The usage of runs that the chain's agents started."""
        self._counted: set[str] = set()
        """All runs that are in ``runs`` or ``nested``: an end may be reported twice, and counts once."""
        self.inner: dict[tuple[Kind, int], str] = {}
        """The live loops by their step, and the live groups by their first step."""
        self.stop_reasons: dict[int, Reason] = {}
        """Steps that were stopped while none of their runs was live."""
        self.feedback: dict[int, str] = {}
        """For the prompt of a step's next iteration: why its gate failed."""
        self.snapshots: dict[int, Snapshot] = {}
        """The last snapshot of a step's directory."""
        self.result_hashes: dict[int, set[str]] = {}
        """Hashes of the results of a step's iterations."""
        self.trees: dict[int, Worktree] = {}
        """The worktree of each step that has one."""
        self.base_lock = asyncio.Lock()
        """Held while the base of a new worktree is chosen, so that members of a group have the same."""
        self.prepared: dict[int, Prepared] = {}
        """The spec of a step's next iteration, once its directory was prepared and checked."""
        self.jobs: dict[int, asyncio.Task[None]] = {}
        """The running gate, snapshot or preparation of a step."""
        self.questions: set[int] = set()
        """Steps with an open question."""
        self.lock = asyncio.Lock()
        """Held while it is advanced."""
        self.timeout_timer: asyncio.TimerHandle | None = None
        self.pause_timer: asyncio.TimerHandle | None = None

    # Queries

    @property
    def is_idle(self) -> bool:
        """Whether no run and no job of it is active."""
        return not any(past.live or past.busy for past in self.history)

    def group_of(self, step: int) -> int | None:
        """The first step of the group that a step belongs to."""
        return None if self.chain.steps[step].group is None else stage_of(self.chain, step)[0]

    def owners(self, step: int) -> list[str]:
        """The live group and loop that a step is part of, in this order."""
        group = self.group_of(step)
        keys = [] if group is None else [(Kind.GROUP, group)]
        return [self.inner[key] for key in [*keys, (Kind.LOOP, step)] if key in self.inner]

    def cwd(self, step: int) -> str:
        """The working directory of a step."""
        return working_directory(self.chain.steps[step], self.trees.get(step))

    def trees_before(self, step: int) -> list[tuple[Worktree, ...]]:
        """The worktrees of the stages before a step's, including stages of the chain that this one resumes."""
        end = stage_of(self.chain, step)[0]
        return [*self.chain.trees, *(self._trees_in(one) for one in stages(self.chain.steps) if one.start < end)]

    def _trees_in(self, steps: range) -> tuple[Worktree, ...]:
        """The worktrees of a stage, including those of members that the resumed chain completed."""
        kept = self.chain.kept_trees if steps.start == 0 else ()
        return (*kept, *(self.trees[step] for step in steps if step in self.trees))

    def earlier_trees(self) -> Iterator[Worktree]:
        """The worktrees of the complete steps of the chains that this one resumes."""
        return (tree for members in (*self.chain.trees, self.chain.kept_trees) for tree in members)

    def all_trees(self) -> Iterator[Worktree]:
        """Every worktree that this chain may use: its own, and those of the chains that it resumes."""
        yield from self.trees.values()
        yield from self.earlier_trees()
        isolations = (step.isolation for step in self.chain.steps)
        yield from (one.tree for one in isolations if one is not None and one.tree is not None)

    def peer_tree(self, step: int) -> Worktree | None:
        """The worktree of another member of a step's group, of the same repository."""
        isolation = self.chain.steps[step].isolation
        known = self._trees_in(stage_of(self.chain, step))
        return next((tree for tree in known if isolation and tree.repository == isolation.repository), None)

    def is_unused(self, step: int) -> bool:
        """Whether no agent has worked in the worktree of a step yet."""
        isolation = self.chain.steps[step].isolation
        taken_over = isolation is not None and isolation.tree is not None and isolation.tree == self.trees.get(step)
        return not taken_over and not self.history[step].started

    def steps_of(self, runs: Iterable[str]) -> list[int]:
        """The steps that belong to any of these runs."""
        ids = set(runs)
        every = range(len(self.chain.steps))
        return list(every) if self.id in ids else [step for step in every if ids & set(self.owners(step))]

    # Updates

    def add_leaf(self, leaf: Run, gate: bool | None = None, progress: bool | None = None) -> None:
        """Add the start or the end of an iteration, or what was found out about it."""
        step = leaf.step
        if step is None:  # Started by an agent, not by the chain.
            return
        before = self.history[step].last
        self.history = decide.add(self.history, step, decide.outcome_of(leaf, gate, progress))
        self._counted.add(leaf.id)
        if self.runs[step][-1:] != [leaf.id]:
            self.runs[step].append(leaf.id)
        if leaf.ended and (before is None or before.run != leaf.id):
            self.results[step] = leaf.result
            self.usage[step].add(leaf)
            if not self.history[step].again:
                # The iteration had this feedback in its prompt. One that counts for nothing is repeated with it.
                self.feedback.pop(step, None)

    def add_nested(self, run: Run | RunUsage) -> None:
        """Add the end of a run somewhere below that the chain itself did not start."""
        if run.id not in self._counted:
            self._counted.add(run.id)
            self.nested.add(run)

    def add_gate(self, step: int, gate: Mapping[str, Any]) -> None:
        """Add the verdict of a gate on the last iteration, by its event."""
        if (text := gate_feedback(gate)) is not None:
            self.feedback[step] = text

    def add_snapshot(self, step: int, progress: Mapping[str, Any]) -> None:
        """Add a snapshot of a step's directory, by its event."""
        self.snapshots[step] = Snapshot(progress["state"], progress["kind"], progress["detail"])
        if progress.get("said"):
            self.result_hashes.setdefault(step, set()).add(progress["said"])

    def question(self, step: int) -> dict[str, Any]:
        """The question about the last iteration of a step, which was lost."""
        last = self.history[step].last
        run = last.run if last else ""
        what = f"step {stage_number(self.chain.steps, step)} ({self.chain.steps[step].agent}) was lost"
        text = f"{what}: its outcome is unknown, and it may have done part of its work. Run it again?"
        return {"id": _LOST + run, "kind": "lost", "text": text, "tool": None, "input": None, "step": step, "run": run}

    def step_of_question(self, question: str) -> int | None:
        """The step whose last iteration a question is about."""
        run = question.removeprefix(_LOST)
        steps = (step for step, past in enumerate(self.history) if past.last is not None and past.last.run == run)
        return next(steps, None) if question.startswith(_LOST) else None

    def add_answer(self, question: str, *, allow: bool) -> None:
        """Add the answer about a lost iteration, unless the iteration that repeats it has started already."""
        step = self.step_of_question(question)
        if step is None:
            return
        self.questions.discard(step)
        past = self.history[step]
        if past.last is not None and past.run == past.last.run:
            self.history = decide.add(self.history, step, replace(past.last, again=allow))

    # Ends

    def inner_ends(self, end: Finished | None = None) -> dict[str, dict[str, Any]]:
        """The ends of loops and groups, by run: of those that are complete, or with ``end`` of all."""
        if not self.inner:
            return {}
        reports = decide.step_reports(self.chain, self.history, [()] * len(self.history), end)
        ends: dict[str, dict[str, Any]] = {}
        for kind, step in sorted(self.inner, key=lambda key: key[0] is Kind.GROUP):
            members = range(step, step + 1) if kind is Kind.LOOP else stage_of(self.chain, step)
            settled = [known for member in members if (known := _settled(reports[member], end)) is not None]
            if len(settled) == len(members):
                worst = next((report for report in settled if report["status"] != Status.DONE), settled[-1])
                ends[self.inner[kind, step]] = self._inner_end(kind, worst, members)
        return ends

    def _inner_end(self, kind: Kind, report: Mapping[str, Any], steps: range) -> dict[str, Any]:
        data = {key: report[key] for key in ("status", "reason", "exit_code")}
        if kind is Kind.LOOP:
            data |= {"result": self.results[steps[0]], "iterations": report["iterations"]}
        else:
            data["result"] = stage_result(self.chain, steps, self.results)
        return data | _total(self.usage[step] for step in steps).report()

    def remove_inner(self, runs: Iterable[str]) -> None:
        """Remove loops and groups that have ended."""
        ended = set(runs)
        self.inner = {key: run for key, run in self.inner.items() if run not in ended}

    def report(self, end: Finished, worktrees: Mapping[int, WorktreeStatus] = NO_WORKTREES) -> dict[str, Any]:
        """The data of the chain's own end. ``worktrees`` has the final status of each worktree."""
        steps = [
            {
                **report,
                **self.usage[step].report(),
                **(worktree_report(self.trees.get(step), worktrees.get(step)) if bound.isolation is not None else {}),
            }
            for step, (bound, report) in enumerate(
                zip(self.chain.steps, decide.step_reports(self.chain, self.history, self.runs, end), strict=True)
            )
        ]
        codes = [report["exit_code"] for report in steps if report["status"] != "skipped"]
        started = [step for step, past in enumerate(self.history) if past.started]
        data = {
            "status": end.status,
            "reason": end.reason,
            "result": stage_result(self.chain, stage_of(self.chain, started[-1]), self.results) if started else None,
            "exit_code": codes[-1] if codes else None,
            **_total([*self.usage, self.nested]).report(),
            "steps": steps,
        }
        return data if end.failed_step is None else {**data, "failed_step": end.failed_step}


_WORKTREE_KEYS = ("worktree", "branch", "head", "repository", "commits", "uncommitted", "besides", "also_on")


def worktree_report(tree: Worktree | None, status: WorktreeStatus | None) -> dict[str, Any]:
    """What a report says about a step's worktree; nulls if there is none, or none any more."""
    if tree is None or status is None or status.is_gone:
        return dict.fromkeys(_WORKTREE_KEYS)
    return {
        "worktree": tree.path if status.has_folder else None,
        "branch": status.branch,
        "head": status.head,
        "repository": tree.repository,
        "commits": status.commits,
        "uncommitted": status.uncommitted,
        "besides": status.besides,
        "also_on": status.also_on,
    }


def worktree_event(tree: Worktree, step: int, agent: str) -> dict[str, Any]:
    """The data of the event that a step gets this worktree."""
    data = {"step": step, "agent": agent, "path": tree.path, "branch": tree.branch}
    return data | {"base": tree.base, "repository": tree.repository}


def worktree_of_event(data: Mapping[str, Any]) -> Worktree:
    return Worktree(data["repository"], data["path"], data["branch"], data["base"])


def _settled(report: Mapping[str, Any], end: Finished | None) -> Mapping[str, Any] | None:
    """The report of a step that has ended; one that has not ends as the whole chain does."""
    if report["status"] not in _NOT_ENDED:
        return report
    return None if end is None else {**report, "status": end.status, "reason": end.reason}


def result_hash(result: str | None) -> str:
    """For comparing the results of iterations: a repeated one is no progress."""
    return hashlib.sha256((result or "").strip().encode(errors="replace")).hexdigest()


class LiveChains:
    """The live chains of this server, by their own run and by the leaf that is running."""

    def __init__(self) -> None:
        self.by_run: dict[str, ChainState] = {}
        self.by_leaf: dict[str, ChainState] = {}

    def worktree_paths(self) -> set[str]:
        """Every worktree that a live chain may still use."""
        return {tree.path for state in self.by_run.values() for tree in state.all_trees()}

    def pending_beside(self, run: Run) -> tuple[list[Step], set[str]]:
        """The members of a run's group that are still to be started, and the runs that they will not be below."""
        state = self.by_leaf.get(run.id)
        if state is None or run.step is None or (first := state.group_of(run.step)) is None:
            return [], set()
        members = [step for step in stage_of(state.chain, first) if not state.history[step].started]
        return [state.chain.steps[step] for step in members], {run.id, *state.owners(run.step)[1:]}


# --- Restoring from events ----------------------------------------------------------------------------------


def restore_state(run: Run, chain: BoundChain, read: Queries) -> ChainState:
    """The state of a chain that an earlier server began. Of a long history only a part is in memory at a time."""
    state = ChainState(run, chain)
    pending = [run]
    while pending:
        pending += _restore_children(state, pending.pop(), read)
    for event in read.events_of_type(run.id, "answer"):
        state.add_answer(event.data["id"], allow=event.data["allow"])
    for question in run.open_questions:
        step = state.step_of_question(question["id"])
        if step is not None and step not in state.stop_reasons:
            state.questions.add(step)
            state.history = decide.busy(state.history, step)
    for step, reason in state.stop_reasons.items():
        # A stopped step whose last iteration was lost is over: it neither asks nor starts again.
        last = state.history[step].last
        if last is not None and last.is_lost and not state.history[step].live:
            state.history = decide.halted(state.history, step, reason)
    for used in read.ended_usage_of_tree(run.id) if run.root == run.id else ():
        state.add_nested(used)
    return state


def _restore_children(state: ChainState, owner: Run, read: Queries) -> list[Run]:
    """Add the runs of a chain, loop or group, and its findings about them; return the loops and groups among them."""
    passed: dict[str, bool] = {}
    progress: dict[str, bool] = {}
    last_gates: dict[int, Mapping[str, Any]] = {}  # Only the last, because their output may be long.
    for event in read.events_of_type(owner.id, "gate", "progress", "worktree"):
        data = event.data
        if event.type == "worktree":
            state.trees[data["step"]] = worktree_of_event(data)
        elif event.type == "gate":
            passed[data["run"]] = bool(data["passed"])
            last_gates[data["step"]] = data
        else:
            state.add_snapshot(data["step"], data)
            if data["run"] is not None:
                progress[data["run"]] = bool(data["changed"])
    inner: list[Run] = []
    for child in read.each_child(owner.id):
        if child.step is None:
            continue
        if child.has_process:
            state.add_leaf(child, passed.get(child.id), progress.get(child.id))
            if (gate := last_gates.get(child.step)) is not None and gate["run"] == child.id:
                state.add_gate(child.step, gate)
        elif child.kind in (Kind.LOOP, Kind.GROUP):
            inner.append(child)
            if not child.ended:
                state.inner[child.kind, child.step] = child.id
            if child.stop_reason is not None:
                steps = (child.step,) if child.kind is Kind.LOOP else stage_of(state.chain, child.step)
                state.stop_reasons |= dict.fromkeys(steps, child.stop_reason)
    return inner
