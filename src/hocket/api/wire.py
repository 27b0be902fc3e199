"""The JSON of requests and responses. With ``wire_tasks`` the only module that knows its names.

Request bodies are decoded into these structs. Responses are structs or plain values; ``/openapi.json`` describes both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from hocket.errors import HocketError
from hocket.model import Run
from hocket.sessions import clock
from hocket.store import UsageTotal
from hocket.workflows.request import Count, Dollars, NonEmptyText, ResumeRequest, Seconds, StartRequest, Text, Variables

T = TypeVar("T")

ROW_BYTES = 1024
"""Of a row in a list, without its longest text."""


class RequestStruct(Struct, forbid_unknown_fields=True):
    """Part of a request body. Unknown fields are refused."""


class ResponseMeta(Struct):
    """Metadata of a response."""

    timestamp: float


class ErrorBody(Struct):
    """An error: a code for programs, a message and a hint for people."""

    code: str
    message: str
    hint: str | None = None


class ErrorResponse(Struct):
    """The body of every error."""

    error: ErrorBody


class StepOut(Struct):
    """The outcome of one step of a chain."""

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
    """Its git worktree, if it has one that still exists."""
    branch: str | None = None
    """The branch with its commits."""
    head: str | None = None
    """Its last commit."""
    repository: str | None = None
    commits: int | None = None
    uncommitted: int | None = None
    """Files in the worktree that are not committed; null if git failed."""
    besides: str | None = None
    """What else the worktree or its first branch contains, as text."""
    also_on: str | None = None
    """Another branch, local or remote-tracking, that has all of its commits."""


class RunOut(Struct):
    """A run."""

    id: str
    """Its own, or that of its session for an observed run that was not imported."""
    number: int | None
    """Null for an observed run that was not imported."""
    kind: str
    origin: str
    """``owned``, or ``observed`` for a session that Hocket did not start."""
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
    """Seconds since its start, or until its end, by a monotonic clock."""
    exit_code: int | None
    result: str | None
    cost_usd: float | None
    cost_estimated: bool
    """True if the agent reported no cost, and it was computed from its tokens."""
    tokens: int | None
    budget_usd: float | None
    """What the run and its descendants may spend; they may pass it by at most one turn of each live agent."""
    budget_tokens: int | None
    needs_you: bool
    step: int | None
    """Position in its chain, from 0, every member of a group counted."""
    stage: int | None
    """The number of its step, from 1; members of a group share one."""
    iteration: int | None
    error: str | None
    last: str | None
    resumed_from: str | None
    source: str | None
    """Where its agent was found: ``project-local``, ``global``, ``PATH`` and so on."""
    definition: str | None
    """The file that defines its agent."""
    teammate: str | None
    """Of a teammate: its id in the team of its lead, which is its parent."""
    teammates: int | None
    """How many teammates a lead has now; null for other runs."""
    open_tasks: int
    """How many shared tasks of a lead's team are unfinished."""
    idle_in: float | None
    """Seconds until it is shown as idle, 0 if it is; null while it, or its team, is at work or waits for an answer."""
    parked_until: float | None
    """When it continues after a usage limit or an overload of the service, as ``reason`` says."""
    tree_cost_usd: float | UnsetType | None = UNSET
    """With ``tree``: what the run and everything below it have cost so far; null if unknown."""
    tree_cost_estimated: bool | UnsetType = UNSET
    tree_tokens: int | UnsetType | None = UNSET


_RUN_FIELDS = [name for name in RunOut.__struct_fields__ if not name.startswith("tree_")]


class ChangedFile(Struct):
    """A file that a run has changed."""

    path: str
    old_path: str | None
    """Its name before it was renamed or copied."""
    status: str
    """``added``, ``modified``, ``deleted``, ``renamed``, ``copied``, or ``changed`` where there is no git."""
    additions: int | None
    """Lines; null for a binary file, and where there is no git."""
    deletions: int | None
    uncommitted_before: bool
    """True if it had uncommitted changes before the run, which cannot be told apart."""
    directory: str
    step: int | None


class ChangedDirectory(Struct):
    """A directory or worktree that a run works in."""

    directory: str
    step: int | None
    """The position of the step whose worktree it is; null for a directory that all steps share."""
    stage: int | None
    agent: str | None
    branch: str | None
    base: str | None
    """The commit that it is compared with."""
    head: str | None
    """The commit that is compared, of a worktree that is gone; null for the files as they are."""
    by: str
    """``git``, or ``times``: of the files, where there is no git."""
    text: str | None
    notes: list[str]
    """What is left out, or cannot be told apart."""
    error: str | None
    """Why the changes are unknown."""
    hint: str | None


