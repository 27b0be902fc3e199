"""The JSON of tasks and hand-offs: its names, what is taken, and what is said."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from hocket.api.validation_errors import NO_LINE_END
from hocket.api.wire import About, Body
from hocket.errors import UsageError
from hocket.model import Event, Reason, Status
from hocket.model.task import (
    COMPLETED,
    MOST_QUEUED,
    MOST_QUEUED_TEXT,
    STARTED,
    UNQUEUED,
    Attachment,
    Handoff,
    Past,
    Planning,
    Queued,
    Task,
    TaskStatus,
)
from hocket.workflows.request import Dollars, HandoffRequest, Name, OnQuestion, StartRequest, Text, Word

NOTHING: Mapping[str, str] = MappingProxyType({})
StatusType = Literal["pending", "active", "waiting", "completed", "failed"]
Line = Annotated[str, Meta(max_length=64 * 1024)]
PlanText = Annotated[str, Meta(max_length=1024 * 1024)]
Lines = Annotated[list[Line], Meta(max_length=10_000)]
Wanted = Annotated[str, Meta(min_length=1, max_length=256 * 1024, pattern=r"\S")]
Millis = Annotated[int, Meta(ge=0, le=2**53)]


MOST_NESTED = 500
"""Of what is kept without being looked at."""

RecordId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$" + NO_LINE_END)]
TaskId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$" + NO_LINE_END)]
EventType = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,63}$" + NO_LINE_END)]


class Camel(Struct, rename="camel"):
    """With the names of the documents."""


class CamelBody(Body, rename="camel"):
    """With the same names, and no others."""


# --- What is said -------------------------------------------------------------------------------------------


class StatusOut(Camel):
    """How far a task is, and a word about it."""

    type: StatusType
    message: str | None = None


class HandoffOut(Camel):
    """One agent's turn at a task."""

    id: str
    run: str | None
    agent_name: str
    started_at: int
    completed_at: int | None
    output: str
    status: str
    reason: str | None
    elsewhere: bool
    """Whether its run stayed where the task was brought from."""


class HandoffDetail(HandoffOut):
    """The same, with its task, what the agent was asked, and its session."""

    task: str
    prompt: str | None
    session_id: str | None


class AttachmentOut(Camel):
    """A file that belongs to a task."""

    name: str
    size: int
    sha256: str
    created_at: int


class TaskSummary(Camel):
    """A task in a list: who is at work on it, and not all who were."""

    id: str
    number: int
    task_type: Literal["descriptionOnly", "planned"]
    description: str
    status: StatusOut
    current_agent: str | None
    current_since: int | None
    handoff_count: int
    queued: int
    cwd: str | None
    source: dict[str, Any] | None
    created_at: int
    updated_at: int


class TaskOut(Camel):
    """A task. The last four are there once it is planned."""

    id: str
    number: int
    task_type: Literal["descriptionOnly", "planned"]
    description: str
    status: StatusOut
    source: dict[str, Any] | None
    cwd: str | None
    current_agent: str | None
    agent_chain: list[HandoffOut]
    session_id: str | None
    attachments: list[AttachmentOut]
    created_at: int
    updated_at: int
    summary: str | None = None
    requirements: str | list[str] | None = None
    acceptance_criteria: str | list[str] | None = None
    plan: str | list[str] | None = None


class TaskListMeta(About):
    """With the number that the next page goes on below."""

    next: int | None


class HandedMeta(About):
    """Which of the task's hand-offs this one is, and its run."""

    handoff: str
    run: str | None


class HistoryEvent(Camel):
    """One thing that happened to a task."""

    event_type: str
    timestamp: int
    data: dict[str, Any]


class History(Camel):
    """All that happened to a task, in order."""

    events: list[HistoryEvent]


class QueuedOut(Camel):
    """Something that waits until the task is free."""

    id: str
    agent_name: str | None
    prompt: str
    created_at: int


class Queue(Camel):
    """What waits, the next first."""

    items: list[QueuedOut]


class Attachments(Camel):
    """The files of a task."""

    items: list[AttachmentOut]


