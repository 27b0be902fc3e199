"""Tasks and their hand-offs: access, cycles, attachments, and the queue that is processed automatically.

A hand-off starts a run; the run and its record are created in one transaction, and they end in one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import unicodedata
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hocket.errors import (
    AgentNotFound,
    Conflict,
    DiskLow,
    Forbidden,
    HocketError,
    NotFound,
    StoreError,
    TooLarge,
    UnknownAgent,
    UsageError,
    ValidationError,
)
from hocket.input_limits import MAX_ATTACHMENT
from hocket.model import Reason, Run, Status
from hocket.model.task import (
    Archive,
    Attach,
    Attachment,
    Close,
    Create,
    Enqueue,
    Handoff,
    ImportedEvent,
    Order,
    Plan,
    Planning,
    Queued,
    RecordEvidence,
    Refuse,
    Remove,
    SetStatus,
    Task,
    TaskStatus,
    Unqueue,
    check_free,
    next_queued,
)
from hocket.secret_files import public_part
from hocket.sessions.background import BackgroundTasks, OncePerKey
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.run_identity import new_id
from hocket.sessions.secret_store import SecretStore
from hocket.sessions.stops import Stops, stop_event
from hocket.store import Committed, Store
from hocket.store.task_files import FOLDER, TaskFiles
from hocket.tasks.cycles import Round, check_cycle, check_repetition, may_be_repeated, snapshot_of, stored_snapshot
from hocket.trust.approvals import is_trusted
from hocket.workflows.bind import check_directory
from hocket.workflows.directory_state import Snapshot, take_snapshot
from hocket.workflows.git import Git
from hocket.workflows.request import HandoffRequest, ResumeRequest, StartRequest
from hocket.workflows.resume import Resumer
from hocket.workflows.start import Assignment, Starter

T = TypeVar("T")

ROUNDS = 50
"""How many of a run's last hand-offs are checked for repetition."""
PAGE = 200
"""Tasks that are read at once in search of those of a run."""
_NAME_LENGTH = 128
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})
"""Names of devices on systems where the file may be saved."""


class Directory(NamedTuple):
    """A directory to take a snapshot of, and the environment that git runs in."""

    cwd: str
    env: Mapping[str, str]


class TaskHandoff(NamedTuple):
    """A hand-off with its task."""

    task: Task
    handoff: Handoff


