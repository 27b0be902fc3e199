"""Runs that are alive while Hocket is upgraded: a new server takes them over from keepers of an earlier version."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from upgrade.make import wait_for
from upgrade.test_upgrade import events, finish, read, second_start, starts
from world import Hocket

pytestmark = pytest.mark.timeout(300)  # one test after the other, also those of other workers

KEEPER = r"""
import binascii, fcntl, json, os, select, signal, subprocess, sys, time

directory, gate, then_starts_server = sys.argv[1], sys.argv[2], sys.argv[3] == "alone"
os.chdir(directory)
os.setsid()
lock = os.open("lock", os.O_RDWR | os.O_CLOEXEC)
fcntl.flock(lock, fcntl.LOCK_EX)
bell = os.open("bell", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
spec = json.load(open("spec.json"))
files = {name: os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC) for name in ("out", "err")}
program = 'cat "$0" > /dev/null; echo "done"; echo "last words" >&2'
agent = subprocess.Popen(["/bin/sh", "-c", program, gate], cwd=spec["cwd"], env=spec["env"], start_new_session=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
fields = open(f"/proc/{agent.pid}/stat").read().rpartition(")")[2].split()
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
identity = {"v": 1, "pid": agent.pid, "start_time": int(fields[19]), "boot_id": boot, "keeper": os.getpid()}
with open(".pid.new", "w") as file:
    json.dump(identity, file)
os.rename(".pid.new", "pid")
pipes = {agent.stdout.fileno(): files["out"], agent.stderr.fileno(): files["err"]}
began, stopped = time.monotonic(), False
while pipes:
    for readable in select.select([*pipes, bell], [], [])[0]:
        if readable == bell:
            if b"s" in os.read(bell, 4096):
                stopped = True
                os.killpg(agent.pid, signal.SIGTERM)
        elif chunk := os.read(readable, 65536):
            os.write(pipes[readable], chunk)
        else:
            del pipes[readable]
code = agent.wait()
record = {"v": 1, "code": code if code >= 0 else None, "signal": -code if code < 0 else None, "error": None}
record |= {"stopped": stopped, "out": os.fstat(files["out"]).st_size, "err": os.fstat(files["err"]).st_size}
record |= {"survivors": [], "swept": 0, "ended_at": time.time(), "duration": time.monotonic() - began}
record |= {"pid": agent.pid, "lost_bytes": 0}
body = json.dumps(record, separators=(",", ":")).encode().ljust(4096 - 10)
with open("exit.pre", "wb") as file:
    file.write(body + b"\n%08x\n" % binascii.crc32(body))
os.rename("exit.pre", "exit")
if then_starts_server:
    os.chdir(spec["home"])
    log = os.open("server.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    subprocess.Popen([sys.executable, "-m", "hocket", "serve"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                     env={**os.environ, "HOCKET_HOME": spec["home"], "HOCKET_SERVER": "1"}, start_new_session=True)
"""
"""A keeper of that version, whose agent has begun and writes one more line when its gate opens."""

Keep = Callable[[str, str], Path]


@pytest.fixture
def keep(recorded: Any, world: Path, home: Path) -> Iterator[Keep]:
    """``keep(name, "alone")`` starts a keeper for a recorded run; opening the gate that it returns ends the run.

    A keeper that is ``alone`` starts a server when its run has ended, as one does that finds none.
    """
    keepers: list[subprocess.Popen[bytes]] = []

    def start_keeper(name: str, role: str = "watched") -> Path:
        leaf = recorded["runs"][name]
        for run in recorded["listed"]:
            leaf = run["id"] if run["parent"] == leaf and run["status"] == "running" else leaf
        (directory,) = home.glob(f"runs/*/{leaf}")
        for record in ("exit", "pid"):
            (directory / record).unlink(missing_ok=True)
        # In the recording its agent had written one line before it was killed.
        (directory / "out").write_text("ready\n")
        gate = world / f"gate-{name}"
        os.mkfifo(gate)
        command = [sys.executable, "-c", KEEPER, str(directory), str(gate), role]
        keepers.append(subprocess.Popen(command, env={**os.environ, "HOCKET_HOME": str(home)}))
        wait_for((directory / "pid").exists, "the agent")
        return gate

    yield start_keeper
    for keeper in keepers:
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(10)
        keeper.kill()
        keeper.wait()


def test_live_run_is_adopted_and_finished_after_upgrade(hocket: Hocket, recorded: Any, keep: Keep) -> None:
    gate = keep("killed", "watched")
    run = recorded["runs"]["killed"]
    assert read(hocket, "show", run)["status"] == "running"
    gate.open("w").close()
    ended = finish(hocket, recorded, "killed")["killed"]
    assert (ended["status"], ended["reason"], ended["exit_code"]) == ("done", "exit", 0)
    assert ended["result"] == "ready\ndone\n"
    lines = events(hocket, run)
    assert [event["data"]["text"] for event in lines if event["type"] == "text"] == ["ready", "done"]
    assert [event["data"]["text"] for event in lines if event["type"] == "raw"] == ["last words"]


def test_live_run_is_stopped_after_upgrade(hocket: Hocket, recorded: Any, keep: Keep) -> None:
    keep("killed", "watched")
    stopped = read(hocket, "stop", recorded["runs"]["killed"])
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])


def test_chain_with_live_step_continues_after_upgrade(hocket: Hocket, recorded: Any, keep: Keep, world: Path) -> None:
    before = starts(world)
    gate = keep("halfway", "watched")
    assert read(hocket, "show", recorded["runs"]["halfway"])["status"] == "running"
    gate.open("w").close()
    chain = finish(hocket, recorded, "halfway")["halfway"]
    assert (chain["status"], chain["reason"]) == ("done", "single_run")
    assert chain["result"] == "second: after: ready\ndone\n"
    assert (starts(world) - before)[second_start(world)] == 1


def test_old_keeper_starts_new_server_after_run(
    hocket: Hocket, recorded: Any, keep: Keep, world: Path, home: Path
) -> None:
    gate = keep("halfway", "alone")
    gate.open("w").close()
    # No command is given meanwhile: the server that the keeper starts goes on with the chain by itself.
    wait_for((world / "token-seen").exists, "the second step")
    chain = finish(hocket, recorded, "halfway")["halfway"]
    assert (chain["status"], chain["result"]) == ("done", "second: after: ready\ndone\n")
