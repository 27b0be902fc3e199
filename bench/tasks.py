"""Figures of tasks: the delay of a hand-off, and lists and histories that grow long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measure import Figure, World, median_seconds, percentile, seconds, world

from hocket.client import Client
from hocket.model import Reason, Status
from hocket.model.task import Create, Handoff, Order, Task
from hocket.store import Batch, open_store

HANDOFFS = 100
TASKS = 10_000
LONG, SHORT = 2_000, 200
PRINT_TIME = "#!/bin/sh\ndate +%s.%N\n"


def handoff() -> Iterator[Figure]:
    """From the request to the start of the agent, which prints its own start time."""
    with world() as w:
        agent = w.program("clock", PRINT_TIME)
        client = w.client()
        task = client.request("POST", "/api/tasks", {"description": "be quick", "cwd": str(w.root)})
        _hand(client, w, task["id"], agent)
        waits = sorted(_hand(client, w, task["id"], agent) * 1000 for _ in range(HANDOFFS))
        note = f"median {percentile(waits, 0.5):.0f} ms of {HANDOFFS}, slowest {waits[-1]:.0f} ms"
        yield Figure("p95 delay from hand-off to the agent's start", percentile(waits, 0.95), "ms", 150, note=note)


def _hand(client: Client, w: World, task: str, agent: str) -> float:
    begin = time.time()
    body = {"agentName": agent, "prompt": "", "env": w.env}
    record = client.request("POST", f"/api/tasks/{task}/handoff", body)["agentChain"][-1]
    list(client.follow(record["run"]))
    done = client.request("GET", f"/api/tasks/{task}/handoffs/{record['id']}")
    return float(done["output"]) - begin


def listing() -> Iterator[Figure]:
    """The first page of 10,000 tasks, requested over the socket."""
    with world() as w:
        _fill(w.home / "hocket.db", [Create(_task(number)) for number in range(1, TASKS + 1)])
        client = w.client()
        for path, name in (("/api/tasks", "first page"), ("/api/tasks?status=pending", "first page of one status")):
            assert len(client.request("GET", path)) == 100
            took = [seconds(partial(client.request, "GET", path)) * 1000 for _ in range(200)]
            note = f"median {percentile(took, 0.5):.1f} ms"
            yield Figure(f"p99 of the {name} of {TASKS:,} tasks", percentile(took, 0.99), "ms", 20, note=note)


def long_task() -> Iterator[Figure]:
    """A task with 2,000 hand-offs, compared with one of 200."""
    with world() as w:
        long, short = (
            Create(_task(number, count), _records(number, count)) for number, count in ((1, LONG), (2, SHORT))
        )
        _fill(w.home / "hocket.db", [long, short])
        client = w.client()
        took = [median_seconds(partial(client.request, "GET", f"/api/tasks/{number}"), 15) for number in (1, 2)]
        note = f"{took[0] * 1000:.1f} ms for {LONG:,} hand-offs, {took[1] * 1000:.1f} ms for {SHORT}"
        yield Figure("reading a task with ten times the hand-offs", took[0] / took[1], "x", 12, note=note)


def _task(number: int, handoffs: int = 0) -> Task:
    return Task(f"t{number:09}", number, f"task {number}: fix the build", 1.0, 1.0, cwd="/", handoffs=handoffs)


def _records(task: int, count: int) -> tuple[Handoff, ...]:
    return tuple(
        Handoff(f"h{task}-{n}", f"t{task:09}", n, None, "developer", 0, n, n + 1, Status.DONE, Reason.EXIT, "x" * 500)
        for n in range(1, count + 1)
    )


def _fill(path: Path, orders: list[Order]) -> None:
    """Write the orders into the database before the server starts."""
    with closing(open_store(path)) as store:
        store.write_all([Batch([], orders=orders[start : start + 500]) for start in range(0, len(orders), 500)])
