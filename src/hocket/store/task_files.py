"""Tasks a second time, as plain files beside their attachments, from which a lost database is restored.

``task.json`` has a task with its queue. ``log`` has one line for each change of a hand-off, for each event of the
history and for each change of the task's state. It is only appended to, so a long chain costs no more than a short one.
The files follow the database by a moment and are read by ``restore`` alone. A server writes what the one before it did
not finish.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hocket.model import Event
from hocket.model.task import COMPLETED, STARTED, STATUS, Handoff, Past, Task, TaskStatus, require_task
from hocket.store import Committed, Queries, Store

log = logging.getLogger("hocket")

FOLDER = ("data", "tasks")
TASK, LOG = "task.json", "log"
MARK = ".written"
"""Holds the sequence number up to which every event is in the files."""
MARK_EVERY = 64
"""Changes between two marks. After a kill of the server at most as many are written again."""
PACE = 0.02
"""Seconds between two tasks that are written late: there may be thousands, and none is urgent."""
CHANGED = "task.changed"
_PASSING = (STARTED, COMPLETED, STATUS)
_STANDING = ("status", "message", "current_agent", "current_since", "handoffs", "updated_at")
"""What of a task is another by these, and nothing else."""

_encoder = msgspec.json.Encoder()
_line = msgspec.json.Decoder(dict[str, Any])


class Kept(NamedTuple):
    """A task as read from its files."""

    task: Task
    handoffs: tuple[Handoff, ...]
    history: tuple[Past, ...]


class Entry(NamedTuple):
    """What to write of one task."""

    task: Task
    handoffs: list[Handoff]
    events: list[Event]
    anew: bool = False
    """Whether this is the whole task, so that its log is replaced."""

    @property
    def is_news(self) -> bool:
        return bool(self.handoffs or self.events)

    @property
    def is_whole(self) -> bool:
        """Whether more has changed than the state of the task, so that ``task.json`` is written too."""
        return self.anew or not self.events or any(event.data["event"] not in _PASSING for event in self.events)

    @property
    def seq(self) -> int:
        return max((event.seq for event in self.events), default=0)


class TaskFiles:
    """Writes the files of all tasks, in a thread of its own and in the order of the commits."""

    def __init__(self, home: Path, store: Store) -> None:
        self._folder = home.joinpath(*FOLDER)
        self._store = store
        self._thread = ThreadPoolExecutor(1, "hocket-task-files")
        self._missed: set[str] = set()
        """Tasks that could not be written, on a full disk for example."""
        self._caught_up = self._closed = False
        self._seq = self._unmarked = 0
        """The last event that was submitted, and how many tasks were written since the last mark."""

    async def catch_up(self) -> None:
        """Write the changes that the server before this one did not finish."""
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
        entries = [entry for task in committed.tasks.values() if (entry := self._entry(task, committed)).is_news]
        if entries and not self._closed:
            self._seq = max([self._seq, *(event.seq for event in committed.events)])
            self._thread.submit(self._write, entries, list(self._missed), self._seq if self._caught_up else 0)

    def close(self) -> None:
        """Write what is left. The next server adds what is committed from now on."""
        self._closed = True
        if self._caught_up:
            self._thread.submit(self._mark, self._seq)
        self._thread.shutdown(wait=True)

    def _entry(self, task: Task, committed: Committed) -> Entry:
        records = [one for one in committed.handoffs.values() if one.task == task.id]
        begun = [_with_prompt(one, self._store.read) if one.completed_at is None else one for one in records]
        return Entry(task, begun, [event for event in committed.events if event.run == task.id])

    def _write(self, entries: list[Entry], anew: Sequence[str], seq: int) -> None:
        """Write entries and whole tasks, in the thread. With a ``seq``, the files are then complete up to that event.

        Whole tasks are read here, after all earlier changes were written.
        """
        for entry in entries:
            self._try(entry.task.id, entry)
        for name in anew:
            self._try(name, None)
        self._unmarked += len(entries) + len(anew)
        if seq > 0 and self._unmarked >= MARK_EVERY:
            self._mark(seq)

    def _try(self, name: str, entry: Entry | None) -> None:
        """Write an entry, or the whole task. What fails is written whole next time."""
        try:
            entry = entry or self._store.read_aside(partial(_whole, name)).result()
            _write(f"{self._folder}/{name}", entry)
            if entry.anew:
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
            _replace(str(self._folder), MARK, str(seq).encode())
            self._unmarked = 0


def _whole(name: str, read: Queries) -> Entry:
    task = require_task(read.task(name), name)
    records = [_with_prompt(one, read) for one in read.handoffs(name)]
    return Entry(task, records, list(read.events_of_type(name, CHANGED)), anew=True)


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


def _write(place: str, entry: Entry) -> None:
    """Write the log before the task: a hand-off in the log twice is harmless, one that is missing there is not."""
    lines = b"".join(_lines(entry))
    try:
        _add(place, lines, entry.anew)
    except FileNotFoundError:
        os.makedirs(place, mode=0o700, exist_ok=True)
        _add(place, lines, entry.anew)
    if entry.is_whole:
        _replace(place, TASK, _encoder.encode({"v": 1, "seq": entry.seq, "task": entry.task}))


def _add(place: str, lines: bytes, anew: bool) -> None:
    if anew:
        _replace(place, LOG, lines)
    else:
        _put(f"{place}/{LOG}", lines, os.O_APPEND)


def _replace(place: str, name: str, content: bytes) -> None:
    """Replace a file atomically. It is not flushed: the database is."""
    unfinished = f"{place}/.{name}.new"
    _put(unfinished, content, os.O_TRUNC)
    os.rename(unfinished, f"{place}/{name}")


def _put(path: str, content: bytes, how: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def _lines(entry: Entry) -> Iterator[bytes]:
    if not entry.is_whole:
        yield (
            _encoder.encode({"seq": entry.seq, "now": {name: getattr(entry.task, name) for name in _STANDING}}) + b"\n"
        )
    for record in entry.handoffs:
        yield _encoder.encode({"handoff": record}) + b"\n"
    for event in entry.events:
        yield _encoder.encode({"ts": event.ts, "seq": event.seq, "told": event.data}) + b"\n"


# --- Queries ------------------------------------------------------------------------------------------------


def read_all(home: Path) -> tuple[list[Kept], int]:
    """Return every task that can be read, in the order of their numbers, and how many cannot.

    A folder with another name than its task is a copy, and may be older than the task itself.
    """
    places = sorted(path.parent for path in home.joinpath(*FOLDER).glob(f"*/{TASK}"))
    found = [_read(place) for place in places]
    own = [one for one, place in zip(found, places, strict=True) if one is not None and one.task.id == place.name]
    kept = sorted(own, key=lambda one: one.task.number)
    return kept, len(found) - len(kept)


def forget_mark(home: Path) -> None:
    """Make the next server write all files again."""
    home.joinpath(*FOLDER, MARK).unlink(missing_ok=True)


class _Log:
    """The content of a log."""

    def __init__(self) -> None:
        self.handoffs: dict[str, Handoff] = {}
        self.history: dict[int, Past] = {}
        self.standing: list[tuple[int, dict[str, Any]]] = []

    def add(self, line: dict[str, Any]) -> None:
        if "handoff" in line:
            record = msgspec.convert(line["handoff"], Handoff)
            before = self.handoffs.get(record.id, record)
            # Only the first line of a hand-off has its prompt.
            self.handoffs[record.id] = replace(record, prompt=record.prompt or before.prompt)
        elif "now" in line:
            self.standing.append((line["seq"], line["now"]))
        else:
            told = dict(line["told"])
            self.history[line["seq"]] = Past(line["ts"], told.pop("event"), told)


def _read(place: Path) -> Kept | None:
    try:
        written = _line.decode((place / TASK).read_bytes())
        found = _log_of(place / LOG)
        newer = [state for seq, state in found.standing if seq > written["seq"]]
        task = msgspec.convert(written["task"] | (newer[-1] if newer else {}), Task)
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return None
    chain = sorted(found.handoffs.values(), key=lambda one: one.number)
    return Kept(told_by(task, chain), tuple(chain), tuple(past for _, past in sorted(found.history.items())))


def _log_of(path: Path) -> _Log:
    """Read a log, skipping lines that cannot be read."""
    found = _Log()
    for text in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.add(_line.decode(text))
        except (msgspec.MsgspecError, KeyError, TypeError):
            log.warning("a line of %s cannot be read", path)
    return found


def told_by(task: Task, chain: Sequence[Handoff]) -> Task:
    """Return the task brought up to date with its hand-offs, which are written before it."""
    open_ = [one for one in chain if one.completed_at is None]
    status = task.status
    if not status.is_over and open_:
        status = TaskStatus.ACTIVE
    elif status is TaskStatus.ACTIVE and task.current_agent is not None and not open_:
        status = TaskStatus.WAITING
    return replace(
        task,
        status=status,
        current_agent=open_[-1].agent if open_ else None,
        current_since=open_[-1].started_at if open_ else None,
        handoffs=max([task.handoffs, *(one.number for one in chain)]),
    )
