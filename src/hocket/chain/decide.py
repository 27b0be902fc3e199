"""What happens next in a chain, as a function of what has happened so far.

Pure: no clock, no file, no process. The chain driver tells what became of each iteration (``Outcome``), asks
``decide``, and does what it says; after a crash the same history gives the same answer, so nothing is ever replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hocket.model import BoundChain, Reason, Run, Status, Step, stages

FIRST_PAUSE = 15.0
LONGEST_PAUSE = 600.0
"""Between attempts after an overloaded service or a broken connection: each time twice as long."""
MOST_ATTEMPTS = 8
"""Attempts in a row that may end so before it counts as a failure like any other: about half an hour."""
BLIND_PAUSE = 300.0
"""Until the next attempt after a usage limit without a known end; each time twice as long."""
LONGEST_BLIND_PAUSE = 3600.0
LONGEST_PARKING = 7 * 86400.0
"""However far away a usage limit's end is said to be: it is tried again after a week."""
MOST_LOST = 3
"""Times in a row that a lost iteration is tried again, where the chain asks for it."""

# --- History ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of one iteration. It is live until its status is one of the ended ones."""

    run: str
    status: Status
    reason: Reason | None = None
    exit_code: int | None = None
    marker: bool = False
    gate: bool | None = None
    """Whether the gate passed after this iteration; None while it has not been run."""
    progress: bool | None = None
    """Whether anything is different since the iteration before; None while it was not examined."""
    ended_at: float | None = None
    resets_at: float | None = None
    """When the usage limit that ended it is over, in wall time."""
    transient: bool = False
    """Whether it failed for a reason outside, which passes by itself."""
    again: bool | None = None
    """The answer to whether to run a lost one again; None while there is none."""

    @property
    def is_limited(self) -> bool:
        return self.reason is Reason.RATE_LIMITED

    @property
    def is_lost(self) -> bool:
        return self.status is Status.LOST


@dataclass(frozen=True, slots=True)
class StepHistory:
    """All that a decision needs to know of a step's past, however long that was."""

    started: int = 0
    """Runs that were begun."""
    unspent: int = 0
    """Those among them that count for no iteration: a usage limit, an overloaded service, or a crash ended them."""
    again: int = 0
    """Attempts in a row that ended so, up to now, for one and the same reason."""
    failing: int = 0
    """Iterations in a row that ended badly."""
    stale: int = 0
    """Iterations in a row after which nothing was different."""
    live: bool = False
    busy: bool = False
    """Its gate is being run, or its progress looked at."""
    last: Outcome | None = None
    """The last iteration that ended."""
    gate_failed: bool = False
    run: str | None = None
    """The iteration started last, so that news about it is not counted as another one."""

    @property
    def spent(self) -> int:
        return self.started - self.unspent


History = tuple[StepHistory, ...]


def outcome_of(run: Run, gate: bool | None = None, progress: bool | None = None) -> Outcome:
    """The part of a leaf's run that its chain cares about, with what was found out about it afterwards."""
    return Outcome(
        run.id,
        run.status,
        run.reason,
        run.exit_code,
        run.marker,
        gate,
        progress,
        run.ended_at,
        run.resets_at,
        run.transient,
    )


def no_history(chain: BoundChain) -> History:
    """The history of a chain that has just been asked for."""
    return (StepHistory(),) * len(chain.steps)


def add(history: History, step: int, outcome: Outcome) -> History:
    """The history after news of one iteration: that it began, that it ended, or what was found out about it."""
    return _changed(history, step, _with(history[step], outcome))


def busy(history: History, step: int) -> History:
    """The history while more is found out about the last iteration of a step."""
    return _changed(history, step, replace(history[step], busy=True))


def idle(history: History, step: int) -> History:
    """The history after that was given up."""
    return _changed(history, step, replace(history[step], busy=False))


def halted(history: History, step: int, reason: Reason) -> History:
    """The history of a step that was told to end while nothing of it was running: it takes no further part."""
    status = Status.STOPPED if reason is Reason.STOPPED else Status.FAILED
    past = history[step]
    last = past.last or Outcome("", status, reason)
    return _changed(history, step, replace(past, last=replace(last, status=status, reason=reason), again=0, busy=False))


def _changed(history: History, step: int, past: StepHistory) -> History:
    return (*history[:step], past, *history[step + 1 :])


def summarise(outcomes: Iterable[Iterable[Outcome]]) -> History:
    """The history told by every iteration of every step, in order."""
    return tuple(_summary(of_step) for of_step in outcomes)


def _summary(outcomes: Iterable[Outcome]) -> StepHistory:
    past = StepHistory()
    for outcome in outcomes:
        past = _with(past, outcome)
    return past


def _with(past: StepHistory, outcome: Outcome) -> StepHistory:
    past = replace(
        past,
        started=past.started + (outcome.run != past.run),
        live=not outcome.status.ended,
        busy=False,
        run=outcome.run,
        gate_failed=past.gate_failed or outcome.gate is False,
    )
    known = past.last if past.last is not None and past.last.run == outcome.run else None
    if known is not None:
        outcome = _not_forgetting(outcome, known)
    if outcome.status.ended and known is None:
        past = _ended(past, outcome)
    if outcome.progress is not None and (known is None or known.progress is None):
        past = replace(past, stale=0 if outcome.progress else past.stale + 1)
    return replace(past, last=outcome) if outcome.status.ended else past


