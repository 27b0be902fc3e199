"""Resuming ended runs: an agent's session, or the rest of a chain.

A run that ended goes in, what to start comes out: one process, or a chain with the steps that are left. It is made of
what was bound then, so later edits change nothing; but what it could do because the user vouched for it
has to be vouched for still. Starting it is the engine's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from hocket.chain.parse import parse, render
from hocket.config import caller_environment
from hocket.errors import ChainSyntaxError, Conflict, NotTrusted, UsageError
from hocket.model import BoundChain, Kind, Run, Spec, Status, Step, Worktree, stages
from hocket.providers import PROVIDERS
from hocket.providers.limits import check_total
from hocket.secret_files import reveal, secret_names
from hocket.sessions.journal import Journal
from hocket.sessions.limits import Limits, check_disk
from hocket.store import Queries
from hocket.trust.approvals import users_approvals
from hocket.trust.check import check_again, check_untrusted_servers
from hocket.trust.delegation import check_leave
from hocket.workflows.bind import check_directory
from hocket.workflows.chain_state import tree_of
from hocket.workflows.chain_worktrees import Trees
from hocket.workflows.isolation import approved_anew, around_anew, folder, has_restrictions, place_of_worktrees, placed
from hocket.workflows.request import ResumeRequest
from hocket.workflows.start import Assignment, Starter
from hocket.workflows.step_prompts import stage_result

ResultOf = Callable[[str], str | None]
"""What a run, by its id, came to."""

_leaf_spec = msgspec.json.Decoder(Spec)
_chain_spec = msgspec.json.Decoder(BoundChain)


class Resumer:
    """Continues ended runs in new ones. One per server."""

    def __init__(self, home: Path, journal: Journal, starter: Starter, trees: Trees, limits: Limits) -> None:
        self._home = home
        self._journal = journal
        self._starter = starter
        self._trees = trees
        self._limits = limits

    async def resume(
        self, run: Run, request: ResumeRequest, key: str | None = None, assignment: Assignment | None = None
    ) -> Run:
        """Continue an ended run in a new one: its session, or the rest of a chain."""
        if request.env is None:
            request = msgspec.structs.replace(request, env=caller_environment())

        async def create() -> Run:
            check_disk(self._home, self._limits)
            async with self._trees.reuse:  # One at a time, so that no run is resumed twice at once.
                found = await self._journal.read_aside(partial(bound, run=run, request=request))
                found = await self._starter.run_in_folder(found.cwd, vouched_for, found, str(self._home))
                if isinstance(found, Spec):
                    await self._restore_directory(found)
                return await self._starter.start_bound(found, key, assignment=assignment)

        return await self._starter.once(key, create)

    async def _restore_directory(self, spec: Spec) -> None:
        """Have the directory of a session there: the worktree of a step may have been removed since."""
        home = await self._journal.read_aside(partial(home_of, spec=spec))
        if home is not None:
            home = await self._starter.run_in_folder(spec.cwd, home_now, home, spec, str(self._home))
        if home is not None and home.is_lost():
            prepared = await self._trees.restore(f"restore-{os.path.basename(home.tree.path)}", home.step, home.tree)
            check_home(home, spec, prepared.spec)
        elif home is not None:
            check_home(home, spec, await self._starter.run_in_folder(spec.cwd, placed, home.step, home.tree))
        check_directory(spec.cwd)


def bound(read: Queries, run: Run, request: ResumeRequest) -> Spec | BoundChain:
    """What to start so that the work of an ended run goes on."""
    if run.kind is not Kind.CHAIN and request.start_at is not None:
        raise UsageError(f"run {run.number} is not a chain and has no steps", "Leave out --from")
    if run.kind is Kind.CHAIN:
        _check_ended(run)
        record = read.spec(run.id)
        chain = _chain_spec.decode(_with_secrets(record, request))
        sessions = _sessions(read, run)
        if _is_about_the_chain(run, chain, sessions, request):
            _check_alone(read.last_resuming(run), run, request)
            left = _left_of(read, run, chain, request.start_at)
            first = replace(left.steps[0], spec=_told_what_is_missing(left.steps[0].spec, record, request))
            return replace(left, steps=(first, *left.steps[1:]))
    return _session_again(read, _with_a_session(read, run), request)


def vouched_for(bound: Spec | BoundChain, home: str) -> Spec | BoundChain:
    """The same, as it may be started now. Raise unless the user still vouches for all that it was given at first."""
    if isinstance(bound, Spec):
        _check_vouched(bound, home)
        return bound
    anew = tuple(approved_anew(step, home) for step in bound.steps)
    for step in bound.steps:
        _check_vouched(step.spec, home)
        _check_around(step, home)
    return replace(bound, steps=anew)


def _check_vouched(spec: Spec, home: str) -> None:
    if spec.vouched or spec.leave:
        approvals = users_approvals(home, spec.env)
        for one in spec.vouched:
            check_directory(one.folder)
            check_again(one, approvals)
        check_leave(spec.leave, approvals)


def _check_around(step: Step, home: str) -> None:
    """Raise if an agent that is trusted would find unapproved servers around its worktree."""
    if step.isolation is not None and step.isolation.strangers is not None:
        approvals = users_approvals(home, step.spec.env)
        check_untrusted_servers(step.agent, place_of_worktrees(home), step.isolation.strangers, approvals)


def _with_secrets(record: bytes, request: ResumeRequest) -> bytes:
    """The record of an ended run with the caller's values of its secret variables."""
    given = {name: request.environment[name] for name in secret_names(record) & request.environment.keys()}
    check_total("the resumed run", (), given)
    return reveal(record, lambda name, _: given.get(name))


