"""The JSON of tasks and hand-offs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from hocket.api.validation_errors import NO_LINE_END
from hocket.api.wire import RequestStruct, ResponseMeta
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
    ImportedEvent,
    Planning,
    Queued,
    Task,
    TaskStatus,
)
from hocket.workflows.request import (
    Dollars,
    HandoffRequest,
    Name,
    NonEmptyText,
    OnQuestion,
    StartRequest,
    Text,
    Variables,
)

ShortText = Annotated[str, Meta(max_length=64 * 1024)]
PlanText = Annotated[str, Meta(max_length=1024 * 1024)]
ShortTexts = Annotated[list[ShortText], Meta(max_length=10_000)]
Description = Annotated[str, Meta(min_length=1, max_length=256 * 1024, pattern=r"\S")]
Millis = Annotated[int, Meta(ge=0, le=2**53)]

MAX_NESTING = 500
"""Levels of nested JSON that is stored as it is."""

RecordId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$" + NO_LINE_END)]
TaskId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$" + NO_LINE_END)]
EventType = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,63}$" + NO_LINE_END)]


class Camel(Struct, rename="camel"):
    """JSON with names in camelCase."""


class CamelBody(RequestStruct, rename="camel"):
    """A request body with names in camelCase."""


# --- Responses ----------------------------------------------------------------------------------------------


class StatusOut(Camel):
    """The status of a task."""

    type: TaskStatus
    message: str | UnsetType = UNSET


class HandoffOut(Camel, kw_only=True):
    """A hand-off of a task to an agent."""

    id: str
    run: str | None
    agent_name: str
    started_at: int
    completed_at: int | None
    output: str
    status: str
    reason: str | None
    elsewhere: bool
    """True if its run is not on this machine: the task was imported."""


class HandoffDetail(HandoffOut, kw_only=True):
    """A hand-off with its task, prompt and session."""

    task: str
    prompt: str | None
    session_id: str | None


class AttachmentOut(Camel):
    """A file of a task."""

    name: str
    size: int
    sha256: str
    created_at: int


class TaskBase(Camel, kw_only=True):
    """What every representation of a task has."""

    id: str
    number: int
    task_type: Literal["descriptionOnly", "planned"]
    description: str
    status: StatusOut
    source: Mapping[str, Any] | None
    cwd: str | None
    current_agent: str | None
    created_at: int
    updated_at: int
    ends_with_handoff: bool
    """True if a hand-off created it, so that it is completed or failed with its last hand-off."""
    archived: bool


class TaskSummary(TaskBase, kw_only=True):
    """A task in a list, without its hand-offs."""

    current_since: int | None
    handoff_count: int
    queued: int


class TaskOut(TaskBase, kw_only=True):
    """A task. The last four fields are present once it is planned."""

    agent_chain: Sequence[HandoffOut]
    session_id: str | None
    attachments: list[AttachmentOut]
    summary: str | UnsetType | None = UNSET
    requirements: str | tuple[str, ...] | UnsetType | None = UNSET
    acceptance_criteria: str | tuple[str, ...] | UnsetType | None = UNSET
    plan: str | tuple[str, ...] | UnsetType | None = UNSET


class RemovedTask(Camel):
    """A task that was removed."""

    id: str
    number: int
    removed: Literal[True] = True


class TaskListMeta(ResponseMeta):
    """``next`` is the ``before`` of the next page."""

    next: int | None


class HandoffMeta(ResponseMeta):
    """The new hand-off and its run."""

    handoff: str
    run: str | None


class HistoryEvent(Camel):
    """One event in the history of a task."""

    event_type: str
    timestamp: int
    data: dict[str, Any]


class TaskHistory(Camel):
    """The history of a task, oldest first."""

    events: list[HistoryEvent]


class QueuedOut(Camel):
    """An item of a task's queue."""

    id: str
    agent_name: str | None
    prompt: str
    created_at: int


class TaskQueue(Camel):
    """The queue of a task, the next item first."""

    items: list[QueuedOut]