class TaskExport(TaskOut, kw_only=True):
    """All of a task, as it is written out."""

    agent_chain: list[HandoffDetail]  # type: ignore[assignment]
    queue: list[QueuedOut]
    history: list[HistoryEvent]


# --- What is taken ------------------------------------------------------------------------------------------


class Source(CamelBody, omit_defaults=True):
    """Where a wish comes from."""

    source_type: Line
    user_id: Line | None = None
    conversation_id: Line | None = None


class NewTask(CamelBody):
    """What is wanted."""

    description: Wanted
    source: Source | None = None
    cwd: Word | None = None

    def fields(self) -> dict[str, Any]:
        source = msgspec.to_builtins(self.source) if self.source else None
        return {"description": self.description, "source": source, "cwd": self.cwd}


class StatusIn(CamelBody):
    """The status to set."""

    type: StatusType
    message: Line | None = None


class StatusBody(CamelBody):
    """How far the task is now."""

    status: StatusIn


class PlanBody(CamelBody):
    """A plan, or parts of one; what is left out stays as it was."""

    summary: Line | UnsetType | None = UNSET
    requirements: Lines | Line | UnsetType | None = UNSET
    acceptance_criteria: Lines | Line | UnsetType | None = UNSET
    plan: Lines | PlanText | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        if all(getattr(self, name) is UNSET for name in self.__struct_fields__):
            raise ValueError("give at least one of summary, requirements, acceptanceCriteria and plan")

    def planning(self) -> Planning:
        return _planning(self)


def _planning(body: PlanBody | TaskIn) -> Planning:
    summary = None if body.summary is UNSET else body.summary
    parts = (None if one is UNSET else one for one in (body.requirements, body.acceptance_criteria, body.plan))
    return Planning(summary, *(tuple(one) if isinstance(one, list) else one for one in parts))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _handoff_name(field: str) -> str:
    return "agentName" if field == "agent" else _camel(field)


class HandoffBody(HandoffRequest, frozen=True, kw_only=True, rename=_handoff_name):
    """The agent to hand the task to, and its prompt. Repeats the fields whose names differ on the wire."""

    agent: Name
    default_cwd: Word | None = None
    budget_usd: Dollars | None = None
    on_question: OnQuestion | None = None


class NewHandoffBody(HandoffBody, frozen=True, kw_only=True):
    """A hand-off of a task that is created with it."""

    description: Wanted | None = None
    """Without it the first line of the prompt that says anything."""

    def wanted(self) -> str:
        lines = (line.strip() for line in self.prompt.splitlines())
        return self.description or next((line for line in lines if line), "(no words)")[:200]


class CompleteBody(CamelBody):
    """What came of a hand-off."""

    output: Text


class QueueBody(CamelBody):
    """Something for later; with an agent it is handed over when the task is free."""

    prompt: Annotated[Text, Meta(min_length=1)]
    agent_name: Name | None = None
    default_cwd: Word | None = None
    """Where that one works if the task does not say."""
    env: dict[str, str] | None = None

    def handoff(self, task_cwd: str | None) -> StartRequest | None:
        """The start that it comes to later; None for an item without an agent."""
        if self.agent_name is None:
            return None
        return HandoffRequest(self.agent_name, self.prompt, default_cwd=self.default_cwd, env=self.env).start(task_cwd)


class AttachmentBody(CamelBody):
    """A file: its name, and its bytes in base64."""

    filename: Name
    content: str

    def bytes(self) -> bytes:
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UsageError(f"content: this is no base64: {error}") from error


class HandoffIn(Camel, kw_only=True):
    """A record that was kept elsewhere. Unknown keys are of another version, and left alone."""

    id: RecordId | None = None
    run: RecordId | None = None
    agent_name: Line
    started_at: Millis
    completed_at: Millis | None = None
    output: Text = ""
    status: Literal["starting", "running", "waiting", "done", "failed", "stopped", "lost"] | None = None
    reason: Reason | None = None
    prompt: Text | None = None
    session_id: Line | None = None


class QueuedIn(Camel, kw_only=True):
    """Something that waited elsewhere."""

    id: RecordId | None = None
    agent_name: Name | None = None
    prompt: Annotated[Text, Meta(min_length=1)]
    created_at: Millis | None = None


