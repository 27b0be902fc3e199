"""The server over a pair of pipes: a line is a message. Calls are carried out by the thin client, each in a thread.

Until the first call nothing is loaded that a call needs, and nobody is asked anything: most agents that are given this
server never call it. The end of the input ends every wait, and none of the work that is waited for.
"""

from __future__ import annotations

import json
import os
import threading
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hocket.errors import HocketError
from hocket.mcp import protocol
from hocket.mcp.protocol import Call, Refused

if TYPE_CHECKING:
    from hocket.client import Client
    from hocket.mcp.calls import Me, Steps
    from hocket.mcp.protocol import Message

TICK_SECONDS = 0.5
"""So soon a wait notices that nobody waits for it any more."""
LEAVING_SECONDS = 20.0
"""A server may have to come up first."""
_PIECE = 256 * 1024


def serve(descriptor: int, write: Callable[[bytes], None], connect: Callable[[], Client], me: Callable[[], Me]) -> None:
    """Answer what is read from a descriptor, up to its end."""
    server = Stdio(write, connect, me)
    for line in messages(descriptor):
        server.take(line)
    server.leave()


def messages(descriptor: int) -> Iterator[bytes | None]:
    """The lines of an input that are not empty; None for one that is too long to be kept."""
    kept: list[bytes] = []
    size = 0
    while piece := os.read(descriptor, _PIECE):
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


class Stdio:
    """One connection."""

    def __init__(self, write: Callable[[bytes], None], connect: Callable[[], Client], me: Callable[[], Me]) -> None:
        self._write = write
        self._connect = connect
        self._me = me
        self._lock: threading.Lock | None = None
        """For those who write; there is none as long as there is only one."""
        self._threads: list[threading.Thread] = []
        self._calls: dict[Any, Call] = {}
        self._version: str | None = None

    def take(self, line: bytes | None) -> None:
        """One line: a message, several, or something that is neither."""
        try:
            if line is None:
                raise protocol.too_long()
            message = protocol.read(line)
            if not isinstance(message, list):
                self._take(message, self._say)
                return
            if self._version not in protocol.BATCHING or not message:
                raise protocol.no_batch()
        except Refused as refused:
            self._say(protocol.failure(None, refused))
            return
        batch = _Batch(self._say)
        for one in message:
            self._take(one, batch.expect())
        batch.close()

    def _take(self, message: Any, reply: Callable[[Any], None]) -> None:
        called_off = self._calls.get(protocol.cancelled(message))
        if called_off is not None:
            called_off.cancelled = True
        answer = protocol.answer(message)
        if isinstance(answer, Call):
            self._start(answer, reply)
            return
        if answer is not None:
            self._version = protocol.agreed(answer) or self._version
        reply(answer)

    def leave(self) -> None:
        """Nobody asks any more. What is quickly done is still answered; whoever waits stops waiting."""
        import time

        for call in list(self._calls.values()):
            call.cancelled = True
        deadline = time.monotonic() + LEAVING_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _say(self, message: Any) -> None:
        if message is None:
            return
        data = json.dumps(message).encode() + b"\n"
        if self._lock is None:
            self._write(data)
            return
        with self._lock:
            self._write(data)

    def _start(self, call: Call, reply: Callable[[Any], None]) -> None:
        import threading

        if self._lock is None:
            self._lock = threading.Lock()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._calls[call.id] = call
        thread = threading.Thread(target=self._carry_out, args=(call, reply), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry_out(self, call: Call, reply: Callable[[Any], None]) -> None:
        answer: Message | None
        try:
            answer = self._answer(call)
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            answer = protocol.failure(call.id, Refused(protocol.INTERNAL, f"Internal error: {error!r}"))
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        reply(answer)

    def _answer(self, call: Call) -> Message | None:
        from hocket.mcp.calls import carry_out

        outcome = _Steps(self._connect, call, self._say).run(carry_out(call.name, call.arguments, self._me()))
        return None if outcome is None else protocol.done(call, outcome.text, outcome.is_error, outcome.facts)


class _Batch:
    """Answers that go out together, once the last of them is there."""

    def __init__(self, say: Callable[[Any], None]) -> None:
        self._say = say
        self._lock = allocate_lock()
        self._answers: list[Any] = []
        self._missing = 1  # so that it is not complete before it is closed

    def expect(self) -> Callable[[Any], None]:
        self._missing += 1
        return self._add

    def close(self) -> None:
        self._add(None)

    def _add(self, answer: Any) -> None:
        with self._lock:
            if answer is not None:
                self._answers.append(answer)
            self._missing -= 1
            is_whole = not self._missing
        if is_whole and self._answers:
            self._say(self._answers)


class _Steps:
    """Carries out the steps of one call."""

    def __init__(self, connect: Callable[[], Client], call: Call, say: Callable[[Any], None]) -> None:
        self._connect = connect
        self._call = call
        self._say = say
        self._client: Client | None = None
        self._events: Iterator[dict[str, Any] | None] | None = None

    def run(self, steps: Steps) -> Any:
        """The outcome; None for a call that nobody waits for any more."""
        try:
            step = next(steps)
            while True:
                try:
                    value = self._do(step)
                except HocketError as error:
                    step = steps.throw(error)
                    continue
                # What was asked for is done, whoever waits; but nobody is waited for in vain.
                if self._call.cancelled and value is None:
                    steps.close()
                    return None
                step = steps.send(value)
        except StopIteration as end:
            return end.value

    def _do(self, step: Any) -> Any:
        from hocket.mcp.calls import Ask, Progress, broken_off

        if isinstance(step, Progress):
            self._say(protocol.progress(self._call, step.text))
            return None
        if self._client is None:
            self._client = self._connect()
        if isinstance(step, Ask):
            return self._client.exchange(step.method, step.path, step.body, step.key)
        if self._events is None:
            self._events = self._client.follow_ticking(step.run, TICK_SECONDS, step.after)
        for event in self._events:
            return event
        raise broken_off()
