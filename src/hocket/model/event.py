"""Events: the append-only record that every run is folded from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Event(Struct, frozen=True):
    """One thing that happened. ``seq`` orders everything in one store.

    Made by the thousand, as is the run after each, which is why these two are structs.
    """

    seq: int
    ts: float
    run: str
    root: str
    type: str
    data: Mapping[str, Any]
