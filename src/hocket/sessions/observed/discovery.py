"""Finds sessions that Hocket did not start, by the records of their CLIs, and shows them as runs.

Only regular files directly in the places of a CLI are read, never what a link points to, and only a few of their bytes.
Everything here blocks: not for the event loop.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from hocket.errors import AmbiguousRun, NotFound, UsageError
from hocket.keeper import files, platform
from hocket.model import Kind, Origin, Reason, Run, Status
from hocket.providers import PROVIDERS
from hocket.providers.base import (
    BackgroundJob,
    JobProcess,
    LiveSession,
    ObservedSessions,
    SessionFolders,
    SessionSummary,
)
from hocket.sessions.output_lines import read_at

RECORD_LIMIT = 256 * 1024
"""Bytes of a record; a larger file is none."""
RECORDS = 1000
"""Records of one kind that are read: the newest ones."""
BEGINNING = 64 * 1024
ENDS = (64 * 1024, 1024 * 1024)
"""Bytes at the end of a transcript that are searched for its last words, and again if they are not there."""
SHORTEST = 8
"""Characters of the beginning of an id that names a session."""
AGE_SHOWN = 7 * 86400.0
"""Seconds since its last change after which a session without a process is listed only on request."""


class FoundSession(NamedTuple):
    """A session in the records of its CLI."""

    id: str
    provider: str
    changed: float
    """Unix time of the last change."""
    process: LiveSession | None = None
    """Its process, which was verified to exist."""
    transcript: str | None = None
    job: BackgroundJob | None = None


def find_all(env: Mapping[str, str], since: float) -> list[FoundSession]:
    """Return the sessions that have a process or changed since a time, the newest last, those with a process behind."""
    found: list[FoundSession] = []
    for provider, observed, folders in _places(env):
        processes = {one.session: one for one in live_sessions(observed, folders)}
        jobs = {one.session: one for one in _jobs(observed, folders, since)}
        transcripts = dict(_transcripts(observed, folders, lambda session: True))
        for session in {*processes, *transcripts, *jobs}:
            process, path, job = processes.get(session), transcripts.get(session), jobs.get(session)
            changed = changed_at(path) if path else (process or job).begun or 0.0  # type: ignore[union-attr]
            if process is not None or changed >= since:
                found.append(FoundSession(session, provider, changed, process, path, job))
    return sorted(found, key=lambda one: (one.process is not None, one.changed))


def find(ref: str, env: Mapping[str, str]) -> FoundSession:
    """Return the session that an id, or the beginning of one, names."""
    check_reference(ref)
    found: dict[str, FoundSession] = {}
    for provider, observed, folders in _places(env):
        for one in live_sessions(observed, folders):
            if one.session.startswith(ref):
                found[one.session] = FoundSession(one.session, provider, one.begun or 0.0, one)
        for job in _jobs(observed, folders, 0.0):
            if job.session.startswith(ref):
                process = found[job.session].process if job.session in found else None
                found[job.session] = FoundSession(job.session, provider, job.begun or 0.0, process, job=job)
        for session, path in _transcripts(observed, folders, lambda session: session.startswith(ref)):
            known = found.get(session) or FoundSession(session, provider, 0.0)
            found[session] = known._replace(changed=changed_at(path), transcript=path)
    if not found:
        raise NotFound(f"there is no session {ref!r}", "`hocket ps --observed -a` lists sessions that can be imported")
    if len(found) > 1:
        raise AmbiguousRun(f"{ref!r} fits more than one session", "Give more of its id")
    return next(iter(found.values()))


def check_reference(ref: str) -> None:
    """Raise unless a text could name a session."""
    if len(ref) < SHORTEST or len(ref) > 128 or not ref.isascii() or not ref.replace("-", "").isalnum():
        raise UsageError(
            f"invalid session: {ref[:200]!r}", f"give its id or at least the first {SHORTEST} characters of it"
        )


class ListedSession(NamedTuple):
    """A session as a run that is not recorded."""

    run: Run
    prompt: str | None
    last: str | None
    """Its last words."""


def describe(found: FoundSession) -> ListedSession:
    """Return what the records of a session tell about it."""
    told = _summary(found)
    process, job = found.process, found.job
    begun = told.begun or (process and process.begun) or (job and job.begun) or found.changed
    run = Run(
        id=found.id,
        number=0,
        kind=Kind.LEAF,
        agent=(process and process.agent) or told.agent or found.provider,
        provider=found.provider,
        parent=None,
        root=found.id,
        depth=0,
        cwd=(process and process.cwd) or told.cwd or (job and job.cwd) or "",
        created_at=begun,
        status=state_of(process),
        reason=None if process else Reason.PROCESS_GONE,
        origin=Origin.OBSERVED,
        pid=process.pid if process else None,
        session_id=found.id,
        transcript=found.transcript,
        started_at=begun,
        ended_at=None if process else max(found.changed, begun),
    )
    prompt = told.prompt or (job.prompt if job is not None else None)
    return ListedSession(run, prompt, told.last)


def state_of(process: LiveSession | None) -> Status:
    """What a session does now, as far as its process tells. Of one without a process the outcome is unknown."""
    if process is None:
        return Status.LOST
    return Status.WAITING if process.is_waiting else Status.RUNNING


def _summary(found: FoundSession) -> SessionSummary:
    observed, path = PROVIDERS[found.provider].observed, found.transcript
    if observed is None or path is None:
        return SessionSummary()
    size, told = files.size(path), SessionSummary()
    with suppress(OSError):
        beginning = read_at(path, 0, BEGINNING)
        for span in ENDS:
            told = observed.summary(beginning, read_at(path, max(0, size - span), span))
            if told.last is not None or size <= span:
                break
    return told


def live_sessions(observed: ObservedSessions, folders: SessionFolders) -> Iterator[LiveSession]:
    """Yield the sessions whose process exists: it has the pid of the record, and its time of start."""
    names = [name for name in _names(folders.live) if name.endswith(".json") and name[:-5].isdigit()]
    for name in names[:RECORDS]:
        content = read_record(os.path.join(folders.live, name))
        record = observed.live(content) if content else None
        if record is not None and str(record.pid) == name[:-5] and is_alive(record):
            yield record


def is_alive(record: LiveSession | JobProcess) -> bool:
    """True if the process has the pid of the record, and its time of start."""
    return record.started is not None and platform.start_time(record.pid, living=True) == record.started


def is_being_written(record: LiveSession, folders: SessionFolders) -> bool:
    """True if a record that was not read just now still exists, as does its process: its CLI writes it in place."""
    return os.path.exists(os.path.join(folders.live, f"{record.pid}.json")) and is_alive(record)


def _places(env: Mapping[str, str]) -> Iterator[tuple[str, ObservedSessions, SessionFolders]]:
    for provider in PROVIDERS.values():
        folders = provider.observed.folders(env) if provider.observed is not None else None
        if provider.observed is not None and folders is not None:
            yield provider.name, provider.observed, folders


def _transcripts(
    observed: ObservedSessions, folders: SessionFolders, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """Yield sessions with the paths of their transcripts; of two with one name the last one counts."""
    for project in _names(folders.transcripts):
        folder = os.path.join(folders.transcripts, project)
        if not project.isprintable() or os.path.islink(folder):  # Undecodable bytes are not printable either.
            continue
        for name in _names(folder):
            session = observed.session_of(name)
            if session is not None and wanted(session):
                path = os.path.join(folder, name)
                if files.is_regular(path):
                    yield session, path


def _jobs(observed: ObservedSessions, folders: SessionFolders, since: float) -> Iterator[BackgroundJob]:
    """Yield the newest background jobs that changed since a time."""
    paths = {name: os.path.join(folders.jobs, name, "state.json") for name in _names(folders.jobs)}
    changed = ((changed_at(path), name) for name, path in paths.items())
    for _, name in heapq.nlargest(RECORDS, (one for one in changed if one[0] >= max(since, 1.0))):
        content = read_record(paths[name])
        record = observed.job(name, content) if content else None
        if record is not None:
            yield record


def read_record(path: str) -> bytes | None:
    """The content of a record; None where there is none that can be read."""
    with suppress(OSError):
        return files.read_regular(path, RECORD_LIMIT)
    return None


def _names(folder: str) -> Sequence[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return ()


def changed_at(path: str) -> float:
    """Unix time of the last change of a file; 0 if there is none."""
    with suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0
