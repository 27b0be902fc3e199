"""One live chain as its driver knows it: what happened so far, and what each part of it came to.

All of it is told by events, so that another server can read it again (``recalled``). Nothing is started, measured or
written here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from hocket.chain import decide
from hocket.chain.decide import Finished, History
from hocket.model import BoundChain, Event, Kind, Reason, Run, Status, Worktree, stage_number, stages
from hocket.store import Queries, RunUsage
from hocket.workflows.chain_worktrees import Prepared
from hocket.workflows.directory_state import Evidence
from hocket.workflows.isolation import folder
from hocket.workflows.step_prompts import Complaint, complaint_of, stage, stage_result
from hocket.workflows.worktrees import Standing

NO_STANDINGS: Mapping[int, Standing] = MappingProxyType({})
_LOST = "lost-"
"""Before a run's id: the id of the question whether to begin it again."""
_UNDECIDED = (Status.RUNNING.value, "skipped")


class Ending(NamedTuple):
    """The end of an inner run: a loop's or a group's."""

    run: str
    data: dict[str, Any]


class ChainState:
    """One live chain."""

    def __init__(self, run: Run, chain: BoundChain) -> None:
        self.id = run.id
        self.number = run.number
        self.chain = chain
        self.history: History = decide.no_history(chain)
        self.runs: list[list[str]] = [[] for _ in chain.steps]
        self.results: list[str | None] = [None for _ in chain.steps]
        self.costs: list[float | None] = [None for _ in chain.steps]
        self.tokens: list[int | None] = [None for _ in chain.steps]
        self.estimated: set[int] = set()
        """Steps in whose costs an estimate is."""
        self.nested_estimated = False
        self.nested: tuple[float | None, int | None] = (None, None)
        """What runs have used that its agents started, in money and in tokens."""
        self._counted: set[str] = set()
        """Its own iterations and those others: news of an end may come twice, and counts once."""
        self.loops: dict[int, str] = {}
        """The live loop run of a step."""
        self.groups: dict[int, str] = {}
        """The live run of a group, by its first step."""
        self.told: dict[int, Reason] = {}
        """Steps that were told to end while nothing of them ran."""
        self.complaints: dict[int, Complaint] = {}
        self.evidence: dict[int, Evidence] = {}
        """How things stood when a step was last looked at."""
        self.said: dict[int, set[str]] = {}
        """Hashes of what a step's iterations came to."""
        self.trees: dict[int, Worktree] = {}
        """The worktree that a step was given."""
        self.naming = asyncio.Lock()
        """Held while the base of a new worktree is chosen, so that members of a group have the same."""
        self.prepared: dict[int, Prepared] = {}
        """What a step's next iteration is started with, where its worktree had to be seen to first."""
        self.errands: dict[int, asyncio.Task[None]] = {}
        """Who is finding out more about a step."""
        self.asked: set[int] = set()
        """Steps with an open question."""
        self.stumbles = 0
        """Unexpected failures in a row while moving it on."""
        self.turn = asyncio.Lock()
        self.deadline: asyncio.TimerHandle | None = None
        self.alarm: asyncio.TimerHandle | None = None

    # What is known

    @property
    def is_still(self) -> bool:
        """Whether nothing of it is at work."""
        return not any(past.live or past.busy for past in self.history)

    @property
    def result(self) -> str | None:
        """What the last stage that began has come to."""
        begun = [step for step, past in enumerate(self.history) if past.started]
        return stage_result(self.chain, stage(self.chain, begun[-1]), self.results) if begun else None

    @property
    def inner(self) -> set[str]:
        """Its live loops and groups."""
        return {*self.loops.values(), *self.groups.values()}

    def group_of(self, step: int) -> int | None:
        """The first step of the group that a step belongs to."""
        return None if self.chain.steps[step].group is None else stage(self.chain, step)[0]

    def owners(self, step: int) -> list[str]:
        """The live inner runs that a step is part of, the outermost first."""
        group = self.group_of(step)
        found = (self.groups.get(group) if group is not None else None, self.loops.get(step))
        return [run for run in found if run is not None]

    def cwd(self, step: int) -> str:
        """Where a step works."""
        tree = self.trees.get(step)
        return folder(self.chain.steps[step], tree) if tree else self.chain.steps[step].spec.cwd

    def trees_before(self, step: int) -> list[tuple[Worktree, ...]]:
        """The worktrees of the stages before a step's, also of those that another chain went through before."""
        end = stage(self.chain, step)[0]
        own = (self._trees_in(steps) for steps in stages(self.chain.steps) if steps.start < end)
        return [*self.chain.trees, *own]

    def _trees_in(self, steps: range) -> tuple[Worktree, ...]:
        """The worktrees of a stage, also those of its members that another chain completed."""
        kept = self.chain.kept_trees if steps.start == 0 else ()
        return (*kept, *(self.trees[step] for step in steps if step in self.trees))

    def all_trees(self) -> Iterator[Worktree]:
        """Every worktree that this chain has to do with: its own, and those of the chains that it goes on with."""
        yield from self.trees.values()
        yield from (tree for members in (*self.chain.trees, self.chain.kept_trees) for tree in members)
        isolations = (step.isolation for step in self.chain.steps)
        yield from (one.tree for one in isolations if one is not None and one.tree is not None)

    def peer(self, step: int) -> Worktree | None:
        """The worktree of another member of a step's group, of the same repository."""
        isolation = self.chain.steps[step].isolation
        known = self._trees_in(stage(self.chain, step))
        return next((tree for tree in known if isolation and tree.repository == isolation.repository), None)

    def is_unused(self, step: int) -> bool:
        """Whether no agent has worked in the worktree of a step yet."""
        isolation = self.chain.steps[step].isolation
        taken_over = isolation is not None and isolation.tree is not None and isolation.tree == self.trees.get(step)
        return not taken_over and not self.history[step].started

    def members_of(self, runs: Iterable[str]) -> list[int]:
        """The steps that belong to any of these runs."""
        asked = set(runs)
        every = range(len(self.chain.steps))
        return list(every) if self.id in asked else [step for step in every if asked & set(self.owners(step))]

    # News

    def note(self, leaf: Run, gate: bool | None = None, progress: bool | None = None) -> None:
        """One more fact about an iteration."""
        step = leaf.step
        if step is None:  # Started by an agent, not by the chain.
            return
        seen = self.history[step].last
        self.history = decide.add(self.history, step, decide.outcome_of(leaf, gate, progress))
        self._counted.add(leaf.id)
        if self.runs[step][-1:] != [leaf.id]:
            self.runs[step].append(leaf.id)
        if leaf.ended and (seen is None or seen.run != leaf.id):
            self._add_up(step, leaf)

    def after(self, leaf: Run) -> ChainState:
        """The state as it will be with the end of an iteration that is still to be told. This one stays as it is.

        Who its iterations are, which may be many, is the same for both.
        """
        other = copy(self)
        other.results, other.costs, other.tokens = [*self.results], [*self.costs], [*self.tokens]
        other.estimated, other.complaints = {*self.estimated}, dict(self.complaints)
        other.note(leaf)
        return other

    def _add_up(self, step: int, leaf: Run) -> None:
        self.results[step] = leaf.result
        self.costs[step] = _sum(self.costs[step], leaf.cost_usd)
        self.tokens[step] = _sum(self.tokens[step], leaf.tokens)
        if leaf.cost_estimated:
            self.estimated.add(step)
        if not self.history[step].again:
            # An iteration was made of what the gate before it had said. One that counts for nothing changes nothing.
            self.complaints.pop(step, None)

    def note_nested(self, run: Run | RunUsage) -> None:
        """A run somewhere below has ended that the chain itself did not start."""
        if run.id in self._counted:
            return
        self._counted.add(run.id)
        cost, tokens = self.nested
        self.nested = (_sum(cost, run.cost_usd), _sum(tokens, run.tokens))
        self.nested_estimated |= run.cost_estimated

    def judged(self, step: int, gate: Mapping[str, Any]) -> None:
        """What a gate said of the last iteration, by its event."""
        complaint = complaint_of(gate)
        if complaint is not None:
            self.complaints[step] = complaint

    def measured(self, step: int, progress: Mapping[str, Any]) -> None:
        """How things stand, by an event."""
        self.evidence[step] = Evidence(progress["state"], progress["kind"], progress["detail"])
        if progress.get("said"):
            self.said.setdefault(step, set()).add(progress["said"])

    def question(self, step: int) -> dict[str, Any]:
        """The question about the last iteration of a step, which was lost."""
        last = self.history[step].last
        run = last.run if last else ""
        what = f"step {stage_number(self.chain.steps, step)} ({self.chain.steps[step].agent}) was lost"
        text = f"{what}: its outcome is unknown, and it may have done part of its work. Run it again?"
        return {"id": _LOST + run, "kind": "lost", "text": text, "tool": None, "input": None, "step": step, "run": run}

    def step_asked_about(self, question: str) -> int | None:
        """The step whose last iteration a question is about."""
        run = question.removeprefix(_LOST)
        steps = (step for step, past in enumerate(self.history) if past.last is not None and past.last.run == run)
        return next(steps, None) if question.startswith(_LOST) else None

    def answered(self, question: str, *, allow: bool) -> None:
        """Note the answer about a lost iteration."""
        step = self.step_asked_about(question)
        last = self.history[step].last if step is not None else None
        if step is not None and last is not None:
            self.asked.discard(step)
            self.history = decide.add(self.history, step, replace(last, again=allow))

    # Ends

    def endings(self, end: Finished | None = None) -> Iterator[Ending]:
        """Loops and groups that are over: by themselves, or because all of it is."""
        if not (self.loops or self.groups):
            return
        reports = decide.step_reports(self.chain, self.history, [()] * len(self.history), end)
        for step, loop in self.loops.items():
            report = _settled(reports[step], end)
            if report is not None:
                yield Ending(loop, self._ended(report, (step,)))
        for first, group in self.groups.items():
            members = stage(self.chain, first)
            settled = [_settled(reports[step], end) for step in members]
            if all(settled):
                known = [report for report in settled if report is not None]
                worst = next((report for report in known if report["status"] != Status.DONE), known[-1])
                yield Ending(group, self._ended(worst, members))

    def _ended(self, report: Mapping[str, Any], steps: Iterable[int]) -> dict[str, Any]:
        steps = list(steps)
        data = {key: report[key] for key in ("status", "reason", "exit_code")}
        if len(steps) == 1 and self.chain.steps[steps[0]].loop:
            data |= {"result": self.results[steps[0]], "iterations": report["iterations"]}
        else:
            data["result"] = stage_result(self.chain, steps, self.results)
        used = {"cost_usd": _total(self.costs, steps), "tokens": _total(self.tokens, steps)}
        return data | used | _mark(self.estimated.intersection(steps))

    def forget_inner(self, run: str) -> None:
        """A loop or a group has ended."""
        self.loops = {step: loop for step, loop in self.loops.items() if loop != run}
        self.groups = {first: group for first, group in self.groups.items() if group != run}

    def report(self, end: Finished, standings: Mapping[int, Standing] = NO_STANDINGS) -> dict[str, Any]:
        """The data of the chain's own end. ``standings``: what became of the worktrees."""
        steps = decide.step_reports(self.chain, self.history, self.runs, end)
        for step, report in enumerate(steps):
            isolated = self.chain.steps[step].isolation is not None
            tree = _left(self.trees.get(step), standings.get(step)) if isolated else {}
            used = {"cost_usd": self.costs[step], "tokens": self.tokens[step], **_mark(step in self.estimated)}
            report |= {**used, **tree}
        codes = [report["exit_code"] for report in steps if report["status"] != "skipped"]
        every = range(len(steps))
        data = {
            "status": end.status,
            "reason": end.reason,
            "result": self.result,
            "exit_code": codes[-1] if codes else None,
            "cost_usd": _sum(_total(self.costs, every), self.nested[0]),
            "tokens": _sum(_total(self.tokens, every), self.nested[1]),
            "steps": steps,
            **_mark(self.estimated or self.nested_estimated),
        }
        return data if end.failed_step is None else {**data, "failed_step": end.failed_step}


