"""Tasks a second time, as plain files beside their attachments, from which a lost database is restored.

``task.json`` has a task with its queue. ``log`` has one line for each change of a hand-off and for each event of the
history. It is only appended to, so a long chain costs no more than a short one.
The files follow the database by a moment and are read by ``restore`` alone. A server writes what the one before it did
not finish.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hocket.model import Event
from hocket.model.task import Handoff, ImportedEvent, Task, TaskStatus, require_task, status_after
from hocket.store import Committed, Queries, Store

log = logging.getLogger("hocket")

FOLDER = ("data", "tasks")
TASK, LOG = "task.json", "log"
MARK = ".written"
"""Holds the sequence number up to which every event is in the files."""
PACE = 0.02
"""Seconds between two tasks that are written late: there may be thousands, and none is urgent."""
CHANGED = "task.changed"
_OWN_FILE = re.compile(r"task\.json|log|\.(task\.json|log)\.new|[0-9a-f]{64}|\.[0-9a-f]{64}\.[0-9a-f]{12}")
"""The files that Hocket writes into the folder of a task, complete or not: only these are removed with it."""

_encoder = msgspec.json.Encoder()
_line = msgspec.json.Decoder(dict[str, Any])


class StoredTask(NamedTuple):
    """A task as read from its files."""

    task: Task
    handoffs: tuple[Handoff, ...]
    history: tuple[ImportedEvent, ...]


class TaskUpdate(NamedTuple):
    """What to write of one task."""

    task: Task
    handoffs: list[Handoff]
    events: list[Event]
    seq: int
    """The last event that the task reflects."""
    is_whole: bool = False
    """True if this is the whole task, so that its log is replaced."""


class TaskFiles:
    """Writes the files of all tasks, in a thread of its own and in the order of the commits."""

    def __init__(self, home: Path, store: Store) -> None:
        self._folder = home.joinpath(*FOLDER)
        self._store = store
        self._thread = ThreadPoolExecutor(1, "hocket-task-files")
        self._missed: set[str] = set()
        """Tasks that could not be written, on a full disk for example."""
        self._caught_up = self._closed = False
        self._seq = 0
        """The last event that was submitted."""

    async def catch_up(self) -> None:
        """Write the changes, and remove the files, that the server before this one did not finish."""
        self._thread.submit(self._remove_left)
        last = self._store.read.last_seq()
        marked = _marked(self._folder, last)
        for name, first in await asyncio.wrap_future(
            self._store.read_aside(lambda read: read.tasks_changed_since(marked))
        ):
            # All earlier events are of tasks that have been submitted.
            self._thread.submit(self._write, [], [name], first - 1)
            await asyncio.sleep(PACE)
        self._seq = max(self._seq, last)
        self._caught_up = True
        self._thread.submit(self._mark, self._seq)

    def note(self, committed: Committed) -> None:
        """Write the changes of tasks in a commit."""
        seq = max([self._seq, *(event.seq for event in committed.events)])
        entries = [self._entry(task, committed, seq) for task in committed.tasks.values()]
        entries = [entry for entry in entries if entry.handoffs or entry.events]
        if entries and not self._closed:
            self._seq = seq
            self._thread.submit(self._write, entries, list(self._missed), self._seq if self._caught_up else 0)

    async def remove(self, name: str) -> None:
        """Remove the files of a task that the database has no more. What is left, the next server removes."""
        if not self._closed:
            await asyncio.wrap_future(self._thread.submit(self._remove, name))

    def _remove_left(self) -> None:
        if self._folder.is_dir():
            removed = self._store.read_aside(lambda read: read.removed_tasks()).result()
            for name in {*os.listdir(self._folder)}.intersection(removed):
                self._remove(name)

    def _remove(self, name: str) -> None:
        self._missed.discard(name)
        try:
            remove_files(self._folder / name)
        except OSError as error:
            log.warning("the files of the removed task %s cannot be removed: %s", name, error)

    def close(self) -> None:
        """Write what is left. The next server adds what is committed from now on."""
        self._closed = True
        if self._caught_up:
            self._thread.submit(self._mark, self._seq)
        self._thread.shutdown(wait=True)

    def _entry(self, task: Task, committed: Committed, seq: int) -> TaskUpdate:
        records = [one for one in committed.handoffs.values() if one.task == task.id]
        begun = [_with_prompt(one, self._store.read) if one.completed_at is None else one for one in records]
        return TaskUpdate(task, begun, [event for event in committed.events if event.run == task.id], seq)

    def _write(self, entries: list[TaskUpdate], whole: Sequence[str], seq: int) -> None:
        """Write entries and whole tasks, in the thread. With a ``seq``, the files are then complete up to that event.

        Whole tasks are read here, after all earlier changes were written.
        """
        for entry in entries:
            self._try(entry.task.id, entry)
        for name in whole:
            self._try(name, None)
        if seq > 0:
            self._mark(seq)

    def _try(self, name: str, entry: TaskUpdate | None) -> None:
        """Write an entry, or the whole task. What fails is written whole next time."""
        try:
            entry = entry or self._store.read_aside(partial(_whole, name)).result()
            _write(self._folder / name, entry)
            if entry.is_whole:
                self._missed.discard(name)
        except Exception as error:  # noqa: BLE001 - no caller waits for this thread: an error that it does not log is lost
            if name not in self._missed:
                log.warning("the files of task %s cannot be written: %s", name, error)
            self._missed.add(name)

    def _mark(self, seq: int) -> None:
        """Write the mark, unless a task is missing: the next server then starts from the last mark."""
        if self._missed or not self._folder.is_dir():
            return
        with suppress(OSError):
            _replace(self._folder / MARK, str(seq).encode())


def _whole(name: str, read: Queries) -> TaskUpdate:
    task = require_task(read.task(name), name)
    records = [_with_prompt(one, read) for one in read.handoffs(name)]
    events = list(read.events_of_type(name, CHANGED))
    return TaskUpdate(task, records, events, max((event.seq for event in events), default=0), is_whole=True)


def _with_prompt(record: Handoff, read: Queries) -> Handoff:
    """Add the prompt, which only the record of its run has."""
    if record.run is None or read.run(record.run) is None:
        return record
    return replace(record, prompt=read.prompt(record.run) or record.prompt)


def _marked(folder: Path, last: int) -> int:
    """Return the mark; 0 if there is none, or if it is that of another database."""
    try:
        marked = int((folder / MARK).read_bytes())
    except (OSError, ValueError):
        return 0
    return marked if marked <= last else 0


# --- Writing ------------------------------------------------------------------------------------------------


def _write(folder: Path, entry: TaskUpdate) -> None:
    """Write the log before the task: a hand-off in the log twice is harmless, one that is missing there is not."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handoffs = [_encoder.encode({"handoff": record}) for record in entry.handoffs]
    events = [_encoder.encode({"ts": event.ts, "seq": event.seq, "told": event.data}) for event in entry.events]
    lines = b"".join(line + b"\n" for line in (*handoffs, *events))
    if entry.is_whole:
        _replace(folder / LOG, lines)
    else:
        with open(folder / LOG, "ab", opener=_open_private) as file:
            file.write(lines)
    _replace(folder / TASK, _encoder.encode({"v": 1, "seq": entry.seq, "task": entry.task}))


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically. It is not flushed: the database is."""
    unfinished = path.with_name(f".{path.name}.new")
    with open(unfinished, "wb", opener=_open_private) as file:
        file.write(content)
    unfinished.replace(path)


def remove_files(folder: Path) -> None:
    """Remove what Hocket wrote of a task, and its folder unless something else is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    # First what makes it a task: if this is cut short, nothing brings back half of it.
    for name in sorted(os.listdir(folder), key=lambda name: name != TASK):
        if _OWN_FILE.fullmatch(name):
            (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# --- Reading ------------------------------------------------------------------------------------------------


def read_all(home: Path) -> tuple[list[StoredTask], int]:
    """Return every task that can be read, in the order of their numbers, and how many cannot.

    A folder with another name than its task is a copy, and may be older than the task itself.
    """
    places = sorted(path.parent for path in home.joinpath(*FOLDER).glob(f"*/{TASK}"))
    found = [_read(place) for place in places]
    own = [one for one, place in zip(found, places, strict=True) if one is not None and one.task.id == place.name]
    stored = sorted(own, key=lambda one: one.task.number)
    return stored, len(found) - len(stored)


def forget_mark(home: Path) -> None:
    """Make the next server write all files again."""
    home.joinpath(*FOLDER, MARK).unlink(missing_ok=True)


def _read(folder: Path) -> StoredTask | None:
    """Read a task, skipping lines of its log that cannot be read."""
    handoffs: dict[str, Handoff] = {}
    history: dict[int, ImportedEvent] = {}
    try:
        written = _line.decode((folder / TASK).read_bytes())
        state, seq = written["task"], written["seq"]
        lines = (folder / LOG).read_bytes().splitlines() if (folder / LOG).exists() else []
        for text in lines:
            try:
                line = _line.decode(text)
                if "handoff" in line:
                    record = msgspec.convert(line["handoff"], Handoff)
                    before = handoffs.get(record.id, record)
                    # Only the first line of a hand-off has its prompt.
                    handoffs[record.id] = replace(record, prompt=record.prompt or before.prompt)
                elif "now" not in line:
                    data = dict(line["told"])
                    history[line["seq"]] = ImportedEvent(line["ts"], data.pop("event"), data)
                elif line["seq"] > seq:
                    state |= line["now"]  # earlier versions wrote changes of the state to the log alone
            except (msgspec.MsgspecError, KeyError, TypeError):
                log.warning("a line of %s cannot be read", folder / LOG)
        task = msgspec.convert(state, Task)
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return None
    chain = sorted(handoffs.values(), key=lambda one: one.number)
    return StoredTask(follow_handoffs(task, chain), tuple(chain), tuple(past for _, past in sorted(history.items())))


def follow_handoffs(task: Task, chain: Sequence[Handoff]) -> Task:
    """Return the task brought up to date with its hand-offs, which are written before it."""
    open_ = [one for one in chain if one.completed_at is None]
    status, message = task.status, task.message
    if not task.is_final and open_:
        status = TaskStatus.ACTIVE
    elif status is TaskStatus.ACTIVE and task.current_agent is not None and not open_:
        last = max(chain, key=lambda one: one.completed_at or 0, default=None)
        status, message = status_after(task, last) if last else (TaskStatus.WAITING, None)
    return replace(
        task,
        status=status,
        message=message,
        current_agent=open_[-1].agent if open_ else None,
        current_since=open_[-1].started_at if open_ else None,
        handoffs=max([task.handoffs, *(one.number for one in chain)]),
    )
