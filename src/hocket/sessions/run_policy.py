"""What the supervisor and the ingest ask about a run: its budget, and what ends together with it."""

from __future__ import annotations

from typing import Protocol

from hocket.model import Event, Run


class RunPolicy(Protocol):
    """Decisions that depend on more than one run."""

    def allowance(self, run: Run) -> float | None:
        """Dollars that a run may spend, asked when it is started; None without a budget."""

    def is_over_budget(self, run: Run) -> bool:
        """True if the run or an ancestor is over budget, asked when the run has ended."""

    def uncounted(self, run: Run) -> str | None:
        """Why a budget cannot hold for a run that has ended; None if it does."""

    def budget_notices(self, run: Run) -> list[Event]:
        """Notices about budgets that a run has used up with its end."""
