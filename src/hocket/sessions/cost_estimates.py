"""What a run may have cost that tells how many tokens it used and not what they cost: a price of ours for each.

A guess, and marked as one wherever it goes: a budget that counted nothing instead would not be one. Only what is final
is priced. A program that tells its costs at the end of a turn tells tokens before that, and most of those are cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hocket.model import Event, Run, apply

_MILLION = 1_000_000


def of(run: Run, usd_per_mtok: float, unpriced: int = 0) -> Mapping[str, Any]:
    """The cost of a run, with its mark, where nobody told all of it; nothing where there is nothing to estimate.

    ``unpriced`` are the tokens that were used after the last cost was told.
    """
    if run.cost_usd is None or run.cost_estimated:
        told, tokens = 0.0, run.tokens or 0
    else:
        told, tokens = run.cost_usd, unpriced
    if not tokens:
        return {}
    return {"cost_usd": told + tokens * usd_per_mtok / _MILLION, "cost_estimated": True}


def priced(run: Run, events: Sequence[Event], usd_per_mtok: float) -> list[Event]:
    """The same events, those completed that tell what was used and not what it cost."""
    if not any(map(_is_final, events)):
        return list(events)
    told: list[Event] = []
    for event in events:
        cost = of(apply(run, event), usd_per_mtok) if _is_final(event) else {}
        told.append(replace(event, data={**event.data, **cost}) if cost else event)
        run = apply(run, told[-1])
    return told


def _is_final(event: Event) -> bool:
    return event.type == "usage" and not event.data.get("estimate")
