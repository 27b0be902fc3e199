"""Our MCP server inside the stream of a run: what its program asks in its output is answered in its input.

Most of it needs nobody and is answered on the spot. A call of a tool is carried out by whoever is above the engine, in
the name of the run, while the run's output goes on being read. Nothing of it is kept here that could be lost: what was
asked stands in the output, what was answered in the input, and a server that takes over carries out the rest. A call
has a key made of its run and its request, so what it starts is started once.
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
    """A run, what it calls, and the key that makes it one thing, however often it is carried out."""

T = TypeVar("T")

_HEARD: Message = {"jsonrpc": "2.0", "result": {}}
"""For what the protocol has no answer to: the program waits for a word all the same."""


class McpConnection(NamedTuple):
    """The connection to one run."""

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
        """Those that are being carried out, by run and request."""
        self._carry_out: asyncio.Future[CarryOut] = asyncio.get_running_loop().create_future()
        self._leaving = False
        self.left_a_call = False
        """Somebody called when we were leaving already, and was not heard."""

    def open(self, carry_out: CarryOut) -> None:
        """From now on calls are carried out; those that came before have waited."""
        self._carry_out.set_result(carry_out)

    def leave(self) -> None:
        """No call is answered any more: that a wait breaks off because we go is nothing that an agent has to know.

        Who asks for anything else is answered to the last: no server after us would know that it was asked.
        """
        self._leaving = True

    async def close(self) -> None:
        self.leave()
        await self._tasks.close()

    def take(self, line: McpConnection, wanted: Wanted) -> None:
        """Answer at once, or see to it that it will be. The same thing may come twice, and is answered once."""
        if wanted.withdrawn:
            self._call_off(line.run, lambda request, call: request == wanted.id)
        elif wanted.server != SERVER:
            self._say(line, wanted.id, line.conversation.refusal(wanted.id, f"there is no server {wanted.server!r}"))
        elif wanted.message is None:
            self._say(line, wanted.id, line.conversation.refusal(wanted.id, protocol.too_long().message))
        else:
            self._answer(line, wanted)

    def take_over(self, line: McpConnection, calls: Collection[str], end: int, longest: int) -> None:
        """Carry out what a server that is gone had read, up to an end of the output, and not answered."""
        if calls:
            self._tasks.spawn(self._take_over(line, calls, end, longest))

    def forget(self, run: str) -> None:
        """It has ended: nobody waits any more."""
        self._call_off(run, lambda request, call: True)

    async def _take_over(self, line: McpConnection, calls: Collection[str], end: int, longest: int) -> None:
        found = await self._insist(line.run, partial(_unanswered, line, calls, end, longest))
        for wanted in found or ():
            self.take(line, wanted)

    def _answer(self, line: McpConnection, wanted: Wanted) -> None:
        if (called_off := protocol.cancelled(wanted.message)) is not None:
            self._call_off(line.run, lambda request, call: call.id == called_off)
        answer = protocol.respond(wanted.message)
        if not isinstance(answer, ToolCall):
            self._say(line, wanted.id, line.conversation.reply(wanted.id, answer or _HEARD))
        elif self._leaving:
            self.left_a_call = True
        elif (line.run, wanted.id) not in self._calls:
            self._calls[line.run, wanted.id] = answer
            self._need_server(True)
            self._tasks.spawn(self._serve(line, wanted.id, answer))

    def _call_off(self, run: str, is_meant: Callable[[str, ToolCall], bool]) -> None:
        """End the wait, and none of the work."""
        for (waiting, request), call in self._calls.items():
            if waiting == run and is_meant(request, call):
                call.cancelled = True

    async def _serve(self, line: McpConnection, request: str, call: ToolCall) -> None:
        try:
            carry_out = await self._carry_out
            awaited = await self._insist(line.run, partial(_is_awaited, line.place, request))
            run = self._journal.live.get(line.run)
            if run is None or not awaited:
                return
            answer = await carry_out(run, call, _key(line.run, request))
            if not call.cancelled and not self._leaving:
                await self._write_patiently(line, request, line.conversation.reply(request, answer))
        finally:
            del self._calls[line.run, request]
            self._need_server(bool(self._calls))

    def _say(self, line: McpConnection, request: str, text: str) -> None:
        """On the spot: the program does not begin before it has heard, and passing it on takes longer than writing."""
        try:
            _write(line.place, request, text)
        except OSError:
            self._tasks.spawn(self._write_patiently(line, request, text))

    async def _write_patiently(self, line: McpConnection, request: str, text: str) -> None:
        await self._insist(line.run, partial(_write, line.place, request, text))

    async def _insist(self, run: str, work: Callable[[], T]) -> T | None:
        """Again and again where there is no room, or no descriptor left: as long as the run lives, it waits."""
        while run in self._journal.live and not self._leaving:
            try:
                return await asyncio.to_thread(work)
            except OSError:
                await asyncio.sleep(RETRY_AFTER)
        return None


def _write(place: str, request: str, text: str) -> None:
    """A line into the run's input. Where that has ended, or its file was removed or replaced, nobody misses it."""
    try:
        files.append_input(place, _record(request), text, durable=False)
    except (FileNotFoundError, files.NotRegularError):
        return
    files.ring(place, files.BELL_INPUT)


def _is_awaited(place: str, request: str) -> bool:
    """Whether the answer is still to come, and there is a program that waits for it: it may have died unseen."""
    return not files.has_input(place, _record(request)) and files.state(place) == "running"


def _record(request: str) -> str:
    return f"mcp:{request}"


def _key(run: str, request: str) -> str:
    """In the shape of every run's own keys, so that no other run can have the same one."""
    return f"{run}:{hashlib.sha256(f'mcp {request}'.encode()).hexdigest()}"


def _unanswered(line: McpConnection, calls: Collection[str], end: int, longest: int) -> list[Wanted]:
    """Those calls, as they stand in the output, to which no answer stands in the input."""
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
