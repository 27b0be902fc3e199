"""The JSON that leaves and enters: the only place that knows its names, and the only one that uses pydantic."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator
from starlette.responses import JSONResponse, Response

from hocket.errors import HocketError
from hocket.model import Run

T = TypeVar("T")


class Meta(BaseModel):
    """About the answer itself."""

    timestamp: float


class Answer(BaseModel, Generic[T]):
    """Every success."""

    data: T
    meta: Meta


class ErrorBody(BaseModel):
    """What went wrong, for programs and for people."""

    code: str
    message: str
    hint: str | None = None


class Failure(BaseModel):
    """Every error."""

    error: ErrorBody


class StepOut(BaseModel):
    """One step of a chain, as it stood at the end."""

    agent: str
    status: str
    reason: str | None
    iterations: int
    max_iterations: int
    exit_code: int | None
    runs: list[str]


class RunOut(BaseModel):
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
    exit_code: int | None
    result: str | None
    cost_usd: float | None
    tokens: int | None
    needs_you: bool
    step: int | None
    iteration: int | None
    error: str | None
    last: str | None
    resumed_from: str | None


class QuestionOut(BaseModel):
    """Something that a run asked and nobody has answered."""

    id: str
    run: str
    """Who asks: the run itself, or of a chain one of those below it."""
    number: int
    kind: str | None
    text: str | None
    tool: str | None
    input: Any
    suggestions: Any


class RunDetail(RunOut):
    """A run with what is below it, where its files are, and what it asks."""

    children: list[RunOut]
    dir: str
    steps: list[StepOut]
    questions: list[QuestionOut]
    seq: int
    """What is said from now on has a higher number."""


class Stopped(BaseModel):
    """What a stop ended, once all of it is gone."""

    run: str
    status: str
    reason: str | None
    stopped: list[str]
    survivors: list[int]


class Taken(BaseModel):
    """A message that will reach its run."""

    run: str
    id: str


class Answered(BaseModel):
    """Which question was answered, and how."""

    run: str
    question: str
    allow: bool


class Health(BaseModel):
    """The server about itself."""

    version: str
    pid: int
    runs_live: int
    home: str
    socket: str
    url: str
    token_file: str
    started_at: float


class Stopping(BaseModel):
    """The server is about to go; runs stay."""

    pid: int


Text = Annotated[str, Field(max_length=12 * 1024 * 1024)]
Word = Annotated[str, Field(min_length=1, max_length=64 * 1024)]


class StartBody(BaseModel):
    """What to start: exactly one of ``agent``, ``chain`` and ``dsl``."""

    model_config = ConfigDict(extra="forbid")

    agent: Word | None = None
    chain: Word | None = None
    dsl: Word | None = None
    prompt: Text | None = None
    prompt_literal: bool = False
    """With variables, too, the prompt is taken as it is."""
    cwd: Word | None = None
    args: list[str] = Field(default_factory=list, max_length=4096)
    env: dict[str, str] | None = None
    variables: dict[str, str] | None = None
    """Without it the prompt is taken as it is: ``${NAME}`` in it is no variable."""
    marker: Word | None = None
    until: Word | None = None
    timeout: Annotated[float, Field(gt=0, le=10**9)] | None = None
    parent: Word | None = None
    on_question: Literal["deny", "ask", "fail"] | None = None
    """What becomes of an agent that asks; without it what the chain says, then the configuration."""
    session: bool = False
    """A single agent stays for more messages after its first turn."""


class Message(BaseModel):
    """Something to say to a live run, an end to what it is doing, or both: the end first."""

    model_config = ConfigDict(extra="forbid")

    text: Text | None = None
    interrupt: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.text is None and not self.interrupt:
            raise ValueError("say something with `text`, or `interrupt`")
        return self


class AnswerBody(BaseModel):
    """An answer to a run's open question; ``question`` is needed only where there are several."""

    model_config = ConfigDict(extra="forbid")

    question: Word | None = None
    allow: StrictBool
    """Nothing but true and false: what is allowed here is done."""
    text: Text | None = None


class ResumeBody(BaseModel):
    """How to go on with the session of a run that has ended."""

    model_config = ConfigDict(extra="forbid")

    prompt: Text | None = None
    session: bool = False


class Empty(BaseModel):
    """A body with nothing in it."""

    model_config = ConfigDict(extra="forbid")


def run_out(run: Run, last: str | None = None) -> dict[str, Any]:
    """A run's public face. The last thing it said is what it asks, as long as nobody has answered."""
    plain: dict[str, Any] = msgspec.to_builtins(run)
    asked = run.open_questions[-1].get("text") if run.needs_you else None
    faces = {"needs_you": run.needs_you, "last": asked or last}
    return {name: plain.get(name) for name in RunOut.model_fields} | faces


def questions_out(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """What these runs ask and nobody has answered."""
    return [_question_out(run, asked) for run in runs for asked in run.open_questions]


def _question_out(run: Run, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Who asks is said last: an agent's own words must not name another run."""
    return {name: asked.get(name) for name in QuestionOut.model_fields} | {"run": run.id, "number": run.number}


def answer(data: Any, status: int = 200) -> Response:
    """A success."""
    body = msgspec.json.encode({"data": data, "meta": {"timestamp": time.time()}})
    return Response(body, status, media_type="application/json")


def error_response(error: HocketError) -> JSONResponse:
    """A failure."""
    body = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    return JSONResponse(body, error.status)
