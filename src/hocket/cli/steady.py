"""The time of day as if it had never been set since this process began: differences of such times are durations.

Events have the time of day at which they happened. Those of a run's beginning and end also have a reading of the
machine's monotonic clock, which counts where it was made since the last start of the machine.
"""

from __future__ import annotations

import time
from typing import Any

NOTICEABLE = 1.0
"""Seconds by which the two clocks differ where one was set; less is the clock's own correction."""
_OFFSET = time.time() - time.monotonic()
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_boots: list[str | None] = []


def steady_now() -> float:
    """The present moment."""
    return time.monotonic() + _OFFSET


def wall_time(steady: float) -> float:
    """The time of day, as it is set now, of a moment that is given in steady time."""
    return steady + _difference()


def steady_time(event: dict[str, Any]) -> float:
    """When an event happened."""
    data = event["data"]
    if data.get("clock") is not None and data.get("boot") is not None and data["boot"] == _boot():
        return float(data["clock"]) + _OFFSET
    return float(event["ts"]) - _difference()


def _difference() -> float:
    """By how much the time of day was set since this process began."""
    found = time.time() - steady_now()
    return found if abs(found) > NOTICEABLE else 0.0


def _boot() -> str | None:
    """Of the machine, where it tells; read once."""
    if not _boots:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                _boots.append(file.read().strip())
        except OSError:
            _boots.append(None)
    return _boots[0]
