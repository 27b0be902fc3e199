"""Estimates the cost of runs that report tokens and no cost, at one price per token.

Estimates are marked as such everywhere. Only final usage is priced: a CLI that reports cost at the end of a turn
reports tokens earlier, and most of those are cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hocket.model import Event, Run, apply

_MILLION = 1_000_000


def of(run: Run, usd_per_mtok: float, unpriced: int = 0) -> Mapping[str, Any]:
    """The estimated cost of a run with its mark; empty if there is nothing to estimate.

    ``unpriced`` are the tokens used after the last reported cost.
    """
    if run.cost_usd is None or run.cost_estimated:
        reported, tokens = 0.0, run.tokens or 0
    else:
        reported, tokens = run.cost_usd, unpriced
    if not tokens:
        return {}
    return {"cost_usd": reported + tokens * usd_per_mtok / _MILLION, "cost_estimated": True}


def priced(run: Run, events: Sequence[Event], usd_per_mtok: float) -> list[Event]:
    """The same events, with a cost added to final usage that has none."""
    if not any(map(_is_final, events)):
        return list(events)
    completed: list[Event] = []
    for event in events:
        cost = of(apply(run, event), usd_per_mtok) if _is_final(event) else {}
        completed.append(replace(event, data={**event.data, **cost}) if cost else event)
        run = apply(run, completed[-1])
    return completed


def _is_final(event: Event) -> bool:
    return event.type == "usage" and not event.data.get("estimate")
