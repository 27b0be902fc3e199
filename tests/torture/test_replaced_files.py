"""Agents that put something else in the place of their run's files: nothing blocks, and their end still counts."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
from pathlib import Path

import pytest
from patience import PATIENCE
from torture.installation import Installation, all_gone, kill, verdict, wait_for
from world import Bin, Hocket

from hocket.errors import NotFound
from hocket.keeper import files
from hocket.keeper.escalation import find_keeper

pytestmark = pytest.mark.shared_server

NAMES = ("exit", "exit.pre", "out", "err", "in", "pid", "lock", "spec.json", "started", "bell")
KINDS = ("fifo", "directory", "link", "link to a fifo", "device")

REPLACER = """
import glob, os, stat, sys
kind, gate, *names = sys.argv[1:]
folder = glob.glob(os.path.join(os.environ["HOCKET_HOME"], "runs", "*", os.environ["HOCKET_RUN"]))[0]
while names != ["pid"] and not os.path.exists(os.path.join(folder, "pid")):
    pass
os.mkfifo(os.path.join(folder, "other"))
make = {
    "fifo": os.mkfifo,
    "directory": lambda path: os.makedirs(path + "/inside"),
    "link": lambda path: os.symlink("/dev/zero", path),
    "link to a fifo": lambda path: os.symlink(os.path.join(folder, "other"), path),
    "device": lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5)),
}[kind]
for name in names:
    path = os.path.join(folder, name)
    if os.path.lexists(path):
        os.unlink(path)
    make(path)
open(gate + ".ready", "w").close()
with open(gate) as file:
    file.read()
sys.exit(3)
"""
"""Waits at its gate afterwards, then ends with 3."""


class Gate:
    """Where an agent waits."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        os.mkfifo(self.path)

    def wait_reached(self) -> None:
        wait_for((self.path.parent / "gate.ready").exists, "an agent at the gate")

    def open(self) -> None:
        self.path.open("w").close()


@pytest.fixture
def gate(project: Path) -> Gate:
    return Gate(project)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "device":
        try:
            os.mknod(tmp_path / "probe", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root makes devices")
    return str(request.param)


@pytest.fixture(autouse=True)
def replacer(agent: Bin) -> None:
    agent("replacer", REPLACER)


def look_at(installation: Installation, run: str) -> None:
    """All that a user can ask about a run, none of which may wait for the agent."""
    answered = threading.Event()

    def ask() -> None:
        installation.run(run)
        installation.events(run)
        for stream in ("out", "err"):
            list(installation.client.output(run, stream))
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    assert answered.wait(PATIENCE), "the server does not answer"


@pytest.mark.parametrize("name", NAMES)
def test_exit_counts_when_file_is_replaced(name: str, kind: str, installation: Installation, gate: Gate) -> None:
    """Torture row 47."""
    run = installation.spawn("replacer", kind, str(gate.path), name)
    gate.wait_reached()
    look_at(installation, run)
    gate.open()
    assert verdict(installation.ended(run)) == ("failed", "exit", 3)
    look_at_output_of_the_ended(installation, run, is_gone=name == "out")


def look_at_output_of_the_ended(installation: Installation, run: str, *, is_gone: bool) -> None:
    if is_gone:
        with pytest.raises(NotFound, match="is missing"):
            installation.out(run)
    else:
        assert installation.out(run) == b""


@pytest.mark.parametrize("name", NAMES)
def test_stop_works_when_file_is_replaced(name: str, kind: str, installation: Installation, gate: Gate) -> None:
    """Torture row 47."""
    run = installation.spawn("replacer", kind, str(gate.path), name)
    gate.wait_reached()
    stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])
    assert installation.run(run)["error"] is None, "no force was needed"


@pytest.mark.own_server
def test_run_is_adopted_when_all_files_are_replaced(kind: str, installation: Installation, gate: Gate) -> None:
    """Torture row 47."""
    run = installation.spawn("replacer", kind, str(gate.path), *NAMES)
    gate.wait_reached()
    wait_for(lambda: installation.run(run)["status"] == "running", "the recorded start")
    installation.kill_server()
    look_at(installation, run)
    assert installation.run(run)["status"] == "running"
    gate.open()
    assert verdict(installation.ended(run)) == ("failed", "exit", 3)