def _left(tree: Worktree | None, standing: Standing | None) -> dict[str, Any]:
    """What a report tells of a step's worktree; nulls when there is none, or none any more."""
    if tree is None or standing is None or standing.is_gone:
        return dict.fromkeys(("worktree", "branch", "head", "repository", "commits", "uncommitted", "besides"))
    return {
        "worktree": tree.path if standing.has_folder else None,
        "branch": standing.branch,
        "head": standing.head,
        "repository": tree.repository,
        "commits": standing.commits,
        "uncommitted": standing.uncommitted,
        "besides": standing.besides,
    }


def told_of(tree: Worktree, step: int, agent: str) -> dict[str, Any]:
    """The data of the event that a step is given this worktree."""
    data = {"step": step, "agent": agent, "path": tree.path, "branch": tree.branch}
    return data | {"base": tree.base, "repository": tree.repository}


def tree_of(told: Mapping[str, Any]) -> Worktree:
    """The worktree that an event tells of."""
    return Worktree(told["repository"], told["path"], told["branch"], told["base"])


def _settled(report: Mapping[str, Any], end: Finished | None) -> Mapping[str, Any] | None:
    """How a step ended, if it did. One that nothing was started of ends as the whole does."""
    if report["status"] not in _UNDECIDED:
        return report
    return None if end is None else {**report, "status": end.status, "reason": end.reason}


