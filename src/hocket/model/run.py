"""Runs: ``Run = fold(events)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hocket.model.event import Event

_TOO_MUCH = 1e15
RESULT_LIMIT = 64 * 1024
"""How many bytes of an agent's last words its result keeps, and of one line its event."""


class Status(StrEnum):
    """The one status set, for every kind of run."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset({Status.DONE, Status.FAILED, Status.STOPPED, Status.LOST})


class Reason(StrEnum):
    """Why a run, or a step of a chain, ended as it did."""

    SINGLE_RUN = "single_run"
    MARKER = "marker"
    MAX_ITERATIONS = "max_iterations"
    GATE = "gate"
    BUDGET = "budget"
    TIMEOUT = "timeout"
    IDLE_TIMEOUT = "idle_timeout"
    FAILURES = "failures"
    NO_PROGRESS = "no_progress"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    NO_ANSWER = "no_answer"
    START_FAILED = "start_failed"
    EXIT = "exit"
    SIGNAL = "signal"
    ERROR = "error"
    LIMIT = "limit"
    STOPPED = "stopped"
    LOST = "lost"


class Kind(StrEnum):
    """A leaf owns a process; every other kind owns children."""

    LEAF = "leaf"
    CHAIN = "chain"
    LOOP = "loop"
    GROUP = "group"
    LEAD = "lead"


class Run(Struct, frozen=True):
    """What happened to one run so far: the fold of its own events."""

    id: str
    number: int
    kind: Kind
    agent: str
    provider: str | None
    parent: str | None
    root: str
    depth: int
    cwd: str
    created_at: float
    status: Status = Status.STARTING
    reason: Reason | None = None
    task: str | None = None
    """What it is done for."""
    handoff: str | None = None
    """The record of it among its task's hand-offs, where it is one."""
    step: int | None = None
    """Position in the chain that started it, from 0, every member of a group counted."""
    stage: int | None = None
    """The same as people count, from 1, a group as one; None of a run that an earlier version started."""
    iteration: int | None = None
    """Which pass of a loop it is, from 1."""
    pid: int | None = None
    session_id: str | None = None
    transcript: str | None = None
    started_at: float | None = None
    started_clock: float | None = None
    """Monotonic time of the start, so that time limits outlive a restart of the server."""
    started_boot: str | None = None
    """The start of the machine that this clock belongs to."""
    ended_at: float | None = None
    duration: float | None = None
    """Seconds from its start to its end, by a clock that nobody sets; None of one that never began."""
    exit_code: int | None = None
    result: str | None = None
    cost_usd: float | None = None
    cost_estimated: bool = False
    """Whether nobody said what it cost, and its tokens were taken at a price of ours."""
    tokens: int | None = None
    marker: bool = False
    stop_reason: Reason | None = None
    """Set once somebody asked for the end; the verdict may still be another one."""
    error: str | None = None
    steps: tuple[Mapping[str, Any], ...] = ()
    open_questions: tuple[Mapping[str, Any], ...] = ()
    """What it asked and nobody has answered, each with an ``id`` and when it was asked."""
    resumed_from: str | None = None
    source: str | None = None
    """Where its agent was found, and the file that describes it."""
    definition: str | None = None
    resets_at: float | None = None
    """When the usage limit that it met is over, in wall time."""
    transient: bool = False
    """Whether it failed for a reason outside that passes by itself: an overloaded service, a broken connection."""
    parked_until: float | None = None
    """When it goes on by itself, in wall time."""
    parked_for: str | None = None
    """What it waits for: ``rate_limited`` or ``overloaded``."""
    budget_usd: float | None = None
    budget_tokens: int | None = None
    """What it and everything below it may spend together."""
    idle_timeout: float | None = None
    """For how many seconds it may say nothing."""

    @property
    def ended(self) -> bool:
        return self.status.ended

    @property
    def needs_you(self) -> bool:
        return self.status is Status.WAITING and bool(self.open_questions)


_Change = Callable[[Run, Event], Run]


def _created(event: Event) -> Run:
    data = event.data
    return Run(
        id=event.run,
        number=data["number"],
        kind=Kind(data["kind"]),
        agent=data["agent"],
        provider=data.get("provider"),
        parent=data.get("parent"),
        root=event.root,
        depth=data["depth"],
        cwd=data["cwd"],
        created_at=event.ts,
        task=data.get("task"),
        handoff=data.get("handoff"),
        step=data.get("step"),
        stage=data.get("stage"),
        iteration=data.get("iteration"),
        resumed_from=data.get("resumed_from"),
        source=data.get("source"),
        definition=data.get("definition"),
        budget_usd=data.get("budget_usd"),
        budget_tokens=data.get("budget_tokens"),
        idle_timeout=data.get("idle_timeout"),
    )


def _started(run: Run, event: Event) -> Run:
    """What it asked before anybody had seen its process is open still."""
    data = event.data
    status = Status.WAITING if run.open_questions else Status.RUNNING
    started = replace(run, status=status, started_at=event.ts, pid=data.get("pid"))
    return _clock(started, event)


