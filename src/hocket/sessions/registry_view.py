"""Keeps the registry files of projects in step with the store: a view that other programs read.

What is committed is written a moment later, off the event loop; changes that come meanwhile are written together. The
entry of a run is in its file before its process starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hocket.errors import HocketError
from hocket.keeper import files
from hocket.model import Run
from hocket.registry import registry_file
from hocket.registry.entries import Entry, entry_of
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import Journal, run_event
from hocket.store import Committed

T = TypeVar("T")

USED = "registries.json"
"""In HOCKET_HOME: the registry files that may have entries in progress."""
RETRY_AFTER = 5.0
"""Seconds until a file that could not be written is tried again."""
THREADS = 2

log = logging.getLogger("hocket")


class _File:
    """What is known of one registry file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        """Of live runs, as last committed, and of ended ones until they are written."""
        self.changed: set[str] = set()
        """The runs whose entries are not in the file yet."""
        self.writing: frozenset[str] = frozenset()
        """The runs whose entries are being written."""
        self.is_busy = False
        self.written = asyncio.Event()
        """Set and replaced after each attempt to write it."""
        self.problem: str | None = None
        """Why the last attempt failed; reported once."""


class RegistryView:
    """All registry files of this server. One per server."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self._home = str(home)
        self._journal = journal
        self._files: dict[str, _File] = {}
        self._used: set[str] = set()
        self._using = asyncio.Lock()
        self._tasks = BackgroundTasks()
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, "hocket-registry")
        self._closing = False

    def open(self) -> None:
        """Listen to the journal, and correct what an earlier server left."""
        self._journal.listen(self._on_commit)
        for run in self._journal.live.values():
            self._note(run)
        self._used = set(_used_before(self._home))
        if self._used:
            self._tasks.spawn(self._reconcile(sorted(self._used)))

    async def close(self) -> None:
        """Write what is left and release everything."""
        self._closing = True
        for timer in self._retries.values():
            timer.cancel()
        for file in self._files.values():
            while file.is_busy:
                await file.written.wait()
        await self._tasks.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def written(self, run: Run) -> None:
        """Wait until the entry of a run is in its file, or could not be written."""
        file = self._files.get(run.registry or "")
        while file is not None and (run.id in file.changed or run.id in file.writing):
            await file.written.wait()
            if file.problem is not None:
                return

    def _on_commit(self, committed: Committed) -> None:
        for run in committed.runs.values():
            self._note(run)

    def _note(self, run: Run) -> None:
        """Have the entry of a run written if it has one and has changed."""
        if run.registry is None or not run.has_process or run.teammate is not None:
            return
        file = self._files.setdefault(run.registry, _File(run.registry))
        parent = next((above for above in self._journal.above(run)[1:] if above.has_process), None)
        entry = entry_of(run, parent, self._home)
        if file.entries.get(run.id) == entry:
            return
        self._put(file, run.id, entry)
        for child in [name for name, one in file.entries.items() if one.parent_id == run.id]:
            if (live := self._journal.live.get(child)) is not None:
                self._put(file, child, entry_of(live, run, self._home))

    def _put(self, file: _File, run_id: str, entry: Entry) -> None:
        if file.entries.get(run_id) == entry:
            return
        file.entries[run_id] = entry
        file.changed.add(run_id)
        self._begin(file)

    def _begin(self, file: _File) -> None:
        if file.changed and not file.is_busy and not self._closing:
            file.is_busy = True
            self._tasks.spawn(self._write(file))

    # Writing

    async def _write(self, file: _File) -> None:
        """Write until nothing is left to write, or it fails."""
        try:
            while file.changed and await self._write_changes(file):
                pass
        finally:
            file.is_busy = False
            _wake(file)

    async def _write_changes(self, file: _File) -> bool:
        """Write what has changed so far; True if it was written."""
        batch = {run: file.entries[run] for run in file.changed}
        file.writing = frozenset(batch)
        file.changed.clear()
        try:
            await self._use(file.path)
            notices = await self._in_thread(registry_file.update, file.path, batch)
        except (HocketError, OSError) as error:
            file.changed |= batch.keys()
            self._failed(file, error)
            return False
        finally:
            file.writing = frozenset()
        file.problem = None
        for run, entry in batch.items():
            if entry.has_ended and run not in file.changed:
                del file.entries[run]
        for text in notices:
            self._report(file, text)
        _wake(file)
        return True

    async def _use(self, path: str) -> None:
        """Remember, across servers, that a file may have entries in progress."""
        async with self._using:
            if path not in self._used:
                self._used.add(path)
                await self._in_thread(_record_used, self._home, sorted(self._used))

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        return await self._loop.run_in_executor(self._threads, partial(work, *given))

    def _failed(self, file: _File, error: HocketError | OSError) -> None:
        """Report why a file cannot be written, once, and try again later."""
        text = f"the registry file {file.path} is not written: {error}"
        text += f"; {error.hint}" if isinstance(error, HocketError) and error.hint else ""
        if text != file.problem:
            file.problem = text
            self._report(file, text)
        if not self._closing:
            if (earlier := self._retries.get(file.path)) is not None:
                earlier.cancel()
            self._retries[file.path] = self._loop.call_later(RETRY_AFTER, self._retry, file)

    def _retry(self, file: _File) -> None:
        del self._retries[file.path]
        self._begin(file)

    def _report(self, file: _File, text: str) -> None:
        """Leave a notice with the newest live run of a file."""
        log.warning("%s", text)
        live = [run for name in file.entries if (run := self._journal.live.get(name)) is not None]
        if live:
            run = max(live, key=lambda one: one.number)
            self._tasks.spawn(self._leave_notice(run, text))

    async def _leave_notice(self, run: Run, text: str) -> None:
        await self._journal.insist([run_event(run, "notice", {"kind": "registry", "text": text})])

    # Reconciling

    async def _reconcile(self, left: list[str]) -> None:
        """Correct the entries of runs that ended when no server could write it."""
        for path in left:
            try:
                found = await self._in_thread(registry_file.unfinished, path, self._home)
            except (HocketError, OSError) as error:
                log.warning("the registry file %s is not reconciled: %s", path, error)
                continue
            for run_id, interrupted in found.items():
                run = self._journal.run(run_id)
                if run is None:
                    self._put(self._files.setdefault(path, _File(path)), run_id, interrupted)
                elif run.ended:
                    self._note(run)
        async with self._using:
            self._used = set(self._files)
            await self._in_thread(_record_used, self._home, sorted(self._used))


def _wake(file: _File) -> None:
    """Let those proceed that wait for an attempt to write a file."""
    file.written.set()
    file.written = asyncio.Event()


def _used_before(home: str) -> list[str]:
    try:
        used = json.loads(files.read_regular(f"{home}/{USED}", registry_file.MAX_BYTES) or b"[]")
    except ValueError:
        return []
    return [path for path in used if isinstance(path, str)] if isinstance(used, list) else []


def _record_used(home: str, paths: list[str]) -> None:
    files.replace(home, USED, json.dumps(paths).encode() + b"\n")
