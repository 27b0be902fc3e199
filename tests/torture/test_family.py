"""A family of forty runs, four levels deep, that start each other by the command line: it is seen and stopped whole."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torture.installation import Installation, all_gone, is_alive, wait_for
from world import Bin, Hocket, processes_of

from hocket.keeper import files, process_tree

MEMBER = f"""
import os, signal, subprocess, sys
here, *below = sys.argv[1:] or ["0"]
spawn = [{sys.executable!r}, "-m", "hocket", "spawn", "member", "--", *below]
for _ in range(int(here)):
    subprocess.run(spawn, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
# As the shell commands of a real agent: in a session of its own, and deaf to the first signal.
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
subprocess.Popen([{sys.executable!r}, "-ISc", deaf], start_new_session=True)
print("ready", flush=True)
signal.pause()
"""
FANOUT = ("3", "3", "1", "2")
BY_DEPTH = {0: 1, 1: 3, 2: 9, 3: 9, 4: 18}
MEMBERS = sum(BY_DEPTH.values())


def family(installation: Installation, root: str) -> list[dict[str, Any]]:
    runs = installation.client.request("GET", "/api/runs?all=1&tree=1")
    return [run for run in runs if run["root"] == root]


def is_ready(run: dict[str, Any], installation: Installation) -> bool:
    path = installation.home / "runs"
    return any(out.read_bytes() == b"ready\n" for out in path.glob(f"*/{run['id']}/{files.OUT}"))


@pytest.mark.req("S3-60")
@pytest.mark.req("S3-22")
def test_stop_of_root_ends_a_family(installation: Installation, home: Path, agent: Bin, hocket: Hocket) -> None:
    """Each member outlives the command that spawned it; a server that is killed in between changes nothing."""
    (home / "config.toml").write_text("[run]\nstop_grace = 0.2\n")
    agent("member", MEMBER)
    root = installation.spawn("member", *FANOUT)
    wait_for(lambda: len(family(installation, root)) >= MEMBERS // 2, "half of the family")
    installation.kill_server()
    wait_for(lambda: len(family(installation, root)) == MEMBERS, "the whole family")
    members = family(installation, root)
    assert Counter(run["depth"] for run in members) == BY_DEPTH
    wait_for(lambda: all(is_ready(run, installation) for run in members), "every member at work")
    before = {run["id"]: (run["parent"], run["pid"]) for run in family(installation, root)}
    installation.kill_server()
    assert {run["id"]: (run["parent"], run["pid"]) for run in family(installation, root)} == before
    pids = [pid for run in before for pid in process_tree.carrying(run)]
    assert len(pids) == 2 * MEMBERS, "each has a process in another session"

    branch = next(run["id"] for run in members if run["depth"] == 1)
    assert hocket("stop", branch).returncode == 0
    stopped = {run["id"] for run in family(installation, root) if run["status"] == "stopped"}
    assert len(stopped) == (MEMBERS - 1) // 3, "a third of the family, and nothing beside it"
    assert [pid for run in stopped for pid in process_tree.carrying(run)] == []
    assert sum(len(process_tree.carrying(run)) for run in before.keys() - stopped) == 2 * (MEMBERS - len(stopped))

    stopping = hocket.start("stop", root)
    wait_for(lambda: any(not is_alive(pid) for run, (_, pid) in before.items() if run not in stopped), "the first end")
    installation.kill_server()
    stopping.communicate()
    assert hocket("stop", root).returncode in (0, 1)  # It may have ended meanwhile.
    assert all_gone(pids)
    for run in before:
        assert installation.ended(run)["id"] == run
    ended = family(installation, root)
    assert {(run["status"], run["reason"]) for run in ended} == {("stopped", "stopped")}
    assert [pid for run in before for pid in process_tree.carrying(run)] == []
    server = installation.server_pid()
    left = {pid: words for pid, words in processes_of(home).items() if "serve" not in words and "zygote" not in words}
    assert (left, is_alive(server)) == ({}, True)
