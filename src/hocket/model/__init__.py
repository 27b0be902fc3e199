"""The nouns: what can run, what was asked for, what happened. ``Run = fold(events)``.

Frozen values and pure functions. Nothing here reads a file, a clock or the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

DEFAULT_MARKER = "FORKHESTRA_COMPLETE"
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


RUN_DIRECTORY = "\0run"
SESSION = "\0session"
"""Stand-ins in a spec's arguments for what each run has of its own: its directory, with "/" and the name of one of the
spec's files after it, and its session. No argument of anybody's can contain a NUL, so nothing is mistaken for one."""


@dataclass(frozen=True, slots=True)
class Definition:
    """An agent that a file describes, as it was read: later edits change no history."""

    name: str
    """Its real name, which need not be that of its file."""
    fields: Mapping[str, Any]
    """What its head says and the CLI understands, with its body as ``prompt``."""
    path: str
    allowed_agents: tuple[str, ...] | None = None
    """The only agents that it may start; None for any."""
    allowed_servers: tuple[str, ...] | None = None
    """The only MCP servers that it may have; None for whatever its CLI finds."""


@dataclass(frozen=True, slots=True)
class Vouched:
    """Something of a project's that an agent has only because the user approved it, or vouches for the folder."""

    what: str
    """Who asks for it."""
    folder: str
    wishes: tuple[str, ...] = ()
    replaced: str | None = None
    """What of the user's own it takes the place of."""
    file: str | None = None
    """The definition that has to be approved; without one it is the folder."""
    sha256: str | None = None
    """Of the definition as it was approved."""
    strangers: tuple[str, ...] | None = None
    """Where all that the folder brings along counts: servers around it that were kept off."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The user's leave for one agent to start another, without which this one would not have been started like that."""

    caller: tuple[str, str | None]
    target: tuple[str, str | None]
    """Each by the name and the file that the leave is for."""
    refusal: str
    """What is said without it."""
    hint: str


