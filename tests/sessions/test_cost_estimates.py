"""Tokens without a price: estimated only where no cost is reported, and never during a turn."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from hocket.model import Event, Kind, Run, apply
from hocket.sessions import cost_estimates

RUN = Run("r1", 1, Kind.LEAF, "a", "claude", None, "r1", 0, "/", 0.0)
PRICE = 10.0


def usage(**data: Any) -> Event:
    return Event(0, 0.0, "r1", "r1", "usage", data)


def after(*events: Event) -> Run:
    return reduce(apply, cost_estimates.priced(RUN, events, PRICE), RUN)


FINAL = usage(tokens=500_000, cost_usd=None, estimate=False)


@pytest.mark.parametrize(
    ("events", "cost", "is_estimated"),
    [
        ([], None, False),
        ([usage(tokens=500_000, estimate=True)], None, False),
        ([FINAL], 5.0, True),
        ([usage(tokens=500_000, cost_usd=float("nan"), estimate=False)], 5.0, True),
        ([usage(tokens=0, cost_usd=None, estimate=False)], None, False),
        ([usage(cost_usd=None, estimate=False)], None, False),
        ([FINAL, usage(tokens=700_000, estimate=False)], 7.0, True),
        ([FINAL, usage(tokens=700_000, cost_usd=0.5, estimate=False)], 0.5, False),
        ([usage(tokens=5, cost_usd=0.5, estimate=False), FINAL], 0.5, False),
    ],
)
def test_cost_of_a_run_is_estimated(events: list[Event], cost: float | None, is_estimated: bool) -> None:
    run = after(*events)
    assert (run.cost_usd, run.cost_estimated) == (cost, is_estimated)


def test_ended_run_is_priced_by_its_known_usage() -> None:
    cut_off = after(usage(tokens=500_000, estimate=True))
    assert cost_estimates.of(cut_off, PRICE) == {"cost_usd": 5.0, "cost_estimated": True}
    assert cost_estimates.of(after(usage(tokens=1, cost_usd=0.0, estimate=False)), PRICE) == {}


def test_usage_after_last_cost_is_estimated() -> None:
    told = after(usage(tokens=100_000, cost_usd=0.25, estimate=False), usage(tokens=600_000, estimate=True))
    assert (told.cost_usd, told.cost_estimated) == (0.25, False)
    assert cost_estimates.of(told, PRICE, 500_000) == {"cost_usd": 5.25, "cost_estimated": True}
    assert cost_estimates.of(told, PRICE, 0) == {}


def test_other_events_are_unchanged() -> None:
    events = [Event(0, 0.0, "r1", "r1", "text", {"text": "x"}), FINAL]
    assert cost_estimates.priced(RUN, events[:1], PRICE) == events[:1]
    assert cost_estimates.priced(RUN, events, PRICE)[0] is events[0]
