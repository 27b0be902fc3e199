"""The routes. Each takes its request apart, asks the engine, and puts the answer together; no rule is decided here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hocket.api import catalog, inbox, mcp, run_filters, stream, tasks, wire
from hocket.api.guard import caller_of
from hocket.api.openapi import Description
from hocket.api.routing import Header, Key, Operation, Query, get, post, routes
from hocket.api.scope import engine_of as _engine
from hocket.api.scope import reaches as _reaches
from hocket.api.scope import run_named as _run
from hocket.engine import Engine
from hocket.errors import Conflict, Forbidden, HocketError, NotFound, UsageError
from hocket.keeper import files
from hocket.model import Kind, Run, Status
from hocket.store import LATEST
from hocket.tasks.service import Tasks

_EVENTS: dict[int, dict[str, Any]] = {
    200: {"description": "The run's events, and those of everything below it", "content": {stream.EVENTS: {}}}
}
_STARTED: dict[str, Any] = {stream.EVENTS: {}}
"""What a start answers to whoever follows it at once, instead of the run."""
_BYTES: dict[int, dict[str, Any]] = {
    200: {"description": "What the agent wrote, byte for byte", "content": {"application/octet-stream": {}}}
}

LIST_BYTES = 16 * 1024 * 1024
RUN_BYTES = 1024
SLICE = 100
"""Runs that are read or encoded without a pause."""

Cursor = Annotated[int, Meta(ge=0, le=LATEST), Header("Last-Event-ID")]


def build(engine: Engine, health: Callable[[], dict[str, Any]], stop: Callable[[], None]) -> Starlette:
    """The app of one server."""
    told = [*operations(), *inbox.operations(), *catalog.operations(), *tasks.operations(), *mcp.operations()]
    described = Description(told)
    app = Starlette(routes=[*routes(told), Route("/openapi.json", described.show)], exception_handlers=_HANDLERS)
    app.router.redirect_slashes = False
    app.state.engine = engine
    app.state.tasks = engine.tasks
    app.state.shelf = catalog.Shelf(str(engine.home), engine.catalogs)
    app.state.health = health
    app.state.stop = stop
    return app


def operations() -> list[Operation]:
    run = "/api/runs/{ref}"
    return [
        get("/api/runs", list_runs, list[wire.RunOut]),
        post("/api/runs", start_run, wire.RunOut, status=201, instead=_STARTED),
        post("/api/plans", plan_run, list[dict[str, Any]]),
        get(run, show_run, wire.RunDetail),
        get(f"{run}/events", run_events, responses=_EVENTS),
        get(f"{run}/output", run_output, responses=_BYTES),
        post(f"{run}/stop", stop_run, wire.Stopped),
        post(f"{run}/messages", send_message, wire.Taken),
        post(f"{run}/answer", answer_question, wire.Answered),
        post(f"{run}/resume", resume_run, wire.RunOut, status=201, instead=_STARTED),
        get("/api/worktrees", list_worktrees, list[wire.WorktreeOut]),
        post("/api/worktrees/prune", prune_worktrees, list[wire.WorktreeOut]),
        get("/api/health", show_health, wire.Health),
        post("/api/server/stop", stop_server, wire.Stopping, status=202),
    ]


def _face(engine: Engine, run: Run) -> dict[str, Any]:
    return wire.run_out(_with_tree(engine, engine.resting(run)), engine.hub.last.get(run.id))


def _with_tree(engine: Engine, run: Run) -> Run:
    """What an agent at the root cost is told with all that it started; a chain has counted that by itself."""
    if run.kind is not Kind.LEAF or run.root != run.id or not engine.read.has_children(run.id):
        return run
    spent = engine.spent_below(run)
    return msgspec.structs.replace(run, cost_usd=spent.cost_usd, tokens=spent.tokens)


async def list_runs(
    request: Request,
    ended_too: Annotated[bool, Query("all")] = False,
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000,
    before: Annotated[int, Meta(ge=0, le=LATEST)] | None = None,
    status: Status | None = None,
    agent: Annotated[str, Meta(min_length=1)] | None = None,
    project: Annotated[str, Meta(min_length=1)] | None = None,
    since: Annotated[float, Meta(ge=0)] | None = None,
) -> Response:
    """Runs that have not ended, or with ``all`` the newest of every kind, oldest first.

    Where there are more, older ones are those ``before`` the number in ``meta.next``. ``status`` decides by itself
    whether ended runs are meant; ``project`` is a directory that the run, or the root of its tree, works in or below;
    ``since`` is the Unix time at which the first of them was created.
    """
    engine = _engine(request)
    runs = await run_filters.select(
        engine,
        run_filters.Filter(status, agent, project, since),
        ended_too=ended_too,
        before=before,
        limit=limit + 1,
        caller=caller_of(request.scope).run,
    )
    page = _newest(runs[-limit:])
    following = page[0].number if len(page) < len(runs) else None
    return wire.answer(await _faces(engine, page), next=following)


async def _faces(engine: Engine, runs: Sequence[Run]) -> list[msgspec.Raw]:
    """Many runs, encoded a few at a time: other requests have their turn in between."""
    rows: list[msgspec.Raw] = []
    for start in range(0, len(runs), SLICE):
        rows += [msgspec.Raw(wire.encoded(_face(engine, run))) for run in runs[start : start + SLICE]]
        await asyncio.sleep(0)
    return rows


async def _children(engine: Engine, run: Run) -> list[msgspec.Raw]:
    rows: list[msgspec.Raw] = []
    last = 0
    while page := engine.read.children(run.id, last, SLICE):
        rows += await _faces(engine, page)
        last = page[-1].number
    return rows


def _newest(runs: list[Run]) -> list[Run]:
    """As many of the newest as fit an answer, and one in any case: results can be long."""
    size = 0
    for index in range(len(runs) - 1, -1, -1):
        size += RUN_BYTES + 3 * len(runs[index].result or "")
        if size > LIST_BYTES and index < len(runs) - 1:
            return runs[index + 1 :]
    return runs


async def start_run(
    request: Request, body: wire.StartBody, follow: bool = False, idempotency_key: Key = None
) -> Response:
    """Start an agent or a chain. The same Idempotency-Key gives the same run.

    With ``follow`` the answer is the run's events, as server-sent events, and ``Location`` says which run it is.
    """
    engine = _engine(request)
    parent = _parent(request, body)
    if body.task is not None:
        run = await _start_for_task(request, body, body.task, idempotency_key)
    else:
        run = await engine.start(body, idempotency_key, parent)
    return _started(engine, run, follow)


def _started(engine: Engine, run: Run, follow: bool) -> Response:
    if not follow:
        return wire.answer(_face(engine, run), 201)
    events = stream.events(engine, run, 0, follow)
    return stream.Flow(events, stream.EVENTS, 201, {"Location": f"/api/runs/{run.id}"})


async def plan_run(request: Request, body: wire.StartBody) -> Response:
    """What the same start would begin, step by step. Nothing is started."""
    engine, parent = _engine(request), _parent(request, body)
    if body.task is not None:
        raise UsageError("a hand-off cannot be planned", "leave out `task`")
    return wire.answer(await engine.plan(body, parent))


async def _start_for_task(request: Request, body: wire.StartBody, name: str, key: str | None) -> Run:
    """A start for a task is a hand-off, whichever door it comes in by."""
    engine, wanted, caller = _engine(request), cast(Tasks, request.app.state.tasks), caller_of(request.scope).run
    if body.parent is not None and caller is None:
        raise UsageError("a hand-off is below the run that asks for it", "leave out `parent`, or ask as that run")
    task = wanted.find(name, caller)
    asked = body if task.cwd is None else msgspec.structs.replace(body, cwd=task.cwd)
    given = await wanted.hand_off(task, asked, key, caller)
    return engine.find(given.handoff.run or "")


def _parent(request: Request, body: wire.StartBody) -> Run | None:
    """A run speaks for itself alone; the operator may name any live run."""
    mine = caller_of(request.scope).run
    if body.parent is None:
        return mine
    named = _engine(request).find(body.parent)
    if mine is not None and named.id != mine.id:
        raise Forbidden("a run can start children of its own only")
    if named.ended:
        raise Conflict(f"run {named.number} has ended; it can start nothing more")
    return named


async def show_run(request: Request, ref: str) -> Response:
    """One run by id, unique prefix or number, with its children and what it or they ask."""
    engine = _engine(request)
    run = _run(request, ref)
    more = {
        "seq": engine.read.last_seq(),
        "questions": wire.questions_out(_asking(engine, run)),
        "children": await _children(engine, run),
        "dir": str(engine.directory(run)),
        "prompt": engine.read.shown_prompt(run.id),
        "steps": [dict(step) for step in run.steps],
    }
    return wire.answer(_face(engine, run) | more)


def _asking(engine: Engine, run: Run) -> list[Run]:
    """Whose questions count as a run's: its own, and those of all below where it is no agent that could ask."""
    if run.kind is Kind.LEAF:
        return [run]
    return [one for one in engine.live() if one.open_questions and _reaches(engine, run, one)]


