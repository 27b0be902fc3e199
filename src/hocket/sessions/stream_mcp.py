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
from hocket.providers.base import Conversation, Wanted
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
    conversation: Conversation


class StreamMcp:
    """One per server."""

    def __init__(self, journal: Journal, need_server: Callable[[bool], None]) -> None:
        self._journal = journal
        self._need_server = need_server
        self._tasks = BackgroundTasks()
        self._calls: dict[tuple[str, str], ToolCall] = {}
        """Calls that are being carried out, by run and request."""
        self._carry_out: asyncio.Future[CarryOut] = asyncio.get_running_loop().create_future()
        self._leaving = False
        self.left_a_call = False
        """A call came while the server was closing and is left to the next one."""

    def open(self, carry_out: CarryOut) -> None:
        """Carry out calls from now on, including those that have waited."""
        self._carry_out.set_result(carry_out)

    def leave(self) -> None:
        """Leave calls to the next server. Protocol messages are still answered: the next server would not see them."""
        self._leaving = True

    async def close(self) -> None:
        self.leave()
        await self._tasks.close()

    def take(self, line: McpConnection, wanted: Wanted) -> None:
        """Answer a request now or later. A request that comes twice is answered once."""
        if wanted.withdrawn:
            self._cancel(line.run, lambda request, call: request == wanted.id)
        elif wanted.server != SERVER:
            self._reply(line, wanted.id, line.conversation.refusal(wanted.id, f"there is no server {wanted.server!r}"))
        elif wanted.message is None:
            self._reply(line, wanted.id, line.conversation.refusal(wanted.id, protocol.too_long().message))
        else:
            self._answer(line, wanted)

    def take_over(self, line: McpConnection, calls: Collection[str], end: int, longest: int) -> None:
        """Carry out calls that an earlier server had read, up to an offset of the output, and not answered."""
        if calls:
            self._tasks.spawn(self._take_over(line, calls, end, longest))

    def forget(self, run: str) -> None:
        """Drop the calls of a run that has ended."""
        self._cancel(run, lambda request, call: True)

    async def _take_over(self, line: McpConnection, calls: Collection[str], end: int, longest: int) -> None:
        found = await self._retry(line.run, partial(_unanswered, line, calls, end, longest))
        for wanted in found or ():
            self.take(line, wanted)

    def _answer(self, line: McpConnection, wanted: Wanted) -> None:
        if (called_off := protocol.cancelled(wanted.message)) is not None:
            self._cancel(line.run, lambda request, call: call.id == called_off)
        answer = protocol.respond(wanted.message)
        if not isinstance(answer, ToolCall):
            self._reply(line, wanted.id, line.conversation.reply(wanted.id, answer or _EMPTY_REPLY))
        elif self._leaving:
            self.left_a_call = True
        elif (line.run, wanted.id) not in self._calls:
            self._calls[line.run, wanted.id] = answer
            self._need_server(True)
            self._tasks.spawn(self._serve(line, wanted.id, answer))

    def _cancel(self, run: str, is_meant: Callable[[str, ToolCall], bool]) -> None:
        """Cancel the wait for calls, not their work."""
        for (waiting, request), call in self._calls.items():
            if waiting == run and is_meant(request, call):
                call.cancelled = True

    async def _serve(self, line: McpConnection, request: str, call: ToolCall) -> None:
        try:
            carry_out = await self._carry_out
            awaited = await self._retry(line.run, partial(_is_awaited, line.place, request))
            run = self._journal.live.get(line.run)
            if run is None or not awaited:
                return
            answer = await carry_out(run, call, _key(line.run, request))
            if not call.cancelled and not self._leaving:
                await self._write_patiently(line, request, line.conversation.reply(request, answer))
        finally:
            del self._calls[line.run, request]
            self._need_server(bool(self._calls))

    def _reply(self, line: McpConnection, request: str, text: str) -> None:
        """Write an answer at once, or retry in the background."""
        try:
            _write(line.place, request, text)
        except OSError:
            self._tasks.spawn(self._write_patiently(line, request, text))

    async def _write_patiently(self, line: McpConnection, request: str, text: str) -> None:
        await self._retry(line.run, partial(_write, line.place, request, text))

    async def _retry(self, run: str, work: Callable[[], T]) -> T | None:
        """Retry file operations while the run is live: the disk may be full, or no descriptor left."""
        while run in self._journal.live and not self._leaving:
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


def _is_awaited(place: str, request: str) -> bool:
    """Whether the request is unanswered and its program is still running."""
    return not files.has_input(place, _record(request)) and files.state(place) == "running"


def _record(request: str) -> str:
    return f"mcp:{request}"


def _key(run: str, request: str) -> str:
    """The key of a call, prefixed with its run like all keys of runs."""
    return f"{run}:{hashlib.sha256(f'mcp {request}'.encode()).hexdigest()}"


def _unanswered(line: McpConnection, calls: Collection[str], end: int, longest: int) -> list[Wanted]:
    """The requests of these calls, read from the output, without an answer in the input."""
    waiting = {request for request in calls if not files.has_input(line.place, _record(request))}
    if not waiting:
        return []
    found = map(line.conversation.wanted, _lines(os.path.join(line.place, files.OUT), end, longest))
    return [wanted for wanted in found if wanted is not None and wanted.id in waiting and not wanted.withdrawn]


def _lines(path: str, end: int, longest: int) -> Iterator[bytes]:
    read = partial(read_lines, path, final=end, longest=longest)
    offset = scanned = 0
    while offset < end:
        piece = read(offset, scanned)
        if not piece.lines and piece.scanned == scanned:
            return  # The file is shorter than it was.
        yield from (line.head for line in piece.lines)
        offset, scanned = piece.offset, piece.scanned
