"""What happens next in a chain, as a function of what happened so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.chain.decide import (
    FIRST_PAUSE,
    LONGEST_LIMIT_WAIT,
    LONGEST_PAUSE,
    LONGEST_UNKNOWN_RESET_PAUSE,
    MOST_ATTEMPTS,
    MOST_LOST,
    UNKNOWN_RESET_PAUSE,
    AskUser,
    Decision,
    Finished,
    History,
    Measure,
    Outcome,
    Pause,
    RunGate,
    Start,
    StepHistory,
    add,
    busy,
    decide,
    halted,
    idle,
    no_history,
    outcome_of,
    pausing,
    step_reports,
)
from hocket.model import BoundChain, Bounds, Kind, Reason, Run, Spec, Status, Step

End = tuple[Status, Reason]

BOUNDLESS = Bounds()
OK: End = (Status.DONE, Reason.EXIT)
BAD: End = (Status.FAILED, Reason.EXIT)
KILLED: End = (Status.FAILED, Reason.SIGNAL)
STOPPED: End = (Status.STOPPED, Reason.STOPPED)
LOST: End = (Status.LOST, Reason.LOST)


SPEC = Spec("a", "executable", ("/bin/a",), "/", {})


def a_step(count: int | None, group: int | None = None, until: str | None = None, bounds: Bounds = BOUNDLESS) -> Step:
    """A single run (None) or a loop."""
    return Step("s", count or 1, count is not None, SPEC, group, until, bounds)


def chain_of(*steps: Step, until: str | None = None, on_lost: str = "ask", on_question: str = "deny") -> BoundChain:
    named = tuple(msgspec.structs.replace(step, agent=f"s{index}") for index, step in enumerate(steps))
    return BoundChain("test", named, "/", {}, until, on_lost=on_lost, on_question=on_question)


def make(*counts: int | None, until: str | None = None) -> BoundChain:
    return chain_of(*map(a_step, counts), until=until)


def end(run: str, how: End = OK, *, marker: bool = False, gate: bool | None = None, code: int = 0) -> Outcome:
    return Outcome(run, *how, exit_code=code, marker=marker, gate=gate)


def limited(run: str, ended_at: float, resets_at: float | None) -> Outcome:
    return Outcome(run, Status.FAILED, Reason.RATE_LIMITED, 1, ended_at=ended_at, resets_at=resets_at)


def overloaded(run: str, ended_at: float) -> Outcome:
    return Outcome(run, Status.FAILED, Reason.ERROR, 1, ended_at=ended_at, transient=True)


def live(run: str) -> Outcome:
    return Outcome(run, Status.RUNNING)


def history_of(*steps: list[Outcome]) -> History:
    """The history after all outcomes of every step, in order."""
    history: History = (StepHistory(),) * len(steps)
    for step, outcomes in enumerate(steps):
        for outcome in outcomes:
            history = add(history, step, outcome)
    return history


def after(chain: BoundChain, *outcomes: list[Outcome]) -> History:
    return history_of(*outcomes, *[[]] * (len(chain.steps) - len(outcomes)))


def decided(chain: BoundChain, *outcomes: list[Outcome]) -> Decision:
    return decide(chain, after(chain, *outcomes))


@pytest.mark.req("S1-B16")
def test_chain_starts_and_awaits_first_step() -> None:
    chain = make(None, None)
    history = no_history(chain)
    assert decide(chain, history) == Start(0, 1)
    assert decide(chain, add(history, 0, Outcome("r1", Status.STARTING))) == Pause()
    assert decide(chain, add(history, 0, Outcome("r1", Status.RUNNING))) == Pause()


@pytest.mark.req("S1-B14", "S1-39")
@pytest.mark.parametrize("marker", [False, True])
def test_single_run_completes_on_success(marker: bool) -> None:
    chain = make(None)
    assert decided(chain, [end("r", OK, marker=marker)]) == Finished(Status.DONE, Reason.SINGLE_RUN)
    assert decided(chain, [end("r", BAD, marker=marker)]) == Finished(Status.FAILED, Reason.EXIT, 0)
    assert decided(chain, [end("r", KILLED, marker=marker)]) == Finished(Status.FAILED, Reason.SIGNAL, 0)


@pytest.mark.req("S1-B14")
def test_single_run_with_gate_needs_both() -> None:
    chain = make(None, until="true")
    assert decided(chain, [end("r")]) == RunGate(0, "r")
    assert decided(chain, [end("r", gate=True)]) == Finished(Status.DONE, Reason.SINGLE_RUN)
    assert decided(chain, [end("r", gate=False)]) == Finished(Status.FAILED, Reason.GATE, 0)
    assert decided(chain, [end("r", BAD)]) == Finished(Status.FAILED, Reason.EXIT, 0)


@pytest.mark.req("S1-B15")
@pytest.mark.parametrize("how", [OK, BAD, KILLED])
def test_loop_ends_at_marker_with_any_exit_status(how: End) -> None:
    assert decided(make(3), [end("r", how, marker=True)]) == Finished(Status.DONE, Reason.MARKER)


@pytest.mark.req("S1-B15")
@pytest.mark.parametrize("how", [OK, BAD, KILLED])
def test_loop_fails_after_its_last_iteration(how: End) -> None:
    chain = make(2)
    assert decided(chain, [end("r1", how)]) == Start(0, 2)
    used_up = decided(chain, [end("r1", how), end("r2", how)])
    assert used_up == Finished(Status.FAILED, Reason.MAX_ITERATIONS, 0)


@pytest.mark.req("S1-B15")
def test_loop_with_gate_needs_marker_and_gate() -> None:
    chain = make(3, until="make test")
    assert decided(chain, [end("r1")]) == Start(0, 2)
    assert decided(chain, [end("r1", marker=True)]) == RunGate(0, "r1")
    assert decided(chain, [end("r1", BAD, marker=True)]) == RunGate(0, "r1")
    assert decided(chain, [end("r1", marker=True, gate=False)]) == Start(0, 2)
    assert decided(chain, [end("r1", marker=True, gate=True)]) == Finished(Status.DONE, Reason.MARKER)


@pytest.mark.parametrize(
    ("gates", "reason"),
    [
        ([False, False], Reason.GATE),
        ([False, None], Reason.GATE),
        ([None, False], Reason.GATE),
        ([None, None], Reason.MAX_ITERATIONS),
    ],
)
def test_exhausted_loop_fails_by_gate_if_one_failed(gates: list[bool | None], reason: Reason) -> None:
    runs = [end(f"r{i}", marker=gate is not None, gate=gate) for i, gate in enumerate(gates)]
    assert decided(make(2, until="make test"), runs) == Finished(Status.FAILED, reason, 0)


@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize("marker", [False, True])
def test_stopped_iteration_stops_the_chain(count: int | None, marker: bool) -> None:
    stopped = decided(make(count, None), [end("r", STOPPED, marker=marker)])
    assert stopped == Finished(Status.STOPPED, Reason.STOPPED, 0)


@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize("reason", [Reason.START_FAILED, Reason.LIMIT, Reason.TIMEOUT])
def test_external_end_ends_the_chain(count: int | None, reason: Reason) -> None:
    over = decided(make(count, None), [end("r", (Status.FAILED, reason))])
    assert over == Finished(Status.FAILED, reason, 0)


@pytest.mark.parametrize("count", [None, 5])
def test_lost_iteration_fails_the_chain(count: int | None) -> None:
    assert decided(make(count), [end("r", LOST, marker=True)]) == Finished(Status.FAILED, Reason.LOST, 0)


@pytest.mark.req("S1-B16")
def test_next_step_starts_after_completion() -> None:
    chain = make(2, None, 3)
    first = [end("r1"), end("r2", marker=True)]
    assert decided(chain, first) == Start(1, 1)
    assert decided(chain, first, [end("r3")]) == Start(2, 1)
    done = decided(chain, first, [end("r3")], [end("r4", marker=True)])
    assert done == Finished(Status.DONE, Reason.MARKER)


@pytest.mark.req("S1-B16")
def test_incomplete_step_ends_chain_with_its_index() -> None:
    over = decided(make(None, 1, None), [end("r1")], [end("r2")])
    assert over == Finished(Status.FAILED, Reason.MAX_ITERATIONS, 1)


def test_repeated_outcome_is_not_counted_twice() -> None:
    chain = make(3)
    history = no_history(chain)
    for outcome in (Outcome("r", Status.STARTING), Outcome("r", Status.RUNNING), end("r"), end("r")):
        history = add(history, 0, outcome)
    assert history[0].started == 1
    assert decide(chain, history) == Start(0, 2)


def test_history_is_kept_during_next_iteration() -> None:
    chain = make(3, until="x")
    history = after(chain, [end("r1", marker=True, gate=False)])
    history = add(history, 0, Outcome("r2", Status.RUNNING))
    assert history[0].last is not None
    assert (history[0].last.run, history[0].gate_failed, history[0].live) == ("r1", True, True)


def test_outcome_of_leaf_includes_gate_verdict() -> None:
    leaf = Run(
        id="r",
        number=1,
        kind=Kind.LEAF,
        agent="a",
        provider="executable",
        parent=None,
        root="r",
        depth=0,
        cwd="/",
        created_at=0.0,
        status=Status.FAILED,
        reason=Reason.EXIT,
        exit_code=3,
        marker=True,
    )
    assert outcome_of(leaf, gate=False) == Outcome("r", Status.FAILED, Reason.EXIT, 3, True, False)


@pytest.mark.req("S1-B16", "S1-B21")
def test_reports_include_skipped_steps() -> None:
    chain = make(None, 3, None)
    late = end("r3", (Status.FAILED, Reason.TIMEOUT))
    history = after(chain, [end("r1")], [end("r2", BAD, code=7), late])
    first = {"agent": "s0", "status": "done", "reason": "single_run", "iterations": 1, "max_iterations": 1}
    second = {"agent": "s1", "status": "failed", "reason": "timeout", "iterations": 2, "max_iterations": 3}
    third = {"agent": "s2", "status": "skipped", "reason": None, "iterations": 0, "max_iterations": 1}
    assert step_reports(chain, history, [["r1"], ["r2", "r3"], []]) == [
        {**first, "exit_code": 0, "runs": ["r1"]},
        {**second, "exit_code": 0, "runs": ["r2", "r3"]},
        {**third, "exit_code": None, "runs": []},
    ]


def test_interrupted_step_gets_the_end_of_the_chain() -> None:
    chain = make(3, None)
    history = after(chain, [end("r1", BAD, code=7)])
    stop = Finished(Status.STOPPED, Reason.STOPPED, 0)
    (report, _) = step_reports(chain, history, [["r1"], []], stop)
    assert (report["status"], report["reason"], report["exit_code"]) == ("stopped", "stopped", 7)
    (report, _) = step_reports(chain, history, [["r1"], []])
    assert (report["status"], report["reason"]) == ("running", None)


def test_decision_time_is_independent_of_iterations() -> None:
    past = StepHistory(started=999_999, last=end("r"), run="r")
    assert decide(make(1_000_000), (past,)) == Start(0, 1_000_000)


def test_findings_are_kept_when_end_is_repeated() -> None:
    chain = chain_of(a_step(5, bounds=Bounds(no_progress=2)), until="make test")
    found_out = replace(end("r1", marker=True, gate=False), progress=False)
    history = after(chain, [found_out])
    assert add(history, 0, end("r1", marker=True)) == history


# --- Groups -------------------------------------------------------------------------------------------------


def test_next_step_waits_for_all_group_members() -> None:
    chain = chain_of(a_step(None), a_step(None, 1), a_step(2, 1), a_step(None))
    first = [end("r0")]
    assert decided(chain, first) == Start(1, 1)
    assert decided(chain, first, [live("r1")]) == Start(2, 1)
    assert decided(chain, first, [live("r1")], [live("r2")]) == Pause()
    assert decided(chain, first, [end("r1")], [live("r2")]) == Pause()
    assert decided(chain, first, [live("r1")], [end("r2")]) == Start(2, 2)
    assert decided(chain, first, [live("r1")], [end("r2", marker=True)]) == Pause()
    assert decided(chain, first, [end("r1")], [end("r2", marker=True)]) == Start(3, 1)


def test_last_group_has_reason_of_last_member() -> None:
    done = [[end("r1", marker=True)], [end("r2")]]
    assert decided(chain_of(a_step(2, 0), a_step(None, 0)), *done) == Finished(Status.DONE, Reason.SINGLE_RUN)
    assert decided(chain_of(a_step(None, 0), a_step(2, 0)), *reversed(done)) == Finished(Status.DONE, Reason.MARKER)


def test_other_members_finish_after_a_failure() -> None:
    chain = chain_of(a_step(None, 1), a_step(3, 1), a_step(None))
    failed = [end("r1", KILLED)]
    assert decided(chain, failed, [live("r2")]) == Pause()
    assert decided(chain, failed, [end("r2")]) == Start(1, 2)
    assert decided(chain, failed) == Start(1, 1)
    over = decided(chain, failed, [end("r2", marker=True)])
    assert over == Finished(Status.FAILED, Reason.SIGNAL, 0)


def test_group_ends_with_reason_of_first_failure() -> None:
    chain = chain_of(a_step(None, 1), a_step(None, 1), a_step(None, 1))
    bad, killed = end("r2", BAD), end("r3", KILLED)
    assert decided(chain, [end("r1")], [bad], [killed]) == Finished(Status.FAILED, Reason.EXIT, 1)
    assert decided(chain, [end("r1")], [killed], [bad]) == Finished(Status.FAILED, Reason.SIGNAL, 1)


def test_consecutive_groups_run_one_after_another() -> None:
    chain = chain_of(a_step(None, 1), a_step(None, 1), a_step(None, 2), a_step(None, 2))
    assert decided(chain, [end("r1")], [live("r2")]) == Pause()
    assert decided(chain, [end("r1")], [end("r2")]) == Start(2, 1)


def test_group_pauses_until_the_earliest_time() -> None:
    chain = chain_of(a_step(None, 1), a_step(None, 1))
    early, late = [limited("r1", 10.0, 500.0)], [limited("r2", 20.0, 900.0)]
    assert decide(chain, after(chain, early, late), 30.0) == Pause(500.0, limited=True)
    assert decide(chain, after(chain, early, late), 500.0) == Start(0, 1, "r1")
    assert decide(chain, after(chain, [live("r1")], late), 30.0) == Pause(900.0, limited=False)
    assert decide(chain, after(chain, [overloaded("r1", 20.0)], late), 30.0) == Pause(35.0, limited=False)
    assert decide(chain, after(chain, [end("r1")], late), 30.0) == Pause(900.0, limited=True)


def test_reports_have_one_entry_for_each_member() -> None:
    chain = chain_of(a_step(None, 1), a_step(2, 1), a_step(None))
    history = after(chain, [end("r1", BAD, code=3)], [end("r2"), end("r3", marker=True)])
    reports = step_reports(chain, history, [["r1"], ["r2", "r3"], []])
    told = [(one["agent"], one["status"], one["reason"], one["iterations"], one["runs"]) for one in reports]
    assert told == [
        ("s0", "failed", "exit", 1, ["r1"]),
        ("s1", "done", "marker", 2, ["r2", "r3"]),
        ("s2", "skipped", None, 0, []),
    ]


# --- Gates of steps, and busy ones --------------------------------------------------------------------------


def test_step_gate_applies_only_to_its_step() -> None:
    chain = chain_of(a_step(None), a_step(2, until="make test"), a_step(None))
    assert decided(chain, [end("r1")]) == Start(1, 1)
    assert decided(chain, [end("r1")], [end("r2", marker=True)]) == RunGate(1, "r2")
    passed = [end("r2", marker=True, gate=True)]
    assert decided(chain, [end("r1")], passed) == Start(2, 1)
    assert decided(chain, [end("r1")], passed, [end("r3")]) == Finished(Status.DONE, Reason.SINGLE_RUN)


def test_gate_runs_after_the_last_iteration() -> None:
    chain = make(2, until="make test")
    first = end("r1")
    assert decided(chain, [first, end("r2", marker=True)]) == RunGate(0, "r2")
    assert decided(chain, [first, end("r2", marker=True, gate=True)]) == Finished(Status.DONE, Reason.MARKER)
    assert decided(chain, [first, end("r2", marker=True, gate=False)]) == Finished(Status.FAILED, Reason.GATE, 0)


def test_members_continue_while_a_gate_runs() -> None:
    chain = chain_of(a_step(2, 1), a_step(2, 1), until="make test")
    history = busy(after(chain, [end("r1", marker=True)], [live("r2")]), 0)
    assert decide(chain, history) == Pause()
    history = add(history, 1, end("r2"))
    assert decide(chain, history) == Start(1, 2)
    history = add(history, 0, end("r1", marker=True, gate=True))
    assert not history[0].busy


# --- Bounds of loops ----------------------------------------------------------------------------------------


def test_consecutive_failures_end_a_limited_loop() -> None:
    chain = chain_of(a_step(9, bounds=Bounds(failures=2)))
    assert decided(chain, [end("r1", BAD)]) == Start(0, 2)
    assert decided(chain, [end("r1", BAD), end("r2", KILLED)]) == Finished(Status.FAILED, Reason.FAILURES, 0)
    assert decided(chain, [end("r1", BAD), end("r2"), end("r3", BAD)]) == Start(0, 4)
    assert decided(make(9), [end(f"r{i}", BAD) for i in range(8)]) == Start(0, 9)


def test_marker_counts_before_failures() -> None:
    chain = chain_of(a_step(9, bounds=Bounds(failures=1)))
    assert decided(chain, [end("r1", BAD, marker=True)]) == Finished(Status.DONE, Reason.MARKER)


@pytest.mark.parametrize("interruption", [limited("x", 0.0, 1.0), overloaded("x", 0.0)])
def test_interrupted_attempt_does_not_change_failures(
    interruption: Outcome,
) -> None:
    chain = chain_of(a_step(9, bounds=Bounds(failures=2)))
    so_far = [end("r1", BAD), interruption]
    assert decide(chain, after(chain, so_far), 1e9) == Start(0, 2, "x")
    over = decide(chain, after(chain, [*so_far, end("r2", BAD)]), 1e9)
    assert over == Finished(Status.FAILED, Reason.FAILURES, 0)


def test_iterations_without_progress_end_a_limited_loop() -> None:
    chain = chain_of(a_step(9, bounds=Bounds(no_progress=2)))
    stale, moved = ([replace(end(f"r{i}"), progress=found) for i in range(3)] for found in (False, True))
    assert decided(chain, [end("r0")]) == Measure(0, "r0")
    assert decided(chain, stale[:1]) == Start(0, 2)
    assert decided(chain, [stale[0], moved[1]]) == Start(0, 3)
    assert decided(chain, [stale[0], moved[1], stale[2]]) == Start(0, 4)
    assert decided(chain, stale[:2]) == Finished(Status.FAILED, Reason.NO_PROGRESS, 0)


def test_progress_is_measured_only_if_needed() -> None:
    chain = chain_of(a_step(1, bounds=Bounds(no_progress=1)))
    assert decided(chain, [end("r0")]) == Finished(Status.FAILED, Reason.MAX_ITERATIONS, 0)
    assert decided(chain, [end("r0", marker=True)]) == Finished(Status.DONE, Reason.MARKER)
    assert decided(make(2), [end("r0")]) == Start(0, 2)


def test_progress_is_measured_after_failed_gate() -> None:
    chain = chain_of(a_step(3, bounds=Bounds(no_progress=1)), until="make test")
    refused = end("r0", marker=True, gate=False)
    assert decided(chain, [refused]) == Measure(0, "r0")
    assert decided(chain, [replace(refused, progress=False)]) == Finished(Status.FAILED, Reason.NO_PROGRESS, 0)


# --- Interruptions and limits -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [None, 3])
def test_usage_limit_pauses_without_an_iteration(count: int | None) -> None:
    chain = make(count)
    history = after(chain, [limited("r1", 100.0, 5000.0)])
    assert decide(chain, history, 100.0) == Pause(5000.0, limited=True)
    assert decide(chain, history, 4999.9) == Pause(5000.0, limited=True)
    assert decide(chain, history, 5000.0) == Start(0, 1, "r1")
    assert step_reports(chain, history, [["r1"]])[0]["iterations"] == 0


def test_consecutive_usage_limits_repeat_the_iteration() -> None:
    chain = make(3)
    limits = [limited(f"r{i}", i * 1000.0, i * 1000.0 + 800) for i in range(1, 20)]
    history = after(chain, [end("r0"), *limits])
    assert decide(chain, history, 19_000.0) == Pause(19_800.0, limited=True)
    assert decide(chain, history, 19_800.0) == Start(0, 2, "r19")
    history = add(history, 0, end("r20"))
    assert decide(chain, history, 20_000.0) == Start(0, 3)


def test_limit_that_keeps_moving_is_retried_with_backoff() -> None:
    chain = make(5)
    pauses = []
    for attempts in range(1, 40):
        told = [limited(f"r{i}", 100.0, 100.2) for i in range(attempts)]
        decision = decide(chain, after(chain, told), 100.0)
        assert isinstance(decision, Pause)
        assert decision.until is not None
        pauses.append(decision.until - 100.0)
    assert pauses[:3] == [pytest.approx(0.2), 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE == max(pauses)


def test_distant_limit_is_retried_after_a_week() -> None:
    chain = make(5)
    far = after(chain, [limited("r", 100.0, 100.0 + 10 * 365 * 86400)])
    assert decide(chain, far, 100.0) == Pause(100.0 + LONGEST_LIMIT_WAIT, limited=True)
    near = after(chain, [limited("r", 100.0, 100.0 + 6 * 86400)])
    assert decide(chain, near, 100.0) == Pause(100.0 + 6 * 86400, limited=True)


@pytest.mark.parametrize("resets_at", [None, 50.0, float("nan")], ids=["unknown", "over", "no number"])
def test_limit_without_end_is_retried_with_backoff(resets_at: float | None) -> None:
    chain = make(1)
    pauses = []
    for attempts in range(1, 8):
        told = [limited(f"r{i}", 100.0, resets_at) for i in range(attempts)]
        waiting = decide(chain, after(chain, told), 100.0)
        assert isinstance(waiting, Pause)
        assert waiting.until is not None
        pauses.append(waiting.until - 100.0)
    assert pauses[:3] == [UNKNOWN_RESET_PAUSE, 2 * UNKNOWN_RESET_PAUSE, 4 * UNKNOWN_RESET_PAUSE]
    assert pauses[-1] == LONGEST_UNKNOWN_RESET_PAUSE == max(pauses)


def test_overload_is_retried_with_backoff() -> None:
    chain = make(1)
    pauses = []
    for attempts in range(1, MOST_ATTEMPTS + 1):
        history = after(chain, [overloaded(f"r{i}", 100.0) for i in range(attempts)])
        waiting = decide(chain, history, 100.0)
        assert isinstance(waiting, Pause)
        assert waiting.until is not None
        assert not waiting.limited
        assert decide(chain, history, waiting.until) == Start(0, 1, f"r{attempts - 1}")
        pauses.append(waiting.until - 100.0)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE == max(pauses)
    assert 1200 < sum(pauses) < 3600


def test_pause_ends_when_clock_is_set_back() -> None:
    chain = make(1)
    for last in (overloaded("r1", 10_000.0), limited("r1", 10_000.0, None)):
        assert decide(chain, after(chain, [last]), 10_000.0 - 7200.0) == Start(0, 1, "r1")
    known = limited("r1", 10_000.0, 10_500.0)
    waiting = decide(chain, after(chain, [known]), 10_000.0 - 7200.0)
    assert waiting == Pause(10_500.0, limited=True), "the reset is at a time of day"


def test_overload_fails_after_too_many_attempts() -> None:
    attempts = [overloaded(f"r{i}", 100.0) for i in range(MOST_ATTEMPTS + 1)]
    single, loop = make(None), make(3)
    assert decide(single, after(single, attempts), 1e9) == Finished(Status.FAILED, Reason.ERROR, 0)
    history = after(loop, attempts)
    assert decide(loop, history, 100.0) == Start(0, 2)
    assert history[0].failing == 1
    assert decide(loop, after(loop, [*attempts, overloaded("x", 200.0)]), 200.0) == Pause(200.0 + FIRST_PAUSE)


def test_success_resets_the_backoff() -> None:
    chain = make(5)
    told = [overloaded("r1", 10.0), overloaded("r2", 20.0), end("r3"), overloaded("r4", 40.0)]
    assert decide(chain, after(chain, told), 40.0) == Pause(40.0 + FIRST_PAUSE)
    assert decide(chain, after(chain, told), 99.0) == Start(0, 2, "r4")


def test_limit_after_overload_has_its_own_backoff() -> None:
    chain = make(1)
    told = [overloaded("r1", 0.0), overloaded("r2", 0.0), limited("r3", 0.0, None)]
    assert decide(chain, after(chain, told), 1.0) == Pause(UNKNOWN_RESET_PAUSE, limited=True)


@pytest.mark.parametrize("cut_off", [limited("r", 10.0, 99.0), overloaded("r", 10.0)])
def test_marker_before_the_interruption_counts(cut_off: Outcome) -> None:
    said = replace(cut_off, marker=True)
    assert decide(make(3), after(make(3), [said]), 10.0) == Finished(Status.DONE, Reason.MARKER)
    assert step_reports(make(3), after(make(3), [said]), [["r"]])[0]["iterations"] == 1
    gated = make(3, until="make test")
    assert decide(gated, after(gated, [said]), 10.0) == RunGate(0, "r")
    assert decide(gated, after(gated, [replace(said, gate=False)]), 10.0) == Start(0, 2)


@pytest.mark.parametrize("count", [None, 3])
def test_lost_iteration_is_retried_only_if_configured(count: int | None) -> None:
    ask, retry = chain_of(a_step(count)), chain_of(a_step(count), on_lost="retry")
    lost = after(ask, [end("r1", LOST)])
    assert decide(ask, lost) == Finished(Status.FAILED, Reason.LOST, 0)
    assert step_reports(ask, lost, [["r1"]])[0]["iterations"] == 1
    assert decide(retry, lost) == Start(0, 1, "r1")


def test_lost_iteration_waits_for_the_answer() -> None:
    chain = chain_of(a_step(3, 1), a_step(None, 1), on_question="ask")
    lost = end("r1", LOST)
    assert decided(chain, [lost], [live("r2")]) == AskUser(0, "r1")
    asked = busy(after(chain, [lost], [live("r2")]), 0)
    assert decide(chain, asked) == Pause()
    assert decide(chain, add(asked, 0, replace(lost, again=True))) == Start(0, 1, "r1")
    refused = add(add(asked, 0, replace(lost, again=False)), 1, end("r2"))
    assert decide(chain, refused) == Finished(Status.FAILED, Reason.LOST, 0)
    assert add(refused, 0, lost) == refused, "an answer is not forgotten"


def test_repeatedly_lost_iteration_ends_the_chain() -> None:
    chain = chain_of(a_step(9), on_lost="retry")
    lost = [end(f"r{i}", LOST) for i in range(MOST_LOST + 1)]
    assert decided(chain, lost[:-1]) == Start(0, 1, lost[-2].run)
    assert decided(chain, lost) == Finished(Status.FAILED, Reason.LOST, 0)


def test_stop_during_a_pause_ends_the_chain() -> None:
    chain = make(3)
    stopped = Outcome("r2", Status.STOPPED, Reason.STOPPED)
    over = decide(chain, after(chain, [limited("r1", 0.0, 99.0), stopped]), 5.0)
    assert over == Finished(Status.STOPPED, Reason.STOPPED, 0)


# --- What comes from outside --------------------------------------------------------------------------------


def test_cancelled_finding_is_requested_again() -> None:
    chain = make(2, until="make test")
    history = busy(after(chain, [end("r1", marker=True)]), 0)
    assert decide(chain, history) == Pause()
    assert decide(chain, idle(history, 0)) == RunGate(0, "r1")


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.STOPPED, Status.STOPPED), (Reason.BUDGET, Status.FAILED), (Reason.TIMEOUT, Status.FAILED)],
)
@pytest.mark.parametrize(
    "told", [[], [end("r1")], [end("r1"), limited("r2", 5.0, 500.0)]], ids=["none", "one", "parked"]
)
def test_halted_step_takes_no_further_part(told: list[Outcome], reason: Reason, status: Status) -> None:
    chain = make(3, None)
    history = halted(after(chain, told), 0, reason)
    for now in (6.0, 501.0):
        assert decide(chain, history, now) == Finished(status, reason, 0)


def test_pausing_lists_steps_that_wait() -> None:
    chain = chain_of(a_step(None), a_step(None, 1), a_step(None, 1), a_step(None, 1), a_step(None))
    parked = limited("r1", 5.0, 500.0)
    history = after(chain, [end("r0")], [parked], [live("r2")], [overloaded("r3", 5.0)])
    assert pausing(chain, history, 6.0) == [1, 3]
    assert pausing(chain, history, 100.0) == [1]
    assert pausing(chain, history, 500.0) == []


# --- Whole lives --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """What will become of one run, whenever it is started, and what will be found out about it."""

    how: End = OK
    marker: bool = True
    gate: bool = True
    progress: bool = True
    transient: bool = False
    resets_in: float | None = None
    again: bool = True
    """The answer to a question about it."""


LIMIT: End = (Status.FAILED, Reason.RATE_LIMITED)
ERROR: End = (Status.FAILED, Reason.ERROR)
TIMEOUT: End = (Status.FAILED, Reason.TIMEOUT)
ends = st.sampled_from([OK, OK, OK, OK, BAD, KILLED, ERROR, LIMIT, LIMIT, LOST, TIMEOUT, STOPPED])
attempts = st.builds(
    Attempt,
    ends,
    st.sampled_from([False, False, True]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.none() | st.sampled_from([-5.0, 1.0, 4000.0]),
    st.booleans(),
)
rows = st.sampled_from([1, 1, 2, MOST_ATTEMPTS + 1])
"""How often in a row the same becomes of a step's attempts."""
a_bound = st.none() | st.integers(1, 3)
steps = st.builds(
    a_step,
    st.none() | st.integers(1, 4),
    until=st.none() | st.just("make test"),
    bounds=st.builds(Bounds, failures=a_bound, no_progress=a_bound),
)