def _clock(run: Run, event: Event) -> Run:
    """Time counts from here on: at the start, and again after the machine was restarted."""
    return replace(run, started_clock=event.data.get("clock"), started_boot=event.data.get("boot"))


def _session(run: Run, event: Event) -> Run:
    """The session is captured once, unless another takes its place; where its transcript lies may be known later."""
    data = event.data
    is_known = run.session_id is not None and data.get("instead_of") != run.session_id
    return replace(
        run,
        session_id=run.session_id if is_known else data.get("session_id"),
        transcript=data.get("transcript") or run.transcript,
    )


def _rate_limited(run: Run, event: Event) -> Run:
    """Only a limit that is reached has an end to wait for; one that is near may lie days ahead."""
    resets_at = amount(event.data.get("resets_at"))
    is_reached = event.data.get("status", "rejected") == "rejected"
    return replace(run, resets_at=resets_at) if is_reached and resets_at is not None else run


def _parked(run: Run, event: Event) -> Run:
    data = event.data
    return replace(run, status=Status.WAITING, parked_until=data.get("until"), parked_for=data.get("reason"))


def _unparked(run: Run, event: Event) -> Run:
    return replace(run, status=_at_work(run.status), parked_until=None, parked_for=None)


def _marker(run: Run, event: Event) -> Run:
    return replace(run, marker=True)


def _usage(run: Run, event: Event) -> Run:
    data = event.data
    return replace(run, **_used(data))


def _used(data: Mapping[str, Any]) -> dict[str, Any]:
    """What was known stays known, whatever is said later that makes no sense."""
    cost, tokens = amount(data.get("cost_usd")), amount(data.get("tokens"))
    used = {} if cost is None else {"cost_usd": cost, "cost_estimated": bool(data.get("cost_estimated"))}
    return used if tokens is None else {**used, "tokens": int(tokens)}


def amount(value: object) -> float | None:
    """A number that can be added up; whatever else somebody reports is unknown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < _TOO_MUCH else None  # NaN is neither


def _question(run: Run, event: Event) -> Run:
    asked = {**event.data, "asked_at": event.ts}
    status = run.status if run.status is Status.STARTING else Status.WAITING
    return replace(run, status=status, open_questions=(*run.open_questions, asked))


def _answer(run: Run, event: Event) -> Run:
    left = tuple(asked for asked in run.open_questions if asked["id"] != event.data["id"])
    if len(left) == len(run.open_questions):
        return run  # It is no longer waited for.
    return replace(run, open_questions=left, status=run.status if left else _at_work(run.status))


def _turn_started(run: Run, event: Event) -> Run:
    return run if run.open_questions else replace(run, status=_at_work(run.status))


def _turn_ended(run: Run, event: Event) -> Run:
    """A turn's last words are the run's, until there are newer ones. Who may be told more waits for it."""
    data = event.data
    # Only an agent in the background still wants to know; what the turn itself asked went with it.
    asked = tuple(one for one in run.open_questions if one.get("parent"))
    status = Status.WAITING if asked or data.get("idle") else _at_work(run.status)
    return replace(run, result=data.get("result"), error=data.get("error"), status=status, open_questions=asked)


def _at_work(status: Status) -> Status:
    return Status.RUNNING if status is Status.WAITING else status


def _input(run: Run, event: Event) -> Run:
    if event.data.get("kind") == "stop" and run.stop_reason is None:
        return replace(run, stop_reason=Reason(event.data["reason"]))
    return run


def _ended(run: Run, event: Event) -> Run:
    data = event.data
    return replace(
        run,
        status=Status(data["status"]),
        reason=Reason(data["reason"]),
        ended_at=event.ts,
        duration=data.get("duration"),
        exit_code=data.get("exit_code"),
        result=data.get("result"),
        error=data.get("error"),
        transient=bool(data.get("transient")),
        parked_until=None,
        parked_for=None,
        steps=tuple(data.get("steps", ())),
        open_questions=(),
        **_used(data),
    )


_CHANGES: Mapping[str, _Change] = {
    "run.started": _started,
    "clock": _clock,
    "session": _session,
    "marker": _marker,
    "rate_limited": _rate_limited,
    "parked": _parked,
    "unparked": _unparked,
    "usage": _usage,
    "question": _question,
    "answer": _answer,
    "turn.started": _turn_started,
    "turn.ended": _turn_ended,
    "input": _input,
    "run.ended": _ended,
}
"""Events of any other type are said and kept, and change nothing about the run."""

CHANGING = frozenset({"run.created", *_CHANGES})


def apply(run: Run | None, event: Event) -> Run:
    """The run after one more event. An ended run changes no more, whatever arrives late."""
    if run is None:
        if event.type != "run.created":
            raise ValueError(f"a run begins with run.created, not {event.type}")
        return _created(event)
    change = _CHANGES.get(event.type)
    return change(run, event) if change and not run.ended else run


def fold(events: Iterable[Event]) -> Run:
    """The run that these events, in order, tell of."""
    run: Run | None = None
    for event in events:
        run = apply(run, event)
    if run is None:
        raise ValueError("no events, no run")
    return run
