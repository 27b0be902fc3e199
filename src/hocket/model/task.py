"""Tasks and their hand-offs as values, and the orders that change them. Pure.

An order turns a task into a ``Change``. Callers check who may give it; the store applies it atomically to the latest
state of the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

from hocket.errors import Conflict, NotFound
from hocket.model.run import Reason, Run, Status


class TaskStatus(StrEnum):
    """The status of a task."""

    PENDING = "pending"
    ACTIVE = "active"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (TaskStatus.COMPLETED, TaskStatus.FAILED)


TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset({TaskStatus.ACTIVE, TaskStatus.FAILED}),
    TaskStatus.ACTIVE: frozenset({TaskStatus.WAITING, TaskStatus.COMPLETED, TaskStatus.FAILED}),
    TaskStatus.WAITING: frozenset({TaskStatus.ACTIVE, TaskStatus.COMPLETED, TaskStatus.FAILED}),
    TaskStatus.COMPLETED: frozenset(),
    TaskStatus.FAILED: frozenset({TaskStatus.PENDING}),
}

Texts = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planning:
    """The plan of a task."""

    summary: str | None = None
    requirements: Texts | None = None
    acceptance_criteria: Texts | None = None
    plan: Texts | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of a task. Its content is stored beside the database."""

    name: str
    size: int
    sha256: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Queued:
    """An item of a task's queue. With an agent it is handed over when the task is free."""

    id: str
    prompt: str
    agent: str | None
    created_at: float
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    """The environment of the caller that queued it. The values of secret variables are in `secret_files`, under the id
    of this item."""

    @property
    def size(self) -> int:
        return len(self.prompt) + sum(len(name) + len(value) for name, value in (self.env or {}).items())


@dataclass(frozen=True, slots=True)
class Task:
    """A task. Its hand-offs are stored separately, so that its size does not grow with them."""

    id: str
    number: int
    """Assigned when it is stored, so that a refused task uses no number; 0 before."""
    description: str
    created_at: float
    updated_at: float
    cwd: str | None = None
    source: Mapping[str, Any] | None = None
    owner: str | None = None
    """The run that created it; None for a person."""
    status: TaskStatus = TaskStatus.PENDING
    message: str | None = None
    planning: Planning | None = None
    current_agent: str | None = None
    handoffs: int = 0
    """How many there have been."""
    attachments: tuple[Attachment, ...] = ()
    queue: tuple[Queued, ...] = ()
    current_since: float | None = None
    """When the current agent got it."""
    brought: bool = False
    """True if it was imported."""
    brought_handoffs: int = 0
    """How many of its hand-offs were imported: the first ones."""
    session: str | None = None
    """The last session before the import."""
    ends_with_handoff: bool = False
    """True if a hand-off created it: it is completed, or failed, with its last hand-off, and goes on with another one.

    A status that is set on request ends this.
    """
    archived: bool = False
    """True if lists leave it out until it is handed off again."""

    @property
    def is_final(self) -> bool:
        return self.status.is_over and not self.ends_with_handoff


@dataclass(frozen=True, slots=True)
class Handoff:
    """A hand-off of a task to an agent: the record of a run."""

    id: str
    task: str
    number: int
    """Which of its task's it is, from 1."""
    run: str | None
    """None for one that was brought along from elsewhere."""
    agent: str
    depth: int
    started_at: float
    completed_at: float | None = None
    status: Status = Status.RUNNING
    reason: Reason | None = None
    output: str = ""
    evidence: str | None = None
    """What its working directory looked like when it began."""
    elsewhere: bool = False
    """True if its run is on the machine that the task was imported from."""
    prompt: str | None = None
    session: str | None = None
    """Prompt and session of a run that is not stored here."""


MOST_QUEUED = 100
MOST_QUEUED_TEXT = 1_000_000
"""Limits of a queue, which is stored as part of its task, whole with every change."""

HistoryEntry = tuple[str, dict[str, Any]]
"""An event of a task's history: its type and its data."""


class ImportedEvent(NamedTuple):
    """An imported event of a task's history."""

    ts: float
    kind: str
    data: Mapping[str, Any]


