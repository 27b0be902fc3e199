"""A chain goes on through the death of its server, again and again: to the same end, with nothing run twice."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from torture.installation import Installation, environment, kill
from world import Bin

CHAIN = """
[chains.six]
until = "test -s starts"
steps = [
  {agent = "first", prompt = "begin"},
  {agent = "loop", iterations = 5, prompt = "<{{previous.result}}>"},
  {group = [
    {agent = "left", prompt = "<{{previous.result}}>", until = "sleep 1"},
    {agent = "right", iterations = 4, prompt = "<{{previous.result}}>", until = "sleep 1"},
  ]},
  {agent = "fifth", prompt = "<{{previous.result}}>"},
  {agent = "last", prompt = "{{previous.result}}"},
]
"""
RUNS = 9
"""1 + 3 + 1 + 2 + 1 + 1"""
PROGRAM = """
import os, sys, time
name = os.path.basename(sys.argv[0])
starts = os.open("starts", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(starts, f"{name} {os.environ['HOCKET_RUN']}\\n".encode())
lines = os.pread(starts, 100_000, 0).decode().split("\\n")[:-1]
# The work is handed out with the kills, so that the last kill still finds some of it undone.
share = len(lines) * int(open("kills_wanted").read()) // RUNS
deadline = time.monotonic() + 60
while os.stat("kills").st_size < share and time.monotonic() < deadline:
    time.sleep(0.02)
turn = sum(line.startswith(name + " ") for line in lines)
print(f"{name}{turn}", sys.argv[1].split("\\n")[0])
if turn == {"loop": 3, "right": 2}.get(name):
    print("FORKHESTRA_COMPLETE")
""".replace("RUNS", str(RUNS))


def play(installation: Installation, agent: Bin, kills: int) -> dict[str, Any]:
    """Run the chain while its server is killed that often; how it ended."""
    for name in ("first", "loop", "left", "right", "fifth", "last"):
        agent(name, PROGRAM)
    (installation.cwd / "hocket.toml").write_text(CHAIN)
    (installation.cwd / "kills_wanted").write_text(str(kills))
    (installation.cwd / "kills").touch()
    body = {"chain": "six", "cwd": str(installation.cwd), "env": environment()}
    run = str(installation.client.request("POST", "/api/runs", body, "key")["id"])
    moments = random.Random(kills)
    for _ in range(kills):
        pid = installation.server_pid()
        time.sleep(moments.uniform(0, 0.2))  # A moment without a pattern is what is wanted here, not a condition.
        kill(pid)
        with (installation.cwd / "kills").open("ab") as tally:
            tally.write(b".")
    for _ in installation.client.follow_ticking(run, 0.1):
        pass
    return installation.run(run)


def shape(installation: Installation, run: dict[str, Any]) -> Any:
    """What must be the same however often the server died."""
    steps = [
        {key: value for key, value in step.items() if key != "runs"} for step in run_ended(installation, run)["steps"]
    ]
    return json.dumps([run["status"], run["reason"], run["result"], steps], indent=1)


def run_ended(installation: Installation, run: dict[str, Any]) -> dict[str, Any]:
    ends = [
        event for event in installation.events(run["id"]) if event["type"] == "run.ended" and event["run"] == run["id"]
    ]
    assert len(ends) == 1
    data: dict[str, Any] = ends[0]["data"]
    return data


def torture(installation: Installation, agent: Bin, kills: int, tmp: Path) -> None:
    calm = Installation(tmp / "calm", tmp / "calm-project")
    for place in (calm.home, calm.cwd):
        place.mkdir(mode=0o700)
    try:
        wanted = shape(calm, play(calm, agent, 0))
    finally:
        kill(calm.server_pid(), 15)
    ended = play(installation, agent, kills)
    assert shape(installation, ended) == wanted
    starts = [line.split() for line in (installation.cwd / "starts").read_text().splitlines()]
    reported = [leaf for step in run_ended(installation, ended)["steps"] for leaf in step["runs"]]
    assert sorted(run for _, run in starts) == sorted(reported)
    assert len(set(reported)) == len(reported) == RUNS
    kinds = [event["data"]["kind"] for event in installation.events(ended["id"]) if event["type"] == "run.created"]
    assert {kind: kinds.count(kind) for kind in kinds} == {"chain": 1, "leaf": RUNS, "loop": 2, "group": 1}
    gates = [event["data"] for event in installation.events(ended["id"]) if event["type"] == "gate"]
    assert sorted(gate["run"] for gate in gates) == sorted({gate["run"] for gate in gates})


def test_chain_result_survives_3_server_kills(installation: Installation, agent: Bin, world: Path) -> None:
    torture(installation, agent, 3, world)


@pytest.mark.slow
def test_chain_result_survives_30_server_kills(installation: Installation, agent: Bin, world: Path) -> None:
    torture(installation, agent, 30, world)
