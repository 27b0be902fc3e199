"""WHAT IS WANTED: tasks and their hand-offs, as values, and the rules by which they change.

Everything here is pure: an order looks at a task as it stands and says what becomes of it. Who may give an order is
decided where orders come in; that one is carried out whole, alone, and never on a task that has meanwhile become
another is the store's doing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from hocket.errors import Conflict, NotFound
from hocket.model.run import Reason, Run, Status


class TaskStatus(StrEnum):
    """How far a task has come."""

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
    """What a description became when somebody thought about it."""

    summary: str | None = None
    requirements: Texts | None = None
    acceptance_criteria: Texts | None = None
    plan: Texts | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that belongs to a task. Its bytes lie beside the database."""

    name: str
    size: int
    sha256: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Queued:
    """Something to be done when the task is free. With an agent it is handed over by itself."""

    id: str
    prompt: str
    agent: str | None
    created_at: float
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    """Where the agent is to work, and what it gets of the environment of whoever queued it. The values of secret
    variables are not here: `secret_files` has them, under this item's id."""

    @property
    def size(self) -> int:
        return len(self.prompt) + sum(len(name) + len(value) for name, value in (self.env or {}).items())


@dataclass(frozen=True, slots=True)
class Task:
    """What somebody wants to have done. Its hand-offs are kept beside it: a task grows with none of them."""

    id: str
    number: int
    """Dealt out when it is written down, so that what is refused uses none up; 0 until then."""
    description: str
    created_at: float
    updated_at: float
    cwd: str | None = None
    source: Mapping[str, Any] | None = None
    owner: str | None = None
    """The run that wanted it; None for a person."""
    status: TaskStatus = TaskStatus.PENDING
    message: str | None = None
    planning: Planning | None = None
    current_agent: str | None = None
    handoffs: int = 0
    """How many there were."""
    attachments: tuple[Attachment, ...] = ()
    queue: tuple[Queued, ...] = ()
    current_since: float | None = None
    """When the turn of the agent that has it began."""
    brought: bool = False
    """Whether it was kept elsewhere before it came here."""
    brought_handoffs: int = 0
    """How many of its hand-offs it had by then: the first ones."""
    session: str | None = None
    """The one that it had there last."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """One agent's turn at a task: the record of a run."""

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
    """Whether its run stayed where the task came from. Then this is all that is known of it."""
    prompt: str | None = None
    session: str | None = None
    """What a run was asked, and the session that it had, where it cannot be asked itself."""


MOST_QUEUED = 100
MOST_QUEUED_TEXT = 1_000_000
"""What waits is part of the task itself, which is written whole with every change."""

Told = tuple[str, dict[str, Any]]
"""One line of a task's history: what happened, and more about it."""


class Past(NamedTuple):
    """A line of a task's history that was written elsewhere."""

    ts: float
    kind: str
    data: Mapping[str, Any]


CREATED, IMPORTED, PLANNED, STATUS = "task_created", "task_imported", "task_planned", "status_changed"
STARTED, COMPLETED = "agent_handoff_started", "agent_handoff_completed"
ATTACHED, QUEUED, UNQUEUED, REFUSED = "attachment_added", "queued", "unqueued", "queue_refused"


class Change(NamedTuple):
    """What an order comes to."""

    task: Task
    told: tuple[Told, ...]
    opened: tuple[Handoff, ...] = ()
    closed: tuple[Handoff, ...] = ()
    noted: tuple[Handoff, ...] = ()
    """Records about which more is known, and nothing else has changed."""
    past: tuple[Past, ...] = ()
    """What happened before all that is told here."""


class Order(Protocol):
    """Something to be done to one task. ``open_`` are its hand-offs that are not closed, the innermost last."""

    @property
    def task(self) -> str: ...

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change: ...


def require_task(task: Task | None, name: str) -> Task:
    """The task itself, or an error that says that there is none."""
    if task is None:
        raise NotFound(f"there is no task {name!r}", "`hocket task list` lists them")
    return task


@dataclass(frozen=True, slots=True)
class Create:
    """Make a task, also one that was kept elsewhere until now: then with its hand-offs, all closed, and its history."""

    new: Task
    handoffs: tuple[Handoff, ...] = ()
    history: tuple[Past, ...] = ()

    @property
    def task(self) -> str:
        return self.new.id

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        if task is not None:
            raise Conflict(f"there is a task {task.id} already", f"`hocket task show {task.number}` shows it")
        told: tuple[Told, ...] = () if self.history else ((CREATED, {"description": self.new.description}),)
        if self.new.brought:
            away = sum(one.elsewhere for one in self.handoffs)
            told += ((IMPORTED, {"handoffs": len(self.handoffs), "runs_elsewhere": away}),)
        return Change(self.new, told, opened=self.handoffs, past=self.history)


