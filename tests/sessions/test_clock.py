"""The rest of a time limit: measured by one clock for all servers of one boot of the machine."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from hocket.model import Event, Kind, Run, Status
from hocket.sessions import clock

RUN = {"id": "r1", "number": 1, "kind": Kind.CHAIN, "agent": "a", "provider": None, "parent": None, "root": "r1"}
HERE = clock.reading()["boot"]


def run_since(ago: float | None, boot: str | None) -> Run:
    then = None if ago is None else time.monotonic() - ago
    return Run(**RUN, depth=0, cwd="/", created_at=0.0, started_clock=then, started_boot=boot)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ago", "boot", "left"),
    [
        (None, None, 10),
        (4, HERE, 6),
        (40, HERE, 0),
        (4, None, 6),
        (-4, None, 10),
        (4, "another", 10),
        (40, "another", 10),
    ],
)
def test_rest_of_a_time_limit(ago: float | None, boot: str | None, left: float) -> None:
    assert clock.left(run_since(ago, boot), 10.0) == pytest.approx(left, abs=0.5)


@pytest.mark.parametrize(
    ("boot", "started", "elapsed"),
    [(HERE, None, None), (HERE, -7200, 4), (HERE, 7200, 4), ("another", -60, 60), ("another", 60, 0)],
)
def test_elapsed_time_ignores_the_wall_clock(boot: str, started: float | None, elapsed: float | None) -> None:
    live = replace(run_since(4, boot), started_at=None if started is None else time.time() + started)
    found = clock.elapsed(live)
    assert found is None if elapsed is None else found == pytest.approx(elapsed, abs=2.0)


@pytest.mark.parametrize(("ended", "measured", "elapsed"), [(90.0, 3.0, 3), (107.0, None, 7), (90.0, None, 0)])
def test_ended_run_has_its_measured_elapsed_time(ended: float, measured: float | None, elapsed: float) -> None:
    run = replace(run_since(4, HERE), status=Status.DONE, started_at=100.0, ended_at=ended, duration=measured)
    assert clock.elapsed(run) == elapsed


def test_begin_and_end_of_run_are_stamped() -> None:
    live = replace(run_since(4, HERE), started_at=1.0)
    created = clock.stamped(Event(0, 1.0, "r1", "r1", "run.created", {"number": 1}), None)
    assert created.data["boot"] == HERE
    ended = clock.stamped(Event(0, 1.0, "r1", "r1", "run.ended", {"status": "done"}), live)
    assert ended.data["duration"] == pytest.approx(4, abs=2.0)
    measured = clock.stamped(Event(0, 1.0, "r1", "r1", "run.ended", {"duration": 9.0}), live)
    assert measured.data["duration"] == 9.0, "what its keeper measured counts"
    said = Event(0, 1.0, "r1", "r1", "text", {"text": "x"})
    assert clock.stamped(said, live) is said


@pytest.mark.req("S5-13", "S5-47")
def test_only_a_run_that_waits_for_a_message_becomes_idle() -> None:
    run = run_since(1, HERE)
    waiting = replace(run, status=Status.WAITING, waiting_since=time.time())
    assert clock.idle_in(run, 5.0) is None
    assert clock.idle_in(waiting, 0.0) == 0.0
    assert 0.0 < (clock.idle_in(waiting, 5.0) or 0.0) <= 5.0
    assert clock.idle_in(replace(waiting, waiting_since=1.0), 5.0) == 0.0
    assert clock.idle_in(replace(waiting, open_tasks=1), 0.0) is None
    assert clock.idle_in(replace(waiting, parked_until=9.0), 0.0) is None
    assert clock.idle_in(replace(waiting, open_questions=({"id": "q"},)), 0.0) is None
