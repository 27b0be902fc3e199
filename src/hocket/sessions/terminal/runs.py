"""Runs whose CLI has a terminal. Their events come from the transcript, and what they do now from the record that the
CLI keeps of its process; nothing is read from the screen."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hocket.errors import HocketError
from hocket.model import Event, Run, Status
from hocket.providers.base import LiveSession, TerminalMode
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.journal import RETRY_AFTER, Journal, run_event
from hocket.sessions.leaf import Leaf
from hocket.sessions.messages import Messages, hook_questions
from hocket.sessions.observed.discovery import state_of
from hocket.sessions.terminal.keyboard import TerminalKeyboard, session_record
from hocket.sessions.transcripts import Transcripts, nearest_directory
from hocket.store import Committed

SETTLE_SECONDS = 3.0
"""For how long nothing may happen in a run and its team until its work counts as done."""
UNFINISHED_SECONDS = 60.0
"""The same while tasks of the team are unfinished, on which no one is at work."""
HELPER_SECONDS = 600.0
"""The same while a sub-agent is at work: it may run a long command, or have been ended without a word."""
LASTING_SECONDS = 1.0
"""A state of the record that lasts this long counts even if the transcript does not tell of it."""
DIALOG_SECONDS = 60.0
"""How long the question of a teammate waits for its dialog, which the CLI opens some seconds after its hook."""
REMEMBERED = 20
"""Messages that are expected in the transcript."""
RECOGNISED = 1000
"""Characters of a message by which it is recognised there."""
READ_SECONDS = 10.0
"""How long the end of a run waits for the rest of its transcripts."""


class TerminalRuns:
    """All live runs with a terminal. One per server."""

    def __init__(
        self,
        journal: Journal,
        messages: Messages,
        transcripts: Transcripts,
        watcher: FileWatcher,
        need_server: Callable[[str, bool], None],
    ) -> None:
        self._journal = journal
        self._messages = messages
        self._transcripts = transcripts
        self._watcher = watcher
        self._need_server = need_server
        self._followed: dict[str, _FollowedTerminal] = {}
        self._tasks = BackgroundTasks()
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        self._watcher.on_overflow(self._look_at_all)
        self._journal.listen(self._on_commit)

    async def close(self) -> None:
        for followed in self._followed.values():
            followed.cancel_timers()
            await followed.keyboard.close()
        await self._tasks.close()

    def follow(self, leaf: Leaf) -> None:
        """Read the transcript of a run that has started, and watch the record of its process."""
        if leaf.id in self._followed:
            return
        followed = self._remembered(leaf)
        if followed is None:
            return
        self._followed[leaf.id] = followed
        self._messages.type_with(leaf.id, followed.keyboard)
        self._tasks.spawn(self._catch_up(self._journal.live[leaf.id]))
        self._follow_transcript(followed)
        self._look(followed)

    def _remembered(self, leaf: Leaf) -> _FollowedTerminal | None:
        """A run with a terminal, with what is recorded of it; None for one without."""
        run, terminal = self._journal.live[leaf.id], leaf.provider.terminal
        if terminal is None:
            return None
        current = partial(self._journal.live.get, leaf.id)
        keyboard = TerminalKeyboard(run, leaf.spec, leaf.place, terminal, current)
        followed = _FollowedTerminal(leaf, terminal, keyboard)
        for event in self._journal.read.events_of_type(leaf.id, "member"):
            followed.note_helper(event.data)
        for event in self._journal.read.events_of_type(leaf.id, "input", "turn.started"):
            followed.note_turn() if event.type == "turn.started" else followed.note_input(event)
        return followed

    def _follow_transcript(self, followed: _FollowedTerminal) -> None:
        leaf = followed.leaf
        run = self._journal.live[leaf.id]
        since = run.created_at if run.resumed_from is not None else 0.0
        self._transcripts.follow(run, leaf.spec.env, redactor=leaf.redactor, since=since, is_news=followed.is_news)

    async def _catch_up(self, run: Run) -> None:
        """Record and send what an earlier server has typed and not recorded or sent; once for a run that has ended."""
        while True:
            with suppress(HocketError, OSError):
                await self._messages.catch_up(run)
                return
            if run.id not in self._followed:
                return
            await asyncio.sleep(RETRY_AFTER)

    async def end(self, leaf: Leaf) -> bool:
        """Read the rest of the transcript of a run whose process has ended; False if something was not read."""
        followed = self._followed.pop(leaf.id, None)
        if followed is None:
            return await self._read_unfollowed(leaf)
        followed.cancel_timers()
        await followed.keyboard.close()
        self._watcher.unwatch(followed)
        self._need_server("finishing", any(one.finish is not None for one in self._followed.values()))
        return await self._transcripts.stop(leaf.id, READ_SECONDS)

    async def _read_unfollowed(self, leaf: Leaf) -> bool:
        """The same for a run that has ended while there was no server."""
        await self._catch_up(self._journal.live[leaf.id])
        followed = self._remembered(leaf)
        if followed is None:
            return True
        self._follow_transcript(followed)
        return await self._transcripts.stop(leaf.id, READ_SECONDS)

    # The record of the process

    def _look_at_all(self) -> None:
        for followed in list(self._followed.values()):
            self._look(followed)

    def _look(self, followed: _FollowedTerminal) -> None:
        """Look at the record; what changes meanwhile is looked at again."""
        followed.is_changed = True
        followed.keyboard.note_change()
        if followed.task is None:
            followed.task = self._tasks.spawn(self._read(followed))

    async def _read(self, followed: _FollowedTerminal) -> None:
        try:
            while followed.is_changed and followed.id in self._followed:
                followed.is_changed = False
                self._watch(followed)
                run = self._journal.live[followed.id]
                record = await asyncio.to_thread(session_record, followed.leaf.spec, run.pid, run.session_id)
                if record is not None and followed.id in self._followed:
                    await self._take(followed, record)
        except (HocketError, OSError):
            followed.look_later(self._loop, LASTING_SECONDS, self._look)
        finally:
            followed.task = None

    def _watch(self, followed: _FollowedTerminal) -> None:
        """Watch the folder of the records, or the nearest one that exists."""
        observed = followed.leaf.provider.observed
        folders = observed.folders(followed.leaf.spec.env) if observed is not None else None
        if folders is None:
            return
        any_name = "*"
        folder, name = nearest_directory(os.path.join(folders.live, any_name))
        if name == any_name and followed.record is not None:
            name = f"{followed.record.pid}.json"
        if followed.watched != (folder, name):
            self._watcher.unwatch(followed)
            names = None if name == any_name else {name}
            with suppress(OSError):
                self._watcher.watch(followed, folder, partial(self._look, followed), names=names)
                followed.watched, followed.is_changed = (folder, name), True

    async def _take(self, followed: _FollowedTerminal, record: LiveSession) -> None:
        """Record what the process does now, if the transcript does not tell of it in time."""
        run = self._journal.live[followed.id]
        if run.session_id is not None and record.session != run.session_id:
            if not followed.lasts(record.session, self._loop.time()):  # The CLI still writes to the earlier one.
                followed.look_later(self._loop, LASTING_SECONDS, self._look)
                return
            named = {"session_id": record.session, "instead_of": run.session_id}
            await self._transcripts.stop(run.id, READ_SECONDS)
            await self._journal.write([run_event(run, "session", named)])
            if followed.id not in self._followed:
                return  # It has ended meanwhile.
            self._follow_transcript(followed)
        await self._close_questions(followed, record)
        if followed.id not in self._followed:
            return
        if followed.record != record:
            followed.record, followed.recorded_at = record, self._loop.time()
            followed.look_later(self._loop, LASTING_SECONDS, self._look)
            self._finish_later(followed)
        elif self._loop.time() - followed.recorded_at >= LASTING_SECONDS:
            run = self._journal.live[followed.id]
            if hook_questions(run) and not record.has_dialog:
                followed.look_later(self._loop, LASTING_SECONDS, self._look)
            if run.status is not state_of(record) and not run.open_questions:
                state = {"session_id": run.session_id, "status": state_of(record)}
                await self._journal.write([run_event(run, "session", state)])

    async def _close_questions(self, followed: _FollowedTerminal, record: LiveSession) -> None:
        """Close the questions of hooks that were answered in a dialog."""
        run = self._journal.live[followed.id]
        idle = {one.agent for one in self._team(run.id) if one.status is not Status.RUNNING}
        if over := followed.answered(hook_questions(run), idle, record, time.time(), self._loop.time()):
            await self._messages.close_hook_questions(run, over)

    def _team(self, lead: str) -> list[Run]:
        return [one for one in self._journal.live.values() if one.parent == lead and one.teammate is not None]

    # The end of the work

    def _on_commit(self, committed: Committed) -> None:
        for event in committed.events:
            for name in (event.run, self._lead_of(event.run)):
                if name is not None and (followed := self._followed.get(name)) is not None:
                    if event.type == "member" and event.run == name:
                        followed.note_helper(event.data)
                    if event.type == "input" and event.run == name:
                        followed.note_input(event)
                    if event.run == name:
                        self._messages.note_output(name, [event])
                    if event.type == "question":
                        followed.look_later(self._loop, 2 * LASTING_SECONDS, self._look)
                    self._finish_later(followed)

    def _lead_of(self, run_id: str) -> str | None:
        run = self._journal.run(run_id) if self._followed else None
        return run.parent if run is not None and run.teammate is not None else None

    def _finish_later(self, followed: _FollowedTerminal) -> None:
        """End a run that is no session once nothing has happened for a while."""
        if followed.leaf.spec.session or followed.is_ending:
            return
        if followed.finish is not None:
            followed.finish.cancel()
            followed.finish = None
        if self._is_over(followed):
            is_unfinished = self._journal.live[followed.id].open_tasks > 0
            delay = HELPER_SECONDS if followed.helpers else UNFINISHED_SECONDS if is_unfinished else SETTLE_SECONDS
            followed.finish = self._loop.call_later(delay, self._finish, followed)
        self._need_server("finishing", any(one.finish is not None for one in self._followed.values()))

    def _is_over(self, followed: _FollowedTerminal) -> bool:
        run = self._journal.live.get(followed.id)
        if run is None or run.status is not Status.WAITING or run.open_questions:
            return False
        return not any(one.status is Status.RUNNING for one in self._team(run.id))

    def _finish(self, followed: _FollowedTerminal) -> None:
        followed.finish = None
        record = followed.record
        if self._messages.is_busy(followed.leaf.run):
            self._finish_later(followed)
        elif self._is_over(followed) and record is not None and record.is_waiting and not record.has_dialog:
            self._messages.end_input(followed.leaf.place, followed.terminal.goodbye)
            followed.note_end()


def _words(text: str) -> str:
    """What a message is recognised by: it is typed without control characters, and the CLI may trim it."""
    return " ".join("".join(one for one in word if one.isprintable()) for word in text.split())[:RECOGNISED]


class _FollowedTerminal:
    """One run, and what is known of its process."""

    def __init__(self, leaf: Leaf, terminal: TerminalMode, keyboard: TerminalKeyboard) -> None:
        self.leaf = leaf
        self.id = leaf.id
        self.terminal = terminal
        self.keyboard = keyboard
        self.record: LiveSession | None = None
        self.recorded_at = 0.0
        self.dialog_at = 0.0
        """When a dialog was last seen; Unix time."""
        self.asked_in_dialog: set[str] = set()
        """The questions that were open while the present dialog, or the last one, was."""
        self.watched: tuple[str, str] | None = None
        """The folder that is watched, and the name there."""
        self.is_changed = False
        self.is_ending = False
        """It was asked to end, because its work is done."""
        self.task: asyncio.Task[None] | None = None
        self.later: asyncio.TimerHandle | None = None
        self.finish: asyncio.TimerHandle | None = None
        self.helpers: set[str] = set()
        """Sub-agents at work."""
        self._other: tuple[str, float] | None = None
        """The session that the process has changed to, and since when."""
        self._sent = deque([_words(leaf.redactor.text(leaf.spec.prompt or ""))], REMEMBERED)
        """What was sent and is not in the transcript yet, as far as that is known."""
        self._typed: set[str] = set()
        """Inputs that were typed by a person at the terminal."""

    def answered(
        self, asked: Sequence[Mapping[str, Any]], idle: Container[str], record: LiveSession, now: float, at: float
    ) -> set[str]:
        """The open questions of hooks that were answered at the terminal, by a new or repeated look at the record.

        The dialog of a lead opens before its hook asks, that of a teammate some time after. So without a dialog the
        lead's own question was answered, but that of a teammate only if it was the one of a dialog that has closed, or
        if the teammate is ``idle``.
        """
        had_dialog = self.record is not None and self.record.has_dialog
        if record.has_dialog:
            self.asked_in_dialog = {one["id"] for one in asked} | (self.asked_in_dialog if had_dialog else set())
        if record.has_dialog or had_dialog:
            self.dialog_at = now
        if record.has_dialog or not asked:
            return set()
        if record != self.record:
            since = record.changed_at or 0.0
        else:
            since = now - LASTING_SECONDS if at - self.recorded_at >= LASTING_SECONDS else 0.0
        over = {one["id"] for one in asked if one.get("agent") is None and one["asked_at"] < since}
        if had_dialog and len(asked) == 1 and self.asked_in_dialog == {asked[0]["id"]}:
            over |= self.asked_in_dialog
        for one in asked:
            limit = SETTLE_SECONDS if one.get("agent") in idle else DIALOG_SECONDS
            if now - max(one["asked_at"], self.dialog_at) >= limit:
                over.add(one["id"])
        return over

    def note_helper(self, data: Mapping[str, Any]) -> None:
        if "team" not in data:
            (self.helpers.add if data.get("status") == "started" else self.helpers.discard)(str(data.get("id")))

    def note_input(self, event: Event) -> None:
        """Remember what was sent."""
        if event.data.get("kind") == "message" and event.data["id"] not in self._typed:
            self._sent.append(_words(str(event.data.get("text") or "")))

    def note_turn(self) -> None:
        """Of a run that is followed again: a turn has begun with what was sent before."""
        self._sent.clear()

    def is_news(self, kind: str, data: Mapping[str, Any]) -> bool:
        """False for input in the transcript that was recorded when it was sent."""
        if kind != "input" or data.get("kind") != "message":
            return True
        if (text := _words(str(data.get("text") or ""))) in self._sent:
            self._sent.remove(text)
            return False
        self._typed.add(str(data["id"]))
        return True

    def lasts(self, session: str, now: float) -> bool:
        """Whether this other session is that of the process for a while already."""
        if self._other is None or self._other[0] != session:
            self._other = session, now
        return now - self._other[1] >= LASTING_SECONDS

    def note_end(self) -> None:
        self.is_ending = True

    def look_later(self, loop: asyncio.AbstractEventLoop, delay: float, look: Callable[[Any], None]) -> None:
        if self.later is not None:
            self.later.cancel()
        self.later = loop.call_later(delay, look, self)

    def cancel_timers(self) -> None:
        for timer in (self.later, self.finish):
            if timer is not None:
                timer.cancel()
