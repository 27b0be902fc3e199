"""Budgets: a budget counts for the run that has it and the whole tree below it, across providers.

Usage is added up from commits. When a budget is used up, everything below it is stopped once and fails, including an
agent that had just finished. Without a reported cost the estimate for the tokens counts; an agent that reports neither
cannot be counted, which a notice says. All of it can be computed again from the store.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from hocket.errors import LimitReached
from hocket.model import Bounds, Event, Reason, Run
from hocket.providers import PROVIDERS
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import Journal
from hocket.sessions.stops import Stops
from hocket.store import Committed
from hocket.workflows.chain_state import LiveChains

_ROUNDING = 1e-9
"""A tolerance for sums of prices, which are not exact in binary."""


class Spent(NamedTuple):
    """What a run, or a tree of them, has used."""

    usd: float = 0.0
    tokens: int = 0


def is_capped(run: Run | Bounds) -> bool:
    return run.budget_usd is not None or run.budget_tokens is not None


def reports_usage(provider: str | None) -> bool:
    """Whether runs of a provider report tokens."""
    known = PROVIDERS.get(provider or "")
    return known is None or known.reports_tokens


def excess(run: Run, spent: Spent) -> str | None:
    """In words, which budget of a run is used up; None if none is."""
    if run.budget_usd is not None and spent.usd >= run.budget_usd - _ROUNDING:
        return f"the budget of ${run.budget_usd:.2f} is used up: ${spent.usd:.2f}"
    if run.budget_tokens is not None and spent.tokens >= run.budget_tokens:
        return f"the budget of {run.budget_tokens:,} tokens is used up: {spent.tokens:,}"
    return None


class _Budget:
    """A run with a budget, and what was spent below it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.spent = Spent()
        self.counted: dict[str, Spent] = {}
        """By run, because usage may be reported twice."""
        self.live: set[str] = set()
        """Runs below that have not ended. The budget is kept as long as there are any."""
        self.spenders: set[str] = set()
        """Those among them that report what they spend."""
        self.uncounted: set[str] = set()
        """Agents with a notice that they report nothing to count."""
        self.is_reported = False
        """Whether there was a notice that it is used up."""
        self.is_closed = False
        """Whether a stop of everything below was requested."""

    def add(self, run: Run) -> None:
        if run.is_counted:
            self.spent = self.spent_with(run)
            self.counted[run.id] = _spent_by(run)

    def spent_with(self, run: Run) -> Spent:
        """What is spent, including the current usage of this run, which may not have been added yet."""
        before, now = self.counted.get(run.id, Spent()), _spent_by(run)
        return Spent(self.spent.usd + now.usd - before.usd, self.spent.tokens + now.tokens - before.tokens)


def _spent_by(run: Run) -> Spent:
    return Spent(run.cost_usd or 0.0, run.tokens or 0)


