"""Runs whose keepers gave agents the files themselves, as an earlier version did: a newer server finishes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torture.installation import Installation, kill, verdict, wait_for
from world import Bin

from hocket.keeper import files

HELD = """
import sys
print("ready", flush=True)
print("trouble", file=sys.stderr, flush=True)
with open(sys.argv[1]) as gate:
    gate.read()
print("done", flush=True)
sys.exit(5)
"""

OLD_KEEPER = """
import binascii, fcntl, json, os, sys, time
os.chdir(sys.argv[1])
os.setsid()
lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
os.link("lock", "started")
bell = os.open("bell", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
spec = json.load(open("spec.json"))
out, err = (os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) for name in ("out", "err"))
began, agent = time.monotonic(), os.fork()
if agent == 0:
    os.setsid()
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(source, target)
    os.chdir(spec["cwd"])
    os.execve(spec["argv"][0], spec["argv"], spec["env"])
pid = {"v": 1, "pid": agent, "start_time": 0, "boot_id": "", "keeper": os.getpid()}
with open(".pid", "w") as file:
    json.dump(pid, file)
os.rename(".pid", "pid")
status = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
record = {"v": 1, "code": status, "signal": None, "error": None, "stopped": False}
record |= {"out": os.fstat(out).st_size, "err": os.fstat(err).st_size, "survivors": [], "swept": 0}
record |= {"ended_at": time.time(), "duration": time.monotonic() - began, "pid": agent}
body = json.dumps(record, separators=(",", ":")).encode().ljust(4096 - 10)
with open("exit.pre", "r+b") as file:
    file.write(body + b"\\n%08x\\n" % binascii.crc32(body))
os.rename("exit.pre", "exit")
"""
"""The files of a run as that version wrote them: output without a pipe, and an exit record without `lost_bytes`."""


@pytest.fixture
def gates(project: Path) -> list[Path]:
    made = [project / name for name in ("first", "second")]
    for gate in made:
        os.mkfifo(gate)
    return made


@pytest.mark.parametrize("ends_alone", [False, True], ids=["ends under the new server", "ends without a server"])
def test_run_of_old_keeper_is_adopted_and_finished(
    ends_alone: bool, installation: Installation, agent: Bin, home: Path, gates: list[Path]
) -> None:
    """Torture row 45."""
    program = agent("held", HELD)
    (home / "config.toml").write_text("[limits]\nleaves = 1\n")
    first, run = (installation.spawn("held", str(gate)) for gate in gates)
    installation.said(first, b"ready")
    directory = str(installation.folder(run))
    assert files.state(directory) == "unstarted"
    installation.kill_server(signal.SIGKILL)
    env = {"PATH": os.environ["PATH"], "HOCKET_HOME": str(home), "HOCKET_RUN": run}
    argv = [str(program), str(gates[1])]
    files.create(directory, {"run": run, "argv": argv, "cwd": str(installation.cwd), "env": env, "stdin": "empty"})
    with subprocess.Popen([sys.executable, "-ISc", OLD_KEEPER, directory], env=env) as keeper:
        out = Path(directory, files.OUT)
        wait_for(lambda: out.read_bytes() == b"ready\n", "the agent's first words")
        if ends_alone:
            gates[1].open("w").close()
            assert keeper.wait(15) == 0
        else:
            wait_for(lambda: installation.run(run)["status"] == "running", "a server that has taken it over")
            gates[1].open("w").close()
        ended = installation.ended(run)
    assert (verdict(ended), ended["result"]) == (("failed", "exit", 5), "ready\ndone\n")
    said = [(event["type"], event["data"].get("text")) for event in installation.events(run)]
    assert [text for kind, text in said if kind == "text"] == ["ready", "done"]
    assert [text for kind, text in said if kind == "raw"] == ["trouble"]
    assert "notice" not in [kind for kind, _ in said]
    gates[0].open("w").close()
    assert verdict(installation.ended(first)) == ("failed", "exit", 5)
    kill(installation.server_pid(), signal.SIGTERM)