class RunDiffOut(Struct):
    """What a run has changed since it began."""

    run: str
    number: int
    additions: int
    deletions: int
    files: list[ChangedFile]
    directories: list[ChangedDirectory]


class ProcessFacts(Struct):
    """The process of an agent."""

    pid: int
    start_time: int | None
    """In clock ticks since the start of the machine; with the pid it names one process. Null if unknown."""
    alive: bool
    """True if that process is there now, not another one with its pid."""
    keeper: int | None
    """The pid of its keeper."""


class ExitFacts(Struct):
    """The exit record that the keeper wrote."""

    code: int | None
    signal: int | None
    error: str | None
    stopped: bool
    """True if the keeper was asked to stop it."""
    out: int
    """Bytes of standard output."""
    err: int
    survivors: list[int]
    swept: int
    """Processes that it left and the keeper ended."""
    ended_at: float
    duration: float
    pid: int | None
    lost_bytes: int


class EventFacts(Struct):
    """The last event of a run."""

    seq: int
    type: str
    at: float


class OutputFacts(Struct):
    """The output files of a run."""

    bytes: int
    changed_at: float


class TranscriptFacts(OutputFacts):
    """The transcript of its session."""

    path: str


class StopFacts(Struct):
    """A recorded stop."""

    reason: str | None
    at: float


class QueueFacts(Struct):
    """Where a run waits for a place among the live agents."""

    position: int
    taken: int
    places: int


class OpenQuestionFacts(Struct):
    """An open question."""

    id: str
    kind: str | None
    text: str | None
    asked_at: float | None


class EvidenceOut(Struct):
    """What the state of a run rests on. Null stands for what it does not have, or what is not known."""

    run: str
    number: int
    status: str
    reason: str | None
    explanation: str
    process: ProcessFacts | None
    directory: str | None
    """``unstarted``, ``running``, ``finished``, ``lost`` (a start without a lock and a record) or ``removed``."""
    lock: str | None
    """Of the keeper: ``held`` as long as it lives, ``free`` or ``missing``."""
    exit: ExitFacts | None
    ending: dict[str, Any] | None
    """What was recorded at the end: status, reason, exit code, signal, error."""
    last_event: EventFacts | None
    output: OutputFacts | None
    transcript: TranscriptFacts | None
    questions: list[OpenQuestionFacts]
    stops: list[StopFacts]
    queue: QueueFacts | None
    live_below: list[int]
    """The numbers of the runs below it that have not ended."""
    parked_until: float | None
    parked_for: str | None
    at: float
    """The time of this evidence."""


class QuestionBase(Struct):
    """What every representation of a question has."""

    id: str
    run: str
    """The run that asks; for a chain the asking run below it."""
    kind: str | None
    """``permission``, ``choice``, ``ask`` (free text) or ``lost``."""
    text: str | None
    tool: str | None
    input: Any
    asked_at: float | None
    number: int
    options: Any
    """The answers to choose from."""


class QuestionOut(QuestionBase):
    """An open question of a run."""

    suggestions: Any
    rule: str | None
    """The permission rule that an answer with ``always`` adds; null if none is suggested."""


class InboxOut(QuestionOut):
    """An open question, with the run that asks it."""

    agent: str
    helper: str | None
    """The sub-agent of this agent that asks."""
    root: str
    task: str | None
    cwd: str


class TranscriptEventOut(Struct):
    """An event of a transcript, as it will be recorded."""

    type: str
    data: dict[str, Any]
    at: float
    """When its line was written; 0 if the transcript does not say."""


class AskBody(RequestStruct):
    """A question that an agent asks."""

    text: Annotated[str, Meta(min_length=1, max_length=16_000, pattern=r"\S")]
    options: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=500, pattern=r"\S")]], Meta(max_length=20)
    ] = []
    """Answers to choose from; another answer is possible."""


class PermissionBody(RequestStruct, kw_only=True):
    """A call of a tool that needs a decision, as a hook of the agent's CLI reports it."""

    tool: Annotated[str, Meta(min_length=1, max_length=1000)]
    input: dict[str, Any] = {}
    suggestions: list[Any] = []
    """What the CLI suggests to allow from now on, in its own format."""
    agent: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """The sub-agent or teammate that calls it; null for the run's own agent."""


class TeammateBody(RequestStruct):
    """A teammate that an agent is about to start."""

    name: Annotated[str, Meta(min_length=1, max_length=1000)]


class AllowedTeammate(Struct):
    """The teammate that may be started."""

    run: str
    name: str