@dataclass(frozen=True, slots=True)
class Restore(Create):
    """Put a task back that was lost, as it was: nothing happens to it by that."""

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        return Change(self.new, (), opened=self.handoffs, past=self.history)


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Say how far the task is."""

    task: str
    status: TaskStatus
    message: str | None = None

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        task = require_task(task, self.task)
        if self.status not in TRANSITIONS[task.status]:
            allowed = ", ".join(sorted(TRANSITIONS[task.status])) or "nothing"
            raise Conflict(f"a task that is {task.status} cannot become {self.status}", f"it can become: {allowed}")
        return _with_status(replace(task, updated_at=now), self.status, self.message)


def _with_status(task: Task, status: TaskStatus, message: str | None) -> Change:
    told = {"from": task.status, "to": status} | ({"message": message} if message else {})
    return Change(replace(task, status=status, message=message), ((STATUS, told),))


@dataclass(frozen=True, slots=True)
class Plan:
    """Make a plan of a description. What is not said stays as it was; so do its hand-offs."""

    task: str
    planning: Planning

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        task = require_task(task, self.task)
        before = task.planning or Planning()
        said = {name: value for name in Planning.__slots__ if (value := getattr(self.planning, name)) is not None}
        after = replace(before, **said)
        return Change(replace(task, planning=after, updated_at=now), ((PLANNED, {"summary": after.summary}),))


@dataclass(frozen=True, slots=True)
class Attach:
    """Add a file whose bytes are in place."""

    task: str
    attachment: Attachment

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        task = require_task(task, self.task)
        if any(one.name == self.attachment.name for one in task.attachments):
            raise Conflict(f"the task has an attachment {self.attachment.name!r} already", "choose another name")
        told = {"name": self.attachment.name, "size": self.attachment.size}
        return Change(
            replace(task, attachments=(*task.attachments, self.attachment), updated_at=now), ((ATTACHED, told),)
        )


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Something for later, behind what waits already."""

    task: str
    item: Queued

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        task = require_task(task, self.task)
        if task.status.is_over:
            raise Conflict(f"the task is {task.status}; nothing more is done for it")
        if any(one.id == self.item.id for one in task.queue):
            return Change(task, ())  # It was asked for twice.
        size = sum(one.size for one in (*task.queue, self.item))
        if len(task.queue) >= MOST_QUEUED or size > MOST_QUEUED_TEXT:
            raise Conflict(
                f"the queue is full: it holds {MOST_QUEUED} items and {MOST_QUEUED_TEXT:,} characters",
                "wait until some of it is done, or keep long texts in files",
            )
        told = {"id": self.item.id, "agent_name": self.item.agent}
        return Change(replace(task, queue=(*task.queue, self.item), updated_at=now), ((QUEUED, told),))


@dataclass(frozen=True, slots=True)
class Unqueue:
    """Take something out of the queue: the first, or one by its id."""

    task: str
    item: str | None = None
    key: str | None = None
    """Under which whoever took it finds it again, should the answer be lost."""

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        task = require_task(task, self.task)
        if self.item is None and not task.queue:
            raise Conflict("nothing is queued for this task")
        item = task.queue[0].id if self.item is None else self.item
        taken = next((one for one in task.queue if one.id == item), None)
        if taken is None:
            raise NotFound(f"nothing called {item!r} is queued for this task", "it may have been taken already")
        left = tuple(one for one in task.queue if one.id != item)
        told = {"id": item, "agent_name": taken.agent, "prompt": taken.prompt, "since": taken.created_at}
        told |= {"key": self.key} if self.key else {}
        return Change(replace(task, queue=left, updated_at=now), ((UNQUEUED, told),))


@dataclass(frozen=True, slots=True)
class Refuse:
    """Take something out of the queue that cannot be done, and say why."""

    task: str
    item: str
    why: str

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        left, ((_, taken),), *_ = Unqueue(self.task, self.item).on(task, open_, now)
        # With its words: nobody else has them any more.
        told = {name: taken[name] for name in ("id", "agent_name", "prompt")} | {"message": self.why}
        return Change(replace(left, message=self.why), ((REFUSED, told),))


