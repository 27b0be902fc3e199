"""The life of runs as a user sees it, through the real command line, server, keeper and store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from world import Bin, Hocket

from hocket.keeper.platform import start_time
from hocket.keeper.process_tree import carrying

pytestmark = pytest.mark.shared_server

WAITS = "#!/bin/sh\necho up\nexec sleep 300\n"


def shown(hocket: Hocket, ref: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hocket("show", ref, "--json").stdout)
    return found


def spawn(hocket: Hocket, *args: str) -> str:
    return str(json.loads(hocket("spawn", *args, "--json").stdout)["run"])


def lives(pid: int) -> bool:
    """A zombie does not: whoever inherited it may take its time to collect it."""
    return start_time(pid, living=True) is not None


def wait_for_text(hocket: Hocket, run: str, text: str) -> None:
    """Follow until the agent has said it; the command's own pipe is what we wait on."""
    following = hocket.start("logs", run, "-f")
    assert following.stdout is not None
    for line in following.stdout:
        if text in line:
            break
    following.kill()
    following.communicate()


@pytest.mark.req("S1-B13")
def test_each_iteration_gets_the_same_prompt(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("noter", "import sys\nopen('prompts', 'a').write(repr(sys.argv[1:]) + '\\n')")
    hocket("run", "noter:3", "-p", "do it\nall")
    assert (project / "prompts").read_text().splitlines() == [repr(["do it\nall"])] * 3


@pytest.mark.req("S3-20", "S3-36", "S3-41")
@pytest.mark.parametrize(("code", "status"), [(0, "done"), (3, "failed")])
def test_a_spawned_agent_is_in_progress_and_then_done_or_failed(
    hocket: Hocket, agent: Bin, project: Path, code: int, status: str
) -> None:
    os.mkfifo(project / "go")
    agent("worker", f"print('up', flush=True)\nopen('go').read()\nprint('end')\nraise SystemExit({code})")
    run = spawn(hocket, "worker")
    wait_for_text(hocket, run, "up")
    during = shown(hocket, run)
    assert (during["status"], during["ended_at"], during["last"]) == ("running", None, "up")
    (project / "go").write_text("")
    ended = json.loads(hocket("wait", run, "--json").stdout)
    assert (ended["status"], ended["exit_code"], ended["result"]) == (status, code, "up\nend\n")


@pytest.mark.req("S3-51")
@pytest.mark.own_server
def test_a_run_is_listed_before_its_process_exists(hocket: Hocket, agent: Bin, home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nleaves = 1\n")
    agent("waits", WAITS)
    first, second = spawn(hocket, "waits"), spawn(hocket, "waits")
    wait_for_text(hocket, first, "up")
    waiting = shown(hocket, second)
    assert (waiting["status"], waiting["pid"]) == ("starting", None)
    hocket("stop", first)
    wait_for_text(hocket, second, "up")
    running = shown(hocket, second)
    assert running["status"] == "running"
    assert Path(f"/proc/{running['pid']}/cmdline").read_bytes().startswith(b"sleep")


def test_even_the_shortest_run_has_a_start_and_a_pid(hocket: Hocket, agent: Bin) -> None:
    agent("short", "#!/bin/sh\necho $$\n")
    events = [json.loads(line) for line in hocket("run", "short:5", "--json").stdout.splitlines()]
    started = [event["data"]["pid"] for event in events if event["type"] == "run.started" and "pid" in event["data"]]
    assert started == [int(event["data"]["text"]) for event in events if event["type"] == "text"]
    assert len(started) == 5


PARENT = f"""
import subprocess, sys, time
subprocess.run([{sys.executable!r}, "-m", "hocket", "spawn", "waits"], check=True)
print("child is on its way", flush=True)
time.sleep(300)
"""


@pytest.fixture
def family(hocket: Hocket, agent: Bin) -> tuple[dict[str, Any], dict[str, Any]]:
    """An agent and the agent that it spawned, both alive."""
    agent("waits", WAITS)
    agent("parent", PARENT)
    run = spawn(hocket, "parent")
    wait_for_text(hocket, run, "child is on its way")
    parent = shown(hocket, run)
    child = parent["children"][0]
    wait_for_text(hocket, child["id"], "up")
    return shown(hocket, run), shown(hocket, child["id"])


@pytest.mark.req("S3-53")
def test_what_an_agent_spawns_is_its_child(hocket: Hocket, family: tuple[dict[str, Any], dict[str, Any]]) -> None:
    parent, child = family
    assert (child["parent"], child["root"], child["depth"]) == (parent["id"], parent["id"], 1)
    listed = {run["id"]: run for run in json.loads(hocket("ps", "--json").stdout)}
    assert listed[child["id"]]["parent"] == parent["id"]


@pytest.mark.req("S3-53", "S3-60")
def test_stopping_an_agent_stops_what_it_spawned(hocket: Hocket, family: tuple[dict[str, Any], dict[str, Any]]) -> None:
    parent, child = family
    stopped = json.loads(hocket("stop", parent["id"], "--json").stdout)
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])
    assert set(stopped["stopped"]) == {parent["id"], child["id"]}
    for one in (parent, child):
        assert not lives(one["pid"])