@dataclass(frozen=True, slots=True)
class Agent:
    """What can run, and where its definition came from."""

    name: str
    provider: str
    path: str
    """The program that is started."""
    source: str
    args: tuple[str, ...] = ()
    default_prompt: str | None = None
    default_prompt_file: str | None = None
    prompt_via: str = "arg"
    definition: Definition | None = None
    cwd: str | None = None
    """The project that the definition belongs to; without one it works where the caller is."""
    trusted: bool = False
    """Whether the folder it works in may bring its own settings, hooks, servers, skills and texts."""
    model: str | None = None
    permission_mode: str | None = None
    allowed_tools: str | None = None
    alias: str | None = None
    """The configuration file that gives it this name, if one does."""
    alias_project: str | None = None
    """The folder whose own configuration has the alias; None where it is the user's, or there is none."""
    strangers: tuple[str, ...] = ()
    """Servers that its CLI would find around a trusted folder and that nobody trusts."""
    changed: str | None = None
    """The folder it works in, or one above, that was trusted until something in it changed."""
    left_off: tuple[str, ...] = ()
    """What there is in a folder that is not trusted, and that it does without."""
    vouched: tuple[Vouched, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """One process to start, with nothing left to look up. Stored inside its run, so later edits change no history."""

    agent: str
    provider: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    prompt: str | None = None
    stdin: str = "empty"
    """``empty``, ``file`` (the prompt, then the end) or ``lines`` (input stays open)."""
    loop: bool = False
    marker: str = DEFAULT_MARKER
    timeout: float | None = None
    max_output: int = 2 * 1024**3
    stop_grace: float = 5.0
    files: Mapping[str, str] = field(default_factory=dict)
    """What is written into the run's directory before it starts, by name."""
    session: bool = False
    """Whether its input stays open after its first turn."""
    on_question: str = "deny"
    """``deny``, ``ask`` (wait for an answer) or ``fail`` (end, because nobody can answer)."""
    served: bool = False
    """Whether it calls our own tools over its output and input; these stay open as long as it is at work."""
    resumed_from: str | None = None
    """The run whose session this one goes on with."""
    session_tokens: int = 0
    """Tokens that its session had used before this run, where the session is resumed."""
    source: str | None = None
    """Where its agent was found: ``project-local``, ``global``, ``PATH`` and so on."""
    definition: str | None = None
    """The file that describes its agent."""
    notices: tuple[str, ...] = ()
    """What was noticed while its agent was looked up, worth a word and no reason to refuse."""
    budget_usd: float | None = None
    budget_tokens: int | None = None
    idle_timeout: float | None = None
    """What it may spend, with all below it, and for how many seconds it may say nothing; None is no bound."""
    blanks: tuple[str, ...] = ()
    """Names in double braces of its prompt that are filled in when it begins. All others are somebody's own words."""
    permission_mode: str | None = None
    """The mode that it really works in, whoever chose it; None for a plain program, which has none."""
    allowed_agents: tuple[str, ...] | None = None
    """The only agents that it may start; None for any."""
    known_as: str | None = None
    """The name that the user's leave is for: an alias, else the name that its definition gives."""
    unvouched: bool = False
    """Whether its instructions, or those of one above it, are a project's for which the user does not vouch."""
    vouched: tuple[Vouched, ...] = ()
    """What it relies on of what the user vouches for; looked at again before somebody goes on with it."""
    leave: Leave | None = None
    """The same of what lets the agent start it that did."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a chain, or a step of it, may go; None is no bound."""

    budget_usd: float | None = None
    budget_tokens: int | None = None
    idle_timeout: float | None = None
    """Seconds in which an agent says nothing."""
    failures: int | None = None
    """Iterations in a row that end badly."""
    no_progress: int | None = None
    """Iterations in a row after which nothing is different."""


@dataclass(frozen=True, slots=True)
class Worktree:
    """A git worktree that was made for one step of a chain, with a branch of its own."""

    repository: str
    """The working tree that it was made from."""
    path: str
    branch: str
    base: str
    """The commit that it began with."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """That a step works in a worktree of its own, and what was known of it before there is one."""

    repository: str
    inside: str = ""
    """Where in the repository the step works."""
    tree: Worktree | None = None
    """The one that the step had in the chain that this one goes on with."""
    strangers: tuple[str, ...] | None = None
    """Of a trusted agent: servers around all worktrees, and around its project, that are kept off by their names."""


@dataclass(frozen=True, slots=True)
class Approval:
    """That a step relies on what the user approved in the folder it works in, which others may change meanwhile."""

    settings: str
    """A hash of what was approved."""
    servers: str
    """A hash of the servers around it, some of which are kept off by their names."""
    users: tuple[str, ...]
    """The user's own folders, which are no part of it wherever they lie."""
    without: Spec
    """The step's process as it starts where that is not what there is."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a bound chain, or one member of a group."""

    agent: str
    """The step's text without its ``:N``."""
    iterations: int
    loop: bool
    spec: Spec
    group: int | None = None
    """Steps in a row that share one run at the same time."""
    until: str | None = None
    """Its own gate; without one the chain's counts."""
    bounds: Bounds = Bounds()
    isolation: Isolation | None = None
    """None for a step that works where the user does."""
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class BoundChain:
    """A chain whose every agent has been found."""

    name: str
    steps: tuple[Step, ...]
    cwd: str
    env: Mapping[str, str]
    until: str | None = None
    timeout: float | None = None
    gate_timeout: float | None = None
    on_lost: str = "ask"
    """What to do about an iteration of which nobody knows how it ended: ``ask`` or ``retry``."""
    on_question: str = "ask"
    """Whether somebody may be asked about the chain itself: not after ``deny`` or ``fail``."""
    bounds: Bounds = Bounds()
    """Of the chain as a whole: its budget and its silence."""
    previous: str | None = None
    """What the step before the first one came to, where the chain goes on with another one's work."""
    resumed_from: str | None = None
    first: int = 0
    """How many steps of that other chain went before."""
    task: str | None = None
    """The caller's prompt as it was given: what ``{{task}}`` stands for."""
    kept: tuple[tuple[str, str | None], ...] = ()
    """Members of its first group that were complete before: their agents, and what they came to."""
    trees: tuple[tuple[Worktree, ...], ...] = ()
    """The worktrees of the steps that went before in that other chain, by stage."""
    kept_trees: tuple[Worktree, ...] = ()
    """Those of the members in ``kept``."""


def environments_of(bound: Spec | BoundChain) -> Iterator[Mapping[str, str]]:
    """The environments of all processes that a start may come to."""
    yield bound.env
    for step in bound.steps if isinstance(bound, BoundChain) else ():
        yield step.spec.env
        if step.approval is not None:
            yield step.approval.without.env


class Grouped(Protocol):
    """A step, bound or not."""

    @property
    def group(self) -> int | None: ...


def stages(steps: Sequence[Grouped]) -> Iterator[range]:
    """The places of the steps, those together that run at the same time: in a row, and of one group."""
    begin = 0
    for place in range(1, len(steps) + 1):
        group = steps[place].group if place < len(steps) else None
        if group is None or group != steps[begin].group:
            yield range(begin, place)
            begin = place


def stage_number(steps: Sequence[Grouped], place: int) -> int:
    """The number that people give a step, from 1: as the chain is written, where the members of a group share one."""
    return next(number for number, together in enumerate(stages(steps), 1) if place in together)


class Event(Struct, frozen=True):
    """One thing that happened. ``seq`` orders everything in one store.

    Made by the thousand, as is the run after each, which is why these two are structs.
    """

    seq: int
    ts: float
    run: str
    root: str
    type: str
    data: Mapping[str, Any]


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


Change = Callable[[Run, Event], Run]


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


_CHANGES: Mapping[str, Change] = {
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
