"""When terminals, keepers or servers are killed, a run continues or is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from torture.installation import Installation, all_gone, kill, verdict, wait_for
from world import Bin, Hocket, processes_of

from hocket.keeper import files, linux

HELD = """
import os, sys
print("ready", flush=True)
with open(sys.argv[1]) as gate:
    gate.read()
print("done", flush=True)
sys.exit(int(sys.argv[2]))
"""
"""Waits until its FIFO was opened and closed, and ends with the given code."""

FAMILY = """
import os, signal, subprocess, sys
deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
own = subprocess.Popen([sys.executable, "-ISc", deaf], stdout=-1, start_new_session=True)
own.stdout.readline()
print("family", os.getpid(), own.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def gate(project: Path) -> Path:
    path = project / "gate"
    os.mkfifo(path)
    return path


def open_gate(gate: Path) -> None:
    """Release the process that waits at it; blocks until there is one."""
    gate.open("w").close()


def family_of(installation: Installation, run: str) -> list[int]:
    words = installation.said(run, b"family").split()
    return [int(words[1]), int(words[2])]


# --- Terminals ----------------------------------------------------------------------------------------------


@pytest.mark.req("S3-22")
def test_run_survives_the_kill_of_its_terminal(
    installation: Installation, hocket: Hocket, agent: Bin, gate: Path
) -> None:
    agent("held", HELD)
    terminal = hocket.start("run", "held", "--json", "--", gate, "7")
    assert terminal.stdout is not None
    run = json.loads(terminal.stdout.readline())["run"]
    leaf = wait_for(lambda: installation.run(run)["children"], "the chain's first run")[0]["id"]
    installation.said(leaf, b"ready")
    kill(terminal.pid)
    open_gate(gate)
    waited = hocket("wait", run, "--json")
    assert waited.returncode == 1
    assert json.loads(waited.stdout)["exit_code"] == 7
    assert installation.out(leaf) == b"ready\ndone\n"


# --- Keepers ------------------------------------------------------------------------------------------------


def test_run_is_lost_when_its_keeper_is_killed(installation: Installation, agent: Bin) -> None:
    agent("family", FAMILY)
    run = installation.spawn("family")
    family = family_of(installation, run)
    os.kill(installation.identity(run).keeper, signal.SIGKILL)
    assert all_gone(family[:1])
    ended = installation.ended(run)
    assert verdict(ended) == ("lost", "lost", None)
    assert ended["result"].startswith("family")
    assert ended["error"] == "its keeper was killed"
    assert all_gone(family)


def remove(folder: Path) -> None:
    """Remove a run's directory, to which its keeper may add an exit record while its files are being removed."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for(is_gone, f"{folder} removed")


@pytest.mark.parametrize("is_served", [True, False])
def test_run_ends_when_its_directory_is_removed(is_served: bool, installation: Installation, agent: Bin) -> None:
    agent("family", FAMILY)
    run = installation.spawn("family")
    family = family_of(installation, run)
    keeper = installation.identity(run).keeper
    wait_for(lambda: any(event["type"] == "text" for event in installation.events(run)), "its words")
    folder = installation.folder(run)
    if not is_served:
        installation.kill_server()
    remove(folder)
    ended = installation.ended(run)
    assert (*verdict(ended), ended["error"]) == ("lost", "lost", None, "the files of its run were removed")
    assert all_gone([*family, keeper]), "no process is left without a keeper"
    assert any(event["type"] == "text" for event in installation.events(run)), "what it had said is still told"


def test_chain_is_incomplete_when_keeper_is_killed(
    installation: Installation, hocket: Hocket, agent: Bin, project: Path
) -> None:
    agent("family", FAMILY)
    agent("after", f"open({str(project / 'ran')!r}, 'w')")
    chain = hocket.start("run", "family -> after", "--on-question", "deny", "--json")
    assert chain.stdout is not None
    first = json.loads(chain.stdout.readline())["run"]
    leaf = wait_for(lambda: installation.run(first)["children"], "the chain's first run")[0]["id"]
    family_of(installation, leaf)
    os.kill(installation.identity(leaf).keeper, signal.SIGKILL)
    output, _ = chain.communicate(timeout=PATIENCE)
    ended = json.loads(output.splitlines()[-1])["data"]
    assert chain.returncode == 1
    assert (ended["status"], ended["reason"]) == ("failed", "lost")
    assert not (project / "ran").exists()


def test_killing_all_keepers_leaves_lost_runs(installation: Installation, agent: Bin) -> None:
    agent("family", FAMILY)
    runs = [installation.spawn("family") for _ in range(8)]
    families = [pid for run in runs for pid in family_of(installation, run)]
    said = [installation.said(run, b"family") for run in runs]
    keepers = [installation.identity(run).keeper for run in runs]
    for pid in [installation.server_pid(), *keepers]:
        os.kill(pid, signal.SIGKILL)
    assert [verdict(installation.ended(run)) for run in runs] == [("lost", "lost", None)] * 8
    assert [installation.out(run) for run in runs] == said
    assert all_gone(families)


# --- No server is left --------------------------------------------------------------------------------------


def test_chain_continues_with_the_server_its_keeper_starts(
    installation: Installation, hocket: Hocket, agent: Bin, gate: Path, project: Path
) -> None:
    agent("held", HELD)
    agent("middle", "print('middle')")
    agent("last", f"import os\nos.rename({str(project)!r} + '/before', {str(project)!r} + '/after')")
    (project / "before").touch()
    run = hocket.created("run", "held -> middle -> last", "--detach", "--", gate, "0")
    leaf = wait_for(lambda: installation.run(run)["children"], "the chain's first run")[0]["id"]
    installation.said(leaf, b"ready")
    installation.kill_server()
    watch = linux.Inotify()
    watch.watch(str(project))
    try:
        open_gate(gate)
        wait_for(lambda: "after" in {name for _, _, name in watch.read()}, "the effect of the last step")
    finally:
        watch.close()
    wait_for(lambda: not (project / "before").exists(), "the end of the last step")
    ended = installation.ended(run)
    assert ended["status"] == "done"
    listed = json.loads(hocket("ps", "-a", "--json").stdout)
    assert [one["agent"] for one in listed if one["kind"] == "leaf"] == ["held", "middle", "last"]
    assert {one["status"] for one in listed} == {"done"}


# --- Readers ------------------------------------------------------------------------------------------------

COUNTER = """
import sys
for number in range(6):
    for line in range(50):
        print(number, line, flush=True)
    with open(sys.argv[1]) as gate:
        gate.read()
sys.exit(4)
"""


def follow_through(process: subprocess.Popen[str], after_each: Iterator[None]) -> list[dict[str, object]]:
    """All events that a client prints; the interruption comes whenever the agent has said its fiftieth line."""
    assert process.stdout is not None
    events = []
    for line in process.stdout:
        events.append(json.loads(line))
        text = events[-1]["data"].get("text")
        if events[-1]["type"] == "text" and text.endswith(" 49"):
            next(after_each)
    return events


def check_stream(events: list[dict[str, object]], code: int | None, root: str) -> None:
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))  # type: ignore[type-var]  # they are numbers
    said = [event["data"]["text"] for event in events if event["type"] == "text"]  # type: ignore[index]
    assert said == [f"{number} {line}" for number in range(6) for line in range(50)]
    ends = [event for event in events if event["type"] == "run.ended" and event["run"] == root]
    assert len(ends) == 1
    assert ends[0] is events[-1]
    assert code == 1


@pytest.mark.parametrize("ends", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_client_follows_run_through_server_ends(
    sig: int, ends: int, installation: Installation, hocket: Hocket, agent: Bin, gate: Path
) -> None:
    agent("counter", COUNTER)
    client = hocket.start("run", "counter", "--json", "--", gate)

    def interruptions() -> Iterator[None]:
        for _ in range(ends):
            pid = installation.server_pid()
            kill(pid, sig)
            open_gate(gate)
            yield
        while True:
            open_gate(gate)
            yield

    events = follow_through(client, interruptions())
    code = client.wait(15)
    check_stream(events, code, str(events[0]["root"]))
    assert client.stderr is not None
    assert client.stderr.read() == ""


def test_orderly_restart_resumes_server_sent_events(installation: Installation, agent: Bin, gate: Path) -> None:
    agent("counter", COUNTER)
    run = installation.spawn("counter", str(gate))
    events: list[dict[str, object]] = []
    follower = installation.client.follow(run)
    for event in follower:
        events.append(event)
        if event["type"] == "text" and event["data"]["text"].endswith(" 49"):
            if event["data"]["text"].startswith("2"):
                installation.kill_server(signal.SIGTERM)
            open_gate(gate)
    check_stream(events, 1, run)
    assert installation.run(run)["exit_code"] == 4


# --- The pid of a run's directory belongs to another process ------------------------------------------------


def bystander() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-ISc", "import signal; print(1, flush=True); signal.pause()"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("boot", ["another-boot", None])
def test_reused_pid_is_never_signalled(boot: str | None, installation: Installation, agent: Bin) -> None:
    """As after a reboot: the lock is free, there is no record, and the pid belongs to a stranger."""
    agent("family", FAMILY)
    run = installation.spawn("family")
    family = family_of(installation, run)
    folder = installation.folder(run)
    identity = installation.identity(run)
    installation.kill_server()
    kill(identity.keeper)
    assert all_gone(family[:1])
    kill(family[1])
    with bystander() as stranger:
        try:
            stale = identity._replace(pid=stranger.pid, keeper=stranger.pid, boot_id=boot or identity.boot_id)
            (folder / files.PID).write_bytes(files.encode_pid(stale))
            assert verdict(installation.ended(run)) == ("lost", "lost", None)
            stopped = installation.client.request("POST", f"/api/runs/{run}/stop", {})
            assert stopped["survivors"] == []
            assert stranger.poll() is None
        finally:
            stranger.kill()


REUSE = """
import os, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from hocket.keeper import linux, process_tree

def child():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid

def end(pid):
    os.kill(pid, 9)
    os.waitpid(pid, 0)

first = child()
started = linux.start_time(first)
end(first)
ticks = os.sysconf("SC_CLK_TCK")
while time.clock_gettime(time.CLOCK_BOOTTIME) * ticks < started + 2:
    time.sleep(0.001)
Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))
second = child()
assert second == first, (first, second)
assert linux.open_identity(second, started) is None
assert not linux.signal_process(second, started, 9)
process_tree.signal_all({second: started}, 9)
assert linux.wait_gone({second: started}, 5)
assert os.waitpid(second, os.WNOHANG) == (0, 0), "a stranger was signalled"
assert linux.signal_process(second, linux.start_time(second), 9)
os.waitpid(second, 0)
print("spared")
"""


def test_reused_pid_differs_by_start_time() -> None:
    """In a process namespace of its own, where the next number can be chosen."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", REUSE]
    paths = [path for path in sys.path if path]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("spared\n", "")


# --- Two servers --------------------------------------------------------------------------------------------


def test_second_server_exits_and_names_the_first(installation: Installation, hocket: Hocket) -> None:
    first = installation.server_pid()
    second = hocket("serve")
    assert second.returncode == 1
    assert str(first) in second.stderr
    assert len(second.stderr.splitlines()) <= 2
    assert installation.server_pid() == first


def test_concurrent_clients_start_one_server(installation: Installation, hocket: Hocket) -> None:
    clients = [hocket.start("ps") for _ in range(8)]
    assert [client.wait(15) for client in clients] == [0] * 8
    servers = wait_for(lambda: only_server(installation), "the others to leave")
    assert servers == [installation.server_pid()]


def only_server(installation: Installation) -> list[int] | None:
    lines = processes_of(installation.home).items()
    servers = [pid for pid, line in lines if line.rstrip().endswith("hocket serve")]
    return servers if len(servers) == 1 else None
