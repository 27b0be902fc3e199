"""Events, the append-only record, and runs: ``Run = fold(events)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

_TOO_MUCH = 1e15
RESULT_LIMIT = 64 * 1024
"""Bytes of the final message that a result keeps, and of a line that an event keeps."""


class Event(Struct, frozen=True):
    """One thing that happened. ``seq`` orders everything in one store."""

    seq: int
    ts: float
    run: str
    root: str
    type: str
    data: Mapping[str, Any]


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
    PROCESS_GONE = "process_gone"
    EXIT = "exit"
    SIGNAL = "signal"
    ERROR = "error"
    LIMIT = "limit"
    STOPPED = "stopped"
    LOST = "lost"


class Kind(StrEnum):
    """A leaf owns a process, and so does a lead, whose teammates are below it; every other kind only owns children."""

    LEAF = "leaf"
    CHAIN = "chain"
    LOOP = "loop"
    GROUP = "group"
    LEAD = "lead"


class Origin(StrEnum):
    """Whether Hocket started the process of a run, or only reads the files of a session that something else started."""

    OWNED = "owned"
    OBSERVED = "observed"


class Run(Struct, frozen=True):
    """A run: the fold of its events."""

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
    origin: Origin = Origin.OWNED
    task: str | None = None
    """The task that it works on."""
    handoff: str | None = None
    """The id of its hand-off, if it is one."""
    step: int | None = None
    """Position in the chain that started it, from 0, every member of a group counted."""
    stage: int | None = None
    """The number of its step, from 1, with a group as one; None for a run of an earlier version."""
    iteration: int | None = None
    """The iteration of its loop, from 1."""
    pid: int | None = None
    session_id: str | None = None
    transcript: str | None = None
    started_at: float | None = None
    started_clock: float | None = None
    """Monotonic time of the start, so that time limits survive a restart of the server."""
    started_boot: str | None = None
    """The boot id that this monotonic time belongs to."""
    ended_at: float | None = None
    duration: float | None = None
    """Seconds from its start to its end, by a monotonic clock; None if it never started."""
    exit_code: int | None = None
    result: str | None = None
    cost_usd: float | None = None
    cost_estimated: bool = False
    """True if the agent reported no cost, and it was computed from its tokens."""
    tokens: int | None = None
    marker: bool = False
    stop_reason: Reason | None = None
    """Set once a stop was requested; the final reason may differ."""
    error: str | None = None
    steps: tuple[Mapping[str, Any], ...] = ()
    open_questions: tuple[Mapping[str, Any], ...] = ()
    """Open questions, each with ``id`` and ``asked_at``."""
    resumed_from: str | None = None
    source: str | None = None
    """Where its agent was found."""
    definition: str | None = None
    resets_at: float | None = None
    """When the usage limit that it reached is reset, in wall time."""
    transient: bool = False
    """True if it failed for a temporary external reason: an overloaded service, a broken connection."""
    parked_until: float | None = None
    """When it continues, in wall time."""
    parked_for: str | None = None
    """Why it waits: ``rate_limited`` or ``overloaded``."""
    budget_usd: float | None = None
    budget_tokens: int | None = None
    """What the run and its descendants may spend."""
    idle_timeout: float | None = None
    """Seconds that it may go without output."""
    registry: str | None = None
    """The registry file that shows it to other programs."""
    caller_session: str | None = None
    caller_pid: int | None = None
    """The session of a CLI that it was started from, and the process of that, as the caller says."""
    teammate: str | None = None
    """Of a teammate: its id in the team of the lead that it is below."""
    open_tasks: int = 0
    """Of a team's lead: how many shared tasks are unfinished."""
    waiting_since: float | None = None
    """When it began to wait, in wall time; of a run that does not wait, when it last did."""

    @property
    def has_process(self) -> bool:
        """True if it is one process; every other run only has runs below it."""
        return self.kind in (Kind.LEAF, Kind.LEAD)

    @property
    def is_counted(self) -> bool:
        """True if its usage adds to that of its tree: a lead reports that of its teammates with its own."""
        return self.has_process and self.teammate is None

    @property
    def ended(self) -> bool:
        return self.status.ended

    @property
    def is_observed(self) -> bool:
        """True if Hocket only reads it: it is not stopped, signalled, sent to, or counted for limits."""
        return self.origin is Origin.OBSERVED

    @property
    def needs_you(self) -> bool:
        return self.status is Status.WAITING and bool(self.open_questions)