class Tasks:
    """Creates, changes and hands off tasks, and records how hand-offs end. One per server."""

    def __init__(
        self,
        home: Path,
        store: Store,
        journal: Journal,
        secrets: SecretStore,
        starter: Starter,
        resumer: Resumer,
        stops: Stops,
    ) -> None:
        self._home = home
        self._journal = journal
        self._secrets = secrets
        self._starter = starter
        self._resumer = resumer
        self._stops = stops
        self.read = journal.read
        self._background = BackgroundTasks()
        self._task_files = TaskFiles(home, store)
        self._creating, self._taking = OncePerKey(), OncePerKey()
        self._snapshot_threads = ThreadPoolExecutor(2, "hocket-snapshot")
        self._processing: set[str] = set()
        """Tasks whose queue is being processed."""

    def open(self) -> None:
        """Process the queues that an earlier server left."""
        self._journal.listen(self._on_commit)
        self._journal.listen(self._task_files.note)
        self._background.spawn(self._task_files.catch_up())
        for task in self.read.queued_tasks():
            self._process_queue(task)

    async def close(self) -> None:
        await self._background.close()
        self._task_files.close()
        self._snapshot_threads.shutdown(wait=False, cancel_futures=True)

    # Access

    def find(self, ref: str, caller: Run | None) -> Task:
        """The task with this id or number. A run can access its own and those created below it."""
        task = self.read.find_task(ref)
        if caller is not None and not self._can_access(caller, task):
            raise Forbidden("a run reaches only its own task")
        return task

    def _can_access(self, caller: Run, task: Task) -> bool:
        if caller.task == task.id:
            return True
        owner = self.read.run(task.owner) if task.owner else None
        return owner is not None and any(one.id == caller.id for one in self._journal.above(owner))

    async def listed(
        self,
        caller: Run | None,
        status: TaskStatus | None,
        before: int | None,
        limit: int,
        archived: bool | None = None,
    ) -> list[Task]:
        """Tasks, the newest first; for a run those that it can access."""
        if caller is None:
            return self.read.tasks(status, before, limit, archived)
        found = {task.id: task async for task in self._created_below(caller)}
        if caller.task and (own := self.read.task(caller.task)) is not None:
            found[own.id] = own
        chosen = [
            task for task in found.values() if status in (None, task.status) and archived in (None, task.archived)
        ]
        chosen = [task for task in chosen if before is None or task.number < before]
        return sorted(chosen, key=lambda task: -task.number)[:limit]

    async def _created_below(self, caller: Run) -> AsyncIterator[Task]:
        """The tasks that a run created, or one below it: all of them are newer than the run itself."""
        is_accessible: dict[str, bool] = {}
        before = None
        while page := self.read.tasks(None, before, PAGE):
            for task in page:
                if task.created_at < caller.created_at and not task.brought:
                    return
                if task.owner is not None:
                    if task.owner not in is_accessible:
                        is_accessible[task.owner] = self._can_access(caller, task)
                    if is_accessible[task.owner]:
                        yield task
            before = page[-1].number
            await asyncio.sleep(0)

    # Creating

    async def create(self, new: Mapping[str, Any], key: str | None, caller: Run | None) -> Task:
        """Create a task. The same ``key`` gives the same one."""
        if new.get("cwd") is not None:
            check_directory(new["cwd"])

        async def create() -> Task:
            now = time.time()
            cwd = new.get("cwd") or (caller.cwd if caller else None)
            made = {"id": _id("t"), "number": 0, "created_at": now, "updated_at": now}
            task = Task(**{**made, **new, "cwd": cwd, "owner": caller.id if caller else None})
            return await self._change(Create(task), key=key)

        return await self._creating(key, create, self.read.task_by_request)

    async def adopt(self, task: Task, handoffs: list[Handoff], history: list[ImportedEvent], key: str | None) -> Task:
        """Import a task under its own id. Runs that are not known here stay where they are."""

        async def create() -> Task:
            self._check_ids(task, handoffs)
            records = (replace(one, elsewhere=one.run is None or self.read.run(one.run) is None) for one in handoffs)
            return await self._change(Create(task, tuple(records), tuple(history)), key)

        return await self._creating(key, create, self.read.task_by_request)

    def _check_ids(self, task: Task, handoffs: list[Handoff]) -> None:
        """Raise if an id in the file would give the task the events or the hand-off of a run of this home.

        Events are found by the id of their run or task; and a live run has its own hand-off or none.
        """
        if (run := self.read.run(task.id)) is not None:
            raise Conflict(f"the id {task.id} belongs to run {run.number}", "Give the task another id in its file")
        live = (found for one in handoffs if one.run and (found := self.read.run(one.run)) and not found.ended)
        if (run := next(live, None)) is not None:
            raise Conflict(
                f"the task names run {run.number} ({run.id}), which is still running here",
                f"Wait until it ends, or stop it with `hocket stop {run.number}`",
            )

    async def set_status(self, task: Task, status: TaskStatus, message: str | None) -> Task:
        return await self._change(SetStatus(task.id, status, message))

    async def plan(self, task: Task, planning: Planning) -> Task:
        return await self._change(Plan(task.id, planning))

    async def archive(self, task: Task, *, archived: bool) -> Task:
        return await self._change(Archive(task.id, archived))

    async def remove(self, ref: str) -> tuple[str, int]:
        """Remove a task, its records and its files; return its id and number, also if it is removed already."""
        if (known := self.read.removed_task(ref)) is not None:
            return known
        task = self.read.find_task(ref)
        with suppress(NotFound):  # another request was faster
            await self._write(Remove(task.id))
        await self._task_files.remove(task.id)
        return task.id, task.number

    async def _change(self, order: Order, key: str | None = None) -> Task:
        return (await self._write(order, key=key)).tasks[order.task]

    async def _write(self, order: Order, *, key: str | None = None, durable: bool = True) -> Committed:
        return await self._journal.write([], orders=[order], order_key=key, durable=durable)

    # Handing off

    async def hand_off(
        self, task: Task, request: StartRequest, key: str | None, caller: Run | None, queued: Queued | None = None
    ) -> TaskHandoff:
        """Hand the task to an agent; return once that is recorded, which is before the agent has done anything."""
        agent = request.agent
        if agent is None:
            raise UsageError("a task is handed to one agent", "name it with `agent`; it may start a chain itself")
        if key is not None and (known := self.read.by_request(key)) is not None:
            return self._known(task, known)
        request = self._completed(request, caller)
        directory = self._directory(request, caller)
        first = (Unqueue(task.id, queued.id),) if queued else ()
        try:
            await self._check(task, agent, caller, directory)
            snapshot = await self._check_rounds(request, caller, directory)
            assignment = Assignment(task.id, _id("h"), caller.id if caller else None, first, snapshot)
            run = await self._with_agent_name(agent, self._starter.start(request, key, caller, assignment))
        except Conflict:
            # An earlier request with the same key may have been faster.
            if key is None or (known := self.read.by_request(key)) is None:
                raise
            return self._known(task, known)
        return self._started(task, run, directory)

    async def resume(self, run: Run, request: ResumeRequest, key: str | None = None) -> Run:
        """Resume a run that has ended. If it was a hand-off, the new run gets its task again, by a new record."""
        resume = partial(self._resumer.resume, run, request, key)
        task = self.read.task(run.task) if run.task and run.handoff else None
        if task is None or (key is not None and self.read.by_request(key) is not None):
            return await resume()
        check_free(task, self.read.open_handoffs(task.id), None)
        self._check_lingering(task, None)
        resumed = await resume(assignment=Assignment(task.id, _id("h")))
        self._started(task, resumed, Directory(resumed.cwd, self._secrets.environment(resumed)))
        return resumed

    def _started(self, task: Task | None, run: Run, directory: Directory) -> TaskHandoff:
        started = self._known(task, run)
        if started.handoff.evidence is None:
            self._background.spawn(self._record_snapshot(started.handoff, directory))
        return started

    async def _with_agent_name(self, agent: str, work: Coroutine[Any, Any, T]) -> T:
        """Report an unknown agent by its name; a known one whose program is missing keeps its own message."""
        try:
            return await work
        except (UnknownAgent, AgentNotFound) as error:
            raise UnknownAgent(f"Unknown agent: {agent}", error.hint or error.message) from error

    async def hand_off_new(
        self, description: str, handoff: HandoffRequest, key: str | None, caller: Run | None
    ) -> TaskHandoff:
        """Create a task and hand it off in one transaction: if that is refused, no task is created."""
        if key is not None and (known := self.read.by_request(key)) is not None:
            return self._known(None, known)
        now = time.time()
        request = self._completed(handoff.start(None), caller)
        owner = caller.id if caller else None
        task = Task(_id("t"), 0, description, now, now, cwd=request.cwd, owner=owner, ends_with_handoff=True)
        directory = self._directory(request, caller)
        snapshot = await self._check_rounds(request, caller, directory)
        assignment = Assignment(task.id, _id("h"), owner, (Create(task),), snapshot)
        run = await self._with_agent_name(handoff.agent, self._starter.start(request, key, caller, assignment))
        return self._started(None, run, directory)

    def _directory(self, request: StartRequest, caller: Run | None) -> Directory:
        """The working directory of a hand-off. An agent's request must not choose which git is run there."""
        return Directory(request.directory, self._secrets.environment(caller) if caller else request.environment)

    async def _check(self, task: Task, agent: str, caller: Run | None, directory: Directory) -> None:
        """Raise unless the task is free for this caller, and the hand-off is no cycle."""
        open_ = self.read.open_handoffs(task.id)
        check_free(task, open_, caller.id if caller else None)
        if caller is not None and caller.task == task.id and not any(one.run == caller.id for one in open_):
            raise Conflict("this run no longer holds the task", "End the run; another agent has the task")
        self._check_lingering(task, caller)
        if any(one.agent == agent for one in open_):
            check_cycle(open_, agent, await self._snapshot(directory))

    async def _check_rounds(self, request: StartRequest, caller: Run | None, directory: Directory) -> str | None:
        """Raise if a run and an agent repeat themselves without any change; return the snapshot, if one was needed."""
        if caller is None:
            return None
        target = request.agent or ""
        rounds = [
            Round(self.read.prompt(one.run), one.output, snapshot_of(one.evidence))
            for one in self.read.handed_on_by(caller.id, ROUNDS)
            # A failed one gave no answer, and the reason, an overloaded service perhaps, may pass.
            if one.agent == target and one.run and one.status is Status.DONE
        ]
        if not may_be_repeated(rounds, request.prompt):
            return None
        now = await self._snapshot(directory)
        check_repetition(rounds, target, request.prompt, now)
        return stored_snapshot(now)

    async def _snapshot(self, directory: Directory) -> Snapshot:
        trusts = partial(is_trusted, home=str(self._home), environ=directory.env)
        git = Git(directory.env, directory.cwd, trusts)
        return await asyncio.get_running_loop().run_in_executor(
            self._snapshot_threads, take_snapshot, directory.cwd, git
        )

    async def _record_snapshot(self, record: Handoff, directory: Directory) -> None:
        """Record the directory when an agent starts, in case the task comes back to it."""
        snapshot = await self._snapshot(directory)
        with suppress(NotFound):  # the task may have been removed meanwhile
            await self._write(RecordEvidence(record.task, record.id, stored_snapshot(snapshot)), durable=False)

    def _known(self, task: Task | None, run: Run) -> TaskHandoff:
        record = self.read.handoff(run.handoff) if run.handoff else None
        found = self.read.task(record.task) if record else None
        if record is None or found is None or (task is not None and record.task != task.id):
            raise Conflict("this Idempotency-Key was used for another request", "use a new one")
        return TaskHandoff(found, record)

    def _check_lingering(self, task: Task, caller: Run | None) -> None:
        """Raise if an agent has completed the task itself and is still running."""
        for run in self._journal.live.values():
            is_caller = caller is not None and run.id == caller.id
            if run.task != task.id or run.handoff is None or is_caller:
                continue
            record = self.read.handoff(run.handoff)
            if record is not None and record.completed_at is not None:
                raise Conflict(f"{run.agent} (run {run.number}) has not ended yet", f"hocket wait {run.number}")

    def _completed(self, request: StartRequest, caller: Run | None) -> StartRequest:
        found = self._starter.complete_request(request, caller)
        if found.cwd is None:
            raise UsageError("this task has no working directory", "create it with `cwd`, an absolute path")
        return found

    async def complete(self, task: Task, output: str, caller: Run | None) -> Task:
        """Complete a hand-off by request: an agent its own, the operator the innermost one."""
        open_ = self.read.open_handoffs(task.id)
        if caller is not None:
            if caller.handoff is None or caller.task != task.id:
                raise Forbidden("a run completes only the hand-off that it is")
            open_ = [one for one in open_ if one.run == caller.id]
        if not open_:
            raise Conflict("no hand-off of this task is open")
        record = open_[-1]
        close = Close(task.id, record.id, output)
        run = self.read.run(record.run) if caller is None and record.run else None
        ending = [stop_event(run, Reason.STOPPED)] if run is not None and not run.ended else []
        after = (await self._journal.write(ending, orders=[close], durable=True)).tasks[task.id]
        if run is not None:
            # Its result is known, and the next agent must not find it running.
            await self._stops.stop(run)
        return after

    def handoff(self, task: Task, ref: str) -> Handoff:
        """A hand-off of a task, by its id or by that of its run."""
        found = self.read.handoff(ref)
        if found is None:
            with suppress(HocketError):
                run = self.read.find(ref)
                found = self.read.handoff(run.handoff) if run.handoff else None
        if found is None or found.task != task.id:
            raise NotFound(f"the task has no hand-off {ref!r}", f"`hocket task show {task.number}` lists them")
        return found

    # The queue

    async def enqueue(
        self, task: Task, prompt: str, handoff: StartRequest | None, caller: Run | None, key: str | None = None
    ) -> Queued:
        """Queue a prompt; with a ``handoff`` it is handed off in turn. The same ``key`` queues it once."""
        if caller is not None and handoff is not None:
            raise Forbidden(
                "only the user can queue a hand-off that starts by itself later",
                "hand it off now, or queue it without an agent",
            )
        item = Queued(f"q{_digest(key)}" if key else _id("q"), prompt, None, time.time())
        env: Mapping[str, str] = {}
        if handoff is not None and handoff.agent is not None:
            # An error is reported now rather than when it is started.
            request = self._completed(handoff, None)
            env = await self._with_agent_name(handoff.agent, self._starter.check(request))
            item = replace(item, agent=handoff.agent, cwd=request.cwd, env=public_part(env))
        if not (key and self.read.task_change(task.id, item.id)):
            async with self._secrets.holding(item.id, [env]):
                await self._change(Enqueue(task.id, item))
        return item

    async def take(self, task: Task, item: str | None, key: str | None = None) -> Queued:
        """Remove and return the first item of the queue, or the named one. The same ``key`` gives the same one."""
        mark = f"k{_digest(key)}" if key else None

        async def unqueue() -> Queued:
            return _unqueued((await self._write(Unqueue(task.id, item, mark))).events[0].data)

        def known(_: str) -> Queued | None:
            change = self.read.task_change(task.id, mark or "")
            return _unqueued(change) if change else None

        return await self._taking(mark and f"{task.id} {mark}", unqueue, known)

    def _on_commit(self, committed: Committed) -> None:
        for task in committed.tasks.values():
            self._process_queue(task)
        # An agent that had completed the task itself blocked the queue until its end.
        for task_id in {run.task for run in committed.runs.values() if run.ended and run.task}:
            if task_id not in committed.tasks and (waiting := self.read.task(task_id)) is not None:
                self._process_queue(waiting)

    def _process_queue(self, task: Task) -> None:
        if task.queue and task.id not in self._processing and next_queued(task, self.read.last_closed_handoff(task)):
            self._processing.add(task.id)
            self._background.spawn(self._hand_queued(task.id))

    async def _hand_queued(self, task_id: str) -> None:
        """Hand off the next item; if that is refused, the one after it."""
        try:
            while await self._hand_next(task_id):
                pass
        finally:
            self._processing.discard(task_id)

    async def _hand_next(self, task_id: str) -> bool:
        """Hand off the next item; return whether to try again with what is next then."""
        task = self.read.task(task_id)
        item = next_queued(task, self.read.last_closed_handoff(task)) if task else None
        if task is None or item is None or item.agent is None:
            return False
        try:
            env = None if item.env is None else {**item.env, **self._secrets.values(item.id)}
            handoff = HandoffRequest(item.agent, item.prompt, item.cwd, env=env)
            await self.hand_off(task, handoff.start(task.cwd), None, None, item)
        except (DiskLow, StoreError):
            await asyncio.sleep(RETRY_AFTER)
        except Conflict:
            return False  # Another hand-off was faster; at its end the queue is processed again.
        except HocketError as error:
            with suppress(NotFound):  # it may have been removed meanwhile
                await self._write(Refuse(task_id, item.id, error.message))
        else:
            return False
        return True

    # Files

    async def attach(self, task: Task, name: str, content: bytes) -> Attachment:
        """Store a file with the task. Its bytes are complete before it is recorded."""
        check_file_name(name)
        if len(content) > MAX_ATTACHMENT:
            raise TooLarge(f"an attachment has at most {MAX_ATTACHMENT // 1024**2} MB")
        digest = hashlib.sha256(content).hexdigest()
        known = next((one for one in task.attachments if one.name == name), None)
        if known is not None and known.sha256 == digest:
            return known  # A repeated request.
        if known is not None:
            raise Conflict(f"the task has an attachment {name!r} already", "choose another name")
        await asyncio.to_thread(_store, self._folder(task), digest, content)
        attachment = Attachment(name, len(content), digest, time.time())
        await self._change(Attach(task.id, attachment))
        return attachment

    def attachment(self, task: Task, name: str) -> Path:
        """The path of an attachment's bytes."""
        found = next((one for one in task.attachments if one.name == name), None)
        if found is None:
            raise NotFound(f"the task has no attachment {name!r}")
        return self._folder(task) / found.sha256

    def _folder(self, task: Task) -> Path:
        return self._home.joinpath(*FOLDER, task.id)


def check_file_name(name: str) -> None:
    """Raise unless the name is safe for a file, here and wherever it is saved later."""
    plain = name.isprintable() and name == name.strip() and not name.startswith((".", "-"))
    whole = unicodedata.normalize("NFKC", name)
    reserved = whole.partition(".")[0].lower() in _RESERVED
    if not plain or reserved or not 0 < len(name.encode()) <= _NAME_LENGTH or any(c in whole for c in '/\\:*?"<>|'):
        raise ValidationError(
            f"{name[:80]!r} is not a safe file name",
            f"up to {_NAME_LENGTH} bytes, no slashes, no leading dot, no control characters",
        )


def _store(folder: Path, name: str, content: bytes) -> None:
    """Write a file named by its content, so that concurrent callers cannot conflict."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.urandom(6).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / name)


def _unqueued(data: Mapping[str, Any]) -> Queued:
    return Queued(data["id"], data["prompt"], data["agent_name"], data["since"])


def _digest(key: str) -> str:
    """A name for an idempotency key, of safe characters."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _id(letter: str) -> str:
    return letter + new_id()[1:]
