"""A chain whose step is halted from outside, or that waits for an answer about a step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hocket.chain.decide import (
    AskUser,
    Finished,
    Outcome,
    Pause,
    Start,
    add,
    busy,
    decide,
    halted,
    idle,
    no_history,
    pausing,
    step_reports,
)
from hocket.model import BoundChain, Reason, Spec, Status, Step

SPEC = Spec("a", "executable", ("/bin/a",), "/", {})


def chain(*groups: int | None) -> BoundChain:
    return BoundChain("c", tuple(Step(f"s{n}", 3, True, SPEC, group) for n, group in enumerate(groups)), "/", {})


def ended(run: str, *, marker: bool = False) -> Outcome:
    return Outcome(run, Status.DONE, Reason.EXIT, 0, marker)


def limited(run: str) -> Outcome:
    return Outcome(run, Status.FAILED, Reason.RATE_LIMITED, 1, ended_at=100.0, resets_at=500.0)


def test_idle_step_repeats_its_request() -> None:
    one = chain(None)
    history = add(no_history(one), 0, ended("r1"))
    assert decide(one, busy(history, 0)) == Pause()
    assert idle(busy(history, 0), 0) == history
    assert decide(one, idle(busy(history, 0), 0)) == Start(0, 2)


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.STOPPED, Status.STOPPED), (Reason.BUDGET, Status.FAILED), (Reason.TIMEOUT, Status.FAILED)],
)
def test_halted_step_ends_chain_with_its_reason(reason: Reason, status: Status) -> None:
    two = chain(None, None)
    history = halted(add(no_history(two), 0, ended("r1")), 0, reason)
    assert decide(two, history) == Finished(status, reason, 0)
    reports = step_reports(two, history, [["r1"], []], Finished(status, reason, 0))
    assert [(report["status"], report["iterations"]) for report in reports] == [(status.value, 1), ("skipped", 0)]


def test_unstarted_halted_step_is_skipped() -> None:
    two = chain(None, None)
    history = halted(add(no_history(two), 0, ended("r1", marker=True)), 1, Reason.STOPPED)
    end = decide(two, history)
    assert end == Finished(Status.STOPPED, Reason.STOPPED, 1)
    reports = step_reports(two, history, [["r1"], []], end)
    assert [report["status"] for report in reports] == ["done", "skipped"]


def test_halted_step_does_not_wait_for_limit() -> None:
    one = chain(None)
    history = add(no_history(one), 0, limited("r1"))
    assert decide(one, history, 200.0) == Pause(500.0, limited=True)
    assert decide(one, halted(history, 0, Reason.STOPPED), 200.0) == Finished(Status.STOPPED, Reason.STOPPED, 0)


def test_group_members_continue_beside_halted_member() -> None:
    two = chain(1, 1)
    history = add(add(no_history(two), 0, ended("r1")), 1, ended("r2"))
    halved = halted(history, 0, Reason.STOPPED)
    assert decide(two, halved) == Start(1, 2)
    assert decide(two, add(halved, 1, ended("r3", marker=True))) == Finished(Status.STOPPED, Reason.STOPPED, 0)


def test_only_waiting_steps_are_pausing() -> None:
    three = chain(1, 1, 1)
    history = add(no_history(three), 0, limited("r1"))
    history = add(history, 1, Outcome("r2", Status.RUNNING))
    history = busy(add(history, 2, ended("r3")), 2)
    assert pausing(three, history, 200.0) == [0]
    assert pausing(three, history, 600.0) == []


def lost(run: str, again: bool | None = None) -> Outcome:
    return Outcome(run, Status.LOST, Reason.LOST, ended_at=100.0, again=again)


def test_lost_iteration_is_asked_about_if_allowed() -> None:
    asking = chain(None)
    history = add(no_history(asking), 0, lost("r1"))
    assert decide(asking, history) == AskUser(0, "r1")
    assert decide(asking, busy(history, 0)) == Pause()
    for said in ("deny", "fail"):
        assert decide(replace(asking, on_question=said), history) == Finished(Status.FAILED, Reason.LOST, 0)
    assert decide(replace(asking, on_lost="retry"), history) == Start(0, 1, "r1")


def test_answer_counts_for_one_lost_iteration() -> None:
    asking = replace(chain(None), on_question="ask")
    history = busy(add(no_history(asking), 0, lost("r1")), 0)
    assert decide(asking, add(history, 0, lost("r1", again=False))) == Finished(Status.FAILED, Reason.LOST, 0)
    agreed = add(history, 0, lost("r1", again=True))
    assert decide(asking, agreed) == Start(0, 1, "r1")
    assert decide(asking, add(agreed, 0, lost("r2"))) == AskUser(0, "r2")


def test_step_with_open_question_can_be_halted() -> None:
    asking = replace(chain(None), on_question="ask")
    history = halted(add(no_history(asking), 0, lost("r1")), 0, Reason.STOPPED)
    assert decide(asking, history) == Finished(Status.STOPPED, Reason.STOPPED, 0)
