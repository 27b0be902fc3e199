"""What a hand-off costs before the agent begins, and what tasks cost when there are many, or much happened to one."""

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
from hocket.store import Batch, open_store
from hocket.wanted import Create, Handoff, Order, Task

HANDOFFS = 100
TASKS = 10_000
LONG, SHORT = 2_000, 200
NOTES_THE_TIME = "#!/bin/sh\ndate +%s.%N\n"


def handing() -> Iterator[Figure]:
    """From the request to the first moment of the agent, which says by itself when that was."""
    with world() as w:
        agent = w.program("clock", NOTES_THE_TIME)
        client = w.client()
        task = client.request("POST", "/api/tasks", {"description": "be quick", "cwd": str(w.root)})
        _hand(client, w, task["id"], agent)
        waits = sorted(_hand(client, w, task["id"], agent) * 1000 for _ in range(HANDOFFS))
        note = f"median {percentile(waits, 0.5):.0f} ms of {HANDOFFS}, the slowest {waits[-1]:.0f} ms"
        yield Figure("hand-off to the agent's start, 95 of 100", percentile(waits, 0.95), "ms", 150, note=note)


def _hand(client: Client, w: World, task: str, agent: str) -> float:
    begin = time.time()
    body = {"agentName": agent, "prompt": "", "env": w.env}
    record = client.request("POST", f"/api/tasks/{task}/handoff", body)["agentChain"][-1]
    list(client.follow(record["run"]))
    done = client.request("GET", f"/api/tasks/{task}/handoffs/{record['id']}")
    return float(done["output"]) - begin


def listing() -> Iterator[Figure]:
    """The first page among ten thousand tasks, asked for over the socket."""
    with world() as w:
        _fill(w.home / "hocket.db", [Create(_task(number)) for number in range(1, TASKS + 1)])
        client = w.client()
        for path, name in (("/api/tasks", "first page"), ("/api/tasks?status=pending", "first page of one status")):
            assert len(client.request("GET", path)) == 100
            took = [seconds(partial(client.request, "GET", path)) * 1000 for _ in range(200)]
            note = f"median {percentile(took, 0.5):.1f} ms"
            yield Figure(f"{name} of {TASKS:,} tasks, 99 of 100", percentile(took, 0.99), "ms", 20, note=note)


def remembering() -> Iterator[Figure]:
    """A task that two thousand agents had, against one that two hundred had."""
    with world() as w:
        long, short = (
            Create(_task(number, count), _records(number, count)) for number, count in ((1, LONG), (2, SHORT))
        )
        _fill(w.home / "hocket.db", [long, short])
        client = w.client()
        took = [median_seconds(partial(client.request, "GET", f"/api/tasks/{number}"), 15) for number in (1, 2)]
        note = f"{took[0] * 1000:.1f} ms for {LONG:,} hand-offs, {took[1] * 1000:.1f} ms for {SHORT}"
        yield Figure("a task ten times as long, times", took[0] / took[1], "x", 12, note=note)


def _task(number: int, handoffs: int = 0) -> Task:
    return Task(f"t{number:09}", number, f"task {number}: mend what is broken", 1.0, 1.0, cwd="/", handoffs=handoffs)


def _records(task: int, count: int) -> tuple[Handoff, ...]:
    return tuple(
        Handoff(f"h{task}-{n}", f"t{task:09}", n, None, "developer", 0, n, n + 1, Status.DONE, Reason.EXIT, "x" * 500)
        for n in range(1, count + 1)
    )


def _fill(path: Path, orders: list[Order]) -> None:
    """Straight into the database, before there is a server: what is measured is not how it got there."""
    with closing(open_store(path)) as store:
        store.write_all([Batch([], orders=orders[start : start + 500]) for start in range(0, len(orders), 500)])
