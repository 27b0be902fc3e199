"""The server is killed while an agent works, and the run still comes to its end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, asks_to
from e2e.commands import server_pid, shown, spawn, wait_for, waited
from patience import PATIENCE
from world import Hocket

SLOW = {"do": [{"say": "begun"}, {"tool": {"name": "Bash", "input": {"command": "true"}}}, {"wait": 2.0},
               {"say": "all done"}]}  # fmt: skip


def appears(path: Path) -> bool:
    """Nothing tells of a file that another process makes, so it is looked for."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.exists()


def left_alone(hocket: Hocket, *args: str) -> tuple[str, Path]:
    """A run at work whose server has just been killed."""
    run_id = spawn(hocket, "claude", "-p", "hello", *args)
    wait_for(hocket, run_id, "text")
    place = Path(shown(hocket, run_id)["dir"])
    os.kill(server_pid(hocket), signal.SIGKILL)
    return run_id, place


@pytest.mark.parametrize("on_question", ["deny", pytest.param("ask", marks=pytest.mark.slow)])
def test_a_run_ends_without_anybody_asking(scripted: ClaudeSetup, hocket: Hocket, on_question: str) -> None:
    """Its input is open, for our tools at least, so its keeper calls for a server when it has done its work."""
    scripted.use_script(SLOW)
    run_id, place = left_alone(hocket, "--on-question", on_question)
    assert appears(place / "exit")
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["reason"], ended["result"]) == (0, "done", "exit", "all done")


def test_the_real_program_ends_without_anybody_asking(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(SLOW)
    run_id, place = left_alone(hocket)
    assert appears(place / "exit")
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "all done")


def test_a_question_that_nobody_was_there_to_hear_brings_the_server_back(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script({"do": [{"say": "begun"}, {"wait": 2.0}, asks_to("touch x"), {"say": "then"}]})
    run_id, _ = left_alone(hocket, "--on-question", "ask")
    before = server_pid_now(hocket)
    assert before is None
    deadline = time.monotonic() + PATIENCE
    while server_pid_now(hocket) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server_pid_now(hocket) is not None
    wait_for(hocket, run_id, "question")
    assert hocket("answer", run_id, "allow").returncode == 0
    assert waited(hocket, run_id)[1]["status"] == "done"


def server_pid_now(hocket: Hocket) -> int | None:
    """Without starting one."""
    pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    return int(pid) if pid is not None else None
