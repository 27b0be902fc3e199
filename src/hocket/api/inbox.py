"""Routes of questions: the inbox, and questions that an agent asks itself. Answering is a route of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from hocket.api import wire
from hocket.api.guard import caller_of, engine_of, reaches, run_named
from hocket.api.routing import Key, Operation, content, get, post
from hocket.api.stream import EVENTS, HEARTBEAT, event_stream
from hocket.engine import Engine
from hocket.errors import Forbidden
from hocket.model import Run
from hocket.sessions.questions import PendingQuestion

_STREAM = content("The whole inbox, now and after every change", EVENTS)

Beginning = Annotated[str, Meta(max_length=200)] | None


def operations() -> list[Operation]:
    path = "/api/runs/{ref}/questions"
    return [
        get("/api/inbox", list_questions, (list[wire.InboxOut], list[wire.QuestionState])),
        get("/api/inbox/events", follow_questions, responses=_STREAM),
        post(path, ask_question, wire.AskedQuestion, status=201),
        get(f"{path}/{{question}}", show_question, wire.QuestionState),
    ]


async def list_questions(request: Request, answered: Beginning = None, run: Beginning = None) -> Response:
    """List the open questions of all live runs, oldest first; for a run its own and those of its descendants.

    With ``answered``, a prefix of an id, list instead the latest answered question with such an id, if any, with its
    answer; with ``run`` only one of that run, or below that chain.
    """
    engine, caller = engine_of(request), caller_of(request.scope).run
    if answered is None:
        return wire.success(open_questions(engine, caller))
    found = engine.inbox.answered(run_named(request, run) if run else caller, answered)
    return wire.success([found[1]] if found is not None and reaches(engine, caller, found[0]) else [])


async def follow_questions(request: Request) -> Response:
    """Follow the inbox as server-sent events: its whole content now and after every change."""
    return event_stream(_changes(engine_of(request), caller_of(request.scope).run))


async def _changes(engine: Engine, caller: Run | None) -> AsyncIterator[bytes]:
    before: list[dict[str, Any]] | None = None
    async for questions in engine.inbox.follow(HEARTBEAT):
        rows = before if questions is None else _rows(engine, caller, questions)
        if rows == before:
            yield b": still here\n\n"
            continue
        before = rows
        yield b"data: %b\n\n" % wire.encoded(rows)


def open_questions(engine: Engine, caller: Run | None) -> list[dict[str, Any]]:
    """Return the open questions that a caller may see, oldest first."""
    return _rows(engine, caller, engine.inbox.questions())


def _rows(engine: Engine, caller: Run | None, questions: Iterable[PendingQuestion]) -> list[dict[str, Any]]:
    seen = [one for one in questions if reaches(engine, caller, one.run)]
    return [wire.inbox_out(one.run, one.asked, one.asked_at) for one in seen]


async def ask_question(request: Request, ref: str, body: wire.AskBody, idempotency_key: Key = None) -> Response:
    """Ask a question. Only the run itself may, with its own token."""
    run = run_named(request, ref)
    caller = caller_of(request.scope).run
    if caller is None or caller.id != run.id:
        raise Forbidden("a question can only be asked by the run itself, with its own token")
    question = await engine_of(request).ask(run, body.text, body.options, idempotency_key)
    return wire.success({"id": question, "run": run.id}, 201)


async def show_question(request: Request, ref: str, question: str) -> Response:
    """Show one question of a run, with its answer."""
    return wire.success(engine_of(request).question(run_named(request, ref), question))