class AskedQuestion(Struct):
    """The new question."""

    id: str
    run: str


class QuestionState(QuestionBase):
    """A question with its answer."""

    open: bool
    answered: bool
    allow: bool | None
    answer: str | None
    by: str | None
    answered_at: float | None


class RunDetail(RunOut, kw_only=True):
    """A run with its children, files, steps and questions."""

    children: list[RunOut]
    dir: str
    prompt: str | None
    """The prompt as it was sent, with secrets redacted; of a chain the prompt of the whole chain."""
    terminal: bool
    """True if its process has, or had, a terminal, which ``GET /api/runs/{ref}/terminal`` shows."""
    steps: list[StepOut]
    questions: list[QuestionOut]
    seq: int
    """The number of the last event so far."""


class StoppedRuns(Struct):
    """The result of a stop, once all processes have ended."""

    run: str
    status: str
    reason: str | None
    stopped: list[str]
    survivors: list[int]


class AcceptedMessage(Struct):
    """A message that will be delivered."""

    run: str
    id: str
    ahead: int
    """Messages before it that are not answered yet."""
    after: int
    """Every event of its answer has a greater ``seq``."""


class AnsweredQuestion(Struct):
    """The question that was answered, and how."""

    run: str
    question: str
    allow: bool


class Health(Struct):
    """The state of the server."""

    version: str
    pid: int
    runs_live: int
    home: str
    socket: str
    url: str
    unavailable_port: int | None
    """The port that was requested, kept or the default, if another program had it when this server started."""
    token_file: str
    started_at: float
    environment: dict[str, str]
    """``PATH`` and the variables that name CLIs, as the server uses them for requests without an environment."""


class ServerStopping(Struct):
    """The server is stopping; runs continue."""

    pid: int


class AgentOut(Struct, rename="camel"):
    """An agent that can run. The last three fields are present for Hocket's own configs only."""

    name: str
    address: str
    """Its name in routes, flags and paths; differs from ``name`` if that cannot be typed."""
    source: str
    location: str
    path: str
    description: str
    model: str | None
    tags: list[str]
    version: str
    overridden: bool
    """True if an agent of the user's own has the same name."""
    needs_trust: list[str]
    """What the user has to approve before it runs."""
    spec_path: str | UnsetType | None = UNSET
    allowed_tools: str | UnsetType | None = UNSET
    permission_mode: str | UnsetType | None = UNSET


class AgentListMeta(ResponseMeta):
    """``clis`` are the CLIs that can be started by their names, without a definition."""

    clis: list[str]


class Shadowed(Struct):
    """An unused definition of the same name."""

    source: str
    path: str


class AgentDetail(AgentOut, kw_only=True):
    """An agent with all metadata of its definition."""

    project: str | None
    delegates_to: list[str]
    shadows: list[Shadowed]
    metadata: dict[str, Any]


class CatalogOut(Struct):
    """The routing table, as ``hocket agents --json`` prints it."""

    by_name: dict[str, dict[str, Any]]
    by_tags: dict[str, list[str]]
    by_location: dict[str, list[str]]
    overrides: list[dict[str, Any]]
    total_count: int
    global_count: int
    project_local_count: int
    problems: list[dict[str, Any]]


class ConfigProblem(Struct):
    """A configuration file that cannot be used."""

    path: str
    line: int | None
    reason: str
    hint: str | None


class ChainStep(Struct):
    """A step of a configured chain; members of a group have the same ``step`` and run in parallel."""

    step: int
    grouped: bool
    agent: str
    iterations: int | None


class ChainOut(Struct):
    """A configured chain."""

    name: str
    description: str | None
    file: str
    text: str
    """The chain as a command line has it."""
    variables: list[str]
    """Variables without a value."""
    steps: list[ChainStep]
    problem: str | None
    """Why it cannot be started now."""


class ChainsOut(Struct):
    """The configured chains, as ``hocket chains --json`` prints them."""

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
    "agent_teams": "agentTeams",
}


class StartBody(StartRequest, frozen=True, rename={f"camel_{name}": camel for name, camel in _CAMEL.items()}):
    """A start: exactly one of ``agent``, ``chain`` and ``dsl``. Limits and ``agentTeams`` may have camelCase names."""

    camel_budget_usd: Dollars | None = None
    camel_budget_tokens: Count | None = None
    camel_idle_timeout: Seconds | None = None
    camel_no_progress: Count | None = None
    camel_gate_timeout: Seconds | None = None
    camel_on_lost: Literal["ask", "retry"] | None = None
    camel_agent_teams: bool = False

    def __post_init__(self) -> None:
        for name in _CAMEL:
            if value := getattr(self, f"camel_{name}"):  # none of them may be zero or empty
                msgspec.structs.force_setattr(self, name, value)


