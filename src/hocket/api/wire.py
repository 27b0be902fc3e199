"""The JSON that leaves and enters: with ``wire_tasks`` the only place that knows its names.

What is taken is read into these structs. What is said is put together as plain values, since nobody checks our own
words again; its structs are there for the description, which the tests hold against each answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from hocket.errors import HocketError
from hocket.model import Run
from hocket.sessions import clock
from hocket.workflows.request import Count, Dollars, ResumeRequest, Seconds, StartRequest, Text, Word


class Body(Struct, forbid_unknown_fields=True):
    """Something that is taken: a name that nobody knows is a mistake, and what it was to say would be lost."""


class About(Struct):
    """About the answer itself."""

    timestamp: float


class ErrorBody(Struct):
    """What went wrong, for programs and for people."""

    code: str
    message: str
    hint: str | None = None


class Failure(Struct):
    """Every error."""

    error: ErrorBody


class StepOut(Struct):
    """One step of a chain, as it stood at the end."""

    agent: str
    status: str
    reason: str | None
    iterations: int
    max_iterations: int
    exit_code: int | None
    runs: list[str]
    cost_usd: float | None = None
    cost_estimated: bool = False
    tokens: int | None = None
    worktree: str | None = None
    """Where it worked, if it had a git worktree of its own that is still there."""
    branch: str | None = None
    """The branch that has its commits; null as well where none has them."""
    head: str | None = None
    """The last of its commits."""
    repository: str | None = None
    commits: int | None = None
    uncommitted: int | None = None
    """Files in the worktree that are in no commit; null as well where git could not tell."""
    besides: str | None = None
    """What else is in the worktree or on its first branch, in words."""


class RunOut(Struct):
    """A run as scripts see it."""

    id: str
    number: int
    kind: str
    agent: str
    provider: str | None
    status: str
    reason: str | None
    parent: str | None
    root: str
    depth: int
    task: str | None
    cwd: str
    pid: int | None
    session_id: str | None
    transcript: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    elapsed: float | None
    """Seconds at work so far, or in all; unlike the difference of the times above it is right if the clock was set."""
    exit_code: int | None
    result: str | None
    cost_usd: float | None
    cost_estimated: bool
    """Whether nobody told that cost, and it is the number of tokens at a price of ours."""
    tokens: int | None
    needs_you: bool
    step: int | None
    """Position in its chain, from 0, every member of a group counted."""
    stage: int | None
    """The number of its step as the chain is written, from 1; members of a group share one."""
    iteration: int | None
    error: str | None
    last: str | None
    resumed_from: str | None
    source: str | None
    """Where its agent was found: ``project-local``, ``global``, ``PATH`` and so on."""
    definition: str | None
    """The file that describes its agent."""
    parked_until: float | None
    """When it goes on by itself: it waits for a usage limit or an overloaded service, as ``reason`` says."""


class QuestionOut(Struct):
    """Something that a run asked and nobody has answered."""

    id: str
    run: str
    """Who asks: the run itself, or of a chain one of those below it."""
    number: int
    kind: str | None
    """``permission``, ``choice``, ``ask`` (it wants words) or ``lost``."""
    text: str | None
    tool: str | None
    input: Any
    suggestions: Any
    rule: str | None
    """By which nobody would be asked the like again, as ``always`` allows it; null where none is suggested."""
    options: Any
    """What there is to choose from, of a question that the agent put itself."""
    asked_at: float | None


class InboxOut(QuestionOut):
    """The same with everything that somebody wants to know who has not looked at the run."""

    agent: str
    helper: str | None
    """An agent that this one set to work by itself, where it is that one who asks."""
    root: str
    task: str | None
    cwd: str


class AskBody(Body):
    """A question of an agent's own."""

    text: Annotated[str, Meta(min_length=1, max_length=16_000, pattern=r"\S")]
    options: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=500, pattern=r"\S")]], Meta(max_length=20)
    ] = []
    """With them it is a choice; whoever answers may find other words all the same."""


class Asked(Struct):
    """The question that was asked."""

    id: str
    run: str


class QuestionState(Struct):
    """A question and what became of it: the same whenever it is looked at, once it is answered."""

    id: str
    run: str
    number: int
    kind: str | None
    text: str | None
    tool: str | None
    input: Any
    options: list[str]
    asked_at: float
    open: bool
    answered: bool
    allow: bool | None
    answer: str | None
    by: str | None
    answered_at: float | None