def _told_what_is_missing(spec: Spec, record: bytes, request: ResumeRequest) -> Spec:
    missing = sorted(secret_names(record) - request.environment.keys())
    if not missing:
        return spec
    notice = f"started without {', '.join(missing)}: set in the run it resumes, and not where it was resumed"
    return replace(spec, notices=(*spec.notices, notice))


def _check_ended(run: Run) -> None:
    if not run.ended:
        raise Conflict(f"run {run.number} has not ended", f"hocket wait {run.number}")


def _check_alone(last: Run | None, run: Run, request: ResumeRequest) -> None:
    """Raise if the run is being resumed, or was resumed before: then that run is the one to resume."""
    if last is None:
        return
    if not last.ended:
        raise Conflict(f"run {run.number} is already being resumed by run {last.number}", f"hocket wait {last.number}")
    if request.start_at is None:
        raise Conflict(
            f"run {last.number} went on with run {run.number} and is {last.status}",
            f"hocket resume {run.number} --from STEP does it again from there"
            if last.status is Status.DONE
            else f"hocket resume {last.number} goes on where that one ended",
        )


def _sessions(read: Queries, run: Run) -> list[Run]:
    return [one for one in read.below(run.id) if one.session_id is not None]


# --- A session ----------------------------------------------------------------------------------------------


def _with_a_session(read: Queries, run: Run) -> Run:
    """The one run below a chain that has a session; raise if there are several."""
    below = [] if run.kind is Kind.LEAF else _sessions(read, run)
    if len(below) > 1:
        raise Conflict(f"run {run.number} has {len(below)} sessions below it", f"name one of them: {_numbers(below)}")
    return below[0] if below else run


def _session_again(read: Queries, run: Run, request: ResumeRequest) -> Spec:
    _check_ended(run)
    sessions = PROVIDERS[run.provider].sessions if run.kind is Kind.LEAF and run.provider else None
    if sessions is None or run.session_id is None:
        raise Conflict(f"run {run.number} has no session that could be resumed")
    record = read.spec(run.id)
    before = _told_what_is_missing(_leaf_spec.decode(_with_secrets(record, request)), record, request)
    again = sessions.resume(before, run.session_id, request.prompt or "")
    if request.session and again.stdin != "lines":
        raise Conflict(f"{run.agent} reads no messages, so its session cannot stay open", "resume it without --session")
    spent = before.session_tokens + (run.tokens or 0)
    return replace(again, resumed_from=run.id, session=request.session, loop=False, timeout=None, session_tokens=spent)


class Home(NamedTuple):
    """The worktree that an agent of a chain's step worked in."""

    step: Step
    tree: Worktree

    def is_lost(self) -> bool:
        return not os.path.lexists(folder(self.step, self.tree))


def home_now(home: Home, before: Spec, hockets: str) -> Home:
    """The same where the user vouches for the servers that are written around all worktrees by now.

    Raise where they do not, unless the session was started without any.
    """
    without = home.step.approval.without if home.step.approval is not None else None
    if without is not None and has_restrictions(before, home.step.spec, without):
        return home
    anew = around_anew(home.step, hockets)
    _check_around(home.step, hockets)
    return home._replace(step=anew)


