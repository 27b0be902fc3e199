"""What a chain's driver knows: counted once, joined where several ran, and ended in the right order."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from store.sample_events import StoreWriter, created, ended, said

from hocket.chain.decide import Finished, decide
from hocket.model import BoundChain, Kind, Reason, Run, Spec, Status, Step
from hocket.store import NewRun, Store, open_store
from hocket.workflows.chain_state import ChainState, restore_state, result_hash

SPEC = Spec("a", "executable", ("/bin/a",), "/", {})
CHAIN = Run("rchain", 1, Kind.CHAIN, "c", None, None, "rchain", 0, "/", 0.0)


def state(*steps: tuple[bool, int | None]) -> ChainState:
    made = tuple(Step(f"a{n}", 3 if loop else 1, loop, SPEC, group) for n, (loop, group) in enumerate(steps))
    return ChainState(CHAIN, BoundChain("c", made, "/", {}))


def leaf(name: str, step: int, **more: Any) -> Run:
    facts = {"status": Status.DONE, "reason": Reason.EXIT, "result": f"{name} said", "cost_usd": 1.0, **more}
    return Run(name, 2, Kind.LEAF, "a", "executable", "rchain", "rchain", 0, "/", 0.0, step=step, **facts)


def test_iteration_is_not_counted_twice() -> None:
    one = state((True, None))
    one.add_leaf(leaf("r1", 0, status=Status.RUNNING, reason=None, result=None, cost_usd=None))
    assert (one.runs, one.usage[0].cost_usd, one.is_idle) == ([["r1"]], None, False)
    one.add_leaf(leaf("r1", 0))
    one.add_leaf(leaf("r1", 0), gate=True)
    assert (one.runs, one.usage[0].cost_usd, one.is_idle) == ([["r1"]], 1.0, True)
    one.add_leaf(leaf("r2", 0, cost_usd=None))
    assert (one.runs, one.usage[0].cost_usd, one.results) == ([["r1", "r2"]], 1.0, ["r2 said"])


def test_run_started_by_an_agent_is_no_iteration() -> None:
    one = state((True, None))
    one.add_leaf(replace(leaf("r1", 0), step=None))
    assert one.runs == [[]]


def test_result_is_that_of_the_last_started_stage() -> None:
    three = state((False, None), (False, 1), (False, 1), (False, None))
    end = Finished(Status.FAILED, Reason.EXIT)
    results = [three.report(end)["result"]]
    for news in (leaf("r1", 0), leaf("r2", 2)):
        three.add_leaf(news)
        results.append(three.report(end)["result"])
    assert results == [None, "r1 said", "## a2\n\nr2 said"]


def test_question_has_step_number_of_the_chain_text() -> None:
    chain = state((False, None), (False, 1), (False, 1), (False, None))
    told = [str(chain.question(step)["text"]).split(" (")[0] for step in range(4)]
    assert told == ["step 1", "step 2", "step 2", "step 3"]


def test_gate_feedback_lasts_until_counted_iteration() -> None:
    one = state((True, None))
    gate = {"run": "r1", "passed": False, "command": "x", "exit_code": 1, "output": ""}
    one.add_leaf(leaf("r1", 0, marker=True), gate=False)
    one.add_gate(0, gate)
    limit = {"status": Status.FAILED, "reason": Reason.RATE_LIMITED}
    one.add_leaf(leaf("r2", 0, **limit))
    assert "exit code 1" in one.feedback[0]
    one.add_leaf(leaf("r3", 0))
    assert one.feedback == {}


def test_loop_ends_before_its_group() -> None:
    two = state((True, 1), (False, 1))
    two.inner = {(Kind.GROUP, 0): "rgroup", (Kind.LOOP, 0): "rloop"}
    two.add_leaf(leaf("r1", 0, marker=True))
    two.add_leaf(leaf("r2", 1, status=Status.RUNNING, reason=None))
    ((run, end),) = two.inner_ends().items()
    assert (run, end["status"], end["reason"], end["iterations"]) == ("rloop", "done", "marker", 1)
    two.remove_inner(["rloop"])
    assert two.inner_ends() == {}
    two.add_leaf(leaf("r2", 1, status=Status.FAILED, exit_code=4))
    ((run, end),) = two.inner_ends().items()
    assert (run, end["status"], end["exit_code"]) == ("rgroup", "failed", 4)
    assert (end["cost_usd"], end["tokens"]) == (2.0, None)


def test_end_of_chain_ends_unstarted_inner_runs() -> None:
    two = state((True, 1), (False, 1))
    two.inner = {(Kind.GROUP, 0): "rgroup", (Kind.LOOP, 0): "rloop"}
    stop = Finished(Status.STOPPED, Reason.STOPPED)
    ends = [(run, end["status"]) for run, end in two.inner_ends(stop).items()]
    assert ends == [("rloop", "stopped"), ("rgroup", "stopped")]


def test_steps_of_returns_steps_inside_runs() -> None:
    four = state((False, None), (True, 1), (True, 1), (False, None))
    four.inner = {(Kind.GROUP, 1): "rgroup", (Kind.LOOP, 1): "rone", (Kind.LOOP, 2): "rtwo"}
    assert four.steps_of(["rchain"]) == [0, 1, 2, 3]
    assert four.steps_of(["rgroup"]) == [1, 2]
    assert four.steps_of(["rtwo", "rother"]) == [2]
    assert four.owners(2) == ["rgroup", "rtwo"]
    assert four.owners(3) == []


def test_report_has_the_cost_of_each_step() -> None:
    two = state((False, None), (False, None))
    two.add_leaf(leaf("r1", 0, tokens=10))
    two.add_leaf(leaf("r2", 1, cost_usd=None, exit_code=0))
    end = decide(two.chain, two.history)
    assert isinstance(end, Finished)
    report = two.report(end)
    assert (report["status"], report["cost_usd"], report["tokens"], report["result"]) == ("done", 1.0, 10, "r2 said")
    assert [(step["cost_usd"], step["tokens"]) for step in report["steps"]] == [(1.0, 10), (None, None)]
    assert "failed_step" not in report


def test_nested_usage_counts_only_for_the_chain() -> None:
    one = state((False, None))
    one.add_leaf(leaf("r1", 0))
    one.add_nested(leaf("r2", 0, cost_usd=0.5, tokens=7))
    one.add_nested(leaf("r3", 0, cost_usd=None))
    # News may come twice, of its own iterations too.
    one.add_nested(leaf("r2", 0, cost_usd=0.5, tokens=7))
    one.add_nested(leaf("r1", 0))
    report = one.report(Finished(Status.DONE, Reason.SINGLE_RUN))
    assert (report["cost_usd"], report["tokens"]) == (1.5, 7)
    assert [(step["cost_usd"], step["tokens"]) for step in report["steps"]] == [(1.0, None)]


def test_result_hash_ignores_outer_whitespace() -> None:
    assert result_hash("done\n") == result_hash(" done")
    assert result_hash(None) == result_hash("")
    assert result_hash("done") != result_hash("done.")


# --- Reading it again ---------------------------------------------------------------------------------------

LONG = "x" * 60_000
HISTORY = 100


def write_history(store: Store) -> None:
    """A loop whose every pass said a lot, and whose gate did too. The last pass met a limit."""
    store_writer = StoreWriter(store)
    store_writer.write(created("rchain", 1, kind="chain"), new={"rchain": NewRun(b"{}")})
    loop = created("rloop", 2, "rchain", "rchain", "loop")
    store_writer.write(replace(loop, data={**loop.data, "step": 0}), new={"rloop": NewRun(b"{}")})
    for number in range(HISTORY):
        run = f"rleaf{number}"
        birth = created(run, number + 3, "rloop", "rchain")
        limit = {"status": "failed", "reason": "rate_limited"} if number == HISTORY - 1 else {}
        gate = {"run": run, "step": 0, "passed": False, "command": "check", "exit_code": number, "output": LONG}
        store_writer.write(
            replace(birth, data={**birth.data, "step": 0, "iteration": number + 1}),
            *([] if limit else [said(run, "marker", "rchain")]),
            ended(run, "rchain", result=f"{number} {LONG}", **limit),
            *([] if limit else [said("rloop", "gate", "rchain", **gate)]),
            new={run: NewRun(b"{}")},
        )


def test_long_history_is_restored_in_parts(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    write_history(store)
    chain = BoundChain("c", (Step("a", 1000, True, SPEC, until="check"),), "/", {})
    run = store.read.run("rchain")
    assert run is not None
    tracemalloc.start()
    try:
        again = restore_state(run, chain, store.read)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        store.close()
    assert peak < 20 * len(LONG) < 2 * HISTORY * len(LONG)
    assert (len(again.runs[0]), again.inner) == (HISTORY, {(Kind.LOOP, 0): "rloop"})
    assert (again.results[0] or "").startswith(f"{HISTORY - 1} x")
    assert (again.history[0].spent, again.history[0].gate_failed) == (HISTORY - 1, True)
    # Of the gate before the limit, which changes nothing.
    assert f"exit code {HISTORY - 2}" in again.feedback[0]


def test_answer_about_lost_iteration_counts_once() -> None:
    """A later server reads the answer after the iteration that it allowed."""
    one = state((False, None))
    one.add_leaf(leaf("r1", 0, status=Status.LOST, reason=Reason.LOST))
    question = one.question(0)["id"]
    one.add_leaf(leaf("r2", 0, status=Status.RUNNING, reason=None))
    one.add_answer(question, allow=True)
    assert (one.history[0].live, one.history[0].run, one.history[0].started) == (True, "r2", 2)
