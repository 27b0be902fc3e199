"""Chains that wait while no agent is at work, so that no keeper could start a server for them."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torture.installation import Installation, environment, kill, verdict, wait_for
from world import Bin, processes_of

from hocket.keeper import files
from hocket.keeper.server_watch import TICK

LIMITED = """
import json, os, sys, time
tries = os.open("tries", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(tries, b".")
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s", "cwd": os.getcwd(), "tools": []}), flush=True)
if os.fstat(tries).st_size == 1:
    info = {"status": "rejected", "resetsAt": time.time() + SECONDS, "rateLimitType": "five_hour"}
    print(json.dumps({"type": "rate_limit_event", "rate_limit_info": info, "session_id": "s"}))
    result = {"is_error": True, "result": "You've hit your limit"}
else:
    result = {"is_error": False, "result": "all of it\\nFORKHESTRA_COMPLETE"}
common = {"type": "result", "subtype": "success", "session_id": "s", "num_turns": 1, "usage": {}}
print(json.dumps({**common, **result}))
"""
LINGERING = """
import json, sys
changed = {"subtype": "background_tasks_changed", "tasks": [{"task_id": "b1", "task_type": "local_bash"}]}
for said in ({"subtype": "init"}, changed):
    print(json.dumps({"type": "system", "session_id": "s", **said}), flush=True)
result = {"type": "result", "subtype": "success", "is_error": False, "result": "done", "session_id": "s"}
print(json.dumps(result), flush=True)
sys.stdin.read()
"""
"""It has done its work but for a command in the background, and stays as long as its input is open."""
GATE = "test -e go || { touch asked; sleep 300; }"


def chain(installation: Installation, text: str, **more: Any) -> str:
    body = {"dsl": text, "cwd": str(installation.cwd), "env": environment(), **more}
    return str(installation.client.request("POST", "/api/runs", body)["id"])


def parked(installation: Installation, agent: Bin, seconds: float) -> str:
    """A chain whose agent has met a limit that ends after so long."""
    program = agent("limited", LIMITED.replace("SECONDS", str(seconds)))
    run = chain(installation, "claude:3", prompt="go", env={**environment(), "HOCKET_CLAUDE": str(program)})
    wait_for(lambda: installation.run(run)["parked_until"], "the chain to be parked")
    (loop,) = installation.run(run)["children"]
    (leaf,) = installation.run(loop["id"])["children"]
    installation.ended(leaf["id"])  # with its keeper, which would start a server as well
    return run


def lingering(installation: Installation, agent: Bin) -> str:
    """A run that a server lets go in ten minutes, and that has said its last word a while ago."""
    program = agent("lingering", LINGERING)
    env = {**environment(), "HOCKET_CLAUDE": str(program)}
    run = installation.spawn("claude", prompt="go", on_question="deny", env=env)
    installation.said(run, b"result")
    wait_for(lambda: installation.run(run)["result"], "the result to be recorded")
    last_word = (installation.folder(run) / files.OUT).stat().st_mtime
    wait_for(lambda: time.time() > last_word + TICK, "a silence that a keeper does not notice")
    return run


def at_its_gate(installation: Installation, agent: Bin) -> str:
    agent("brief", "")
    run = chain(installation, "brief", until=GATE)
    wait_for((installation.cwd / "asked").exists, "the gate")
    (leaf,) = installation.run(run)["children"]
    installation.ended(leaf["id"])  # with its keeper, which would start a server as well
    return run


def another_server(installation: Installation, killed: int) -> int:
    """A server that the test did not start. It takes the lock a little before it writes its description."""

    def found() -> int | None:
        pid = installation.living_server()
        return None if pid == killed else pid

    return wait_for(found, "another server", 20)


def tries(installation: Installation) -> int:
    return (installation.cwd / "tries").stat().st_size


def only_the_server_is_left(installation: Installation) -> None:
    """Wait for the keepers too: one that ends after its server starts another."""
    wait_for(lambda: len(processes_of(installation.home)) == 2, "only the server and its zygote")


def is_deserted(home: Path) -> bool:
    return not processes_of(home)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_parked_chain_continues_after_its_server_ended(installation: Installation, agent: Bin, sig: int) -> None:
    run = parked(installation, agent, 7)
    until = installation.run(run)["parked_until"]
    killed = installation.kill_server(sig)
    if sig == signal.SIGTERM:
        assert installation.living_server() is None
        assert len(processes_of(installation.home)) == 1, "one process waits for the time"
    other = another_server(installation, killed)
    ended = installation.ended(run)
    assert (ended["status"], tries(installation)) == ("done", 2)
    assert installation.server_pid() == other
    assert ended["ended_at"] >= until
    only_the_server_is_left(installation)
    installation.kill_server(signal.SIGTERM)
    wait_for(lambda: is_deserted(installation.home), "the end of all processes")


def test_earlier_started_server_is_not_restarted(installation: Installation, agent: Bin) -> None:
    run = parked(installation, agent, 6)
    first = installation.kill_server(signal.SIGTERM)
    second = installation.server_pid()
    assert second != first
    assert installation.ended(run)["status"] == "done"
    only_the_server_is_left(installation)
    assert (installation.living_server(), tries(installation)) == (second, 2)


def test_no_process_waits_for_a_stopped_chain(installation: Installation, agent: Bin) -> None:
    run = parked(installation, agent, 300)
    installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert installation.ended(run)["status"] == "stopped"
    installation.kill_server(signal.SIGTERM)
    wait_for(lambda: is_deserted(installation.home), "the end of all processes")


def test_gate_of_chain_continues_after_server_kill(installation: Installation, agent: Bin) -> None:
    run = at_its_gate(installation, agent)
    killed = installation.kill_server()
    (installation.cwd / "go").touch()
    another_server(installation, killed)
    assert verdict(installation.ended(run)) == ("done", "single_run", 0)


def test_stopped_server_is_not_restarted_for_gate(installation: Installation, agent: Bin) -> None:
    """A stop is intended: only a scheduled start starts the server again."""
    run = at_its_gate(installation, agent)
    installation.kill_server(signal.SIGTERM)
    wait_for(lambda: is_deserted(installation.home), "the end of all processes")
    (installation.cwd / "go").touch()
    assert verdict(installation.ended(run)) == ("done", "single_run", 0)


def test_killed_server_returns_to_end_settled_run(installation: Installation, agent: Bin) -> None:
    run = lingering(installation, agent)
    another_server(installation, installation.kill_server())
    installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert installation.ended(run)["status"] == "stopped"


def test_stopped_server_returns_to_end_settled_run(installation: Installation, agent: Bin) -> None:
    run = lingering(installation, agent)
    kept = {installation.identity(run).pid, installation.identity(run).keeper}
    installation.kill_server(signal.SIGTERM)
    wait_for(lambda: len(set(processes_of(installation.home)) - kept) == 1, "the waiting process alone")
    assert installation.living_server() is None
    installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert installation.ended(run)["status"] == "stopped"
    installation.kill_server(signal.SIGTERM)
    # It looks twice a minute whether it is still needed.
    for waiter in processes_of(installation.home):
        kill(waiter, signal.SIGKILL)


def test_plain_chain_leaves_only_the_server(installation: Installation, agent: Bin) -> None:
    agent("brief", "")
    assert installation.ended(chain(installation, "brief -> brief"))["status"] == "done"
    wanted = {installation.server_pid(), installation.zygote_pid()}
    wait_for(lambda: set(processes_of(installation.home)) == wanted, "the end of the last keeper alone")
    installation.kill_server(signal.SIGTERM)
    wait_for(lambda: is_deserted(installation.home), "the end of all processes")
