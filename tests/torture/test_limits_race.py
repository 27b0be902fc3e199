"""Limits under concurrent starts: a tree of runs grows exactly to its bounds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torture.installation import Installation, environment, kill, wait_for
from world import Bin

from hocket.client import Client
from hocket.errors import HocketError, LimitReached

WAITING = """
import os, signal
print("token", os.environ["HOCKET_TOKEN"], "ready", flush=True)
signal.pause()
"""
THREADS = 16


class Tree:
    """Runs that start runs, each by its own token, as agents do."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._local = threading.local()

    def token(self, run: str) -> str:
        return self.installation.said(run, b"ready").split()[1].decode()

    def start(self, token: str | None = None, **more: Any) -> str:
        """The new run, or the error that it is refused with."""
        clients: dict[str | None, Client] = self._local.__dict__.setdefault("clients", {})
        if token not in clients:
            clients[token] = Client(str(self.installation.home), self.installation.start_server, token=token)
        body = {"agent": "waiting", "cwd": str(self.installation.cwd), "env": environment(), **more}
        return str(clients[token].request("POST", "/api/runs", body)["id"])

    def attempt(self, token: str | None) -> str:
        """How it went: ``started``, or the code and the first word of the refusal."""
        try:
            self.start(token)
        except HocketError as error:
            return f"{error.code} {error.message.split()[0]}"
        return "started"

    def live(self) -> list[dict[str, Any]]:
        return list(self.installation.client.request("GET", "/api/runs"))


@pytest.fixture
def tree(installation: Installation, agent: Bin) -> Tree:
    agent("waiting", WAITING)
    return Tree(installation)


def at_once(work: Callable[[str | None], str], tokens: Iterable[str | None], threads: int = THREADS) -> Counter[str]:
    """What came of all of it, begun as nearly at the same moment as threads can."""
    everything = list(tokens)
    gate = threading.Barrier(min(threads, len(everything)))
    first = threading.local()

    def one(token: str | None) -> str:
        if not getattr(first, "is_through", False):
            first.is_through = True
            gate.wait(10)
        return work(token)

    with ThreadPoolExecutor(gate.parties) as pool:
        return Counter(pool.map(one, everything))


# --- Depth --------------------------------------------------------------------------------------------------


@pytest.mark.req("S3-57")
def test_nested_starts_end_at_the_depth_limit(tree: Tree, home: Path) -> None:
    (home / "config.toml").write_text("[limits]\ndepth = 5\nchildren = 3\n")
    tokens: list[str | None] = [None]
    refusals: list[str] = []
    for _ in range(100):
        try:
            tokens.append(tree.token(tree.start(tokens[-1])))
        except LimitReached as error:
            refusals.append(error.message)
    assert len(tokens) - 1 == 6
    assert refusals == ["depth 6 is over the limit of 5"] * 94
    # Concurrent starts at every depth: every depth fills up, and none is added below.
    outcomes = at_once(tree.attempt, [token for token in tokens[1:] for _ in range(8)])
    assert Counter(run["depth"] for run in tree.live()) == {0: 1, **dict.fromkeys(range(1, 6), 3)}
    assert outcomes == {"started": 2 * 5, "limit children:": 6 * 5, "limit depth": 8}


@pytest.mark.req("S3-57")
def test_concurrent_starts_respect_both_limits(tree: Tree, home: Path) -> None:
    (home / "config.toml").write_text("[limits]\ndepth = 2\nchildren = 3\n")
    top = tree.token(tree.start())
    middle = tree.token(tree.start(top))
    # Three places below the middle, at the last level, and two beside it.
    attempts = [one for _ in range(25) for one in (top, middle)]
    assert at_once(tree.attempt, attempts, 50) == {"started": 5, "limit children:": 45}
    assert Counter(run["depth"] for run in tree.live()) == {0: 1, 1: 3, 2: 3}
    lowest = [tree.token(run["id"]) for run in tree.live() if run["depth"] == 2]
    assert at_once(tree.attempt, [lowest[place % 3] for place in range(50)], 50) == {"limit depth": 50}
    assert len(tree.live()) == len(list((home / "runs").glob("*/*"))) == 7


# --- Width --------------------------------------------------------------------------------------------------


def test_concurrent_starts_reach_the_child_limit_exactly(tree: Tree) -> None:
    parent = tree.start()
    token = tree.token(parent)
    outcomes = at_once(tree.attempt, [token] * 1000)
    assert outcomes == {"started": 8, "limit children:": 992}
    assert sum(run["parent"] == parent for run in tree.live()) == 8
    assert len(list((tree.installation.home / "runs").glob("*/*"))) == 9


def test_one_of_two_starts_gets_the_last_place(tree: Tree, home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nchildren = 2\n")
    parent = tree.start()
    token = tree.token(parent)
    tree.start(token)
    for _ in range(12):
        assert at_once(tree.attempt, [token, token]) == {"started": 1, "limit children:": 1}
        children = [run for run in tree.live() if run["parent"] == parent]
        assert len(children) == 2
        tree.installation.client.request("POST", f"/api/runs/{children[-1]['id']}/stop")


def test_second_run_waits_for_a_free_leaf(tree: Tree, home: Path) -> None:
    """Above the number of leaves no start is refused: the second run waits until a leaf is free."""
    (home / "config.toml").write_text("[limits]\nleaves = 3\n")
    tokens = [tree.token(tree.start()) for _ in range(2)]
    for _ in range(6):
        assert at_once(tree.attempt, tokens) == {"started": 2}
        racers = [run for run in tree.live() if run["parent"]]
        assert len(racers) == 2
        wait_for(lambda: "running" in states(tree), "one of them at work")
        assert sorted(states(tree)) == ["running", "starting"]
        assert len(agents_at_work(tree.installation)) == 3
        first = next(run["id"] for run in tree.live() if run["parent"] and run["status"] == "running")
        second = next(run["id"] for run in racers if run["id"] != first)
        tree.installation.client.request("POST", f"/api/runs/{first}/stop")
        wait_for(lambda: "running" in states(tree), "the other one's turn")
        assert len(agents_at_work(tree.installation)) == 3
        tree.installation.client.request("POST", f"/api/runs/{second}/stop")


def states(tree: Tree) -> list[str]:
    return [run["status"] for run in tree.live() if run["parent"]]


def agents_at_work(installation: Installation) -> list[int]:
    return [run["pid"] for run in installation.client.request("GET", "/api/runs") if run["pid"]]


@pytest.mark.slow
def test_child_limit_holds_through_server_kills(tree: Tree) -> None:
    """Runs that a killed server had started count for the next one, also when no client got a response."""
    parent = tree.start()
    token = tree.token(parent)
    stop = threading.Event()

    def start_repeatedly() -> None:
        while not stop.is_set():
            try:
                tree.start(token)
            except (HocketError, OSError):
                continue  # refused, or asked a server that is being killed

    starters = [threading.Thread(target=start_repeatedly) for _ in range(4)]
    for one in starters:
        one.start()
    try:
        for _ in range(4):
            wait_for(lambda: sum(run["parent"] == parent for run in tree.live()) >= 1, "a child")
            kill(tree.installation.server_pid())
    finally:
        stop.set()
        for one in starters:
            one.join(30)
    while tree.attempt(token) == "started":
        pass
    assert sum(run["parent"] == parent for run in tree.live()) == 8
    assert len(list((tree.installation.home / "runs").glob("*/*"))) == 9