def _not_forgetting(outcome: Outcome, known: Outcome) -> Outcome:
    """What was found out about an iteration stays known, also when its end is told once more."""
    return replace(
        outcome,
        gate=known.gate if outcome.gate is None else outcome.gate,
        progress=known.progress if outcome.progress is None else outcome.progress,
        again=known.again if outcome.again is None else outcome.again,
    )


def _ended(past: StepHistory, outcome: Outcome) -> StepHistory:
    """The counts after one more iteration has ended."""
    if not _is_free(outcome, past):
        failed = outcome.status is not Status.DONE
        return replace(past, again=0, failing=past.failing + 1 if failed else 0)
    same = past.last is not None and _why_again(past.last) == _why_again(outcome)
    return replace(past, unspent=past.unspent + 1, again=past.again + 1 if same else 1)


def _is_free(outcome: Outcome, past: StepHistory) -> bool:
    """Whether an iteration that ended so was none. Too many attempts in a row are no excuse any more."""
    why = _why_again(outcome)
    if why is None or why == "limit":
        return why is not None
    before = past.again if past.last is not None and _why_again(past.last) == why else 0
    return before < (MOST_LOST if why == "lost" else MOST_ATTEMPTS)


def _why_again(outcome: Outcome) -> str | None:
    if outcome.is_lost:
        return "lost"
    if outcome.marker:
        return None  # It had said that it was done before anything came in between.
    if outcome.is_limited:
        return "limit"
    return "transient" if outcome.transient and outcome.status is Status.FAILED else None


# --- Decisions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start this iteration of this step."""

    step: int
    iteration: int
    """From 1."""
    after: str | None = None
    """The run that it takes the place of: one that a limit, an overload or a crash ended."""


@dataclass(frozen=True, slots=True)
class RunGate:
    """Run the gate for the iteration that has just ended."""

    step: int
    run: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Find out whether the iteration that has just ended changed anything."""

    step: int
    run: str


@dataclass(frozen=True, slots=True)
class AskUser:
    """AskUser the user whether to run this iteration again: its outcome is unknown."""

    step: int
    run: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing to do: something is running, or it is too early."""

    until: float | None = None
    """When to ask again, in wall time, if nothing happens before."""
    limited: bool = False
    """Whether it is a usage limit, and nothing else, that is waited for."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The chain is over."""

    status: Status
    reason: Reason
    failed_step: int | None = None
    """From 0; None when every step is complete."""


Decision = Start | RunGate | Measure | AskUser | Pause | Finished


@dataclass(frozen=True, slots=True)
class _Complete:
    """This step is done, the next one may begin."""

    reason: Reason


_ORDINARY = frozenset({Reason.EXIT, Reason.SIGNAL, Reason.ERROR, Reason.RATE_LIMITED})
"""Failures that a loop goes on after: the agent ran and ended badly. Any other end is about us, the user or
the machine, and another iteration would only repeat it. A usage limit is among them for an agent that met it after
it had said the marker."""


def decide(chain: BoundChain, history: History, now: float = 0.0) -> Decision:
    """What to do now. Takes time for the number of steps, not for the number of iterations behind them.

    Members of a group go on side by side; when all are over, the chain goes on, or ends with the first that failed.
    """
    reason = Reason.SINGLE_RUN
    for members in stages(chain.steps):
        verdicts = [_judge(index, chain.steps[index], history[index], chain, now) for index in members]
        found = _next(verdicts)
        if found is not None:
            return found
        reason = next(verdict.reason for verdict in reversed(verdicts) if isinstance(verdict, _Complete))
    return Finished(Status.DONE, reason)


def pausing(chain: BoundChain, history: History, now: float) -> list[int]:
    """The steps that only wait for a time to come."""
    judged = ((index, _judge(index, step, history[index], chain, now)) for index, step in enumerate(chain.steps))
    return [index for index, verdict in judged if isinstance(verdict, Pause) and verdict.until is not None]


def _next(verdicts: Sequence[Decision | _Complete]) -> Decision | None:
    """What to do about a stage: what can be done, else wait, else end; None when it is complete."""
    for verdict in verdicts:
        if isinstance(verdict, Start | RunGate | Measure | AskUser):
            return verdict
    waits = [verdict for verdict in verdicts if isinstance(verdict, Pause)]
    if waits:
        times = [wait.until for wait in waits if wait.until is not None]
        return Pause(min(times, default=None), limited=all(wait.limited for wait in waits))
    return next((verdict for verdict in verdicts if isinstance(verdict, Finished)), None)


