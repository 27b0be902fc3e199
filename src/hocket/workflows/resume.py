"""Resuming ended runs: an agent's session, or the rest of a chain.

A resumed run is made of what was bound for the ended one, so later edits change nothing. Everything that it could do
because of an approval has to be approved still.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from hocket.chain.parse import parse, render
from hocket.config import SESSION_PLACES, caller_environment
from hocket.config.settings import Limits
from hocket.errors import ChainSyntaxError, Conflict, NotFound, NotTrusted, UsageError
from hocket.model import BoundChain, Kind, Run, Spec, Status, Step, Worktree, stages
from hocket.providers import PROVIDERS
from hocket.providers.launching import check_total
from hocket.secret_files import reveal, secret_names
from hocket.sessions.journal import Journal
from hocket.sessions.limits import check_disk
from hocket.sessions.observed.discovery import find
from hocket.store import Queries
from hocket.trust.approvals import users_approvals
from hocket.trust.check import check_again, check_untrusted_servers
from hocket.trust.delegation import check_delegation
from hocket.workflows.bind import TAKES_MESSAGES, check_directory
from hocket.workflows.chain_state import worktree_of_event
from hocket.workflows.chain_worktrees import ChainWorktrees
from hocket.workflows.isolation import (
    has_restrictions,
    reapproved,
    spec_in_directory,
    with_current_servers,
    working_directory,
    worktrees_folder,
)
from hocket.workflows.request import ResumeRequest, StartRequest
from hocket.workflows.start import Assignment, Starter
from hocket.workflows.step_prompts import stage_result

ResultOf = Callable[[str], str | None]
"""The result of a run, by its id."""

_leaf_spec = msgspec.json.Decoder(Spec)
_chain_spec = msgspec.json.Decoder(BoundChain)


class Resumer:
    """Continues ended runs in new ones. One per server."""

    def __init__(
        self, home: Path, journal: Journal, starter: Starter, worktrees: ChainWorktrees, limits: Limits
    ) -> None:
        self._home = home
        self._journal = journal
        self._starter = starter
        self._worktrees = worktrees
        self._limits = limits

    async def resume(
        self, run: Run, request: ResumeRequest, key: str | None = None, assignment: Assignment | None = None
    ) -> Run:
        """Continue an ended run in a new one: its session, or the rest of a chain."""
        if request.env is None:
            request = msgspec.structs.replace(request, env=caller_environment())

        async def create() -> Run:
            check_disk(self._home, self._limits)
            async with self._worktrees.reuse:  # One at a time, so that no run is resumed twice at once.
                bound = await self._bind(run, request)
                bound = await self._starter.folders.run(bound.cwd, check_approvals, bound, str(self._home))
                if isinstance(bound, Spec):
                    await self._restore_worktree(bound)
                    check_directory(bound.cwd)
                return await self._starter.start_bound(bound, key, assignment=assignment)

        return await self._starter.once(key, create)

    async def _bind(self, run: Run, request: ResumeRequest) -> Spec | BoundChain:
        if run.teammate is not None:
            lead = self._journal.run(run.parent or "")
            raise Conflict(
                f"run {run.number} is a teammate, and a teammate cannot be resumed",
                f"resume its lead: hocket resume {lead.number}" if lead is not None else None,
            )
        if run.is_observed:
            return await self._bind_observed(run, request)
        return await self._journal.read_aside(partial(bind_resume, run=run, request=request))

    async def _bind_observed(self, run: Run, request: ResumeRequest) -> Spec:
        """What to start in order to continue a session that Hocket did not start: its agent, bound as for any start."""
        if request.start_at is not None:
            raise _no_steps(run)
        places = _leaf_spec.decode(self._journal.read.spec(run.id)).env
        await asyncio.to_thread(_check_no_process, run, places)
        _check_ended(run)
        others = {name: value for name, value in request.environment.items() if name not in SESSION_PLACES}
        start = StartRequest(cwd=run.cwd, env={**others, **places}, agent=run.agent, session=request.session)
        bound = await self._starter.bind(start, None)
        sessions = PROVIDERS[run.provider or ""].sessions
        if not isinstance(bound, Spec) or bound.provider != run.provider or sessions is None or run.session_id is None:
            raise Conflict(f"run {run.number} has no session that could be resumed: {run.agent!r} is no such agent now")
        resumed = sessions.resume(bound, run.session_id, request.prompt or "")
        return replace(resumed, resumed_from=run.id, session_tokens=run.tokens or 0)

    async def _restore_worktree(self, spec: Spec) -> None:
        """Check the worktree that a session works in, if it is in one; create it again if it was removed."""
        place = await self._journal.read_aside(partial(worktree_of_session, spec=spec))
        if place is None:
            return
        step, tree = await self._starter.folders.run(spec.cwd, _check_servers, place, spec, str(self._home))
        now = await self._starter.folders.run(spec.cwd, _spec_if_exists, step, tree)
        if now is None:
            # From its branch, or if that is removed as well, as it began.
            fresh = not await self._worktrees.exists(step, tree)
            cookie = f"restore-{os.path.basename(tree.path)}"
            now = (await self._worktrees.prepare(cookie, step, tree, fresh=fresh)).spec
        if not has_restrictions(spec, step.spec, now):
            raise NotTrusted(
                f"the settings in {tree.path}, or servers above it, are not those that its agent was started with",
                f"look at branch {tree.branch} of {tree.repository}; a new run starts with what is there now",
            )


def _spec_if_exists(step: Step, tree: Worktree) -> Spec | None:
    return spec_in_directory(step, tree) if os.path.lexists(working_directory(step, tree)) else None


def bind_resume(read: Queries, run: Run, request: ResumeRequest) -> Spec | BoundChain:
    """What to start in order to continue an ended run."""
    if run.kind is not Kind.CHAIN and request.start_at is not None:
        raise _no_steps(run)
    if run.kind is Kind.CHAIN:
        _check_ended(run)
        record = read.spec(run.id)
        chain = _chain_spec.decode(_with_secrets(record, request))
        sessions = _sessions(read, run)
        if _means_chain(run, chain, sessions, request):
            _check_not_resumed(read.last_resuming(run), run, request)
            rest = _rest_of(read, run, chain, request.start_at)
            first = replace(rest.steps[0], spec=_with_secret_notice(rest.steps[0].spec, record, request))
            return replace(rest, steps=(first, *rest.steps[1:]))
    return _resume_session(read, run, request)


def _no_steps(run: Run) -> UsageError:
    return UsageError(f"run {run.number} is not a chain and has no steps", "Leave out --from")


def _check_no_process(run: Run, env: Mapping[str, str]) -> None:
    """Raise if the session of an observed run has a process: two would work on the same files, each with its own
    history."""
    with suppress(NotFound):  # A session without any records is for its CLI to report.
        if (process := find(run.session_id or "", env).process) is not None:
            raise Conflict(
                f"the session of run {run.number} is open in process {process.pid}",
                "end it where it was started, or wait until it has ended",
            )


def check_approvals(bound: Spec | BoundChain, home: str) -> Spec | BoundChain:
    """The same, as it may be started now. Raise if an approval that it relied on does not hold any more."""
    if isinstance(bound, Spec):
        _check_spec(bound, home)
        return bound
    steps = tuple(reapproved(step, home) for step in bound.steps)
    for step in bound.steps:
        _check_spec(step.spec, home)
        _check_servers_above(step, home)
    return replace(bound, steps=steps)


def _check_spec(spec: Spec, home: str) -> None:
    if spec.approvals or spec.delegation:
        approvals = users_approvals(home, spec.env)
        for one in spec.approvals:
            check_directory(one.folder)
            check_again(one, approvals)
        check_delegation(spec.delegation, approvals)


def _check_servers_above(step: Step, home: str) -> None:
    """Raise if a trusted agent would find unapproved servers above its worktree."""
    if step.isolation is not None and step.isolation.untrusted_servers is not None:
        approvals = users_approvals(home, step.spec.env)
        check_untrusted_servers(step.agent, worktrees_folder(home), step.isolation.untrusted_servers, approvals)


def _with_secrets(record: bytes, request: ResumeRequest) -> bytes:
    """The record of an ended run with the caller's values of its secret variables."""
    given = {name: request.environment[name] for name in secret_names(record) & request.environment.keys()}
    check_total("the resumed run", (), given)
    return reveal(record, lambda name, _: given.get(name))


