"""Chains: their text, their marker, and what to do next.

Everything here is a pure function of its arguments. Finding agents, reading files and starting processes
belong elsewhere: this module only says what a text means (``parse``) and, given what has happened so far,
what has to happen now (``decide``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hocket.errors import ChainSyntaxError, UsageError
from hocket.model import BoundChain, Reason, Run, Status, Step

ARROW = "->"
MAX_ITERATIONS = 1_000_000
MAX_STEPS = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DIGITS = re.compile(r"[0-9]+")
_NUMBER_LIKE = re.compile(r"[-+]?[0-9]*\.?[0-9]*")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_AROUND_A_MARKER = " \t\r\n`*"


@dataclass(frozen=True, slots=True)
class StepText:
    """One step as it was written."""

    agent: str
    iterations: int
    loop: bool
    position: int
    """From 1, as people count."""


# --- Text ---------------------------------------------------------------------------------------------------


def parse(text: str) -> tuple[StepText, ...]:
    """The steps of a chain's text; every error names the step it is about."""
    if not text.strip():
        raise ChainSyntaxError("the chain is empty: step 1 is missing", 'write at least one agent, e.g. "planner"')
    pieces = text.split(ARROW, MAX_STEPS)
    if len(pieces) > MAX_STEPS:
        raise ChainSyntaxError(f"a chain has at most {MAX_STEPS} steps")
    return tuple(_step(piece.strip(), number, len(pieces)) for number, piece in enumerate(pieces, 1))


def render(steps: Iterable[StepText]) -> str:
    """The text that ``parse`` reads as these steps."""
    return f" {ARROW} ".join(step.agent + (f":{step.iterations}" if step.loop else "") for step in steps)


def is_path(text: str) -> bool:
    """Whether an agent is named by where it lies rather than by a name to look up."""
    return "/" in text or text.startswith((".", "~"))


def check_agent(text: str, where: str) -> str:
    """The text itself, if it can name an agent. ``where`` says in the error which place it came from."""
    if text.startswith("("):
        raise UsageError(f"{where}: groups are not supported yet: {text!r}")
    if _UNPRINTABLE.search(text):
        raise ChainSyntaxError(f"{where}: control characters cannot be part of an agent: {text!r}")
    if text.startswith("-"):
        raise ChainSyntaxError(f"{where}: an agent cannot begin with a dash: {text!r}")
    if not is_path(text) and not _NAME.fullmatch(text):
        raise ChainSyntaxError(f"{where}: {text!r} is not a name", _name_hint(text))
    return text


def _step(text: str, number: int, count: int) -> StepText:
    where = f"step {number}"
    if not text:
        raise ChainSyntaxError(f"{where} is empty: {_misplaced_arrow(number, count)}")
    if text.startswith("("):
        raise UsageError(f"{where}: groups are not supported yet: {text!r}")
    agent, iterations = _split_suffix(text, where)
    return StepText(check_agent(agent, where), iterations or 1, iterations is not None, number)


def _misplaced_arrow(number: int, count: int) -> str:
    if number == 1:
        return "the chain begins with an arrow"
    return "the chain ends with an arrow" if number == count else "two arrows follow each other"


def _split_suffix(text: str, where: str) -> tuple[str, int | None]:
    """The agent, and its number of iterations when it has one.

    A path may contain colons of its own, so there only something that looks like a number counts as a suffix;
    a name may not, so there everything after the colon does.
    """
    agent, colon, count = (part.strip() for part in text.rpartition(":"))
    if colon and _DIGITS.fullmatch(count):
        return _agent_before(agent, text, where), _iterations(count, text, where)
    if colon and (_NUMBER_LIKE.fullmatch(count) or not is_path(text)):
        raise ChainSyntaxError(
            f"{where}: {text!r} has no whole number of iterations after its colon", "write it as agent:3"
        )
    return text, None


def _agent_before(agent: str, text: str, where: str) -> str:
    if not agent:
        raise ChainSyntaxError(f"{where}: {text!r} has no agent before its colon")
    return agent


def _iterations(digits: str, text: str, where: str) -> int:
    significant = digits.lstrip("0")
    if not significant:
        raise ChainSyntaxError(f"{where}: {text!r} must iterate at least once")
    # The length goes first: turning a text of a million digits into a number is slow, and Python refuses it.
    if len(significant) > len(str(MAX_ITERATIONS)) or int(significant) > MAX_ITERATIONS:
        raise ChainSyntaxError(f"{where}: {text[:80]!r} iterates more than {MAX_ITERATIONS} times")
    return int(significant)


def _name_hint(text: str) -> str:
    if any(character.isspace() for character in text):
        return f'separate steps with "{ARROW}"'
    return f"a name has letters, digits, - and _; give any other program by its path, e.g. ./{text}"


# --- The marker ---------------------------------------------------------------------------------------------


def bare_marker(text: str) -> str:
    """A line without what people and models put around a marker."""
    return text.strip(_AROUND_A_MARKER)


