"""Budgets: a budget counts for the run that has it and the whole tree below it, across providers.

Usage is added up from commits. When a budget is used up, everything below it is stopped once and fails, including an
agent that had just finished. Without a reported cost the estimate for the tokens counts; an agent that reports neither
cannot be counted, which a notice says. All of it can be computed again from the store. The share of a budget that a
single agent is started with is the business of its provider.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from hocket.errors import HocketError, LimitReached
from hocket.model import Bounds, Event, Kind, Reason, Run
from hocket.providers import PROVIDERS
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.stops import Stops
from hocket.store import Committed

_DUST = 1e-9
"""Sums of prices in binary are never quite what they should be."""
_SPENDERS = (Kind.LEAF, Kind.LEAD)
"""Only these spend; what inner runs report is the sum of theirs."""


class PendingAgents(NamedTuple):
    """Agents that are about to be started beside a run and are not recorded yet."""

    agents: int = 0
    inside: frozenset[str] = frozenset()
    """The run itself and those around it that the others will not be below."""

    def below(self, run_id: str) -> int:
        return 0 if run_id in self.inside else self.agents


NO_PENDING = PendingAgents()


class Spent(NamedTuple):
    """What a run, or a tree of them, has used."""

    usd: float = 0.0
    tokens: int = 0


def is_capped(run: Run | Bounds) -> bool:
    return run.budget_usd is not None or run.budget_tokens is not None


def reports_usage(provider: str | None) -> bool:
    """Whether runs of a provider report tokens: all but those whose output is plain text."""
    known = PROVIDERS.get(provider or "")
    return known is None or known.text_output is None


def tells_what_it_spends(run: Run) -> bool:
    return run.kind in _SPENDERS and reports_usage(run.provider)


def excess(run: Run, spent: Spent) -> str | None:
    """In words, how a run's bound is reached; None while there is something left."""
    if run.budget_usd is not None and spent.usd >= run.budget_usd - _DUST:
        return f"the budget of ${run.budget_usd:.2f} is used up: ${spent.usd:.2f}"
    if run.budget_tokens is not None and spent.tokens >= run.budget_tokens:
        return f"the budget of {run.budget_tokens:,} tokens is used up: {spent.tokens:,}"
    return None


