"""Time limits: how long a run has been at work, by a clock that outlives servers and stands still with the machine.

That clock begins anew when the machine starts, so each reading says under which start it was made. Of a run that began
under another one nobody knows how long it was at work: it gets its whole time again. What ends a run is not here.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from hocket.keeper import platform
from hocket.model import Run


@cache
def _boot() -> str:
    return platform.boot_id()


def reading() -> dict[str, Any]:
    """What the event of a start, or of another beginning of the count, tells."""
    return {"clock": time.monotonic(), "boot": _boot()}


def is_readable(run: Run) -> bool:
    """Whether a run's clock is the one that goes now."""
    if run.started_clock is None or run.started_clock > time.monotonic():
        return False
    return run.started_boot in (None, _boot())


def left(run: Run, limit: float) -> float:
    """Seconds of a limit that a run has not used up."""
    if run.started_clock is None or not is_readable(run):
        return limit
    return max(0.0, limit - (time.monotonic() - run.started_clock))
