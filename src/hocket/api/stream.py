"""Streams: the events of a run as server-sent events, and the output of its agent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from starlette.responses import StreamingResponse

from hocket.api import wire
from hocket.engine import Engine
from hocket.errors import HocketError
from hocket.model import Run
from hocket.sessions.output_lines import read_at

HEARTBEAT = 15.0
EVENTS = "text/event-stream"
CHUNK = 256 * 1024

log = logging.getLogger("hocket")


def event_stream(
    pieces: AsyncIterator[bytes], status: int = 200, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """Return a response of server-sent events."""
    return StreamingResponse(_with_error(pieces), status, {"Cache-Control": "no-store", **(headers or {})}, EVENTS)


async def _with_error(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """End an event stream with the error that breaks it: a client would reconnect for ever to one that just ends."""
    try:
        async for piece in pieces:
            yield piece
    except HocketError as error:
        yield b"event: error\ndata: %b\n\n" % wire.error_body(error)
    except Exception:
        log.exception("an event stream failed")
        yield b"event: error\ndata: %b\n\n" % wire.error_body(wire.internal_error())


async def events(engine: Engine, run: Run, after: int, follow: bool) -> AsyncIterator[bytes]:
    """Yield the events of a run, in batches as large as the client's pace makes them."""
    async for lines in engine.follow(run, after, wait=follow, heartbeat=HEARTBEAT):
        if lines:
            yield b"".join(b"id: %d\ndata: %b\n\n" % (line.seq, line.text) for line in lines)
        else:
            yield b": still here\n\n"


async def output(engine: Engine, run: Run, path: Path, offset: int, follow: bool) -> AsyncIterator[bytes]:
    """Yield the content of an output file from ``offset``; with ``follow`` until the run has ended."""
    news = engine.follow(run, engine.read.last_seq(), wait=follow, heartbeat=HEARTBEAT)
    is_ended = False
    while True:
        while chunk := read_at(path, offset, CHUNK):
            offset += len(chunk)
            yield chunk
        if is_ended:
            return
        is_ended = not follow or await anext(news, None) is None