def _with_secret_notice(spec: Spec, record: bytes, request: ResumeRequest) -> Spec:
    """The spec with a notice about secret variables that the caller does not have."""
    missing = sorted(secret_names(record) - request.environment.keys())
    if not missing:
        return spec
    notice = f"started without {', '.join(missing)}: set in the run it resumes, and not where it was resumed"
    return replace(spec, notices=(*spec.notices, notice))


def _check_ended(run: Run) -> None:
    if not run.ended:
        raise Conflict(f"run {run.number} has not ended", f"hocket wait {run.number}")


def _check_not_resumed(last: Run | None, run: Run, request: ResumeRequest) -> None:
    """Raise if the run is being resumed, or was resumed before: then that run is the one to resume."""
    if last is None:
        return
    if not last.ended:
        raise Conflict(f"run {run.number} is already being resumed by run {last.number}", f"hocket wait {last.number}")
    if request.start_at is None:
        raise Conflict(
            f"run {run.number} was already resumed by run {last.number}, which is {last.status}",
            f"to repeat it from a step: hocket resume {run.number} --from STEP"
            if last.status is Status.DONE
            else f"to continue where that run ended: hocket resume {last.number}",
        )


# --- A session ----------------------------------------------------------------------------------------------


def _sessions(read: Queries, run: Run) -> list[Run]:
    return [one for one in read.below(run.id) if one.session_id is not None]


