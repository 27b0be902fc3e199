"""Runs end although their server was killed, and no command starts it again."""

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
    """Poll for a file, because its creation by another process gives no event."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.exists()


def run_without_server(hocket: Hocket, *args: str) -> tuple[str, Path]:
    """Start a run and kill its server. The run and its directory."""
    run_id = spawn(hocket, "claude", "-p", "hello", *args)
    wait_for(hocket, run_id, "text")
    place = Path(shown(hocket, run_id)["dir"])
    os.kill(server_pid(hocket), signal.SIGKILL)
    return run_id, place


@pytest.mark.parametrize("on_question", ["deny", pytest.param("ask", marks=pytest.mark.slow)])
def test_scripted_run_ends_after_server_kill(scripted: ClaudeSetup, hocket: Hocket, on_question: str) -> None:
    """Its input is open, so its keeper starts a server when it is idle."""
    scripted.use_script(SLOW)
    run_id, place = run_without_server(hocket, "--on-question", on_question)
    assert appears(place / "exit")
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["reason"], ended["result"]) == (0, "done", "exit", "all done")


def test_real_cli_run_ends_after_server_kill(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(SLOW)
    run_id, place = run_without_server(hocket)
    assert appears(place / "exit")
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "all done")


def test_open_question_restarts_server(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script({"do": [{"say": "begun"}, {"wait": 2.0}, asks_to("touch x"), {"say": "then"}]})
    run_id, _ = run_without_server(hocket, "--on-question", "ask")
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
    """The pid of the server if it runs; does not start it."""
    pid = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    return int(pid) if pid is not None else None