@dataclass(frozen=True, slots=True)
class Begin:
    """Hand the task to an agent. Only the agent that has it may hand it on, and has it again afterwards."""

    task: str
    id: str
    run: str
    agent: str
    depth: int
    caller: str | None = None
    """The run that asks, where it is a run."""
    evidence: str | None = None
    """How the working directory stands, where somebody has looked already."""

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        task = require_task(task, self.task)
        check_free(task, open_, self.caller)
        number, seen = task.handoffs + 1, self.evidence
        record = Handoff(self.id, task.id, number, self.run, self.agent, self.depth, now, evidence=seen)
        told: tuple[Told, ...] = ((STARTED, {"agent_name": self.agent, "handoff": self.id, "run": self.run}),)
        after = replace(task, current_agent=self.agent, current_since=now, handoffs=record.number, updated_at=now)
        if task.status is not TaskStatus.ACTIVE:
            after, became, *_ = _with_status(after, TaskStatus.ACTIVE, None)
            told += became
        return Change(after, told, opened=(record,))


def check_free(task: Task, open_: Sequence[Handoff], caller: str | None) -> None:
    """Raise unless this caller may hand the task to an agent now."""
    if task.status.is_over:
        again = f"`hocket task status {task.number} pending` opens it again"
        hint = again if task.status is TaskStatus.FAILED else '`hocket handoff AGENT "PROMPT"` makes a new one'
        raise Conflict(f"the task is {task.status}; it is handed to nobody any more", hint)
    if open_ and (caller is None or open_[-1].run != caller):
        raise Conflict(
            f"{open_[-1].agent} is at work on this task",
            "Wait for it, stop it, or queue this with `hocket task queue`; only the agent itself may hand it on",
        )


@dataclass(frozen=True, slots=True)
class Note:
    """Write down how the working directory stood when a hand-off began; it may be over by then."""

    task: str
    handoff: str
    evidence: str

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        found = [replace(one, evidence=self.evidence) for one in open_ if one.id == self.handoff]
        return Change(require_task(task, self.task), (), noted=tuple(found))


@dataclass(frozen=True, slots=True)
class Close:
    """End a hand-off with what came of it. Another agent's record is never touched."""

    task: str
    handoff: str
    output: str
    status: Status = Status.DONE
    reason: Reason | None = Reason.SINGLE_RUN

    def on(self, task: Task | None, open_: Sequence[Handoff], now: float) -> Change:
        task = require_task(task, self.task)
        record = next((one for one in open_ if one.id == self.handoff), None)
        if record is None:
            raise Conflict("that hand-off is closed already")
        closed = replace(record, completed_at=now, output=self.output, status=self.status, reason=self.reason)
        left = [one for one in open_ if one.id != self.handoff]
        about: dict[str, Any] = {"agent_name": record.agent, "output_length": str(len(self.output))}
        about |= {"handoff": record.id, "run": record.run, "status": self.status, "reason": self.reason}
        agent, since = (left[-1].agent, left[-1].started_at) if left else (None, None)
        after = replace(task, current_agent=agent, current_since=since, updated_at=now)
        told: tuple[Told, ...] = ((COMPLETED, about),)
        if not left and task.status is TaskStatus.ACTIVE:
            after, became, *_ = _with_status(after, TaskStatus.WAITING, None)
            told += became
        return Change(after, told, closed=(closed,))


def closing(run: Run) -> Close | None:
    """What the end of a run means for the hand-off that it is, if it is one."""
    if run.task is None or run.handoff is None:
        return None
    return Close(run.task, run.handoff, output_of(run), run.status, run.reason)


def output_of(run: Run) -> str:
    """The final message of a run that ended well; of any other one why it did not, and then what it said."""
    if run.status is Status.DONE:
        return run.result or ""
    why = f"{run.status} ({run.reason})" + (f": {run.error.strip()}" if run.error and run.error.strip() else "")
    return f"{why}\n\n{run.result}" if run.result else why


def next_queued(task: Task, last: Handoff | None) -> Queued | None:
    """What is to be handed over now by itself: the first in the queue, if the turn before it ended well.

    What a task brought along from elsewhere waits until somebody has handed it over here: a file starts no agents.
    """
    is_free = task.status in (TaskStatus.PENDING, TaskStatus.WAITING) and task.current_agent is None
    went_well = last is None or last.status is Status.DONE
    # By the record's number: that it names a run which is known here is the word of that same file.
    moves = not task.brought or (last is not None and last.number > task.brought_handoffs)
    head = task.queue[0] if task.queue else None
    return head if head and head.agent and is_free and went_well and moves else None
