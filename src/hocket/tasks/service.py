"""Tasks and their hand-offs: who may change a task, and the queue that continues by itself.

A hand-off starts a run; the run and its record are created in one transaction, and they end in one. How an order
changes a task is decided in ``model.task``, whether a run may start in ``workflows.start``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import unicodedata
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hocket.errors import (
    AgentNotFound,
    Conflict,
    Cycle,
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
    Attach,
    Attachment,
    Close,
    Create,
    Enqueue,
    Handoff,
    Note,
    Order,
    Past,
    Plan,
    Planning,
    Queued,
    Refuse,
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
from hocket.tasks.cycles import HINT, Open, Round, is_cycle, is_to_and_fro, may_be_to_and_fro
from hocket.trust.approvals import is_trusted
from hocket.workflows.bind import check_directory
from hocket.workflows.directory_state import UNREADABLE, Evidence, look
from hocket.workflows.git import Git
from hocket.workflows.request import HandoffRequest, ResumeRequest, StartRequest
from hocket.workflows.resume import Resumer
from hocket.workflows.start import Assignment, Starter

T = TypeVar("T")

ROUNDS = 50
"""So many of a run's last hand-offs are looked at for those that come to nothing."""
PAGE = 200
"""Tasks that are looked at in one go for those of a run."""
_NAME_LENGTH = 128
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})
"""Names that are devices where others may save the file."""


class Sight(NamedTuple):
    """The directory to examine, and the environment that git runs in."""

    cwd: str
    env: Mapping[str, str]


class Given(NamedTuple):
    """A hand-off: its task and its record."""

    task: Task
    handoff: Handoff