def check_home(home: Home, before: Spec, now: Spec) -> None:
    """Raise unless a start in a worktree was restricted as one has to be now, with the settings that are in it."""
    step, tree = home
    if not has_restrictions(before, step.spec, now):
        raise NotTrusted(
            f"the settings in {tree.path}, or servers above it, are not those that its agent was started with",
            f"look at branch {tree.branch} of {tree.repository}; a new run starts with what is there now",
        )


def home_of(read: Queries, spec: Spec) -> Home | None:
    """The worktree of a session that goes on, whether it is there or not; None where it never was one."""
    leaf = read.run(spec.resumed_from or "")
    while leaf is not None and leaf.parent is None and leaf.resumed_from is not None:
        leaf = read.run(leaf.resumed_from)  # It went on with a session before.
    chain = read.run(leaf.parent or "") if leaf is not None else None
    while chain is not None and chain.kind is not Kind.CHAIN:
        chain = read.run(chain.parent or "")
    if chain is None:
        return None
    steps = _chain_spec.decode(read.spec(chain.id)).steps
    told = [event.data for event in read.events_of_type(chain.id, "worktree")]
    found = (Home(steps[data["step"]], tree_of(data)) for data in told)
    return next((home for home in found if spec.cwd == folder(home.step, home.tree)), None)


def _numbers(runs: Sequence[Run]) -> str:
    return ", ".join(str(one.number) for one in runs)


# --- A chain ------------------------------------------------------------------------------------------------


def _is_about_the_chain(run: Run, chain: BoundChain, sessions: Sequence[Run], request: ResumeRequest) -> bool:
    """Whether who goes on with a chain means all of it, and not the session of an agent in it."""
    is_chosen, is_done = request.start_at is not None, run.status is Status.DONE
    if request.is_message and (is_chosen or (not is_done and len(chain.steps) > 1)):
        named = f"; to go on with one agent's session, name its run: {_numbers(sessions)}" if sessions else ""
        raise Conflict(
            f"run {run.number} is a chain, and its steps have their own prompts",
            f"without a prompt and --session it goes on as it was{named}",
        )
    if is_chosen or request.is_message:
        return is_chosen
    if _is_one_agent(chain) and len(sessions) == 1:
        return False
    return not is_done or not sessions


def _is_one_agent(chain: BoundChain) -> bool:
    """Whether a chain is a single agent and nothing more: then resuming it means the session of that agent.

    A loop or a gate is more. Their user wants the work finished, not a word with the last one who tried.
    """
    return len(chain.steps) == 1 and not chain.steps[0].loop and not (chain.steps[0].until or chain.until)


def _left_of(read: Queries, run: Run, chain: BoundChain, wanted: int | str | None) -> BoundChain:
    def result_of(run_id: str) -> str | None:
        leaf = read.run(run_id)
        return leaf.result if leaf else None

    left = rest(chain, run, wanted, result_of, _trees(read, run))
    for cwd in dict.fromkeys([left.cwd, *(step.spec.cwd for step in left.steps)]):
        check_directory(cwd)
    return left


def _trees(read: Queries, run: Run) -> dict[int, Worktree]:
    """The worktrees of a chain in which an agent has worked."""
    told = (event.data for event in read.events_of_type(run.id, "worktree"))
    return {data["step"]: tree_of(data) for data in told if _has_begun(read, run, data["step"])}


def _has_begun(read: Queries, run: Run, step: int) -> bool:
    runs = run.steps[step]["runs"] if step < len(run.steps) else []
    return any((leaf := read.run(one)) is not None and leaf.started_at is not None for one in runs)


