"""How long a run has been at work, by a clock that outlives servers and stands still with the machine.

Neither a time limit nor a duration changes when the time of day is set.

That clock begins anew when the machine starts, so each reading says under which start it was made. Of a run that began
under another one its working time is unknown, and it gets its whole time again.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from hocket.keeper import platform
from hocket.model import Event, Run, Status


@cache
def _boot() -> str:
    return platform.boot_id()


def reading() -> dict[str, Any]:
    """The clock data of a `run.started` or `clock` event."""
    return {"clock": time.monotonic(), "boot": _boot()}


def is_readable(run: Run) -> bool:
    """Whether a run's clock is the one that goes now."""
    if run.started_clock is None or run.started_clock > time.monotonic():
        return False
    return run.started_boot in (None, _boot())


def elapsed(run: Run) -> float | None:
    """Seconds since the start of a run that has not ended, or until the end of one that has; None before its start."""
    if run.ended and run.duration is not None:
        return run.duration
    if run.started_at is None:
        return None
    if run.ended_at is not None:
        return max(0.0, run.ended_at - run.started_at)  # It ended under a version that did not measure.
    if run.started_clock is None or not is_readable(run):
        return max(0.0, time.time() - run.started_at)
    return time.monotonic() - run.started_clock


def stamped(event: Event, run: Run | None) -> Event:
    """An event of a run's beginning or end with the reading of the clock; an end also has the run's ``duration``."""
    if event.type not in ("run.created", "run.ended"):
        return event
    data = {**event.data, **reading()}
    if event.type == "run.ended" and "duration" not in data and run is not None and not run.ended:
        data["duration"] = elapsed(run)
    return Event(event.seq, event.ts, event.run, event.root, event.type, data)


def left(run: Run, limit: float) -> float:
    """Seconds of a limit that a run has not used up."""
    if run.started_clock is None or not is_readable(run):
        return limit
    return max(0.0, limit - (time.monotonic() - run.started_clock))


def idle_in(run: Run, idle_after: float) -> float | None:
    """Seconds until a run is idle; None unless it waits for a message and no task of its team is unfinished."""
    if run.status is not Status.WAITING or run.needs_you or run.parked_until is not None or run.open_tasks:
        return None
    return max(0.0, (run.waiting_since or 0.0) + idle_after - time.time()) if idle_after else 0.0