def _resume_session(read: Queries, run: Run, request: ResumeRequest) -> Spec:
    """Continue the session of a run, or of the only run below it that has one."""
    below = [] if run.has_process else _sessions(read, run)
    if len(below) > 1:
        raise Conflict(f"run {run.number} has {len(below)} sessions below it", f"name one of them: {_numbers(below)}")
    run = below[0] if below else run
    _check_ended(run)
    sessions = PROVIDERS[run.provider].sessions if run.has_process and run.provider else None
    if sessions is None or run.session_id is None:
        raise Conflict(f"run {run.number} has no session that could be resumed")
    record = read.spec(run.id)
    before = _with_secret_notice(_leaf_spec.decode(_with_secrets(record, request)), record, request)
    resumed = sessions.resume(before, run.session_id, request.prompt or "")
    if request.session and resumed.stdin not in TAKES_MESSAGES:
        raise Conflict(f"{run.agent} reads no messages, so its session cannot stay open", "resume it without --session")
    used = before.session_tokens + (run.tokens or 0)
    return replace(resumed, resumed_from=run.id, session=request.session, loop=False, timeout=None, session_tokens=used)


class StepWorktree(NamedTuple):
    """The worktree that an agent of a chain's step worked in."""

    step: Step
    tree: Worktree


def _check_servers(place: StepWorktree, before: Spec, home: str) -> StepWorktree:
    """The same with the servers above all worktrees as they are now; raise if they are not approved.

    A session that was started without any servers needs no approval.
    """
    step = place.step
    without = step.approval.without if step.approval is not None else None
    if without is not None and has_restrictions(before, step.spec, without):
        return place
    current = with_current_servers(step, home)
    _check_servers_above(step, home)
    return place._replace(step=current)


def worktree_of_session(read: Queries, spec: Spec) -> StepWorktree | None:
    """The worktree of a resumed session, whether it still exists or not; None if it never had one."""
    leaf = read.run(spec.resumed_from or "")
    while leaf is not None and leaf.parent is None and leaf.resumed_from is not None:
        leaf = read.run(leaf.resumed_from)  # It resumed a session itself.
    chain = read.run(leaf.parent or "") if leaf is not None else None
    while chain is not None and chain.kind is not Kind.CHAIN:
        chain = read.run(chain.parent or "")
    if chain is None:
        return None
    steps = _chain_spec.decode(read.spec(chain.id)).steps
    events = [event.data for event in read.events_of_type(chain.id, "worktree")]
    places = (StepWorktree(steps[data["step"]], worktree_of_event(data)) for data in events)
    return next((place for place in places if spec.cwd == working_directory(*place)), None)


def _numbers(runs: Sequence[Run]) -> str:
    return ", ".join(str(one.number) for one in runs)


# --- A chain ------------------------------------------------------------------------------------------------


def _means_chain(run: Run, chain: BoundChain, sessions: Sequence[Run], request: ResumeRequest) -> bool:
    """Whether a request to resume a chain means all of it, rather than the session of an agent in it."""
    is_chosen, is_done = request.start_at is not None, run.status is Status.DONE
    if request.is_message and (is_chosen or (not is_done and len(chain.steps) > 1)):
        named = f"; to continue one agent's session, name its run: {_numbers(sessions)}" if sessions else ""
        raise Conflict(
            f"run {run.number} is a chain, and its steps have their own prompts",
            f"without a prompt and --session it continues as it was{named}",
        )
    if is_chosen or request.is_message:
        return is_chosen
    # The user of a loop or a gate wants the work finished; resuming a single agent means its session.
    is_one_agent = len(chain.steps) == 1 and not (chain.steps[0].loop or chain.steps[0].until or chain.until)
    if is_one_agent and len(sessions) == 1:
        return False
    return not is_done or not sessions


def _rest_of(read: Queries, run: Run, chain: BoundChain, start_at: int | str | None) -> BoundChain:
    def result_of(run_id: str) -> str | None:
        leaf = read.run(run_id)
        return leaf.result if leaf else None

    def has_started(step: int) -> bool:
        runs = run.steps[step]["runs"] if step < len(run.steps) else []
        return any((leaf := read.run(one)) is not None and leaf.started_at is not None for one in runs)

    events = [event.data for event in read.events_of_type(run.id, "worktree")]
    trees = {data["step"]: worktree_of_event(data) for data in events if has_started(data["step"])}
    rest = remaining_chain(chain, run, start_at, result_of, trees)
    for cwd in dict.fromkeys([rest.cwd, *(step.spec.cwd for step in rest.steps)]):
        check_directory(cwd)
    return rest


