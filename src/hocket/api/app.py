"""Routes of runs, worktrees and the server. Each calls the engine, which applies the rules."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from hocket.api import catalog, hooks, inbox, mcp, openapi, run_filters, stream, tasks, teams, terminals, wire
from hocket.api.guard import caller_of, engine_of, reaches, require_operator, run_named, sender_from_below
from hocket.api.routing import Header, Key, Operation, Query, content, get, post, routes
from hocket.config import caller_environment
from hocket.config.settings import Keep
from hocket.engine import Engine
from hocket.errors import Conflict, Forbidden, HocketError, NotFound, UsageError
from hocket.keeper import files
from hocket.model import Kind, Run, Status
from hocket.sessions.observed.refusals import check_owned
from hocket.store import LATEST, UsageTotal
from hocket.workflows.directory_diff import Form

T = TypeVar("T")

_EVENTS = content("The events of the run and its descendants", stream.EVENTS)
_CHANGES = content("The runs that have not ended and the open questions, then what changes", stream.EVENTS)
_STARTED: dict[str, Any] = {stream.EVENTS: {}}
"""The response to a start with ``follow``."""
_BYTES = content("The agent's output, byte for byte", "application/octet-stream")

LIST_BYTES = 16 * 1024 * 1024
CHANGES_PAUSE = 0.2
"""Seconds between two messages about changed runs: a person reads them."""
SLICE = 100
"""Runs that are read or encoded before other requests get their turn."""

Cursor = Annotated[int, Meta(ge=0, le=LATEST), Header("Last-Event-ID")]


def build(engine: Engine, health: Callable[[], dict[str, Any]], stop: Callable[[], None]) -> Starlette:
    """Return the app of a server."""
    modules = (terminals, inbox, hooks, teams, catalog, tasks, mcp)
    declared = [*operations(), *(one for module in modules for one in module.operations())]
    app = Starlette(routes=[*routes(declared), openapi.route(declared)], exception_handlers=_HANDLERS)
    app.router.redirect_slashes = False
    app.state.engine = engine
    app.state.health = health
    app.state.stop = stop
    return app


def operations() -> list[Operation]:
    run = "/api/runs/{ref}"
    return [
        get("/api/runs", list_runs, list[wire.RunOut]),
        get("/api/runs/events", follow_runs, responses=_CHANGES),
        post("/api/runs", start_run, wire.RunOut, status=201, instead=_STARTED),
        post("/api/runs/import", import_session, wire.RunOut, status=201),
        post("/api/plans", plan_run, list[dict[str, Any]]),
        get(run, show_run, wire.RunDetail),
        get(f"{run}/events", run_events, responses=_EVENTS),
        get(f"{run}/output", run_output, responses=_BYTES),
        get(f"{run}/transcript", run_transcript, list[wire.TranscriptEventOut]),
        get(f"{run}/diff", run_diff, wire.RunDiffOut),
        get(f"{run}/evidence", run_evidence, wire.EvidenceOut),
        post(f"{run}/stop", stop_run, wire.StoppedRuns),
        post(f"{run}/messages", send_message, wire.AcceptedMessage),
        post(f"{run}/answer", answer_question, wire.AnsweredQuestion),
        post(f"{run}/resume", resume_run, wire.RunOut, status=201, instead=_STARTED),
        get("/api/worktrees", list_worktrees, list[wire.WorktreeOut]),
        post("/api/worktrees/prune", prune_worktrees, list[wire.WorktreeOut]),
        get("/api/gc", plan_removal, wire.RemovalPlan),
        post("/api/gc", remove_runs, wire.RemovalOut),
        get("/api/health", show_health, wire.Health),
        post("/api/server/stop", stop_server, wire.ServerStopping, status=202),
    ]


def _run_out(engine: Engine, run: Run) -> dict[str, Any]:
    shown = _with_tree_cost(engine, engine.displayed(run))
    return wire.run_out(shown, engine.hub.last.get(run.id), engine.idle_after, engine.live_teammates(run))


def _with_tree_cost(engine: Engine, run: Run) -> Run:
    """Add the cost of its descendants to a root that is an agent; a chain includes it already."""
    if not run.has_process or run.root != run.id or not engine.read.has_children(run.id):
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
    tree: bool = False,
    observed: bool = False,
    env: Annotated[str, Meta(max_length=64 * 1024)] | None = None,
) -> Response:
    """List the runs that have not ended, or with ``all`` the newest of all runs, oldest first.

    Older runs are ``before`` the number in ``meta.next``. ``status`` includes ended runs if it is that of one;
    ``project`` is a directory that contains the working directory of the run or of its root; ``since`` is the earliest
    time of creation, in Unix time.

    With ``tree`` add the runs above these, ended ones as well, and all runs below them that have not ended, or with
    ``all`` all runs below them; each with the cost and the tokens of itself and everything below it.

    With ``observed`` list the sessions that Hocket did not start: those with a process, and those that changed within a
    week, or ``since``, or with ``all`` at any time. ``env`` is a JSON object with the variables of the caller's
    environment that decide where they are.
    """
    engine, caller = engine_of(request), caller_of(request.scope).run
    chosen = run_filters.RunFilter(status, agent, project, since)
    if observed and tree:
        raise UsageError("`tree` is not allowed with `observed`", "omit one of them")
    if observed:
        require_operator(request, "list sessions that Hocket did not start")
        rows = await run_filters.select_observed(engine, chosen, env, ended_too=ended_too, limit=limit)
        return wire.success([wire.run_out(*row) for row in rows], next=None)
    runs = await run_filters.select(
        engine,
        chosen,
        ended_too=ended_too,
        before=before,
        limit=limit + 1,
        caller=caller,
    )
    page = wire.fitting(runs[::-1][:limit], lambda run: run.result, LIST_BYTES)[::-1]
    following = page[0].number if len(page) < len(runs) else None
    if tree:
        families, usage = await run_filters.read_families(engine, page, ended_too=ended_too, caller=caller)
        families = wire.fitting(families[::-1], lambda run: run.result, LIST_BYTES)[::-1]
        return wire.success(await _encoded(engine, families, usage), next=following)
    return wire.success(await _encoded(engine, page), next=following)


async def follow_runs(request: Request) -> Response:
    """Follow all runs as server-sent events: ``{"complete", "runs", "questions"}``.

    The first one is ``complete``: every run that has not ended. A later one has the runs that have changed since, also
    those that have ended. ``questions`` is the whole inbox, or null where it has not changed.
    """
    return stream.event_stream(_changes(engine_of(request), caller_of(request.scope).run))


async def _changes(engine: Engine, mine: Run | None) -> AsyncIterator[bytes]:
    is_first, asked_before = True, None
    async for changed in engine.hub.changes(CHANGES_PAUSE, stream.HEARTBEAT):
        if not changed and not is_first:
            yield b": still here\n\n"
            continue
        runs = engine.live() if is_first else _changed_runs(engine, changed)
        rows = await _encoded(engine, [run for run in runs if reaches(engine, mine, run)])
        asked = inbox.open_questions(engine, mine)
        message = {"complete": is_first, "runs": rows, "questions": None if asked == asked_before else asked}
        is_first, asked_before = False, asked
        yield b"data: %b\n\n" % wire.encoded(message)


def _changed_runs(engine: Engine, changed: set[tuple[str, str]]) -> list[Run]:
    """Return these runs, the roots above them, which have the cost of the tree, and what waits with a chain."""
    roots = {root for _, root in changed}
    names = roots | {run for run, _ in changed}
    names |= {run.id for run in engine.live() if run.root in roots and run.kind in (Kind.LOOP, Kind.GROUP)}
    return sorted(filter(None, map(engine.current, names)), key=lambda run: run.number)


async def _encoded(
    engine: Engine, runs: Sequence[Run], tree_usage: Mapping[str, UsageTotal] | None = None
) -> list[msgspec.Raw]:
    def row(run: Run) -> dict[str, Any]:
        more = {} if tree_usage is None else wire.tree_usage_out(tree_usage.get(run.id, UsageTotal()))
        return _run_out(engine, run) | more

    return await _encoded_rows(runs, row)


async def _encoded_rows(values: Sequence[T], row: Callable[[T], Any] = lambda value: value) -> list[msgspec.Raw]:
    """Encode many rows in slices, so that other requests get their turn."""
    rows: list[msgspec.Raw] = []
    for start in range(0, len(values), SLICE):
        rows += [msgspec.Raw(wire.encoded(row(value))) for value in values[start : start + SLICE]]
        await asyncio.sleep(0)
    return rows


async def _children(engine: Engine, run: Run) -> list[msgspec.Raw]:
    rows: list[msgspec.Raw] = []
    last = 0
    while page := engine.read.children(run.id, last, SLICE):
        rows += await _encoded(engine, page)
        last = page[-1].number
    return rows


async def start_run(
    request: Request, body: wire.StartBody, follow: bool = False, idempotency_key: Key = None
) -> Response:
    """Start an agent or a chain, or with ``task`` a hand-off. The same Idempotency-Key gives the same run.

    With ``follow`` the response is the run's events, as server-sent events, and ``Location`` names the run.
    """
    engine, parent, caller = engine_of(request), _parent(request, body), caller_of(request.scope).run
    if body.task is None:
        return _started(engine, await engine.start(body, idempotency_key, parent), follow)
    if body.parent is not None and caller is None:
        raise UsageError("`parent` is not allowed with `task`", "omit `parent`, or use the token of that run")
    task = engine.tasks.find(body.task, caller)
    start = msgspec.structs.replace(body, cwd=task.cwd or body.cwd, session=bool(body.session))
    given = await engine.tasks.hand_off(task, start, idempotency_key, caller)
    return _started(engine, engine.find(given.handoff.run or ""), follow)


def _started(engine: Engine, run: Run, follow: bool) -> Response:
    if not follow:
        return wire.success(_run_out(engine, run), 201)
    return stream.event_stream(stream.events(engine, run, 0, follow), 201, {"Location": f"/api/runs/{run.id}"})


async def import_session(request: Request, body: wire.SessionImportBody, idempotency_key: Key = None) -> Response:
    """Import a session that Hocket did not start: its transcript becomes the events of a run, until its process ends.

    The same session gives the same run, with any Idempotency-Key, unless it was continued after that run had ended.
    A session without a process is read first, for at most ten seconds.
    """
    require_operator(request, "import sessions")
    engine = engine_of(request)
    env = caller_environment() if body.env is None else body.env
    return wire.success(_run_out(engine, await engine.adopt(body.session, env)), 201)


async def plan_run(request: Request, body: wire.StartBody) -> Response:
    """Show the steps of a start without starting anything."""
    engine, parent = engine_of(request), _parent(request, body)
    if body.task is not None:
        raise UsageError("a hand-off cannot be planned", "omit `task`")
    return wire.success(await engine.plan(body, parent))


def _parent(request: Request, body: wire.StartBody) -> Run | None:
    """Return the parent of a start: the calling run, or any live run that the operator names."""
    caller = caller_of(request.scope).run
    if body.parent is None:
        return caller
    named = engine_of(request).find(body.parent)
    if caller is not None and named.id != caller.id:
        raise Forbidden("a run can start only its own children")
    if named.ended:
        raise Conflict(f"run {named.number} has ended and cannot start children")
    check_owned(named, "start runs below it")
    return named


async def show_run(request: Request, ref: str, worktrees: bool = False) -> Response:
    """Show one run by id, unique prefix or number, with its children and open questions.

    With ``worktrees`` git is asked what has become of the worktrees and branches of its steps.
    """
    engine = engine_of(request)
    seq = engine.applied_seq  # Before anything else, so that events after it have all that the response lacks.
    run = run_named(request, ref)
    usage = await engine.read_aside(lambda queries: queries.usage_below([run.root]))
    more = {
        "seq": seq,
        "questions": wire.questions_out(_runs_with_questions(engine, run)),
        "children": await _children(engine, run),
        "dir": str(engine.directory(run)),
        "prompt": engine.read.shown_prompt(run.id),
        "terminal": engine.terminals.has_terminal(run),
        "steps": await engine.current_steps(run) if worktrees else [dict(step) for step in run.steps],
    }
    return wire.success(_run_out(engine, run) | wire.tree_usage_out(usage.get(run.id, UsageTotal())) | more)


def _runs_with_questions(engine: Engine, run: Run) -> list[Run]:
    """Return the runs whose questions are shown with a run: itself, or the descendants of a chain."""
    if run.has_process:
        return [run]
    return [one for one in engine.live() if one.open_questions and reaches(engine, run, one)]


async def run_events(request: Request, ref: str, follow: bool = True, last_event_id: Cursor = 0) -> Response:
    """Stream the events after ``Last-Event-ID`` as server-sent events, until the run ends."""
    return stream.event_stream(stream.events(engine_of(request), run_named(request, ref), last_event_id, follow))


async def run_output(
    request: Request,
    ref: str,
    stream_name: Annotated[Literal["out", "err"], Query("stream")] = "out",
    offset: Annotated[int, Meta(ge=0, le=LATEST)] = 0,
    follow: bool = False,
) -> Response:
    """Stream the output of the agent, from ``offset`` on."""
    engine = engine_of(request)
    run = run_named(request, ref)
    if run.is_observed:
        raise NotFound(f"Hocket did not start run {run.number} and has no output of it", "omit --raw to read its log")
    path = engine.directory(run) / {"out": files.OUT, "err": files.ERR}[stream_name]
    if run.has_process and run.ended and run.started_at is not None and not files.is_regular(path):
        raise NotFound(f"the output of run {run.number} is missing: {path}", "its events still contain its lines")
    chunks = stream.output(engine, run, path, offset, follow)
    return StreamingResponse(chunks, 200, {"Cache-Control": "no-store"}, "application/octet-stream")


async def run_transcript(request: Request, ref: str, last: Annotated[int, Meta(ge=1, le=1000)] = 100) -> Response:
    """Show the last events of an observed run, from the end of its transcript, which may not all be recorded yet."""
    events = await engine_of(request).last_events(run_named(request, ref), last)
    return wire.success([one._asdict() for one in events])


async def run_diff(
    request: Request,
    ref: str,
    text: Literal["patch", "stat", "none"] = "patch",
    colour: bool = False,
    columns: Annotated[int, Meta(ge=20, le=1000)] = 80,
) -> Response:
    """Show what a run has changed in its directories and worktrees since it began, by git where that is possible.

    ``text`` is the form of the text of each directory; ``colour`` allows colours in it, and ``columns`` is its width.
    """
    run = run_named(request, ref)
    return wire.success(await engine_of(request).diff(run, Form(text, colour, columns)))


async def run_evidence(request: Request, ref: str) -> Response:
    """Show what the state of a run rests on. Reads its files and the process table, and changes nothing."""
    return wire.success(await engine_of(request).evidence(run_named(request, ref)))


async def stop_run(request: Request, ref: str, body: wire.EmptyBody | None = None) -> Response:
    """Stop a run and its descendants; responds when all processes have ended."""
    return wire.success(await engine_of(request).stop(run_named(request, ref)))


async def send_message(request: Request, ref: str, body: wire.MessageBody, idempotency_key: Key = None) -> Response:
    """Send a message to a live run, interrupt its turn, or interrupt it and then send a message.

    A run may also send to those that it was started by; they get its name with the message.
    """
    engine = engine_of(request)
    text, sender = body.text, sender_from_below(request, ref)
    run = run_named(request, ref) if sender is None or body.interrupt else engine.find(ref)
    if sender is not None and text is not None:
        text = f"Message from run {sender.number} ({sender.agent}), which was started below you:\n\n{text}"
    key = idempotency_key or os.urandom(8).hex()
    if body.interrupt:
        await engine.interrupt(run, key)
    ahead, after = await engine.send(run, text, key) if text is not None else (0, engine.applied_seq)
    return wire.success({"run": run.id, "id": key, "ahead": ahead, "after": after})


async def answer_question(request: Request, ref: str, body: wire.AnswerBody, idempotency_key: Key = None) -> Response:
    """Answer a question of a run. Only the operator may."""
    run = run_named(request, ref)
    require_operator(request, "answer questions")
    answered = await engine_of(request).answer(
        run, body.question, body.allow, body.text, "operator", idempotency_key, always=body.always
    )
    return wire.success(answered)


async def resume_run(
    request: Request,
    ref: str,
    body: wire.ResumeBody | None = None,
    follow: bool = False,
    idempotency_key: Key = None,
) -> Response:
    """Resume an ended run as a new run: continue its session, or run the incomplete steps of its chain.

    Resuming a hand-off hands its task over again. ``follow`` works as in a start.
    """
    run = run_named(request, ref)
    require_operator(request, "resume runs")
    engine = engine_of(request)
    resumed = await engine.tasks.resume(run, body or wire.ResumeBody(), idempotency_key)
    return _started(engine, resumed, follow)


async def show_health(request: Request) -> Response:
    """Show the state of the server."""
    return wire.success(request.app.state.health())


async def stop_server(request: Request, body: wire.EmptyBody | None = None) -> Response:
    """Stop the server. Runs continue, and the next server adopts them."""
    require_operator(request, "stop the server")
    request.app.state.stop()
    return wire.success({"pid": os.getpid()}, 202)


async def list_worktrees(request: Request) -> Response:
    """List the worktrees of ended chains, with what they contain and why they are kept."""
    require_operator(request, "list worktrees")
    return wire.success([one.row for one in await engine_of(request).worktrees()])


async def prune_worktrees(request: Request, body: wire.PruneBody) -> Response:
    """Remove the worktrees without unsaved work, of some runs or of all."""
    require_operator(request, "prune worktrees")
    found = await engine_of(request).prune_worktrees(body.runs, body.older, dry=body.dry_run)
    return wire.success([one.row for one in found])


async def plan_removal(
    request: Request,
    days: Annotated[float, Meta(ge=0, le=10**6)] | None = None,
    runs: Annotated[int, Meta(ge=0, le=LATEST)] | None = None,
    size: Annotated[Annotated[int, Meta(ge=0, le=LATEST)] | None, Query("bytes")] = None,
) -> Response:
    """List the ended runs that would be removed, the oldest first, and those that something still needs.

    What is not given is as in ``[keep]`` of the configuration. Removes nothing.
    """
    require_operator(request, "list what can be removed")
    found = await engine_of(request).retention.plan(Keep(days, runs, size))
    rows = {"would_remove": await _encoded_rows(found.removed), "kept": await _encoded_rows(found.kept)}
    return wire.success({**rows, "bytes": _total(found.removed), "more": found.more})


async def remove_runs(request: Request, body: wire.RemovalBody) -> Response:
    """Remove ended runs with everything below them: records, events and directories. What something needs is kept.

    Runs that resume one another are removed together or not at all, so each is given with its ``also``.
    """
    require_operator(request, "remove runs")
    found = await engine_of(request).retention.remove(body.runs)
    rows = {"removed": found.removed, "kept": found.kept, "left": found.left}
    return wire.success({**rows, "bytes": _total(found.removed)})


def _total(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["bytes"] for row in rows)


# --- Errors -------------------------------------------------------------------------------------------------


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, HocketError):
        return wire.error_response(error)
    if isinstance(error, ClientDisconnect):  # no internal error for the log; the client does not read the response
        return wire.error_response(UsageError("the client disconnected"))
    if not isinstance(error, HTTPException):
        return wire.error_response(wire.internal_error())
    if error.status_code == 404:
        return wire.error_response(NotFound(f"unknown route: {request.url.path}"))
    response = wire.error_response(UsageError(str(error.detail)))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


_HANDLERS: dict[Any, Any] = dict.fromkeys((HocketError, ClientDisconnect, HTTPException, Exception), _error_response)
