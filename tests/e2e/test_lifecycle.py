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


def is_alive(pid: int) -> bool:
    """False for a zombie, which its new parent may collect later."""
    return start_time(pid, living=True) is not None


def wait_for_text(hocket: Hocket, run: str, text: str) -> None:
    """Follow the run until the agent has written the text."""
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
def test_spawned_agent_is_running_then_ends(hocket: Hocket, agent: Bin, project: Path, code: int, status: str) -> None:
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
def test_run_is_listed_before_its_process_exists(hocket: Hocket, agent: Bin, home: Path) -> None:
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


def test_shortest_run_has_start_event_and_pid(hocket: Hocket, agent: Bin) -> None:
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
def parent_and_child(hocket: Hocket, agent: Bin) -> tuple[dict[str, Any], dict[str, Any]]:
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
def test_run_spawned_by_agent_is_its_child(
    hocket: Hocket, parent_and_child: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    parent, child = parent_and_child
    assert (child["parent"], child["root"], child["depth"]) == (parent["id"], parent["id"], 1)
    listed = {run["id"]: run for run in json.loads(hocket("ps", "--json").stdout)}
    assert listed[child["id"]]["parent"] == parent["id"]


@pytest.mark.req("S3-53", "S3-60")
def test_stopping_agent_stops_spawned_children(
    hocket: Hocket, parent_and_child: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    parent, child = parent_and_child
    stopped = json.loads(hocket("stop", parent["id"], "--json").stdout)
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])
    assert set(stopped["stopped"]) == {parent["id"], child["id"]}
    for one in (parent, child):
        assert not is_alive(one["pid"])


@pytest.mark.req("S3-53", "S3-38")
def test_run_with_killed_keeper_is_lost(hocket: Hocket, agent: Bin) -> None:
    agent("waits", "#!/bin/sh\nsetsid sleep 300 &\necho up\nexec sleep 300\n")
    run = spawn(hocket, "waits")
    wait_for_text(hocket, run, "up")
    identity = json.loads((Path(shown(hocket, run)["dir"]) / "pid").read_text())
    os.kill(identity["keeper"], signal.SIGKILL)
    ended = json.loads(hocket("wait", run, "--json").stdout)
    assert (ended["status"], ended["reason"], ended["exit_code"]) == ("lost", "lost", None)
    assert hocket("ps", "--json").stdout.strip() == "[]"
    assert not is_alive(identity["pid"])
    assert not carrying(run)


def test_run_with_removed_directory_is_lost(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("waits", "#!/bin/sh\necho $$ >> ledger\necho up\nexec sleep 300\n")
    run = spawn(hocket, "waits")
    wait_for_text(hocket, run, "up")
    place = Path(shown(hocket, run)["dir"])
    # Away in one go: its keeper may write into it while it is emptied.
    shutil.rmtree(place.rename(project / "removed"), ignore_errors=True)
    ended = json.loads(hocket("wait", run, "--json").stdout)
    assert ended["status"] == "lost"
    (pid,) = (project / "ledger").read_text().split()
    assert not is_alive(int(pid))


def test_background_process_of_gate_ends_with_it(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("quick", "print('done')")
    done = hocket("run", "quick", "--until", "setsid sleep 300 & echo $! > left")
    assert done.returncode == 0, done.stderr
    assert not is_alive(int((project / "left").read_text()))


def test_stopping_loop_during_gate_stops_chain(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("claims", "open('ledger', 'a').write('x')\nprint('FORKHESTRA_COMPLETE')")
    os.mkfifo(project / "at_gate")
    chain = hocket.created("run", "claims:4", "--detach", "--until", "echo $$ > at_gate; sleep 300")
    gate = int((project / "at_gate").read_text())
    loop = shown(hocket, chain)["children"][0]["id"]
    assert hocket("stop", loop).returncode == 0
    ended = json.loads(hocket("wait", chain, "--json").stdout)
    assert (ended["status"], (project / "ledger").read_text()) == ("stopped", "x")
    assert not is_alive(gate)


@pytest.mark.own_server
def test_gate_reruns_after_server_stop(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("quick", "print('done')")
    os.mkfifo(project / "at_gate")
    gate = "echo x >> asked; echo $$ > at_gate; test -e open || sleep 300"
    chain = hocket.created("run", "quick", "--detach", "--until", gate)
    first = int((project / "at_gate").read_text())
    assert hocket("server", "stop").returncode == 0
    assert not is_alive(first)
    (project / "open").touch()
    waiting = hocket.start("wait", chain)
    assert int((project / "at_gate").read_text()) != first
    assert waiting.wait(10) == 0
    assert (project / "asked").read_text() == "x\nx\n"