@st.composite
def chains(draw: st.DrawFn) -> BoundChain:
    """Steps and groups, with gates and bounds of all kinds."""
    stages = draw(st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=3))
    members = [
        msgspec.structs.replace(step, group=number if len(stage) > 1 else None)
        for number, stage in enumerate(stages)
        for step in stage
    ]
    return chain_of(
        *members,
        until=draw(st.none() | st.just("make")),
        on_lost=draw(st.sampled_from(["ask", "retry"])),
        on_question=draw(st.sampled_from(["ask", "deny"])),
    )


@st.composite
def lives(draw: st.DrawFn) -> tuple[BoundChain, list[list[Attempt]]]:
    chain = draw(chains())
    # A marker counts only in a loop.
    scripts = [draw(st.lists(st.tuples(attempts, rows), max_size=4)) for _ in chain.steps]
    return chain, [
        [replace(one, marker=one.marker and step.loop) for one, times in script for _ in range(times)]
        for step, script in zip(chain.steps, scripts, strict=True)
    ]


def kind_of(outcome: Outcome) -> str | None:
    """Why an iteration that ended so may be none, said once more and differently."""
    if outcome.status is Status.LOST:
        return "lost"
    if outcome.marker or outcome.status is not Status.FAILED:
        return None
    return "limit" if outcome.reason is Reason.RATE_LIMITED else "transient" if outcome.transient else None


