"""What a run is: the fold of its events, told for every type of event there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from hocket.model import CHANGING, Event, Kind, Origin, Reason, Run, Status, apply, fold

CREATED: dict[str, Any] = {
    "number": 7, "kind": "leaf", "agent": "a", "provider": "executable", "parent": None, "depth": 0, "cwd": "/p",
}  # fmt: skip
TYPES = (
    *("run.created", "run.started", "session", "text", "thinking", "tool.started", "tool.finished", "usage"),
    *("question", "answer", "input", "rate_limited", "marker", "gate", "member", "task.changed", "raw"),
    *("turn.started", "turn.ended", "notice", "parked", "unparked", "clock", "run.ended"),
)


def event(kind: str, seq: int = 1, /, **data: Any) -> Event:
    return Event(seq, 100.0 + seq, "r1", "r1", kind, data)


def born(**more: Any) -> Run:
    return fold([event("run.created", 0, **(CREATED | more))])


def changes(before: Run, said: Event) -> dict[str, Any]:
    """What one event changes about a run."""
    after = asdict(apply(before, said))
    return {name: after[name] for name, value in asdict(before).items() if after[name] != value}


def test_statuses_are_complete() -> None:
    ended = {"done", "failed", "stopped", "lost"}
    assert {status.value for status in Status} == {"starting", "running", "waiting"} | ended
    assert {status.value for status in Status if status.ended} == ended


@pytest.mark.req("S5-13")
def test_every_kind_of_run_begins_as_starting() -> None:
    assert {kind.value for kind in Kind} == {"leaf", "chain", "loop", "group", "lead"}
    assert {born(kind=kind).status for kind in Kind} == {Status.STARTING}


def test_reasons_are_complete() -> None:
    assert {reason.value for reason in Reason} == {
        *("single_run", "marker", "max_iterations", "gate", "budget", "timeout", "idle_timeout", "failures"),
        *("no_progress", "rate_limited", "refused", "no_answer", "start_failed", "exit", "signal", "error"),
        *("limit", "stopped", "lost", "process_gone"),
    }


def test_created_run_has_its_recorded_fields() -> None:
    run = born(parent="r0", depth=2, task="t1", step=1, iteration=3)
    assert (run.id, run.root, run.number, run.kind, run.agent) == ("r1", "r1", 7, Kind.LEAF, "a")
    assert (run.parent, run.depth, run.task, run.step, run.iteration) == ("r0", 2, "t1", 1, 3)
    assert (run.status, run.reason, run.created_at, run.ended) == (Status.STARTING, None, 100.0, False)
    assert (run.result, run.exit_code, run.started_at, run.ended_at) == (None, None, None, None)


def test_origin_is_owned_unless_recorded_otherwise() -> None:
    assert (born().origin, born().is_observed) == (Origin.OWNED, False)
    assert (born(origin="observed").origin, born(origin="observed").is_observed) == (Origin.OBSERVED, True)


FOLD_TABLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("run.created", CREATED | {"number": 99, "agent": "another"}, {}),
    ("run.started", {"pid": 5, "clock": 2.5, "boot": "b"},
     {"status": "running", "started_at": 101.0, "pid": 5, "started_clock": 2.5, "started_boot": "b"}),
    ("clock", {"clock": 7.5, "boot": "b"}, {"started_clock": 7.5, "started_boot": "b"}),
    ("run.started", {}, {"status": "running", "started_at": 101.0}),
    ("session", {"session_id": "s", "transcript": "/t"}, {"session_id": "s", "transcript": "/t"}),
    ("text", {"text": "hello"}, {}),
    ("thinking", {"text": "hm"}, {}),
    ("tool.started", {"name": "Bash"}, {}),
    ("tool.finished", {"name": "Bash"}, {}),
    ("usage", {"cost_usd": 0.5, "tokens": 12}, {"cost_usd": 0.5, "tokens": 12}),
    ("usage", {"tokens": 3}, {"tokens": 3}),
    ("usage", {"cost_usd": 0, "tokens": 0}, {"cost_usd": 0, "tokens": 0}),
    ("usage", {"cost_usd": -1.0, "tokens": -5}, {}),
    ("usage", {"cost_usd": float("nan"), "tokens": float("inf")}, {}),
    ("usage", {"cost_usd": "1.50", "tokens": True}, {}),
    ("usage", {"cost_usd": 1e300, "tokens": None}, {}),
    ("question", {"id": "q"}, {"open_questions": ({"id": "q", "asked_at": 101.0},)}),
    ("answer", {"id": "q"}, {}),
    ("input", {"kind": "message", "text": "hi"}, {}),
    ("input", {"kind": "stop", "reason": "timeout"}, {"stop_reason": "timeout"}),
    ("turn.started", {}, {}),
    (
        "turn.ended",
        {"result": "so far", "idle": True},
        {"result": "so far", "status": "waiting", "waiting_since": 101.0},
    ),
    ("turn.ended", {"result": None, "error": "no money"}, {"error": "no money"}),
    ("notice", {"kind": "retry", "text": "again"}, {}),
    ("rate_limited", {}, {}),
    ("rate_limited", {"status": "rejected", "resets_at": 1800000000}, {"resets_at": 1800000000}),
    ("rate_limited", {"status": "rejected", "resets_at": None}, {}),
    ("rate_limited", {"status": "rejected", "resets_at": "soon"}, {}),
    ("rate_limited", {"status": "allowed_warning", "resets_at": 1800000000}, {}),
    ("parked", {"until": 500.0, "reason": "rate_limited"},
     {"status": "waiting", "waiting_since": 101.0, "parked_until": 500.0, "parked_for": "rate_limited"}),
    ("unparked", {}, {}),
    ("marker", {"line": "FORKHESTRA_COMPLETE"}, {"marker": True}),
    ("gate", {"passed": True}, {}),
    ("member", {}, {}),
    ("task.changed", {}, {}),
    ("raw", {"stream": "stderr", "text": "x"}, {}),
    ("something.new", {"x": 1}, {}),
    ("run.ended", {"status": "done", "reason": "exit", "exit_code": 0, "result": "bye"},
     {"status": "done", "reason": "exit", "exit_code": 0, "result": "bye", "ended_at": 101.0}),
    ("run.ended", {"status": "failed", "reason": "start_failed", "error": "no", "steps": [{"agent": "a"}]},
     {"status": "failed", "reason": "start_failed", "error": "no", "steps": ({"agent": "a"},), "ended_at": 101.0}),
    ("run.ended", {"status": "lost", "reason": "lost", "cost_usd": 1.0, "tokens": 2},
     {"status": "lost", "reason": "lost", "cost_usd": 1.0, "tokens": 2, "ended_at": 101.0}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "expected"), FOLD_TABLE)
def test_event_changes_only_its_fields(kind: str, data: dict[str, Any], expected: dict[str, Any]) -> None:
    assert changes(born(), event(kind, **data)) == expected


def test_fold_table_has_every_event_type() -> None:
    assert {kind for kind, _, _ in FOLD_TABLE} >= set(TYPES)
    assert set(TYPES) >= CHANGING


def test_first_stop_reason_is_kept() -> None:
    asked = apply(born(), event("input", kind="stop", reason="timeout"))
    assert apply(asked, event("input", 2, kind="stop", reason="stopped")).stop_reason is Reason.TIMEOUT


def test_cost_is_kept_by_an_end_without_cost() -> None:
    paid = apply(born(), event("usage", cost_usd=0.25, tokens=9))
    ended = apply(paid, event("run.ended", 2, status="done", reason="exit"))
    assert (ended.cost_usd, ended.tokens) == (0.25, 9)


@pytest.mark.parametrize("odd", [-1, float("nan"), float("inf"), float("-inf"), "7", None, True, [], 1e300])
def test_invalid_usage_changes_nothing(odd: Any) -> None:
    paid = apply(born(), event("usage", cost_usd=0.25, tokens=9))
    later = apply(paid, event("usage", 2, cost_usd=odd, tokens=odd))
    ended = apply(later, event("run.ended", 3, status="done", reason="exit", cost_usd=odd, tokens=odd))
    assert (later.cost_usd, later.tokens) == (ended.cost_usd, ended.tokens) == (0.25, 9)


def test_created_run_has_budget_and_idle_timeout() -> None:
    run = born(budget_usd=5.0, budget_tokens=1000, idle_timeout=60.0)
    assert (run.budget_usd, run.budget_tokens, run.idle_timeout) == (5.0, 1000, 60.0)
    assert (born().budget_usd, born().budget_tokens, born().idle_timeout) == (None, None, None)


def test_transient_failure_is_marked() -> None:
    assert apply(born(), event("run.ended", status="failed", reason="error", transient=True)).transient
    assert not apply(born(), event("run.ended", status="failed", reason="error")).transient


def test_waiting_question_needs_you() -> None:
    facts = asdict(born()) | {"status": Status.WAITING}
    assert Run(**facts | {"open_questions": ({"id": "q1"},)}).needs_you
    assert not Run(**facts).needs_you
    assert not Run(**facts | {"status": Status.RUNNING, "open_questions": ({"id": "q1"},)}).needs_you


def test_early_question_waits_from_the_start() -> None:
    asked = apply(born(), event("question", 1, id="a"))
    assert (asked.status, asked.needs_you) == (Status.STARTING, False)
    started = apply(asked, event("run.started", 2, pid=5))
    assert (started.status, started.needs_you, started.pid) == (Status.WAITING, True, 5)
    assert apply(started, event("answer", 3, id="a")).status is Status.RUNNING


def test_run_waits_until_the_last_answer() -> None:
    story = [event("run.created", 0, **CREATED), event("run.started", 1, pid=5)]
    story += [event("question", 2, id="a"), event("question", 3, id="b"), event("answer", 4, id="a")]
    assert (fold(story).status, fold(story).needs_you) == (Status.WAITING, True)
    story.append(event("answer", 5, id="b"))
    assert (fold(story).status, fold(story).needs_you) == (Status.RUNNING, False)


def test_end_of_a_turn_closes_its_questions() -> None:
    story = [event("run.created", 0, **CREATED), event("run.started", 1, pid=5), event("question", 2, id="a")]
    story.append(event("question", 3, id="b", parent="tool"))
    story.append(event("turn.ended", 4, result="one", idle=True))
    assert [asked["id"] for asked in fold(story).open_questions] == ["b"]
    story.append(event("answer", 5, id="b"))
    late = [*story, event("turn.ended", 6, result="two", idle=True), event("answer", 7, id="a")]
    assert fold(story).status is Status.RUNNING
    assert fold(late).status is Status.WAITING


def test_question_of_a_hook_outlives_a_turn() -> None:
    """It may belong to the next turn: the end of a turn is read from a file later."""
    story = [event("run.created", 0, **CREATED), event("run.started", 1, pid=5), event("question", 2, id="a")]
    story += [event("question", 3, id="b", via="hook"), event("turn.ended", 4, result="one", idle=True)]
    now = fold(story)
    assert ([asked["id"] for asked in now.open_questions], now.needs_you) == (["b"], True)
    assert fold([*story, event("answer", 5, id="b", allow=None)]).status is Status.RUNNING


def test_session_waits_between_turns() -> None:
    story = [event("run.created", 0, **CREATED), event("run.started", 1, pid=5), event("turn.started", 2)]
    story.append(event("turn.ended", 3, result="one", idle=True))
    assert (fold(story).status, fold(story).needs_you, fold(story).result) == (Status.WAITING, False, "one")
    story.append(event("turn.started", 4))
    assert fold(story).status is Status.RUNNING
    story += [event("question", 5, id="a"), event("turn.started", 6)]
    assert fold(story).status is Status.WAITING


@pytest.mark.parametrize("events", [[], [event("text", text="x")], [event("run.ended", status="done", reason="exit")]])
def test_fold_needs_run_created_first(events: list[Event]) -> None:
    with pytest.raises(ValueError):
        fold(events)


def test_run_is_immutable() -> None:
    with pytest.raises(AttributeError):
        born().status = Status.DONE  # type: ignore[misc]


rows = st.sampled_from([(kind, data) for kind, data, _ in FOLD_TABLE])
ENDINGS = [(kind, data) for kind, data, _ in FOLD_TABLE if kind == "run.ended"]


@given(st.lists(rows, max_size=30))
def test_fold_equals_apply_of_each_event(story: list[tuple[str, dict[str, Any]]]) -> None:
    events = [event(kind, seq, **data) for seq, (kind, data) in enumerate([("run.created", CREATED), *story])]
    run = fold(events)
    step_by_step: Run | None = None
    for said in events:
        step_by_step = apply(step_by_step, said)
    assert run == step_by_step
    assert run.ended == any(kind == "run.ended" for kind, _ in story)


@given(st.lists(rows, max_size=10), st.sampled_from(ENDINGS), st.lists(rows, max_size=10))
def test_ended_run_never_changes(
    before: list[tuple[str, dict[str, Any]]],
    ending: tuple[str, dict[str, Any]],
    late: list[tuple[str, dict[str, Any]]],
) -> None:
    story = [("run.created", CREATED), *before, ending]
    events = [event(kind, seq, **data) for seq, (kind, data) in enumerate(story)]
    ended = fold(events)
    after = [event(kind, seq, **data) for seq, (kind, data) in enumerate(late, len(events))]
    assert fold([*events, *after]) == ended


@pytest.mark.req("S3-23")
def test_first_session_is_kept() -> None:
    run = apply(born(), event("session", session_id="one", transcript=None))
    run = apply(run, event("session", session_id="two", transcript="/t"))
    assert (run.session_id, run.transcript) == ("one", "/t")


def test_new_session_replaces_only_a_cleared_one() -> None:
    run = apply(born(), event("session", session_id="one", transcript="/t"))
    for other in (None, "zero"):
        assert apply(run, event("session", session_id="two", instead_of=other)).session_id == "one"
    cleared = apply(run, event("session", session_id="two", transcript="/u", instead_of="one"))
    assert (cleared.session_id, cleared.transcript) == ("two", "/u")


@pytest.mark.req("S5-14")
def test_time_of_waiting_begins_with_each_wait() -> None:
    run = apply(apply(born(), event("run.started", 1)), event("turn.ended", 2, idle=True))
    assert run.waiting_since == 102.0
    assert apply(run, event("question", 3, id="a")).waiting_since == 102.0
    again = apply(apply(run, event("turn.started", 4)), event("turn.ended", 5, idle=True))
    assert again.waiting_since == 105.0