class HistoryIn(Camel):
    """Something that happened elsewhere."""

    event_type: EventType
    timestamp: Millis
    data: dict[str, Any] = {}


class TaskIn(Camel):
    """A task that was kept elsewhere: read tolerantly where something is missing, refused where something is wrong."""

    id: TaskId
    description: Annotated[str, Meta(min_length=1, max_length=1024 * 1024)]
    status: StatusIn | None = None
    source: dict[str, Any] | None = None
    cwd: Word | None = None
    current_agent: Line | None = None
    agent_chain: Annotated[list[HandoffIn], Meta(max_length=100_000)] | None = None
    session_id: Line | None = None
    queue: Annotated[list[QueuedIn], Meta(max_length=MOST_QUEUED)] | None = None
    history: Annotated[list[HistoryIn], Meta(max_length=500_000)] | None = None
    created_at: Millis | None = None
    updated_at: Millis | None = None
    summary: Line | None = None
    requirements: Lines | Line | None = None
    acceptance_criteria: Lines | Line | None = None
    plan: Lines | PlanText | None = None

    def __post_init__(self) -> None:
        if self.id.isdigit():
            raise ValueError("an id of digits alone would be taken for a task's number")
        named = [one.id for one in self.queue or () if one.id is not None]
        if len(set(named)) < len(named):
            raise ValueError("queue: two items have the same id")
        if sum(len(one.prompt) for one in self.queue or ()) > MOST_QUEUED_TEXT:
            raise ValueError(f"queue: it holds {MOST_QUEUED_TEXT:,} characters at most")
        for name, value in (("source", self.source), ("history", [one.data for one in self.history or ()])):
            if _is_nested_deeper(value, MOST_NESTED):
                raise ValueError(f"{name} is nested too deeply")


def _is_nested_deeper(value: Any, most: int) -> bool:
    """What was just about read can be too deep to be written again, from further down in a call."""
    level = [value]
    for _ in range(most):
        held = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [below for one in held for below in one]
    return any(isinstance(one, dict | list) for one in level)


class ImportBody(CamelBody):
    """A task to take over."""

    task: TaskIn


def imported(body: TaskIn, now: float) -> tuple[Task, list[Handoff], list[Past]]:
    """The task, its closed hand-offs, and its history. One that was open has nobody left who could close it."""
    planning = _planning(body)
    records = [_imported(one, body.id, number, now) for number, one in enumerate(body.agent_chain or (), 1)]
    status = TaskStatus(body.status.type) if body.status else TaskStatus.PENDING
    task = Task(
        id=body.id,
        number=0,
        description=body.description,
        created_at=now if body.created_at is None else body.created_at / 1000,
        updated_at=now if body.updated_at is None else body.updated_at / 1000,
        cwd=body.cwd,
        source=body.source,
        status=TaskStatus.WAITING if status is TaskStatus.ACTIVE else status,
        message=body.status.message if body.status else None,
        planning=None if planning == Planning() else planning,
        handoffs=len(records),
        queue=tuple(_waiting(one, number, now) for number, one in enumerate(body.queue or (), 1)),
        brought=True,
        brought_handoffs=len(records),
        session=body.session_id,
    )
    return task, records, [_past(one) for one in body.history or ()]


def _waiting(body: QueuedIn, number: int, now: float) -> Queued:
    since = now if body.created_at is None else body.created_at / 1000
    return Queued(body.id or f"q{number}", body.prompt, body.agent_name, since)


def _past(body: HistoryIn) -> Past:
    told = {_snake(name): value for name, value in body.data.items() if name != "event"}
    return Past(body.timestamp / 1000, body.event_type, told)


def _imported(body: HandoffIn, task: str, number: int, now: float) -> Handoff:
    is_closed = body.completed_at is not None
    known = Status(body.status) if body.status else Status.DONE
    return Handoff(
        id=body.id or f"{task}-{number}",
        task=task,
        number=number,
        run=body.run,
        agent=body.agent_name,
        depth=0,
        started_at=body.started_at / 1000,
        completed_at=now if body.completed_at is None else body.completed_at / 1000,
        status=known if is_closed and known.ended else Status.LOST,
        reason=body.reason if is_closed else Reason.LOST,
        output=body.output if is_closed else body.output or "interrupted: nobody was left to finish it",
        prompt=body.prompt,
        session=body.session_id,
    )


