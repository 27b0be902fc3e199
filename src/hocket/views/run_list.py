"""The run list: all runs that have not ended and the open questions, as a server reports them and their changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hocket.views.names import PROCESS_KINDS, agent_name
from hocket.views.run_view import OpenQuestion
from hocket.views.text import one_line

Run = dict[str, Any]

ENDED_SECONDS = 30.0
"""How long a run that has ended stays in the list."""
_ENDED = frozenset({"done", "failed", "stopped", "lost"})
_WORKING = frozenset({"starting", "running"})


class Totals(NamedTuple):
    """What the runs of a list amount to."""

    running: int
    """Agents that work: neither a chain nor an agent that waits counts."""
    asking: int
    """Runs with an open question."""
    waiting: int
    """Agents that wait for a message, and chains that wait for a time."""
    cost: float | None
    """The sum over the roots; None if none is known."""


class RunList:
    """Add every message of the stream of changes. ``now`` is a time that is never set."""

    def __init__(self) -> None:
        self.questions: dict[tuple[str, str], OpenQuestion] = {}
        """The open questions, the oldest first, by run and id."""
        self._runs: dict[str, Run] = {}
        self._received: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        """When each run that has ended was seen to have."""

    def add(self, message: dict[str, Any], now: float) -> list[str]:
        """Take one message; return the runs that ended while nothing was received: ``add_runs`` wants them."""
        self.add_runs(message["runs"], now)
        if message.get("questions") is not None:
            self.questions = {(one["run"], one["id"]): open_question(one) for one in message["questions"]}
        if not message.get("complete"):
            return []
        listed = {run["id"] for run in message["runs"]}
        return [name for name in self._runs if name not in listed and name not in self._ended]

    def add_runs(self, runs: Iterable[Run], now: float) -> None:
        """Take the current state of some runs."""
        for run in runs:
            name = run["id"]
            if run["status"] in _ENDED and name not in self._ended:
                self._ended[name] = now
            self._runs[name], self._received[name] = run, now

    def drop(self, name: str) -> None:
        """Forget a run."""
        for kept in (self._runs, self._received, self._ended):
            kept.pop(name, None)

    def expire(self, now: float) -> bool:
        """Drop the runs that ended a while ago; true if there were any."""
        old = [name for name, at in self._ended.items() if now - at >= ENDED_SECONDS]
        for name in old:
            self.drop(name)
        return bool(old)

    def run(self, name: str | None, now: float) -> Run | None:
        """One run, its ``elapsed`` and ``idle_in`` as of now."""
        run = self._runs.get(name or "")
        if run is None or run["status"] in _ENDED or run.get("elapsed") is None:
            return run
        passed = max(0.0, now - self._received[run["id"]])
        idle = {"idle_in": max(0.0, run["idle_in"] - passed)} if run.get("idle_in") is not None else {}
        return {**run, "elapsed": run["elapsed"] + passed, **idle}

    def tree(self, now: float) -> list[tuple[Run, int]]:
        """Every run with its depth: trees in which a run needs an answer first, those that have ended last."""
        trees: list[list[tuple[Run, int]]] = []
        for run, depth in tree_order([shown for name in self._runs if (shown := self.run(name, now)) is not None]):
            if depth == 0:
                trees.append([])
            trees[-1].append((run, depth))
        return [row for tree in sorted(trees, key=_urgency) for row in tree]

    def questions_of(self, name: str) -> list[OpenQuestion]:
        """The open questions of a run and of everything below it."""
        return [one for one in self.questions.values() if name in self._above(one.run)]

    def totals(self) -> Totals:
        """Count the runs that have not ended."""
        live = [run for run in self._runs.values() if run["status"] not in _ENDED]
        costs = [run["cost_usd"] for run in self._runs.values() if run.get("parent") not in self._runs]
        known = [cost for cost in costs if cost is not None]
        return Totals(
            sum(run["kind"] in PROCESS_KINDS and run["status"] in _WORKING for run in live),
            len({run for run, _ in self.questions}),
            sum(_waits(run) for run in live),
            sum(known) if known else None,
        )

    def last_words(self, name: str) -> tuple[str, str]:
        """Who has said something, and what that was: an agent itself, else the newest live one below a run."""

        def order(run: Run) -> tuple[bool, int]:
            return run["id"] != name or run["kind"] not in PROCESS_KINDS, -(run.get("number") or 0)

        for run in sorted(self._runs.values(), key=order):
            if run.get("last") and run["status"] not in _ENDED and name in self._above(run["id"]):
                return agent_name(str(run["agent"])), str(run["last"])
        return "", ""

    def _above(self, name: str | None) -> list[str]:
        """A run and those above it, as far as they are listed."""
        line: list[str] = []
        while name is not None and name in self._runs:
            line.append(name)
            name = self._runs[name].get("parent")
        return line


def _urgency(tree: Sequence[tuple[Run, int]]) -> int:
    if any(run.get("needs_you") for run, _ in tree):
        return 0
    return 1 if any(run["status"] not in _ENDED for run, _ in tree) else 2


def _waits(run: Run) -> bool:
    is_parked = run.get("parked_until") is not None and run["kind"] == "chain"
    return not run.get("needs_you") and run["status"] == "waiting" and (run["kind"] in PROCESS_KINDS or is_parked)


def open_question(question: dict[str, Any]) -> OpenQuestion:
    """A row of the inbox as a question of a run view."""
    since = float(question.get("asked_at") or 0.0)
    return OpenQuestion(question["run"], question, since, asked_by(question), question["number"])


def asked_by(question: dict[str, Any]) -> str:
    """``42 builder in shop``, with the sub-agent behind the agent."""
    agent = agent_name(str(question.get("agent") or "?"))
    helper = f"/{one_line(str(question['helper']))}" if question.get("helper") else ""
    place = str(question.get("cwd") or "").rstrip("/").rpartition("/")[2]
    return f"{question['number']} {agent}{helper}" + (f" in {one_line(place)}" if place else "")


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