async def run_events(request: Request, ref: str, follow: bool = True, last_event_id: Cursor = 0) -> Response:
    """Server-sent events after ``Last-Event-ID``; following ends with the run's own end."""
    lines = stream.events(_engine(request), _run(request, ref), last_event_id, follow)
    return stream.Flow(lines, stream.EVENTS)


async def run_output(
    request: Request,
    ref: str,
    stream_name: Annotated[Literal["out", "err"], Query("stream")] = "out",
    offset: Annotated[int, Meta(ge=0, le=LATEST)] = 0,
    follow: bool = False,
) -> Response:
    """The bytes that the agent wrote, from ``offset`` on."""
    engine = _engine(request)
    run = _run(request, ref)
    path = engine.directory(run) / {"out": files.OUT, "err": files.ERR}[stream_name]
    if run.kind is Kind.LEAF and run.ended and run.started_at is not None and not files.is_regular(path):
        raise NotFound(f"what run {run.number} wrote is gone: there is no {path}", "its events still have its lines")
    chunks = stream.output(engine, run, path, offset, follow)
    return stream.Flow(chunks, "application/octet-stream")


async def stop_run(request: Request, ref: str, body: wire.Empty | None = None) -> Response:
    """End a run and everything below it; answers when all of it is gone."""
    return wire.answer(await _engine(request).stop(_run(request, ref)))


