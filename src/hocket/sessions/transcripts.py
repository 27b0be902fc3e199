"""Follows the transcripts that CLIs keep of their sessions: that of a session itself, and those of its helpers.

Transcripts belong to the CLI: they are only read, may not exist yet, and may be truncated or replaced. What is new in
them becomes events of a run, committed with the position in the file, so that each line is read once.
"""

from __future__ import annotations

import asyncio
import glob
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from hocket.errors import HocketError, NotFound
from hocket.input_limits import is_text
from hocket.keeper import files
from hocket.model import Event, Run
from hocket.providers import PROVIDERS
from hocket.providers.base import Helper, Sessions, State, TranscriptFiles, TranscriptReader
from hocket.redaction import NO_SECRETS, Redactor
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.journal import RETRY_AFTER, Journal, run_event
from hocket.sessions.output_lines import Piece, line_begin, read_at, read_lines
from hocket.sessions.team_usage import TeamUsage
from hocket.store import FilePosition

THREADS = 2
STOP_SECONDS = 1.0
"""For how long the end of a run waits for the rest of its transcripts."""
SCAN_EVERY = 5.0
"""How often a run is looked at whose files cannot be watched."""
_ABOUT_LIMIT = 64 * 1024
_TAIL = 64 * 1024
"""Bytes of the last line by which a file is recognised."""
_BLOCK = 1024 * 1024
_SCREEN = 256 * 1024
"""Bytes at the end of a transcript that usually have its last screen."""
_LONGEST_SCREEN = 16 * 1024 * 1024


def locate(paths: Sequence[str], patterns: Sequence[str] = ()) -> str | None:
    """Return the first of these paths that is a file, else the newest file that matches the first pattern with one.

    A path that is not valid text could not be recorded. With patterns it reads many folders: not for the event loop.
    """
    for path in paths:
        if os.path.isfile(path):
            return path
    for pattern in patterns:
        if found := [path for path in glob.iglob(pattern) if is_text(path) and os.path.isfile(path)]:
            return max(found, key=os.path.getmtime)
    return None


