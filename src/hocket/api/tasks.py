"""Routes of tasks and hand-offs."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from hocket.api import wire, wire_tasks
from hocket.api.guard import caller_of, engine_of, require_operator
from hocket.api.routing import Key, Operation, content, delete, get, post, put
from hocket.errors import NotFound
from hocket.model import Event, Run
from hocket.model.task import Handoff, Task, TaskStatus
from hocket.store import LATEST
from hocket.tasks.service import Tasks

PAGE_BYTES = 8 * 1024 * 1024
SLICE = 200
"""Hand-offs or events that are read before other requests get their turn."""
_BYTES = content("The file, byte for byte", "application/octet-stream")


def operations() -> list[Operation]:
    one = "/api/tasks/{ref}"
    files = f"{one}/attachments"
    return [
        get("/api/tasks", list_tasks, list[wire_tasks.TaskSummary], meta=wire_tasks.TaskListMeta),
        post("/api/tasks", create_task, wire_tasks.TaskOut, status=201),
        post("/api/tasks/import", import_task, wire_tasks.TaskOut, status=201),
        post("/api/handoffs", hand_off_new, wire_tasks.TaskOut, status=201, meta=wire_tasks.HandoffMeta),
        get(one, show_task, wire_tasks.TaskOut),
        delete(one, remove_task, wire_tasks.RemovedTask),
        put(f"{one}/archive", archive_task, wire_tasks.TaskOut),
        get(f"{one}/export", export_task, wire_tasks.TaskExport),
        put(f"{one}/status", set_status, wire_tasks.TaskOut),
        put(f"{one}/planning", plan_task, wire_tasks.TaskOut),
        get(f"{one}/history", show_history, wire_tasks.TaskHistory),
        get(f"{one}/queue", show_queue, wire_tasks.TaskQueue),
        post(f"{one}/queue", enqueue, wire_tasks.QueuedOut, status=201),
        post(f"{one}/queue/next", take_next, wire_tasks.QueuedOut),
        delete(f"{one}/queue/{{item}}", unqueue, wire_tasks.QueuedOut),
        get(files, list_attachments, wire_tasks.Attachments),
        post(files, attach, wire_tasks.AttachmentOut, status=201),
        get(f"{files}/{{name}}", get_attachment, responses=_BYTES),
        post(f"{one}/handoff", hand_off, wire_tasks.TaskOut, meta=wire_tasks.HandoffMeta),
        put(f"{one}/handoff/complete", complete, wire_tasks.TaskOut),
        get(f"{one}/handoffs/{{handoff}}", show_handoff, wire_tasks.HandoffDetail),
    ]


def _tasks(request: Request) -> Tasks:
    return engine_of(request).tasks


def _caller(request: Request) -> Run | None:
    return caller_of(request.scope).run


def _task(request: Request, ref: str) -> Task:
    return _tasks(request).find(ref, _caller(request))


def _task_out(request: Request, task: Task) -> wire_tasks.TaskOut:
    read = _tasks(request).read
    chain = read.handoffs(task.id)
    statuses = {run.id: run.status for one in chain if one.completed_at is None and (run := read.run(one.run or ""))}
    # The session of the current agent, or of the last one.
    latest = next((one for one in reversed(chain) if one.completed_at is None), chain[-1] if chain else None)
    run = read.run(latest.run) if latest and latest.run else None
    session = run.session_id if run else (latest.session if latest else None) or task.session
    return wire_tasks.task_out(task, chain, session, statuses)


def _respond(request: Request, task: Task, status: int = 200, **meta: Any) -> Response:
    return wire.success(_task_out(request, task), status, **meta)


async def list_tasks(
    request: Request,
    status: TaskStatus | None = None,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100,
    before: Annotated[int, Meta(ge=0, le=LATEST)] | None = None,
    archived: Literal["only", "all"] | None = None,
) -> Response:
    """List tasks, the newest first; the next page is ``before`` the number in ``meta.next``.

    Archived tasks are left out, unless ``archived`` is "only" or "all".
    """
    chosen = {"only": True, "all": None}[archived] if archived else False
    found = await _tasks(request).listed(_caller(request), status, before, limit + 1, chosen)
    page = wire.fitting(found[:limit], lambda task: task.description, PAGE_BYTES)
    following = page[-1].number if len(found) > len(page) else None
    return wire.success([wire_tasks.summary_out(task) for task in page], next=following)


async def create_task(request: Request, body: wire_tasks.NewTask, idempotency_key: Key = None) -> Response:
    """Create a task. The same Idempotency-Key gives the same task."""
    task = await _tasks(request).create(body.fields(), idempotency_key, _caller(request))
    return _respond(request, task, 201)


async def import_task(request: Request, body: wire_tasks.ImportBody, idempotency_key: Key = None) -> Response:
    """Import a task of another server under its own id. Its open hand-offs are closed as lost.

    Its queue waits until the task is handed off here.
    """
    require_operator(request, "import tasks")
    imported = wire_tasks.imported(body.task, time.time())
    return _respond(request, await _tasks(request).adopt(*imported, idempotency_key), 201)


async def show_task(request: Request, ref: str) -> Response:
    """Show one task by id, unique prefix or number, with its hand-offs."""
    return _respond(request, _task(request, ref))


async def export_task(request: Request, ref: str) -> Response:
    """Export a task with its queue and history, without the contents of attachments, as ``import`` accepts it."""
    tasks, task = _tasks(request), _task(request, ref)
    details: list[wire_tasks.HandoffDetail] = []
    last = 0
    while page := tasks.read.handoffs(task.id, last, SLICE // 4):
        details += [_detail(tasks, one) for one in page]
        last = page[-1].number
        await asyncio.sleep(0)
    return wire.success(
        wire_tasks.export_out(_task_out(request, task), details, task.queue, await _events(tasks, task))
    )


async def _events(tasks: Tasks, task: Task) -> list[Event]:
    """Read the events of a task in slices, so that other requests get their turn."""
    found: list[Event] = []
    while page := tasks.read.events(task.id, found[-1].seq if found else 0, SLICE):
        found += page
        await asyncio.sleep(0)
    return found


async def set_status(request: Request, ref: str, body: wire_tasks.StatusBody) -> Response:
    """Set the status of a task."""
    task = await _tasks(request).set_status(_task(request, ref), body.status.type, body.status.message)
    return _respond(request, task)


async def archive_task(request: Request, ref: str, body: wire_tasks.ArchiveBody | None = None) -> Response:
    """Put a task into the archive, or bring it back with ``{"archived": false}``; 409 while an agent has it."""
    archived = body is None or body.archived
    return _respond(request, await _tasks(request).archive(_task(request, ref), archived=archived))


async def remove_task(request: Request, ref: str) -> Response:
    """Remove a task with its hand-offs, history, queue and attachments; 409 while a run of it is live.

    Its runs stay. Removing it again gives the same response.
    """
    require_operator(request, "remove tasks")
    return wire.success(wire_tasks.RemovedTask(*await _tasks(request).remove(ref)))


async def plan_task(request: Request, ref: str, body: wire_tasks.PlanBody) -> Response:
    """Set the plan of a task."""
    return _respond(request, await _tasks(request).plan(_task(request, ref), body.planning()))


async def show_history(request: Request, ref: str) -> Response:
    """Show the history of a task, oldest first."""
    events = await _events(_tasks(request), _task(request, ref))
    return wire.success({"events": wire_tasks.history_out(events)})


async def show_queue(request: Request, ref: str) -> Response:
    """Show the queue of a task, the next item first."""
    return wire.success({"items": [wire_tasks.queued_out(one) for one in _task(request, ref).queue]})


async def enqueue(request: Request, ref: str, body: wire_tasks.QueueBody, idempotency_key: Key = None) -> Response:
    """Add an item to the queue; with an agent it is handed over when the task is free."""
    task, caller = _task(request, ref), _caller(request)
    handoff = body.handoff(task.cwd)
    item = await _tasks(request).enqueue(task, body.prompt, handoff, caller, idempotency_key)
    return wire.success(wire_tasks.queued_out(item), 201)


async def take_next(
    request: Request, ref: str, body: wire.EmptyBody | None = None, idempotency_key: Key = None
) -> Response:
    """Remove the first item from the queue. The same Idempotency-Key gives the same item."""
    taken = await _tasks(request).take(_task(request, ref), None, idempotency_key)
    return wire.success(wire_tasks.queued_out(taken))


async def unqueue(request: Request, ref: str, item: str) -> Response:
    """Remove an item from the queue."""
    return wire.success(wire_tasks.queued_out(await _tasks(request).take(_task(request, ref), item)))


async def list_attachments(request: Request, ref: str) -> Response:
    """List the files of a task."""
    return wire.success({"items": [wire_tasks.attachment_out(one) for one in _task(request, ref).attachments]})


async def attach(request: Request, ref: str, body: wire_tasks.AttachmentBody) -> Response:
    """Attach a file to a task."""
    task = _task(request, ref)
    made = await _tasks(request).attach(task, body.filename, body.bytes())
    return wire.success(wire_tasks.attachment_out(made), 201)


async def get_attachment(request: Request, ref: str, name: str) -> Response:
    """Download a file of a task; never shown by a browser as if it were a page of ours."""
    path = _tasks(request).attachment(_task(request, ref), name)
    if not path.is_file():
        raise NotFound(f"the file of {name!r} is missing in {path.parent}", "restore it from a copy")
    return FileResponse(path, media_type="application/octet-stream", filename=name)


async def hand_off(request: Request, ref: str, body: wire_tasks.HandoffBody, idempotency_key: Key = None) -> Response:
    """Hand a task to an agent. Responds at once; the record of the hand-off gets the result later."""
    task = _task(request, ref)
    given = await _tasks(request).hand_off(task, body.start(task.cwd), idempotency_key, _caller(request))
    return _respond(request, given.task, handoff=given.handoff.id, run=given.handoff.run)


async def hand_off_new(request: Request, body: wire_tasks.NewHandoffBody, idempotency_key: Key = None) -> Response:
    """Create a task and hand it to an agent; if that is refused, no task is created."""
    given = await _tasks(request).hand_off_new(body.task_description(), body, idempotency_key, _caller(request))
    return _respond(request, given.task, 201, handoff=given.handoff.id, run=given.handoff.run)


async def complete(request: Request, ref: str, body: wire_tasks.CompleteBody) -> Response:
    """Complete a hand-off: a run completes its own, the operator the innermost one."""
    return _respond(request, await _tasks(request).complete(_task(request, ref), body.output, _caller(request)))


async def show_handoff(request: Request, ref: str, handoff: str) -> Response:
    """Show one hand-off by its id or its run's, with its result."""
    tasks = _tasks(request)
    return wire.success(_detail(tasks, tasks.handoff(_task(request, ref), handoff)))


def _detail(tasks: Tasks, record: Handoff) -> wire_tasks.HandoffDetail:
    run = tasks.read.run(record.run) if record.run else None
    if run is None:
        return wire_tasks.handoff_detail(record, None, record.prompt, record.session)
    prompt = tasks.read.shown_prompt(run.id) or record.prompt
    return wire_tasks.handoff_detail(record, run.status, prompt, run.session_id)