def are_free(outcomes: Sequence[Outcome]) -> list[bool]:
    """Of each iteration, whether it counts for none: the rule told without any sums kept from one to the next."""
    free: list[bool] = []
    most = {"limit": len(outcomes), "transient": MOST_ATTEMPTS, "lost": MOST_LOST}
    row = 0
    for before, outcome in zip([None, *outcomes], outcomes, strict=False):
        kind = kind_of(outcome)
        row = row + 1 if before and kind and kind == kind_of(before) and free[-1] else 1
        free.append(kind is not None and row <= most[kind])
    return free


@dataclass
class Life:
    """Does what ``decide`` says until it says that it is over, and checks each thing it is told to do.

    ``choose(n)`` picks which of n things that are under way comes to its end next; ``crashes()`` says whether
    everything that was not told is forgotten just now.
    """

    chain: BoundChain
    scripts: list[list[Attempt]]
    choose: Callable[[int], int]
    crashes: Callable[[], bool]
    now: float = 1000.0
    news: int = 0
    told: list[list[Outcome]] = field(default_factory=list)
    under_way: dict[int, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.told = [[] for _ in self.chain.steps]
        self.history = no_history(self.chain)
        self.stage_of: list[int] = []
        """By step, the number of its first member."""
        for index, step in enumerate(self.chain.steps):
            together = index > 0 and step.group is not None and step.group == self.chain.steps[index - 1].group
            self.stage_of.append(self.stage_of[-1] if together else index)

    def whole(self) -> Finished:
        for _ in range(1500):
            self._look_back()
            decision = decide(self.chain, self.history, self.now)
            if isinstance(decision, Finished):
                assert not self.under_way, "it ended while something was going on"
                return decision
            if isinstance(decision, Pause):
                self._wait(decision)
            else:
                self._begin(decision)
        raise AssertionError("the chain never ended")

    def _look_back(self) -> None:
        """History that grew news by news is the same as history that is told afterwards."""
        rebuilt = history_of(*self.told)
        assert tuple(replace(past, busy=False) for past in self.history) == rebuilt
        if self.crashes():
            self.history = rebuilt
            self.under_way = {step: what for step, what in self.under_way.items() if isinstance(what, Start)}

    def _wait(self, decision: Pause) -> None:
        if self.under_way:
            step = sorted(self.under_way)[self.choose(len(self.under_way))]
            assert not decision.limited
            self._finish(step, self.under_way.pop(step))
            return
        assert decision.until is not None, "it waits for nothing"
        assert decision.until > self.now
        self.now = decision.until

    def _begin(self, decision: Start | RunGate | Measure | AskUser) -> None:
        step = decision.step
        assert step not in self.under_way, "it is being done already"
        if isinstance(decision, Start):
            self._check_start(decision)
            run = f"{step}.{len(self.told[step])}"
            self.told[step].append(live(run))
            self.history = add(self.history, step, live(run))
        else:
            last = self.told[step][-1]
            assert decision.run == last.run
            known = {RunGate: last.gate, Measure: last.progress, AskUser: last.again}
            assert known[type(decision)] is None, "once is enough"
            self.history = busy(self.history, step)
        self.under_way[step] = decision

    def _check_start(self, decision: Start) -> None:
        outcomes = self.told[decision.step]
        free = are_free(outcomes)
        assert decision.iteration == free.count(False) + 1 <= self.chain.steps[decision.step].iterations
        assert decision.after == (outcomes[-1].run if free and free[-1] else None)
        if free and free[-1] and outcomes[-1].resets_at is not None:
            ended = outcomes[-1].ended_at or 0.0
            assert kind_of(outcomes[-1]) != "limit" or self.now >= max(outcomes[-1].resets_at, ended)
        stage = self.stage_of[decision.step]
        for index, past in enumerate(self.told):
            if self.stage_of[index] < stage:
                assert self._is_complete(index), "a step was skipped"
            elif self.stage_of[index] > stage:
                assert not past, "a step was begun too early"

    def _is_complete(self, index: int) -> bool:
        step = self.chain.steps[index]
        last = self.told[index][-1]
        said = last.marker if step.loop else last.status is Status.DONE
        return said and (last.gate is True or not (step.until or self.chain.until))

    def _finish(self, step: int, what: Decision) -> None:
        number = len(self.told[step]) - 1
        script = self.scripts[step]
        attempt = script[number] if number < len(script) else Attempt(marker=self.chain.steps[step].loop)
        last = self.told[step][-1]
        if isinstance(what, Start):
            self.now += 1.0
            last = self._ended(last.run, attempt)
        elif isinstance(what, RunGate):
            last = replace(last, gate=attempt.gate)
        elif isinstance(what, AskUser):
            last = replace(last, again=attempt.again)
        else:
            last = replace(last, progress=attempt.progress)
        self.told[step][-1] = last
        self.news += 1
        self.history = add(self.history, step, last)

    def _ended(self, run: str, attempt: Attempt) -> Outcome:
        resets_at = None if attempt.resets_in is None else self.now + attempt.resets_in
        return replace(
            Outcome(run, *attempt.how, marker=attempt.marker, transient=attempt.transient),
            ended_at=self.now,
            resets_at=resets_at,
        )

    def timeless(self) -> list[list[Outcome]]:
        return [[replace(one, ended_at=None, resets_at=None) for one in step] for step in self.told]


def never() -> bool:
    return False


@settings(max_examples=200, deadline=None)
@given(lives(), st.integers(0, 2**32))
def test_every_chain_ends_within_its_limits(drawn: tuple[BoundChain, list[list[Attempt]]], seed: int) -> None:
    chain, scripts = drawn
    life = Life(chain, scripts, random.Random(seed).randrange, never)
    finished = life.whole()
    runs = [[one.run for one in step] for step in life.told]
    reports = step_reports(chain, life.history, runs, finished)
    if finished.status is Status.DONE:
        assert all(report["status"] == "done" for report in reports)
        assert finished.reason.value == reports[-1]["reason"]
    else:
        assert finished.failed_step is not None
        blamed = reports[finished.failed_step]
        assert (blamed["status"], blamed["reason"]) == (finished.status.value, finished.reason.value)
        later = [index for index, stage in enumerate(life.stage_of) if stage > life.stage_of[finished.failed_step]]
        assert all(reports[index]["status"] == "skipped" for index in later)
    assert all(report["iterations"] <= report["max_iterations"] for report in reports)


@settings(max_examples=200, deadline=None)
@given(lives(), st.integers(0, 2**32))
def test_crashes_and_event_order_keep_the_outcome(drawn: tuple[BoundChain, list[list[Attempt]]], seed: int) -> None:
    chain, scripts = drawn
    dice = random.Random(seed)
    calm = Life(chain, scripts, lambda count: 0, never)
    wild = Life(chain, scripts, dice.randrange, lambda: dice.random() < 0.3)
    assert wild.whole() == calm.whole()
    assert wild.timeless() == calm.timeless()


@settings(max_examples=100, deadline=None)
@given(lives())
def test_crash_after_every_event_changes_nothing(drawn: tuple[BoundChain, list[list[Attempt]]]) -> None:
    chain, scripts = drawn
    calm = Life(chain, scripts, lambda count: count - 1, never)
    crashed_after: list[int] = [0]

    def crashes() -> bool:
        """Once after each piece of news: without any between two crashes, no gate would ever come to its end."""
        is_new = wild.news != crashed_after[-1]
        crashed_after.append(wild.news)
        return is_new

    wild = Life(chain, scripts, lambda count: count - 1, crashes)
    assert wild.whole() == calm.whole()
    assert wild.told == calm.told