class Attachments(Camel):
    """The files of a task."""

    items: list[AttachmentOut]


class TaskExport(TaskOut, kw_only=True):
    """A complete task, as ``import`` accepts it."""

    agent_chain: Sequence[HandoffDetail]
    queue: list[QueuedOut]
    history: list[HistoryEvent]


# --- Requests -----------------------------------------------------------------------------------------------


class Source(CamelBody, omit_defaults=True):
    """Where a task comes from."""

    source_type: ShortText
    user_id: ShortText | None = None
    conversation_id: ShortText | None = None


class NewTask(CamelBody):
    """A task to create."""

    description: Description
    source: Source | None = None
    cwd: NonEmptyText | None = None

    def fields(self) -> dict[str, Any]:
        source = msgspec.to_builtins(self.source) if self.source else None
        return {"description": self.description, "source": source, "cwd": self.cwd}


class StatusIn(CamelBody):
    """The status to set."""

    type: TaskStatus
    message: ShortText | None = None


class StatusBody(CamelBody):
    """A change of status."""

    status: StatusIn


class ArchiveBody(CamelBody):
    """Whether a task is to be archived."""

    archived: bool = True


class PlanBody(CamelBody):
    """A plan, or parts of one; omitted parts stay as they are."""

    summary: ShortText | UnsetType | None = UNSET
    requirements: ShortTexts | ShortText | UnsetType | None = UNSET
    acceptance_criteria: ShortTexts | ShortText | UnsetType | None = UNSET
    plan: ShortTexts | PlanText | UnsetType | None = UNSET

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
    default_cwd: NonEmptyText | None = None
    budget_usd: Dollars | None = None
    on_question: OnQuestion | None = None


class NewHandoffBody(HandoffBody, frozen=True, kw_only=True):
    """A hand-off of a task that is created with it."""

    description: Description | None = None
    """Default: the first line of the prompt that is not blank."""

    def task_description(self) -> str:
        lines = (line.strip() for line in self.prompt.splitlines())
        return self.description or next((line for line in lines if line), "(no prompt)")[:200]


class CompleteBody(CamelBody):
    """The result of a hand-off."""

    output: Text


class QueueBody(CamelBody):
    """An item for the queue; with an agent it is handed over when the task is free."""

    prompt: Annotated[Text, Meta(min_length=1)]
    agent_name: Name | None = None
    default_cwd: NonEmptyText | None = None
    """The agent's working directory if the task has none."""
    env: Variables | None = None

    def handoff(self, task_cwd: str | None) -> StartRequest | None:
        """Return the start of the agent; None for an item without one."""
        if self.agent_name is None:
            return None
        return HandoffRequest(self.agent_name, self.prompt, default_cwd=self.default_cwd, env=self.env).start(task_cwd)


class AttachmentBody(CamelBody):
    """A file: its name, and its content in base64."""

    filename: Name
    content: str

    def bytes(self) -> bytes:
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UsageError(f"content: invalid base64: {error}") from error


class HandoffIn(Camel, kw_only=True):
    """A hand-off of an imported task. Unknown keys, which another version may write, are ignored."""

    id: RecordId | None = None
    run: RecordId | None = None
    agent_name: ShortText
    started_at: Millis
    completed_at: Millis | None = None
    output: Text = ""
    status: Status | None = None
    reason: Reason | None = None
    prompt: Text | None = None
    session_id: ShortText | None = None


class QueuedIn(Camel, kw_only=True):
    """An item in the queue of an imported task."""

    id: RecordId | None = None
    agent_name: Name | None = None
    prompt: Annotated[Text, Meta(min_length=1)]
    created_at: Millis | None = None


class HistoryIn(Camel):
    """An event in the history of an imported task."""

    event_type: EventType
    timestamp: Millis
    data: dict[str, Any] = {}


