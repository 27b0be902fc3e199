"""What a request is about, and whether whoever sends it may reach it."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from hocket.api.guard import caller_of
from hocket.engine import Engine
from hocket.errors import Forbidden
from hocket.model import Run


def engine_of(request: Request) -> Engine:
    return cast(Engine, request.app.state.engine)


def run_named(request: Request, ref: str) -> Run:
    """The run that is meant. A run that asks reaches itself and what is below it, and nothing else."""
    engine = engine_of(request)
    run = engine.find(ref)
    if not reaches(engine, caller_of(request.scope).run, run):
        raise Forbidden("a run reaches only itself and its descendants")
    return run


def reaches(engine: Engine, mine: Run | None, run: Run) -> bool:
    return mine is None or any(one.id == mine.id for one in engine.above(run))
