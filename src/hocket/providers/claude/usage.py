"""What a run has used: tokens and money of this process alone.

The program counts on where a resumed session stopped, so its first result also tells, by what was used since the last
one, how much came from earlier processes.
"""

from __future__ import annotations

from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude import wire_names
from hocket.providers.json_values import dict_in, number_in, text_in

_SINCE_LAST_RESULT = "model_usage_since_last_result"


def estimate(state: State, tokens: int) -> ReaderEvent:
    """What is known between two results. Money is left out: a known cost stays known."""
    state["unsettled"] = state.get("unsettled", 0) + tokens
    return "usage", {"tokens": state.get("tokens", 0) + state["unsettled"], "estimate": True}


def unpriced_tokens(state: State) -> int:
    """The tokens of a turn that was cut off, after one that told its cost."""
    return int(state.get("unsettled", 0)) if state.get("priced") else 0


def settled(state: State, result: dict[str, Any]) -> ReaderEvent:
    """What a result says has been used."""
    total, models = _amount(result, "total_cost_usd"), dict_in(result, wire_names.MODEL_USAGE)
    tokens = _tokens(models) if isinstance(result.get(wire_names.MODEL_USAGE), dict) else None
    if "spent_before" not in state:
        state["spent_before"] = _before(total, tokens, result)
    cost_before, tokens_before = state["spent_before"]
    data: dict[str, Any] = {"cost_basis": _basis(models), "estimate": False}
    if total is not None or not state.get("priced"):
        data["cost_usd"] = None if total is None else _less(total, cost_before)
    if tokens is not None or "tokens" not in state:
        data["tokens"] = None if tokens is None else max(0, tokens - tokens_before)
    state["priced"] = state.get("priced") or total is not None
    state["cost"] = data.get("cost_usd") or state.get("cost", 0)
    state["tokens"] = data.get("tokens") or state.get("tokens", 0)
    state["unsettled"] = 0
    return "usage", data


def count_anew(state: State) -> None:
    """The program begins at zero again in the same process, and what was used so far was used all the same."""
    state["spent_before"] = [-state.get("cost", 0), -state.get("tokens", 0)]


def _before(total: float | None, tokens: int | None, result: dict[str, Any]) -> list[Any]:
    if not isinstance(result.get(_SINCE_LAST_RESULT), dict):
        return [0, 0]
    since = dict_in(result, _SINCE_LAST_RESULT)
    cost = sum(_amount(model, wire_names.COST) or 0 for model in since.values())
    return [_less(total or 0, cost), max(0, (tokens or 0) - _tokens(since))]


def _less(total: float, part: float) -> float:
    # Sums of prices in binary leave dust far below a cent; nobody is charged for it.
    return max(0, round(total - part, 10))


def _tokens(models: dict[str, Any]) -> int:
    return sum(int(used) for model in models.values() for kind in wire_names.TOKENS if (used := _amount(model, kind)))


def _amount(value: Any, key: str) -> float | int | None:
    """What was used. Less than nothing is no amount, and must not make up for anything."""
    found = number_in(value, key)
    return None if found is None or found < 0 else found


def _basis(models: dict[str, Any]) -> str | None:
    """Whose prices these are, where all models agree about it."""
    found = {text_in(model, wire_names.COST_BASIS) for model in models.values()}
    return (found.pop() or None) if len(found) == 1 else None