async def send_message(request: Request, ref: str, body: wire.Message, idempotency_key: Key = None) -> Response:
    """Say something to a live run that listens, or end what it is doing; with both, the end comes first."""
    engine = _engine(request)
    run = _run(request, ref)
    key = idempotency_key or os.urandom(8).hex()
    if body.interrupt:
        await engine.interrupt(run, key)
    ahead = await engine.send(run, body.text, key) if body.text is not None else 0
    return wire.answer({"run": run.id, "id": key, "ahead": ahead})


async def answer_question(request: Request, ref: str, body: wire.AnswerBody, idempotency_key: Key = None) -> Response:
    """Answer what a run asks. No run answers for itself or for what it started: only the operator does."""
    run = _run(request, ref)
    if caller_of(request.scope).run is not None:
        raise Forbidden("only the operator answers questions; a run must not approve what it or its own wants")
    said = await _engine(request).answer(
        run, body.question, body.allow, body.text, "operator", idempotency_key, always=body.always
    )
    return wire.answer(said)


async def resume_run(
    request: Request,
    ref: str,
    body: wire.ResumeBody | None = None,
    follow: bool = False,
    idempotency_key: Key = None,
) -> Response:
    """Go on, in a new run, where one that has ended stopped: with its session, or with what is left of a chain.

    A run that was a hand-off has its task again, by another record. ``follow`` is that of a start.
    """
    run = _run(request, ref)
    if caller_of(request.scope).run is not None:
        raise Forbidden("only the operator resumes runs; what a run starts belongs below it")
    engine = _engine(request)
    tasks = cast(Tasks, request.app.state.tasks)
    resumed = await tasks.resume(run, body or wire.ResumeBody(), idempotency_key)
    return _started(engine, resumed, follow)


async def show_health(request: Request) -> Response:
    """The server about itself."""
    return wire.answer(request.app.state.health())


async def stop_server(request: Request, body: wire.Empty | None = None) -> Response:
    """Let the server go. Runs live on and are taken over by the next one."""
    _check_operator(request, "stop the server")
    request.app.state.stop()
    return wire.answer({"pid": os.getpid()}, 202)


async def list_worktrees(request: Request) -> Response:
    """The worktrees that chains have left, what each holds, and why it would stay."""
    _check_operator(request, "look at all worktrees")
    return wire.answer([one.row for one in await _engine(request).worktrees()])


async def prune_worktrees(request: Request, body: wire.PruneBody) -> Response:
    """Take away the worktrees that hold nothing, of some runs or of all."""
    _check_operator(request, "take worktrees away")
    found = await _engine(request).prune_worktrees(body.runs, body.older, dry=body.dry_run)
    return wire.answer([one.row for one in found])


def _check_operator(request: Request, what: str) -> None:
    if caller_of(request.scope).run is not None:
        raise Forbidden(f"only the operator can {what}")


# --- Errors -------------------------------------------------------------------------------------------------


async def _ours(request: Request, error: HocketError) -> Response:
    return wire.error_response(error)


async def _http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return wire.error_response(NotFound(f"there is no route {request.url.path}"))
    response = wire.error_response(UsageError(str(error.detail)))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


async def _broken_off(request: Request, error: ClientDisconnect) -> Response:
    """Nobody is there any more to read it, but a fault of ours it is not."""
    return wire.error_response(UsageError("the request broke off"))


async def _fault(request: Request, error: Exception) -> Response:
    return wire.error_response(wire.internal_error())


_HANDLERS: dict[Any, Any] = {
    HocketError: _ours,
    ClientDisconnect: _broken_off,
    HTTPException: _http,
    Exception: _fault,
}