def is_marker(line: str, marker: str) -> bool:
    """Whether a line says the marker and nothing else."""
    wanted = bare_marker(marker)
    return wanted != "" and bare_marker(line) == wanted


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


@dataclass(frozen=True, slots=True)
class StepHistory:
    """All that a decision needs to know of a step's past, however long that was."""

    started: int = 0
    live: bool = False
    last: Outcome | None = None
    """The last iteration that ended."""
    gate_failed: bool = False
    run: str | None = None
    """The iteration started last, so that news about it is not counted as another one."""


History = tuple[StepHistory, ...]


def outcome_of(run: Run, gate: bool | None = None) -> Outcome:
    """The part of a leaf's run that its chain cares about, with what the chain's gate said of it."""
    return Outcome(run.id, run.status, run.reason, run.exit_code, run.marker, gate)


def no_history(chain: BoundChain) -> History:
    """The history of a chain that has just been asked for."""
    return (StepHistory(),) * len(chain.steps)


def add(history: History, step: int, outcome: Outcome) -> History:
    """The history after news of one iteration: that it began, that it ended, or how its gate came out."""
    changed = _with(history[step], outcome)
    return (*history[:step], changed, *history[step + 1 :])


def summarise(outcomes: Iterable[Iterable[Outcome]]) -> History:
    """The history told by every iteration of every step, in order."""
    return tuple(_summary(of_step) for of_step in outcomes)


def _summary(outcomes: Iterable[Outcome]) -> StepHistory:
    past = StepHistory()
    for outcome in outcomes:
        past = _with(past, outcome)
    return past


def _with(past: StepHistory, outcome: Outcome) -> StepHistory:
    ended = outcome.status.ended
    return replace(
        past,
        started=past.started + (outcome.run != past.run),
        live=not ended,
        last=outcome if ended else past.last,
        gate_failed=past.gate_failed or outcome.gate is False,
        run=outcome.run,
    )


# --- Decisions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start this iteration of this step."""

    step: int
    iteration: int
    """From 1."""


@dataclass(frozen=True, slots=True)
class RunGate:
    """Run the gate for the iteration that has just ended."""

    step: int
    run: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Something is running; its end is the next thing to happen."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The chain is over."""

    status: Status
    reason: Reason
    failed_step: int | None = None
    """From 0; None when every step is complete."""


Decision = Start | RunGate | Wait | Finished


@dataclass(frozen=True, slots=True)
class _Complete:
    """This step is done, the next one may begin."""

    reason: Reason


_ORDINARY = frozenset({Reason.EXIT, Reason.SIGNAL, Reason.ERROR})
"""Failures that a loop goes on after: the agent ran and ended badly. Any other end is about us, the user or
the machine, and another iteration would only repeat it."""


def decide(chain: BoundChain, history: History) -> Decision:
    """What to do now. Takes time for the number of steps, not for the number of iterations behind them."""
    reason = Reason.SINGLE_RUN
    for index, (step, past) in enumerate(zip(chain.steps, history, strict=True)):
        verdict = _judge(index, step, past, gated=chain.until is not None)
        if not isinstance(verdict, _Complete):
            return verdict
        reason = verdict.reason
    return Finished(Status.DONE, reason)


def _judge(index: int, step: Step, past: StepHistory, *, gated: bool) -> Decision | _Complete:
    if past.live:
        return Wait()
    last = past.last
    if last is None:
        return Start(index, past.started + 1)
    if last.status is Status.STOPPED:
        return Finished(Status.STOPPED, Reason.STOPPED, index)
    if last.status is not Status.DONE and last.reason not in _ORDINARY:
        return Finished(Status.FAILED, last.reason or Reason.ERROR, index)
    judge = _judge_loop if step.loop else _judge_single_run
    return judge(index, step, past, last, gated=gated)


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
    if past.started < step.iterations:
        return Start(index, past.started + 1)
    return Finished(Status.FAILED, Reason.GATE if past.gate_failed else Reason.MAX_ITERATIONS, index)


# --- Reports ------------------------------------------------------------------------------------------------


def step_reports(
    chain: BoundChain, history: History, runs: Sequence[Sequence[str]], end: Finished | None = None
) -> list[dict[str, Any]]:
    """One entry per step for the chain's ``run.ended``; ``runs`` has the ids of each step's iterations.

    ``end`` is how the whole chain ended. A step that was under way when the chain was ended from outside
    (between two iterations, say) has no end of its own and takes that one.
    """
    gated = chain.until is not None
    reports = []
    for index, (step, past, ids) in enumerate(zip(chain.steps, history, runs, strict=True)):
        status, reason = _standing(_judge(index, step, past, gated=gated), past, end)
        reports.append(
            {
                "agent": step.agent,
                "status": status,
                "reason": reason,
                "iterations": past.started,
                "max_iterations": step.iterations,
                "exit_code": past.last.exit_code if past.last else None,
                "runs": list(ids),
            }
        )
    return reports


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
