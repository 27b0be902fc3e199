"""When a task goes in circles: a hand-off back to somebody who waits for it, with nothing to show since.

Pure: how a directory stands is measured in ``progress``, and whether a hand-off is made at all is decided where tasks
are handed over. An agent may well be asked a second time while it waits, for example by a tester who sends a mended
program back; what ends in circles is only the way on which nothing is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hocket.engine.progress import Evidence, changed


class Open(NamedTuple):
    """A hand-off that has not ended: who has it, and how the working directory stood when it was made."""

    agent: str
    evidence: Evidence
    """Of kind ``unreadable`` where nobody looked: then it counts as changed."""


def is_cycle(stack: Sequence[Open], target: str, evidence_now: Evidence) -> str | None:
    """Why a hand-off would only go in a circle; None where it may be made.

    ``stack`` has the open hand-offs from the outermost to the innermost, whose agent is the one that asks.
    """
    # Any time counts, not the last alone: what one makes and the other undoes is nothing new either.
    places = [place for place, one in enumerate(stack) if one.agent == target]
    same = next((place for place in reversed(places) if not changed(stack[place].evidence, evidence_now)), None)
    if same is None:
        return None
    way = " -> ".join([*(one.agent for one in stack[same:]), target])
    return f"{target} has this task already and waits for it ({way}), and the working directory is as it was then"


HINT = (
    "Do the work yourself, hand it to somebody else, or end with what you know; "
    "once a file in the working directory is another, it may go back"
)
"""What whoever asked can do about it."""