class Tasks:
    """One per server."""

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
        self._looking = ThreadPoolExecutor(2, "hocket-look")
        self._handing: set[str] = set()
        """Tasks whose queue is being looked after right now."""

    def open(self) -> None:
        """Go on with what was queued when the server before this one went."""
        self._journal.listen(self._on_commit)
        self._journal.listen(self._task_files.note)
        self._background.spawn(self._task_files.catch_up())
        for task in self.read.queued_tasks():
            self._look_at_queue(task)

    async def close(self) -> None:
        await self._background.close()
        self._task_files.close()
        self._looking.shutdown(wait=False, cancel_futures=True)

    # Who may

    def find(self, ref: str, caller: Run | None) -> Task:
        """The task that is meant. A run reaches its own, and those that it wanted, and no others."""
        task = self.read.find_task(ref)
        if caller is not None and not self._reaches(caller, task):
            raise Forbidden("a run reaches only its own task")
        return task

    def _reaches(self, caller: Run, task: Task) -> bool:
        if caller.task == task.id:
            return True
        owner = self.read.run(task.owner) if task.owner else None
        return owner is not None and any(one.id == caller.id for one in self._journal.above(owner))

    async def listed(self, caller: Run | None, status: TaskStatus | None, before: int | None, limit: int) -> list[Task]:
        """The newest first; for a run those that it reaches."""
        if caller is None:
            return self.read.tasks(status, before, limit)
        found = {task.id: task async for task in self._made_below(caller)}
        if caller.task and (own := self.read.task(caller.task)) is not None:
            found[own.id] = own
        wanted = [task for task in found.values() if status in (None, task.status)]
        wanted = [task for task in wanted if before is None or task.number < before]
        return sorted(wanted, key=lambda task: -task.number)[:limit]

    async def _made_below(self, caller: Run) -> AsyncIterator[Task]:
        """The tasks that a run wanted, or one below it: all of them are newer than the run itself."""
        reached: dict[str, bool] = {}
        before = None
        while page := self.read.tasks(None, before, PAGE):
            for task in page:
                if task.created_at < caller.created_at and not task.brought:
                    return
                if task.owner is not None:
                    if task.owner not in reached:
                        reached[task.owner] = self._reaches(caller, task)
                    if reached[task.owner]:
                        yield task
            before = page[-1].number
            await asyncio.sleep(0)

    # Wanting

    async def create(self, new: Mapping[str, Any], key: str | None, caller: Run | None) -> Task:
        """A new task. The same ``key`` gives the same one, however often it is asked for."""
        if new.get("cwd") is not None:
            check_directory(new["cwd"])
        return await self._creating(key, lambda: self._create(new, key, caller), self.read.task_by_request)

    async def _create(self, new: Mapping[str, Any], key: str | None, caller: Run | None) -> Task:
        now = time.time()
        cwd = new.get("cwd") or (caller.cwd if caller else None)
        made = {"id": _id("t"), "number": 0, "created_at": now, "updated_at": now}
        task = Task(**{**made, **new, "cwd": cwd, "owner": caller.id if caller else None})
        return await self._ordered(Create(task), key=key)

    async def adopt(self, task: Task, handoffs: list[Handoff], history: list[Past], key: str | None) -> Task:
        """A task that was kept elsewhere until now, under its own id. Its runs stayed there, unless they are known."""
        return await self._creating(key, lambda: self._adopt(task, handoffs, history, key), self.read.task_by_request)

    async def _adopt(self, task: Task, handoffs: list[Handoff], history: list[Past], key: str | None) -> Task:
        self._check_ids(task, handoffs)
        records = (replace(one, elsewhere=one.run is None or self.read.run(one.run) is None) for one in handoffs)
        create = Create(task, tuple(records), tuple(history))
        return await self._ordered(create, key)

    def _check_ids(self, task: Task, handoffs: list[Handoff]) -> None:
        """Raise where an id in the file would give the task the events, or the hand-off, of a run that is here.

        A run's events are found by its id alone, and so are a task's; and a live run has its own hand-off or none.
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
        return await self._ordered(SetStatus(task.id, status, message))

    async def plan(self, task: Task, planning: Planning) -> Task:
        return await self._ordered(Plan(task.id, planning))

    async def _ordered(self, order: Order, key: str | None = None) -> Task:
        return (await self._write(order, key=key)).tasks[order.task]

    async def _write(self, order: Order, *, key: str | None = None, durable: bool = True) -> Committed:
        return await self._journal.write([], orders=[order], order_key=key, durable=durable)

    # Handing off

    async def hand_off(
        self, task: Task, request: StartRequest, key: str | None, caller: Run | None, queued: Queued | None = None
    ) -> Given:
        """Give the task to an agent, and answer when that has become true; the agent has hardly begun then."""
        agent = request.agent
        if agent is None:
            raise UsageError("a task is handed to one agent", "say which with `agent`; it may start a chain itself")
        if key is not None and (known := self.read.by_request(key)) is not None:
            return self._known(task, known)
        request = self._completed(request, caller)
        seen_from = self._sight(request, caller)
        first = (Unqueue(task.id, queued.id),) if queued else ()
        try:
            await self._check(task, agent, caller, seen_from)
            seen = await self._check_rounds(request, caller, seen_from)
            assignment = Assignment(task.id, _id("h"), caller.id if caller else None, first, seen)
            run = await self._naming(agent, self._starter.start(request, key, caller, assignment))
        except Conflict:
            # It may be this very request that has the task by now.
            if key is None or (known := self.read.by_request(key)) is None:
                raise
            return self._known(task, known)
        return self._begun(task, run, seen_from)

    async def resume(
        self,
        run: Run,
        request: ResumeRequest,
        key: str | None,
    ) -> Run:
        """Go on with a run that has ended. One that was a hand-off gets its task once more, by a record of its own."""
        going_on = partial(self._resumer.resume, run, request, key)
        task = self.read.task(run.task) if run.task and run.handoff else None
        if task is None or (key is not None and self.read.by_request(key) is not None):
            return await going_on()
        check_free(task, self.read.open_handoffs(task.id), None)
        self._check_lingering(task, None)
        resumed = await going_on(assignment=Assignment(task.id, _id("h")))
        self._begun(task, resumed, Sight(resumed.cwd, self._secrets.environment(resumed)))
        return resumed

    def _begun(self, task: Task | None, run: Run, seen_from: Sight) -> Given:
        given = self._known(task, run)
        if given.handoff.evidence is None:
            self._background.spawn(self._note(given.handoff, seen_from))
        return given

    async def _naming(self, agent: str, work: Coroutine[Any, Any, T]) -> T:
        """Report an unknown agent by its name; a known one whose program is missing keeps its own message."""
        try:
            return await work
        except (UnknownAgent, AgentNotFound) as error:
            raise UnknownAgent(f"Unknown agent: {agent}", error.hint or error.message) from error

    async def hand_off_new(
        self, description: str, handoff: HandoffRequest, key: str | None, caller: Run | None
    ) -> Given:
        """Make a task and hand it over in one go: where that is refused, no task is left behind."""
        if key is not None and (known := self.read.by_request(key)) is not None:
            return self._known(None, known)
        now = time.time()
        request = self._completed(handoff.start(None), caller)
        owner = caller.id if caller else None
        task = Task(_id("t"), 0, description, now, now, cwd=request.cwd, owner=owner)
        seen_from = self._sight(request, caller)
        seen = await self._check_rounds(request, caller, seen_from)
        assignment = Assignment(task.id, _id("h"), owner, (Create(task),), seen)
        run = await self._naming(handoff.agent, self._starter.start(request, key, caller, assignment))
        return self._begun(None, run, seen_from)

    def _sight(self, request: StartRequest, caller: Run | None) -> Sight:
        """Never in an environment that an agent sends: which git is run is not for it to choose."""
        return Sight(request.directory, self._secrets.environment(caller) if caller else request.environment)

    async def _check(self, task: Task, agent: str, caller: Run | None, seen_from: Sight) -> None:
        """Raise unless the task is free for this caller, and goes on by this."""
        open_ = self.read.open_handoffs(task.id)
        check_free(task, open_, caller.id if caller else None)
        if caller is not None and caller.task == task.id and not any(one.run == caller.id for one in open_):
            raise Conflict("this run no longer holds the task", "End the run; another agent has the task")
        self._check_lingering(task, caller)
        if any(one.agent == agent for one in open_):
            _check_circle(open_, agent, await self._look(seen_from))

    async def _check_rounds(self, request: StartRequest, caller: Run | None, seen_from: Sight) -> str | None:
        """Raise where a run goes to and fro with an agent and nothing comes of it; what was seen, if it had to look."""
        if caller is None:
            return None
        target = request.agent or ""
        last = [one for one in self.read.handed_on_by(caller.id, ROUNDS) if one.agent == target and one.run]
        # One that failed gave no answer: the reason, an overloaded service perhaps, may well pass.
        ended_well = [one for one in last if one.status is Status.DONE]
        rounds = [Round(self.read.prompt(one.run or ""), one.output, _seen(one.evidence)) for one in ended_well]
        if not may_be_to_and_fro(rounds, request.prompt):
            return None
        now = await self._look(seen_from)
        if (why := is_to_and_fro(rounds, target, request.prompt, now)) is not None:
            raise Cycle(why, HINT)
        return _kept(now)

    async def _look(self, seen_from: Sight) -> Evidence:
        trusts = partial(is_trusted, home=str(self._home), environ=seen_from.env)
        git = Git(seen_from.env, seen_from.cwd, trusts)
        return await asyncio.get_running_loop().run_in_executor(self._looking, look, seen_from.cwd, git)

    async def _note(self, record: Handoff, seen_from: Sight) -> None:
        """How things stood when an agent began, for the case that the task comes back to it."""
        seen = await self._look(seen_from)
        await self._write(Note(record.task, record.id, _kept(seen)), durable=False)

    def _known(self, task: Task | None, run: Run) -> Given:
        record = self.read.handoff(run.handoff) if run.handoff else None
        found = self.read.task(record.task) if record else None
        if record is None or found is None or (task is not None and record.task != task.id):
            raise Conflict("this Idempotency-Key was used for another request", "use a new one")
        return Given(found, record)

    def _check_lingering(self, task: Task, caller: Run | None) -> None:
        """An agent that gave its result itself, and has not gone yet, is still at work."""
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
            raise UsageError("this task has no working directory", "make it with `cwd`, an absolute path")
        return found

    async def complete(self, task: Task, output: str, caller: Run | None) -> Task:
        """Close a hand-off by word of mouth: an agent its own, the operator the innermost one."""
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
            # Its result is given, and the next agent must not find it running.
            await self._stops.stop(run)
        return after

    def handoff(self, task: Task, ref: str) -> Handoff:
        """One record of a task's, by its id or by its run's."""
        found = self.read.handoff(ref)
        if found is None:
            with suppress(HocketError):
                run = self.read.find(ref)
                found = self.read.handoff(run.handoff) if run.handoff else None
        if found is None or found.task != task.id:
            raise NotFound(f"the task has no hand-off {ref!r}", f"`hocket task show {task.number}` lists them")
        return found

    # What waits

    async def enqueue(
        self, task: Task, prompt: str, handoff: StartRequest | None, caller: Run | None, key: str | None = None
    ) -> Queued:
        """Something for later; with a ``handoff`` it becomes that start. The same ``key`` queues it once."""
        if caller is not None and handoff is not None:
            raise Forbidden(
                "what is started later, by itself, is for people to queue",
                "hand it over now, or queue it without an agent",
            )
        item = Queued(f"q{_digest(key)}" if key else _id("q"), prompt, None, time.time())
        env: Mapping[str, str] = {}
        if handoff is not None and handoff.agent is not None:
            # An error is reported now rather than when its turn comes.
            request = self._completed(handoff, None)
            env = await self._naming(handoff.agent, self._starter.check(request))
            item = replace(item, agent=handoff.agent, cwd=request.cwd, env=public_part(env))
        if not (key and self.read.task_change(task.id, item.id)):
            async with self._secrets.holding(item.id, [env]):
                await self._ordered(Enqueue(task.id, item))
        return item

    async def take(self, task: Task, item: str | None, key: str | None = None) -> Queued:
        """Take the first out of the queue, or the one that is named. With the same ``key`` it is the same one again."""
        mark = f"k{_digest(key)}" if key else None
        return await self._taking(mark and f"{task.id} {mark}", lambda: self._take(task, item, mark), self._taken)

    async def _take(self, task: Task, item: str | None, mark: str | None) -> Queued:
        return _taken_out((await self._write(Unqueue(task.id, item, mark))).events[0].data)

    def _taken(self, name: str) -> Queued | None:
        """What was taken out of a task's queue under this mark."""
        told = self.read.task_change(*name.split(" "))
        return _taken_out(told) if told else None

    def _on_commit(self, committed: Committed) -> None:
        for task in committed.tasks.values():
            self._look_at_queue(task)
        # An agent that gave its result itself was in the way until now.
        for gone in {run.task for run in committed.runs.values() if run.ended and run.task}:
            if gone not in committed.tasks and (left := self.read.task(gone)) is not None:
                self._look_at_queue(left)

    def _look_at_queue(self, task: Task) -> None:
        if task.queue and task.id not in self._handing and next_queued(task, self.read.last_closed_handoff(task)):
            self._handing.add(task.id)
            self._background.spawn(self._hand_queued(task.id))

    async def _hand_queued(self, task_id: str) -> None:
        """Hand over the next item; one that is refused gives way to the one behind it."""
        try:
            while await self._hand_next(task_id):
                pass
        finally:
            self._handing.discard(task_id)

    async def _hand_next(self, task_id: str) -> bool:
        """Whether to look at the queue once more."""
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
            return False  # Another hand-off was faster; its end looks at the queue again.
        except HocketError as error:
            with suppress(NotFound):  # it may have been taken out meanwhile
                await self._write(Refuse(task_id, item.id, error.message))
        else:
            return False
        return True

    # Files

    async def attach(self, task: Task, name: str, content: bytes) -> Attachment:
        """Keep a file with the task. Its bytes are in place before anybody hears of it."""
        check_file_name(name)
        if len(content) > MAX_ATTACHMENT:
            raise TooLarge(f"an attachment has at most {MAX_ATTACHMENT // 1024**2} MB")
        digest = hashlib.sha256(content).hexdigest()
        known = next((one for one in task.attachments if one.name == name), None)
        if known is not None and known.sha256 == digest:
            return known  # A repeated request.
        if known is not None:
            raise Conflict(f"the task has an attachment {name!r} already", "choose another name")
        await asyncio.to_thread(_keep, self._folder(task), digest, content)
        attachment = Attachment(name, len(content), digest, time.time())
        await self._ordered(Attach(task.id, attachment))
        return attachment

    def attachment(self, task: Task, name: str) -> Path:
        """Where the bytes of an attachment lie."""
        found = next((one for one in task.attachments if one.name == name), None)
        if found is None:
            raise NotFound(f"the task has no attachment {name!r}")
        return self._folder(task) / found.sha256

    def _folder(self, task: Task) -> Path:
        return self._home.joinpath(*FOLDER, task.id)


