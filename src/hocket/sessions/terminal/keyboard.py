"""What Hocket types at the terminal of a run: never while a dialog is open, which the keys would answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from hocket.errors import Conflict
from hocket.keeper import files, process_tree
from hocket.model import Run, Spec
from hocket.providers import PROVIDERS
from hocket.providers.base import LiveSession, TerminalMode
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.observed.discovery import is_alive, live_sessions, read_record

PASTE_SECONDS = 0.1
"""How long the CLI takes to read what was pasted."""
INTERRUPT_SECONDS = 3.0
"""How long an interrupted turn may take to end."""
EMPTIED_SECONDS = 2.0
"""The time between two presses of the key that empties the line: soon after each other they may mean something else."""
RETRY_SECONDS = 1.0
WAIT_SECONDS = 5.0
"""How long a message waits for the one before it."""
_ENTER = "enter:"
_EMPTIED = "emptied:"


def session_record(spec: Spec, pid: int | None, session: str | None) -> LiveSession | None:
    """The record of a run's process: by its pid, else by its session or below that process, because a program may start
    the CLI as another process. Blocks: not for the event loop."""
    observed = PROVIDERS[spec.provider].observed
    folders = observed.folders(spec.env) if observed is not None else None
    if observed is None or folders is None:
        return None
    content = read_record(os.path.join(folders.live, f"{pid}.json")) if pid is not None else None
    record = observed.live(content) if content else None
    # An earlier process with the same pid may have left its record.
    if record is not None and record.pid == pid and (record.started is None or is_alive(record)):
        return record
    found = list(live_sessions(observed, folders))
    named = next((one for one in found if one.session == session), None)
    if named is not None or pid is None or not found:
        return named
    below = process_tree.below(pid)
    return min((one for one in found if one.pid in below), key=lambda one: below[one.pid], default=None)


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
        self._emptied_at = 0.0
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

    async def wait_until_idle(self) -> None:
        """Wait for the end of an interrupted turn: keys that follow an escape at once would be part of it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._record_that(_is_idle), INTERRUPT_SECONDS)

    async def empty_line(self, key: str) -> None:
        """Delete the prompt of an interrupted turn, with which the next message would begin."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(PASTE_SECONDS, self._emptied_at + EMPTIED_SECONDS - loop.time()))
        if await self.is_idle():
            self._emptied_at = loop.time()
            await self._type(_EMPTIED + key, self._terminal.emptied)

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
        # The CLI writes its record in place: one that cannot be read may be that of a dialog.
        await self._record_that(lambda record: record is not None and not record.has_dialog)
        await self._type(name, self._terminal.enter)

    async def _type(self, name: str, keys: str) -> None:
        while True:
            try:
                await asyncio.to_thread(files.append_input, self._place, name, keys)
            except (FileNotFoundError, files.NotRegularError):
                return  # The agent removed its input file.
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)  # No room on the disk, or no descriptor.
            else:
                files.ring(self._place, files.BELL_INPUT)
                return

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
