"""What the state of a run rests on: process, lock, exit record, last event, questions, stops. Changes nothing."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from hocket.config.settings import Limits
from hocket.keeper import files, platform
from hocket.model import Reason, Run, Status
from hocket.providers import PROVIDERS
from hocket.sessions.journal import Journal
from hocket.sessions.run_identity import directory
from hocket.sessions.supervisor import QueuePlace, Supervisor

_ENDING = ("status", "reason", "exit_code", "signal", "error", "transient", "swept", "survivors", "lost_bytes")
"""What the end of a run says about its verdict."""


class _FileFacts(NamedTuple):
    """What the files of a leaf and the process table say."""

    state: str
    """``finished``, ``running``, ``lost``, ``unstarted``, or ``removed``."""
    lock: str
    """``held``, ``free``, or ``missing``."""
    process: dict[str, Any] | None
    exit: files.Exit | None
    output: dict[str, Any] | None
    transcript: dict[str, Any] | None


class RunEvidence:
    """The evidence for the states of runs. One per server."""

    def __init__(self, home: Path, journal: Journal, supervisor: Supervisor, limits: Limits) -> None:
        self._home = home
        self._journal = journal
        self._supervisor = supervisor
        self._limits = limits

    async def of(self, run: Run) -> dict[str, Any]:
        """Everything that is known about the state of a run, with an ``explanation`` of one sentence."""
        facts = await asyncio.to_thread(_file_facts, str(directory(self._home, run)), run)
        # As committed now: the run may have ended while its files were read.
        run = self._journal.run(run.id) or run
        read, now = self._journal.read, time.time()
        last = read.last_event(run.id)
        stops = [one for one in read.events_of_type(run.id, "input") if one.data.get("kind") == "stop"]
        end = next(read.events_of_type(run.id, "run.ended"), None)
        queue = self._supervisor.queue_place(run.id)
        below = [one.number for one in self._journal.live_below(run.id) if one.id != run.id]
        return {
            "run": run.id,
            "number": run.number,
            "status": run.status,
            "reason": run.reason,
            "explanation": _explanation(run, facts, queue, below, self._limits.leaves),
            "process": facts.process,
            "directory": None if not run.has_process or run.is_observed else facts.state,
            "lock": None if not run.has_process or run.is_observed else facts.lock,
            "exit": None if facts.exit is None else facts.exit._asdict(),
            "ending": None if end is None else {name: end.data[name] for name in _ENDING if name in end.data},
            "last_event": None if last is None else {"seq": last.seq, "type": last.type, "at": last.ts},
            "output": facts.output,
            "transcript": facts.transcript,
            "questions": [_question(one) for one in run.open_questions],
            "stops": [{"reason": one.data.get("reason"), "at": one.ts} for one in stops],
            "queue": None if queue is None else queue._asdict() | {"places": self._limits.leaves},
            "live_below": below,
            "parked_until": run.parked_until,
            "parked_for": run.parked_for,
            "at": now,
        }


def _question(asked: Any) -> dict[str, Any]:
    return {name: asked.get(name) for name in ("id", "kind", "text", "asked_at")}


def _file_facts(place: str, run: Run) -> _FileFacts:
    """Read the files of a run, and look its processes up. Blocks."""
    transcript = _file(run.transcript) if run.transcript else None
    if not run.has_process or run.is_observed:
        process = None if run.pid is None or run.ended else _process(run.pid, None, None)
        return _FileFacts("removed", "missing", process, None, None, transcript)
    known = files.read_pid(place)
    process = None
    if known is not None:
        # A process of an earlier start of the machine may have the same pid and start time.
        is_same_boot = known.boot_id in ("", platform.boot_id())
        process = _process(known.pid, known.start_time if is_same_boot else -1, known.keeper)
    elif run.pid is not None:
        process = _process(run.pid, -1 if run.ended else None, None)
    is_there = os.path.isdir(place)
    lock = (
        "held" if files.is_locked(place) else "free" if files.is_regular(os.path.join(place, files.LOCK)) else "missing"
    )
    written = [about for name in (files.OUT, files.ERR) if (about := _file(os.path.join(place, name))) is not None]
    output = (
        {
            "bytes": sum(one["bytes"] for one in written),
            "changed_at": max(one["changed_at"] for one in written),
        }
        if written
        else None
    )
    return _FileFacts(
        files.state(place) if is_there else "unstarted" if run.started_at is None else "removed",
        lock,
        process,
        files.read_exit(place),
        output,
        transcript,
    )


def _process(pid: int, start_time: int | None, keeper: int | None) -> dict[str, Any]:
    """A process by its pid, alive if it is still the one with this start time; None for any."""
    found = platform.start_time(pid, living=True)
    is_alive = found is not None and start_time in (None, found)
    return {
        "pid": pid,
        "start_time": found if start_time is None else max(start_time, 0) or None,
        "alive": is_alive,
        "keeper": keeper,
    }


def _file(path: str) -> dict[str, Any] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"path": path, "bytes": status.st_size, "changed_at": status.st_mtime}


# --- One sentence -------------------------------------------------------------------------------------------


def _explanation(run: Run, facts: _FileFacts, queue: QueuePlace | None, below: list[int], places: int) -> str:
    if run.ended:
        return _why_ended(run, facts)
    stop = "" if run.stop_reason is None else f"a stop ({run.stop_reason}) is recorded and being carried out; "
    if run.is_observed:
        return "Hocket did not start it and only reads its transcript; its process decides"
    if not run.has_process:
        return stop + _why_inner_lives(run, below)
    if queue is not None:
        return (
            f"{stop}it waits for a place: number {queue.position} in the queue, {queue.taken} of {places} places taken"
        )
    if run.status is Status.STARTING:
        return stop + (
            "its keeper runs, and the start of the agent is not recorded yet"
            if facts.lock == "held"
            else "its keeper is being started"
        )
    if facts.lock != "held":
        return f"{stop}the lock of its keeper is {facts.lock}, and its end is not recorded yet"
    if run.open_questions:
        return f"{stop}it has {_count(len(run.open_questions), 'open question')}, and its keeper holds the lock"
    if run.status is Status.WAITING:
        return f"{stop}its turn is over, it waits for a message, and its keeper holds the lock"
    return f"{stop}its keeper holds the lock"


def _why_inner_lives(run: Run, below: list[int]) -> str:
    if run.parked_until is not None:
        return f"it waits until a time ({run.parked_for}) and then continues"
    if run.open_questions:
        return f"it has {_count(len(run.open_questions), 'open question')}"
    if below:
        return f"{_count(len(below), 'run')} below it {'has' if len(below) == 1 else 'have'} not ended"
    return "its next step is about to be started"


def _why_ended(run: Run, facts: _FileFacts) -> str:
    if run.teammate is not None:
        return "its team shut it down" if run.status is Status.DONE else "its lead has ended"
    if run.is_observed:
        return "its process is gone; how its work ended is not known"
    if run.status is Status.LOST:
        record = "there is no exit record" if facts.exit is None else "its exit record came too late"
        return f"{run.error or 'its keeper is gone'}: {record}, so the outcome is unknown"
    if not run.has_process:
        return f"its steps ended it: {run.reason}"
    if run.stop_reason is not None and run.reason == run.stop_reason:
        return f"a stop ({run.stop_reason}) was recorded, and its process is gone"
    if run.started_at is None:
        return "its process was never started"
    if run.reason is Reason.ERROR:
        return f"the agent reported an error, or no result; {_exit_text(run)}"
    provider = PROVIDERS.get(run.provider or "")
    if run.status is Status.DONE and provider is not None and provider.text_output is None:
        return f"the agent reported that it is done; {_exit_text(run)}"
    return f"its process ended: {_exit_text(run)}"


def _exit_text(run: Run) -> str:
    if run.exit_code is None:
        return "without an exit code"
    return f"exit code {run.exit_code}" if run.exit_code < 128 else f"exit code {run.exit_code} (128 + signal)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
