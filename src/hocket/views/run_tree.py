"""Runs as a tree: every run below its parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Run = dict[str, Any]


def tree_order(runs: Sequence[Run]) -> list[tuple[Run, int]]:
    """Every run after its parent, by number, with its depth among the runs that are listed."""
    listed = {run["id"] for run in runs}
    children: dict[str | None, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.get("number") or 0):
        parent = run.get("parent")
        children.setdefault(parent if parent in listed else None, []).append(run)
    ordered: list[tuple[Run, int]] = []
    pending = [(run, 0) for run in reversed(children.get(None, []))]
    while pending:
        run, depth = pending.pop()
        ordered.append((run, depth))
        pending += [(child, depth + 1) for child in reversed(children.get(run["id"], []))]
    return ordered
