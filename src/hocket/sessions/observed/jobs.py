"""Background jobs of a CLI that the agent of a run has started, and that run apart from it, beyond its process tree."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from hocket.keeper.programs import run_tool
from hocket.model import Run, Spec
from hocket.providers import PROVIDERS
from hocket.providers.base import JobProcess
from hocket.sessions.observed.discovery import is_alive, read_record
from hocket.sessions.run_identity import session_of

STOP_SECONDS = 10.0
"""How long the CLI may take to end one job."""
ALL_SECONDS = 30.0
"""How long it may take to end all of them: an agent can write any number of jobs into the record."""
_LOOK = 0.05
_OUTPUT = 500
"""Bytes of what the CLI says if it does not end a job."""


def has_jobs(spec: Spec) -> bool:
    """Whether the CLI of a run has a record of background jobs at all: a cheap check, false for most."""
    observed = PROVIDERS[spec.provider].observed
    folders = observed.folders(spec.env) if observed is not None else None
    return folders is not None and os.path.exists(folders.roster)


def end_jobs(run: Run, spec: Spec) -> list[str]:
    """Have the CLI end the running jobs whose record names the session of a run; return notices about them.

    A job that began where and when the run worked, and whose record names no session, is only reported. Nothing is
    signalled. Blocks: not for the event loop.
    """
    observed = PROVIDERS[spec.provider].observed
    folders = observed.folders(spec.env) if observed is not None else None
    if observed is None or folders is None:
        return []
    notices, end = [], time.monotonic() + ALL_SECONDS
    for job in filter(is_alive, observed.job_processes(read_record(folders.roster) or b"")):
        if {session_of(run.id), run.session_id} & {*job.launchers}:
            notices.append(_end(job, observed.stop_job(spec.argv[0], job.job), spec, end))
        elif not job.launchers and _began_in(run, job):
            notices.append(
                f"background job {job.job} began in {job.cwd} while this run worked; its record does not name the "
                f"session that started it, so it is still running (process {job.pid})"
            )
    return notices


def _began_in(run: Run, job: JobProcess) -> bool:
    """Whether a job began in the directory of a run while that was running."""
    is_inside = job.cwd == run.cwd or job.cwd.startswith(f"{run.cwd}/")
    return is_inside and run.started_at is not None and job.begun is not None and job.begun >= run.started_at


def _end(job: JobProcess, stop: Sequence[str], spec: Spec, all_end: float) -> str:
    """End a job of the run, unless it is too late for more of them; return the notice about it."""
    now = time.monotonic()
    end = min(now + STOP_SECONDS, all_end)
    if now >= end:
        return f"background job {job.job}, which this run had started, was not ended (process {job.pid}): too many jobs"
    try:
        # Not in a project, whose files could change what the CLI does.
        done = run_tool(stop, "/", spec.env, end - now, _OUTPUT)
    except OSError as error:
        code, said = 1, str(error)
    else:
        code, said = done.code, done.output.decode(errors="replace").strip()
    while is_alive(job) and code == 0 and time.monotonic() < end:
        time.sleep(_LOOK)
    if not is_alive(job):
        return f"background job {job.job}, which this run had started, was ended with it"
    return f"background job {job.job}, which this run had started, was not ended (process {job.pid}): {said}"
