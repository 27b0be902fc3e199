"""What the Claude CLI records of its sessions, also those that Hocket did not start. Everything in it is untrusted.

In the user's configuration directory: ``sessions/PID.json`` for each live process (the ``.key`` beside it is a secret
and is never read), ``projects/DIRECTORY/SESSION.jsonl`` for each session (``session_SESSION.jsonl`` by other versions),
``jobs/ID/state.json`` for each background job, and ``daemon/roster.json``, which alone has the processes of jobs and
says which session started each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from hocket.providers.base import (
    BackgroundJob,
    JobProcess,
    LiveSession,
    ObservedSessions,
    SessionFolders,
    SessionSummary,
)
from hocket.providers.claude.paths import config_directory
from hocket.providers.output_lines import decoded, dict_in, list_in, number_in, text_in

_SESSION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JOB = re.compile(r"[0-9a-f]{8}")
_AGENT = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_LAUNCHED_BY = "CLAUDE_CODE_LAUNCHED_BY_SESSION_IDS"
_HEAD, _TAIL = (b'"agent-setting"', b'"queue-operation"', b'"user"'), (b'"assistant"',)
_DIALOG = "waiting"
_WAITING = frozenset({"idle", _DIALOG})
_TEXT = 2000
"""Characters of a prompt or an answer that a summary has."""


def folders(env: Mapping[str, str]) -> SessionFolders | None:
    base = config_directory("/", env)
    if base is None:
        return None
    names = ("sessions", "projects", "jobs", "daemon/roster.json")
    return SessionFolders(*(os.path.join(base, name) for name in names))


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def session_of(name: str) -> str | None:
    session = name.removeprefix("session_").removesuffix(".jsonl")
    return session if name.endswith(".jsonl") and is_session(session) else None


def live(content: bytes) -> LiveSession | None:
    record = decoded(content)
    session, pid = text_in(record, "sessionId"), _pid(record)
    if not is_session(session) or pid is None:
        return None
    return LiveSession(
        session,
        pid,
        _started(record),
        _directory(record),
        text_in(record, "status") in _WAITING,
        _milliseconds(record, "startedAt"),
        _agent(text_in(record, "agent")),
        _job(text_in(record, "jobId")),
        text_in(record, "status") == _DIALOG,
        _milliseconds(record, "statusUpdatedAt"),
    )


def job(name: str, content: bytes) -> BackgroundJob | None:
    record = decoded(content)
    session = text_in(record, "sessionId")
    if _job(name) is None or not is_session(session):
        return None
    begun = _time(text_in(record, "createdAt"))
    return BackgroundJob(name, session, _directory(record), text_in(record, "intent")[:_TEXT] or None, begun)


def job_processes(content: bytes) -> tuple[JobProcess, ...]:
    workers = dict_in(decoded(content), "workers")
    return tuple(process for name, worker in workers.items() if (process := _job_process(name, worker)) is not None)


def _job_process(name: str, worker: Any) -> JobProcess | None:
    session, pid = text_in(worker, "sessionId"), _pid(worker)
    if _job(name) is None or not is_session(session) or pid is None:
        return None
    begun = _milliseconds(worker, "startedAt")
    return JobProcess(name, session, pid, _started(worker), _directory(worker), begun, _launched_by(worker))


def _launched_by(worker: Any) -> tuple[str, ...]:
    named = text_in(dict_in(dict_in(worker, "dispatch"), "env"), _LAUNCHED_BY)
    return tuple(filter(is_session, re.split("[^0-9a-f-]+", named)))


def stop_job(program: str, job: str) -> tuple[str, ...]:
    """The command line that ends a job: the one that the CLI itself names."""
    return program, "stop", job


def summary(beginning: bytes, end: bytes) -> SessionSummary:
    head = list(_records(beginning.split(b"\n"), _HEAD))
    tail = _records(reversed(end.split(b"\n")), _TAIL)
    return SessionSummary(
        cwd=next((cwd for record in head if (cwd := _directory(record))), None),
        agent=next((name for record in head if (name := _agent(text_in(record, "agentSetting")))), None),
        prompt=next((text for record in head if (text := _prompt(record))), None),
        last=next((text for record in tail if (text := _said(record))), None),
        begun=next((at for record in head if (at := _time(text_in(record, "timestamp"))) is not None), None),
    )


def _records(lines: Iterable[bytes], types: tuple[bytes, ...]) -> Iterator[dict[str, Any]]:
    """The records of these types in some lines, the first and the last of which may be parts of one and no JSON."""
    return (record for line in lines if any(one in line for one in types) and (record := decoded(line)) is not None)


def _prompt(record: dict[str, Any]) -> str:
    """What a person typed, or the program that started the session."""
    is_typed = text_in(record, "type") == "user" and not record.get("isMeta") and not record.get("isSidechain")
    message = dict_in(record, "message") if is_typed else {}
    return (text_in(message, "content") or _text(message))[:_TEXT].strip()


def _said(record: dict[str, Any]) -> str:
    is_own = text_in(record, "type") == "assistant" and not record.get("isSidechain")
    return _text(dict_in(record, "message"))[:_TEXT].strip() if is_own else ""


def _text(message: dict[str, Any]) -> str:
    blocks = (block for block in list_in(message, "content") if text_in(block, "type") == "text")
    return "\n".join(text for block in blocks if (text := text_in(block, "text")))


def _agent(name: str) -> str | None:
    return name if _AGENT.fullmatch(name) else None


def _job(name: str) -> str | None:
    return name if _JOB.fullmatch(name) else None


def _directory(record: Any) -> str:
    """Where a session works; empty for a text that can be no absolute path."""
    path = text_in(record, "cwd")
    return path if path.startswith("/") and "\0" not in path else ""


def _pid(record: Any) -> int | None:
    pid = number_in(record, "pid")
    return pid if isinstance(pid, int) and pid > 1 else None


def _started(record: Any) -> int | None:
    """When a process started, as the system counts it."""
    started = text_in(record, "procStart")
    return int(started) if started.isascii() and started.isdigit() and len(started) < 19 else None


def _milliseconds(record: Any, key: str) -> float | None:
    value = number_in(record, key)
    return None if value is None or value < 0 else value / 1000


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError, OSError):
        return None


observed = ObservedSessions(folders, session_of, live, job, job_processes, stop_job, summary)
