"""What happens next in a chain, as a function of what happened so far."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.chain import (
    Decision,
    Finished,
    History,
    Outcome,
    RunGate,
    Start,
    StepHistory,
    Wait,
    add,
    decide,
    no_history,
    outcome_of,
    step_reports,
    summarise,
)
from hocket.model import BoundChain, Kind, Reason, Run, Spec, Status, Step

End = tuple[Status, Reason]

OK: End = (Status.DONE, Reason.EXIT)
BAD: End = (Status.FAILED, Reason.EXIT)
KILLED: End = (Status.FAILED, Reason.SIGNAL)
STOPPED: End = (Status.STOPPED, Reason.STOPPED)
LOST: End = (Status.LOST, Reason.LOST)


def make(*steps: int | None, until: str | None = None) -> BoundChain:
    """A chain of single runs (None) and loops."""
    spec = Spec("a", "executable", ("/bin/a",), "/", {})
    bound = tuple(Step(f"s{i}", count or 1, count is not None, spec) for i, count in enumerate(steps))
    return BoundChain("test", bound, "/", {}, until)


def end(run: str, how: End = OK, *, marker: bool = False, gate: bool | None = None, code: int = 0) -> Outcome:
    return Outcome(run, *how, exit_code=code, marker=marker, gate=gate)


def after(chain: BoundChain, *outcomes: list[Outcome]) -> History:
    return summarise([*outcomes, *[[]] * (len(chain.steps) - len(outcomes))])


def decided(chain: BoundChain, *outcomes: list[Outcome]) -> Decision:
    return decide(chain, after(chain, *outcomes))


@pytest.mark.req("S1-B16")
def test_a_chain_begins_with_its_first_step_and_waits_for_it() -> None:
    chain = make(None, None)
    history = no_history(chain)
    assert decide(chain, history) == Start(0, 1)
    assert decide(chain, add(history, 0, Outcome("r1", Status.STARTING))) == Wait()
    assert decide(chain, add(history, 0, Outcome("r1", Status.RUNNING))) == Wait()


@pytest.mark.req("S1-B14", "S1-39")
@pytest.mark.parametrize("marker", [False, True])
def test_a_single_run_is_complete_exactly_when_it_ends_well_whatever_it_said(marker: bool) -> None:
    chain = make(None)
    assert decided(chain, [end("r", OK, marker=marker)]) == Finished(Status.DONE, Reason.SINGLE_RUN)
    assert decided(chain, [end("r", BAD, marker=marker)]) == Finished(Status.FAILED, Reason.EXIT, 0)
    assert decided(chain, [end("r", KILLED, marker=marker)]) == Finished(Status.FAILED, Reason.SIGNAL, 0)


@pytest.mark.req("S1-B14")
def test_a_single_run_with_a_gate_needs_both() -> None:
    chain = make(None, until="true")
    assert decided(chain, [end("r")]) == RunGate(0, "r")
    assert decided(chain, [end("r", gate=True)]) == Finished(Status.DONE, Reason.SINGLE_RUN)
    assert decided(chain, [end("r", gate=False)]) == Finished(Status.FAILED, Reason.GATE, 0)
    assert decided(chain, [end("r", BAD)]) == Finished(Status.FAILED, Reason.EXIT, 0)


@pytest.mark.req("S1-B15")
@pytest.mark.parametrize("how", [OK, BAD, KILLED])
def test_a_loop_ends_at_the_marker_whatever_the_exit_status(how: End) -> None:
    assert decided(make(3), [end("r", how, marker=True)]) == Finished(Status.DONE, Reason.MARKER)


@pytest.mark.req("S1-B15")
@pytest.mark.parametrize("how", [OK, BAD, KILLED])
def test_a_loop_goes_on_without_the_marker_and_fails_when_used_up(how: End) -> None:
    chain = make(2)
    assert decided(chain, [end("r1", how)]) == Start(0, 2)
    used_up = decided(chain, [end("r1", how), end("r2", how)])
    assert used_up == Finished(Status.FAILED, Reason.MAX_ITERATIONS, 0)


@pytest.mark.req("S1-B15")
def test_a_loop_with_a_gate_needs_the_marker_and_then_the_gate() -> None:
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
def test_a_used_up_loop_blames_the_gate_if_one_ever_failed(gates: list[bool | None], reason: Reason) -> None:
    runs = [end(f"r{i}", marker=gate is not None, gate=gate) for i, gate in enumerate(gates)]
    assert decided(make(2, until="make test"), runs) == Finished(Status.FAILED, reason, 0)


@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize("marker", [False, True])
def test_a_stopped_iteration_stops_the_chain(count: int | None, marker: bool) -> None:
    stopped = decided(make(count, None), [end("r", STOPPED, marker=marker)])
    assert stopped == Finished(Status.STOPPED, Reason.STOPPED, 0)


@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize("reason", [Reason.START_FAILED, Reason.LIMIT, Reason.TIMEOUT])
def test_an_end_that_is_not_the_agents_own_ends_the_chain(count: int | None, reason: Reason) -> None:
    over = decided(make(count, None), [end("r", (Status.FAILED, reason))])
    assert over == Finished(Status.FAILED, reason, 0)


@pytest.mark.parametrize("count", [None, 5])
def test_a_lost_iteration_ends_the_chain_as_failed(count: int | None) -> None:
    assert decided(make(count), [end("r", LOST, marker=True)]) == Finished(Status.FAILED, Reason.LOST, 0)


@pytest.mark.req("S1-B16")
def test_the_next_step_begins_when_the_one_before_is_complete() -> None:
    chain = make(2, None, 3)
    first = [end("r1"), end("r2", marker=True)]
    assert decided(chain, first) == Start(1, 1)
    assert decided(chain, first, [end("r3")]) == Start(2, 1)
    done = decided(chain, first, [end("r3")], [end("r4", marker=True)])
    assert done == Finished(Status.DONE, Reason.MARKER)


@pytest.mark.req("S1-B16")
def test_the_first_incomplete_step_ends_the_chain_with_its_index() -> None:
    over = decided(make(None, 1, None), [end("r1")], [end("r2")])
    assert over == Finished(Status.FAILED, Reason.MAX_ITERATIONS, 1)


def test_news_about_one_iteration_is_not_counted_twice() -> None:
    chain = make(3)
    history = no_history(chain)
    for outcome in (Outcome("r", Status.STARTING), Outcome("r", Status.RUNNING), end("r"), end("r")):
        history = add(history, 0, outcome)
    assert history[0].started == 1
    assert decide(chain, history) == Start(0, 2)


def test_the_past_stays_known_while_the_next_iteration_lives() -> None:
    chain = make(3, until="x")
    history = after(chain, [end("r1", marker=True, gate=False)])
    history = add(history, 0, Outcome("r2", Status.RUNNING))
    assert history[0].last is not None
    assert (history[0].last.run, history[0].gate_failed, history[0].live) == ("r1", True, True)


def test_a_leafs_run_is_seen_by_its_chain_with_the_gates_word() -> None:
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
def test_reports_tell_of_every_step_and_name_the_skipped_ones() -> None:
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


def test_a_step_cut_off_between_two_iterations_takes_the_chains_end() -> None:
    chain = make(3, None)
    history = after(chain, [end("r1", BAD, code=7)])
    stop = Finished(Status.STOPPED, Reason.STOPPED, 0)
    (report, _) = step_reports(chain, history, [["r1"], []], stop)
    assert (report["status"], report["reason"], report["exit_code"]) == ("stopped", "stopped", 7)
    (report, _) = step_reports(chain, history, [["r1"], []])
    assert (report["status"], report["reason"]) == ("running", None)


def test_deciding_needs_no_more_than_a_summary_of_a_million_iterations() -> None:
    past = StepHistory(started=999_999, last=end("r"), run="r")
    assert decide(make(1_000_000), (past,)) == Start(0, 1_000_000)


# --- Whole lives --------------------------------------------------------------------------------------------

ends = st.sampled_from([OK, OK, OK, BAD, KILLED, STOPPED, LOST])
shapes = st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=4)


class Life:
    """Does what ``decide`` says until it says that it is over, and checks each thing it is told to do."""

    def __init__(self, chain: BoundChain, draw: Callable[[], tuple[End, bool]], gate: Callable[[], bool]) -> None:
        self.chain = chain
        self.told: list[list[Outcome]] = [[] for _ in chain.steps]
        self.history = no_history(chain)
        self._draw = draw
        self._gate = gate

    def whole(self) -> Finished:
        for number in range(100):
            decision = decide(self.chain, self.history)
            if isinstance(decision, Finished):
                return decision
            if isinstance(decision, Start):
                self._start(decision, f"r{number}")
            else:
                assert isinstance(decision, RunGate)
                self._run_gate(decision)
            assert self.history == summarise(self.told)
        raise AssertionError("the chain never ended")

    def _start(self, decision: Start, run: str) -> None:
        step = decision.step
        assert decision.iteration == len(self.told[step]) + 1 <= self.chain.steps[step].iterations
        assert all(self.told[:step]), "a step was skipped"
        assert not any(self.told[step + 1 :]), "a step was begun too early"
        self.history = add(self.history, step, Outcome(run, Status.RUNNING))
        assert decide(self.chain, self.history) == Wait()
        how, marker = self._draw()
        self.told[step].append(end(run, how, marker=marker))
        self.history = add(self.history, step, self.told[step][-1])

    def _run_gate(self, decision: RunGate) -> None:
        last = self.told[decision.step][-1]
        assert (decision.run, last.gate) == (last.run, None), "a gate is run once for each iteration"
        judged = Outcome(last.run, last.status, last.reason, last.exit_code, last.marker, self._gate())
        self.told[decision.step][-1] = judged
        self.history = add(self.history, decision.step, judged)


@settings(max_examples=400, deadline=None)
@given(shapes, st.none() | st.just("make test"), st.data())
def test_every_chain_ends_without_skipping_or_exceeding_anything(
    counts: list[int | None], until: str | None, data: st.DataObject
) -> None:
    chain = make(*counts, until=until)
    life = Life(chain, lambda: data.draw(st.tuples(ends, st.booleans())), lambda: data.draw(st.booleans()))
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
        assert all(report["status"] == "skipped" for report in reports[finished.failed_step + 1 :])
