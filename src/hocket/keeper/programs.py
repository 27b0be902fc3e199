"""Running a helper program to its end: gates, git, version checks.

One call, bounded in time and in memory, that leaves nothing of the tool's process group behind. Agents are
not tools: they have keepers.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import IO, NamedTuple

from hocket.keeper.platform import set_inherited_mark
from hocket.keeper.process_tree import COOKIE, HOME, mark_of
from hocket.keeper.server_start import server_environment

_CHUNK = 65536
# A background process can hold the output open after the tool has ended, so its end is looked for as well.
_LOOK = 0.05
_starting = threading.Lock()


class ToolResult(NamedTuple):
    """`code` is negative for a signal, as in the standard library; `output` is stdout and stderr together."""

    code: int
    output: bytes
    timed_out: bool


def run_tool(
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    timeout: float,
    output_limit: int,
    stdin: bytes | None = None,
) -> ToolResult:
    """Run a program, with an empty standard input unless one is given, and keep the last `output_limit` bytes it wrote.

    OSError when it cannot be started at all. Blocks: call it from a thread.
    """
    with _standard_input(stdin) as given, starting_children(env.get(COOKIE)):
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if process.stdout is None:
        raise ValueError("the tool's output is not a pipe")
    output, tail = process.stdout.fileno(), _Tail(output_limit)
    with process:
        try:
            ended = _follow(process, output, tail, time.monotonic() + timeout)
        finally:  # Also when it is interrupted: the program is in a session of its own, where no Ctrl-C reaches it.
            # Before it is reaped: until then its pid cannot be reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        # What the group left in the pipe, without waiting for a process that escaped with its other end.
        os.set_blocking(output, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(output, _CHUNK):
                tail.add(chunk)
        code = process.wait()
    return ToolResult(code, tail.content(), timed_out=not ended)


def show_in_pager(command: str, text: bytes, env: Mapping[str, str]) -> bool:
    """Show a text on the terminal with the user's pager, a shell command; return whether it could be run."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # As in less, Ctrl-C is for the pager.
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            env=dict(env),
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - there are no threads
        )
        process.communicate(text)
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return process.returncode not in (126, 127)


@contextlib.contextmanager
def starting_children(cookie: str | None) -> Iterator[None]:
    """What is started meanwhile inherits the mark of this cookie, and so does all that it starts.

    The mark is the whole process's for that time, which changes nothing about it; one thread at a time.
    """
    with _starting:
        set_inherited_mark(None if cookie is None else mark_of(cookie))
        try:
            yield
        finally:
            set_inherited_mark(None)


@contextlib.contextmanager
def _standard_input(content: bytes | None) -> Iterator[int | IO[bytes]]:
    """An unnamed file, so that writing never waits for a slow reader."""
    if content is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


@contextlib.contextmanager
def cleanup_process(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Iterator[None]:
    """Run a program beside this block that does its work only if this process dies before the block has ended.

    It has to read its standard input to the end: a pipe that the kernel closes with this process, also after a SIGKILL.
    In a session of its own, a signal to a whole group misses it, and so does the sweep of the home that it is there
    for. The end of a run that it was started in ends it too, together with everything else.
    """
    environment = {name: value for name, value in server_environment(env).items() if name != HOME}
    null = subprocess.DEVNULL
    with subprocess.Popen(
        argv, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            process.kill()


class _Tail:
    """The last bytes of a stream of any length."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        self._bytes += chunk
        if len(self._bytes) > 2 * self._limit + _CHUNK:
            del self._bytes[: -self._limit or None]

    def content(self) -> bytes:
        return bytes(self._bytes[-self._limit :]) if self._limit else b""


def _follow(process: subprocess.Popen[bytes], output: int, tail: _Tail, deadline: float) -> bool:
    """Read until the tool has ended or the time is up; whether it has ended."""
    is_open = True
    while not _has_ended(process):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if not is_open:
            time.sleep(min(left, _LOOK))
        elif select.select([output], [], [], min(left, _LOOK))[0]:
            chunk = os.read(output, _CHUNK)
            tail.add(chunk)
            is_open = bool(chunk)
    return True


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended, without reaping it where the system can tell."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
