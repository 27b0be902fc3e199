"""What reaches a scripted agent while it plays: lines on its input, interrupts, and the ends of background agents.

One condition guards all of it. A thread reads the input, so that an interrupt arrives also in the middle of a wait.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hocket.rehearsal.play import flat_text

CHUNK = 1 << 16
SIGNAL = ""
"""Stands for the interrupt that came as a signal, where others have the id of their request."""


class Interrupted(Exception):
    """The turn is to end now."""


class BadLine(Exception):
    """A line of input that is no JSON object."""


class Work(NamedTuple):
    """What begins a turn: texts of the user's, or notices that background agents have ended."""

    texts: list[str]
    woken: bool


class Inbox:
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

    # --- from the input's side ------------------------------------------------------------------------------

    def read(self, descriptor: int) -> None:
        """Reads lines to the end."""
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
        """False where there is nothing to interrupt."""
        with self._changed:
            if self._busy or request == SIGNAL:
                self._interrupts.append(request)
                self._changed.notify_all()
            return self._busy

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- from the background agents' side -------------------------------------------------------------------

    def launched(self) -> None:
        with self._changed:
            self._background += 1

    def ended(self, notice: str) -> None:
        with self._changed:
            self._background -= 1
            self._notices.append(notice)
            self._changed.notify_all()

    # --- from the player's side -----------------------------------------------------------------------------

    def next(self) -> Work | None:
        """What to do next; None when there is nothing left and nothing can come any more."""
        with self._changed:
            self._busy = False
            self._interrupts = [request for request in self._interrupts if request == SIGNAL]
            self._changed.wait_for(self._has_news)
            if self._interrupts:
                return None
            self._busy = bool(self._messages or self._notices)
            if self._messages:
                return Work(["\n".join(_drained(self._messages))], woken=False)
            return Work(_drained(self._notices), woken=True) if self._notices else None

    def _has_news(self) -> bool:
        over = self._closed and not self._background
        return bool(self._messages or self._notices or self._interrupts or over)

    def waits_for_background(self) -> bool:
        """Whether nobody will say anything any more, but background agents will."""
        with self._changed:
            return self._closed and bool(self._background or self._notices)

    def waiting(self) -> list[str]:
        """What the user has said since the turn began."""
        with self._changed:
            return _drained(self._messages)

    def pause(self, seconds: float | None, *, interruptible: bool) -> None:
        """Lets time pass; None for ever."""
        until = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while until is None or time.monotonic() < until:
                self._check(interruptible)
                self._changed.wait(None if until is None else until - time.monotonic())
            self._check(interruptible)

    def answer(self, request: str, *, interruptible: bool) -> Mapping[str, Any] | None:
        """The answer to a question; None when the input ended without one."""
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
        """Whether a signal asked for the end. The real program then ends as if nothing had failed."""
        with self._changed:
            return SIGNAL in self._interrupts

    def take_interrupts(self) -> list[str]:
        """Who interrupted. A signal stays: it ends the program too."""
        with self._changed:
            taken = [request for request in self._interrupts if request != SIGNAL]
            self._interrupts = [request for request in self._interrupts if request == SIGNAL]
            return taken


def _drained(queue: deque[str]) -> list[str]:
    found = list(queue)
    queue.clear()
    return found
