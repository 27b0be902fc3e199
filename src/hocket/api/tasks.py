"""The routes of tasks and hand-offs. Each finds out who asks, and leaves the rest to ``tasks``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any, cast

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from hocket.api import wire
from hocket.api import wire_tasks as names
from hocket.api.guard import caller_of
from hocket.api.routing import Key, Operation, delete, get, post, put
from hocket.errors import Forbidden, NotFound
from hocket.model import Event, Run
from hocket.model.task import Handoff, Task, TaskStatus
from hocket.store import LATEST
from hocket.tasks.service import Tasks

PAGE_BYTES = 8 * 1024 * 1024
TASK_BYTES = 512
SLICE = 200
"""Hand-offs or events that are read without a pause."""
_BYTES: dict[int, dict[str, Any]] = {
    200: {"description": "The file, byte for byte", "content": {"application/octet-stream": {}}}
}


def operations() -> list[Operation]:
    one = "/api/tasks/{ref}"
    files = f"{one}/attachments"
    return [
        get("/api/tasks", list_tasks, list[names.TaskSummary], about=names.TaskListMeta),
        post("/api/tasks", create_task, names.TaskOut, status=201),
        post("/api/tasks/import", import_task, names.TaskOut, status=201),
        post("/api/handoffs", hand_off_new, names.TaskOut, status=201, about=names.HandedMeta),
        get(one, show_task, names.TaskOut),
        get(f"{one}/export", export_task, names.TaskExport),
        put(f"{one}/status", set_status, names.TaskOut),
        put(f"{one}/planning", plan_task, names.TaskOut),
        get(f"{one}/history", show_history, names.History),
        get(f"{one}/queue", show_queue, names.Queue),
        post(f"{one}/queue", enqueue, names.QueuedOut, status=201),
        post(f"{one}/queue/next", take_next, names.QueuedOut),
        delete(f"{one}/queue/{{item}}", unqueue, names.QueuedOut),
        get(files, list_attachments, names.Attachments),
        post(files, attach, names.AttachmentOut, status=201),
        get(f"{files}/{{name}}", get_attachment, responses=_BYTES),
        post(f"{one}/handoff", hand_off, names.TaskOut, about=names.HandedMeta),
        put(f"{one}/handoff/complete", complete, names.TaskOut),
        get(f"{one}/handoffs/{{handoff}}", show_handoff, names.HandoffDetail),
    ]


def _tasks(request: Request) -> Tasks:
    return cast(Tasks, request.app.state.tasks)


def _caller(request: Request) -> Run | None:
    return caller_of(request.scope).run


def _task(request: Request, ref: str) -> Task:
    return _tasks(request).find(ref, _caller(request))


def _face(tasks: Tasks, task: Task) -> dict[str, Any]:
    chain = tasks.read.handoffs(task.id)
    runs = (tasks.read.run(one.run) for one in chain if one.run and one.completed_at is None)
    return names.task_out(task, chain, _session(tasks, task, chain), {run.id: run.status for run in runs if run})


def _session(tasks: Tasks, task: Task, chain: list[Handoff]) -> str | None:
    """That of the agent who has the task, or had it last."""
    latest = next((one for one in reversed(chain) if one.completed_at is None), chain[-1] if chain else None)
    run = tasks.read.run(latest.run) if latest and latest.run else None
    return run.session_id if run else (latest.session if latest else None) or task.session


async def list_tasks(
    request: Request,
    status: names.StatusType | None = None,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100,
    before: Annotated[int, Meta(ge=0, le=LATEST)] | None = None,
) -> Response:
    """One page of tasks, the newest first; the next page is ``before`` the number in ``meta.next``."""
    wanted = TaskStatus(status) if status else None
    found = await _tasks(request).listed(_caller(request), wanted, before, limit + 1)
    page = list(_first(found[:limit]))
    following = page[-1].number if len(found) > len(page) else None
    return wire.answer([names.summary_out(task) for task in page], next=following)


def _first(tasks: list[Task]) -> Iterator[Task]:
    """As many as fit an answer, and one in any case: descriptions can be long."""
    size = 0
    for task in tasks:
        size += TASK_BYTES + 3 * len(task.description)
        if size > PAGE_BYTES and size > TASK_BYTES + 3 * len(task.description):
            return
        yield task


async def create_task(request: Request, body: names.NewTask, idempotency_key: Key = None) -> Response:
    """Say what is wanted. The same Idempotency-Key gives the same task."""
    tasks = _tasks(request)
    task = await tasks.create(body.fields(), idempotency_key, _caller(request))
    return wire.answer(_face(tasks, task), 201)


async def import_task(request: Request, body: names.ImportBody, idempotency_key: Key = None) -> Response:
    """Take over a task that was kept elsewhere, under its own id; its open hand-offs are closed as lost.

    What is queued with it waits until somebody hands it over here.
    """
    if _caller(request) is not None:
        raise Forbidden("only the operator imports tasks")
    tasks = _tasks(request)
    task = await tasks.adopt(*names.imported(body.task, time.time()), idempotency_key)
    return wire.answer(_face(tasks, task), 201)


async def show_task(request: Request, ref: str) -> Response:
    """One task by id, unique prefix or number, with all of its hand-offs."""
    return wire.answer(_face(_tasks(request), _task(request, ref)))


async def export_task(request: Request, ref: str) -> Response:
    """All of a task but the bytes of its attachments, in the form that ``import`` takes: with queue and history."""
    tasks, task = _tasks(request), _task(request, ref)
    details: list[dict[str, Any]] = []
    last = 0
    while page := tasks.read.handoffs(task.id, last, SLICE // 4):
        details += [_detail(tasks, one) for one in page]
        last = page[-1].number
        await asyncio.sleep(0)
    return wire.answer(names.export_out(_face(tasks, task), details, task.queue, await _events(tasks, task)))


async def _events(tasks: Tasks, task: Task) -> list[Event]:
    """All events of a task, read a few at a time: other requests have their turn in between."""
    found: list[Event] = []
    while page := tasks.read.events(task.id, found[-1].seq if found else 0, SLICE):
        found += page
        await asyncio.sleep(0)
    return found


async def set_status(request: Request, ref: str, body: names.StatusBody) -> Response:
    """Say how far the task is."""
    tasks = _tasks(request)
    wanted = TaskStatus(body.status.type)
    return wire.answer(_face(tasks, await tasks.set_status(_task(request, ref), wanted, body.status.message)))


async def plan_task(request: Request, ref: str, body: names.PlanBody) -> Response:
    """Make a plan of a description; its hand-offs stay."""
    tasks = _tasks(request)
    return wire.answer(_face(tasks, await tasks.plan(_task(request, ref), body.planning())))


async def show_history(request: Request, ref: str) -> Response:
    """All that happened to the task, in order."""
    events = await _events(_tasks(request), _task(request, ref))
    return wire.answer({"events": names.history_out(events)})


async def show_queue(request: Request, ref: str) -> Response:
    """What waits until the task is free, the next first."""
    return wire.answer({"items": [names.queued_out(one) for one in _task(request, ref).queue]})


async def enqueue(request: Request, ref: str, body: names.QueueBody, idempotency_key: Key = None) -> Response:
    """Something for later; with an agent it is handed over by itself when its turn comes."""
    task, caller = _task(request, ref), _caller(request)
    handoff = body.handoff(task.cwd)
    item = await _tasks(request).enqueue(task, body.prompt, handoff, caller, idempotency_key)
    return wire.answer(names.queued_out(item), 201)


async def take_next(
    request: Request, ref: str, body: wire.Empty | None = None, idempotency_key: Key = None
) -> Response:
    """Take the first out of the queue; with the same Idempotency-Key it is the same one again."""
    taken = await _tasks(request).take(_task(request, ref), None, idempotency_key)
    return wire.answer(names.queued_out(taken))


async def unqueue(request: Request, ref: str, item: str) -> Response:
    """Take something out of the queue before its turn comes."""
    return wire.answer(names.queued_out(await _tasks(request).take(_task(request, ref), item)))


async def list_attachments(request: Request, ref: str) -> Response:
    """The task's files."""
    return wire.answer({"items": [names.attachment_out(one) for one in _task(request, ref).attachments]})


