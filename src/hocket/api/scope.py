"""The run that a request names, and whether the caller may access it."""

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
    """Return the named run. A run may only access itself and its descendants."""
    engine = engine_of(request)
    run = engine.find(ref)
    if not reaches(engine, caller_of(request.scope).run, run):
        raise Forbidden("a run can access only itself and its descendants")
    return run


def reaches(engine: Engine, mine: Run | None, run: Run) -> bool:
    """True if the caller, a run or the operator (None), may access a run."""
    return mine is None or any(one.id == mine.id for one in engine.above(run))


def require_operator(request: Request, action: str) -> None:
    if caller_of(request.scope).run is not None:
        raise Forbidden(f"only the operator can {action}")