class MessageBody(RequestStruct):
    """A message to a live run, an interrupt, or an interrupt followed by a message."""

    text: Text | None = None
    interrupt: bool = False

    def __post_init__(self) -> None:
        if not self.text and (self.text is not None or not self.interrupt):
            raise ValueError("give a non-empty `text`, or `interrupt`")


MAX_KEYS = 1024 * 1024
MAX_CELLS = 1000
Cells = Annotated[int, Meta(ge=1, le=MAX_CELLS)]
"""The columns or the rows of a terminal."""


class TerminalInput(RequestStruct):
    """What is typed into the terminal of a run, the new size of a viewer, or both."""

    keys: Annotated[str, Meta(min_length=1, max_length=MAX_KEYS)] | None = None
    """Text, which is typed as UTF-8."""
    data: Annotated[bytes, Meta(min_length=1, max_length=MAX_KEYS)] | None = None
    """Bytes in base64, which are typed as they are, instead of ``keys``."""
    viewer: NonEmptyText | None = None
    """The viewer with this size, as the header ``Hocket-Viewer`` of its stream names it."""
    columns: Cells | None = None
    rows: Cells | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and self.data is not None:
            raise ValueError("give `keys` or `data`, not both")
        if (self.columns is None) != (self.rows is None):
            raise ValueError("give `columns` and `rows` together")
        if self.columns is not None and self.viewer is None:
            raise ValueError("a size needs the `viewer` that has it")
        if self.columns is None and self.keys is None and self.data is None:
            raise ValueError("give `keys`, `data`, or `columns` and `rows`")


class TerminalAccepted(Struct):
    """What was typed has been accepted."""

    run: str
    typed: int
    """Bytes."""


class AnswerBody(RequestStruct, kw_only=True):
    """An answer to an open question of a run; ``question`` is required if there are several."""

    question: NonEmptyText | None = None
    allow: bool
    text: Text | None = None
    always: bool = False
    """Apply the question's ``rule`` to the rest of the agent's session."""


class WorktreeOut(Struct):
    """A worktree of an ended chain."""

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
    """Commits that are only on branches of worktrees."""
    also_on: str | None
    """Another branch, local or remote-tracking, that has all of its commits and outlives it."""
    why: str | None
    """Why it is kept; null if it can be pruned safely."""
    removed: bool
    branch_removed: bool


class PruneBody(RequestStruct):
    """The worktrees to prune. One with unsaved work is kept in any case."""

    runs: Annotated[list[NonEmptyText], Meta(max_length=1000)] = []
    older: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Minimum number of seconds since the chain ended."""
    dry_run: bool = False


class RemovableRun(Struct):
    """An ended run with everything below it, and with the runs that it resumes or that resume it."""

    run: str
    number: int
    agent: str
    status: str
    ended_at: float | None
    """When the last of them ended; null if one has not."""
    runs: int
    """How many there are in all."""
    also: list[str]
    """The roots of the others, which are removed together with it."""
    bytes: int
    """The space of their directories, and about that of their records and events in the database."""
    reason: str
    """Why it is not kept, or why it is."""


class RemovalPlan(Struct):
    """What would be removed."""

    would_remove: list[RemovableRun]
    kept: list[RemovableRun]
    """What the policy does not keep, but something needs."""
    bytes: int
    more: int
    """How many are not listed, because a list has at most ten thousand."""


class KeptRun(Struct, omit_defaults=True):
    """A run that was not removed. Of one that is unknown there is only the id."""

    run: str
    reason: str
    number: int | None = None
    agent: str | None = None
    status: str | None = None
    ended_at: float | None = None
    runs: int | None = None
    also: list[str] | None = None
    bytes: int | None = None


class LeftDirectory(Struct):
    """The directory of a removed run that could not be removed. The next removal tries again."""

    run: str
    number: int
    dir: str
    error: str


class RemovedRun(Struct):
    """A run that was removed with everything below it, now or by an earlier request."""

    run: str
    number: int
    bytes: int
    """Of it and of what was removed together with it; 0 if that was earlier."""


class RemovalOut(Struct):
    """What was removed."""

    removed: list[RemovedRun]
    kept: list[KeptRun]
    left: list[LeftDirectory]
    bytes: int


class RemovalBody(RequestStruct):
    """The roots of the trees to remove, as ``GET /api/gc`` lists them."""

    runs: Annotated[list[NonEmptyText], Meta(min_length=1, max_length=10_000)]


class ResumeBody(ResumeRequest, frozen=True, rename={"start_at": "from"}):
    """How to continue a run that has ended: an agent's session, or the rest of a chain."""

    start_at: int | NonEmptyText | None = None


