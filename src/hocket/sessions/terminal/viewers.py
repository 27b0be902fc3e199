"""Terminals of live runs: who is attached to them, how large they are, what they show and what is typed into them."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from hocket.errors import Conflict, NotFound
from hocket.keeper import files
from hocket.model import Run
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.journal import Journal
from hocket.sessions.observed.refusals import check_owned
from hocket.sessions.output_lines import read_at
from hocket.sessions.run_identity import directory
from hocket.store import Committed
from hocket.views.terminal_modes import CLEAR, RESET, TerminalModes

log = logging.getLogger("hocket")

CHUNK = 64 * 1024
MAX_BEHIND = 1024 * 1024
"""Bytes of output after which a viewer that is too slow gets the present screen instead."""
HEAD, TAIL = 256 * 1024, 4 * 1024 * 1024
"""How much of the output is searched for modes: programs set them when they begin, and when they change."""
REDRAW_SECONDS = 0.2
"""How long a size is kept that makes a program draw everything: it must have seen it before the next one."""
TYPING_SECONDS = 3.0
"""How long a run may leave unread what was typed."""
RETRY_SECONDS = 0.02
REMEMBERED = 100
WITHOUT_WATCH_SECONDS = 0.5
"""How often output is looked for where the system has no watches left."""
_CTRL = rb"(?:5|69|133|197)"
"""Ctrl alone, also with Caps Lock or Num Lock."""
_SUSPEND = re.compile(rb"\x1a|\x1b\[122(?::[\d:]*)?;%b(?::[123])?u|\x1b\[27;5;122~" % _CTRL)
"""Ctrl-Z. A program that suspends itself reads nothing more, and no shell is there that could bring it back."""


class _InputSpec(msgspec.Struct):
    """The part of a spec that says where the input of a process comes from."""

    stdin: str = "empty"


_input_spec = msgspec.json.Decoder(_InputSpec)


class TerminalSize(NamedTuple):
    columns: int
    rows: int


class TerminalViewer:
    """One attached terminal. It reads from the output as fast as it can, so nothing is kept for it in memory."""

    def __init__(self, terminals: Terminals, run: Run, size: TerminalSize) -> None:
        self.id = os.urandom(8).hex()
        self.run = run
        self.size = size
        self.news = asyncio.Event()
        self._terminals = terminals
        self._offset = 0
        self._is_stale = False
        """The program is about to draw in another size, and leaves the rest of a larger screen as it is."""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """What the terminal shows from now on, until the run ends: first what sets its modes, then a redraw."""
        screen = self._terminals.enter(self)
        try:
            while not screen.is_over and not screen.open():
                await self._wait(None)
            if not screen.is_over:
                yield await self._begin(screen)
            async for piece in self._follow(screen):
                yield piece
        finally:
            self._terminals.leave(self)

    def resize(self, size: TerminalSize) -> None:
        self.size = size

    def begin_size(self, size: TerminalSize) -> None:
        """Prepare for drawings in this size: on a larger screen nothing of the earlier ones is to stay."""
        self._is_stale = size != self.size

    async def _follow(self, screen: _Screen) -> AsyncIterator[bytes]:
        while not screen.is_closed:
            is_over, end = screen.is_over, files.size(screen.out)
            if end < self._offset:
                self._offset = 0  # The keeper has begun the file again.
            if end - self._offset > MAX_BEHIND and not is_over:
                yield await self._begin(screen)
            elif self._is_stale:
                self._is_stale = False
                yield CLEAR
            elif piece := read_at(screen.out, self._offset, CHUNK):
                self._offset += len(piece)
                yield piece
            elif is_over:
                return
            else:
                await self._wait(None if screen.is_watched else WITHOUT_WATCH_SECONDS)

    async def _begin(self, screen: _Screen) -> bytes:
        """Skip what was written so far: its modes, and an empty screen that the program is about to fill."""
        end = self._offset = files.size(screen.out)
        modes = await asyncio.to_thread(_modes, screen.out, end)
        screen.arrange(redraw=True)
        return RESET + modes + CLEAR

    async def _wait(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), seconds)
        # What is new is looked for now, and nothing else happens before.
        self.news.clear()


class _Screen:
    """The terminal of one run that has viewers."""

    def __init__(self, run: str, place: str, journal: Journal, watcher: FileWatcher, tasks: BackgroundTasks) -> None:
        self.viewers: dict[str, TerminalViewer] = {}
        self.out = os.path.join(place, files.OUT)
        self.is_watched = False
        self.is_closed = False
        self._run = run
        self._place = place
        self._journal = journal
        self._watcher = watcher
        self._tasks = tasks
        self._arranging: asyncio.Task[None] | None = None
        self._is_dirty = self._wants_redraw = False

    @property
    def is_over(self) -> bool:
        """True once the run has ended, or this server is about to."""
        return self.is_closed or self._run not in self._journal.live

    def open(self) -> bool:
        """Begin to watch the output; false as long as the process has not started."""
        now = self._journal.live.get(self._run)
        if now is None or now.started_at is None:
            return False
        if not self.is_watched:
            try:
                self._watcher.watch(self, self.out, self.wake, "written")
                self.is_watched = True
            except OSError:  # No watches left: the viewers look by themselves.
                self.is_watched = False
        return True

    def close(self) -> None:
        self.is_closed = True
        if self.is_watched:
            self._watcher.unwatch(self)
            self.is_watched = False

    def wake(self) -> None:
        for viewer in self.viewers.values():
            viewer.news.set()

    def arrange(self, *, redraw: bool) -> None:
        """Give the terminal the smallest size of all viewers, and with ``redraw`` make the program draw everything."""
        self._is_dirty, self._wants_redraw = True, self._wants_redraw or redraw
        if self._arranging is None:
            self._arranging = self._tasks.spawn(self._arrange())

    async def _arrange(self) -> None:
        try:
            while self._is_dirty and self.viewers and not self.is_over:
                redraw, self._is_dirty, self._wants_redraw = self._wants_redraw, False, False
                size = self._smallest()
                if size != files.read_size(self._place):
                    for viewer in self.viewers.values():
                        viewer.begin_size(size)
                    await self._resize(size)
                elif redraw:
                    await self._resize(size._replace(rows=size.rows - 1 or 2))
                    await asyncio.sleep(REDRAW_SECONDS)
                    if self.viewers:
                        await self._resize(self._smallest())
        finally:
            self._arranging = None

    def _smallest(self) -> TerminalSize:
        sizes = [viewer.size for viewer in self.viewers.values()]
        return TerminalSize(min(one.columns for one in sizes), min(one.rows for one in sizes))

    async def _resize(self, size: TerminalSize) -> None:
        try:
            await asyncio.to_thread(files.set_size, self._place, *size)
            files.ring(self._place, files.BELL_RESIZE)
        except OSError as error:  # A full disk, or an agent that removed its files: it keeps the size that it has.
            log.warning("the terminal of run %s cannot be resized: %s", self._run, error)


class Terminals:
    """The terminals of all live runs, and their viewers. One per server."""

    def __init__(self, home: Path, journal: Journal, watcher: FileWatcher) -> None:
        self._home = home
        self._journal = journal
        self._watcher = watcher
        self._tasks = BackgroundTasks()
        self._is_closing = False
        self._screens: dict[str, _Screen] = {}
        self._typing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One writer per run: what is typed in one go arrives in one piece."""
        self._typed: deque[tuple[str, str]] = deque(maxlen=REMEMBERED)
        """The runs and keys of the last requests."""

    def open(self) -> None:
        self._journal.listen(self._note)

    def end_viewers(self) -> None:
        """End all viewers; clients reconnect to the next server."""
        self._is_closing = True
        for screen in self._screens.values():
            screen.close()
            screen.wake()

    async def close(self) -> None:
        self.end_viewers()
        await self._tasks.close()

    def _note(self, committed: Committed) -> None:
        for run in committed.runs:
            if (screen := self._screens.get(run)) is not None:
                screen.wake()

    def attach(self, run: Run, columns: int, rows: int) -> TerminalViewer:
        """A new viewer of the terminal of a live run. It is attached from its first piece to its last."""
        return TerminalViewer(self, self._require_terminal(run), TerminalSize(columns, rows))

    def enter(self, viewer: TerminalViewer) -> _Screen:
        """Count a viewer among those of its run."""
        run = viewer.run
        screen = self._screens.get(run.id)
        if screen is None:
            place = str(directory(self._home, run))
            screen = self._screens[run.id] = _Screen(run.id, place, self._journal, self._watcher, self._tasks)
            screen.is_closed = self._is_closing
        screen.viewers[viewer.id] = viewer
        return screen

    def leave(self, viewer: TerminalViewer) -> None:
        """Forget a viewer; the others get the room that it did not have."""
        screen = self._screens[viewer.run.id]
        del screen.viewers[viewer.id]
        if screen.viewers:
            screen.arrange(redraw=False)
        else:
            screen.close()
            del self._screens[viewer.run.id]

    def viewers(self, run: Run) -> list[TerminalViewer]:
        """Those that are attached to a run now."""
        screen = self._screens.get(run.id)
        return [] if screen is None else list(screen.viewers.values())

    def resize(self, run: Run, viewer_id: str, columns: int, rows: int) -> None:
        """Note the new size of a viewer."""
        self._require_terminal(run)
        viewer = next((one for one in self.viewers(run) if one.id == viewer_id), None)
        if viewer is None:
            raise NotFound(f"run {run.number} has no viewer {viewer_id!r}", "Its connection may have been closed")
        viewer.resize(TerminalSize(columns, rows))
        self._screens[run.id].arrange(redraw=False)

    async def type(self, run: Run, keys: bytes, key: str | None = None) -> None:
        """Type into the terminal of a run, once per ``key``, all but Ctrl-Z. Raises if the run does not read it."""
        keys = _SUSPEND.sub(b"", keys)
        async with self._typing.setdefault(run.id, asyncio.Lock()):
            if key is None:
                await self._type(run, keys)
            elif (run.id, key) not in self._typed:
                await self._type(run, keys)
                self._typed.append((run.id, key))

    async def _type(self, run: Run, keys: bytes) -> None:
        place = str(directory(self._home, run))
        deadline = time.monotonic() + TYPING_SECONDS
        while keys:
            now = self._require_terminal(run)
            taken = await asyncio.to_thread(files.type_keys, place, keys)
            if taken:
                keys, deadline = keys[taken:], time.monotonic() + TYPING_SECONDS
            elif now.started_at is None:
                raise Conflict(f"run {run.number} has not begun yet", "Try again in a moment")
            elif time.monotonic() > deadline:
                raise Conflict(f"run {run.number} does not read what is typed: {len(keys)} bytes are left")
            else:
                await asyncio.sleep(RETRY_SECONDS)

    def has_terminal(self, run: Run) -> bool:
        """True if the process of a run has, or had, a terminal."""
        if run.is_observed or not run.has_process:
            return False
        return _input_spec.decode(self._journal.read.spec(run.id)).stdin == "terminal"

    def _require_terminal(self, run: Run) -> Run:
        check_owned(run, "attach to its terminal")
        if not self.has_terminal(run):
            raise Conflict(f"run {run.number} has no terminal", f"hocket logs -f {run.number}")
        now = self._journal.live.get(run.id)
        if now is None:
            raise Conflict(f"run {run.number} has ended", f"hocket logs {run.number}")
        return now


def _modes(out: str, end: int) -> bytes:
    """What sets the modes that a program has left on its terminal."""
    modes = TerminalModes()
    begin = max(0, end - TAIL)
    if begin:
        modes.feed(read_at(out, 0, min(HEAD, begin)))
    modes.feed(read_at(out, begin, end - begin))
    return modes.restored()
