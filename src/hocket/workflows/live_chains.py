"""The live chains of this server, and what they and the budgets decide about a run: the engine's run policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from hocket.chain import decide
from hocket.chain.decide import Finished
from hocket.model import Event, Run
from hocket.sessions.journal import Journal
from hocket.workflows import step_prompts
from hocket.workflows.budgets import NO_PENDING, Budgets, PendingAgents, reports_usage
from hocket.workflows.chain_state import NO_STANDINGS, ChainState
from hocket.workflows.worktrees import Standing

log = logging.getLogger("hocket")


class LiveChains:
    """Chains by their own run and by the leaf that is running."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.by_run: dict[str, ChainState] = {}
        self.by_child: dict[str, ChainState] = {}

    def worktree_paths(self) -> set[str]:
        """Every worktree that a live chain may still use."""
        return {tree.path for state in self.by_run.values() for tree in state.all_trees()}

    def ending_with(self, leaf: Run) -> list[Event]:
        """The ends of a chain and its inner runs, if the end of this leaf finishes it and nothing else is to do."""
        state = self.by_child.get(leaf.id)
        if state is None or state.turn.locked() or any(state.all_trees()):
            return []
        try:
            after = state.after(leaf)
            decision = decide.decide(after.chain, after.history, time.time())
            if isinstance(decision, Finished) and not self._has_company(state, leaf):
                return self.ends(after, decision)
        except Exception:
            # The end of the leaf must not fail for that of its chain.
            log.exception("chain %s could not be ended together with its last run", state.id)
        return []

    def ends(self, state: ChainState, end: Finished, standings: Mapping[int, Standing] = NO_STANDINGS) -> list[Event]:
        """The ends of a chain's inner runs, then its own."""
        live, now = self._journal.live, time.time()
        ends = [(inner.run, inner.data) for inner in state.endings(end)]
        ends.append((state.id, state.report(end, standings)))
        return [Event(0, now, run, live[run].root, "run.ended", data) for run, data in ends]

    def beside(self, run: Run) -> PendingAgents:
        """Members of the run's group that are still to be started."""
        state = self.by_child.get(run.id)
        if state is None or run.step is None or (first := state.group_of(run.step)) is None:
            return NO_PENDING
        members = (step for step in step_prompts.stage(state.chain, first) if not state.history[step].started)
        count = sum(reports_usage(state.chain.steps[step].spec.provider) for step in members)
        return PendingAgents(count, frozenset({run.id, *state.owners(run.step)[1:]}))

    def _has_company(self, state: ChainState, leaf: Run) -> bool:
        """Whether another run of the tree is live, whose cost may belong into the report."""
        own = {leaf.id, state.id, *state.inner}
        return any(run.root == leaf.root and run.id not in own for run in self._journal.live.values())


class TreePolicy:
    """The run policy of an engine: budgets and chains."""

    def __init__(self, budgets: Budgets, chains: LiveChains) -> None:
        self._budgets = budgets
        self._chains = chains

    def allowance(self, run: Run) -> float | None:
        return self._budgets.left(run, self._chains.beside(run))

    def is_over_budget(self, run: Run) -> bool:
        return self._budgets.is_over(run)

    def uncounted(self, run: Run) -> str | None:
        return self._budgets.unheld(run)

    def budget_notices(self, run: Run) -> list[Event]:
        return self._budgets.used_up(run)

    def ending_with(self, run: Run) -> list[Event]:
        return self._chains.ending_with(run)
