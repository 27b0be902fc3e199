"""``hocket mcp``: the MCP server on standard input and output, one message per line.

Each call runs in a thread of its own. The end of the input ends every wait, and none of the work that is waited for.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hocket import config
from hocket.cli import access
from hocket.cli.usage import command
from hocket.client import Client
from hocket.errors import HocketError
from hocket.mcp import protocol
from hocket.mcp.calls import CallContext, ProgressAction, RequestAction, ToolRun, stream_ended
from hocket.mcp.protocol import Message, ProtocolError, ToolCall

TICK_SECONDS = 0.5
"""How soon a wait notices that its call was cancelled."""
EXIT_SECONDS = 20.0
"""How long calls may take after the end of the input: a server may have to start first."""
_STDIN, _STDOUT = 0, 1
_READ_SIZE = 256 * 1024


@command(examples=("hocket mcp", "claude mcp add hocket -- hocket mcp"))
def mcp() -> None:
    """Serve MCP on standard input and output, so that an agent can start others and hand work to them.

    Claude runs that Hocket starts have these tools already. The server ends with its input; what it started goes on.
    """
    server = StdioServer()
    for line in read_messages(_STDIN):
        server.receive(line)
    server.close()


def read_messages(descriptor: int) -> Iterator[bytes | None]:
    """The lines of an input that are not empty; None for one that is too long."""
    kept: list[bytes] = []
    size = 0
    while piece := os.read(descriptor, _READ_SIZE):
        *whole, rest = piece.split(b"\n")
        for line in whole:
            if size + len(line) > protocol.MAX_MESSAGE:
                yield None
            elif message := b"".join([*kept, line]).strip():
                yield message
            kept, size = [], 0
        size += len(rest)
        kept = [*kept, rest] if size <= protocol.MAX_MESSAGE else []
    if message := b"".join(kept).strip():
        yield message


class StdioServer:
    """The connection to one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while a message is written."""
        self._threads: list[threading.Thread] = []
        self._calls: dict[Any, ToolCall] = {}

    def receive(self, line: bytes | None) -> None:
        """Handle one line of the input."""
        try:
            if line is None:
                raise protocol.too_long()
            message = protocol.read(line)
        except ProtocolError as error:
            self._send(protocol.failure(None, error))
            return
        cancelled = self._calls.get(protocol.cancelled(message))
        if cancelled is not None:
            cancelled.cancelled = True
        response = protocol.respond(message)
        if isinstance(response, ToolCall):
            self._start(response)
        else:
            self._send(response)

    def close(self) -> None:
        """Answer the calls that are done soon, and end every wait."""
        for call in list(self._calls.values()):
            call.cancelled = True
        deadline = time.monotonic() + EXIT_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _send(self, message: Message | None) -> None:
        if message is None:
            return
        data = json.dumps(message).encode() + b"\n"
        with self._lock, suppress(BrokenPipeError):  # a client that is gone closes the input as well
            while data:
                data = data[os.write(_STDOUT, data) :]

    def _start(self, call: ToolCall) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._calls[call.id] = call
        thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, call: ToolCall) -> None:
        response: Message | None
        try:
            response = self._result_of(call)
        except Exception as error:  # noqa: BLE001 - the client waits for a response
            response = protocol.failure(call.id, ProtocolError(protocol.INTERNAL, f"Internal error: {error!r}"))
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        self._send(response)

    def _result_of(self, call: ToolCall) -> Message | None:
        """Perform the actions of a call with the thin client; None for a call that was cancelled."""
        tool = ToolRun(call, _context())
        client: Client | None = None
        events: Iterator[dict[str, Any] | None] | None = None
        value: dict[str, Any] | None
        while (action := tool.action) is not None:
            if isinstance(action, ProgressAction):
                self._send(protocol.progress(call, action.text))
                tool.resume(None)
                continue
            try:
                client = client or access.connect(talk=False, start=access.start_by_command)
                if isinstance(action, RequestAction):
                    value = client.exchange(action.method, action.path, action.body, action.key)
                else:
                    events = events or client.follow_ticking(action.run, TICK_SECONDS, action.after)
                    value = _next_event(events)
            except HocketError as error:
                tool.fail(error)
            else:
                tool.resume(value)
        return tool.response


def _next_event(events: Iterator[dict[str, Any] | None]) -> dict[str, Any] | None:
    for event in events:
        return event
    raise stream_ended()


def _context() -> CallContext:
    """The run that this process belongs to, as its environment says, else the directory and environment of the user."""
    caller = config.caller()
    if caller.run and caller.token and caller.url == f"unix:{config.socket_path(config.home())}":
        return CallContext(caller.run, caller.task)
    cwd = access.directory(None)
    return CallContext(cwd=cwd, env=access.environment(cwd))