class _Budget:
    """A run with a bound, and what was spent below it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.spent = Spent()
        self.known: dict[str, Spent] = {}
        """By run: what is told twice counts once."""
        self.live: set[str] = set()
        """Runs below that have not ended. The budget is kept for as long as there are any."""
        self.spenders: set[str] = set()
        """Those among them that tell what they spend."""
        self.unheld: set[str] = set()
        """Agents of which it was said that they tell nothing to count."""
        self.is_told = False
        """Whether it was said that it is used up."""
        self.is_closed = False
        """Whether the end of everything below was asked for."""

    def pay(self, run: Run) -> None:
        if run.kind in _SPENDERS:
            self.spent = self.with_(run)
            self.known[run.id] = _spent_by(run)

    def with_(self, run: Run) -> Spent:
        """What is spent with what this run has used by now, which may be news."""
        before, now = self.known.get(run.id, Spent()), _spent_by(run)
        return Spent(self.spent.usd + now.usd - before.usd, self.spent.tokens + now.tokens - before.tokens)


def _spent_by(run: Run) -> Spent:
    return Spent(run.cost_usd or 0.0, run.tokens or 0)


class Budgets:
    """The bounds of all live runs of this server."""

    def __init__(self, journal: Journal, stops: Stops) -> None:
        self._journal = journal
        self._stops = stops
        self._budgets: dict[str, _Budget] = {}
        self._payers: dict[str, tuple[_Budget, ...]] = {}
        """The budgets that a live run spends from; runs without any are not here."""
        self._tasks = BackgroundTasks()
        self._loop = asyncio.get_running_loop()
        self._closing = False

    def open(self) -> None:
        """Learn again what live runs have spent, and listen from now on."""
        for run in list(self._journal.live.values()):
            self._enrol(run)
        self._journal.listen(self._on_commit)
        for budget in list(self._budgets.values()):
            self._look_at(budget)

    async def close(self) -> None:
        self._closing = True
        await self._tasks.close()

    # Asking

    def check(self, parent: Run | None) -> None:
        """Nothing new starts where everything is spent."""
        for budget in self._budgets_above(parent):
            if (why := excess(budget.run, budget.spent)) is not None:
                raise LimitReached(
                    f"budget: {why} by run {budget.run.number} and all below it",
                    "Start it outside of that run, or give the run a larger budget",
                )

    def left(self, run: Run, coming: PendingAgents = NO_PENDING) -> float | None:
        """Dollars that a run may spend: its share of every budget above it; None without a budget.

        A running program keeps the share that it was started with. What others leave over goes to runs that are
        started later, so the shares may add up to more than the budget; the budget ends all of them when it is used up.
        """
        bounds = [
            (budget.run.budget_usd - budget.spent.usd) / max(1, len(budget.spenders) + coming.below(budget.run.id))
            for budget in self._payers.get(run.id, ())
            if budget.run.budget_usd is not None
        ]
        return max(0.0, min(bounds)) if bounds else None

    def unheld(self, run: Run) -> str | None:
        """In words, that a bound cannot hold for a run that has ended; once for each agent below that bound."""
        if run.cost_usd is not None or run.tokens is not None:
            return None
        budgets = [budget for budget in self._payers.get(run.id, ()) if run.agent not in budget.unheld]
        for budget in budgets:
            budget.unheld.add(run.agent)
        if not budgets:
            return None
        return f"{run.agent} told neither money nor tokens: no budget can hold for it"

    def is_over(self, run: Run) -> bool:
        """Whether a live run, with what it has used by now, is below a bound that is reached."""
        return any(excess(budget.run, budget.with_(run)) is not None for budget in self._payers.get(run.id, ()))

    def used_up(self, run: Run) -> list[Event]:
        """What is to be said, with the end of a run, of bounds that are reached by what it has used; once for each."""
        told = []
        for budget in self._payers.get(run.id, ()):
            spent = budget.with_(run)
            if (why := excess(budget.run, spent)) is not None:
                told += self._told(budget, spent, why)
        return told

    def _told(self, budget: _Budget, spent: Spent, why: str) -> list[Event]:
        now = self._journal.live.get(budget.run.id)
        if budget.is_told or now is None or now.stop_reason is not None:
            return []
        budget.is_told = True
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
                budget.pay(run)
                self._look_at(budget)
            if run.ended:
                self._strike_off(run)

    def _enrol(self, run: Run, *, is_new: bool = False) -> None:
        capped = [one for one in self._journal.above(run) if is_capped(one)]
        if not capped:
            return
        budgets = tuple(self._budget_of(one, is_new=is_new and one is run) for one in capped)
        self._payers[run.id] = budgets
        for budget in budgets:
            budget.live.add(run.id)
            if tells_what_it_spends(run):
                budget.spenders.add(run.id)
            if budget.is_closed:  # It was born while everything below was being ended, and not seen.
                budget.is_closed = False

    def _strike_off(self, run: Run) -> None:
        for budget in self._payers.pop(run.id, ()):
            budget.live.discard(run.id)
            budget.spenders.discard(run.id)
            if not budget.live:
                self._budgets.pop(budget.run.id, None)

    def _budget_of(self, run: Run, *, is_new: bool = False) -> _Budget:
        budget = self._budgets.get(run.id)
        if budget is None:
            budget = self._budgets[run.id] = _Budget(run)
            if not is_new:
                spent = self._journal.spent_below(run)
                budget.spent = Spent(spent.cost_usd or 0.0, spent.tokens or 0)
                budget.known = {one.id: _spent_by(one) for one in self._journal.live_below(run.id)}
        return budget

    # Ending

    def _look_at(self, budget: _Budget) -> None:
        why = None if budget.is_closed else excess(budget.run, budget.spent)
        if why is not None and not self._closing:
            budget.is_closed = True
            self._tasks.spawn(self._close(budget, why))

    async def _close(self, budget: _Budget, why: str) -> None:
        try:
            await self._tell(budget, why)
            live = self._journal.live
            await self._stops.request([live[run_id] for run_id in budget.live if run_id in live], Reason.BUDGET)
        except HocketError:
            # It could not be recorded: a full disk, most likely. Nothing that was spent becomes less of it.
            self._loop.call_later(RETRY_AFTER, self._reopen, budget)

    async def _tell(self, budget: _Budget, why: str) -> None:
        try:
            if told := self._told(budget, budget.spent, why):
                await self._journal.write(told)
        except HocketError:
            budget.is_told = False
            raise

    def _reopen(self, budget: _Budget) -> None:
        budget.is_closed = False
        if budget.run.id in self._budgets:
            self._look_at(budget)
