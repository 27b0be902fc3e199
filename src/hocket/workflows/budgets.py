"""What runs may spend. A bound counts for the whole tree below the run that has it, whoever the agents in it are.

Every commit that tells of usage is added up here, and when a bound is reached everything below it is ended, once, and
fails: also an agent that was done with its work, because whether it was a moment earlier is nothing to build on.
Where nobody told of money, the estimate counts that the run was given for its tokens; of who tells neither nothing can
be counted, and it is said so. All of it can be learned again from the store. What a single agent is told about its own
budget is its provider's business.
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


class Coming(NamedTuple):
    """Agents that are about to be started beside a run, which nobody has recorded yet."""

    agents: int = 0
    inside: frozenset[str] = frozenset()
    """The run itself and those around it that the others will not be below."""

    def below(self, run_id: str) -> int:
        return 0 if run_id in self.inside else self.agents


NOBODY = Coming()


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


class _Purse:
    """A run with a bound, and what was spent below it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.spent = Spent()
        self.known: dict[str, Spent] = {}
        """By run: what is told twice counts once."""
        self.live: set[str] = set()
        """Runs below that have not ended. The purse is kept for as long as there are any."""
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
        self._purses: dict[str, _Purse] = {}
        self._payers: dict[str, tuple[_Purse, ...]] = {}
        """The purses that a live run spends from; runs without any are not here."""
        self._tasks = BackgroundTasks()
        self._loop = asyncio.get_running_loop()
        self._closing = False

    def open(self) -> None:
        """Learn again what live runs have spent, and listen from now on."""
        for run in list(self._journal.live.values()):
            self._enrol(run)
        self._journal.listen(self._on_commit)
        for purse in list(self._purses.values()):
            self._look_at(purse)

    async def close(self) -> None:
        self._closing = True
        await self._tasks.close()

    # Asking

    def check(self, parent: Run | None) -> None:
        """Nothing new starts where everything is spent."""
        for purse in self._purses_above(parent):
            if (why := excess(purse.run, purse.spent)) is not None:
                raise LimitReached(
                    f"budget: {why} by run {purse.run.number} and all below it",
                    "Start it outside of that run, or give the run a larger budget",
                )

    def left(self, run: Run, coming: Coming = NOBODY) -> float | None:
        """Dollars that a run may still spend, where others spend from the same purses its part; None where nobody says.

        Who was told once keeps to that, also when others have ended and left something: a program that runs cannot be
        told another sum. What they left goes to those that are started later, such as the next passes of a loop. With
        what others were told before and have not spent, these may be told more than there is; the purse ends all of
        them when it is empty.
        """
        bounds = [
            (purse.run.budget_usd - purse.spent.usd) / max(1, len(purse.spenders) + coming.below(purse.run.id))
            for purse in self._payers.get(run.id, ())
            if purse.run.budget_usd is not None
        ]
        return max(0.0, min(bounds)) if bounds else None

    def unheld(self, run: Run) -> str | None:
        """In words, that a bound cannot hold for a run that has ended; once for each agent below that bound."""
        if run.cost_usd is not None or run.tokens is not None:
            return None
        purses = [purse for purse in self._payers.get(run.id, ()) if run.agent not in purse.unheld]
        for purse in purses:
            purse.unheld.add(run.agent)
        if not purses:
            return None
        return f"{run.agent} told neither money nor tokens: no budget can hold for it"

    def is_over(self, run: Run) -> bool:
        """Whether a live run, with what it has used by now, is below a bound that is reached."""
        return any(excess(purse.run, purse.with_(run)) is not None for purse in self._payers.get(run.id, ()))

    def used_up(self, run: Run) -> list[Event]:
        """What is to be said, with the end of a run, of bounds that are reached by what it has used; once for each."""
        told = []
        for purse in self._payers.get(run.id, ()):
            spent = purse.with_(run)
            if (why := excess(purse.run, spent)) is not None:
                told += self._told(purse, spent, why)
        return told

    def _told(self, purse: _Purse, spent: Spent, why: str) -> list[Event]:
        now = self._journal.live.get(purse.run.id)
        if purse.is_told or now is None or now.stop_reason is not None:
            return []
        purse.is_told = True
        data = {"kind": "budget", "text": why, "cost_usd": spent.usd, "tokens": spent.tokens}
        return [Event(0, time.time(), now.id, now.root, "notice", data)]

    def _purses_above(self, parent: Run | None) -> tuple[_Purse, ...]:
        if parent is None:
            return ()
        known = self._payers.get(parent.id)
        if known is not None or parent.id in self._journal.live:
            return known or ()
        return tuple(self._purse(run) for run in self._journal.above(parent) if is_capped(run))

    # Adding up

    def _on_commit(self, committed: Committed) -> None:
        for event in committed.events:
            if event.type == "run.created" and event.run in committed.runs:
                self._enrol(committed.runs[event.run], is_new=True)
        if not self._payers:
            return
        for run in committed.runs.values():
            for purse in self._payers.get(run.id, ()):
                purse.pay(run)
                self._look_at(purse)
            if run.ended:
                self._strike_off(run)

    def _enrol(self, run: Run, *, is_new: bool = False) -> None:
        capped = [one for one in self._journal.above(run) if is_capped(one)]
        if not capped:
            return
        purses = tuple(self._purse(one, is_new=is_new and one is run) for one in capped)
        self._payers[run.id] = purses
        for purse in purses:
            purse.live.add(run.id)
            if tells_what_it_spends(run):
                purse.spenders.add(run.id)
            if purse.is_closed:  # It was born while everything below was being ended, and not seen.
                purse.is_closed = False

    def _strike_off(self, run: Run) -> None:
        for purse in self._payers.pop(run.id, ()):
            purse.live.discard(run.id)
            purse.spenders.discard(run.id)
            if not purse.live:
                self._purses.pop(purse.run.id, None)

    def _purse(self, run: Run, *, is_new: bool = False) -> _Purse:
        purse = self._purses.get(run.id)
        if purse is None:
            purse = self._purses[run.id] = _Purse(run)
            if not is_new:
                spent = self._journal.spent_below(run)
                purse.spent = Spent(spent.cost_usd or 0.0, spent.tokens or 0)
                purse.known = {one.id: _spent_by(one) for one in self._journal.live_below(run.id)}
        return purse

    # Ending

    def _look_at(self, purse: _Purse) -> None:
        why = None if purse.is_closed else excess(purse.run, purse.spent)
        if why is not None and not self._closing:
            purse.is_closed = True
            self._tasks.spawn(self._close(purse, why))

    async def _close(self, purse: _Purse, why: str) -> None:
        try:
            await self._tell(purse, why)
            live = self._journal.live
            await self._stops.request([live[run_id] for run_id in purse.live if run_id in live], Reason.BUDGET)
        except HocketError:
            # It could not be recorded: a full disk, most likely. Nothing that was spent becomes less of it.
            self._loop.call_later(RETRY_AFTER, self._reopen, purse)

    async def _tell(self, purse: _Purse, why: str) -> None:
        try:
            if told := self._told(purse, purse.spent, why):
                await self._journal.write(told)
        except HocketError:
            purse.is_told = False
            raise

    def _reopen(self, purse: _Purse) -> None:
        purse.is_closed = False
        if purse.run.id in self._purses:
            self._look_at(purse)
