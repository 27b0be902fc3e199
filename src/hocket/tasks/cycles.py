"""Detects hand-offs in circles: back to an agent that waits for the task, or repeatedly with the same answer.

Pure: ``workflows.directory_state`` takes the snapshots, and ``tasks.service`` decides about the hand-off. Asking an
agent a second time is fine, for example if a tester returns a repaired program; only repetition without any change
is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from hocket.errors import Cycle
from hocket.model.task import Handoff
from hocket.workflows.directory_state import UNREADABLE, Snapshot, changed

MAX_EQUAL = 3
"""How often an agent may be asked the same and answer the same with nothing changed."""
HINT = (
    "Do the work yourself, hand it to another agent, or end with what you know; "
    "once a file in the working directory has changed, the task may be handed back"
)


class Round(NamedTuple):
    """A completed hand-off between the same two agents."""

    prompt: str | None
    output: str
    snapshot: Snapshot
    """The working directory when it was made."""


def stored_snapshot(snapshot: Snapshot) -> str:
    """The text by which a hand-off's record keeps a snapshot."""
    return f"{snapshot.kind} {snapshot.state}"


def snapshot_of(stored: str | None) -> Snapshot:
    """The snapshot of a hand-off's record; an unreadable one, which counts as changed, if there is none."""
    kind, _, state = (stored or UNREADABLE).partition(" ")
    return Snapshot(state, kind, "")


def check_cycle(open_: Sequence[Handoff], target: str, now: Snapshot) -> None:
    """Raise if a hand-off would only go in a circle.

    ``open_`` has the open hand-offs from the outermost to the innermost, whose agent makes the new one.
    """
    # Any earlier time counts, not only the last: a change that another agent undid is no progress either.
    same = [
        place for place, one in enumerate(open_) if one.agent == target and not changed(snapshot_of(one.evidence), now)
    ]
    if same:
        path = " -> ".join([*(one.agent for one in open_[same[-1] :]), target])
        raise Cycle(
            f"{target} has this task already and waits for it ({path}), and the working directory is as it was then",
            HINT,
        )


def may_be_repeated(rounds: Sequence[Round], prompt: str | None) -> bool:
    """Whether a snapshot is needed to decide about a hand-off."""
    return any(one.prompt == prompt for one in rounds)


def check_repetition(rounds: Sequence[Round], target: str, prompt: str | None, now: Snapshot) -> None:
    """Raise if one more round would bring the same answer. ``rounds`` has the newest first."""
    # A round without a snapshot proves nothing.
    known = [one for one in rounds if one.snapshot.kind != UNREADABLE]
    unchanged = takewhile(lambda one: not changed(one.snapshot, now), known)
    equal = [one.output for one in unchanged if one.prompt == prompt][:MAX_EQUAL]
    if len(equal) == MAX_EQUAL and len(set(equal)) == 1:
        raise Cycle(
            f"{target} gave you the same answer {MAX_EQUAL} times, and the working directory is as it was before", HINT
        )
