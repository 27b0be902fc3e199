"""The task board: which column each task belongs to, and which tasks are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Task = dict[str, Any]

RECENT_SECONDS = 24 * 3600.0
"""For this long a finished task stays on the board."""
NEEDS_YOU = "needs_you"
FINISHED = ("completed", "failed")
COLUMNS: dict[str, tuple[str, ...]] = {
    "pending": ("pending",),
    NEEDS_YOU: (NEEDS_YOU,),
    "active": ("active",),
    "waiting": ("waiting",),
    "finished": FINISHED,
}
"""The columns in order, and the states of the tasks in each."""


def board_columns(
    tasks: Sequence[Task], asked_at: Mapping[str, float], now: float, everything: bool
) -> dict[str, list[Task]]:
    """The tasks of each column, the last changed first.

    ``asked_at`` has the time of the oldest open question by task. Tasks that finished long ago are left out unless
    ``everything`` is asked for.
    """
    shown = [
        task
        for task in tasks
        if everything or task["status"]["type"] not in FINISHED or seconds_since_change(task, now) <= RECENT_SECONDS
    ]
    return {
        name: sorted(
            (task for task in shown if board_state(task, asked_at) in states), key=lambda task: -task["updated_at"]
        )
        for name, states in COLUMNS.items()
    }


def board_state(task: Task, asked_at: Mapping[str, float]) -> str:
    """The status of a task, or ``needs_you`` if its agent waits for an answer."""
    status = str(task["status"]["type"])
    return NEEDS_YOU if task["id"] in asked_at and status not in FINISHED else status


def seconds_since_change(task: Task, now: float) -> float:
    return now - float(task["updated_at"]) / 1000
