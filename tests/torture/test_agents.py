"""Agents that misbehave: they hide, refuse to end, leave zombies, flood, or never begin."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from torture.installation import Installation, all_gone, rss_mb, verdict, wait_for
from world import Bin, Hocket, processes_of

from hocket.keeper import process_tree

pytestmark = pytest.mark.shared_server

DAEMON = """
import os, signal, sys
told, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(tell, b"%d\\n" % os.getpid())
        signal.pause()
    os._exit(0)
os.wait()
print("daemon", os.read(told, 20).decode().strip(), os.getpid(), flush=True)
if sys.argv[1] == "stay":
    signal.pause()
"""
"""A server in the old style: two forks and a session of its own, which ignores SIGTERM."""


def pids_of(installation: Installation, run: str) -> list[int]:
    return [int(word) for word in installation.said(run, b"\n").split()[1:]]


# --- Processes that survive ---------------------------------------------------------------------------------


def test_daemon_is_gone_when_its_run_ended(installation: Installation, agent: Bin) -> None:
    agent("daemon", DAEMON)
    run = installation.spawn("daemon", "go")
    assert verdict(installation.ended(run)) == ("done", "exit", 0)
    assert all_gone(pids_of(installation, run), 0)


@pytest.mark.req("S3-60")
def test_daemon_is_gone_when_its_run_is_stopped(installation: Installation, agent: Bin, project: Path) -> None:
    agent("daemon", DAEMON)
    (project / "hocket.toml").write_text("[run]\nstop_grace = 0.5\n")
    run = installation.spawn("daemon", "stay")
    pids = pids_of(installation, run)
    began = time.monotonic()
    stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert time.monotonic() - began < 5
    assert (stopped["status"], stopped["survivors"]) == ("stopped", [])
    assert all_gone(pids, 0)


@pytest.mark.parametrize(
    "body",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\nwhile True: signal.pause()",
        "print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()",
    ],
    ids=["ignores SIGTERM", "stopped itself"],
)
def test_unresponsive_agent_is_killed_after_the_grace(
    body: str, installation: Installation, agent: Bin, project: Path
) -> None:
    agent("deaf", f"import os, signal\n{body}")
    (project / "hocket.toml").write_text("[run]\nstop_grace = 0.5\n")
    run = installation.spawn("deaf")
    installation.said(run, b"ready")
    pid = installation.identity(run).pid
    stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])
    assert all_gone([pid], 0)


def test_stopped_agent_may_write_before_it_ends(installation: Installation, agent: Bin) -> None:
    agent("polite", "import signal, sys\nsignal.signal(15, lambda *_: sys.exit('bye'))\nprint(1, flush=True)\n"
          "while True: signal.pause()")  # fmt: skip
    run = installation.spawn("polite")
    installation.said(run, b"1")
    installation.client.request("POST", f"/api/runs/{run}/stop", {})
    assert [event["data"]["text"] for event in installation.events(run) if event["type"] == "raw"] == ["bye"]


IGNORES_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("late", range(4))
def test_stop_during_the_start_leaves_no_process(
    late: int, installation: Installation, agent: Bin, project: Path
) -> None:
    """Wherever in its start a run is when it is stopped, its process is gone when the stop is answered."""
    agent("deaf", IGNORES_SIGTERM)
    (project / "hocket.toml").write_text("[run]\nstop_grace = 0.05\n")
    keep = {installation.server_pid(), installation.zygote_pid()}
    for number in range(12):
        run = installation.spawn("deaf")
        folder = installation.folder(run)
        phases = [lambda: True, (folder / "lock").exists, (folder / "started").exists, (folder / "pid").exists]
        wait_for(phases[late], f"phase {late} of run {number}")
        stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
        assert (stopped["status"], stopped["survivors"]) == ("stopped", [])
        assert process_tree.carrying(run) == {}
    wait_for(lambda: processes_of(installation.home).keys() == keep, "the end of the keepers")


# --- Zombies ------------------------------------------------------------------------------------------------

ZOMBIES = """
import os, sys
for _ in range(500):
    if os.fork() == 0:
        os._exit(0)
print("zombies", flush=True)
with open(sys.argv[1]) as gate:
    gate.read()