class RunDetail(RunOut):
    """A run with what is below it, where its files are, and what it asks."""

    children: list[RunOut]
    dir: str
    prompt: str | None
    """What was asked, as it was sent, with secrets covered; of a chain what was asked of all of it."""
    steps: list[StepOut]
    questions: list[QuestionOut]
    seq: int
    """What is said from now on has a higher number."""


class Stopped(Struct):
    """What a stop ended, once all of it is gone."""

    run: str
    status: str
    reason: str | None
    stopped: list[str]
    survivors: list[int]


class Taken(Struct):
    """A message that will reach its run."""

    run: str
    id: str
    ahead: int
    """Messages before it that are still to be answered."""


class Answered(Struct):
    """Which question was answered, and how."""

    run: str
    question: str
    allow: bool


class Health(Struct):
    """The server about itself."""

    version: str
    pid: int
    runs_live: int
    home: str
    socket: str
    url: str
    token_file: str
    started_at: float
    environment: dict[str, str]
    """Where the server looks for programs when a request has no environment and comes from no run: ``PATH``, and the
    variables that name CLIs."""


class Stopping(Struct):
    """The server is about to go; runs stay."""

    pid: int


class AgentOut(Struct, rename="camel"):
    """One agent that can run. The last three are there for Hocket's own configs alone, as their files have them."""

    name: str
    address: str
    """What routes, flags and paths call it; the name itself where that can be typed."""
    source: str
    location: str
    path: str
    description: str
    model: str | None
    tags: list[str]
    version: str
    overridden: bool
    """Whether one of the user's own has this name, too."""
    needs_trust: list[str]
    """What it asks for, or hides, that somebody has to approve before it runs."""
    spec_path: str | None = None
    allowed_tools: str | None = None
    permission_mode: str | None = None


class Shadowed(Struct):
    """A definition of the same name that is not used."""

    source: str
    path: str


class AgentDetail(AgentOut, kw_only=True):
    """One agent, with everything that its file says beside its instructions."""

    project: str | None
    delegates_to: list[str]
    shadows: list[Shadowed]
    metadata: dict[str, Any]


class ProblemOut(Struct):
    """A file with something wrong: what, where, and whether Claude loads it all the same."""

    path: str
    line: int | None
    reason: str
    claude_loads: bool
    kind: str


class CatalogOut(Struct):
    """The routing table: the same that ``hocket agents --json`` prints, in the same words."""

    by_name: dict[str, dict[str, Any]]
    by_tags: dict[str, list[str]]
    by_location: dict[str, list[str]]
    overrides: list[dict[str, Any]]
    total_count: int
    global_count: int
    project_local_count: int
    problems: list[ProblemOut]


class ConfigProblem(Struct):
    """A configuration file that cannot be used."""

    path: str
    line: int | None
    reason: str
    hint: str | None


class ChainStep(Struct):
    """One step of a configured chain; members of a group have the same ``step`` and run at the same time."""

    step: int
    grouped: bool
    agent: str
    iterations: int | None


class ChainOut(Struct):
    """A chain of the configuration, with everything that its file says."""

    name: str
    description: str | None
    file: str
    text: str
    """As it would be written on a command line."""
    variables: list[str]
    """What has to be given for it to run."""
    steps: list[ChainStep]
    problem: str | None
    """Why it would be refused now."""


class ChainsOut(Struct):
    """What ``hocket chains --json`` prints, in the same words."""

    chains: list[ChainOut]
    problems: list[ConfigProblem]
    places: list[str]


_CAMEL = {
    "budget_usd": "budgetUsd",
    "budget_tokens": "budgetTokens",
    "idle_timeout": "idleTimeout",
    "no_progress": "noProgress",
    "gate_timeout": "gateTimeout",
    "on_lost": "onLost",
}


class StartBody(StartRequest, frozen=True, rename={f"camel_{name}": camel for name, camel in _CAMEL.items()}):
    """What to start: exactly one of ``agent``, ``chain`` and ``dsl``. Limits may be spelled in camelCase as well."""

    camel_budget_usd: Dollars | None = None
    camel_budget_tokens: Count | None = None
    camel_idle_timeout: Seconds | None = None
    camel_no_progress: Count | None = None
    camel_gate_timeout: Seconds | None = None
    camel_on_lost: Literal["ask", "retry"] | None = None

    def __post_init__(self) -> None:
        for name in _CAMEL:
            if (value := getattr(self, f"camel_{name}")) is not None:
                msgspec.structs.force_setattr(self, name, value)


class Message(Body):
    """Something to say to a live run, an end to what it is doing, or both: the end first."""

    text: Text | None = None
    interrupt: bool = False

    def __post_init__(self) -> None:
        if not self.text and (self.text is not None or not self.interrupt):
            raise ValueError("say something with `text`, or `interrupt`")


