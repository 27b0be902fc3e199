"""The input of a scripted agent: messages, answers and interrupts, and the ends of its background agents.

A thread reads the input, so that an interrupt also arrives during a wait. One condition guards all of it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hocket.rehearsal.matching import flat_text

CHUNK = 1 << 16
SIGNAL = ""
"""The id of an interrupt by a signal; other interrupts have the id of their request."""


class Interrupted(Exception):
    """The current turn was interrupted."""


class BadLine(Exception):
    """A line of input that is not JSON."""


class TurnInput(NamedTuple):
    """What starts a turn: messages of the user, or notifications that background agents have ended."""

    texts: list[str]
    woken: bool


class InputQueue:
    def __init__(self, on_control: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._on_control = on_control
        self._changed = threading.Condition()
        self._messages: deque[str] = deque()
        self._notices: deque[str] = deque()
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._interrupts: list[str] = []
        self._closed = False
        self._busy = False
        self._background = 0

    # --- reader ------------------------------------------------------------------------------

    def read(self, descriptor: int) -> None:
        """Read lines until the end of input."""
        parts: list[bytes] = []
        while chunk := os.read(descriptor, CHUNK):
            first, *lines = chunk.split(b"\n")
            parts.append(first)
            for line in lines:
                self.feed(b"".join(parts))
                parts = [line]
        self.feed(b"".join(parts))
        self.close()

    def feed(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            value = json.loads(line)
        except ValueError:
            raise BadLine(f"Error parsing streaming input line ({len(line)} chars)") from None
        if isinstance(value, dict):
            self._sort(value)

    def _sort(self, value: Mapping[str, Any]) -> None:
        match value.get("type"):
            case "user":
                message = value.get("message")
                self.message(flat_text(message.get("content")) if isinstance(message, dict) else "")
            case "control_response":
                self._answered(value.get("response"))
            case "control_request":
                request = value.get("request")
                self._on_control(str(value.get("request_id")), request if isinstance(request, dict) else {})

    def message(self, text: str) -> None:
        with self._changed:
            self._messages.append(text)
            self._changed.notify_all()

    def _answered(self, response: Any) -> None:
        if isinstance(response, dict):
            inner = response.get("response")
            with self._changed:
                self._answers[str(response.get("request_id"))] = inner if isinstance(inner, dict) else {}
                self._changed.notify_all()

    def interrupt(self, request: str) -> bool:
        """Interrupt the current turn; False if there is none."""
        with self._changed:
            if self._busy or request == SIGNAL:
                self._interrupts.append(request)
                self._changed.notify_all()
            return self._busy

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- background agents -------------------------------------------------------------------

    def launched(self) -> None:
        with self._changed:
            self._background += 1

    def ended(self, notice: str) -> None:
        with self._changed:
            self._background -= 1
            self._notices.append(notice)
            self._changed.notify_all()

    # --- turns -----------------------------------------------------------------------------

    def next(self) -> TurnInput | None:
        """Wait for the next turn; None when input has ended and no background agent is left."""
        with self._changed:
            self._busy = False
            self._interrupts = [request for request in self._interrupts if request == SIGNAL]
            self._changed.wait_for(self._has_news)
            if self._interrupts:
                return None
            self._busy = bool(self._messages or self._notices)
            if self._messages:
                return TurnInput(["\n".join(_drained(self._messages))], woken=False)
            return TurnInput(_drained(self._notices), woken=True) if self._notices else None

    def _has_news(self) -> bool:
        over = self._closed and not self._background
        return bool(self._messages or self._notices or self._interrupts or over)

    def waits_for_background(self) -> bool:
        """True if input has ended and background agents are still to report."""
        with self._changed:
            return self._closed and bool(self._background or self._notices)

    def waiting(self) -> list[str]:
        """Take the messages that arrived since the turn began."""
        with self._changed:
            return _drained(self._messages)

    def pause(self, seconds: float | None, *, interruptible: bool) -> None:
        """Wait for some seconds, or for ever if None."""
        until = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while until is None or time.monotonic() < until:
                self._check(interruptible)
                self._changed.wait(None if until is None else until - time.monotonic())
            self._check(interruptible)

    def answer(self, request: str, *, interruptible: bool) -> Mapping[str, Any] | None:
        """Wait for the answer to a question; None if the input ends first."""
        with self._changed:
            while request not in self._answers:
                self._check(interruptible)
                if self._closed:
                    return None
                self._changed.wait()
            return self._answers.pop(request)

    def _check(self, interruptible: bool) -> None:
        if interruptible and self._interrupts:
            raise Interrupted

    @property
    def signalled(self) -> bool:
        """True after an interrupt by a signal, after which the real program exits with 0."""
        with self._changed:
            return SIGNAL in self._interrupts

    def take_interrupts(self) -> list[str]:
        """Take the ids of interrupt requests. A signal stays, because it also ends the program."""
        with self._changed:
            taken = [request for request in self._interrupts if request != SIGNAL]
            self._interrupts = [request for request in self._interrupts if request == SIGNAL]
            return taken


def _drained(queue: deque[str]) -> list[str]:
    found = list(queue)
    queue.clear()
    return found