class TaskIn(Camel):
    """A task to import. Missing fields get defaults; invalid ones are refused."""

    id: TaskId
    description: Annotated[str, Meta(min_length=1, max_length=1024 * 1024)]
    status: StatusIn | None = None
    source: dict[str, Any] | None = None
    cwd: NonEmptyText | None = None
    current_agent: ShortText | None = None
    agent_chain: Annotated[list[HandoffIn], Meta(max_length=100_000)] | None = None
    session_id: ShortText | None = None
    queue: Annotated[list[QueuedIn], Meta(max_length=MOST_QUEUED)] | None = None
    history: Annotated[list[HistoryIn], Meta(max_length=500_000)] | None = None
    created_at: Millis | None = None
    updated_at: Millis | None = None
    summary: ShortText | None = None
    requirements: ShortTexts | ShortText | None = None
    acceptance_criteria: ShortTexts | ShortText | None = None
    plan: ShortTexts | PlanText | None = None
    ends_with_handoff: bool = False
    archived: bool = False

    def __post_init__(self) -> None:
        if self.id.isdigit():
            raise ValueError("an id must not consist of digits only, because tasks have numbers")
        named = [one.id for one in self.queue or () if one.id is not None]
        if len(set(named)) < len(named):
            raise ValueError("queue: two items have the same id")
        if sum(len(one.prompt) for one in self.queue or ()) > MOST_QUEUED_TEXT:
            raise ValueError(f"queue: more than {MOST_QUEUED_TEXT:,} characters")
        for name, value in (("source", self.source), ("history", [one.data for one in self.history or ()])):
            if _is_nested_deeper(value, MAX_NESTING):
                raise ValueError(f"{name} is nested too deeply")


def _is_nested_deeper(value: Any, most: int) -> bool:
    """True if a value has more levels; what the decoder just accepts may be too deep for the encoder."""
    level = [value]
    for _ in range(most):
        held = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [below for one in held for below in one]
    return any(isinstance(one, dict | list) for one in level)


class ImportBody(CamelBody):
    """A task to import."""

    task: TaskIn


def imported(body: TaskIn, now: float) -> tuple[Task, list[Handoff], list[ImportedEvent]]:
    """Return the task, its hand-offs and its history. Open hand-offs are closed as lost."""
    planning = _planning(body)
    records = [_imported(one, body.id, number, now) for number, one in enumerate(body.agent_chain or (), 1)]
    status = body.status.type if body.status else TaskStatus.PENDING
    task = Task(
        id=body.id,
        number=0,
        description=body.description,
        created_at=_seconds(body.created_at, now),
        updated_at=_seconds(body.updated_at, now),
        cwd=body.cwd,
        source=body.source,
        status=TaskStatus.WAITING if status is TaskStatus.ACTIVE else status,
        message=body.status.message if body.status else None,
        planning=None if planning == Planning() else planning,
        handoffs=len(records),
        queue=tuple(
            Queued(one.id or f"q{number}", one.prompt, one.agent_name, _seconds(one.created_at, now))
            for number, one in enumerate(body.queue or (), 1)
        ),
        brought=True,
        brought_handoffs=len(records),
        session=body.session_id,
        ends_with_handoff=body.ends_with_handoff,
        archived=body.archived,
    )
    return task, records, [_imported_event(one) for one in body.history or ()]


def _imported_event(body: HistoryIn) -> ImportedEvent:
    data = {_snake(name): value for name, value in body.data.items() if name != "event"}
    return ImportedEvent(body.timestamp / 1000, body.event_type, data)


def _imported(body: HandoffIn, task: str, number: int, now: float) -> Handoff:
    is_closed = body.completed_at is not None
    known = body.status or Status.DONE
    return Handoff(
        id=body.id or f"{task}-{number}",
        task=task,
        number=number,
        run=body.run,
        agent=body.agent_name,
        depth=0,
        started_at=body.started_at / 1000,
        completed_at=_seconds(body.completed_at, now),
        status=known if is_closed and known.ended else Status.LOST,
        reason=body.reason if is_closed else Reason.LOST,
        output=body.output if is_closed else body.output or "interrupted by the export of its task",
        prompt=body.prompt,
        session=body.session_id,
    )