def _sum(before: Any, more: Any) -> Any:
    return before if more is None else (before or 0) + more


def _mark(is_estimated: object) -> dict[str, Any]:
    """Beside a cost in which an estimate is."""
    return {"cost_estimated": True} if is_estimated else {}


def _total(parts: list[Any], steps: Iterable[int]) -> Any:
    total = None
    for step in steps:
        total = _sum(total, parts[step])
    return total


def hash_of(result: str | None) -> str:
    """What an iteration said, for comparing: words that were said before are no progress."""
    return hashlib.sha256((result or "").strip().encode(errors="replace")).hexdigest()


# --- Restoring from events ----------------------------------------------------------------------------------


class _Words:
    """What was found out about the iterations of one loop, group or chain. Of gates only the last in full."""

    def __init__(self, told: Iterable[Event]) -> None:
        self.passed: dict[str, bool] = {}
        self.changed: dict[str, bool] = {}
        self.last_gates: dict[int, Mapping[str, Any]] = {}
        self.looks: list[Mapping[str, Any]] = []
        self.answers: list[Mapping[str, Any]] = []
        self.trees: dict[int, Worktree] = {}
        for event in told:
            self._note(event.type, event.data)

    def _note(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "answer":
            self.answers.append(data)
        elif kind == "worktree":
            self.trees[data["step"]] = tree_of(data)
        elif kind == "gate":
            self.passed[data["run"]] = bool(data["passed"])
            self.last_gates[data["step"]] = data
        else:
            self.looks.append(data)
            if data["run"] is not None:
                self.changed[data["run"]] = bool(data["changed"])


def recalled(run: Run, chain: BoundChain, read: Queries) -> ChainState:
    """The state of a chain that another server began. However long that was, only a little of it is held at a time."""
    state = ChainState(run, chain)
    pending, answers = [run], []
    while pending:
        owner = pending.pop()
        words = _Words(read.events_of_type(owner.id, "gate", "progress", "answer", "worktree"))
        if owner is run:
            answers = words.answers
        state.trees |= words.trees
        for look in words.looks:
            state.measured(look["step"], look)
        for child in read.each_child(owner.id):
            if child.kind in (Kind.LOOP, Kind.GROUP):
                pending.append(child)
                _recall_inner(state, child)
            elif child.kind is Kind.LEAF and child.step is not None:
                _recall_leaf(state, child, words)
    _recall_questions(state, run, answers)
    _recall_ends(state)
    for used in read.ended_usage_of_tree(run.id) if run.root == run.id else ():
        state.note_nested(used)
    return state


def _recall_leaf(state: ChainState, leaf: Run, words: _Words) -> None:
    state.note(leaf, words.passed.get(leaf.id), words.changed.get(leaf.id))
    gate = words.last_gates.get(leaf.step) if leaf.step is not None else None
    if gate is not None and leaf.step is not None and gate["run"] == leaf.id:
        state.judged(leaf.step, gate)


def _recall_questions(state: ChainState, run: Run, answers: Iterable[Mapping[str, Any]]) -> None:
    """What was asked about lost iterations, and what was answered."""
    for answer in answers:
        state.answered(answer["id"], allow=answer["allow"])
    for question in run.open_questions:
        step = state.step_asked_about(question["id"])
        if step is not None and step not in state.told:
            state.asked.add(step)
            state.history = decide.busy(state.history, step)


def _recall_inner(state: ChainState, one: Run) -> None:
    if one.step is None:
        return
    if not one.ended:
        live = state.loops if one.kind is Kind.LOOP else state.groups
        live[one.step] = one.id
    if one.stop_reason is not None:
        steps = (one.step,) if one.kind is Kind.LOOP else stage(state.chain, one.step)
        state.told |= dict.fromkeys(steps, one.stop_reason)


def _recall_ends(state: ChainState) -> None:
    """A step that was told to end with a lost iteration as its last ended so: nothing is asked or begun any more."""
    for step, reason in state.told.items():
        last = state.history[step].last
        if last is not None and last.is_lost and not state.history[step].live:
            state.history = decide.halted(state.history, step, reason)
