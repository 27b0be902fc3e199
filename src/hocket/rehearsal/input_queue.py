"""The input of a scripted agent: messages, answers and interrupts, and the ends of its background agents.

Another thread adds to it, so that an interrupt also arrives during a wait. One condition guards all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple


class Interrupted(Exception):
    """The current turn was interrupted."""


class TurnInput(NamedTuple):
    """What starts a turn: messages of the user, or notifications that background agents have ended."""

    texts: list[str]
    woken: bool


class InputQueue:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: list[str] = []
        self._notices: list[str] = []
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._interrupts: list[str] = []
        """The ids of requests to interrupt the current turn."""
        self.is_signalled = False
        """True after an interrupt by a signal, which also ends the program."""
        self._closed = False
        self._busy = False
        self._background = 0

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    # --- input ---------------------------------------------------------------------------------------------

    def add_message(self, text: str) -> None:
        with self._change():
            self._messages.append(text)

    def add_answer(self, request: str, answer: Mapping[str, Any]) -> None:
        with self._change():
            self._answers[request] = answer

    def interrupt(self, request: str) -> bool:
        """Interrupt the current turn; False if there is none."""
        with self._change():
            if self._busy:
                self._interrupts.append(request)
            return self._busy

    def signal(self) -> None:
        with self._change():
            self.is_signalled = True

    def close(self) -> None:
        with self._change():
            self._closed = True

    def add_background(self) -> None:
        """Count an agent that begins to work in the background."""
        with self._change():
            self._background += 1

    def end_background(self, notice: str) -> None:
        with self._change():
            self._background -= 1
            self._notices.append(notice)

    # --- turns ---------------------------------------------------------------------------------------------

    def next(self) -> TurnInput | None:
        """Wait for the next turn; None when input has ended and no background agent is left."""
        with self._changed:
            self._busy = False
            self._interrupts.clear()
            self._changed.wait_for(
                lambda: self._messages or self._notices or self.is_signalled or (self._closed and not self._background)
            )
            if self.is_signalled or not (self._messages or self._notices):
                return None
            self._busy = True
            if self._messages:
                return TurnInput(["\n".join(_drained(self._messages))], woken=False)
            return TurnInput(_drained(self._notices), woken=True)

    def waits_for_background(self) -> bool:
        """True if input has ended and background agents are still to report."""
        with self._changed:
            return self._closed and bool(self._background or self._notices)

    def take_messages(self) -> list[str]:
        """Take the messages that arrived since the turn began."""
        with self._changed:
            return _drained(self._messages)

    def take_interrupts(self) -> list[str]:
        with self._changed:
            return _drained(self._interrupts)

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
        if interruptible and (self._interrupts or self.is_signalled):
            raise Interrupted


def _drained(queue: list[str]) -> list[str]:
    found = queue.copy()
    queue.clear()
    return found
