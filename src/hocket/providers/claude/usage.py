"""Tokens and cost of one process.

In a resumed session the CLI reports totals of the session. Its first result also has what was used since the last
result, which gives the share of earlier processes.
"""

from __future__ import annotations

from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.output_lines import dict_in, number_in, text_in

_SINCE_LAST_RESULT = "model_usage_since_last_result"
_OF_MESSAGES = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_TOKENS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")


def estimate(state: State, tokens: int) -> ReaderEvent:
    """Usage between two results, without a cost: the last known one stays."""
    state["unsettled"] = state.get("unsettled", 0) + tokens
    return "usage", {"tokens": state.get("tokens", 0) + state["unsettled"], "estimate": True}


def tokens_of(message: dict[str, Any]) -> int:
    """The tokens of one request, by the usage of its message."""
    return sum(int(used) for kind in _OF_MESSAGES if (used := _amount(message, kind)))


def unpriced_tokens(state: State) -> int:
    """Tokens of an interrupted turn, after one that reported its cost."""
    return int(state.get("unsettled", 0)) if state.get("priced") else 0


def settled(state: State, result: dict[str, Any]) -> ReaderEvent:
    """Usage as a result reports it."""
    total, models = _amount(result, "total_cost_usd"), dict_in(result, "modelUsage")
    tokens = _tokens(models) if isinstance(result.get("modelUsage"), dict) else None
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


def restart(state: State) -> None:
    """After a clear the CLI counts from zero again in the same process."""
    state["spent_before"] = [-state.get("cost", 0), -state.get("tokens", 0)]


def continued(state: State) -> State:
    """The state of a reader that goes on where another one ended: totals of the session include that one's share."""
    if "spent_before" not in state:
        return {}
    cost, tokens = state["spent_before"]
    return {"spent_before": [cost + state.get("cost", 0), tokens + state.get("tokens", 0)]}


def forked(cost: float, tokens: int) -> State:
    """The state of a reader of a copied session, whose totals include what earlier processes have used."""
    return {"spent_before": [cost, tokens]}


def _before(total: float | None, tokens: int | None, result: dict[str, Any]) -> list[Any]:
    if not isinstance(result.get(_SINCE_LAST_RESULT), dict):
        return [0, 0]
    since = dict_in(result, _SINCE_LAST_RESULT)
    cost = sum(_amount(model, "costUSD") or 0 for model in since.values())
    return [_less(total or 0, cost), max(0, (tokens or 0) - _tokens(since))]


def _less(total: float, part: float) -> float:
    # Differences of floating-point prices are off by far less than a cent.
    return max(0, round(total - part, 10))


def _tokens(models: dict[str, Any]) -> int:
    return sum(int(used) for model in models.values() for kind in _TOKENS if (used := _amount(model, kind)))


def _amount(value: Any, key: str) -> float | int | None:
    """A number that is not negative: an invalid one must not reduce a sum."""
    found = number_in(value, key)
    return None if found is None or found < 0 else found


def _basis(models: dict[str, Any]) -> str | None:
    """The price list, if it is the same for all models."""
    found = {text_in(model, "costBasis") for model in models.values()}
    return (found.pop() or None) if len(found) == 1 else None