# --- From values to JSON ------------------------------------------------------------------------------------


def millis(seconds: float) -> int:
    return round(seconds * 1000)


def summary_out(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "number": task.number,
        "taskType": _type(task),
        "description": task.description,
        "status": _status(task),
        "currentAgent": task.current_agent,
        "currentSince": None if task.current_since is None else millis(task.current_since),
        "handoffCount": task.handoffs,
        "queued": len(task.queue),
        "cwd": task.cwd,
        "source": task.source,
        "createdAt": millis(task.created_at),
        "updatedAt": millis(task.updated_at),
    }


def task_out(
    task: Task, chain: Iterable[Handoff], session: str | None, now: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    """``now``: how the runs stand whose hand-offs are open."""
    face = {
        "id": task.id,
        "number": task.number,
        "taskType": _type(task),
        "description": task.description,
        "status": _status(task),
        "source": task.source,
        "cwd": task.cwd,
        "currentAgent": task.current_agent,
        "agentChain": [handoff_out(one, now.get(one.run or "")) for one in chain],
        "sessionId": session,
        "attachments": [attachment_out(one) for one in task.attachments],
        "createdAt": millis(task.created_at),
        "updatedAt": millis(task.updated_at),
    }
    planning = task.planning
    if planning is None:
        return face
    return face | {
        "summary": planning.summary,
        "requirements": planning.requirements,
        "acceptanceCriteria": planning.acceptance_criteria,
        "plan": planning.plan,
    }


def _type(task: Task) -> str:
    return "descriptionOnly" if task.planning is None else "planned"


def _status(task: Task) -> dict[str, Any]:
    return {"type": task.status} | ({"message": task.message} if task.message else {})


def handoff_out(record: Handoff, now: str | None = None) -> dict[str, Any]:
    return {
        "id": record.id,
        "run": record.run,
        "agentName": record.agent,
        "startedAt": millis(record.started_at),
        "completedAt": None if record.completed_at is None else millis(record.completed_at),
        "output": record.output,
        "status": now if now is not None and record.completed_at is None else record.status,
        "reason": record.reason,
        "elsewhere": record.elsewhere,
    }


def handoff_detail(record: Handoff, now: str | None, prompt: str | None, session: str | None) -> dict[str, Any]:
    """``now``: how its run stands; None where there is no such run here."""
    return handoff_out(record, now) | {"task": record.task, "prompt": prompt, "sessionId": session}


def export_out(
    face: dict[str, Any], details: list[dict[str, Any]], queue: Iterable[Queued], events: Iterable[Event]
) -> dict[str, Any]:
    waiting = [queued_out(one) for one in queue]
    return face | {"agentChain": details, "queue": waiting, "history": history_out(events)}


def attachment_out(one: Attachment) -> dict[str, Any]:
    return {"name": one.name, "size": one.size, "sha256": one.sha256, "createdAt": millis(one.created_at)}


def queued_out(one: Queued) -> dict[str, Any]:
    return {"id": one.id, "agentName": one.agent, "prompt": one.prompt, "createdAt": millis(one.created_at)}


_DOCUMENTED = {
    STARTED: ("agent_name",),
    COMPLETED: ("agent_name", "output_length"),
    UNQUEUED: ("id", "agent_name"),
}
"""What the history says of these, and no more; the record has the rest."""


def history_out(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [_history_event(event.data, event.ts) for event in events if event.type == "task.changed"]


def _history_event(data: Mapping[str, Any], ts: float) -> dict[str, Any]:
    kind = data["event"]
    told = {name: value for name, value in data.items() if name != "event"}
    told = {name: told.get(name) for name in _DOCUMENTED[kind]} if kind in _DOCUMENTED else told
    return {"eventType": kind, "timestamp": millis(ts), "data": {_camel(name): value for name, value in told.items()}}


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