def _check_circle(open_: Sequence[Handoff], agent: str, now: Evidence) -> None:
    why = is_cycle([Open(one.agent, _seen(one.evidence)) for one in open_], agent, now)
    if why:
        raise Cycle(why, HINT)


def _kept(evidence: Evidence) -> str:
    return f"{evidence.kind} {evidence.state}"


def _seen(kept: str | None) -> Evidence:
    kind, _, state = (kept or UNREADABLE).partition(" ")
    return Evidence(state, kind, "")


def check_file_name(name: str) -> None:
    """Raise unless a file can safely be called that, here and wherever it is saved later."""
    plain = name.isprintable() and name == name.strip() and not name.startswith((".", "-"))
    whole = unicodedata.normalize("NFKC", name)
    reserved = whole.partition(".")[0].lower() in _RESERVED
    if not plain or reserved or not 0 < len(name.encode()) <= _NAME_LENGTH or any(c in whole for c in '/\\:*?"<>|'):
        raise ValidationError(
            f"{name[:80]!r} is not a safe file name",
            f"up to {_NAME_LENGTH} bytes, no slashes, no leading dot, no control characters",
        )


def _keep(folder: Path, name: str, content: bytes) -> None:
    """Write a file named by its content, so that concurrent callers cannot conflict."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.urandom(6).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / name)


def _taken_out(told: Mapping[str, Any]) -> Queued:
    return Queued(told["id"], told["prompt"], told["agent_name"], told["since"])


def _digest(key: str) -> str:
    """A name for an idempotency key, of safe characters."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _id(letter: str) -> str:
    return letter + new_id()[1:]
