"""Figures of chains: parsing, binding and deciding, for long chains and long histories."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from measure import Figure, World, world

from hocket.catalog.discovery import discover
from hocket.chain.decide import History, Outcome, Start, StepHistory, add, decide
from hocket.chain.parse import parse
from hocket.config.loading import load
from hocket.model import BoundChain, Bounds, Reason, Spec, Status, Step
from hocket.workflows.bind import bind
from hocket.workflows.request import StartRequest

STEPS = 200
LOOP = 10_000
WINDOW = 300
TIMES = 15


# --- Reading and binding ------------------------------------------------------------------------------------


def binding() -> Iterator[Figure]:
    """A chain of 200 steps and 20 programs, with loops and groups, bound with a warm catalog."""
    with world() as w:
        text, names = _long_text(), {f"tool{number}" for number in range(20)}
        for name in names:
            w.program(name, "#!/bin/sh\n")
        env = {**w.env, "PATH": f"{w.root}:{w.env['PATH']}"}
        config = load(str(w.root), str(w.home), env)
        seen = discover(str(w.root), env, str(w.home), config)
        request = StartRequest(str(w.root), env, dsl=text, prompt="Do what is next in the plan.")

        def whole() -> BoundChain:
            bound = bind(request, config, lambda: seen)
            assert isinstance(bound, BoundChain)
            return bound

        assert len(whole().steps) == STEPS
        reading, cold, took = (
            _cpu_seconds(work) * 1000 for work in (lambda: parse(text), lambda: bind(request, config), whole)
        )
        note = f"{reading:.1f} ms of it parsing; {cold:.0f} ms with a cold catalog"
        yield Figure(f"parsing and binding a chain of {STEPS} steps", took, "ms", 20, note=note)


def _long_text() -> str:
    """Return a chain in which ten steps are six single runs, two loops and a group of two."""
    stages = []
    for start in range(0, STEPS, 10):
        names = [f"tool{(start + number) % 20}" for number in range(10)]
        stages += [*names[:6], f"{names[6]}:3", f"{names[7]}:10", f"({names[8]}, {names[9]}:2)"]
    return " -> ".join(stages)


# --- Deciding -----------------------------------------------------------------------------------------------


def deciding() -> Iterator[Figure]:
    """The next decision in a chain ten times as long, and after 10,000 iterations."""
    short, long = (_at_its_last_step(count) for count in (STEPS, 10 * STEPS))
    once, ten_times = _by_turns(lambda: decide(*short), lambda: decide(*long), 3)
    note = f"{ten_times * 1e6:.0f} µs vs. {once * 1e6:.0f} µs"
    yield Figure("a decision with ten times the steps", ten_times / once, "x", 12, note=note)
    chain = _chain(1, LOOP + 100)
    few, many = (_history([_iterations(count)]) for count in (10, LOOP))
    assert decide(chain, many) == Start(0, LOOP + 1)
    early, late = _by_turns(lambda: _one_more(chain, few), lambda: _one_more(chain, many), 200)
    note = f"{late * 1e6:.1f} µs vs. {early * 1e6:.1f} µs"
    yield Figure(f"slowdown of a decision after {LOOP:,} iterations", (late / early - 1) * 100, "%", 10, note=note)
    summing = _cpu_seconds(lambda: _history([_iterations(LOOP)])) * 1000
    yield Figure(f"summarising {LOOP:,} iterations after a restart", summing, "ms", 500)


def _history(steps: Iterable[Iterable[Outcome]]) -> History:
    """The history after all outcomes of every step, in order."""
    return tuple(_step_history(outcomes) for outcomes in steps)


def _step_history(outcomes: Iterable[Outcome]) -> StepHistory:
    history: History = (StepHistory(),)
    for outcome in outcomes:
        history = add(history, 0, outcome)
    return history[0]


def _chain(steps: int, iterations: int) -> BoundChain:
    spec = Spec("a", "executable", ("/bin/a",), "/", {})
    bounds = Bounds(failures=3)
    return BoundChain("bench", (Step("a", iterations, True, spec, bounds=bounds),) * steps, "/", {})


def _iterations(count: int) -> list[Outcome]:
    return [_ended(f"r{number}") for number in range(count)]


def _ended(run: str, *, marker: bool = False) -> Outcome:
    return Outcome(run, Status.DONE, Reason.EXIT, 0, marker=marker)


def _at_its_last_step(steps: int) -> tuple[BoundChain, History]:
    chain = _chain(steps, 3)
    behind = [[_ended(f"r{number}", marker=True)] for number in range(steps - 1)]
    history = _history([*behind, []])
    assert decide(chain, history) == Start(steps - 1, 1)
    return chain, history


def _one_more(chain: BoundChain, history: History) -> None:
    """Make all decisions of one iteration: after its start and after its end."""
    history = add(history, 0, Outcome("next", Status.RUNNING))
    decide(chain, history)
    decide(chain, add(history, 0, _ended("next")))


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call, which other load hardly changes."""
    times = []
    for _ in range(TIMES):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def _by_turns(one: Callable[[], object], other: Callable[[], object], calls: int) -> tuple[float, float]:
    """Return the shortest processor time of each call: load makes a processor slower, never faster."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(3 * TIMES):
        for work, kept in ((one, times[0]), (other, times[1])):
            begin = time.process_time()
            for _ in range(calls):
                work()
            kept.append((time.process_time() - begin) / calls)
    return min(times[0]), min(times[1])


# --- Long loops ----------------------------------------------------------------------------------------------


def long_loop() -> Iterator[Figure]:
    """The last iterations of a loop of 10,000 processes, compared with those of a new loop."""
    with world() as w:
        noop = w.program("noop", "#!/bin/sh\nexit 0\n")
        _paces(w, noop, 50)
        old = _paces(w, noop, LOOP)
        new = _paces(w, noop, 2 * WINDOW)
        first, last, fresh = (_pace(part) for part in (old[WINDOW : 2 * WINDOW], old[-WINDOW:], new[-WINDOW:]))
        note = f"CPU {last.cpu:.1f} ms, new loop {fresh.cpu:.1f}, own start {first.cpu:.1f}; "
        note += f"wall {last.wall:.0f}, {fresh.wall:.0f} and {first.wall:.0f} ms"
        slowdown = (last.cpu / fresh.cpu - 1) * 100
        yield Figure(f"slowdown of an iteration after {LOOP:,}", slowdown, "%", 10, note=note)


class Moment(NamedTuple):
    """Wall time, and the processor time of the server."""

    wall: float
    cpu: float


def _pace(moments: list[Moment]) -> Moment:
    """Return the milliseconds per iteration between the first and the last moment."""
    first, last, count = moments[0], moments[-1], len(moments) - 1
    return Moment((last.wall - first.wall) / count * 1000, (last.cpu - first.cpu) / count * 1000)


def _paces(w: World, program: str, count: int) -> list[Moment]:
    """Return the moment at which each iteration of a loop started."""
    client = w.client()
    body: dict[str, Any] = {"dsl": f"{program}:{count}", "cwd": str(w.root), "env": w.env}
    run = client.request("POST", "/api/runs", body)
    clock = (~w.server_pid() << 3) | 2
    begun = [
        Moment(event["ts"], time.clock_gettime(clock))
        for event in client.follow(run["id"])
        if event["type"] == "run.started" and event["data"].get("pid")
    ]
    assert len(begun) == count, len(begun)
    return begun
