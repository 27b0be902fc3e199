"""What Hocket types at the terminal of a run: never while a dialog is open, which the keys would answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from hocket.errors import Conflict
from hocket.keeper import files
from hocket.model import Run, Spec
from hocket.providers import PROVIDERS
from hocket.providers.base import LiveSession, TerminalMode
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.observed.discovery import live_sessions, read_record

PASTE_SECONDS = 0.1
"""How long the CLI takes to read what was pasted."""
INTERRUPT_SECONDS = 3.0
"""How long an interrupted turn may take to end."""
WAIT_SECONDS = 5.0
"""How long a message waits for the one before it."""
_ENTER = "enter:"
_CLEAR = "clear:"


def session_record(spec: Spec, pid: int | None, session: str | None) -> LiveSession | None:
    """The record of a run's process: by its pid, else by its session, because a program may start the CLI as another
    process. Blocks: not for the event loop."""
    observed = PROVIDERS[spec.provider].observed
    folders = observed.folders(spec.env) if observed is not None else None
    if observed is None or folders is None:
        return None
    content = read_record(os.path.join(folders.live, f"{pid}.json")) if pid is not None else None
    record = observed.live(content) if content else None
    if record is not None:
        return record
    return next((one for one in live_sessions(observed, folders) if one.session == session), None)


class TerminalKeyboard:
    """The keyboard of one run. ``current`` returns the run as it is now."""

    def __init__(
        self, run: Run, spec: Spec, place: str, terminal: TerminalMode, current: Callable[[], Run | None]
    ) -> None:
        self._number = run.number
        self._spec = spec
        self._place = place
        self._terminal = terminal
        self._current = current
        self._tasks = BackgroundTasks()
        self._pressing: asyncio.Task[None] | None = None
        self._change = asyncio.Event()
        """Set and replaced when the record of the process may have changed."""

    def note_change(self) -> None:
        """Look at the record of the process again."""
        self._change.set()
        self._change = asyncio.Event()

    async def close(self) -> None:
        """Stop waiting; the next server presses what is left."""
        await self._tasks.close()

    async def is_idle(self) -> bool:
        return _is_idle(await self._record())

    async def finish_interrupt(self, key: str) -> None:
        """Wait for the end of an interrupted turn, and empty the input: the CLI may have put the prompt back into it.

        Keys that follow an escape at once would be part of it.
        """
        with suppress(TimeoutError, OSError):
            await asyncio.wait_for(self._record_that(_is_idle), INTERRUPT_SECONDS)
            await asyncio.to_thread(files.append_input, self._place, _CLEAR + key, self._terminal.clear)
            files.ring(self._place, files.BELL_INPUT)

    async def require_no_dialog(self) -> None:
        """Raise unless a message can be typed now."""
        if self._pressing is not None:
            await asyncio.wait([self._pressing], timeout=WAIT_SECONDS)
        try:
            record = await asyncio.wait_for(self._record_that(lambda found: found is not None), WAIT_SECONDS)
        except TimeoutError:
            raise Conflict(f"run {self._number} does not read messages yet", "Try again in a moment") from None
        run = self._current()
        if run is not None and run.open_questions:
            raise Conflict(
                f"run {self._number} asks a question, which keys would answer",
                f"answer it first: hocket answer {self._number} allow|deny",
            )
        if _has_dialog(record) or (self._pressing is not None and not self._pressing.done()):
            raise Conflict(
                f"a dialog is open at the terminal of run {self._number}, and keys would answer it",
                f"answer it there: hocket attach {self._number}",
            )

    def press_enter(self, key: str) -> None:
        """Send what was pasted, unless that was done; if a dialog has opened meanwhile, once it is answered."""
        self._pressing = self._tasks.spawn(self._press(_ENTER + key))

    def go_on(self) -> None:
        """Send what an earlier server has pasted and not sent."""
        messages = [str(note["data"]["id"]) for note in files.input_notes(self._place) if _is_message(note)]
        if messages and not files.has_input(self._place, _ENTER + messages[-1]):
            self.press_enter(messages[-1])

    async def _press(self, name: str) -> None:
        await asyncio.sleep(PASTE_SECONDS)
        await self._record_that(lambda record: not _has_dialog(record))
        with suppress(OSError):
            await asyncio.to_thread(files.append_input, self._place, name, self._terminal.enter)
            files.ring(self._place, files.BELL_INPUT)

    async def _record_that(self, fits: Callable[[LiveSession | None], bool]) -> LiveSession | None:
        """Wait until the record of the process is as wanted."""
        while True:
            change = self._change
            if fits(record := await self._record()):
                return record
            await change.wait()

    async def _record(self) -> LiveSession | None:
        run = self._current()
        if run is None:
            return None
        return await asyncio.to_thread(session_record, self._spec, run.pid, run.session_id)


def _is_idle(record: LiveSession | None) -> bool:
    return record is not None and record.is_waiting and not record.has_dialog


def _has_dialog(record: LiveSession | None) -> bool:
    return record is not None and record.has_dialog


def _is_message(note: dict[str, object]) -> bool:
    data = note["data"]
    return isinstance(data, dict) and data.get("kind") == "message"
