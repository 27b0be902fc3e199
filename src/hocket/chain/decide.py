"""Decides what happens next in a chain, as a function of what has happened so far.

Pure: no clock, no file, no process. The chain driver adds the outcome of each iteration (``Outcome``), calls
``decide``, and carries out the decision; after a crash the same history gives the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hocket.model import BoundChain, Reason, Run, Status, Step, stages

FIRST_PAUSE = 15.0
LONGEST_PAUSE = 600.0
"""Between attempts after an overloaded service or a broken connection: doubled each time."""
MOST_ATTEMPTS = 8
"""Attempts in a row that may end like that before it counts as any other failure: about half an hour."""
UNKNOWN_RESET_PAUSE = 300.0
"""Until the next attempt after a usage limit without a known end; doubled each time."""
LONGEST_UNKNOWN_RESET_PAUSE = 3600.0
LONGEST_LIMIT_WAIT = 7 * 86400.0
"""The longest wait for the end of a usage limit, also if a later end is reported."""
MOST_LOST = 3
"""Times in a row that a lost iteration is tried again, if the chain is configured so."""

# --- History ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about one iteration. It is live until its status is one of the ended ones."""

    run: str
    status: Status
    reason: Reason | None = None
    exit_code: int | None = None
    marker: bool = False
    gate: bool | None = None
    """Whether the gate passed after this iteration; None while it has not been run."""
    progress: bool | None = None
    """Whether anything has changed since the iteration before; None while it was not examined."""
    ended_at: float | None = None
    resets_at: float | None = None
    """When the usage limit that ended it is over, in wall time."""
    transient: bool = False
    """Whether it failed for an external reason that passes by itself."""
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
    """All that a decision needs to know about a step's past; its size does not depend on the iterations."""

    started: int = 0
    """Runs that were started."""
    unspent: int = 0
    """Those among them that do not count: a usage limit, an overloaded service, or a crash ended them."""
    again: int = 0
    """The latest attempts in a row that ended like that for the same reason."""
    failing: int = 0
    """Failed iterations in a row."""
    stale: int = 0
    """Iterations in a row that changed nothing."""
    live: bool = False
    busy: bool = False
    """Its gate is running, or its progress is being measured."""
    last: Outcome | None = None
    """The last iteration that ended."""
    gate_failed: bool = False
    run: str | None = None
    """The iteration started last, so that further outcomes of it are not counted as another one."""

    @property
    def spent(self) -> int:
        return self.started - self.unspent


History = tuple[StepHistory, ...]


def outcome_of(run: Run, gate: bool | None = None, progress: bool | None = None) -> Outcome:
    """The part of a leaf's run that matters to its chain, with what was found out about it afterwards."""
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
    """The history of a new chain."""
    return (StepHistory(),) * len(chain.steps)


def add(history: History, step: int, outcome: Outcome) -> History:
    """The history after an outcome: that an iteration started or ended, or what was found out about it."""
    return _changed(history, step, _with(history[step], outcome))


def busy(history: History, step: int) -> History:
    """The history while more is found out about the last iteration of a step."""
    return _changed(history, step, replace(history[step], busy=True))


def idle(history: History, step: int) -> History:
    """The history after that was cancelled."""
    return _changed(history, step, replace(history[step], busy=False))


def halted(history: History, step: int, reason: Reason) -> History:
    """The history after a step was stopped while none of its runs was live: it does nothing more."""
    status = Status.STOPPED if reason is Reason.STOPPED else Status.FAILED
    past = history[step]
    last = past.last or Outcome("", status, reason)
    return _changed(history, step, replace(past, last=replace(last, status=status, reason=reason), again=0, busy=False))


def _changed(history: History, step: int, past: StepHistory) -> History:
    return (*history[:step], past, *history[step + 1 :])


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
    if known is not None:  # What was found out stays known when the end is reported again.
        outcome = replace(
            outcome,
            gate=known.gate if outcome.gate is None else outcome.gate,
            progress=known.progress if outcome.progress is None else outcome.progress,
            again=known.again if outcome.again is None else outcome.again,
        )
    if outcome.status.ended and known is None:
        past = _ended(past, outcome)
    if outcome.progress is not None and (known is None or known.progress is None):
        past = replace(past, stale=0 if outcome.progress else past.stale + 1)
    return replace(past, last=outcome) if outcome.status.ended else past


def _ended(past: StepHistory, outcome: Outcome) -> StepHistory:
    """The counts after the end of one more iteration."""
    if not _is_repeated(outcome, past):
        failed = outcome.status is not Status.DONE
        return replace(past, again=0, failing=past.failing + 1 if failed else 0)
    same = past.last is not None and _interruption(past.last) == _interruption(outcome)
    return replace(past, unspent=past.unspent + 1, again=past.again + 1 if same else 1)