"""


@pytest.mark.own_server
def test_zombies_do_not_increase_server_memory(installation: Installation, agent: Bin, project: Path) -> None:
    agent("zombies", ZOMBIES)
    os.mkfifo(project / "gate")
    server = installation.server_pid()
    installation.ended(installation.spawn("/bin/true"))
    before = rss_mb(server)
    run = installation.spawn("zombies", str(project / "gate"))
    installation.said(run, b"zombies")
    pid = installation.identity(run).pid
    (project / "gate").open("w").close()
    assert verdict(installation.ended(run)) == ("done", "exit", 0)
    assert rss_mb(server) - before < 8
    assert [stat for stat in Path("/proc").glob("[0-9]*/stat") if _parent_of(stat) == pid] == []


def _parent_of(stat: Path) -> int | None:
    try:
        return int(stat.read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None


# --- How it ended -------------------------------------------------------------------------------------------

STATES = {
    "nothing said": ("pass", ("done", "exit", 0), ""),
    "only stderr": ("import sys; sys.exit('why')", ("failed", "exit", 1), ""),
    "stdout closed early": ("import os; os.write(1, b'x'); os.close(1); os._exit(3)", ("failed", "exit", 3), "x"),
    "signal": ("import os; os.kill(os.getpid(), 11)", ("failed", "signal", 139), ""),
    "killed": ("import os; print(1, flush=True); os.kill(os.getpid(), 9)", ("failed", "signal", 137), "1\n"),
    "code above all signals": ("import os; os._exit(255)", ("failed", "exit", 255), ""),
    "code as of a signal": ("import os; os._exit(137)", ("failed", "exit", 137), ""),
}


def test_each_kind_of_end_has_its_status(installation: Installation, agent: Bin) -> None:
    told = {}
    for name, (body, _, _) in STATES.items():
        agent("ending", body)
        ended = installation.ended(installation.spawn("ending"))
        told[name] = (verdict(ended), ended["result"])
    assert told == {name: (expected, result) for name, (_, expected, result) in STATES.items()}


def test_missing_interpreter_is_a_failed_start(installation: Installation, agent: Bin) -> None:
    agent("orphan", "#!/no/such/interpreter\n")
    ended = installation.ended(installation.spawn("orphan"))
    assert verdict(ended) == ("failed", "start_failed", 127)
    assert ended["error"] == f"interpreter /no/such/interpreter of {agent.folder}/orphan not found"


def test_invalid_program_is_a_failed_start(installation: Installation, agent: Bin) -> None:
    path = agent("noise", "#!")
    path.write_bytes(b"\x7fELF" + bytes(60))
    ended = installation.ended(installation.spawn("noise"))
    assert verdict(ended) == ("failed", "start_failed", 126)
    assert "ENOEXEC" in ended["error"]


def test_vanished_program_is_a_failed_start(installation: Installation, hocket: Hocket, agent: Bin) -> None:
    gone = agent("gone", "pass")
    agent("thief", f"import os; os.unlink({str(gone)!r})")
    done = hocket("run", "thief -> gone", "--json")
    assert done.returncode == 1
    ended = json.loads(done.stdout.splitlines()[-1])["data"]
    assert [step["exit_code"] for step in ended["steps"]] == [0, 127]
    assert (ended["status"], ended["reason"]) == ("failed", "start_failed")


def test_program_without_execute_permission_is_refused(
    installation: Installation, hocket: Hocket, project: Path
) -> None:
    (project / "tool").write_text("#!/bin/sh\n")
    done = hocket("run", "./tool")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "tool" in done.stderr


# --- Directories --------------------------------------------------------------------------------------------


def test_missing_directory_is_refused_at_the_start(hocket: Hocket, agent: Bin, world: Path) -> None:
    agent("hello", "print(1)")
    done = hocket("run", "hello", "--cwd", world / "nowhere")
    assert done.returncode == 2
    assert "does not exist" in done.stderr
    assert done.stdout == ""


def test_deleted_directory_does_not_change_a_runs_end(installation: Installation, agent: Bin, world: Path) -> None:
    agent("sitting", "import os, signal, sys\nprint(1, flush=True)\nopen(sys.argv[1]).read()\nsys.exit(5)")
    place = world / "short-lived"
    place.mkdir()
    os.mkfifo(world / "gate")
    run = installation.spawn("sitting", str(world / "gate"), cwd=str(place))
    installation.said(run, b"1")
    shutil.rmtree(place)
    (world / "gate").open("w").close()
    assert verdict(installation.ended(run)) == ("failed", "exit", 5)


def test_deleted_directory_is_a_failed_start(
    installation: Installation, hocket: Hocket, agent: Bin, world: Path
) -> None:
    place = world / "short-lived"
    place.mkdir()
    agent("remover", f"import os; os.rmdir({str(place)!r})")
    agent("next", "print('never')")
    done = hocket("run", "remover -> next", "--json", "--cwd", place)
    assert done.returncode == 1
    ended = json.loads(done.stdout.splitlines()[-1])["data"]
    assert ended["reason"] == "start_failed"
    assert ended["steps"][1]["status"] == "failed"


# --- Floods -------------------------------------------------------------------------------------------------

FLOODS = {
    "lines": "import sys\nwhile True: sys.stdout.write('x' * 999 + '\\n')",
    "no line end": "import sys\nwhile True: sys.stdout.write('x' * 1000)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 999 + '\\n')",
}


@pytest.mark.parametrize("name", FLOODS)
def test_run_over_its_output_limit_is_stopped(name: str, installation: Installation, agent: Bin, home: Path) -> None:
    agent("flood", "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))\n" + FLOODS[name])
    (home / "config.toml").write_text("[limits]\nmax_output_mb = 4\n[run]\nstop_grace = 0.5\n")
    run = installation.spawn("flood")
    ended = installation.ended(run)
    assert (ended["status"], ended["reason"]) == ("failed", "limit")
    written = {name: (installation.folder(run) / name).stat().st_size for name in ("out", "err")}
    assert sum(written.values()) > 4 * 2**20
    if name != "errors":
        assert sum(len(piece) for piece in installation.client.output(run)) == written["out"]


def test_run_within_its_output_limit_continues(installation: Installation, agent: Bin, home: Path) -> None:
    agent("modest", "print('x' * 2**19)")
    (home / "config.toml").write_text("[limits]\nmax_output_mb = 1\n")
    assert verdict(installation.ended(installation.spawn("modest"))) == ("done", "exit", 0)
