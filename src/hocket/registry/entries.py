"""An entry of a registry file: one run of an agent, as other programs see it."""

from __future__ import annotations

from msgspec import Struct

from hocket.model import Run, Status

IN_PROGRESS, DONE, FAILED, INTERRUPTED = "in-progress", "done", "failed", "interrupted"
_WORDS = {
    Status.STARTING: IN_PROGRESS,
    Status.RUNNING: IN_PROGRESS,
    Status.WAITING: IN_PROGRESS,
    Status.DONE: DONE,
    Status.FAILED: FAILED,
    Status.STOPPED: INTERRUPTED,
    Status.LOST: INTERRUPTED,
}


class Entry(Struct, frozen=True, rename="camel"):
    """A run under its id. Times are in milliseconds since 1970."""

    agent_type: str
    status: str
    home: str
    """The HOCKET_HOME of the server that writes the entry. A server changes no other entries."""
    pid: int | None = None
    """Of the agent; null until it has started."""
    depth: int = 0
    parent_id: str | None = None
    """The agent that started it: chains and loops have no entries."""
    session_id: str | None = None
    transcript_path: str | None = None
    parent_session_id: str | None = None
    parent_pid: int | None = None
    spawned_by_session_id: str | None = None
    number: int = 0
    reason: str | None = None
    cwd: str | None = None
    started_at: int | None = None
    ended_at: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.status != IN_PROGRESS


def entry_of(run: Run, parent: Run | None, home: str) -> Entry:
    """The entry of a run; ``parent`` is the nearest agent above it."""
    parent_session = parent.session_id if parent is not None else None
    return Entry(
        agent_type=run.agent,
        status=_WORDS[run.status],
        home=home,
        pid=run.pid,
        depth=run.depth,
        parent_id=parent.id if parent is not None else None,
        session_id=run.session_id,
        transcript_path=run.transcript,
        parent_session_id=parent_session,
        parent_pid=parent.pid if parent is not None else run.caller_pid,
        spawned_by_session_id=run.caller_session or parent_session,
        number=run.number,
        reason=run.reason,
        cwd=run.cwd,
        started_at=_milliseconds(run.started_at),
        ended_at=_milliseconds(run.ended_at),
    )


def _milliseconds(time: float | None) -> int | None:
    return None if time is None else int(time * 1000)
