"""Routes of the hooks in an agent's CLI: permission to use a tool, and the limit of teammates."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hocket.api import wire
from hocket.api.guard import caller_of, engine_of, run_named
from hocket.api.routing import Key, Operation, post
from hocket.errors import Forbidden
from hocket.model import Run


def operations() -> list[Operation]:
    run = "/api/runs/{ref}"
    return [
        post(f"{run}/permissions", ask_permission, wire.AskedQuestion, status=201),
        post(f"{run}/teammates", check_teammate, wire.AllowedTeammate),
    ]


async def ask_permission(
    request: Request, ref: str, body: wire.PermissionBody, idempotency_key: Key = None
) -> Response:
    """Ask whether a call of a tool is allowed. The answer is an event of the run, as for every question.

    Only the run itself may, with its own token, and the operator.
    """
    run = _run_itself(request, ref)
    question = await engine_of(request).ask_by_hook(run, msgspec.structs.asdict(body), idempotency_key)
    return wire.success({"id": question, "run": run.id}, 201)


async def check_teammate(request: Request, ref: str, body: wire.TeammateBody) -> Response:
    """Check that one more teammate may be started in a team. Nothing is recorded.

    Only its lead may, with its own token, and the operator.
    """
    run = _run_itself(request, ref)
    engine_of(request).check_teammate(run, body.name)
    return wire.success({"run": run.id, "name": body.name})


def _run_itself(request: Request, ref: str) -> Run:
    """The named run, if it is the caller or the operator calls."""
    run, caller = run_named(request, ref), caller_of(request.scope).run
    if caller is not None and caller.id != run.id:
        raise Forbidden("a hook can only ask for its own run, with the token of that run")
    return run
