"""Runs the user's own commands, gates above all, each in a thread, and cancels those whose verdict is not needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
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
    """The result of a gate."""

    code: int
    output: str
    timed_out: bool
    seconds: float

    @property
    def passed(self) -> bool:
        return self.code == 0 and not self.timed_out


class _Gate:
    """A gate that runs, or waits for a thread."""

    def __init__(self) -> None:
        self.cancelled = False
        self.future: Future[programs.ToolResult] | None = None


class Gates:
    """Running commands by their cookies: every process of a command carries its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(16, "hocket-gate")
        # A pool of their own: what cancels a gate must not wait behind gates.
        self._sweeps = ThreadPoolExecutor(4, "hocket-sweep")
        self._gates: dict[str, _Gate] = {}

    async def run(
        self,
        cookie: str,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        limit: float,
        stdin: bytes | None = None,
    ) -> Verdict | None:
        """The verdict, with secrets of the environment masked in the output; None when it was cancelled."""
        marked, redactor = {**env, process_tree.COOKIE: cookie}, Redactor(secrets_of(env))
        most = OUTPUT + redactor.longest
        call = partial(programs.run_tool, argv, cwd, marked, limit, output_limit=most, stdin=stdin)
        gate = self._gates[cookie] = _Gate()
        began = time.monotonic()
        try:
            gate.future = self._threads.submit(_run_and_sweep, gate, cookie, call)
            result = await asyncio.wrap_future(gate.future)
        except asyncio.CancelledError:
            if not gate.cancelled:
                raise
            return None
        except Exception as error:  # noqa: BLE001 - no thread, no process, no memory: the gate did not pass
            result = programs.ToolResult(_CANNOT_START, f"{type(error).__name__}: {error}".encode(), timed_out=False)
        finally:
            if self._gates.get(cookie) is gate:
                del self._gates[cookie]
        if gate.cancelled:
            return None
        seconds = round(time.monotonic() - began, 3)
        output = redactor.tail(result.output, OUTPUT).decode(errors="replace")
        return Verdict(result.code, output, result.timed_out, seconds)

    async def cancel(self, cookie: str) -> None:
        """End a gate: also one that is about to start, and one that an earlier server started."""
        gate = self._gates.get(cookie)
        if gate is not None:
            gate.cancelled = True
        await self._sweep(cookie)
        while gate is not None and gate.future is not None and not gate.future.done():
            gate.future.cancel()  # It may still wait for a thread.
            await asyncio.sleep(_RETRY)
            await self._sweep(cookie)

    async def _sweep(self, cookie: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._sweeps, partial(process_tree.sweep_cookie, cookie))

    async def close(self) -> None:
        await asyncio.gather(*(self.cancel(cookie) for cookie in list(self._gates)))
        for pool in (self._threads, self._sweeps):
            pool.shutdown(wait=False, cancel_futures=True)


def _run_and_sweep(gate: _Gate, cookie: str, call: Callable[[], programs.ToolResult]) -> programs.ToolResult:
    """Run the gate, then end the processes that it left running. Blocks."""
    if gate.cancelled:
        return programs.ToolResult(1, b"", timed_out=False)
    try:
        return call()
    finally:
        process_tree.sweep_cookie(cookie)
