"""Detects hand-offs in circles: back to an agent that waits for the task, or repeatedly with the same answer.

Pure: ``workflows.directory_state`` measures a directory, and ``tasks.service`` decides about the hand-off. Asking an
agent a second time is fine, for example if a tester returns a repaired program; only repetition without any change
is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from hocket.workflows.directory_state import UNREADABLE, Evidence, changed


class Open(NamedTuple):
    """A hand-off that has not ended: who has it, and how the working directory stood when it was made."""

    agent: str
    evidence: Evidence
    """Of kind ``unreadable`` if it was not examined: then it counts as changed."""


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


class Round(NamedTuple):
    """A hand-off that ended well, by the one who asks now to the one who is asked now."""

    prompt: str | None
    output: str
    evidence: Evidence
    """How the working directory stood when it was made."""


MOST_EQUAL = 3
"""So often an agent may be asked the same and answer the same, with nothing changed."""


def may_be_to_and_fro(rounds: Sequence[Round], prompt: str | None) -> bool:
    """Whether it is worth a look at the directory, now and for the rounds to come."""
    return any(one.prompt == prompt for one in rounds)


def is_to_and_fro(rounds: Sequence[Round], target: str, prompt: str | None, evidence_now: Evidence) -> str | None:
    """Why one round more would come to nothing; None where it may be made. ``rounds`` has the newest first."""
    # A round that was over before anybody looked proves nothing, for or against.
    known = [one for one in rounds if one.evidence.kind != UNREADABLE]
    idle = list(takewhile(lambda one: not changed(one.evidence, evidence_now), known))
    equal = [one.output for one in idle if one.prompt == prompt][:MOST_EQUAL]
    if len(equal) < MOST_EQUAL or len(set(equal)) > 1:
        return None
    return f"{target} gave you the same answer {MOST_EQUAL} times, and the working directory is as it was before"


HINT = (
    "Do the work yourself, hand it to another agent, or end with what you know; "
    "once a file in the working directory is another, it may go back"
)
"""What the agent can do about it."""
