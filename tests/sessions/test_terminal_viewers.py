"""Terminals of live runs: viewers, sizes, modes and keys, with a real program in a terminal that its keeper holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sessions.screen_runs import attached, screen_run, start_in_terminal
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until
from world import Bin

from hocket.errors import Conflict, NotFound
from hocket.keeper import files
from hocket.model import Run, Status
from hocket.sessions.terminal import viewers as viewers_module
from hocket.sessions.terminal.viewers import Terminals
from hocket.views.terminal_modes import CLEAR

Scene = Callable[[EngineRunner, Run], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]

DEAF = "import os, signal, tty; tty.setraw(0); os.write(1, b'deaf'); signal.pause()"
FLOOD = r"""
import os, tty
tty.setraw(0)
os.write(1, b"ready")
os.read(0, 1)
for number in range(3000):
    os.write(1, b"%04d" % number * 256)
os.write(1, b"the end")
os.read(0, 1)
"""
"""Writes three megabytes after the first key, and ends after the second."""


@pytest.fixture
def play(home: Path, project: Path, agent: Bin) -> Play:
    def run_scene(scene: Scene) -> None:
        async def complete() -> None:
            async with screen_run(home, project, agent) as (runner, run):
                await scene(runner, run)

        asyncio.run(complete())

    return run_scene


def typed(text: bytes) -> bytes:
    return f"typed {text.hex()} {len(text)}".encode()


def test_program_is_never_told_to_suspend_itself(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        async with attached(runner, run) as shown:
            await shown.until(b"size")
            await runner.engine.terminals.type(run, b"a\x1ab\x1b[122;5uc\x1b[122;69:1ud\x1b[27;5;122~e\x1b[122;1u")
            await shown.until(typed(b"abcde\x1b[122;1u"))

    play(scene)


# --- Showing ------------------------------------------------------------------------------------------------


def test_viewer_gets_modes_then_whole_screen(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        out = runner.engine.directory(run) / files.OUT
        await until(lambda: b"text" in out.read_bytes(), "the first drawing")
        async with attached(runner, run, 100, 30) as shown:
            drawn = await shown.until(b"size 100x30")
        before = shown.received[:drawn]
        for mode in (b"\x1b[?1049h", b"\x1b[?25l", b"\x1b[?2004h", b"\x1b[?1000h", b"\x1b[?1006h"):
            assert mode in before

    play(scene)


def test_same_size_is_drawn_again(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        for _ in range(2):
            async with attached(runner, run, 90, 20) as shown:
                await shown.until(b"size 90x20")
        assert files.read_size(str(runner.engine.directory(run))) == (90, 20)

    play(scene)


def test_smallest_viewer_decides_the_size(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        terminals = runner.engine.terminals
        async with attached(runner, run, 100, 30) as first:
            seen = await first.until(b"size 100x30")
            async with attached(runner, run, 120, 20) as second:
                await second.until(b"size 100x20")
                drawn, seen = seen, await first.until(b"size 100x20", seen)
                assert CLEAR in first.received[drawn:seen], "what was below its last row would stay"
                terminals.resize(run, second.viewer.id, 70, 50)
                await second.until(b"size 70x30")
                seen = await first.until(b"size 70x30", seen)
            # The second one has left.
            await first.until(b"size 100x30", seen)
        await until(lambda: terminals.viewers(run) == [], "both have left")

    play(scene)


def test_unknown_viewer_has_no_size(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        with pytest.raises(NotFound, match="has no viewer 'unknown'"):
            runner.engine.terminals.resize(run, "unknown", 80, 24)

    play(scene)


def test_viewer_ends_after_last_output_of_run(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        async with attached(runner, run) as shown:
            await shown.until(b"size 80x24")
            await runner.engine.terminals.type(run, b"QUIT")
            ended = await runner.wait(run)
            await until(lambda: shown.has_ended, "the end of the stream")
        assert ended.status is Status.DONE
        assert shown.received.endswith(b"the last words\r\n")
        with pytest.raises(Conflict, match="has ended"):
            runner.engine.terminals.attach(ended, 80, 24)
        with pytest.raises(Conflict, match="has ended"):
            await runner.engine.terminals.type(ended, b"x")

    play(scene)


def test_viewers_end_with_the_server(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        terminals = runner.engine.terminals
        async with attached(runner, run) as shown:
            await shown.until(b"size 80x24")
            terminals.end_viewers()
            await until(lambda: shown.has_ended, "the end of the stream")
        assert not runner.engine.find(run.id).ended

    play(scene)


def test_slow_viewer_gets_present_screen(home: Path, project: Path, agent: Bin) -> None:
    agent("flood", FLOOD)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await start_in_terminal(runner, "flood")
            terminals, out = runner.engine.terminals, runner.engine.directory(run) / files.OUT
            pieces = terminals.attach(run, 80, 24).pieces()
            await until(lambda: b"ready" in out.read_bytes(), "its start")
            first = await anext(pieces)
            await terminals.type(run, b"1")
            await until(lambda: out.read_bytes().endswith(b"the end"), "the flood")
            received = await anext(pieces)
            assert received == first, "modes and an empty screen, and nothing of what was missed"
            await terminals.type(run, b"2")
            await runner.wait(run)
            assert b"".join([piece async for piece in pieces]) == b""

    asyncio.run(scene())


def test_shortened_output_is_read_from_its_beginning(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        out = runner.engine.directory(run) / files.OUT
        async with attached(runner, run) as shown:
            seen = await shown.until(b"size 80x24")
            with out.open("r+b") as file:
                file.truncate(0)
            await runner.engine.terminals.type(run, b"ab")
            await shown.until(typed(b"ab"), seen)

    play(scene)


def test_output_is_followed_without_watches(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers_module, "WITHOUT_WATCH_SECONDS", 0.01)

    async def scene(runner: EngineRunner, run: Run) -> None:
        watcher = runner.engine._watcher
        monkeypatch.setattr(watcher, "watch", _no_watches)
        async with attached(runner, run) as shown:
            await shown.until(b"size 80x24")

    play(scene)


def _no_watches(*_: object, **__: object) -> None:
    raise OSError(28, "no watches left")


def test_viewer_waits_for_start_of_process(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", "import signal; signal.pause()")
    agent("echo", "import os; os.write(1, b'hello'); os.read(0, 1)")

    async def scene() -> None:
        async with engine_runner(home, project, leaves=1) as runner:
            sleeper = await runner.running(await runner.start("sleeper"))
            starting = asyncio.create_task(start_in_terminal(runner, "echo"))
            await until(lambda: len(runner.engine.live()) == 2, "the run that waits for a place")
            run = runner.engine.live()[-1]
            async with attached(runner, run) as shown:
                with pytest.raises(Conflict, match="has not begun yet"):
                    await runner.engine.terminals.type(run, b"x")
                await runner.engine.stop(sleeper)
                await starting
                await until(lambda: shown.received, "the beginning of the stream")
            await stop_all(runner.engine)

    asyncio.run(scene())


# --- Typing -------------------------------------------------------------------------------------------------


def test_typed_bytes_arrive_unchanged(play: Play) -> None:
    keys = bytes(set(range(256)) - {0x1A}) + "é日😀".encode()[:-1]

    async def scene(runner: EngineRunner, run: Run) -> None:
        async with attached(runner, run) as shown:
            await shown.until(b"size 80x24")
            await runner.engine.terminals.type(run, keys)
            await shown.until(typed(keys))

    play(scene)


def test_repeated_key_is_typed_once(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        terminals = runner.engine.terminals
        async with attached(runner, run) as shown:
            await shown.until(b"size 80x24")
            for key in ("k1", "k1", "k2"):
                await terminals.type(run, b"a", key)
            await shown.until(typed(b"aa"))
            await terminals.type(run, b"b")
            await shown.until(typed(b"aab"))

    play(scene)


def test_large_pastes_are_not_mixed(play: Play) -> None:
    async def scene(runner: EngineRunner, run: Run) -> None:
        pastes = [b"a" * 200_000, b"b" * 200_000]
        async with attached(runner, run) as shown:
            seen = await shown.until(b"size 80x24")
            await asyncio.gather(*(runner.engine.terminals.type(run, one) for one in pastes))
            out = runner.engine.directory(run) / files.OUT
            await until(lambda: b" 400000\r\n" in out.read_bytes(), "all of it")
        assert seen
        drawn = out.read_bytes().partition(b" 400000\r\n")[0].rpartition(b"typed ")[2]
        assert drawn == (pastes[0] + pastes[1]).hex().encode()

    play(scene)


def test_typing_to_a_deaf_program_is_refused(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent("deaf", DEAF)
    monkeypatch.setattr(viewers_module, "TYPING_SECONDS", 0.2)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await start_in_terminal(runner, "deaf")
            # More than the pipe, the keeper and the terminal hold together.
            with pytest.raises(Conflict, match="does not read what is typed"):
                await runner.engine.terminals.type(run, b"x" * 2**20)
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_run_without_terminal_is_refused(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", "import signal; signal.pause()")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            terminals: Terminals = runner.engine.terminals
            leaf = await runner.start("sleeper")
            chain = await runner.chain("sleeper -> sleeper")
            for run in (leaf, chain):
                assert not terminals.has_terminal(run)
                with pytest.raises(Conflict, match="has no terminal"):
                    terminals.attach(run, 80, 24)
                with pytest.raises(Conflict, match="has no terminal"):
                    await terminals.type(run, b"x")
            await stop_all(runner.engine)

    asyncio.run(scene())
