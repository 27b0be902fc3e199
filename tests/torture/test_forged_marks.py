"""Processes with forged marks, or none at all: they end with the run or the gate that started them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torture.installation import Installation, all_gone, kill, verdict, wait_for
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

CHILDREN = """
import os, subprocess, sys
deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
forged = {
    "server": {**os.environ, "HOCKET_SERVER": "1"},
    "only server": {"HOCKET_SERVER": "1", "HOCKET_HOME": os.environ.get("HOCKET_HOME", "/")},
    "run": {**os.environ, "HOCKET_RUN": "x"},
    "both": {"HOCKET_SERVER": "1", "HOCKET_RUN": "x"},
    "nothing": {},
}
pids = []
for env in forged.values():
    child = subprocess.Popen([sys.executable, "-ISc", deaf], stdout=-1, env=env, start_new_session=True)
    child.stdout.readline()
    pids.append(child.pid)
with open(sys.argv[1] + ".new", "w") as file:
    print(*pids, file=file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
STAY = "import signal\nsignal.pause()\n"


@pytest.fixture
def children(project: Path) -> Callable[[], list[int]]:
    """The pids that an agent wrote into the file `pids` of the project."""

    def read() -> list[int]:
        path = project / "pids"
        wait_for(path.exists, "the children")
        return [int(word) for word in path.read_text().split()]

    return read


def test_forged_children_are_gone_when_run_ends(
    installation: Installation, agent: Bin, project: Path, children: Callable[[], list[int]]
) -> None:
    """Torture row 49."""
    agent("forger", CHILDREN)
    run = installation.spawn("forger", str(project / "pids"))
    assert verdict(installation.ended(run)) == ("done", "exit", 0)
    assert all_gone(children(), 0)


def test_forged_children_are_gone_when_run_is_stopped(
    installation: Installation, agent: Bin, project: Path, children: Callable[[], list[int]]
) -> None:
    """Torture row 49."""
    agent("forger", CHILDREN + STAY)
    (project / "hocket.toml").write_text("[run]\nstop_grace = 0.3\n")
    run = installation.spawn("forger", str(project / "pids"))
    pids = children()
    stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert (stopped["status"], stopped["survivors"]) == ("stopped", [])
    assert all_gone(pids, 0)


@pytest.mark.own_server
@pytest.mark.parametrize("is_served", [True, False])
def test_forged_children_are_gone_when_keeper_is_killed(
    is_served: bool, installation: Installation, agent: Bin, project: Path, children: Callable[[], list[int]]
) -> None:
    """Torture row 49."""
    agent("forger", CHILDREN + STAY)
    run = installation.spawn("forger", str(project / "pids"))
    pids = children()
    keeper = installation.identity(run).keeper
    if not is_served:
        installation.kill_server()
    kill(keeper)
    assert verdict(installation.ended(run)) == ("lost", "lost", None)
    assert all_gone(pids, 0)


def test_forged_children_are_gone_when_gate_ends(
    hocket: Hocket, agent: Bin, project: Path, children: Callable[[], list[int]]
) -> None:
    """Torture row 49."""
    agent("worker", "pass")
    forger = agent("forger", CHILDREN)
    done = hocket("run", "worker", "--until", f"{forger} {project / 'pids'}")
    assert done.returncode == 0, done.stderr
    assert all_gone(children(), 0)


def test_spawned_run_survives_when_its_starter_ends(
    installation: Installation, hocket: Hocket, agent: Bin, project: Path
) -> None:
    """Torture row 49. It has a keeper of its own, which is what spares it."""
    agent("held", "import sys\nprint('ready', flush=True)\nopen(sys.argv[1]).read()")
    agent("starter", f"#!/bin/sh\nexec hocket spawn held -- {project / 'gate'}\n")
    os.mkfifo(project / "gate")
    assert hocket("run", "starter").returncode == 0
    held = wait_for(lambda: [run for run in hocket.runs() if run["agent"] == "held"], "the other run")[0]["id"]
    installation.said(held, b"ready")
    (project / "gate").open("w").close()
    assert verdict(installation.ended(held)) == ("done", "exit", 0)


@pytest.mark.own_server
def test_agent_started_server_survives_when_run_ends(installation: Installation, agent: Bin, project: Path) -> None:
    """Torture row 49. Its processes are below the keeper of the run that started it; their locks spare them."""
    agent("held", "import sys\nprint('ready', flush=True)\nopen(sys.argv[1]).read()")
    agent("starter", f"#!/bin/sh\nkill -9 $1\nhocket spawn held --json -- {project / 'gate'} > {project / 'spawned'}\n")
    os.mkfifo(project / "gate")
    first = installation.server_pid()
    run = installation.spawn("starter", str(first))
    wait_for(lambda: (project / "spawned").exists() and (project / "spawned").read_text(), "a run of the new server")
    second = wait_for(lambda: (pid := installation.living_server()) != first and pid, "a new server")
    assert verdict(installation.ended(run)) == ("done", "exit", 0)
    assert installation.server_pid() == second
    held = next(one["id"] for one in installation.client.request("GET", "/api/runs?all=1") if one["agent"] == "held")
    installation.said(held, b"ready")
    (project / "gate").open("w").close()
    assert verdict(installation.ended(held)) == ("done", "exit", 0)


IMPOSTOR = """
import fcntl, glob, os, signal, sys
folder = glob.glob(os.path.join(os.environ["HOCKET_HOME"], "runs", "*", os.environ["HOCKET_RUN"]))[0]
keeper = os.getppid()
if os.fork() == 0:
    os.setsid()
    os.chdir(folder)
    held = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    os.kill(keeper, signal.SIGKILL)
    fcntl.flock(held, fcntl.LOCK_EX)
while True: signal.pause()
"""


@pytest.mark.parametrize("lock", ["lock", "other"])
def test_impostor_of_killed_keeper_is_ended(
    lock: str, installation: Installation, agent: Bin, project: Path, children: Callable[[], list[int]]
) -> None:
    """Torture row 49. With the run's own lock it passes for a keeper until the run is to end."""
    agent("impostor", IMPOSTOR)
    (project / "hocket.toml").write_text("[run]\nstop_grace = 0.3\n")
    run = installation.spawn("impostor", str(project / "pids"), lock)
    pids = children()
    if lock == "lock":
        installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert verdict(installation.ended(run)) == ("lost", "lost", None)
    assert all_gone(pids, 0)