class Budgets:
    """The budgets of all live runs of this server."""

    def __init__(self, journal: Journal, stops: Stops, chains: LiveChains) -> None:
        self._journal = journal
        self._stops = stops
        self._chains = chains
        self._budgets: dict[str, _Budget] = {}
        self._payers: dict[str, tuple[_Budget, ...]] = {}
        """The budgets that a live run spends from; runs without any are not here."""
        self._tasks = BackgroundTasks()
        self._closing = False

    def open(self) -> None:
        """Add up what live runs have spent, and listen from now on."""
        for run in list(self._journal.live.values()):
            self._enrol(run)
        self._journal.listen(self._on_commit)
        for budget in list(self._budgets.values()):
            self._close_if_exceeded(budget)

    async def close(self) -> None:
        self._closing = True
        await self._tasks.close()

    # Queries

    def check(self, parent: Run | None) -> None:
        """Raise if a budget of the parent or of a run above it is used up."""
        for budget in self._budgets_above(parent):
            if (why := excess(budget.run, budget.spent)) is not None:
                raise LimitReached(
                    f"budget: {why} by run {budget.run.number} and all below it",
                    "Start it outside of that run, or give the run a larger budget",
                )

    def allowance(self, run: Run) -> float | None:
        """Dollars that a run may spend: its share of every budget above it; None without a budget.

        A running program keeps the share that it was started with. What others leave over goes to runs that are
        started later, so the shares may add up to more than the budget; the budget ends all of them when it is used up.
        """
        pending, own = self._chains.pending_beside(run)
        coming = sum(reports_usage(step.spec.provider) for step in pending)
        shares = [
            (budget.run.budget_usd - budget.spent.usd)
            / max(1, len(budget.spenders) + (0 if budget.run.id in own else coming))
            for budget in self._payers.get(run.id, ())
            if budget.run.budget_usd is not None
        ]
        return max(0.0, min(shares)) if shares else None

    def uncounted(self, run: Run) -> str | None:
        """In words, that no budget can hold for a run that has ended; once for each agent below a budget."""
        if run.cost_usd is not None or run.tokens is not None:
            return None
        budgets = [budget for budget in self._payers.get(run.id, ()) if run.agent not in budget.uncounted]
        for budget in budgets:
            budget.uncounted.add(run.agent)
        return f"{run.agent} reported neither cost nor tokens: no budget can hold for it" if budgets else None

    def is_over_budget(self, run: Run) -> bool:
        """Whether a live run, with its current usage, or a run above it has used up its budget."""
        return any(excess(budget.run, budget.spent_with(run)) is not None for budget in self._payers.get(run.id, ()))

    def budget_notices(self, run: Run) -> list[Event]:
        """Notices about budgets that the usage of an ending run has used up; one for each budget."""
        budgets = self._payers.get(run.id, ())
        return [notice for budget in budgets for notice in self._notices(budget, budget.spent_with(run))]

    def _notices(self, budget: _Budget, spent: Spent) -> list[Event]:
        why, now = excess(budget.run, spent), self._journal.live.get(budget.run.id)
        if why is None or budget.is_reported or now is None or now.stop_reason is not None:
            return []
        budget.is_reported = True
        data = {"kind": "budget", "text": why, "cost_usd": spent.usd, "tokens": spent.tokens}
        return [Event(0, time.time(), now.id, now.root, "notice", data)]

    def _budgets_above(self, parent: Run | None) -> tuple[_Budget, ...]:
        if parent is None:
            return ()
        known = self._payers.get(parent.id)
        if known is not None or parent.id in self._journal.live:
            return known or ()
        return tuple(self._budget_of(run) for run in self._journal.above(parent) if is_capped(run))

    # Adding up

    def _on_commit(self, committed: Committed) -> None:
        for event in committed.events:
            if event.type == "run.created" and event.run in committed.runs:
                self._enrol(committed.runs[event.run], is_new=True)
        if not self._payers:
            return
        for run in committed.runs.values():
            for budget in self._payers.get(run.id, ()):
                budget.add(run)
                self._close_if_exceeded(budget)
            if run.ended:
                for budget in self._payers.pop(run.id, ()):
                    budget.live.discard(run.id)
                    budget.spenders.discard(run.id)
                    if not budget.live:
                        self._budgets.pop(budget.run.id, None)

    def _enrol(self, run: Run, *, is_new: bool = False) -> None:
        capped = [one for one in self._journal.above(run) if is_capped(one)]
        if not capped:
            return
        self._payers[run.id] = tuple(self._budget_of(one, is_new=is_new and one is run) for one in capped)
        for budget in self._payers[run.id]:
            budget.live.add(run.id)
            if run.is_counted and reports_usage(run.provider):
                budget.spenders.add(run.id)
            # A stop of everything below may just have been requested, which did not include this run.
            budget.is_closed = False

    def _budget_of(self, run: Run, *, is_new: bool = False) -> _Budget:
        budget = self._budgets.get(run.id)
        if budget is None:
            budget = self._budgets[run.id] = _Budget(run)
            if not is_new:
                spent = self._journal.spent_below(run)
                budget.spent = Spent(spent.cost_usd or 0.0, spent.tokens or 0)
                budget.counted = {one.id: _spent_by(one) for one in self._journal.live_below(run.id)}
        return budget

    def _close_if_exceeded(self, budget: _Budget) -> None:
        if not (budget.is_closed or self._closing) and excess(budget.run, budget.spent) is not None:
            budget.is_closed = True
            self._tasks.spawn(self._close(budget))

    async def _close(self, budget: _Budget) -> None:
        """Stop everything below a budget that is used up."""
        if notices := self._notices(budget, budget.spent):
            await self._journal.insist(notices)
        live = self._journal.live
        await self._stops.insist([live[run_id] for run_id in budget.live if run_id in live], Reason.BUDGET)
