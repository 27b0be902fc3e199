"""What a run is started with: one process, or a chain of steps. Stored inside its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from hocket.input_limits import DEFAULT_MARKER
from hocket.model.agent import Approval, DelegationGrant

RUN_DIRECTORY = "\0run"
SESSION = "\0session"
PROMPT = "\0prompt"
"""Placeholders in a spec's arguments: for the run's directory, followed by "/" and the name of one of the spec's files,
for its session, and for its prompt. Real arguments cannot contain NUL."""


class Spec(
    Struct,
    frozen=True,
    rename={"approvals": "vouched", "delegation": "leave", "untrusted_instructions": "unvouched"},
):
    """One process to start, completely resolved."""

    agent: str
    provider: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    prompt: str | None = None
    stdin: str = "empty"
    """``empty``, ``file`` (the prompt, then the end), ``lines`` (input stays open) or ``terminal`` (input is typed)."""
    loop: bool = False
    marker: str = DEFAULT_MARKER
    timeout: float | None = None
    max_output: int = 2 * 1024**3
    stop_grace: float = 5.0
    files: Mapping[str, str] = {}
    """Files to write into the run's directory before the start, by name."""
    session: bool = False
    """Keep its input open after the first turn."""
    on_question: str = "deny"
    """``deny``, ``ask`` (wait for an answer) or ``fail`` (end the run)."""
    served: bool = False
    """True if it calls our tools by way of its output and input, which stay open while it works."""
    resumed_from: str | None = None
    """The run whose session it continues."""
    session_tokens: int = 0
    """Tokens that a resumed session had used before this run."""
    source: str | None = None
    """Where its agent was found: ``project-local``, ``global``, ``PATH`` and so on."""
    definition: str | None = None
    """The file that defines its agent."""
    notices: tuple[str, ...] = ()
    """Warnings from the lookup of its agent."""
    budget_usd: float | None = None
    budget_tokens: int | None = None
    idle_timeout: float | None = None
    """What it and its descendants may spend, and seconds without output; None for no limit."""
    blanks: tuple[str, ...] = ()
    """Placeholders of its prompt that are replaced at the start; other braces are left as they are."""
    permission_mode: str | None = None
    """The effective permission mode; None for a plain program."""
    allowed_agents: tuple[str, ...] | None = None
    """The only agents that it may start; None for any."""
    known_as: str | None = None
    """The name in delegation grants: its alias, else the name in its definition."""
    untrusted_instructions: bool = False
    """True if its instructions, or those of an ancestor, come from an untrusted project."""
    approvals: tuple[Approval, ...] = ()
    """The approvals that it relies on; checked again before a resume."""
    delegation: DelegationGrant | None = None
    """The grant that let its parent start it; checked again before a resume."""
    registry: str | None = None
    """The registry file of the project that it was started in."""
    team: bool = False
    """Whether it leads a team: its teammates and their shared tasks are followed."""

    @property
    def has_terminal(self) -> bool:
        """True if its process has a terminal: its output is a screen, and its events come from its transcript."""
        return self.stdin == "terminal"


class Bounds(Struct, frozen=True):
    """Limits of a chain or a step; None for no limit."""

    budget_usd: float | None = None
    budget_tokens: int | None = None
    idle_timeout: float | None = None
    """Seconds without output."""
    failures: int | None = None
    """Failed iterations in a row."""
    no_progress: int | None = None
    """Iterations in a row without a change."""


class Worktree(Struct, frozen=True):
    """A git worktree of one step of a chain, with its own branch."""

    repository: str
    """The working tree that it was created from."""
    path: str
    branch: str
    base: str
    """The commit that it was created at."""


class Isolation(Struct, frozen=True, rename={"untrusted_servers": "strangers"}):
    """A step's own worktree, before it exists."""

    repository: str
    inside: str = ""
    """The step's directory inside the repository."""
    tree: Worktree | None = None
    """The worktree of the step in the chain that is resumed."""
    untrusted_servers: tuple[str, ...] | None = None
    """Of a trusted agent: untrusted servers around all worktrees and its project, which are disabled by name."""


class FolderApproval(Struct, frozen=True):
    """The approved content of a step's folder, which may change before the step starts."""

    settings: str
    """A hash of the approved content."""
    servers: str
    """A hash of the servers around it, some of which are disabled by name."""
    users: tuple[str, ...]
    """The user's own folders, which are excluded even inside it."""
    without: Spec
    """The process to start if the content has changed."""


class Step(Struct, frozen=True):
    """One step of a bound chain, or one member of a group."""

    agent: str
    """The step's text without its ``:N``."""
    iterations: int
    loop: bool
    spec: Spec
    group: int | None = None
    """Consecutive steps with the same group run in parallel."""
    until: str | None = None
    """Its own gate; None for that of the chain."""
    bounds: Bounds = Bounds()
    isolation: Isolation | None = None
    """None for a step in the user's directory."""
    approval: FolderApproval | None = None


class BoundChain(Struct, frozen=True):
    """A chain with all agents resolved."""

    name: str
    steps: tuple[Step, ...]
    cwd: str
    env: Mapping[str, str]
    until: str | None = None
    timeout: float | None = None
    gate_timeout: float | None = None
    on_lost: str = "ask"
    """What to do about an iteration whose outcome is unknown: ``ask`` or ``retry``."""
    on_question: str = "ask"
    """With ``ask`` the chain itself may ask questions."""
    bounds: Bounds = Bounds()
    """Budget and idle timeout of the whole chain."""
    previous: str | None = None
    """The result before the first step, if the chain resumes another one."""
    resumed_from: str | None = None
    first: int = 0
    """How many steps of the resumed chain are complete."""
    task: str | None = None
    """The caller's prompt, for ``{{task}}``."""
    kept: tuple[tuple[str, str | None], ...] = ()
    """Complete members of its first group: their agents and results."""
    trees: tuple[tuple[Worktree, ...], ...] = ()
    """The worktrees of the complete steps of the resumed chain, by stage."""
    kept_trees: tuple[Worktree, ...] = ()
    """The worktrees of the members in ``kept``."""
    registry: str | None = None
    """The registry file of the project that it was started in."""


def environments_of(bound: Spec | BoundChain) -> Iterator[Mapping[str, str]]:
    """Yield the environments of all processes of a start."""
    yield bound.env
    for step in bound.steps if isinstance(bound, BoundChain) else ():
        yield step.spec.env
        if step.approval is not None:
            yield step.approval.without.env


class GroupedStep(Protocol):
    """A step, bound or not."""

    @property
    def group(self) -> int | None: ...


def stages(steps: Sequence[GroupedStep]) -> Iterator[range]:
    """Yield the positions of steps by stage: consecutive members of a group run in parallel."""
    begin = 0
    for place in range(1, len(steps) + 1):
        group = steps[place].group if place < len(steps) else None
        if group is None or group != steps[begin].group:
            yield range(begin, place)
            begin = place


def stage_number(steps: Sequence[GroupedStep], place: int) -> int:
    """Return the number of a step's stage, from 1."""
    return next(number for number, together in enumerate(stages(steps), 1) if place in together)
