"""Agents that keep their keeper from stopping them: it is suspended, or does not hear its bell."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from torture.installation import Installation, all_gone, verdict, wait_for
from world import Bin, Hocket

from hocket.keeper import linux
from hocket.keeper.escalation import find_keeper

pytestmark = pytest.mark.shared_server

BEGINNING = """
import glob, os, signal, subprocess, sys, time
folder = glob.glob(os.path.join(os.environ["HOCKET_HOME"], "runs", "*", os.environ["HOCKET_RUN"]))[0]
bell, keeper = os.path.join(folder, "bell"), os.getppid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
ENDING = """
helper = subprocess.Popen([sys.executable, "-ISc", "import signal; signal.pause()"], start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file:
    print(os.getpid(), helper.pid, file=file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
%s
while True: signal.pause()
"""
NOTHING = ""
SUSPEND = "os.kill(keeper, signal.SIGSTOP)"
REMOVE = "os.unlink(bell)"
REPLACE = """
os.unlink(bell)
os.mkfifo(bell)
reader = os.open(bell, os.O_RDWR)
"""
EMPTY = """
reader = os.open(bell, os.O_RDWR)
if os.fork() == 0:
    while True: os.read(reader, 4096)
"""
REMOVE_START = """
for name in ("started", "lock", "bell"): os.unlink(os.path.join(folder, name))
"""
MOVE = """
os.rename(folder, folder + ".moved")
"""
SUSPEND_AGAIN = """
while True:
    os.kill(keeper, signal.SIGSTOP)
    time.sleep(0.001)
"""
OBSTACLES = {
    "suspended keeper": (NOTHING, SUSPEND),
    "bell removed": (REMOVE, NOTHING),
    "bell replaced": (REPLACE, NOTHING),
    "bell emptied": (EMPTY, NOTHING),
    "suspended keeper without a bell": (REMOVE, SUSPEND),
    "suspended keeper without a trace of its start": (REMOVE_START, SUSPEND),
    "keeper suspended again and again": (NOTHING, SUSPEND_AGAIN),
}


@pytest.fixture
def stubborn(agent: Bin, project: Path, installation: Installation) -> Iterator[list[int]]:
    """Puts agents `stubborn-N` on PATH, one for each obstacle; lets every keeper go on in the end."""
    (project / "hocket.toml").write_text("[run]\nstop_grace = 0.3\n")
    for number, (before, after) in enumerate(OBSTACLES.values()):
        agent(f"stubborn-{number}", BEGINNING + before + ENDING % after)
    keepers: list[int] = []
    yield keepers
    for keeper in keepers:
        continue_process(keeper)


def continue_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def name_of(obstacle: str) -> str:
    return f"stubborn-{list(OBSTACLES).index(obstacle)}"


def begin(installation: Installation, obstacle: str, keepers: list[int], **limits: Any) -> tuple[str, list[int]]:
    """A run that has put its obstacle up, and the processes of its tree."""
    written = installation.cwd / "family"
    run = installation.spawn(name_of(obstacle), str(written), **limits)
    wait_for(written.exists, "the agent's family")
    family = [int(word) for word in written.read_text().split()]
    keeper = wait_for(lambda: find_keeper(str(installation.folder(run))), "the keeper")
    keepers.append(keeper.pid)
    if "suspend" in obstacle:
        wait_for(lambda: is_suspended(keeper.pid), "a suspended keeper")
    return run, family


def is_suspended(pid: int) -> bool:
    return ") T " in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_stop_ends_tree_when_keeper_is_obstructed(
    obstacle: str, installation: Installation, stubborn: list[int]
) -> None:
    """Torture row 48."""
    run, family = begin(installation, obstacle, stubborn)
    stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])
    assert all_gone(family, 0)


@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
@pytest.mark.parametrize("obstacle", ["suspended keeper without a bell", "keeper suspended again and again"])
def test_time_limit_ends_tree_when_keeper_is_obstructed(
    obstacle: str, limit: str, installation: Installation, stubborn: list[int]
) -> None:
    """Torture row 48."""
    run, family = begin(installation, obstacle, stubborn, **{limit: 1.5})
    ended = installation.ended(run)
    assert (ended["status"], ended["reason"]) == ("failed", limit)
    assert all_gone(family, 0)