async def attach(request: Request, ref: str, body: names.AttachmentBody) -> Response:
    """Keep a file with the task."""
    task = _task(request, ref)
    made = await _tasks(request).attach(task, body.filename, body.bytes())
    return wire.answer(names.attachment_out(made), 201)


async def get_attachment(request: Request, ref: str, name: str) -> Response:
    """A file of the task's, to be saved: never shown by a browser as if it were a page of ours."""
    path = _tasks(request).attachment(_task(request, ref), name)
    if not path.is_file():
        raise NotFound(f"the bytes of {name!r} are gone from {path.parent}", "put them back from a copy")
    return FileResponse(path, media_type="application/octet-stream", filename=name)


async def hand_off(request: Request, ref: str, body: names.HandoffBody, idempotency_key: Key = None) -> Response:
    """Give the task to an agent. Answers at once; the agent's own record says later what came of it."""
    tasks, task, caller = _tasks(request), _task(request, ref), _caller(request)
    given = await tasks.hand_off(task, body.start(task.cwd), idempotency_key, caller)
    return wire.answer(_face(tasks, given.task), handoff=given.handoff.id, run=given.handoff.run)


async def hand_off_new(request: Request, body: names.NewHandoffBody, idempotency_key: Key = None) -> Response:
    """Make a task and give it to an agent in one go: where that is refused, nothing is left behind."""
    tasks = _tasks(request)
    given = await tasks.hand_off_new(body.wanted(), body, idempotency_key, _caller(request))
    return wire.answer(_face(tasks, given.task), 201, handoff=given.handoff.id, run=given.handoff.run)


async def complete(request: Request, ref: str, body: names.CompleteBody) -> Response:
    """Close a hand-off: a run its own, by its token; the operator the innermost one."""
    tasks = _tasks(request)
    return wire.answer(_face(tasks, await tasks.complete(_task(request, ref), body.output, _caller(request))))


async def show_handoff(request: Request, ref: str, handoff: str) -> Response:
    """One hand-off by its id or its run's, with its result: the same, however often it is asked for."""
    tasks = _tasks(request)
    return wire.answer(_detail(tasks, tasks.handoff(_task(request, ref), handoff)))


def _detail(tasks: Tasks, record: Handoff) -> dict[str, Any]:
    run = tasks.read.run(record.run) if record.run else None
    if run is None:
        return names.handoff_detail(record, None, record.prompt, record.session)
    return names.handoff_detail(record, run.status, tasks.read.shown_prompt(run.id) or record.prompt, run.session_id)