def remaining_chain(
    chain: BoundChain,
    run: Run,
    start_at: int | str | None,
    result_of: ResultOf,
    trees: Mapping[int, Worktree] = MappingProxyType({}),
) -> BoundChain:
    """The chain that continues where ``run`` ended, or at the chosen step.

    Of a group the incomplete members continue; a chosen group starts as a whole.
    """
    results = tuple(_last_result(run, step, result_of) for step in range(len(chain.steps)))
    whole = list(stages(chain.steps))
    done = [_is_complete(run, steps) for steps in whole]
    begin = _first_incomplete(run, done) if start_at is None else _chosen_stage(chain, run, whole, start_at)
    before = [steps for steps, complete in zip(whole[:begin], done, strict=False) if complete]
    first = whole[begin][0]
    kept = [step for step in whole[begin] if start_at is None and _is_complete(run, (step,))]
    rest = [step for step in range(first, len(chain.steps)) if step not in kept]
    # Later steps begin anew, because they need the work of these.
    own = {step: trees[step] for step in whole[begin] if step in trees}
    return replace(
        chain,
        name=_name(chain, rest),
        steps=tuple(_with_worktree(chain.steps[step], own.get(step)) for step in rest),
        trees=(*chain.trees, *_earlier_trees(chain, before, trees, first)),
        kept_trees=(*(chain.kept_trees if first == 0 else ()), *(own[step] for step in kept if step in own)),
        previous=stage_result(chain, before[-1], results) if before else chain.previous,
        resumed_from=run.id,
        first=chain.first + len(chain.steps) - len(rest),
        kept=(*(chain.kept if first == 0 else ()), *((chain.steps[step].agent, results[step]) for step in kept)),
    )


def _earlier_trees(
    chain: BoundChain, before: Sequence[range], trees: Mapping[int, Worktree], first: int
) -> list[tuple[Worktree, ...]]:
    """The worktrees of complete stages by stage, with those of members that were complete even earlier."""
    kept = chain.kept_trees if first > 0 else ()
    found = [] if before and before[0].start == 0 else [kept]
    for steps in before:
        members = tuple(trees[step] for step in steps if step in trees)
        found.append((*(kept if steps.start == 0 else ()), *members))
    return [stage for stage in found if stage]


def _with_worktree(step: Step, tree: Worktree | None) -> Step:
    return step if step.isolation is None else replace(step, isolation=replace(step.isolation, tree=tree))


def _name(chain: BoundChain, rest: Sequence[int]) -> str:
    """The chain's own name; if that is its text, the part of it that is left."""
    try:
        written = parse(chain.name)
    except ChainSyntaxError:
        return chain.name
    is_text = [step.agent for step in written] == [step.agent for step in chain.steps]
    return render(written[step] for step in rest) if is_text else chain.name


def _is_complete(run: Run, steps: Sequence[int]) -> bool:
    return all(step < len(run.steps) and run.steps[step]["status"] == Status.DONE for step in steps)


def _first_incomplete(run: Run, done: Sequence[bool]) -> int:
    if run.status is Status.DONE or all(done):
        raise Conflict(
            f"run {run.number} is done: there is nothing left to resume",
            f"to repeat it from a step: hocket resume {run.number} --from STEP",
        )
    return done.index(False)


def _last_result(run: Run, step: int, result_of: ResultOf) -> str | None:
    runs = run.steps[step]["runs"] if step < len(run.steps) and _is_complete(run, (step,)) else []
    return result_of(runs[-1]) if runs else None


def _chosen_stage(chain: BoundChain, run: Run, whole: Sequence[range], start_at: int | str) -> int:
    """The position of the stage with this number, from 1, or with a step of this name."""
    agents = [[(chain.steps[step].agent, chain.steps[step].spec.agent) for step in steps] for steps in whole]
    texts = (", ".join(name for name, _ in members) for members in agents)
    texts = (f"({text})" if len(members) > 1 else text for text, members in zip(texts, agents, strict=True))
    listed = "its steps: " + ", ".join(f"{number} {text}" for number, text in enumerate(texts, 1))
    # A longer text is not the number of a step, and Python refuses to convert a very long one.
    if isinstance(start_at, int) or (start_at.isascii() and start_at.isdecimal() and len(start_at) < 10):
        if not 1 <= int(start_at) <= len(whole):
            raise UsageError(f"run {run.number} has no step {int(start_at)}", listed)
        return int(start_at) - 1
    found = [place for place, members in enumerate(agents) if any(start_at in names for names in members)]
    if not found:
        raise UsageError(f"run {run.number} has no step {start_at!r}", listed)
    if len(found) > 1:
        raise UsageError(f"run {run.number} has {len(found)} steps {start_at!r}; give a number", listed)
    return found[0]