@pytest.mark.parametrize("name", ["lock", "exit"])
def test_run_is_lost_when_keeper_dies_after_replacing(
    name: str, kind: str, installation: Installation, gate: Gate
) -> None:
    """Torture row 47."""
    run = installation.spawn("replacer", kind, str(gate.path), name)
    gate.wait_reached()
    keeper = find_keeper(str(installation.folder(run)))
    assert keeper is not None
    kill(keeper.pid, signal.SIGKILL)
    ended = installation.ended(run)
    assert verdict(ended) == ("lost", "lost", None)
    assert ("exit record cannot be read" if name == "exit" else "keeper was killed") in ended["error"]


def test_time_limit_holds_when_pid_file_is_replaced(kind: str, installation: Installation, gate: Gate) -> None:
    """Torture row 47. The limit counts from the start, which a run must not be able to hide."""
    run = installation.spawn("replacer", kind, str(gate.path), "pid", timeout=0.5)
    ended = installation.ended(run)
    assert (ended["status"], ended["reason"]) == ("failed", "timeout")


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize("make", ["os.mkfifo(folder)", "open(folder, 'w').close()"], ids=["fifo", "file"])
def test_run_is_lost_when_directory_is_replaced(
    make: str, is_stopped: bool, installation: Installation, gate: Gate, agent: Bin
) -> None:
    """Torture row 47."""
    moving = f"os.rename(folder, folder + '.moved')\n{make}\n"
    agent("mover", REPLACER.replace("open(gate +", moving + "open(gate +"))
    run = installation.spawn("mover", "fifo", str(gate.path))
    gate.wait_reached()
    if is_stopped:
        installation.client.request("POST", f"/api/runs/{run}/stop", {})
    else:
        gate.open()
    assert verdict(installation.ended(run)) == ("lost", "lost", None)


def test_run_starts_once_when_directory_is_moved(installation: Installation, agent: Bin, project: Path) -> None:
    """Torture row 47. Its keeper is suspended meanwhile, so that nothing of its start is seen."""
    agent(
        "hasty",
        "#!/bin/sh\nkill -STOP $PPID\nfolder=$(echo $HOCKET_HOME/runs/*/$HOCKET_RUN)\n"
        'mv "$folder" "$folder.moved"\nkill -CONT $PPID\necho started >> starts\nexec cat gate\n',
    )
    os.mkfifo(project / "gate")
    assert verdict(installation.ended(installation.spawn("hasty"), 2 * PATIENCE)) == ("lost", "lost", None)
    assert (project / "starts").read_text() == "started\n"


@pytest.mark.own_server
def test_other_runs_restore_when_specification_is_replaced(
    kind: str, installation: Installation, hocket: Hocket, agent: Bin, home: Path, gate: Gate
) -> None:
    """Torture row 47."""
    agent("hello", "print('hello')")
    run = installation.spawn("replacer", kind, str(gate.path), files.SPEC)
    gate.wait_reached()
    gate.open()
    installation.ended(run)
    other = installation.ended(installation.spawn("hello"))["id"]
    assert hocket("server", "stop").returncode == 0
    (home / "hocket.db").write_bytes(b"no database\n" * 500)
    restored = hocket("doctor", "--restore", "--json")
    assert restored.returncode == 0, restored.stderr
    told = json.loads(restored.stdout)
    assert (told["runs"], told["unreadable"]) == (1, 1)
    assert verdict(installation.ended(other)) == ("done", "exit", 0)


FORGER = """
import glob, os, signal, sys
record, gate = sys.argv[1:]
folder = glob.glob(os.path.join(os.environ["HOCKET_HOME"], "runs", "*", os.environ["HOCKET_RUN"]))[0]
open(gate + ".ready", "w").close()
open(gate).read()
os.rename(record, os.path.join(folder, "exit"))
print("written", os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.own_server
@pytest.mark.parametrize("is_served", [True, False])
def test_forged_record_ends_no_live_run(is_served: bool, installation: Installation, gate: Gate, agent: Bin) -> None:
    """Torture row 47. What the server reads after the record shows that it has seen the record."""
    agent("forger", FORGER)
    ending = files.Exit(0, None, None, False, 1 << 20, 0, [], 0, 0.0, 1.0, 1)
    record = installation.home / "record"
    record.write_bytes(files.encode_exit(ending))
    run = installation.spawn("forger", str(record), str(gate.path))
    gate.wait_reached()
    wait_for(lambda: installation.run(run)["status"] == "running", "the recorded start")
    if not is_served:
        installation.kill_server()
    gate.open()
    pid = int(installation.said(run, b"written").split()[1])
    wait_for(
        lambda: any("written" in str(event["data"]) for event in installation.events(run)), "the word after the record"
    )
    assert installation.run(run)["status"] == "running"
    stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert (stopped["status"], stopped["survivors"]) == ("stopped", [])
    assert all_gone([pid], 0)