# --- From values to JSON ------------------------------------------------------------------------------------


def millis(seconds: float) -> int:
    return round(seconds * 1000)


def _seconds(millis: int | None, default: float) -> float:
    return default if millis is None else millis / 1000


def _task_fields(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "number": task.number,
        "task_type": "descriptionOnly" if task.planning is None else "planned",
        "description": task.description,
        "status": StatusOut(task.status, task.message or UNSET),
        "source": task.source,
        "cwd": task.cwd,
        "current_agent": task.current_agent,
        "created_at": millis(task.created_at),
        "updated_at": millis(task.updated_at),
        "ends_with_handoff": task.ends_with_handoff,
        "archived": task.archived,
    }


def summary_out(task: Task) -> TaskSummary:
    return TaskSummary(
        **_task_fields(task),
        current_since=None if task.current_since is None else millis(task.current_since),
        handoff_count=task.handoffs,
        queued=len(task.queue),
    )


def task_out(
    task: Task,
    handoffs: Iterable[Handoff],
    session: str | None,
    statuses: Mapping[str, str] = MappingProxyType({}),
) -> TaskOut:
    """Return a task with its hand-offs. ``statuses``: those of the runs of open hand-offs, by id."""
    planning = task.planning
    planned = {name: getattr(planning, name) for name in Planning.__slots__} if planning else {}
    return TaskOut(
        **_task_fields(task),
        agent_chain=[handoff_out(one, statuses.get(one.run or "")) for one in handoffs],
        session_id=session,
        attachments=[attachment_out(one) for one in task.attachments],
        **planned,
    )


def _handoff_fields(record: Handoff, status: str | None) -> dict[str, Any]:
    return {
        "id": record.id,
        "run": record.run,
        "agent_name": record.agent,
        "started_at": millis(record.started_at),
        "completed_at": None if record.completed_at is None else millis(record.completed_at),
        "output": record.output,
        "status": status if status is not None and record.completed_at is None else record.status,
        "reason": record.reason,
        "elsewhere": record.elsewhere,
    }


def handoff_out(record: Handoff, status: str | None = None) -> HandoffOut:
    return HandoffOut(**_handoff_fields(record, status))


def handoff_detail(record: Handoff, status: str | None, prompt: str | None, session: str | None) -> HandoffDetail:
    """Return a hand-off with details. ``status``: that of its run; None if there is no such run here."""
    return HandoffDetail(**_handoff_fields(record, status), task=record.task, prompt=prompt, session_id=session)


def export_out(
    task: TaskOut, handoffs: list[HandoffDetail], queue: Iterable[Queued], events: Iterable[Event]
) -> TaskExport:
    fields = {name: getattr(task, name) for name in task.__struct_fields__} | {"agent_chain": handoffs}
    return TaskExport(**fields, queue=[queued_out(one) for one in queue], history=history_out(events))


def attachment_out(one: Attachment) -> AttachmentOut:
    return AttachmentOut(one.name, one.size, one.sha256, millis(one.created_at))


def queued_out(one: Queued) -> QueuedOut:
    return QueuedOut(one.id, one.agent, one.prompt, millis(one.created_at))


_DOCUMENTED = {
    STARTED: ("agent_name",),
    COMPLETED: ("agent_name", "output_length"),
    UNQUEUED: ("id", "agent_name"),
}
"""The only data of these events in the history; the stored events have more."""


def history_out(events: Iterable[Event]) -> list[HistoryEvent]:
    return [_history_event(event.data, event.ts) for event in events if event.type == "task.changed"]


def _history_event(data: Mapping[str, Any], ts: float) -> HistoryEvent:
    kind = data["event"]
    names = _DOCUMENTED.get(kind, [name for name in data if name != "event"])
    return HistoryEvent(kind, millis(ts), {_camel(name): data.get(name) for name in names})


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
