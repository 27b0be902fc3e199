"""Streams: a run's events as server-sent events, and the bytes its agent wrote."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from hocket.engine.engine import Engine
from hocket.model import Run

HEARTBEAT = 15.0
CHUNK = 256 * 1024


async def events(engine: Engine, run: Run, after: int, follow: bool) -> AsyncIterator[bytes]:
    """Whatever is new goes out in one piece, as fast as the reader takes it; nothing is queued for it here."""
    async for lines in engine.follow(run, after, wait=follow, heartbeat=HEARTBEAT):
        if lines:
            yield b"".join(b"id: %d\ndata: %b\n\n" % (line.seq, line.text) for line in lines)
        else:
            yield b": still here\n\n"


async def output(engine: Engine, run: Run, path: Path, offset: int, follow: bool) -> AsyncIterator[bytes]:
    """The file as it is, and, following, as it grows until the run has ended."""
    news = engine.follow(run, engine.read.last_seq(), wait=follow, heartbeat=HEARTBEAT)
    open_ = True
    while open_:
        while chunk := _read(path, offset):
            offset += len(chunk)
            yield chunk
        open_ = follow and await anext(news, None) is not None
    while chunk := _read(path, offset):
        offset += len(chunk)
        yield chunk


def _read(path: Path, offset: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, CHUNK, offset)
    finally:
        os.close(descriptor)