class AnswerBody(Body, kw_only=True):
    """An answer to a run's open question; ``question`` is needed only where there are several."""

    question: Word | None = None
    allow: bool
    """Nothing but true and false: what is allowed here is done."""
    text: Text | None = None
    always: bool = False
    """Whether the question's ``rule`` is to hold from now on, for this agent's session."""


class WorktreeOut(Struct):
    """A worktree that a chain has left."""

    run: str
    number: int
    status: str
    ended_at: float | None
    agent: str
    repository: str
    path: str
    branch: str
    uncommitted: int | None
    commits: int | None
    """Those that no branch but a worktree's has."""
    why: str | None
    """Why it stays; null when nothing would be lost with it."""
    removed: bool
    branch_removed: bool


class PruneBody(Body):
    """Which worktrees may go. One that holds anything stays in any case."""

    runs: Annotated[list[Word], Meta(max_length=1000)] = []
    older: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Seconds since the chain ended."""
    dry_run: bool = False


class ResumeBody(ResumeRequest, frozen=True, rename={"start_at": "from"}):
    """How to continue a run that has ended: an agent's session, or the rest of a chain."""

    start_at: int | Word | None = None


class Empty(Body):
    """A body with nothing in it."""


def run_out(run: Run, last: str | None = None) -> dict[str, Any]:
    """A run's public face. The last thing it said is what it asks, as long as nobody has answered."""
    plain: dict[str, Any] = msgspec.to_builtins(run)
    asked = run.open_questions[-1].get("text") if run.needs_you else None
    faces = {"needs_you": run.needs_you, "last": asked or last, "reason": run.reason or run.parked_for}
    faces["elapsed"] = clock.elapsed(run)
    return {name: plain.get(name) for name in RunOut.__struct_fields__} | faces


def questions_out(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """What these runs ask and nobody has answered."""
    return [_question_out(run, asked) for run in runs for asked in run.open_questions]


def _question_out(run: Run, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Who asks is said last: an agent's own words must not name another run."""
    return {name: asked.get(name) for name in QuestionOut.__struct_fields__} | {"run": run.id, "number": run.number}


def inbox_out(run: Run, asked: Mapping[str, Any], asked_at: float) -> dict[str, Any]:
    """One line of the inbox: what the contract promises comes first."""
    row = _question_out(run, asked) | {"asked_at": asked_at}
    first = {name: row.pop(name) for name in ("id", "run", "kind", "text", "tool", "input", "asked_at")}
    who = {"agent": run.agent, "helper": asked.get("agent"), "root": run.root, "task": run.task, "cwd": run.cwd}
    return {**first, **row, **who}


_OF_CONFIGS = ("specPath", "allowedTools", "permissionMode")


def agent_out(row: Mapping[str, Any]) -> dict[str, Any]:
    """An agent's public face, made of its row in the routing table."""
    plain = (name for name in AgentOut.__struct_fields__ if name in AgentOut.__struct_encode_fields__)
    face = {name: row[name] for name in plain} | {"needsTrust": row["needs_trust"]}
    if row["location"] != "config":
        return face
    return face | {name: row["full_metadata"].get(name) for name in _OF_CONFIGS}


def agent_detail(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with the rest of what is known."""
    return agent_out(row) | {
        "project": row.get("project"),
        "delegatesTo": row["delegates_to"],
        "shadows": row["shadows"],
        "metadata": row["full_metadata"],
    }


def answer(data: Any, status: int = 200, **about: Any) -> Response:
    """A success, with whatever there is to say about the answer itself."""
    return _json({"data": data, "meta": {"timestamp": time.time(), **about}}, status)


def error_response(error: HocketError) -> Response:
    """A failure."""
    return Response(error_body(error), error.status, media_type="application/json")


def error_body(error: HocketError) -> bytes:
    """What is said of a failure, in a response of its own or at the end of a stream."""
    return encoded({"error": {"code": error.code, "message": error.message, "hint": error.hint}})


def internal_error() -> HocketError:
    """What is said of a fault of the server's own."""
    return HocketError("internal server error", "See server.log in HOCKET_HOME")


def encoded(body: Any) -> bytes:
    """As JSON, whatever letters are in it."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(body))


def _json(body: Any, status: int) -> Response:
    return Response(encoded(body), status, media_type="application/json")


def _as_text(value: Any) -> Any:
    """The same with every text made one: a file's name may have bytes that are none."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    return [_as_text(item) for item in value] if isinstance(value, list | tuple) else value
