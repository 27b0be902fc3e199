"""Our MCP server inside the stream of a run: requests in its output are answered in its input.

Protocol messages are answered at once. Tool calls are carried out by a callback, in the name of the run, while its
output is being read. Nothing here can be lost: requests are in the output, answers in the input, and after a restart
the next server carries out the rest. The key of a call is made of its run and its request, so it takes effect once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hocket.keeper import files
from hocket.mcp import protocol
from hocket.mcp.protocol import ToolCall
from hocket.mcp.tools import SERVER
from hocket.model import Run
from hocket.providers.base import McpRequest, OwnTools
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.output_lines import read_lines

if TYPE_CHECKING:
    from hocket.mcp.protocol import Message

    CarryOut = Callable[[Run, ToolCall, str], Awaitable[Message]]
    """Carries out a tool call of a run; the key makes a repetition harmless."""

T = TypeVar("T")

_EMPTY_REPLY: Message = {"jsonrpc": "2.0", "result": {}}
"""The reply to notifications, which have none in MCP: the CLI waits for one all the same."""


class McpConnection(NamedTuple):
    """The in-stream connection of one run."""

    run: str
    place: str
    tools: OwnTools


class StreamMcp:
    """Answers the MCP requests in the output of live runs. One per server."""

    def __init__(self, journal: Journal, need_server: Callable[[bool], None]) -> None:
        self._journal = journal
        self._need_server = need_server
        self._tasks = BackgroundTasks()
        self._calls: dict[tuple[str, str], ToolCall] = {}
        """Calls that are being carried out, by run and request."""
        self._carry_out: asyncio.Future[CarryOut] = asyncio.get_running_loop().create_future()
        self._closing = False
        self.has_unserved_call = False
        """A call came while the server was closing and is left to the next one."""

    def open(self, carry_out: CarryOut) -> None:
        """Carry out calls from now on, including those that have waited."""
        self._carry_out.set_result(carry_out)

    def begin_close(self) -> None:
        """Leave calls to the next server. Protocol messages are still answered: the next server would not see them."""
        self._closing = True

    async def close(self) -> None:
        self.begin_close()
        await self._tasks.close()

    def take(self, connection: McpConnection, request: McpRequest) -> None:
        """Answer a request now or later. A request that comes twice is answered once."""
        if request.withdrawn:
            self._cancel(connection.run, lambda identity, call: identity == request.id)
        elif request.server != SERVER:
            self._reply(
                connection, request.id, connection.tools.refusal(request.id, f"there is no server {request.server!r}")
            )
        elif request.message is None:
            self._reply(connection, request.id, connection.tools.refusal(request.id, protocol.too_long().message))
        else:
            self._answer(connection, request)

    def take_over(self, connection: McpConnection, calls: Collection[str], end: int, longest: int) -> None:
        """Carry out calls that an earlier server had read, up to an offset of the output, and not answered."""
        if calls:
            self._tasks.spawn(self._take_over(connection, calls, end, longest))

    def forget(self, run: str) -> None:
        """Drop the calls of a run that has ended."""
        self._cancel(run, lambda identity, call: True)

    async def _take_over(self, connection: McpConnection, calls: Collection[str], end: int, longest: int) -> None:
        found = await self._retry(connection.run, partial(_unanswered, connection, calls, end, longest))
        for request in found or ():
            self.take(connection, request)

    def _answer(self, connection: McpConnection, request: McpRequest) -> None:
        if (called_off := protocol.cancelled(request.message)) is not None:
            self._cancel(connection.run, lambda identity, call: call.id == called_off)
        answer = protocol.respond(request.message)
        if not isinstance(answer, ToolCall):
            self._reply(connection, request.id, connection.tools.reply(request.id, answer or _EMPTY_REPLY))
        elif self._closing:
            self.has_unserved_call = True
        elif (connection.run, request.id) not in self._calls:
            self._calls[connection.run, request.id] = answer
            self._need_server(True)
            self._tasks.spawn(self._serve(connection, request.id, answer))

    def _cancel(self, run: str, is_meant: Callable[[str, ToolCall], bool]) -> None:
        """Cancel the wait for calls, not their work."""
        for (waiting, request), call in self._calls.items():
            if waiting == run and is_meant(request, call):
                call.cancelled = True

    async def _serve(self, connection: McpConnection, request: str, call: ToolCall) -> None:
        try:
            carry_out = await self._carry_out
            awaited = await self._retry(
                connection.run,
                lambda: (
                    not files.has_input(connection.place, _record(request))
                    and files.state(connection.place) == "running"
                ),
            )
            run = self._journal.live.get(connection.run)
            if run is None or not awaited:
                return  # It has been answered, or its program has ended.
            # Prefixed with its run like all keys of runs.
            key = f"{run.id}:{hashlib.sha256(f'mcp {request}'.encode()).hexdigest()}"
            answer = await carry_out(run, call, key)
            if not call.cancelled and not self._closing:
                await self._write_patiently(connection, request, connection.tools.reply(request, answer))
        finally:
            del self._calls[connection.run, request]
            self._need_server(bool(self._calls))

    def _reply(self, connection: McpConnection, request: str, text: str) -> None:
        """Write an answer at once, or retry in the background."""
        try:
            _write(connection.place, request, text)
        except OSError:
            self._tasks.spawn(self._write_patiently(connection, request, text))

    async def _write_patiently(self, connection: McpConnection, request: str, text: str) -> None:
        await self._retry(connection.run, partial(_write, connection.place, request, text))

    async def _retry(self, run: str, work: Callable[[], T]) -> T | None:
        """Retry file operations while the run is live: the disk may be full, or no descriptor left."""
        while run in self._journal.live and not self._closing:
            try:
                return await asyncio.to_thread(work)
            except OSError:
                await asyncio.sleep(RETRY_AFTER)
        return None


def _write(place: str, request: str, text: str) -> None:
    """Write a line to the run's input, unless that has ended or its file was removed or replaced."""
    try:
        files.append_input(place, _record(request), text, durable=False)
    except (FileNotFoundError, files.NotRegularError):
        return
    files.ring(place, files.BELL_INPUT)


def _record(request: str) -> str:
    return f"mcp:{request}"


def _unanswered(connection: McpConnection, calls: Collection[str], end: int, longest: int) -> list[McpRequest]:
    """The requests of these calls, read from the output, without an answer in the input."""
    waiting = {request for request in calls if not files.has_input(connection.place, _record(request))}
    if not waiting:
        return []
    found = map(connection.tools.request, _lines(os.path.join(connection.place, files.OUT), end, longest))
    return [one for one in found if one is not None and one.id in waiting and not one.withdrawn]


def _lines(path: str, end: int, longest: int) -> Iterator[bytes]:
    read = partial(read_lines, path, final=end, longest=longest)
    offset = scanned = 0
    while offset < end:
        piece = read(offset, scanned)
        if not piece.lines and piece.scanned == scanned:
            return  # The file is shorter than it was.
        yield from (line.head for line in piece.lines)
        offset, scanned = piece.offset, piece.scanned
