"""Runs that are stopped or lose their server leave no process behind and lose no output.

Mostly with the real CLI, whose commands have sessions of their own, which a signal to its process group does not reach.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e.claude.setup import ClaudeSetup, bash
from e2e.commands import make_gate, open_gate, run, run_output, server_pid, shown, spawn, wait_for, waited
from patience import PATIENCE
from world import Hocket, wait_until_none

from hocket.keeper.platform import start_time

LAST = {"say": "the end"}
BYPASS = ("--", "--permission-mode", "bypassPermissions")


class Sleeper(NamedTuple):
    """A script whose tool writes its process id and sleeps."""

    gate: Path

    def pid(self) -> int:
        """Waits until the tool is at work."""
        return int(self.gate.read_text())


@pytest.fixture
def sleeper(claude: ClaudeSetup, project: Path) -> Sleeper:
    gate = make_gate(project / "at_work")
    claude.use_script({"do": [{"say": "working"}, bash('sh -c "echo \\$\\$ > at_work; sleep 300"'), LAST]})
    return Sleeper(gate)


def is_alive(pid: int) -> bool:
    return start_time(pid, living=True) is not None


def remaining_processes(hocket: Hocket, home: Path) -> dict[int, str]:
    """The processes of this home after its server has stopped."""
    assert hocket("server", "stop").returncode == 0
    return wait_until_none(home, 5)


def test_stop_ends_agent_and_its_command(sleeper: Sleeper, hocket: Hocket, home: Path) -> None:
    run_id = spawn(hocket, "claude", "-p", "go", *BYPASS)
    tool = sleeper.pid()
    agent = shown(hocket, run_id)["pid"]
    assert is_alive(tool)
    assert hocket("stop", run_id).returncode == 0
    ended = shown(hocket, run_id)
    assert (ended["status"], ended["reason"]) == ("stopped", "stopped")
    assert (is_alive(tool), is_alive(agent), remaining_processes(hocket, home)) == (False, False, {})


def test_terminated_foreground_run_leaves_no_process(sleeper: Sleeper, hocket: Hocket, home: Path) -> None:
    running = hocket.start("run", "claude", "-p", "go", "--json", *BYPASS)
    tool = sleeper.pid()
    running.terminate()
    assert running.wait(15) == 143
    assert (is_alive(tool), remaining_processes(hocket, home)) == (False, {})
    assert running.stdout is not None
    assert '"status": "stopped"' in running.stdout.read().splitlines()[-1]


@pytest.mark.req("S2-67")
def test_killed_agent_fails_and_its_command_ends(sleeper: Sleeper, hocket: Hocket, home: Path) -> None:
    run_id = spawn(hocket, "claude", "-p", "go", *BYPASS)
    tool = sleeper.pid()
    os.kill(shown(hocket, run_id)["pid"], signal.SIGKILL)
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["reason"], ended["exit_code"]) == (1, "failed", "signal", 137)
    assert (is_alive(tool), remaining_processes(hocket, home)) == (False, {})


@pytest.mark.parametrize(
    ("number", "ending"),
    [(signal.SIGTERM, ("exit", 143)), (signal.SIGINT, ("error", 0))],
)
def test_externally_signalled_agent_fails_and_command_ends(
    sleeper: Sleeper, hocket: Hocket, home: Path, number: signal.Signals, ending: tuple[str, int]
) -> None:
    """The CLI takes SIGINT for an interrupt of the user: the turn ends with an error, then it exits."""
    run_id = spawn(hocket, "claude", "-p", "go", *BYPASS)
    tool = sleeper.pid()
    os.kill(shown(hocket, run_id)["pid"], number)
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (1, "failed", None)
    assert (ended["reason"], ended["exit_code"]) == ending
    assert (is_alive(tool), remaining_processes(hocket, home)) == (False, {})


def test_externally_terminated_session_fails(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script({"do": [{"say": "one"}]})
    run_id = spawn(hocket, "claude", "-p", "go", "--session")
    wait_for(hocket, run_id, "turn.ended")
    os.kill(shown(hocket, run_id)["pid"], signal.SIGTERM)
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["reason"], ended["exit_code"]) == (1, "failed", "exit", 143)


def test_run_ends_once_after_server_kill(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    gate = make_gate(project / "gate")
    claude.use_script({"do": [{"say": "before"}, bash("cat gate"), {"say": "after"}]})
    running = hocket.start("run", "claude", "-p", "go", "--json")
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if '"tool.started"' in line:
            break
    os.kill(server_pid(hocket), signal.SIGKILL)
    open_gate(gate)
    rest, errors = running.communicate(timeout=PATIENCE)
    seen = run_output(running.returncode, "".join(lines) + rest, errors)
    assert (*seen.outcome, seen.ended["result"]) == (0, "done", "single_run", "after")
    assert [data["text"] for data in seen.of("text")] == ["before", "after"]
    assert len([event for event in seen.events if event["type"] == "turn.ended"]) == 1
    assert [event["seq"] for event in seen.events] == sorted({event["seq"] for event in seen.events})
    assert len(claude.model.bodies) == 2


def test_background_command_ends_with_its_run(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    gate = make_gate(hocket.cwd / "left")
    given = {"command": "echo $$ > left; sleep 300", "description": "a server", "run_in_background": True}
    claude.use_script({"do": [{"tool": {"name": "Bash", "input": given}}, LAST]})
    run_id = spawn(hocket, "claude", "-p", "go", *BYPASS)
    command = int(gate.read_text())
    wait_for(hocket, run_id, "turn.ended")
    assert is_alive(command)
    assert hocket("stop", run_id).returncode == 0
    assert shown(hocket, run_id)["result"] == "the end"
    assert (is_alive(command), remaining_processes(hocket, home)) == (False, {})


@pytest.mark.shared_server
def test_timeout_ends_silent_agent(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script({"do": [{"say": "hm"}, "hang"]})
    output = run(hocket, "claude", "-p", "go", "--timeout", "3")
    assert output.outcome == (1, "failed", "timeout")


@pytest.mark.req("S2-67")
@pytest.mark.parametrize(("last", "reason"), [("crash", "signal"), ({"fail": {"exit": 3}}, "exit")])
@pytest.mark.shared_server
def test_crashed_agent_fails(scripted: ClaudeSetup, hocket: Hocket, last: Any, reason: str) -> None:
    scripted.use_script({"do": [{"say": "hm"}, last]})
    output = run(hocket, "claude", "-p", "go")
    assert (output.code, output.ended["status"]) == (1, "failed")
    assert shown(hocket, output.leaf)["reason"] == reason