CREATED, IMPORTED, PLANNED, STATUS = "task_created", "task_imported", "task_planned", "status_changed"
STARTED, COMPLETED = "agent_handoff_started", "agent_handoff_completed"
ATTACHED, QUEUED, UNQUEUED, REFUSED = "attachment_added", "queued", "unqueued", "queue_refused"
ARCHIVED, UNARCHIVED, REMOVED = "task_archived", "task_unarchived", "task_removed"


class Change(NamedTuple):
    """The result of an order."""

    task: Task
    history: tuple[HistoryEntry, ...]
    opened: tuple[Handoff, ...] = ()
    closed: tuple[Handoff, ...] = ()
    updated: tuple[Handoff, ...] = ()
    """Hand-offs that got more information."""
    imported: tuple[ImportedEvent, ...] = ()
    """Imported history."""
    is_removal: bool = False
    """True if the task is removed, with its hand-offs and its history."""


def require_task(task: Task | None, name: str) -> Task:
    if task is None:
        raise NotFound(f"there is no task {name!r}", "`hocket task list` lists them")
    return task


class TaskOrder(Struct, frozen=True):
    """A change to an existing task."""

    task: str

    def apply_to(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        """Return the change to the latest state of the task. ``open_`` are its open hand-offs, the innermost last."""
        return self.change(require_task(task, self.task), open_, now)

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        raise NotImplementedError


class Create(Struct, frozen=True):
    """Create a task; an imported one has closed hand-offs and a history."""

    new: Task
    handoffs: tuple[Handoff, ...] = ()
    history: tuple[ImportedEvent, ...] = ()

    @property
    def task(self) -> str:
        return self.new.id

    def apply_to(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        if task is not None:
            raise Conflict(f"task {task.id} exists already", f"`hocket task show {task.number}` shows it")
        entries: tuple[HistoryEntry, ...] = () if self.history else ((CREATED, {"description": self.new.description}),)
        if self.new.brought:
            away = sum(one.elsewhere for one in self.handoffs)
            entries += ((IMPORTED, {"handoffs": len(self.handoffs), "runs_elsewhere": away}),)
        return Change(self.new, entries, opened=self.handoffs, imported=self.history)


class Restore(Create, frozen=True):
    """Store a lost task again, without an event."""

    def apply_to(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        return Change(self.new, (), opened=self.handoffs, imported=self.history)


class SetStatus(TaskOrder, frozen=True):
    """Set the status of a task."""

    status: TaskStatus
    message: str | None = None

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        possible = TRANSITIONS[task.status]
        if task.status.is_over and not task.is_final:
            possible |= TRANSITIONS[TaskStatus.WAITING]
        if self.status not in possible:
            allowed = ", ".join(sorted(possible))
            hint = f"allowed: {allowed}" if allowed else f"a {task.status} task is final"
            raise Conflict(f"cannot change the status of a task from {task.status} to {self.status}", hint)
        return _with_status(replace(task, ends_with_handoff=False, updated_at=now), self.status, self.message)


def _with_status(task: Task, status: TaskStatus, message: str | None) -> Change:
    data = {"from": task.status, "to": status} | ({"message": message} if message else {})
    return Change(replace(task, status=status, message=message), ((STATUS, data),))


class Plan(TaskOrder, frozen=True):
    """Set the plan of a task; parts that are None stay as they are."""

    planning: Planning

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        before = task.planning or Planning()
        given = {name: value for name in Planning.__slots__ if (value := getattr(self.planning, name)) is not None}
        after = replace(before, **given)
        return Change(replace(task, planning=after, updated_at=now), ((PLANNED, {"summary": after.summary}),))


class Archive(TaskOrder, frozen=True):
    """Put a task into the archive, or bring it back."""

    archived: bool

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        if self.archived is task.archived:
            return Change(task, ())  # a repeated request
        if self.archived and open_:
            raise Conflict(f"{open_[-1].agent} is at work on task {task.number}", "Wait for it, or stop it")
        return Change(replace(task, archived=self.archived), ((ARCHIVED if self.archived else UNARCHIVED, {}),))


class Remove(TaskOrder, frozen=True):
    """Remove a task for good. The store refuses it while a run of the task is live; its runs stay."""

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        return Change(task, ((REMOVED, {"number": task.number}),), is_removal=True)


class Attach(TaskOrder, frozen=True):
    """Add a file whose content is stored already."""

    attachment: Attachment

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        if any(one.name == self.attachment.name for one in task.attachments):
            raise Conflict(f"attachment {self.attachment.name!r} exists already", "choose another name")
        data = {"name": self.attachment.name, "size": self.attachment.size}
        return Change(
            replace(task, attachments=(*task.attachments, self.attachment), updated_at=now), ((ATTACHED, data),)
        )


class Enqueue(TaskOrder, frozen=True):
    """Add an item at the end of the queue."""

    item: Queued

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        if task.is_final:
            raise Conflict(f"cannot queue work for a {task.status} task")
        if any(one.id == self.item.id for one in task.queue):
            return Change(task, ())  # a repeated request
        size = sum(one.size for one in (*task.queue, self.item))
        if len(task.queue) >= MOST_QUEUED or size > MOST_QUEUED_TEXT:
            raise Conflict(
                f"the queue is full (at most {MOST_QUEUED} items and {MOST_QUEUED_TEXT:,} characters)",
                "wait until items are done, or put long texts in files",
            )
        data = {"id": self.item.id, "agent_name": self.item.agent}
        after = replace(task, queue=(*task.queue, self.item), updated_at=now)
        entries: tuple[HistoryEntry, ...] = ((QUEUED, data),)
        if task.status is TaskStatus.COMPLETED:
            after, became, *_ = _with_status(after, TaskStatus.WAITING, None)
            entries += became
        return Change(after, entries)


class Unqueue(TaskOrder, frozen=True):
    """Remove an item from the queue: the first, or one by its id."""

    item: str | None = None
    key: str | None = None
    """Idempotency key: a repeated request gets the same item."""

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        if self.item is None and not task.queue:
            raise Conflict("the queue of this task is empty")
        item = task.queue[0].id if self.item is None else self.item
        taken = next((one for one in task.queue if one.id == item), None)
        if taken is None:
            raise NotFound(f"unknown item in the queue of this task: {item!r}", "it may have been removed already")
        left = tuple(one for one in task.queue if one.id != item)
        data = {"id": item, "agent_name": taken.agent, "prompt": taken.prompt, "since": taken.created_at}
        data |= {"key": self.key} if self.key else {}
        return Change(replace(task, queue=left, updated_at=now), ((UNQUEUED, data),))


class Refuse(TaskOrder, frozen=True):
    """Remove an item from the queue that cannot be handed over, with the reason."""

    item: str
    why: str

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        left, ((_, taken),), *_ = Unqueue(self.task, self.item).change(task, open_, now)
        # With the prompt, which is stored nowhere else.
        data = {name: taken[name] for name in ("id", "agent_name", "prompt")} | {"message": self.why}
        return Change(replace(left, message=self.why), ((REFUSED, data),))


class Begin(TaskOrder, frozen=True):
    """Hand a task to an agent. Only the current agent may hand it on; it is current again afterwards."""

    id: str
    run: str
    agent: str
    depth: int
    caller: str | None = None
    """The calling run, if any."""
    evidence: str | None = None
    """The state of the working directory, if known already."""

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        check_free(task, open_, self.caller)
        number, seen = task.handoffs + 1, self.evidence
        record = Handoff(self.id, task.id, number, self.run, self.agent, self.depth, now, evidence=seen)
        started = {"agent_name": self.agent, "handoff": self.id, "run": self.run}
        entries: tuple[HistoryEntry, ...] = ((STARTED, started),)
        after = replace(task, current_agent=self.agent, current_since=now, handoffs=record.number, updated_at=now)
        if task.archived:
            after, brought_back, *_ = Archive(task.id, archived=False).change(after, open_, now)
            entries += brought_back
        if task.status is not TaskStatus.ACTIVE:
            after, became, *_ = _with_status(after, TaskStatus.ACTIVE, None)
            entries += became
        return Change(after, entries, opened=(record,))


def check_free(task: Task, open_: Sequence[Handoff], caller: str | None) -> None:
    """Raise Conflict unless this caller may hand the task to an agent now."""
    if task.is_final:
        again = f"`hocket task status {task.number} pending` reopens it"
        hint = again if task.status is TaskStatus.FAILED else '`hocket handoff AGENT "PROMPT"` creates a new one'
        raise Conflict(f"cannot hand off a {task.status} task", hint)
    if open_ and (caller is None or open_[-1].run != caller):
        raise Conflict(
            f"{open_[-1].agent} is at work on this task",
            "Wait for it, stop it, or use `hocket task queue`; only the current agent can hand it off",
        )


class RecordEvidence(TaskOrder, frozen=True):
    """Record the state of the working directory at the start of a hand-off, which may be closed by now."""

    handoff: str
    evidence: str

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        found = [replace(one, evidence=self.evidence) for one in open_ if one.id == self.handoff]
        return Change(task, (), updated=tuple(found))


class Close(TaskOrder, frozen=True):
    """Close a hand-off with its result."""

    handoff: str
    output: str
    status: Status = Status.DONE
    reason: Reason | None = Reason.SINGLE_RUN

    def change(self, task: Task, open_: Sequence[Handoff], now: float) -> Change:
        record = next((one for one in open_ if one.id == self.handoff), None)
        if record is None:
            raise Conflict("the hand-off is closed already")
        closed = replace(record, completed_at=now, output=self.output, status=self.status, reason=self.reason)
        left = [one for one in open_ if one.id != self.handoff]
        about: dict[str, Any] = {"agent_name": record.agent, "output_length": str(len(self.output))}
        about |= {"handoff": record.id, "run": record.run, "status": self.status, "reason": self.reason}
        agent, since = (left[-1].agent, left[-1].started_at) if left else (None, None)
        after = replace(task, current_agent=agent, current_since=since, updated_at=now)
        entries: tuple[HistoryEntry, ...] = ((COMPLETED, about),)
        if not left and task.status is TaskStatus.ACTIVE:
            after, became, *_ = _with_status(after, *status_after(task, closed))
            entries += became
        return Change(after, entries, closed=(closed,))


def status_after(task: Task, last: Handoff) -> tuple[TaskStatus, str | None]:
    """Return the status, and its message, of a task whose last open hand-off was closed."""
    if not task.ends_with_handoff:
        return TaskStatus.WAITING, None
    if last.status is not Status.DONE:
        why = f" ({last.reason})" if last.reason and last.reason.value != last.status.value else ""
        return TaskStatus.FAILED, f"{last.agent}: {last.status}{why}"
    return (TaskStatus.WAITING if task.queue else TaskStatus.COMPLETED), None


Order = Create | TaskOrder


def closing(run: Run) -> Close | None:
    """Return the order that closes the hand-off of an ended run; None if it has none."""
    if run.task is None or run.handoff is None:
        return None
    return Close(run.task, run.handoff, output_of(run), run.status, run.reason)


def output_of(run: Run) -> str:
    """Return the final message of a run; for one that is not complete the reason first."""
    if run.status is Status.DONE:
        return run.result or ""
    why = f"{run.status} ({run.reason})" + (f": {run.error.strip()}" if run.error and run.error.strip() else "")
    return f"{why}\n\n{run.result}" if run.result else why


def next_queued(task: Task, last: Handoff | None) -> Queued | None:
    """Return the item to hand over now: the first in the queue, if the last hand-off was completed.

    The queue of an imported task waits until it was handed off here: an imported file starts no agents.
    """
    is_free = task.status in (TaskStatus.PENDING, TaskStatus.WAITING) and task.current_agent is None
    went_well = last is None or last.status is Status.DONE
    # By its number: an imported record may name a run that exists here.
    moves = not task.brought or (last is not None and last.number > task.brought_handoffs)
    head = task.queue[0] if task.queue else None
    return head if head and head.agent and is_free and went_well and moves else None
