"""Hand-offs while the server dies: one agent at a time, each started once, and the same response for every caller."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from torture.installation import Installation, environment, kill
from world import Bin

from hocket.client import Client
from hocket.errors import Conflict

AGENT = """
import os, pathlib, time
with open("starts", "a") as file:
    file.write(os.environ["HOCKET_RUN"] + "\\n")
deadline = time.monotonic() + 60
while not pathlib.Path("go").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
print("done by", os.environ["HOCKET_RUN"])
"""


def new_task(installation: Installation) -> str:
    return str(
        installation.client.request("POST", "/api/tasks", {"description": "d", "cwd": str(installation.cwd)})["id"]
    )


@contextmanager
def at_once(installation: Installation, count: int, ask: Callable[[Client, int], None]) -> Iterator[None]:
    """So many requests from ten callers, each of whom would start a server where there is none, up to their end."""
    numbers = iter(range(count))

    def some() -> None:
        client = Installation(installation.home, installation.cwd).client
        for number in numbers:
            ask(client, number)

    with ThreadPoolExecutor(10) as callers:
        asked = [callers.submit(some) for _ in range(10)]
        yield
        for one in asked:
            one.result(90)


def storm(installation: Installation, count: int, kills: int, task: str, key: str) -> tuple[list[str], list[str]]:
    """So many callers at once while the server is killed so often: the hand-offs they were told of, and refusals."""
    told: list[str] = []
    refused: list[str] = []
    body = {"agentName": "worker", "prompt": "go on", "env": environment()}

    def ask(client: Client, number: int) -> None:
        try:
            answer = client.exchange("POST", f"/api/tasks/{task}/handoff", body, key.format(number))
            told.append(answer["meta"]["handoff"])
        except Conflict as error:
            refused.append(error.message)

    moments = random.Random(count)
    with at_once(installation, count, ask):
        for _ in range(kills):
            pid = installation.server_pid()
            time.sleep(moments.uniform(0, 0.15))  # A moment without a pattern is what is wanted here, not a condition.
            kill(pid)
    return told, refused


def finish(installation: Installation, task: str, handoff: str) -> dict[str, Any]:
    """Let the agent end; the task afterwards."""
    (installation.cwd / "go").touch()
    record = installation.client.request("GET", f"/api/tasks/{task}/handoffs/{handoff}")
    installation.ended(record["run"], 30)
    after: dict[str, Any] = installation.client.request("GET", f"/api/tasks/{task}")
    (only,) = after["agentChain"]
    assert (only["id"], only["status"]) == (handoff, "done")
    assert only["output"] == f"done by {only['run']}\n"
    assert (installation.cwd / "starts").read_text().split() == [only["run"]]
    assert (after["currentAgent"], after["status"]["type"]) == (None, "waiting")
    events = installation.client.request("GET", f"/api/tasks/{task}/history")["events"]
    kinds = Counter(event["eventType"] for event in events)
    assert (kinds["agent_handoff_started"], kinds["agent_handoff_completed"]) == (1, 1)
    return after


@pytest.mark.req("S2-38", "S2-83", "S2-84")
@pytest.mark.timeout(120)  # several servers have to come up, also on a machine that is busy
def test_one_of_fifty_callers_gets_the_task(installation: Installation, agent: Bin) -> None:
    """Torture row 26."""
    agent("worker", AGENT)
    task = new_task(installation)
    told, refused = storm(installation, 50, 2, task, "caller-{}")
    assert (len(told), len(refused)) == (1, 49)
    finish(installation, task, told[0])


@pytest.mark.req("S2-83")
@pytest.mark.timeout(120)  # the same
def test_equal_requests_are_one_handoff_despite_kills(installation: Installation, agent: Bin) -> None:
    """Torture row 27."""
    agent("worker", AGENT)
    task = new_task(installation)
    told, refused = storm(installation, 100, 2, task, "the same")
    assert refused == []
    assert len(told) == 100
    assert len(set(told)) == 1
    finish(installation, task, told[0])


@pytest.mark.timeout(120)  # the same
def test_equal_creations_are_one_task_despite_kills(installation: Installation) -> None:
    """Torture row 27."""
    made: list[str] = []

    def ask(client: Client, number: int) -> None:
        made.append(client.request("POST", "/api/tasks", {"description": "once"}, "one wish")["id"])

    with at_once(installation, 100, ask):
        for _ in range(2):
            kill(installation.server_pid())
    assert len(made) == 100
    assert len(set(made)) == 1
    assert len(installation.client.request("GET", "/api/tasks")) == 1
