"""Routes of the terminal that the process of a run has: what it shows, what is typed into it, and its size."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hocket.api import wire
from hocket.api.guard import engine_of, require_operator, run_named
from hocket.api.routing import Key, Operation, get, post

BYTES = "application/octet-stream"
VIEWER = "Hocket-Viewer"
"""The header that names the viewer, whose size may change."""

_SHOWN = {
    200: {
        "description": "What the terminal shows, byte for byte, until the run ends",
        "headers": {VIEWER: {"description": "The id of this viewer", "schema": {"type": "string"}}},
        "content": {BYTES: {}},
    }
}


def operations() -> list[Operation]:
    terminal = "/api/runs/{ref}/terminal"
    return [
        get(terminal, show_terminal, responses=_SHOWN),
        post(terminal, type_into_terminal, wire.TerminalAccepted),
    ]


async def show_terminal(request: Request, ref: str, columns: wire.Cells = 80, rows: wire.Cells = 24) -> Response:
    """Attach to the terminal of a live run: stream what it shows, as bytes for a terminal of this size.

    The stream begins with what sets the modes of the terminal and clears it, then the program draws everything again.
    It has the smallest size of all its viewers. Only the operator may.
    """
    require_operator(request, "attach to a terminal")
    viewer = engine_of(request).terminals.attach(run_named(request, ref), columns, rows)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", VIEWER: viewer.id}
    return StreamingResponse(viewer.pieces(), 200, headers, BYTES)


async def type_into_terminal(
    request: Request, ref: str, body: wire.TerminalInput, idempotency_key: Key = None
) -> Response:
    """Type into the terminal of a live run, or change the size of a viewer. Only the operator may.

    What one request types is not mixed with that of another. What was typed is not recorded, and an Idempotency-Key
    is remembered by this server only.
    """
    require_operator(request, "type into a terminal")
    engine, run = engine_of(request), run_named(request, ref)
    if body.viewer is not None and body.columns is not None and body.rows is not None:
        engine.terminals.resize(run, body.viewer, body.columns, body.rows)
    keys = body.data if body.keys is None else body.keys.encode()
    if keys:
        await engine.terminals.type(run, keys, idempotency_key)
    return wire.success({"run": run.id, "typed": len(keys or b"")})
