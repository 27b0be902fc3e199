"""The routes of questions: all that are open, and those that an agent asks in its own words.

Answering stands with the other routes of a run. No rule is decided here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from hocket.api import wire
from hocket.api.guard import caller_of
from hocket.api.routing import Key, Operation, get, post
from hocket.api.scope import engine_of, reaches, run_named
from hocket.api.stream import EVENTS, HEARTBEAT, Flow
from hocket.engine import Engine
from hocket.errors import Forbidden
from hocket.model import Run
from hocket.sessions.questions import PendingQuestion

_STREAM: dict[int, dict[str, Any]] = {
    200: {"description": "The whole inbox, now and after every change of it", "content": {EVENTS: {}}}
}

Beginning = Annotated[str, Meta(max_length=200)] | None


def operations() -> list[Operation]:
    path = "/api/runs/{ref}/questions"
    return [
        get("/api/inbox", list_questions, (list[wire.InboxOut], list[wire.QuestionState])),
        get("/api/inbox/events", follow_questions, responses=_STREAM),
        post(path, ask_question, wire.Asked, status=201),
        get(f"{path}/{{question}}", show_question, wire.QuestionState),
    ]


async def list_questions(request: Request, answered: Beginning = None, run: Beginning = None) -> Response:
    """Every open question of every live run, oldest first; for a run its own and those of all below it.

    With ``answered``, which is the beginning of an id, instead the last question that has such an id and was answered,
    if there is one, with who answered and what; with ``run`` as well, of that run alone, or of all below that chain.
    """
    engine, mine = engine_of(request), caller_of(request.scope).run
    if answered is None:
        return wire.answer(_rows(engine, mine, engine.inbox.questions()))
    found = engine.inbox.answered(run_named(request, run) if run else mine, answered)
    return wire.answer([found[1]] if found is not None and reaches(engine, mine, found[0]) else [])


async def follow_questions(request: Request) -> Response:
    """Server-sent events: what ``/api/inbox`` lists, now and whenever it is another."""
    lines = _changes(engine_of(request), caller_of(request.scope).run)
    return Flow(lines, EVENTS)


async def _changes(engine: Engine, mine: Run | None) -> AsyncIterator[bytes]:
    before: list[dict[str, Any]] | None = None
    async for questions in engine.inbox.follow(HEARTBEAT):
        rows = before if questions is None else _rows(engine, mine, questions)
        if rows == before:
            yield b": still here\n\n"
            continue
        before = rows
        yield b"data: %b\n\n" % wire.encoded(rows)


def _rows(engine: Engine, mine: Run | None, questions: Iterable[PendingQuestion]) -> list[dict[str, Any]]:
    seen = [one for one in questions if reaches(engine, mine, one.run)]
    return [wire.inbox_out(one.run, one.asked, one.asked_at) for one in seen]


async def ask_question(request: Request, ref: str, body: wire.AskBody, idempotency_key: Key = None) -> Response:
    """Ask people something. Only a run itself does, by its own token: nobody puts words into its mouth."""
    run = run_named(request, ref)
    mine = caller_of(request.scope).run
    if mine is None or mine.id != run.id:
        raise Forbidden("only a run itself asks, with its own token")
    question = await engine_of(request).ask(run, body.text, body.options, idempotency_key)
    return wire.answer({"id": question, "run": run.id}, 201)


async def show_question(request: Request, ref: str, question: str) -> Response:
    """One question of a run by its id, and what became of it."""
    return wire.answer(engine_of(request).question(run_named(request, ref), question))
