"""Runs that come into being together: a chain with the first of its steps, a loop with the first of its passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from hocket.model import Event
from hocket.model.task import Order
from hocket.store import NewRun


@dataclass(slots=True)
class Births:
    """All of it becomes true in one transaction, or nothing does."""

    events: list[Event] = field(default_factory=list)
    new: dict[str, NewRun] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
