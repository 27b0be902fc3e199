"""Tasks and hand-offs as values: what orders make of them, and that they come back from JSON as they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import Conflict, NotFound
from hocket.model import Kind, Reason, Run, Status
from hocket.model.task import (
    TRANSITIONS,
    Attachment,
    Begin,
    Close,
    Create,
    Enqueue,
    Handoff,
    Order,
    Plan,
    Planning,
    Queued,
    SetStatus,
    Task,
    TaskStatus,
    Unqueue,
    closing,
    next_queued,
    output_of,
)

TASK = Task("t1", 1, "Mend the roof", 1.0, 1.0)
RUN = Run("r1", 1, Kind.LEAF, "developer", "claude", None, "r1", 0, "/", 1.0, task="t1", handoff="h1")


def begun(task: Task = TASK) -> tuple[Task, Handoff]:
    change = Begin("t1", "h1", "r1", "developer", 0).apply_to(task, [], 2.0)
    return change.task, change.opened[0]


texts = st.text(max_size=20)
maybe = st.none() | texts
times = st.floats(0, 2e9)
records = st.builds(
    Handoff, texts, texts, st.integers(1, 99), maybe, texts, st.integers(0, 5), times, st.none() | times,
    st.sampled_from(Status), st.none() | st.sampled_from(Reason), texts, maybe,
)  # fmt: skip
lists = st.none() | texts | st.lists(texts, max_size=3).map(tuple)
tasks = st.builds(
    Task, texts, st.integers(1, 99), texts, times, times, maybe, st.none() | st.dictionaries(texts, texts), maybe,
    st.sampled_from(TaskStatus), maybe, st.none() | st.builds(Planning, maybe, lists, lists, lists), maybe,
    st.integers(0, 9), st.lists(st.builds(Attachment, texts, st.integers(0, 9), texts, times), max_size=2).map(tuple),
    st.lists(st.builds(Queued, texts, texts, maybe, times), max_size=2).map(tuple), st.none() | times,
)  # fmt: skip


@pytest.mark.req("S2-07", "S2-08", "S2-85")
@given(records)
def test_hand_off_survives_json(record: Handoff) -> None:
    assert msgspec.json.decode(msgspec.json.encode(record), type=Handoff) == record


@pytest.mark.req("S2-09", "S2-85")
@given(tasks)
def test_task_survives_json(task: Task) -> None:
    assert msgspec.json.decode(msgspec.json.encode(task), type=Task) == task


@pytest.mark.req("S2-03", "S2-04", "S2-85")
@pytest.mark.parametrize("planning", [None, Planning(summary="s")])
def test_begin_sets_the_current_agent(planning: Planning | None) -> None:
    task, record = begun(replace(TASK, planning=planning))
    assert (task.current_agent, task.handoffs, task.planning) == ("developer", 1, planning)
    assert (record.agent, record.started_at, record.completed_at, record.output) == ("developer", 2.0, None, "")
    assert task.current_since == 2.0


@pytest.mark.req("S2-15", "S2-85")
def test_plan_keeps_the_hand_offs() -> None:
    task, record = begun()
    planned = Plan("t1", Planning("short", ("a",))).apply_to(task, [record], 3.0).task
    assert replace(planned, planning=None, updated_at=task.updated_at) == task
    assert planned.planning == Planning("short", ("a",))


def test_unknown_task_is_not_found() -> None:
    orders: list[Order] = [SetStatus("t1", TaskStatus.ACTIVE), Plan("t1", Planning()), Begin("t1", "h", "r", "a", 0)]
    for order in orders:
        with pytest.raises(NotFound, match="t1"):
            order.apply_to(None, [], 1.0)


def test_existing_task_is_not_created_again() -> None:
    with pytest.raises(Conflict, match="already"):
        Create(TASK).apply_to(TASK, [], 1.0)


@pytest.mark.req("S2-67")
@pytest.mark.parametrize("status", [Status.FAILED, Status.STOPPED, Status.LOST])
@pytest.mark.parametrize("result", [None, "", "half of it"])
@pytest.mark.parametrize("error", [None, "it broke"])
def test_output_of_failed_run_begins_with_reason(status: Status, result: str | None, error: str | None) -> None:
    run = msgspec.structs.replace(RUN, status=status, reason=Reason.EXIT, result=result, error=error)
    said = output_of(run)
    assert said.startswith(f"{status} (exit)")
    assert (error or "") in said
    assert (result or "") in said


def test_only_hand_off_runs_close_a_hand_off() -> None:
    assert closing(msgspec.structs.replace(RUN, handoff=None)) is None
    order = closing(msgspec.structs.replace(RUN, status=Status.DONE, reason=Reason.SINGLE_RUN, result="fine"))
    assert order == Close("t1", "h1", "fine", Status.DONE, Reason.SINGLE_RUN)


@pytest.mark.req("S2-B03")
@pytest.mark.parametrize(
    ("task", "last", "goes_on"),
    [
        *((TASK, None, True), (replace(TASK, status=TaskStatus.WAITING), Status.DONE, True)),
        *((replace(TASK, status=TaskStatus.WAITING), Status.FAILED, False),),
        *((replace(TASK, status=TaskStatus.ACTIVE, current_agent="x"), Status.RUNNING, False),),
        *((replace(TASK, status=TaskStatus.COMPLETED), Status.DONE, False),),
    ],
)
def test_next_item_needs_a_free_task_and_success(task: Task, last: Status | None, goes_on: bool) -> None:
    item = Queued("q1", "do it", "developer", 1.0)
    record = replace(begun()[1], status=last) if last else None
    assert next_queued(replace(task, queue=(item,)), record) == (item if goes_on else None)
    assert next_queued(replace(task, queue=(replace(item, agent=None),)), record) is None
    assert next_queued(task, record) is None


@pytest.mark.req("S2-B03")
@pytest.mark.parametrize("elsewhere", [True, False])
def test_imported_queue_waits_for_a_hand_off(elsewhere: bool) -> None:
    item = Queued("q1", "do it", "developer", 1.0)
    brought = replace(TASK, status=TaskStatus.WAITING, brought=True, brought_handoffs=1, handoffs=1, queue=(item,))
    told = Handoff("h0", "t1", 1, "r0", "qa", 0, 1.0, 2.0, Status.DONE, Reason.SINGLE_RUN, "fine", elsewhere=elsewhere)
    assert next_queued(brought, told) is None
    task, record = begun(brought)
    change = Close("t1", "h1", "done here").apply_to(task, [record], 3.0)
    assert next_queued(change.task, change.closed[0]) == item


class World:
    """A task and its records as a store would keep them."""

    def __init__(self) -> None:
        self.task = Create(TASK).apply_to(None, [], 1.0).task
        self.records: dict[str, Handoff] = {}
        self.clock = 1.0
        self.started = 0

    @property
    def open_(self) -> list[Handoff]:
        return sorted((one for one in self.records.values() if one.completed_at is None), key=lambda one: one.number)

    def give(self, order: Order) -> bool:
        self.clock += 1
        before = (self.task, dict(self.records))
        try:
            change = order.apply_to(self.task, self.open_, self.clock)
        except (Conflict, NotFound):
            assert (self.task, self.records) == before
            return False
        self.task = change.task
        self.records |= {one.id: one for one in (*change.opened, *change.closed)}
        return True


moves = st.lists(
    st.tuples(st.sampled_from(["begin", "nest", "close", "close again", "status", "queue", "take", "plan"]),
              st.integers(0, 9)),
    max_size=30,
)  # fmt: skip


def order_of(world: World, move: str, number: int) -> Order:
    innermost = world.open_[-1] if world.open_ else None
    any_record = list(world.records.values())[number % len(world.records)] if world.records else None
    name = f"{len(world.records)}-{number}"
    orders: dict[str, Any] = {
        "begin": Begin("t1", f"h{name}", f"r{name}", f"agent{number}", 0),
        "nest": Begin("t1", f"h{name}", f"r{name}", f"agent{number}", 1, innermost.run if innermost else "r-gone"),
        "close": Close("t1", innermost.id if innermost else "h-none", "out"),
        "close again": Close("t1", any_record.id if any_record else "h-none", "again"),
        "status": SetStatus("t1", list(TaskStatus)[number % len(TaskStatus)]),
        "queue": Enqueue("t1", Queued(f"q{name}{world.clock}", "p", None, 1.0)),
        "take": Unqueue("t1"),
        "plan": Plan("t1", Planning(f"s{number}")),
    }
    order: Order = orders[move]
    return order


@pytest.mark.req("S2-50", "S2-80", "S2-B02")
@settings(max_examples=300)
@given(moves)
def test_task_agrees_with_its_records_after_any_orders(sequence: list[tuple[str, int]]) -> None:
    world = World()
    for move, number in sequence:
        before, records = world.task, dict(world.records)
        world.give(order_of(world, move, number))
        open_ = world.open_
        assert world.task.current_agent == (open_[-1].agent if open_ else None)
        assert world.task.current_since == (open_[-1].started_at if open_ else None)
        assert world.task.handoffs == len(world.records)
        assert sorted(one.number for one in world.records.values()) == list(range(1, len(world.records) + 1))
        for id_, record in records.items():
            if record.completed_at is not None:
                assert world.records[id_] == record, "a closed record changes no more"
        if world.task.status is not before.status:
            by_hand_off = {TaskStatus.PENDING, TaskStatus.WAITING} if move in ("begin", "nest") else set()
            assert world.task.status in TRANSITIONS[before.status] or before.status in by_hand_off
        if before.status.is_over:
            assert len(world.records) == len(records), "nothing is handed over any more"
