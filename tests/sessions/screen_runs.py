"""Runs of small full-screen programs that have a terminal, started by an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
from patience import PATIENCE
from workflows.engine_fixture import EngineRunner, engine_runner
from world import Bin

from hocket.model import Run, Spec
from hocket.sessions.terminal.viewers import TerminalViewer

SCREEN = r"""
import os, signal, sys, tty

MODES = b"\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[?1000h\x1b[?1006h"
typed = b""

def draw(*_):
    columns, rows = os.get_terminal_size(0)
    shown = f"size {columns}x{rows}\r\ntyped {typed.hex()} {len(typed)}\r\n"
    os.write(1, b"\x1b[2J\x1b[H" + shown.encode() + b"\x1b[31mred\x1b[0m text")

tty.setraw(0)
os.write(1, MODES)
signal.signal(signal.SIGWINCH, draw)
draw()
while not typed.endswith(b"QUIT"):
    typed += os.read(0, 65536)
    draw()
os.write(1, b"\x1b[?1049lthe last words\r\n")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
"""Draws its size and what was typed, in hexadecimal, whenever one of them changes; ends when QUIT is typed."""


async def start_in_terminal(runner: EngineRunner, agent: str, *args: str) -> Run:
    """The run of a program whose process has a terminal, once it has started."""
    engine = runner.engine
    bound = await engine._starter.bind(runner.request(agent=agent, args=args), None)
    assert isinstance(bound, Spec)
    run = await engine._starter.start_bound(msgspec.structs.replace(bound, stdin="terminal"))
    return await runner.running(run)


@asynccontextmanager
async def screen_run(home: Path, project: Path, agent: Bin, *args: str) -> AsyncIterator[tuple[EngineRunner, Run]]:
    """An engine with a run of SCREEN, which is stopped at the end."""
    agent("screen", SCREEN)
    async with engine_runner(home, project) as runner:
        run = await start_in_terminal(runner, "screen", *args)
        try:
            yield runner, run
        finally:
            if run.id in {one.id for one in runner.engine.live()}:
                await asyncio.wait_for(runner.engine.stop(run), PATIENCE)


class Shown:
    """What one viewer has been shown."""

    def __init__(self, viewer: TerminalViewer) -> None:
        self.viewer = viewer
        self.received = b""
        self.has_ended = False
        self._changed = asyncio.Event()

    async def read(self) -> None:
        async with aclosing(self.viewer.pieces()) as pieces:
            async for piece in pieces:
                self.received += piece
                self._changed.set()
        self.has_ended = True
        self._changed.set()

    async def until(self, wanted: bytes, after: int = 0) -> int:
        """Where the first such bytes end."""
        async with asyncio.timeout(PATIENCE):
            while (begin := self.received.find(wanted, after)) < 0:
                assert not self.has_ended, self.received
                self._changed.clear()
                await self._changed.wait()
        return begin + len(wanted)


@asynccontextmanager
async def attached(runner: EngineRunner, run: Run, columns: int = 80, rows: int = 24) -> AsyncIterator[Shown]:
    shown = Shown(runner.engine.terminals.attach(run, columns, rows))
    reading = asyncio.create_task(shown.read())
    try:
        yield shown
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def leave_screen_run(home: Path, project: Path, agent: Bin, *args: str) -> Run:
    """A live run of SCREEN without a server, which the next one adopts."""
    agent("screen", SCREEN)

    async def start() -> Run:
        async with engine_runner(home, project) as runner:
            return await start_in_terminal(runner, "screen", *args)

    return asyncio.run(start())