def rest(
    chain: BoundChain,
    run: Run,
    wanted: int | str | None,
    result_of: ResultOf,
    trees: Mapping[int, Worktree] = MappingProxyType({}),
) -> BoundChain:
    """The chain that continues where ``run`` ended, or at the chosen step.

    Of a group the incomplete members continue; a chosen group starts as a whole.
    """
    whole = list(stages(chain.steps))
    done = [_is_complete(run, steps) for steps in whole]
    begin = _first_incomplete(run, done) if wanted is None else _chosen(chain, run, whole, wanted)
    before = [steps for steps, complete in zip(whole[:begin], done, strict=False) if complete]
    first = whole[begin][0]
    kept = [step for step in whole[begin] if wanted is None and _is_complete(run, (step,))]
    left = [step for step in range(first, len(chain.steps)) if step not in kept]
    results = tuple((chain.steps[step].agent, _last_result(run, step, result_of)) for step in kept)
    # What comes later has to see what these will do, so it begins anew.
    own = {step: trees[step] for step in whole[begin] if step in trees}
    return replace(
        chain,
        name=_name(chain, left),
        steps=tuple(_in_its_tree(chain.steps[step], own.get(step)) for step in left),
        trees=(*chain.trees, *_trees_of(chain, before, trees, first)),
        kept_trees=(*(chain.kept_trees if first == 0 else ()), *(own[step] for step in kept if step in own)),
        previous=_result(chain, run, before[-1], result_of) if before else chain.previous,
        resumed_from=run.id,
        first=chain.first + len(chain.steps) - len(left),
        kept=(*(chain.kept if first == 0 else ()), *results),
    )


def _trees_of(
    chain: BoundChain, before: Sequence[range], trees: Mapping[int, Worktree], first: int
) -> Iterator[tuple[Worktree, ...]]:
    """The worktrees of the stages that went before, with those of members that were complete even earlier."""
    earlier = chain.kept_trees if first > 0 else ()
    if earlier and (not before or before[0].start != 0):
        yield earlier
    for steps in before:
        members = tuple(trees[step] for step in steps if step in trees)
        if found := (*(earlier if steps.start == 0 else ()), *members):
            yield found


def _in_its_tree(step: Step, tree: Worktree | None) -> Step:
    return step if step.isolation is None else replace(step, isolation=replace(step.isolation, tree=tree))


def _name(chain: BoundChain, left: Sequence[int]) -> str:
    """The chain's own name; where it goes by its text, the part of it that is left."""
    try:
        written = parse(chain.name)
    except ChainSyntaxError:
        return chain.name
    is_text = [step.agent for step in written] == [step.agent for step in chain.steps]
    return render(written[step] for step in left) if is_text else chain.name


def _is_complete(run: Run, steps: Sequence[int]) -> bool:
    return all(step < len(run.steps) and run.steps[step]["status"] == Status.DONE for step in steps)


def _first_incomplete(run: Run, done: Sequence[bool]) -> int:
    if run.status is Status.DONE or all(done):
        raise Conflict(
            f"run {run.number} is done: nothing is left to go on with",
            f"hocket resume {run.number} --from STEP does it again from there",
        )
    return done.index(False)


def _result(chain: BoundChain, run: Run, steps: Sequence[int], result_of: ResultOf) -> str | None:
    """What a stage came to: each step's last iteration tells it."""
    results: list[str | None] = [None for _ in chain.steps]
    for step in steps:
        results[step] = _last_result(run, step, result_of)
    return stage_result(chain, steps, results)


def _last_result(run: Run, step: int, result_of: ResultOf) -> str | None:
    runs = run.steps[step]["runs"]
    return result_of(runs[-1]) if runs else None


def _chosen(chain: BoundChain, run: Run, whole: Sequence[range], wanted: int | str) -> int:
    number = _number(wanted)
    if number is not None:
        if not 1 <= number <= len(whole):
            raise UsageError(f"run {run.number} has no step {number}", _listed(chain, whole))
        return number - 1
    found = [place for place, steps in enumerate(whole) if any(_is_called(chain, step, wanted) for step in steps)]
    if not found:
        raise UsageError(f"run {run.number} has no step {wanted!r}", _listed(chain, whole))
    if len(found) > 1:
        raise UsageError(f"run {run.number} has {len(found)} steps {wanted!r}; give a number", _listed(chain, whole))
    return found[0]


def _number(wanted: int | str) -> int | None:
    if isinstance(wanted, int):
        return wanted
    # Longer ones are no number of a step, and very long ones are not even a number to Python.
    return int(wanted) if wanted.isascii() and wanted.isdecimal() and len(wanted) < 10 else None


def _is_called(chain: BoundChain, step: int, wanted: int | str) -> bool:
    return wanted in (chain.steps[step].agent, chain.steps[step].spec.agent)


def _listed(chain: BoundChain, whole: Sequence[range]) -> str:
    named = (", ".join(chain.steps[step].agent for step in steps) for steps in whole)
    texts = (f"({name})" if len(steps) > 1 else name for name, steps in zip(named, whole, strict=True))
    return "its steps: " + ", ".join(f"{number} {text}" for number, text in enumerate(texts, 1))
