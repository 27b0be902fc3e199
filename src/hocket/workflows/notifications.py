"""Notifications: runs the user's own command when a run needs an answer, a run fails, or a chain ends.

At most once for each: the number of the event is on the disk before its command starts, and the next server goes on
behind it. What happened while no server ran is made up for, unless it was long ago.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hocket import config
from hocket.config.loading import load
from hocket.errors import HocketError
from hocket.model import Event, Kind, Run, Status
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import Journal
from hocket.sessions.messages import Messages
from hocket.sessions.run_identity import new_id
from hocket.store import Committed
from hocket.views.event_text import reply_command, shorten, text_of, tool_summary, wants_text
from hocket.views.names import agent_name
from hocket.views.text import one_line
from hocket.workflows.gates import Gates

TIMEOUT = 30.0
AT_ONCE = 4
MOST_WAITING = 100
OLDEST = 24 * 3600.0
"""Seconds after which an event that happened while no server ran is not reported any more."""
CURSOR = "notified"
"""The file with the number of the last event whose command was started."""
DISABLED = "no-notifications"
"""A home with this file reports nothing: that of a rehearsal has the user's configuration."""
_TEXT_LIMIT = 1000

log = logging.getLogger("hocket")


class Notifications:
    """The outcome of a notification command never affects a run. One per server."""

    def __init__(self, home: Path, journal: Journal, messages: Messages) -> None:
        self._home = home
        self._journal = journal
        self._messages = messages
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._arrived = asyncio.Event()
        self._commands = Gates()
        self._tasks = BackgroundTasks()
        self._closed = False

    def open(self) -> None:
        if (self._home / DISABLED).exists():
            return
        last = self._journal.read.last_seq()
        self._journal.listen(self._on_commit)
        self._tasks.spawn(self._work(last))

    async def close(self) -> None:
        """End the commands that run; what waits is left to the next server."""
        self._closed = True
        await self._commands.close()
        await self._tasks.close()

    def _on_commit(self, committed: Committed) -> None:
        self._add(event for event in committed.events if _may_matter(event))

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(event)
            else:
                self._dropped += 1
        if self._waiting:
            self._arrived.set()

    async def _work(self, last: int) -> None:
        await self._catch_up(last)
        for _ in range(AT_ONCE - 1):
            self._tasks.spawn(self._report_all())
        await self._report_all()

    async def _catch_up(self, last: int) -> None:
        """Put what the earlier server did not report before everything newer."""
        cursor = self._read_cursor()
        if cursor is None or cursor >= last:
            self._write_cursor(last)  # A lost database, or a power cut, made the numbers begin earlier again.
            return
        try:
            found = await self._journal.read_aside(lambda read: read.events_after(cursor, "question", "run.ended"))
        except HocketError as error:
            log.warning("what happened while no server ran is not reported: %s", error.message)
            return
        missed = [event for event in found if event.seq <= last and _may_matter(event)]
        recent = [event for event in missed if time.time() - event.ts < OLDEST]
        self._dropped += len(missed) - len(recent)
        since, self._waiting = self._waiting, deque()
        self._add((*recent, *since))

    async def _report_all(self) -> None:
        while not self._closed:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            event = self._waiting.popleft()
            self._write_cursor(event.seq)
            try:
                await self._report(event)
            except Exception:
                log.exception("a notification about run %s failed", event.run)

    async def _report(self, event: Event) -> None:
        run = self._journal.run(event.run)
        content = self._content(event, run) if run is not None else None
        if run is None or content is None:
            return
        try:
            command = await asyncio.to_thread(configured_command, str(self._home))
        except HocketError as error:
            log.warning("notification about run %d failed: %s", run.number, error.message)
            return
        dropped, self._dropped = self._dropped, 0
        if not command:
            return
        if dropped:
            log.warning(
                "%d notifications were dropped: older than a day, or behind %d that waited", dropped, MOST_WAITING
            )
        home, env = str(self._home), command_environment(str(self._home))
        done = await self._commands.run(new_id(), command, home, env, TIMEOUT, encoded(content))
        if done is not None and not done.passed:
            why = f"no end within {TIMEOUT:.0f} s" if done.timed_out else f"exit code {done.code}"
            said = one_line(done.output[-_TEXT_LIMIT:]) or "no output"
            log.warning("notification about run %d failed: %s: %s: %s", run.number, command[0], why, said)

    def _content(self, event: Event, run: Run) -> dict[str, Any] | None:
        """What the command gets; None if there is nothing to report, or nothing any more."""
        if event.type == "run.ended":
            return end_content(event, run)
        asked = next((one for one in run.open_questions if one["id"] == event.data["id"]), None)
        if asked is None or self._messages.on_question(run) != "ask":
            return None
        return question_content(run, asked)

    def _read_cursor(self) -> int | None:
        try:
            return int((self._home / CURSOR).read_text())
        except (OSError, ValueError):
            return None

    def _write_cursor(self, seq: int) -> None:
        """In place, which needs no further room on a full disk."""
        with suppress(OSError):
            descriptor = os.open(self._home / CURSOR, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(descriptor, b"%020d\n" % seq, 0)
            finally:
                os.close(descriptor)


def _may_matter(event: Event) -> bool:
    return event.type == "question" or (event.type == "run.ended" and event.run == event.root)


# --- The command --------------------------------------------------------------------------------------------


def configured_command(home: str) -> tuple[str, ...]:
    """The user's command and its arguments; empty if there is none. Read anew each time: a change counts at once."""
    return load(home, home).notify


def command_environment(home: str) -> dict[str, str]:
    """That of this process, without what may be left in it of a run."""
    own = config.process_environment()
    return {name: value for name, value in own.items() if not name.startswith("HOCKET_")} | {"HOCKET_HOME": home}


# --- The event ----------------------------------------------------------------------------------------------


def encoded(content: Mapping[str, Any]) -> bytes:
    """One line of JSON. It is ASCII, so that it cannot control a terminal."""
    return json.dumps(content).encode() + b"\n"


def end_content(event: Event, run: Run) -> dict[str, Any] | None:
    """What is reported of the end of a root run; None for a single agent that succeeded or was stopped.

    Of a session that is only observed nothing tells how its work ended.
    """
    has_failed = run.status in (Status.FAILED, Status.LOST) and not run.is_observed
    if not has_failed and run.has_process:
        return None
    said = None
    if run.status is not Status.STOPPED:  # the reason of a stop says no more
        said = text_of({"type": event.type, "ts": event.ts, "data": dict(event.data)})
    return _content("failed" if has_failed else "ended", run, said or run.status, f"hocket show {run.number}")


def question_content(run: Run, question: Mapping[str, Any]) -> dict[str, Any]:
    """What is reported of an open question."""
    asked, text = dict(question), one_line(str(question.get("text") or ""))
    if wants_text(asked):
        said = f"asks: {text}"
    elif asked.get("tool"):
        said = f"wants to run {tool_summary(str(asked['tool']), asked.get('input'))}"
    else:
        said = f"asks for permission: {text}"
    shown = {name: asked.get(name) for name in ("id", "kind", "tool", "options")} | {"text": text}
    command = reply_command(asked, run.number, len(run.open_questions) > 1)
    return {**_content("question", run, said, command), "question": shown}


def _content(event: str, run: Run, said: str, command: str) -> dict[str, Any]:
    return {
        "event": event,
        "run": run.id,
        "number": run.number,
        "root": run.root,
        "agent": run.agent,
        "cwd": run.cwd,
        "status": run.status,
        "reason": run.reason,
        "text": shorten(f"{agent_name(run.agent)} {one_line(said)}", _TEXT_LIMIT),
        "command": command,
    }


def example_content() -> dict[str, Any]:
    """A question as a run would ask it."""
    asked = {"id": "q1", "kind": "permission", "tool": "Bash", "input": {"command": "make test"}, "options": []}
    run = Run("r0test", 1, Kind.LEAF, "example", "claude", None, "r0test", 0, "/", 0.0, status=Status.WAITING)
    return question_content(run, asked)
