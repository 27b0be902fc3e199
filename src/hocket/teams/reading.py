"""Reads the files of one lead's team: never for the event loop. Only regular files, of limited size, behind no link.

Half-written files keep what was read of them last. A file is read again when its inode, time or size has changed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from hocket.keeper import files
from hocket.providers.base import Provider, TeamConfig, TeamFolders, Teams, TranscriptFiles
from hocket.teams.state import Data, Mask, message_data, task_data

T = TypeVar("T")

CONFIG, INBOXES, TASKS, TRANSCRIPTS = PARTS = ("config", "inboxes", "tasks", "transcripts")
"""What can be looked at by itself."""
_FILE_LIMIT = 16 * 1024 * 1024
_ABOUT_LIMIT = 64 * 1024
_MOST_FILES = 20_000
_LARGE = 500
"""Files from which on a folder is not looked through without a reason."""
_MOST_TEAMS = 2_000
_UNSETTLED = 0.05
"""Seconds after a change in which another one may leave the same time."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Look(NamedTuple):
    """What a look at the files has found. None, except for the team: that was not looked at, or cannot be read now."""

    team: str | None
    """The name of the team; the last one as long as there is no other."""
    config: TeamConfig | None
    messages: list[Data] | None
    tasks: Mapping[str, Data | None] | None
    """By id; None for one that cannot be read now."""
    transcripts: Mapping[str, list[str]] | None
    """By the id of a teammate, the oldest first."""


_Stamp = tuple[int, int, int]
_UNKNOWN: tuple[_Stamp | None, Any] = (None, None)


class _Cache:
    """Files of one kind with what was read of them, by their names."""

    def __init__(self, limit: int = _FILE_LIMIT) -> None:
        self._limit = limit
        self._known: dict[str, tuple[_Stamp | None, Any]] = {}

    def value(
        self, folder: int, file: str, status: os.stat_result, name: str, read: Callable[[str, bytes], T | None]
    ) -> T | None:
        """What is in a file, which is what this name says; what was in it last if that cannot be told now."""
        stamp, value = self._known.get(name, _UNKNOWN)
        now = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == now:
            return value  # type: ignore[no-any-return]
        content = _content(folder, file, self._limit)
        fresh = read(name, content) if content is not None else None
        value = value if fresh is None else fresh
        is_settled = not 0 <= time.time() - status.st_mtime < _UNSETTLED
        self._known[name] = (now if is_settled and fresh is not None else None, value)
        return value

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, names: Collection[str]) -> None:
        """Forget all other files."""
        for name in self._known.keys() - names:
            del self._known[name]


def _content(folder: int, name: str, limit: int) -> bytes | None:
    try:
        return files.read_regular(name, limit, folder=folder)
    except OSError:
        return None