def _judge(index: int, step: Step, past: StepHistory, chain: BoundChain, now: float) -> Decision | _Complete:
    if past.live or past.busy:
        return Pause()
    last = past.last
    if last is None:
        return Start(index, 1)
    if last.status is Status.STOPPED:
        return Finished(Status.STOPPED, Reason.STOPPED, index)
    if past.again:
        return _judge_again(index, past, last, chain, now)
    if last.status is not Status.DONE and last.reason not in _ORDINARY:
        return Finished(Status.FAILED, last.reason or Reason.ERROR, index)
    gated = _gate_of(step, chain) is not None
    judge = _judge_loop if step.loop else _judge_single_run
    return judge(index, step, past, last, gated=gated)


def _gate_of(step: Step, chain: BoundChain) -> str | None:
    return step.until or chain.until


def _judge_again(index: int, past: StepHistory, last: Outcome, chain: BoundChain, now: float) -> Decision:
    """After an end that was not the agent's fault: once more, at the right time, and at no cost."""
    if last.is_lost and chain.on_lost != "retry" and not last.again:
        may_ask = chain.on_question == "ask" and last.again is None
        return AskUser(index, last.run) if may_ask else Finished(Status.FAILED, Reason.LOST, index)
    until = 0.0 if last.is_lost else _not_before(past.again, last, now)
    if now < until:
        return Pause(until, limited=last.is_limited)
    return Start(index, past.spent + 1, last.run)


def _not_before(attempts: int, last: Outcome, now: float) -> float:
    ended = last.ended_at or 0.0
    if now < ended and (not last.is_limited or last.resets_at is None):
        return 0.0  # The clock was set back since, so the rest of the pause is unknown.
    doubled = 2.0 ** min(attempts - 1, 10)
    pause = min(FIRST_PAUSE * doubled, LONGEST_PAUSE)
    if not last.is_limited:
        return ended + pause
    if last.resets_at is None or not last.resets_at > ended:  # also when it is no number at all
        return ended + min(BLIND_PAUSE * doubled, LONGEST_BLIND_PAUSE)
    # One whose end is always moments ahead would otherwise be asked again without a pause.
    soonest = ended + pause if attempts > 1 else ended
    return min(max(last.resets_at, soonest), ended + LONGEST_PARKING)


def _judge_single_run(index: int, step: Step, past: StepHistory, last: Outcome, *, gated: bool) -> Decision | _Complete:
    del step, past  # one iteration has no past beyond its last outcome
    if last.status is not Status.DONE:
        return Finished(Status.FAILED, last.reason or Reason.ERROR, index)
    if gated and last.gate is None:
        return RunGate(index, last.run)
    if gated and not last.gate:
        return Finished(Status.FAILED, Reason.GATE, index)
    return _Complete(Reason.SINGLE_RUN)


def _judge_loop(index: int, step: Step, past: StepHistory, last: Outcome, *, gated: bool) -> Decision | _Complete:
    if last.marker and gated and last.gate is None:
        return RunGate(index, last.run)
    if last.marker and (last.gate or not gated):
        return _Complete(Reason.MARKER)
    if past.spent >= step.iterations:
        return Finished(Status.FAILED, Reason.GATE if past.gate_failed else Reason.MAX_ITERATIONS, index)
    bounds = step.bounds
    if bounds.failures is not None and past.failing >= bounds.failures:
        return Finished(Status.FAILED, Reason.FAILURES, index)
    if bounds.no_progress is not None and last.progress is None:
        return Measure(index, last.run)
    if bounds.no_progress is not None and past.stale >= bounds.no_progress:
        return Finished(Status.FAILED, Reason.NO_PROGRESS, index)
    return Start(index, past.spent + 1)


# --- Reports ------------------------------------------------------------------------------------------------


def step_reports(
    chain: BoundChain, history: History, runs: Sequence[Sequence[str]], end: Finished | None = None
) -> list[dict[str, Any]]:
    """One entry per step for the chain's ``run.ended``; ``runs`` has the ids of each step's iterations.

    ``end`` is how the whole chain ended. A step that was under way when the chain was ended from outside
    (between two iterations, say) has no end of its own and takes that one.
    """
    reports = []
    for index, (step, past, ids) in enumerate(zip(chain.steps, history, runs, strict=True)):
        verdict = _judge(index, step, past, chain, 0.0)
        status, reason = _standing(verdict, past, end)
        reports.append(
            {
                "agent": step.agent,
                "status": status,
                "reason": reason,
                "iterations": _used(past, verdict),
                "max_iterations": step.iterations,
                "exit_code": past.last.exit_code if past.last else None,
                "runs": list(ids),
            }
        )
    return reports


def _used(past: StepHistory, verdict: Decision | _Complete) -> int:
    # A lost iteration that is not tried again was one.
    return past.spent + (past.again > 0 and isinstance(verdict, Finished))


def _standing(verdict: Decision | _Complete, past: StepHistory, end: Finished | None) -> tuple[str, str | None]:
    if not past.started:
        return "skipped", None
    if isinstance(verdict, _Complete):
        return Status.DONE.value, verdict.reason.value
    if isinstance(verdict, Finished):
        return verdict.status.value, verdict.reason.value
    if end is not None:
        return end.status.value, end.reason.value
    return Status.RUNNING.value, None
