"""Running gates: the user's own commands, each in a thread, and the end of one whose word no longer counts.

What a gate decides is the chain driver's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from hocket.keeper import process_tree, programs
from hocket.redaction import Redactor, secrets_of

TIMEOUT = 600.0
OUTPUT = 64 * 1024
_RETRY = 0.1
_CANNOT_START = 127


class Verdict(NamedTuple):
    """What came of a gate."""

    code: int
    output: str
    timed_out: bool
    seconds: float

    @property
    def passed(self) -> bool:
        return self.code == 0 and not self.timed_out


class _Gate:
    """One that runs, or waits for a thread."""

    def __init__(self) -> None:
        self.called_off = False
        self.future: Future[programs.ToolResult] | None = None


class Gates:
    """All gates of this server, by their cookies: every process of a gate carries its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(16, "hocket-gate")
        # Of their own: what ends a gate must not wait behind gates.
        self._sweeps = ThreadPoolExecutor(4, "hocket-sweep")
        self._gates: dict[str, _Gate] = {}

    async def run(self, cookie: str, command: str, cwd: str, env: Mapping[str, str], limit: float) -> Verdict | None:
        """What the command says, with secrets of its environment masked, or None when it was called off."""
        marked, redactor = {**env, process_tree.COOKIE: cookie}, Redactor(secrets_of(env))
        most = OUTPUT + redactor.longest
        call = partial(programs.run_tool, ["/bin/sh", "-c", command], cwd, marked, limit, output_limit=most)
        gate = self._gates[cookie] = _Gate()
        began = time.monotonic()
        try:
            gate.future = self._threads.submit(_alone, gate, cookie, call)
            said = await asyncio.wrap_future(gate.future)
        except asyncio.CancelledError:
            if not gate.called_off:
                raise
            return None
        except Exception as error:  # noqa: BLE001 - no thread, no process, no memory: the gate did not pass
            said = programs.ToolResult(_CANNOT_START, f"{type(error).__name__}: {error}".encode(), timed_out=False)
        finally:
            if self._gates.get(cookie) is gate:
                del self._gates[cookie]
        if gate.called_off:
            return None
        seconds = round(time.monotonic() - began, 3)
        output = redactor.tail(said.output, OUTPUT).decode(errors="replace")
        return Verdict(said.code, output, said.timed_out, seconds)

    async def call_off(self, cookie: str) -> None:
        """End a gate: also one that is only about to begin, and one that a server before us began."""
        gate = self._gates.get(cookie)
        if gate is not None:
            gate.called_off = True
        await self._sweep(cookie)
        while gate is not None and gate.future is not None and not gate.future.done():
            gate.future.cancel()  # It may still wait for a thread.
            await asyncio.sleep(_RETRY)
            await self._sweep(cookie)

    async def _sweep(self, cookie: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._sweeps, partial(process_tree.sweep_cookie, cookie))

    async def close(self) -> None:
        await asyncio.gather(*(self.call_off(cookie) for cookie in list(self._gates)))
        for pool in (self._threads, self._sweeps):
            pool.shutdown(wait=False, cancel_futures=True)


def _alone(gate: _Gate, cookie: str, call: Callable[[], programs.ToolResult]) -> programs.ToolResult:
    """Run the gate, then end what it left running. Blocks."""
    if gate.called_off:
        return programs.ToolResult(1, b"", timed_out=False)
    try:
        return call()
    finally:
        process_tree.sweep_cookie(cookie)