class TeamFiles:
    """The files of the team that a process leads, which may have had several sessions."""

    def __init__(self, provider: Provider, teams: Teams, folders: TeamFolders, mask: Mask) -> None:
        self._teams = teams
        self.folders = folders
        self._mask = mask
        self._transcript_files = provider.sessions.transcript_files if provider.sessions is not None else None
        self.team: str | None = None
        self.session: str | None = None
        """The session that the configuration of the team names."""
        self._configs, self._inboxes, self._tasks = _Cache(), _Cache(), _Cache()
        self._abouts = _Cache(_ABOUT_LIMIT)
        self._record_of = lru_cache(_MOST_FILES)(teams.record_of)
        self._tasks_changed = 0
        """When something came into the folder of tasks last, or left it."""

    def look(
        self, sessions: Sequence[str], transcript: str | None, parts: Collection[str], *, thorough: bool = True
    ) -> Look:
        """Look at some parts of the team of one of these sessions.

        Without ``thorough``, a large folder in which nothing came or went is left out.
        """
        config = self._config_of(sessions) if CONFIG in parts or self.team is None else None
        messages = self._messages(self.team) if INBOXES in parts and self.team else None
        tasks = self._shared_tasks(self.team, thorough=thorough) if TASKS in parts and self.team else None
        read = self._transcript_files
        found = _transcripts(read, transcript, self._abouts) if TRANSCRIPTS in parts and read and transcript else None
        return Look(self.team, config, messages, tasks, found)

    def places(self, transcript: str | None) -> dict[str, tuple[str, ...]]:
        """The folders in which something of the team changes, each with the parts that it belongs to."""
        found: dict[str, tuple[str, ...]] = {self.folders.teams: (CONFIG,)}
        if self.team is not None:
            team = os.path.join(self.folders.teams, self.team)
            found[team] = (CONFIG, INBOXES)
            found[os.path.join(team, self._teams.inboxes)] = (INBOXES,)
            found[os.path.join(self.folders.tasks, self.team)] = (TASKS,)
        if transcript is not None and self._transcript_files is not None:
            found[self._transcript_files.helper_folder(transcript)] = (TRANSCRIPTS,)
        return found

    # --- Configurations ---

    def _config_of(self, sessions: Sequence[str]) -> TeamConfig | None:
        """The configuration of the sessions' team, which is the current one from now on."""
        with _opened(self.folders.teams) as folder:
            if folder is None:
                return None
            for name in self._names(folder, sessions):
                config = self._config(folder, name)
                if config is not None and config.session in sessions:
                    self.session = config.session
                    if name != self.team:
                        self.team, self._inboxes, self._tasks = name, _Cache(), _Cache()
                    return config
        return None

    def _names(self, folder: int, sessions: Sequence[str]) -> Iterator[str]:
        """The folders that may be that of the sessions' team, most likely first."""
        likely = dict.fromkeys(filter(None, (self.team, *map(self._teams.first_name, sessions))))
        yield from filter(self._teams.is_name, likely)
        names = [name for name in _names_in(folder)[:_MOST_TEAMS] if self._teams.is_name(name)]
        self._configs.keep(names)
        yield from (name for name in names if name not in likely)

    def _config(self, folder: int, name: str) -> TeamConfig | None:
        file = self._teams.config_file
        with _opened(name, folder=folder) as team:
            if team is None or (status := _status(file, team)) is None:
                return None
            return self._configs.value(team, file, status, name, self._teams.config)

    # --- Messages and tasks ---

    def _messages(self, team: str) -> list[Data] | None:
        with _opened(self.folders.teams, team, self._teams.inboxes) as folder:
            found = self._records(folder, self._inboxes, self._inbox) if folder is not None else None
        return None if found is None else [data for inbox in found.values() for data in inbox or ()]

    def _inbox(self, recipient: str, content: bytes) -> list[Data] | None:
        found, team = self._teams.inbox(recipient, content), self.team or ""
        return None if found is None else [message_data(team, one, self._mask) for one in found]

    def _shared_tasks(self, team: str, *, thorough: bool) -> Mapping[str, Data | None] | None:
        """Empty if there is no folder of them any more."""
        with _opened(self.folders.tasks, team) as folder:
            if folder is not None:
                changed, self._tasks_changed = self._tasks_changed, os.fstat(folder).st_mtime_ns
                if not thorough and len(self._tasks) > _LARGE and changed == self._tasks_changed:
                    return None
                return self._records(folder, self._tasks, self._task)
        return {} if not os.path.lexists(os.path.join(self.folders.tasks, team)) else None

    def _task(self, identity: str, content: bytes) -> Data | None:
        found = self._teams.task(identity, content)
        return None if found is None else task_data(self.team or "", found, self._mask)

    def _records(
        self, folder: int, cache: _Cache, read: Callable[[str, bytes], T | None]
    ) -> Mapping[str, T | None] | None:
        """What is in the files of a folder, by what they are."""
        found: dict[str, T | None] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, _MOST_FILES):
                    name = self._record_of(entry.name)
                    if name is not None and (status := _entry_status(entry)) is not None:
                        found[name] = cache.value(folder, entry.name, status, name, read)
        except OSError:
            return None
        cache.keep(found.keys())
        return found


# --- Transcripts --------------------------------------------------------------------------------------------


def _transcripts(read: TranscriptFiles, transcript: str, cache: _Cache) -> dict[str, list[str]]:
    """The transcripts of teammates beside that of their lead."""
    path = read.helper_folder(transcript)
    found: dict[str, list[tuple[float, str]]] = {}
    with _opened(path) as folder:
        if folder is None:
            return {}
        for name in _names_in(folder)[:_MOST_FILES]:
            about, status = read.about(name), _status(name, folder)
            if about is None or status is None or (of_about := _status(about, folder)) is None:
                continue
            helper = cache.value(folder, about, of_about, name, read.helper)
            if helper is not None and helper.teammate:
                found.setdefault(helper.teammate, []).append((status.st_mtime, os.path.join(path, name)))
    return {teammate: [path for _, path in sorted(some)] for teammate, some in found.items()}


# --- Files --------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: str, *inner: str, folder: int | None = None) -> Iterator[int | None]:
    """A folder, or one in it; None if there is none, or a link in its place."""
    descriptor: int | None = None
    try:
        for name in (path, *inner):
            outer = folder if descriptor is None else descriptor
            try:
                found = os.open(name, _FOLDER, dir_fd=outer)
            except (OSError, ValueError):
                found = None
            if descriptor is not None:
                os.close(descriptor)
            descriptor = found
            if descriptor is None:
                break
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _names_in(folder: int) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _status(name: str, folder: int | None) -> os.stat_result | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _entry_status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
