"""Torture row 46: secrets in the output of an agent are masked everywhere, and markers still count."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, asks_to, bash
from e2e.commands import (
    data_of,
    events_of,
    following,
    make_gate,
    open_gate,
    run,
    server_pid,
    shown,
    spawn,
    wait_for,
    waited,
)
from world import Bin, Hocket

from hocket.rehearsal import messages_api
from hocket.sessions.home import DATABASE, SECRET
from hocket.sessions.run_identity import run_token

KEY = "sk-test-" + "".join(f"{number:03}{letter}" for number, letter in enumerate("QwErTzUiOpAsDfGhJkLyXcVbNm"))
"""Longer than the 40 characters that the scripted agent puts into one delta."""
MASK = "[redacted]"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)


def recorded(home: Path) -> str:
    """All that the database says about runs, but for what they were started with."""
    connection = sqlite3.connect(home / DATABASE)
    try:
        tables = ("SELECT data FROM events", "SELECT state FROM runs", "SELECT reader FROM offsets")
        return "\n".join(str(row[0]) for query in tables for row in connection.execute(query))
    finally:
        connection.close()


def parts_of_key(text: str) -> list[str]:
    return [KEY[at : at + 6] for at in range(8, len(KEY) - 6) if KEY[at : at + 6] in text]


def check_masked(hocket: Hocket, home: Path, ref: str) -> None:
    """No command, no record and no log has the key or the run's token, nor a part of the key."""
    token = run_token((home / SECRET).read_text().strip().encode(), shown(hocket, ref)["id"])
    views = [hocket(*words).stdout for words in (("logs", ref), ("logs", ref, "--json"), ("show", ref, "--json"))]
    for text in (*views, recorded(home), (home / "server.log").read_text()):
        assert parts_of_key(text) == []
        assert token not in text
    assert MASK in views[1]


