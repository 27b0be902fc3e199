"""The run list: what is live, what ended a moment ago, and what needs an answer."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.views.run_list import ENDED_SECONDS, RunList, Totals


def run(number: int, parent: int | None = None, status: str = "running", **more: Any) -> dict[str, Any]:
    row = {"id": f"r{number}", "number": number, "kind": "leaf", "agent": f"a{number}", "status": status}
    return row | {"parent": parent and f"r{parent}", "cost_usd": None, "elapsed": None, "needs_you": False, **more}


def message(*runs: dict[str, Any], complete: bool = False, asking: int | None = None) -> dict[str, Any]:
    question = {"run": f"r{asking}", "id": "q", "number": asking, "agent": "builder", "helper": "x", "cwd": "/srv/shop"}
    return {"runs": list(runs), "complete": complete, "questions": None if asking is None else [question]}


def numbers(runs: RunList, now: float = 0.0) -> list[tuple[int, int]]:
    return [(one["number"], depth) for one, depth in runs.tree(now)]


def test_trees_with_questions_come_first() -> None:
    runs = RunList()
    runs.add(message(run(1, status="done"), run(2), run(4, kind="chain"), run(3), run(5, 4), complete=True), 0.0)
    assert numbers(runs) == [(2, 0), (3, 0), (4, 0), (5, 1), (1, 0)]
    runs.add(message(run(5, 4, "waiting", needs_you=True), asking=5), 0.0)
    assert numbers(runs) == [(4, 0), (5, 1), (2, 0), (3, 0), (1, 0)]
    (question,) = runs.questions_of("r4")
    assert (question.asked_by, question.run_name) == ("5 builder/x in shop", 5)
    assert runs.questions_of("r2") == []


def test_ended_run_leaves_the_list_later() -> None:
    runs = RunList()
    runs.add(message(run(1), run(2), complete=True), 0.0)
    runs.add(message(run(1, status="failed")), 5.0)
    assert not runs.expire(4.9 + ENDED_SECONDS)
    assert runs.expire(5.0 + ENDED_SECONDS)
    assert numbers(runs) == [(2, 0)]


def test_runs_missing_after_a_new_connection_are_returned() -> None:
    runs = RunList()
    runs.add(message(run(1), run(2), run(3, status="done"), complete=True), 0.0)
    assert runs.add(message(run(2), complete=True), 9.0) == ["r1"]
    runs.add_runs([run(1, status="done")], 9.0)
    assert runs.add(message(run(2), complete=True), 9.0) == []


def test_elapsed_advances_until_the_end() -> None:
    runs = RunList()
    runs.add(message(run(1, elapsed=10.0), run(2, status="done", elapsed=10.0)), 100.0)
    assert [(runs.run(name, 105.0) or {})["elapsed"] for name in ("r1", "r2")] == [15.0, 10.0]


def test_totals_count_agents_and_add_root_costs() -> None:
    runs = RunList()
    assert runs.totals() == Totals(0, 0, 0, None)
    chain = run(1, kind="chain", cost_usd=0.5)
    idle = run(4, status="waiting", cost_usd=0.25)
    runs.add(message(chain, run(2, 1, cost_usd=0.5), run(3, 1, "waiting", needs_you=True), idle, asking=3), 0.0)
    assert runs.totals() == Totals(running=1, asking=1, waiting=1, cost=0.75)


def test_last_words_are_of_newest_agent_below() -> None:
    runs = RunList()
    runs.add(message(run(1, kind="chain"), run(2, 1, last="old"), run(3, 1, last="new"), run(4, last="other")), 0.0)
    assert runs.last_words("r1") == ("a3", "new")
    assert runs.last_words("r5") == ("", "")
    runs.add(message(run(6, last="mine"), run(7, 6, last="of a child"), run(8), run(9, 8, last="heard")), 0.0)
    assert runs.last_words("r6") == ("a6", "mine")
    assert runs.last_words("r8") == ("a9", "heard")


@pytest.mark.req("S5-14")
def test_waiting_run_becomes_idle_without_news() -> None:
    runs = RunList()
    runs.add(message(run(1, status="waiting", elapsed=1.0, idle_in=5.0), run(2, elapsed=1.0, idle_in=None)), 10.0)
    shown = [(one or {})["idle_in"] for one in (runs.run("r1", 13.0), runs.run("r1", 99.0), runs.run("r2", 99.0))]
    assert shown == [2.0, 0.0, None]
