"""Nothing lost: runs come and go while their server is killed again and again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torture.installation import Installation, Run, kill, wait_for
from world import Bin, processes_of

from hocket.client.startup import lock_held, read_lock

AGENT = """
import os, subprocess, sys, time
number, ledger = int(sys.argv[1]), sys.argv[2]
with open(f"{ledger}/{number}", "ab", 0) as mine:
    mine.write(b"%d\\n" % os.getpid())
if number % 7 == 0:
    subprocess.Popen(["sleep", "120"], start_new_session=True)
for line in range(number % 23):
    print(f"{number} says {line} " + "~" * (number * 37 % 500), flush=True)
    time.sleep(number % 5 * 0.02)
sys.exit(number % 6)
"""

CLIENT = """
import json, sys
from hocket.client import ENDED, Client
from hocket.keeper.server_start import start_server
import os
total, most, home, cwd, ledger, kills = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:7]
client = Client(home, lambda: start_server(home, os.environ))
env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
ids, live = {}, set()
while len(ids) < total or live:
    # Runs are handed out with the kills, so that the last kill still finds some alive.
    allowed = min(total, most + os.stat(kills).st_size * total // int(sys.argv[7]))
    while len(ids) < allowed and len(live) < most:
        number = len(ids)
        body = {"agent": "worker", "args": [str(number), ledger], "cwd": cwd, "env": env}
        ids[number] = client.request("POST", "/api/runs", body, f"key-{number}")["id"]
        live.add(ids[number])
    live = {run["id"] for run in client.request("GET", "/api/runs") if run["id"] in live}
json.dump(ids, sys.stdout)
"""


def expected_output(number: int) -> bytes:
    tail = "~" * (number * 37 % 500)
    return "".join(f"{number} says {line} {tail}\n" for line in range(number % 23)).encode()


@contextlib.contextmanager
def starting_runs(installation: Installation, ledger: Path, runs: int, kills: int) -> Iterator[subprocess.Popen[str]]:
    tally = ledger.with_name("kills")
    tally.touch()
    counts, places = [str(runs), "30"], [installation.home, installation.cwd, ledger, tally]
    command = [sys.executable, "-c", CLIENT, *counts, *map(str, places), str(kills)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def wait_for_server(home: str, client: subprocess.Popen[str]) -> int | None:
    """The pid of a server that listens, or None when the client has finished."""

    def listening() -> int | None:
        if client.poll() is not None:
            return -1
        record = read_lock(home)
        return record.get("pid") if lock_held(home) and "socket" in record else None

    pid = wait_for(listening, "a server that listens", 30)
    return None if pid < 0 else pid


def kill_again_and_again(installation: Installation, client: subprocess.Popen[str], tally: Path, kills: int) -> int:
    """Kill the server at moments without a pattern; returns how often it was killed."""
    moments = random.Random(4711)
    done = 0
    while done < kills and (pid := wait_for_server(str(installation.home), client)) is not None:
        time.sleep(moments.uniform(0, 0.15))
        kill(pid)
        done += 1
        with tally.open("ab") as file:
            file.write(b".")
    return done


def check_run(installation: Installation, ledger: Path, number: int, run: Run) -> list[str]:
    """What is wrong with this run."""
    code = number % 6
    wrong = []
    if (run["status"], run["reason"]) != ("done" if code == 0 else "failed", "exit"):
        wrong.append(f"{number}: {run['status']} {run['reason']}")
    if run["exit_code"] != code:
        wrong.append(f"{number}: exit code {run['exit_code']} and not {code}")
    if installation.out(run["id"]) != expected_output(number):
        wrong.append(f"{number}: its output is not what it wrote")
    if len((ledger / str(number)).read_bytes().splitlines()) != 1:
        wrong.append(f"{number}: started more than once")
    said = [event["data"]["text"] for event in installation.events(run["id"]) if event["type"] == "text"]
    if said != expected_output(number).decode().splitlines():
        wrong.append(f"{number}: its events are not what it wrote")
    return wrong


def every_run(installation: Installation) -> dict[str, Run]:
    """Page after page: what the runs said is too long for one."""
    found: dict[str, Run] = {}
    top = ""
    while True:
        told = installation.client.exchange("GET", f"/api/runs?all=1&limit=10000{top}")
        found |= {run["id"]: run for run in told["data"]}
        if told["meta"]["next"] is None:
            return found
        top = f"&before={told['meta']['next']}"


def torture(installation: Installation, agent: Bin, ledger: Path, runs: int, kills: int) -> None:
    agent("worker", AGENT)
    ledger.mkdir()
    with starting_runs(installation, ledger, runs, kills) as client:
        killed = kill_again_and_again(installation, client, ledger.with_name("kills"), kills)
        output, _ = client.communicate(timeout=120 + runs / 10)
    assert killed == kills
    assert client.returncode == 0
    ids = {int(number): run for number, run in json.loads(output).items()}
    assert len(set(ids.values())) == runs
    found = every_run(installation)
    assert found.keys() == set(ids.values())
    wrong = [line for number, run in ids.items() for line in check_run(installation, ledger, number, found[run])]
    assert wrong == []
    keep = {installation.server_pid(), installation.zygote_pid()}
    assert processes_of(installation.home).keys() - keep - {os.getpid()} == set()
    with contextlib.closing(sqlite3.connect(installation.home / "hocket.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.timeout(100)  # twelve servers have to come up, which takes most of half a minute on two busy cores
def test_60_runs_end_despite_12_server_kills(installation: Installation, agent: Bin, world: Path) -> None:
    torture(installation, agent, world / "ledger", runs=60, kills=12)


@pytest.mark.slow
@pytest.mark.timeout(2400)  # a thousand servers have to come up
def test_5000_runs_end_despite_1000_server_kills(installation: Installation, agent: Bin, world: Path) -> None:
    torture(installation, agent, world / "ledger", runs=5000, kills=1000)