def _is_repeated(outcome: Outcome, past: StepHistory) -> bool:
    """Whether an iteration does not count and is repeated. After too many attempts in a row it counts."""
    why = _interruption(outcome)
    if why is None or why == "limit":
        return why is not None
    before = past.again if past.last is not None and _interruption(past.last) == why else 0
    return before < (MOST_LOST if why == "lost" else MOST_ATTEMPTS)


def _interruption(outcome: Outcome) -> str | None:
    if outcome.is_lost:
        return "lost"
    if outcome.marker:
        return None  # It had reported that it was done before it was interrupted.
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
    """The run that it replaces: one that a limit, an overload or a crash ended."""


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
    """Ask the user whether to run this iteration again: its outcome is unknown."""

    step: int
    run: str


@dataclass(frozen=True, slots=True)
class Pause:
    """There is nothing to do now: something is running, or it is too early."""

    until: float | None = None
    """When to decide again, in wall time, if nothing happens before."""
    limited: bool = False
    """Whether only usage limits are waited for."""


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
    """This step is complete; the next one may start."""

    reason: Reason


_ORDINARY = frozenset({Reason.EXIT, Reason.SIGNAL, Reason.ERROR, Reason.RATE_LIMITED})
"""Failures after which a loop continues: the agent ran and failed. Other ends are due to Hocket, the user or the
machine, and another iteration would only repeat them. A usage limit is included for an agent that reached it after it
had printed the marker."""


def decide(chain: BoundChain, history: History, now: float = 0.0) -> Decision:
    """What to do now. Its time depends on the number of steps, not on that of past iterations.

    Members of a group advance in parallel; when all have ended, the chain continues, or ends with the first failure.
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
    """The steps that only wait for a certain time."""
    judged = ((index, _judge(index, step, history[index], chain, now)) for index, step in enumerate(chain.steps))
    return [index for index, verdict in judged if isinstance(verdict, Pause) and verdict.until is not None]


def _next(verdicts: Sequence[Decision | _Complete]) -> Decision | None:
    """The decision about a stage: an action, else a pause, else the end; None when it is complete."""
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
    gated = bool(step.until or chain.until)
    if step.loop:
        return _judge_loop(index, step, past, last, gated=gated)
    if last.status is not Status.DONE:
        return Finished(Status.FAILED, last.reason or Reason.ERROR, index)
    if gated and last.gate is None:
        return RunGate(index, last.run)
    if gated and not last.gate:
        return Finished(Status.FAILED, Reason.GATE, index)
    return _Complete(Reason.SINGLE_RUN)


def _judge_again(index: int, past: StepHistory, last: Outcome, chain: BoundChain, now: float) -> Decision:
    """After an interruption: repeat the iteration at the right time, without counting it."""
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
        return 0.0  # The clock was set back, so the rest of the pause is unknown.
    doubled = 2.0 ** min(attempts - 1, 10)
    pause = min(FIRST_PAUSE * doubled, LONGEST_PAUSE)
    if not last.is_limited:
        return ended + pause
    if last.resets_at is None or not last.resets_at > ended:  # also if it is NaN
        return ended + min(UNKNOWN_RESET_PAUSE * doubled, LONGEST_UNKNOWN_RESET_PAUSE)
    # Without this, a limit whose end is always moments ahead would cause attempts without a pause.
    soonest = ended + pause if attempts > 1 else ended
    return min(max(last.resets_at, soonest), ended + LONGEST_LIMIT_WAIT)


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

    ``end`` is how the whole chain ended. A step that was active when the chain was ended from outside (between two
    iterations, for example) has no end of its own and gets that one.
    """
    reports = []
    for index, (step, past, ids) in enumerate(zip(chain.steps, history, runs, strict=True)):
        verdict = _judge(index, step, past, chain, 0.0)
        status, reason = _step_end(verdict, past, end)
        reports.append(
            {
                "agent": step.agent,
                "status": status,
                "reason": reason,
                # A lost iteration that is not repeated counts.
                "iterations": past.spent + (past.again > 0 and isinstance(verdict, Finished)),
                "max_iterations": step.iterations,
                "exit_code": past.last.exit_code if past.last else None,
                "runs": list(ids),
            }
        )
    return reports


def _step_end(verdict: Decision | _Complete, past: StepHistory, end: Finished | None) -> tuple[str, str | None]:
    if not past.started:
        return "skipped", None
    if isinstance(verdict, _Complete):
        return Status.DONE.value, verdict.reason.value
    if isinstance(verdict, Finished):
        return verdict.status.value, verdict.reason.value
    if end is not None:
        return end.status.value, end.reason.value
    return Status.RUNNING.value, None