class SessionImportBody(RequestStruct):
    """The session to import."""

    session: NonEmptyText
    """Its id, or at least the first eight characters of it."""
    env: Variables | None = None
    """``HOME`` and ``CLAUDE_CONFIG_DIR`` of the caller, which decide where it is. Default: the server's own."""


class EmptyBody(RequestStruct):
    """A body without fields."""


def run_out(run: Run, last: str | None = None, idle_after: float = 0.0, teammates: int | None = None) -> dict[str, Any]:
    """Return a run as JSON values. ``last`` is its latest output; an open question takes precedence."""
    plain: dict[str, Any] = msgspec.to_builtins(run)
    asked = run.open_questions[-1].get("text") if run.needs_you else None
    derived: dict[str, Any] = {"number": run.number or None}
    derived |= {"needs_you": run.needs_you, "last": asked or last, "reason": run.reason or run.parked_for}
    derived |= {"elapsed": clock.elapsed(run), "idle_in": clock.idle_in(run, idle_after), "teammates": teammates}
    return {name: plain.get(name) for name in _RUN_FIELDS} | derived


def tree_usage_out(used: UsageTotal) -> dict[str, Any]:
    """Return what a run and everything below it have used, as fields of a listed run."""
    return {
        "tree_cost_usd": used.cost_usd,
        "tree_cost_estimated": used.cost_estimated,
        "tree_tokens": used.tokens,
    }


def questions_out(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return the open questions of runs."""
    return [_question_out(run, asked) for run in runs for asked in run.open_questions]


def _question_out(run: Run, asked: Mapping[str, Any]) -> dict[str, Any]:
    # The run comes last: an agent's question must not name another one.
    return {name: asked.get(name) for name in QuestionOut.__struct_fields__} | {"run": run.id, "number": run.number}


def inbox_out(run: Run, asked: Mapping[str, Any], asked_at: float) -> dict[str, Any]:
    """Return an entry of the inbox."""
    more = {"asked_at": asked_at, "agent": run.agent, "helper": asked.get("agent")}
    return _question_out(run, asked) | more | {"root": run.root, "task": run.task, "cwd": run.cwd}


def _agent_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an agent from its row in the routing table."""
    *names, spec_path, allowed_tools, permission_mode = AgentOut.__struct_fields__
    fields = {name: row[name] for name in names}
    if row["location"] == "config":
        metadata = row["full_metadata"]
        fields |= {spec_path: metadata.get("specPath"), allowed_tools: metadata.get("allowedTools")}
        fields |= {permission_mode: metadata.get("permissionMode")}
    return fields


def agent_out(row: Mapping[str, Any]) -> AgentOut:
    return AgentOut(**_agent_fields(row))


def agent_detail(row: Mapping[str, Any]) -> AgentDetail:
    return AgentDetail(
        **_agent_fields(row),
        project=row.get("project"),
        delegates_to=row["delegates_to"],
        shadows=row["shadows"],
        metadata=row["full_metadata"],
    )


def fitting(rows: Sequence[T], text: Callable[[T], str | None], most: int) -> Sequence[T]:
    """Return the first rows that fit in a response of ``most`` bytes, and at least one: texts can be long."""
    size = 0
    for count, row in enumerate(rows):
        size += ROW_BYTES + 3 * len(text(row) or "")
        if size > most and count:
            return rows[:count]
    return rows


def success(data: Any, status: int = 200, **meta: Any) -> Response:
    """Return the response for a success."""
    body = {"data": data, "meta": {"timestamp": time.time(), **meta}}
    return Response(encoded(body), status, media_type="application/json")


def error_response(error: HocketError) -> Response:
    return Response(error_body(error), error.status, media_type="application/json")


def error_body(error: HocketError) -> bytes:
    return encoded({"error": {"code": error.code, "message": error.message, "hint": error.hint}})


def internal_error() -> HocketError:
    """Return the error for a fault of the server, without its details."""
    return HocketError("internal server error", "See server.log in HOCKET_HOME")


def encoded(body: Any) -> bytes:
    """Encode as JSON; text that is not valid UTF-8 gets replacement characters."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(body))


def _as_text(value: Any) -> Any:
    """Return a value without lone surrogates, which the names of files may have."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Struct):
        return _as_text(msgspec.to_builtins(value))
    if isinstance(value, Mapping):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    return [_as_text(item) for item in value] if isinstance(value, list | tuple) else value
