"""The values of secret variables of everything that is live: in memory, and in files that a restart finds.

A file is on the disk before the first run of its tree exists, and is removed when the last run of the tree has ended.
That a server may be killed in between is seen to at the start: what belongs to nothing live is removed then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from hocket import secret_files
from hocket.errors import DiskLow, StoreError
from hocket.model import Run
from hocket.model.task import REFUSED, UNQUEUED, TaskStatus
from hocket.secret_files import Values
from hocket.sessions.journal import Journal
from hocket.store import Committed

log = logging.getLogger("hocket")


class SecretStore:
    """Holds the values of secret variables by owner. One per server.

    An owner is the root of a tree of runs, or an item of a task's queue.
    """

    def __init__(self, home: Path, journal: Journal) -> None:
        self._folder = home / secret_files.FOLDER
        self._journal = journal
        self._values: dict[str, Values] = {}
        self._holds: Counter[str] = Counter()
        """Owners that are being created: nothing live needs their values yet."""
        self._writing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "hocket-secrets")
        self._closed = False

    def open(self) -> None:
        """Read the values of all that is live, and remove those of all that is not."""
        self._journal.listen(self._on_commit)
        self._thread.submit(int)  # Its thread exists from now on: later there might be no room for one.
        needed = {*self._live_roots(), *self._queued_items()}
        try:
            for owner in secret_files.owners(self._folder):
                if owner in needed:
                    self._values[owner] = self._read(owner)
                else:
                    self._remove(owner)
        except OSError as error:
            log.warning("the secrets in %s cannot be read: %s", self._folder, error)

    def close(self) -> None:
        """What ends from now on has its file removed by the next server."""
        self._closed = True
        self._thread.shutdown(wait=True)

    @asynccontextmanager
    async def holding(self, owner: str, environments: Iterable[Mapping[str, str]]) -> AsyncIterator[None]:
        """Have the secrets of these environments on the disk for what is created meanwhile; without it they go again.

        Raise DiskLow or StoreError if they cannot be written.
        """
        self._holds[owner] += 1
        try:
            await self._add(owner, environments)
            yield
        finally:
            self._holds -= Counter([owner])  # This also forgets who has none left.
            self.release(owner)

    async def _add(self, owner: str, environments: Iterable[Mapping[str, str]]) -> None:
        async with self._writing:  # One after the other: each adds to what the one before has written.
            before = self._values.get(owner, {})
            after = secret_files.with_added(before, environments)
            if after == before:
                return
            # Known before it is written: after a cancellation here the file is removed by `release`.
            self._values[owner] = after
            write = partial(secret_files.write_values, self._folder, owner, after)
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, write)
            except OSError as error:
                self._values[owner] = before
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskLow(
                        "the disk is full: the secrets of this start cannot be written", "Free some space"
                    ) from error
                trouble = f"the secrets of this start cannot be written to {self._folder}: {error.strerror}"
                raise StoreError(trouble, "Nothing was started") from error

    def values(self, owner: str) -> dict[str, str]:
        """The first value of each of an owner's secret variables. An item of a queue has no others."""
        return {name: known[0] for name, known in self._values.get(owner, {}).items()}

    def references(self, owner: str, env: Mapping[str, str]) -> dict[str, int]:
        """The secret variables of an environment, each with the position of its value in the owner's file."""
        return secret_files.references(env, self._values.get(owner, {}))

    def conceal(self, owner: str, record: bytes) -> bytes:
        """The record of a run as it is stored: with names instead of values."""
        return secret_files.conceal(record, self._values.get(owner, {}))

    def record(self, run: Run) -> bytes:
        """What a run was started with, including the values of its secret variables while its tree is live."""
        known = self._values.get(run.root, {})

        def value_of(name: str, position: int) -> str | None:
            values = known.get(name, ())
            return values[position] if position < len(values) else None

        return secret_files.reveal(self._journal.read.spec(run.id), value_of)

    def environment(self, run: Run) -> dict[str, str]:
        """The environment that a run was started with, before Hocket's additions."""
        env: dict[str, str] = msgspec.json.decode(self.record(run))["env"]
        return env

    def release(self, owner: str) -> None:
        """Remove an owner's values, unless something needs them still."""
        if self._closed or owner not in self._values or self._holds[owner] or self._is_needed(owner):
            return
        del self._values[owner]
        self._thread.submit(self._remove, owner)

    def _on_commit(self, committed: Committed) -> None:
        if not self._values:
            return
        for run in committed.runs.values():
            if run.ended:
                self.release(run.root)
        for event in committed.events:
            if event.type == "task.changed" and event.data.get("event") in (UNQUEUED, REFUSED):
                self.release(event.data["id"])
        finished = (task for task in committed.tasks.values() if task.status is TaskStatus.COMPLETED)
        for task in (*finished, *committed.removed.values()):
            for item in task.queue:
                self.release(item.id)

    def _is_needed(self, owner: str) -> bool:
        return owner in self._live_roots() or (owner.startswith("q") and owner in self._queued_items())

    def _live_roots(self) -> Iterator[str]:
        return (run.root for run in self._journal.live.values())

    def _queued_items(self) -> Iterator[str]:
        """Of tasks that may still come to them: a completed one never does."""
        tasks = self._journal.read.queued_tasks()
        return (item.id for task in tasks if task.status is not TaskStatus.COMPLETED for item in task.queue)

    def _read(self, owner: str) -> Values:
        try:
            return secret_files.read_values(self._folder, owner)
        except (OSError, ValueError) as error:
            log.warning("the secrets of %s cannot be read; it continues without them: %s", owner, error)
            return {}

    def _remove(self, owner: str) -> None:
        try:
            secret_files.remove_values(self._folder, owner)
        except OSError as error:
            log.warning("the secrets of %s cannot be removed: %s", owner, error)
