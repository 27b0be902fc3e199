"""What runs have used, in money and tokens: one row per run that reports it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from hocket.model import Run
from hocket.store.runs import BELOW, RunQueries, batched, marks

USAGE_EVENTS = ("usage", "run.ended")
"""Types of events that say what a run has used."""
_PUT = """INSERT INTO usage (run, root, cost_usd, cost_estimated, tokens, ended_seq) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run) DO UPDATE SET cost_usd = excluded.cost_usd, cost_estimated = excluded.cost_estimated,
        tokens = excluded.tokens, ended_seq = excluded.ended_seq"""
_SUM = "SELECT sum(cost_usd), sum(tokens) FROM usage"


class RunUsage(msgspec.Struct, frozen=True):
    """What one run has used; None where it reports nothing."""

    id: str
    cost_usd: float | None
    cost_estimated: bool
    tokens: int | None


class UsageTotal(msgspec.Struct, frozen=True):
    """What several runs have used; None where none of them reports it."""

    cost_usd: float | None = None
    tokens: int | None = None
    cost_estimated: bool = False
    """True if part of the cost is an estimate."""

    def __add__(self, other: UsageTotal) -> UsageTotal:
        costs = [one.cost_usd for one in (self, other) if one.cost_usd is not None]
        tokens = [one.tokens for one in (self, other) if one.tokens is not None]
        return UsageTotal(
            sum(costs) if costs else None,
            sum(tokens) if tokens else None,
            self.cost_estimated or other.cost_estimated,
        )


def record_usage(connection: sqlite3.Connection, run: Run, seq: int) -> None:
    """Write what a run has used up to this event."""
    if run.is_counted and (run.cost_usd is not None or run.tokens is not None):
        ended = seq if run.ended else None
        row = (run.id, run.root, run.cost_usd, int(run.cost_estimated), run.tokens, ended)
        connection.execute(_PUT, row)


class UsageQueries(RunQueries):
    """RunUsage by tree."""

    def ended_usage(self, run: Run, up_to: int) -> UsageTotal:
        """Return what those at and below a run have used that had ended by this event."""
        if run.root == run.id:
            sql = f"{_SUM} WHERE root = ? AND ended_seq <= ?"
        else:
            sql = f"{BELOW} {_SUM} JOIN below ON below.id = usage.run WHERE ended_seq <= ?"
        cost, tokens = self._connection.execute(sql, (run.id, up_to)).fetchone()
        return UsageTotal(cost, tokens)

    def usage_below(self, roots: Sequence[str]) -> dict[str, UsageTotal]:
        """Return, for each run of these trees, what it and everything below it have used.

        Reads a row for each run of the trees: not for the event loop.
        """
        totals: dict[str, UsageTotal] = {}
        for some in batched(roots):
            # A run is newer than the one above it, so the sum of each run is complete when its own row is read.
            sql = f"""SELECT runs.id, runs.parent, usage.cost_usd, usage.tokens, usage.cost_estimated
                FROM runs LEFT JOIN usage ON usage.run = runs.id
                WHERE runs.root IN ({marks(some)}) ORDER BY runs.number DESC"""
            for run, parent, cost, tokens, estimated in self._connection.execute(sql, tuple(some)).fetchall():
                own = UsageTotal(cost, tokens, cost_estimated=bool(estimated))
                totals[run] = totals.get(run, UsageTotal()) + own
                if parent is not None:
                    totals[parent] = totals.get(parent, UsageTotal()) + totals[run]
        return totals

    def ended_usage_of_tree(self, root: str) -> Iterator[RunUsage]:
        """Yield what each ended run of a tree has used."""
        sql = "SELECT run, cost_usd, cost_estimated, tokens FROM usage WHERE root = ? AND ended_seq IS NOT NULL"
        for run, cost, estimated, tokens in self._connection.execute(sql, (root,)).fetchall():
            yield RunUsage(run, cost, bool(estimated), tokens)
