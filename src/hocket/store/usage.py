"""What runs have used, in money and tokens: one row per run that reports it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from hocket.model import Kind, Run
from hocket.store.runs import BELOW, RunQueries

SPENDERS = (Kind.LEAF, Kind.LEAD)
"""Kinds of runs that use something themselves; an inner run reports the sum of its own."""
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


def record_usage(connection: sqlite3.Connection, run: Run, seq: int) -> None:
    """Write what a run has used up to this event."""
    if run.kind in SPENDERS and (run.cost_usd is not None or run.tokens is not None):
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

    def ended_usage_of_tree(self, root: str) -> Iterator[RunUsage]:
        """Yield what each ended run of a tree has used."""
        sql = "SELECT run, cost_usd, cost_estimated, tokens FROM usage WHERE root = ? AND ended_seq IS NOT NULL"
        for run, cost, estimated, tokens in self._connection.execute(sql, (root,)).fetchall():
            yield RunUsage(run, cost, bool(estimated), tokens)
