"""Names, places and tokens of runs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import time
import uuid
from pathlib import Path

from hocket.model import PROMPT, RUN_DIRECTORY, SESSION, Run

RUNS = "runs"
"""The folder with the directories of all runs, by month."""


def new_id() -> str:
    """75 random bits behind a letter, so that an id, or a prefix of one, is never taken for a run's number."""
    return "r" + base64.b32encode(os.urandom(10)).decode().lower()[:15]


def directory(home: Path, run: Run) -> Path:
    """Where a run's own files lie, for ever."""
    return home / RUNS / month_of(run.created_at) / run.id


def month_of(created_at: float) -> str:
    """The name of the folder that has the directories of all runs of a month."""
    return time.strftime("%Y-%m", time.gmtime(created_at))


def run_token(secret: bytes, run_id: str) -> str:
    """A capability for one run. It can be derived again, so the database does not have it."""
    proof = hmac.new(secret, run_id.encode(), hashlib.sha256).hexdigest()
    return f"{run_id}.{proof}"


def run_of_token(secret: bytes, token: str) -> str | None:
    """The run that a token speaks for, if it is one of ours."""
    run_id = token.partition(".")[0]
    return run_id if hmac.compare_digest(run_token(secret, run_id).encode(), token.encode()) else None


def session_of(run_id: str) -> str:
    """The session that a run begins: its own, and the same however often its start is tried."""
    return str(uuid.UUID(bytes=hashlib.sha256(b"session " + run_id.encode()).digest()[:16], version=4))


def filled(argument: str, run_id: str, place: str, prompt: str | None) -> str:
    """An argument of a spec with what this run has in the stand-ins' place."""
    if argument == SESSION:
        return session_of(run_id)
    if argument == PROMPT:
        return prompt or ""
    return place + argument.removeprefix(RUN_DIRECTORY) if argument.startswith(RUN_DIRECTORY) else argument