class Transcripts:
    """The transcripts of all followed runs. One per server."""

    def __init__(self, journal: Journal, watcher: FileWatcher) -> None:
        self._journal = journal
        self._watcher = watcher
        self._followed: dict[str, _FollowedRun] = {}
        self._team_usage = TeamUsage(journal)
        self._tasks = BackgroundTasks()
        self._threads = ThreadPoolExecutor(THREADS, "hocket-transcripts")
        self._loop = asyncio.get_running_loop()
        self._closing = False

    def open(self) -> None:
        self._watcher.on_overflow(self._touch_all)

    async def close(self) -> None:
        """Release everything; the next server goes on at the committed positions."""
        self._closing = True
        await self._tasks.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def follow(
        self,
        run: Run,
        env: Mapping[str, str],
        *,
        redactor: Redactor = NO_SECRETS,
        newest: int | None = None,
        state: State | None = None,
        is_news: Callable[[str, Mapping[str, Any]], bool] = lambda kind, data: True,
    ) -> None:
        """Turn what the transcripts of a run's session have, and will have, into events of the run, until ``stop``.

        For runs whose output Hocket does not have. Events that are not news, by type and data, are left out: they are
        recorded already. The run needs its
        ``provider``, ``session_id`` and ``cwd``; its ``transcript`` if that is known. Of ``env``, the environment of
        the session's process, only the variables count that say where its files are (``HOME`` …). The transcript may
        appear later, also elsewhere than expected: a ``session`` event then has its path. A run that is followed again
        goes on where it was left, also by another server. With ``newest``, of a file that was never read only about
        that many bytes at its end are. With ``state``, the reader of the session's own transcript begins with it. Of a
        teammate, which has no session, only its own ``transcript`` is read.
        """
        provider = PROVIDERS.get(run.provider or "")
        sessions = provider.sessions if provider is not None else None
        if provider is None or sessions is None or sessions.transcript_files is None:
            return
        if run.session_id is None and (run.teammate is None or run.transcript is None):
            return
        if (known := self._followed.get(run.id)) is not None:
            if known.session == run.session_id:
                return
            self._forget(known)
        paths, patterns = _places(run, sessions, sessions.transcript_files, env)
        followed = _FollowedRun(
            run,
            sessions.transcript_files,
            provider.longest_line,
            paths,
            patterns,
            self._journal.read.transcript_positions(run.id),
            redactor,
            newest,
            state or {},
            is_news,
        )
        self._followed[run.id] = followed
        self._touch(followed)

    async def last(self, run: Run, count: int, redactor: Redactor) -> list[TranscriptEvent]:
        """Return the last events of the transcript of a run's session, read from the end of the file."""
        provider = PROVIDERS.get(run.provider or "")
        sessions = provider.sessions if provider is not None else None
        if sessions is None or sessions.transcript_files is None or run.transcript is None:
            raise NotFound(f"run {run.number} has no transcript", f"`hocket show {run.number}` has what is known of it")
        read = partial(last_events, sessions.transcript_files, run.transcript, count, redactor)
        return await self._loop.run_in_executor(self._threads, read)

    async def stop(self, run_id: str, seconds: float = STOP_SECONDS) -> bool:
        """Read what is left, for a limited time, and follow the run no longer; False if something was not read."""
        followed = self._followed.get(run_id)
        if followed is None:
            return True
        followed.is_stopping = True
        self._touch(followed)
        end = self._loop.time() + seconds
        while not followed.is_read and (left := end - self._loop.time()) > 0:
            if followed.task is not None:
                await asyncio.wait([followed.task], timeout=left)
            else:
                await asyncio.sleep(min(left, RETRY_AFTER))  # It failed, and is tried again.
        if followed.task is not None:
            followed.task.cancel()
        self._forget(followed)
        return followed.is_read

    def _forget(self, followed: _FollowedRun) -> None:
        self._followed.pop(followed.id, None)
        self._team_usage.forget(followed.id)
        self._watcher.unwatch(followed)
        if followed.timer is not None:
            followed.timer.cancel()

    # Reading

    def _touch_all(self) -> None:
        for followed in list(self._followed.values()):
            self._touch(followed)

    def _touch(self, followed: _FollowedRun, path: str | None = None) -> None:
        """Read one file of a run, or look for new ones and read all."""
        followed.changed.add(path)
        followed.is_read = False
        if followed.task is None and not self._closing:
            followed.task = self._tasks.spawn(self._read(followed))

    def _touch_later(self, followed: _FollowedRun, delay: float) -> None:
        if followed.timer is not None:
            followed.timer.cancel()
        followed.timer = self._loop.call_later(delay, self._touch, followed)

    async def _read(self, followed: _FollowedRun) -> None:
        """Read a run's transcripts until nothing changes. One task per run."""
        try:
            while followed.changed and self._followed.get(followed.id) is followed:
                changed, followed.changed = followed.changed, set()
                look = await self._loop.run_in_executor(self._threads, followed.look, changed)
                self._watch(followed, look)
                await self._commit(followed, look)
            followed.is_read = True
        except (HocketError, OSError):
            # Not readable or recordable now (a full disk, no descriptor): the files keep everything.
            self._touch_later(followed, RETRY_AFTER)
        finally:
            followed.task = None
        if followed.changed and self._followed.get(followed.id) is followed:
            self._touch(followed)

    async def _commit(self, followed: _FollowedRun, look: _Look) -> None:
        run = self._journal.run(followed.id)
        if run is None:
            return
        events: list[Event] = []
        if look.path is not None and look.path != run.transcript:
            events.append(run_event(run, "session", {"session_id": followed.session, "transcript": look.path}))
        now = time.time()
        said = sorted(chain.from_iterable(piece.events for piece in look.pieces), key=attrgetter("at"))
        said = [one for one in said if followed.is_news(one.type, one.data)]
        events += [Event(0, min(one.at or now, now), run.id, run.root, one.type, one.data) for one in said]
        events = self._team_usage.with_teammates(run, events, lead_is_followed=run.parent in self._followed)
        if events:
            positions = {(run.id, piece.file.path): piece.position for piece in look.pieces}
            await self._journal.write(events, transcripts=positions)
        for piece in look.pieces:
            piece.file.go_on(piece.position)
            if piece.more:
                followed.changed.add(piece.file.path)

    def _watch(self, followed: _FollowedRun, look: _Look) -> None:
        """Watch what a look has found; what changed before it was watched needs another look."""
        if followed.is_stopping:
            return
        is_watched = True
        for path, names in look.directories.items():
            if followed.watched.get(path) != names:
                followed.watched[path] = names
                some = None if "" in names else names
                is_watched &= self._add_watch(followed, path, None, "created", "placed", names=some)
        for path, inode in look.inodes.items():
            if followed.watched.get(path) != inode:
                followed.watched[path] = inode
                is_watched &= self._add_watch(followed, path, path, "written")
        if look.path is None or not is_watched:
            self._touch_later(followed, SCAN_EVERY)

    def _add_watch(
        self, followed: _FollowedRun, path: str, changed: str | None, *news: str, names: frozenset[str] | None = None
    ) -> bool:
        """Watch one more file or directory; False if the system has no more watches."""
        try:
            self._watcher.watch(followed, path, partial(self._touch, followed, changed), *news, names=names)
        except OSError:
            return False
        followed.changed.add(changed)
        return True


