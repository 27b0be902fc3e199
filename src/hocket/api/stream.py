"""Streams: a run's events as server-sent events, and the bytes its agent wrote."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hocket.api import wire
from hocket.engine import Engine
from hocket.errors import HocketError
from hocket.model import Run
from hocket.sessions.output_lines import read_at
from hocket.store import Line

HEARTBEAT = 15.0
EVENTS = "text/event-stream"
CHUNK = 256 * 1024

log = logging.getLogger("hocket")


class Flow(Response):
    """Pieces that go out as they come, until there are no more or nobody is there any more.

    The framework's own does the same with a group of tasks, which takes longer to set up than most runs take to tell.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        media_type: str,
        status_code: int = 200,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._pieces = pieces
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        self.init_headers({"Cache-Control": "no-store", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = asyncio.create_task(self._send(send)), asyncio.create_task(_hung_up(receive))
        try:
            over, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        for task in over:
            task.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pieces = _with_error(self._pieces) if self.media_type == EVENTS else self._pieces
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _with_error(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of an event stream, and as its last event the error that ends it: the status has been sent by then.

    A stream that just broke off would be opened again, for ever.
    """
    try:
        async for piece in pieces:
            yield piece
    except HocketError as error:
        yield b"event: error\ndata: %b\n\n" % wire.error_body(error)
    except Exception:
        log.exception("an event stream failed")
        yield b"event: error\ndata: %b\n\n" % wire.error_body(wire.internal_error())


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def events(engine: Engine, run: Run, after: int, follow: bool) -> AsyncIterator[bytes]:
    """Whatever is new goes out in one piece, as fast as the reader takes it; nothing is queued for it here."""
    async for lines in engine.follow(run, after, wait=follow, heartbeat=HEARTBEAT):
        if lines:
            yield b"".join(b"id: %d\ndata: %b\n\n" % (line.seq, line.text) for line in lines)
        else:
            yield b": still here\n\n"


def output(engine: Engine, run: Run, path: Path, offset: int, follow: bool) -> AsyncIterator[bytes]:
    """The file as it is, and, following, as it grows until the run has ended."""
    news = engine.follow(run, engine.read.last_seq(), wait=follow, heartbeat=HEARTBEAT)
    return _output(news, path, offset, follow)


async def _output(news: AsyncIterator[list[Line]], path: Path, offset: int, follow: bool) -> AsyncIterator[bytes]:
    open_ = True
    while open_:
        while chunk := read_at(path, offset, CHUNK):
            offset += len(chunk)
            yield chunk
        open_ = follow and await anext(news, None) is not None
    while chunk := read_at(path, offset, CHUNK):
        offset += len(chunk)
        yield chunk