def test_chain_stops_when_keeper_is_obstructed(
    installation: Installation, hocket: Hocket, stubborn: list[int], project: Path
) -> None:
    """Torture row 48."""
    written = project / "family"
    hocket("run", name_of("suspended keeper without a bell"), "--detach", "--", written)
    wait_for(written.exists, "the agent's family")
    stopped = hocket("stop", hocket.number())
    assert (stopped.returncode, "stopped" in stopped.stdout) == (0, True), stopped.stderr
    assert all_gone([int(word) for word in written.read_text().split()], 0)


def test_summary_says_when_server_had_to_kill(installation: Installation, stubborn: list[int]) -> None:
    """Torture row 48."""
    run, _ = begin(installation, "keeper suspended again and again", stubborn)
    installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert "the server killed its processes" in installation.run(run)["error"]


@contextmanager
def suspended_again_and_again(pid: int) -> Iterator[None]:
    """From outside the run, where the server does not look."""
    over = threading.Event()

    def suspend() -> None:
        while not over.is_set():
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                return
            time.sleep(0.0005)

    thread = threading.Thread(target=suspend)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        continue_process(pid)


def test_run_is_lost_when_keeper_never_continues(installation: Installation, agent: Bin, stubborn: list[int]) -> None:
    """Torture row 48. The last resort: what such a run came to is not known."""
    run, family = begin(installation, "suspended keeper", stubborn)
    with suspended_again_and_again(stubborn[0]):
        stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
        assert stopped["status"] in ("lost", "stopped")
        assert all_gone(family, 0)
    if stopped["status"] == "lost":  # Between two signals it can get as far as the exit record.
        assert "and the keeper" in installation.run(run)["error"]
        assert all_gone(stubborn, 5)


@pytest.mark.own_server
def test_next_server_carries_out_stop_after_kill(installation: Installation, stubborn: list[int]) -> None:
    """Torture row 48."""
    run, family = begin(installation, "keeper suspended again and again", stubborn)
    asking = threading.Thread(
        target=installation.client.request, args=("POST", f"/api/runs/{run}/stop", {}), daemon=True
    )
    asking.start()
    wait_for(lambda: any(event["type"] == "input" for event in installation.events(run)), "the recorded stop")
    installation.kill_server()
    ended = installation.ended(run)
    assert (ended["status"], ended["reason"]) == ("stopped", "stopped")
    assert all_gone(family, 0)


def test_healthy_keeper_is_left_alone_when_stopping(installation: Installation, agent: Bin, project: Path) -> None:
    """Torture row 48. An agent that uses all of its grace is ended by its keeper, and nothing else is reported."""
    agent("slow", "import signal, sys, time\n"
          "signal.signal(15, lambda *_: (time.sleep(1), print('bye', flush=True), sys.exit(4)))\n"
          "print('ready', flush=True)\nwhile True: signal.pause()")  # fmt: skip
    (project / "hocket.toml").write_text("[run]\nstop_grace = 10\n")
    run = installation.spawn("slow")
    installation.said(run, b"ready")
    stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert (stopped["status"], stopped["survivors"]) == ("stopped", [])
    ended = installation.run(run)
    assert (ended["exit_code"], ended["error"]) == (4, None)


def test_no_suspended_keeper_stays_in_moved_directory(
    installation: Installation, agent: Bin, stubborn: list[int]
) -> None:
    """Torture row 48. The server knows the keeper that it has asked for, wherever that works."""
    agent(name_of("suspended keeper"), BEGINNING + ENDING % (MOVE + SUSPEND))
    written = installation.cwd / "family"
    run = installation.spawn(name_of("suspended keeper"), str(written))
    wait_for(written.exists, "the agent's family")
    agent_pid, *others = [int(word) for word in written.read_text().split()]
    keeper = linux.scan()[agent_pid].ppid
    stubborn.append(keeper)
    wait_for(lambda: is_suspended(keeper), "a suspended keeper")
    installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert all_gone([agent_pid, *others], 0)
    assert all_gone([keeper], PATIENCE)


def test_run_goes_on_when_agent_reads_bell(installation: Installation, agent: Bin) -> None:
    """Torture row 48. Whenever the keeper comes second it reads nothing, which is no reason to end the run."""
    agent(
        "eager",
        BEGINNING
        + """
ringing = os.open(bell, os.O_RDWR | os.O_NONBLOCK)
reader = os.fork()
while reader == 0:
    try:
        os.read(ringing, 4096)
    except BlockingIOError:
        pass
for _ in range(3000):
    os.write(ringing, b"i")
    time.sleep(0.0002)
os.kill(reader, signal.SIGKILL)
sys.exit(5)
""",
    )
    assert verdict(installation.ended(installation.spawn("eager"))) == ("failed", "exit", 5)
