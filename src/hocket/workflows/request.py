"""Requests to start, resume or hand off: decoded by the API and read by binding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hocket.errors import UsageError

Text = Annotated[str, Meta(max_length=12 * 1024 * 1024)]
Seconds = Annotated[float, Meta(gt=0, le=10**9)]
Dollars = Annotated[float, Meta(gt=0, le=10**9)]
Count = Annotated[int, Meta(ge=1, le=10**15)]
NonEmptyText = Annotated[str, Meta(min_length=1, max_length=64 * 1024)]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]
Variables = Mapping[str, Annotated[str, Meta(pattern=r"^[^\x00]*$")]]
"""An environment; no variable can contain NUL."""
Pid = Annotated[int, Meta(ge=1, le=2**31)]
OnQuestion = Literal["deny", "ask", "fail"]


class StartRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A start: exactly one of ``agent``, ``dsl`` and ``chain``."""

    cwd: NonEmptyText | None = None
    """The working directory, an absolute path. Default: that of the calling run."""
    env: Variables | None = None
    """The caller's environment. Default: that of the calling run, else the server's own."""
    agent: NonEmptyText | None = None
    dsl: NonEmptyText | None = None
    """A chain's text, such as ``planner -> builder:3``."""
    chain: NonEmptyText | None = None
    """The name of a configured chain."""
    prompt: Text | None = None
    prompt_literal: bool = False
    """Use the prompt as it is even if ``variables`` are given: replace neither ``${NAME}`` nor placeholders."""
    args: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    """Arguments for every agent, after those that Hocket adds."""
    variables: Mapping[str, str] | None = None
    """Values for ``${NAME}``, each of which the chain must use. Without this field the prompt is used as it is."""
    used_variables: tuple[Name, ...] = ()
    """Those that the caller has used already, as in the name of a prompt file; the chain need not use them."""
    marker: NonEmptyText | None = None
    """The line with which an agent ends its loop."""
    until: NonEmptyText | None = None
    """A shell command that has to succeed before a step counts as done."""
    timeout: Seconds | None = None
    """Time limit in seconds."""
    parent: NonEmptyText | None = None
    """The run to start this one below."""
    task: NonEmptyText | None = None
    """The task to hand to the agent."""
    on_question: OnQuestion | None = None
    """How to treat an agent's questions. Default: that of the chain, then of the configuration."""
    on_question_default: OnQuestion | None = None
    """How to treat questions if neither chain nor configuration says. Default: ``ask``."""
    session: bool | None = None
    """Keep a single agent open for more messages after its first turn. Default: only one that leads a team."""
    agent_teams: bool = False
    """Let the agent lead a team of its CLI."""
    budget_usd: Dollars | None = None
    """Stop when the total cost of the run and everything below it reaches this many US dollars."""
    budget_tokens: Count | None = None
    """Stop when the run and everything below it have used this many tokens."""
    idle_timeout: Seconds | None = None
    """Stop when an agent produces no output for this many seconds."""
    failures: Count | None = None
    """End a loop after this many failed iterations in a row."""
    no_progress: Count | None = None
    """End a loop after this many iterations in a row that changed nothing."""
    gate_timeout: Seconds | None = None
    """Time limit of the gate in seconds."""
    on_lost: Literal["ask", "retry"] | None = None
    """What to do about an iteration whose outcome is unknown."""
    isolation: Literal["none", "worktree"] | None = None
    """Whether each step of a chain works in a git worktree of its own. Default: that of the step, then of the chain."""

    caller_session: Name | None = None
    """The session of an agent's CLI that the start comes from."""
    caller_pid: Pid | None = None
    """The process of that CLI."""
    caller_agent: Name | None = None
    """The agent of that session, if it has a definition."""
    caller_mode: Name | None = None
    """The permission mode of that session. With it the start has at most its permissions, as one by a run has."""

    @property
    def caller(self) -> dict[str, Any]:
        """What the run records of where it was started from."""
        known = {"caller_session": self.caller_session, "caller_pid": self.caller_pid}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def directory(self) -> str:
        """The working directory; raises if the request has none."""
        if self.cwd is None:
            raise UsageError("a start needs a working directory", "Add `cwd`, an absolute path")
        return self.cwd

    @property
    def environment(self) -> Mapping[str, str]:
        return self.env or {}

    @property
    def is_literal(self) -> bool:
        """True if nothing in the prompt is to be replaced."""
        return self.prompt_literal or self.variables is None


class ResumeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """How to continue a run that has ended: an agent's session, or the rest of a chain."""

    prompt: Text | None = None
    """What to tell the agent whose session continues."""
    session: bool = False
    """Keep the session open for more messages."""
    start_at: int | NonEmptyText | None = None
    """The step of a chain to begin with: its number, from 1, or its agent's name. Default: the first incomplete one."""
    env: Variables | None = None
    """The caller's environment, which the values of secret variables are taken from. Default: the server's own."""

    @property
    def is_message(self) -> bool:
        """True if this is for one agent; the steps of a chain have their own prompts."""
        return self.prompt is not None or self.session

    @property
    def environment(self) -> Mapping[str, str]:
        return self.env or {}


class HandoffRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A task's hand-off: to whom, and with which prompt."""

    agent: Name
    prompt: Text
    cwd: NonEmptyText | None = None
    default_cwd: NonEmptyText | None = None
    """The working directory if neither ``cwd`` nor the task has one."""
    env: Variables | None = None
    timeout: Seconds | None = None
    budget_usd: Dollars | None = None
    on_question: OnQuestion | None = None

    def start(self, task_cwd: str | None) -> StartRequest:
        """The equivalent start."""
        return StartRequest(
            cwd=self.cwd or task_cwd or self.default_cwd,
            env=self.env,
            agent=self.agent,
            prompt=self.prompt,
            timeout=self.timeout,
            budget_usd=self.budget_usd,
            on_question=self.on_question,
            session=False,
        )
