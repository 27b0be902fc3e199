"""Messages from other Claude sessions of the same user, with the real CLI: refused, held or recorded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from e2e.claude.setup import ClaudeSetup, bash, real_cli, says
from e2e.commands import data_of, events_of, make_gate, open_gate, spawn, wait_for, waited
from patience import PATIENCE
from world import Hocket

WORDS = "ORANGE for you"


def configure(home: Path, cross_session: str | None) -> None:
    home.mkdir(exist_ok=True)
    line = f'cross_session = "{cross_session}"' if cross_session else ""
    (home / "config.toml").write_text(f'[claude]\npermission_mode = "bypassPermissions"\n{line}\n')
    (home / "config.toml").chmod(0o600)


def send_from_another_session(claude: ClaudeSetup, project: Path) -> None:
    """Let a second CLI process send a message to the only session there is, and wait until it has been delivered."""
    (record,) = (Path.home() / ".claude/sessions").glob("*.json")
    address = f"uds:{json.loads(record.read_text())['messagingSocketPath']}"
    send = {"tool": {"name": "SendMessage", "input": {"to": address, "summary": "news", "message": WORDS}}}
    claude.use_script({"do": [send, {"say": "sent"}]})
    flags = ["--verbose", "--output-format", "stream-json", "--permission-mode", "bypassPermissions"]
    done = subprocess.run(
        [real_cli(), "-p", "send it", *flags],
        cwd=project.parent, env=dict(os.environ), capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert "inbox" in done.stdout, done.stdout


def receive(claude: ClaudeSetup, hocket: Hocket, project: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """Run an agent that is sent a message while it works. The run, all that its model was asked, and its inputs."""
    gate = make_gate(project / "gate")
    claude.use_script({"do": [bash(f"cat {gate}"), {"say": "the end"}]})
    model = claude.model
    run = spawn(hocket, "claude", "-p", "go")
    wait_for(hocket, run, "tool.started")
    send_from_another_session(claude, project)
    open_gate(gate)
    assert waited(hocket, run)[0] == 0
    return run, json.dumps(model.bodies), data_of(hocket, run, "input")


def test_session_message_is_ignored_by_default(claude: ClaudeSetup, hocket: Hocket, project: Path, home: Path) -> None:
    configure(home, None)
    run, asked, inputs = receive(claude, hocket, project)
    assert WORDS not in asked
    assert inputs == []
    assert all(WORDS not in json.dumps(event) for event in events_of(hocket, run))


def test_held_session_message_gives_notice(claude: ClaudeSetup, hocket: Hocket, project: Path, home: Path) -> None:
    configure(home, "hold")
    run, asked, inputs = receive(claude, hocket, project)
    assert WORDS not in asked
    assert inputs == []
    notices = [data for data in data_of(hocket, run, "notice") if data["kind"] == "session_message"]
    assert notices[0]["state"] == "held"
    assert notices[0]["sender"]["address"].startswith("uds:")
    assert "was held" in hocket("logs", run).stdout


def test_accepted_session_message_is_recorded_with_sender(
    claude: ClaudeSetup, hocket: Hocket, project: Path, home: Path
) -> None:
    configure(home, "accept")
    run, asked, inputs = receive(claude, hocket, project)
    assert WORDS in asked
    (message,) = inputs
    assert (message["kind"], message["text"]) == ("session_message", WORDS)
    assert message["sender"]["address"].startswith("uds:/")
    assert message["sender"]["address"].endswith(f"/{message['sender']['pid']}.sock")
    assert message["sender"]["name"]
    shown = hocket("logs", run).stdout
    assert f"message from session {message['sender']['name']}: {WORDS}" in shown
    kinds = [event["type"] for event in events_of(hocket, run)]
    assert "raw" not in kinds, "an echo that was not understood"


def test_session_message_wakes_idle_session(claude: ClaudeSetup, hocket: Hocket, project: Path, home: Path) -> None:
    configure(home, "accept")
    claude.use_script(says("awake", last=WORDS), says("first"))
    run = spawn(hocket, "claude", "-p", "go", "--session")
    wait_for(hocket, run, "turn.ended")
    send_from_another_session(claude, project)
    wait_for(hocket, run, "turn.ended", lambda data: data["result"] == "awake")
    (message,) = data_of(hocket, run, "input")
    assert (message["kind"], message["text"]) == ("session_message", WORDS)
    assert hocket("stop", run).returncode == 0
