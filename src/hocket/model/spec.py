"""What a run was started with: one process, or a chain of steps. Stored inside its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hocket.model.agent import DelegationGrant, Vouched

DEFAULT_MARKER = "FORKHESTRA_COMPLETE"
RUN_DIRECTORY = "\0run"
SESSION = "\0session"
"""Stand-ins in a spec's arguments for what each run has of its own: its directory, with "/" and the name of one of the
spec's files after it, and its session. No argument of anybody's can contain a NUL, so nothing is mistaken for one."""


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
    leave: DelegationGrant | None = None
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