@pytest.mark.req("S3-53", "S3-38")
def test_an_agent_whose_keeper_was_killed_is_cleaned_up_as_lost(hocket: Hocket, agent: Bin) -> None:
    agent("waits", "#!/bin/sh\nsetsid sleep 300 &\necho up\nexec sleep 300\n")
    run = spawn(hocket, "waits")
    wait_for_text(hocket, run, "up")
    identity = json.loads((Path(shown(hocket, run)["dir"]) / "pid").read_text())
    os.kill(identity["keeper"], signal.SIGKILL)
    ended = json.loads(hocket("wait", run, "--json").stdout)
    assert (ended["status"], ended["reason"], ended["exit_code"]) == ("lost", "lost", None)
    assert hocket("ps", "--json").stdout.strip() == "[]"
    assert not lives(identity["pid"])
    assert not carrying(run)


def test_a_run_whose_directory_was_removed_is_lost_and_not_started_again(
    hocket: Hocket, agent: Bin, project: Path
) -> None:
    agent("waits", "#!/bin/sh\necho $$ >> ledger\necho up\nexec sleep 300\n")
    run = spawn(hocket, "waits")
    wait_for_text(hocket, run, "up")
    place = Path(shown(hocket, run)["dir"])
    # Away in one go: its keeper may write into it while it is emptied.
    shutil.rmtree(place.rename(project / "removed"), ignore_errors=True)
    ended = json.loads(hocket("wait", run, "--json").stdout)
    assert ended["status"] == "lost"
    (pid,) = (project / "ledger").read_text().split()
    assert not lives(int(pid))


def test_what_a_gate_leaves_running_is_ended_with_it(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("quick", "print('done')")
    done = hocket("run", "quick", "--until", "setsid sleep 300 & echo $! > left")
    assert done.returncode == 0, done.stderr
    assert not lives(int((project / "left").read_text()))


def test_stopping_a_loop_during_its_gate_stops_the_chain(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("claims", "open('ledger', 'a').write('x')\nprint('FORKHESTRA_COMPLETE')")
    os.mkfifo(project / "at_gate")
    chain = hocket.created("run", "claims:4", "--detach", "--until", "echo $$ > at_gate; sleep 300")
    gate = int((project / "at_gate").read_text())
    loop = shown(hocket, chain)["children"][0]["id"]
    assert hocket("stop", loop).returncode == 0
    ended = json.loads(hocket("wait", chain, "--json").stdout)
    assert (ended["status"], (project / "ledger").read_text()) == ("stopped", "x")
    assert not lives(gate)


@pytest.mark.own_server
def test_a_server_that_is_stopped_takes_its_gates_along_and_the_next_one_asks_again(
    hocket: Hocket, agent: Bin, project: Path
) -> None:
    agent("quick", "print('done')")
    os.mkfifo(project / "at_gate")
    gate = "echo x >> asked; echo $$ > at_gate; test -e open || sleep 300"
    chain = hocket.created("run", "quick", "--detach", "--until", gate)
    first = int((project / "at_gate").read_text())
    assert hocket("server", "stop").returncode == 0
    assert not lives(first)
    (project / "open").touch()
    waiting = hocket.start("wait", chain)
    assert int((project / "at_gate").read_text()) != first
    assert waiting.wait(10) == 0
    assert (project / "asked").read_text() == "x\nx\n"