@pytest.mark.parametrize("size", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_secret_is_masked_in_text_and_tool_result(
    cli: ClaudeSetup, hocket: Hocket, home: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torture row 46: the real CLI passes on deltas of so many characters."""
    monkeypatch.setattr(messages_api, "PIECE", size)
    monkeypatch.setattr(messages_api, "MOST_PIECES", 10_000)
    command = f"echo {KEY}; echo '{json.dumps({'key': KEY})}'; echo $HOCKET_TOKEN"
    result = f"{KEY}\n{json.dumps({'key': KEY})}"
    cli.use_script({"do": [bash(command, result), {"say": f"It worked.\nThe key is {KEY}, as you see"}]})
    output = run(hocket, "claude", "-p", "hello", "--", "--allowedTools", "Bash")
    assert output.outcome == (0, "done", "single_run")
    assert parts_of_key(json.dumps(output.events)) == []
    ended = shown(hocket, output.leaf)
    assert ended["result"] == f"It worked.\nThe key is {MASK}, as you see"
    texts = [data["text"] for data in data_of(hocket, output.leaf, "text")]
    assert "\n".join(texts) == ended["result"]
    (started,) = data_of(hocket, output.leaf, "tool.started")
    assert started["input"]["command"] == command.replace(KEY, MASK)
    (finished,) = data_of(hocket, output.leaf, "tool.finished")
    assert f'{MASK}\n{{"key": "{MASK}"}}' in finished["text"]
    check_masked(hocket, home, output.leaf)
    assert KEY.encode() in (Path(ended["dir"]) / "out").read_bytes(), "the run's own file is as the agent wrote it"
    assert KEY in hocket("logs", output.leaf, "--raw").stdout


@pytest.mark.own_server
def test_allowed_command_with_secret_runs_unchanged(cli: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    """Torture row 46."""
    command = f"sh -c 'echo {KEY} > made'"
    cli.use_script({"do": [asks_to(command, allowed=[{"say": f"made {KEY}"}], denied=[{"say": "then not"}])]})
    run_id = spawn(hocket, "claude", "-p", "hello", "--on-question", "ask")
    question = wait_for(hocket, run_id, "question")["data"]
    assert question["input"]["command"] == command.replace(KEY, MASK)
    assert question["text"] == f"Bash wants to run: {command.replace(KEY, MASK)}"
    os.kill(server_pid(hocket), signal.SIGKILL)
    assert hocket("answer", run_id, "allow").returncode == 0
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", f"made {MASK}")
    if cli.is_real:
        assert (hocket.cwd / "made").read_text() == f"{KEY}\n"
    check_masked(hocket, home, run_id)


def test_choice_with_secret_is_answered_by_number(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    """Torture row 46."""
    options = [{"label": label, "description": f"as {KEY} says"} for label in ("red", "green")]
    choice = {"question": f"Which colour for {KEY}?", "header": "Colour", "options": options, "multiSelect": False}
    ask = {"tool": "AskUserQuestion", "input": {"questions": [choice]}, "allowed": [{"say": "noted"}]}
    claude.use_script({"do": [{"ask": ask}]})
    run_id = spawn(hocket, "claude", "-p", "hello", "--on-question", "ask")
    question = wait_for(hocket, run_id, "question")["data"]
    assert question["text"] == f"Which colour for {MASK}? (1 red, 2 green)"
    assert hocket("answer", run_id, "2").returncode == 0
    code, ended = waited(hocket, run_id)
    assert (code, ended["result"]) == (0, "noted")
    assert "green" in data_of(hocket, run_id, "tool.finished")[0]["text"]
    check_masked(hocket, home, run_id)


def test_secret_in_api_error_is_masked(scripted: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    """Torture row 46."""
    scripted.use_script({"do": [{"fail": {"status": 400, "message": f"no such key: {KEY}"}}]})
    output = run(hocket, "claude", "-p", "hello")
    assert output.outcome[1:] == ("failed", "error")
    ended = shown(hocket, output.leaf)
    assert (ended["status"], ended["reason"]) == ("failed", "error")
    assert MASK in ended["error"]
    check_masked(hocket, home, output.leaf)


def test_secret_in_asked_question_is_masked(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    """Torture row 46."""
    words = ["-m", "hocket", "ask", f"Is {KEY} right?", "--option", "yes", "--option", f"no, not {KEY}"]
    claude.use_script({"do": [bash(shlex.join([sys.executable, *words])), {"say": "noted"}]})
    run_id = spawn(hocket, "claude", "-p", "hello", "--", "--allowedTools", "Bash")
    question = wait_for(hocket, run_id, "question")["data"]
    assert (question["text"], question["options"]) == (f"Is {MASK} right?", ["yes", f"no, not {MASK}"])
    assert hocket("answer", run_id, "1").returncode == 0
    code, ended = waited(hocket, run_id)
    assert (code, ended["result"]) == (0, "noted")
    check_masked(hocket, home, run_id)


def test_message_with_secret_arrives_and_is_recorded_masked(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    claude.use_script({"when": {"turn": 2}, "do": [{"say": "noted"}]}, {"do": [{"say": "hello"}]})
    run_id = spawn(hocket, "claude", "-p", "hello", "--session")
    wait_for(hocket, run_id, "turn.ended")
    assert hocket("send", run_id, f"use {KEY}").returncode == 0
    assert wait_for(hocket, run_id, "turn.ended", lambda data: data["turn"] == 2)["data"]["result"] == "noted"
    assert f"use {KEY}" in claude.model.request_text()
    (message,) = data_of(hocket, run_id, "input")
    assert message["text"] == f"use {MASK}"
    check_masked(hocket, home, run_id)


# --- A server that dies between two deltas ---

HALF = len(KEY) // 2
SPEAKER = """
import json, os, sys
sys.stdin.readline()
session = "0b9d6a52-6a86-4b0c-8c6e-5a1d3f0c7e11"
def say(kind, **more):
    print(json.dumps({{"type": kind, "session_id": session, **more}}, separators=(",", ":")), flush=True)
def part(**event):
    say("stream_event", event=event, parent_tool_use_id=None)
def delta(text):
    part(type="content_block_delta", index=0, delta={{"type": "text_delta", "text": text}})
key = os.environ["ANTHROPIC_AUTH_TOKEN"]
half = len(key) // 2
say("system", subtype="init", cwd=os.getcwd(), model="m")
part(type="message_start", message={{"id": "m1"}})
delta("The first line.\\nThe key is " + key[:half])
open({gate!r}).read()
delta(key[half:] + ".\\nAlmost: " + key[:half])
say("result", subtype="success", is_error=False, result="The key is " + key)
"""


@pytest.mark.own_server
def test_split_secret_is_masked_after_server_kill(
    agent: Bin, hocket: Hocket, home: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torture row 46: the state that is committed between two deltas has no character of the secret."""
    gate = make_gate(world / "gate")
    monkeypatch.setenv("HOCKET_CLAUDE", str(agent("speaker", SPEAKER.format(gate=str(gate)))))
    run_id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, run_id, "text", lambda data: data["text"] == "The first line.")
    assert parts_of_key(recorded(home)) == []
    assert '"ANTHROPIC_AUTH_TOKEN"' in recorded(home), "some of the secret is held back"
    os.kill(server_pid(hocket), signal.SIGKILL)
    with following(hocket, run_id) as events:
        open_gate(gate)
        received = list(events)
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", f"The key is {MASK}")
    texts = [event["data"]["text"] for event in received if event["type"] == "text"]
    assert texts == ["The first line.", f"The key is {MASK}.", f"Almost: {KEY[:HALF]}"]
    assert [event for event in events_of(hocket, run_id) if event["type"] == "text"] == [
        event for event in received if event["type"] == "text"
    ]
    assert KEY not in recorded(home)