_Change = Callable[[Run, Event], Run]


def _created(event: Event) -> Run:
    recorded = {name: event.data[name] for name in Run.__struct_fields__ if name in event.data and name != "steps"}
    own = {"id": event.run, "root": event.root, "created_at": event.ts, "kind": Kind(event.data["kind"])}
    own["origin"] = Origin(event.data.get("origin") or Origin.OWNED)
    return Run(**{"provider": None, "parent": None} | recorded | own)


def _started(run: Run, event: Event) -> Run:
    """Questions asked before the start was recorded stay open."""
    data = event.data
    status = Status.WAITING if run.open_questions else Status.RUNNING
    started = replace(run, status=status, started_at=event.ts, pid=data.get("pid"))
    return _clock(started, event)


def _clock(run: Run, event: Event) -> Run:
    """Set the start of its time limits: at its start, and again after a restart of the machine."""
    return replace(run, started_clock=event.data.get("clock"), started_boot=event.data.get("boot"))


def _session(run: Run, event: Event) -> Run:
    """Keep the first session unless it is replaced; the transcript may become known later.

    Of a run that is only observed the record of its process also tells the status.
    """
    data = event.data
    is_known = run.session_id is not None and data.get("instead_of") != run.session_id
    is_replaced = run.session_id is not None and not is_known
    return replace(
        run,
        session_id=run.session_id if is_known else data.get("session_id"),
        transcript=data.get("transcript") or (None if is_replaced else run.transcript),
        status=Status(data["status"]) if "status" in data else run.status,
    )


def _rate_limited(run: Run, event: Event) -> Run:
    """Record the reset of a limit that was reached; a warning may be days ahead of it."""
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
    return replace(run, **_used(event.data))


def _used(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reported usage; invalid values do not replace known ones."""
    cost, tokens = amount(data.get("cost_usd")), amount(data.get("tokens"))
    used = {} if cost is None else {"cost_usd": cost, "cost_estimated": bool(data.get("cost_estimated"))}
    return used if tokens is None else {**used, "tokens": int(tokens)}


def amount(value: object) -> float | None:
    """Return a non-negative finite number; None for any other value."""
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
        return run  # the question is closed already
    return replace(run, open_questions=left, status=run.status if left else _at_work(run.status))


def _turn_started(run: Run, event: Event) -> Run:
    return run if run.open_questions else replace(run, status=_at_work(run.status))


def _turn_ended(run: Run, event: Event) -> Run:
    """Take the result of a turn as that of the run; a run that accepts more messages waits for them."""
    data = event.data
    # The questions of the turn end with it; those of background agents stay open, and those of hooks, which may be
    # asked in the next turn before the end of this one is read.
    asked = tuple(one for one in run.open_questions if one.get("parent") or one.get("via") == "hook")
    status = Status.WAITING if asked or data.get("idle") else _at_work(run.status)
    return replace(run, result=data.get("result"), error=data.get("error"), status=status, open_questions=asked)


def _at_work(status: Status) -> Status:
    return Status.RUNNING if status is Status.WAITING else status


def _task_changed(run: Run, event: Event) -> Run:
    """Of a shared task of its team; a task that it works on has a state of its own."""
    count = amount(event.data.get("open"))
    return run if count is None else replace(run, open_tasks=int(count))


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
    "task.changed": _task_changed,
    "input": _input,
    "run.ended": _ended,
}
"""Events of other types do not change the run."""

CHANGING = frozenset({"run.created", *_CHANGES})


def apply(run: Run | None, event: Event) -> Run:
    """Return the run after one more event. An ended run does not change."""
    if run is None:
        if event.type != "run.created":
            raise ValueError(f"the first event of a run must be run.created; got {event.type}")
        return _created(event)
    change = _CHANGES.get(event.type)
    if change is None or run.ended:
        return run
    changed = change(run, event)
    if changed.status is Status.WAITING and run.status is not Status.WAITING:
        return replace(changed, waiting_since=event.ts)
    return changed


def fold(events: Iterable[Event]) -> Run:
    """Return the run of these events, which are in order."""
    run: Run | None = None
    for event in events:
        run = apply(run, event)
    if run is None:
        raise ValueError("a run needs at least one event")
    return run