class TranscriptEvent(NamedTuple):
    """An event of a transcript, and when its line was written."""

    type: str
    data: dict[str, Any]
    at: float


class _Piece(NamedTuple):
    """Events of the next lines of one file, and the position behind them."""

    file: _File
    events: list[TranscriptEvent]
    position: FilePosition
    more: bool


class _Look(NamedTuple):
    """What a look at the files of a run has found."""

    path: str | None
    """The session's own transcript."""
    pieces: list[_Piece]
    directories: dict[str, frozenset[str]]
    """Where files may appear, and under which names; an empty one stands for any."""
    inodes: dict[str, int]
    """The files that were read, by path."""


class _FollowedRun:
    """A run, and the transcripts of its session. ``look`` is called in a thread, everything else in the loop."""

    def __init__(
        self,
        run: Run,
        format_: TranscriptFiles,
        longest_line: int,
        paths: Sequence[str],
        patterns: Sequence[str],
        positions: Mapping[str, FilePosition],
        redactor: Redactor,
        newest: int | None,
        state: State,
        is_news: Callable[[str, Mapping[str, Any]], bool],
    ) -> None:
        self.is_news = is_news
        self._state = state
        self.id = run.id
        self.session = run.session_id
        self._teammate = run.teammate
        self._format = format_
        self._longest_line = longest_line
        self._paths = paths
        self._patterns = patterns
        self._positions = positions
        self._redactor = redactor
        self._newest = newest
        self._path: str | None = None
        self._files: dict[str, _File] = {}
        self._others: set[str] = set()
        """The transcripts of teammates, which are those of other runs."""
        self.changed: set[str | None] = set()
        """The files to read; None stands for looking at everything."""
        self.watched: dict[str, object] = {}
        """The names that are watched in a directory, and the inode of each file that is."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_stopping = False
        self.is_read = False
        """Everything that was there at the last look has been read."""

    def look(self, changed: Set[str | None]) -> _Look:
        """Find the files of the session, and read the next lines of those that changed."""
        if None in changed:
            self._find_files()
            wanted = list(self._files.values())
        else:
            wanted = [self._files[path] for path in changed if path in self._files]
        pieces, inodes = [], {}
        for file in wanted:
            if (inode := _inode(file.path)) is not None:
                inodes[file.path] = inode
                pieces += file.next_piece(self._longest_line)
        return _Look(self._path, pieces, self._directories() if None in changed else {}, inodes)

    def _find_files(self) -> None:
        if self._path is None or not os.path.exists(self._path):
            self._path = locate(self._paths, self._patterns) or self._path
        if self._path is None:
            return
        if self._teammate is not None:
            self._add(self._path, Helper(self._teammate, teammate=self._teammate))
            return
        self._add(self._path, None)
        folder = self._format.helper_folder(self._path)
        for name in _names_in(folder):
            path = os.path.join(folder, name)
            about = self._format.about(name)
            if about is not None and path not in self._files and path not in self._others:
                content = files.read_regular(os.path.join(folder, about), _ABOUT_LIMIT)
                helper = self._format.helper(name, content or b"")
                if helper.teammate is None:
                    self._add(path, helper)
                elif helper.teammate:
                    self._others.add(path)

    def _add(self, path: str, helper: Helper | None) -> None:
        if path not in self._files:
            read = self._format.reader(helper, self._redactor)
            state = self._state if helper is None else {}
            self._files[path] = _File(path, read, self._positions.get(path), self._newest, state)

    def _directories(self) -> dict[str, frozenset[str]]:
        """The directories in which the next file of interest would appear, and the names there; none for any name."""
        if self._path is None:
            wanted = list(self._paths)
        elif self._teammate is not None:
            wanted = [self._path]
        else:
            wanted = [self._path, os.path.join(self._format.helper_folder(self._path), "")]
        found: dict[str, frozenset[str]] = {}
        for directory, name in map(nearest_directory, wanted):
            found[directory] = found.get(directory, frozenset()) | {name}
        return found


class _File:
    """One transcript: its reader, and how far it was read."""

    def __init__(
        self, path: str, read: TranscriptReader, position: FilePosition | None, newest: int | None, state: State
    ) -> None:
        self.path = path
        self._read = read
        self._position = position or FilePosition(offset=_begin(path, newest), reader=state)
        self._scanned = 0

    def go_on(self, position: FilePosition) -> None:
        """Read from there on: what is before it has been committed."""
        self._position = position

    def next_piece(self, longest_line: int) -> list[_Piece]:
        """The next lines, if there are any."""
        position = self._position
        if not _has_tail(self.path, position):
            position = replace(position, offset=_offset_behind(self.path, position), tail_size=0)
            self._scanned = 0
        piece = read_lines(self.path, position.offset, self._scanned, None, longest_line)
        self._scanned = piece.scanned
        if not piece.lines:
            return [_Piece(self, [], position, True)] if piece.more else []
        state, at, events = position.reader, 0.0, []
        for line in piece.lines:
            state, said, written = self._read(state, line.head, line.whole_size)
            at = written or at
            events += [TranscriptEvent(kind, data, at) for kind, data in said]
        tail = _tail(self.path, piece)
        return [_Piece(self, events, FilePosition(piece.offset, len(tail), zlib.crc32(tail), state), piece.more)]


def _tail(path: str, piece: Piece) -> bytes:
    """The end of the last line that was read, with its line end."""
    last = piece.lines[-1]
    if last.whole_size is None:
        return last.head[1 - _TAIL :] + b"\n"
    return read_at(path, piece.offset - _TAIL, _TAIL)


def _has_tail(path: str, position: FilePosition) -> bool:
    """Whether the file still has before the position what was read there."""
    tail = read_at(path, position.offset - position.tail_size, position.tail_size)
    return zlib.crc32(tail) == position.tail_checksum


def _offset_behind(path: str, position: FilePosition) -> int:
    """Where to go on in a file that was truncated or replaced: behind the last line that was read, if it has that line,
    else at the beginning."""
    found, offset, held = 0, 0, b""
    while block := read_at(path, offset, _BLOCK):
        offset += len(block)
        held += block
        begin = held.rfind(b"\n", 0, len(held) - len(block)) + 1
        while (end := held.find(b"\n", begin) + 1) > 0:
            tail = held[max(begin, end - _TAIL) : end]
            if len(tail) == position.tail_size and zlib.crc32(tail) == position.tail_checksum:
                found = offset - len(held) + end
            begin = end
        held = held[-_TAIL:]
    return found


def _begin(path: str, newest: int | None) -> int:
    """Where to begin in a file that was never read."""
    return 0 if newest is None else line_begin(path, files.size(path) - newest)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except OSError:
        return None


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _places(
    run: Run, sessions: Sessions, format_: TranscriptFiles, env: Mapping[str, str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The paths where the transcript of a run may be, and patterns of other ones."""
    known = (run.transcript,) if run.transcript else ()
    if run.session_id is None:
        return known, ()
    cwd = os.path.realpath(run.cwd)
    paths = sessions.transcripts(env, cwd, run.session_id) if sessions.transcripts is not None else ()
    return (*known, *paths), format_.patterns(env, cwd, run.session_id)


def nearest_directory(path: str) -> tuple[str, str]:
    """The directory of a path, or the nearest one above it that exists; and the next name on the way."""
    directory, name = os.path.split(path)
    while not os.path.isdir(directory) and directory != os.path.dirname(directory):
        directory, name = os.path.split(directory)
    return os.path.realpath(directory), name


def last_events(
    transcript: TranscriptFiles, path: str, count: int, redactor: Redactor = NO_SECRETS
) -> list[TranscriptEvent]:
    """The last events of a session's own transcript. Reads only the end of the file; not for the event loop."""
    size, span = files.size(path), _SCREEN
    while True:
        begin = line_begin(path, size - span)
        events = _events_in(transcript, read_at(path, begin, size - begin), redactor)
        if len(events) >= count or span >= min(size, _LONGEST_SCREEN):
            return events[-count:]
        span *= 4


def _events_in(transcript: TranscriptFiles, content: bytes, redactor: Redactor) -> list[TranscriptEvent]:
    read, state, at, events = transcript.reader(None, redactor), State(), 0.0, list[TranscriptEvent]()
    for line in content.split(b"\n")[:-1]:
        state, said, written = read(state, line, None)
        at = written or at
        events += [TranscriptEvent(kind, data, at) for kind, data in said]
    return events
