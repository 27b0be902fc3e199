"""The verdict on a run that follows from the exit of its process alone."""

from __future__ import annotations

from hocket.model import Reason, Status
from hocket.providers.base import ProcessExit

Verdict = tuple[Status, Reason]


def exit_verdict(exit: ProcessExit, stop_reason: Reason | None, at_zero: Verdict) -> Verdict:  # noqa: A002 - the keeper's own word for it
    """``at_zero`` is the verdict on a process that ended by itself with exit code 0."""
    if exit.error is not None:
        return Status.FAILED, Reason.START_FAILED
    if exit.stopped:
        reason = stop_reason or Reason.STOPPED
        return (Status.STOPPED if reason is Reason.STOPPED else Status.FAILED), reason
    if exit.signal is not None:
        return Status.FAILED, Reason.SIGNAL
    return at_zero if exit.code == 0 else (Status.FAILED, Reason.EXIT)
