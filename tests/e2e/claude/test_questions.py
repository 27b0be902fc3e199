"""Questions of agents: who answers, when, and the effect. Both implementations, unless a real tool is needed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, asks_to, bash
from e2e.commands import data_of, run, server_pid, shown, spawn, wait_for, waited
from world import Hocket

pytestmark = pytest.mark.shared_server

COMMAND = "sh -c 'echo x > made'"
ASKS = {"do": [{"say": "may I?"}, asks_to(COMMAND, allowed=[{"say": "made it"}], denied=[{"say": "then not"}])]}


def asked(hocket: Hocket, *args: str) -> tuple[str, dict[str, Any]]:
    """A run that waits for an answer, and its question."""
    run_id = spawn(hocket, "claude", "-p", "hello", "--on-question", "ask", *args)
    return run_id, wait_for(hocket, run_id, "question")["data"]


def test_allowed_question_runs_tool_and_closes(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(ASKS)
    run_id, question = asked(hocket, "--session")
    assert (question["kind"], question["tool"], question["input"]["command"]) == ("permission", "Bash", COMMAND)
    waiting = shown(hocket, run_id)
    assert (waiting["status"], waiting["needs_you"]) == ("waiting", True)
    assert [one["id"] for one in waiting["questions"]] == [question["id"]]
    assert not (hocket.cwd / "made").exists()
    assert hocket("answer", run_id, "allow").returncode == 0
    ended = wait_for(hocket, run_id, "turn.ended")["data"]
    assert (ended["result"], ended["denials"]) == ("made it", [])
    again = hocket("answer", run_id, "deny")
    assert (again.returncode, again.stdout) == (2, "")
    assert "no open question" in again.stderr
    (answer,) = data_of(hocket, run_id, "answer")
    assert (answer["id"], answer["allow"]) == (question["id"], True)
    assert (hocket.cwd / "made").exists() == cli.is_real


def test_always_allowed_command_is_asked_once(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script({"do": [asks_to(COMMAND), bash("rm made"), bash(COMMAND), {"say": "both times"}]})
    run_id, question = asked(hocket)
    assert question["rule"] == f"Bash({COMMAND})"
    assert hocket("answer", run_id, "always").returncode == 0
    while (state := shown(hocket, run_id))["status"] not in ("done", "failed"):
        for one in state["questions"]:  # another command has no such rule
            assert one["input"]["command"] == "rm made"
            hocket("answer", run_id, "allow")
    assert (state["status"], state["result"]) == ("done", "both times")
    first, *others = data_of(hocket, run_id, "answer")
    assert first["rule"] == question["rule"]
    assert all("rule" not in one for one in others)
    assert (hocket.cwd / "made").exists()
    assert not (hocket.cwd / ".claude").exists()


def test_always_answer_requires_suggested_rule(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    run_id, question = asked(hocket)
    refused = hocket("answer", run_id, "always")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"question {question['id']} suggests no rule" in refused.stderr
    assert hocket("answer", run_id, "allow").returncode == 0


def test_denial_message_reaches_agent(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(ASKS)
    run_id, _ = asked(hocket)
    denied = hocket("answer", run_id, "deny", "-m", "use the test database", "--json")
    assert json.loads(denied.stdout)["allow"] is False
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "then not")
    (finished,) = data_of(hocket, run_id, "tool.finished")
    assert (finished["error"], "use the test database" in finished["text"]) == (True, True)
    if cli.is_real:
        assert "use the test database" in cli.model.request_text()


@pytest.mark.own_server
def test_question_survives_server_kill(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(ASKS)
    run_id, question = asked(hocket)
    before = shown(hocket, run_id)
    os.kill(server_pid(hocket), signal.SIGKILL)
    assert hocket("answer", run_id, "allow").returncode == 0
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "made it")
    assert (ended["pid"], ended["session_id"]) == (before["pid"], before["session_id"])
    assert [data["id"] for data in data_of(hocket, run_id, "question")] == [question["id"]]
    assert [data["id"] for data in data_of(hocket, run_id, "answer")] == [question["id"]]
    assert (hocket.cwd / "made").exists() == cli.is_real


def test_only_one_of_concurrent_answers_counts(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    run_id, _ = asked(hocket)
    both = {word: hocket.start("answer", run_id, word) for word in ("allow", "deny")}
    codes = {word: process.wait(15) for word, process in both.items()}
    assert sorted(codes.values()) == [0, 2]
    _, ended = waited(hocket, run_id)
    assert ended["result"] == ("made it" if codes["allow"] == 0 else "then not")
    assert len(data_of(hocket, run_id, "answer")) == 1


def test_background_agent_question_keeps_run_open(cli: ClaudeSetup, hocket: Hocket) -> None:
    sub = {"prompt": "look around", "background": True}
    cli.use_script(
        {"when": {"agent": "general-purpose"}, "do": [asks_to(COMMAND), {"say": "made it"}]},
        {"when": {"woken": True}, "do": [{"say": "it came back"}]},
        {"do": [{"agent": sub}, {"say": "meanwhile"}]},
    )
    run_id, question = asked(hocket)
    wait_for(hocket, run_id, "turn.ended")
    (lead,) = (data for data in data_of(hocket, run_id, "tool.started") if data["name"] == "Agent")
    assert (question["parent"], question["agent"]) == (lead["id"], "general-purpose")
    assert shown(hocket, run_id)["needs_you"] is True
    assert hocket("answer", run_id, "allow").returncode == 0
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "it came back")
    assert (hocket.cwd / "made").exists() == cli.is_real


def test_on_question_fail_ends_run(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    output = run(hocket, "claude", "-p", "hello", "--on-question", "fail")
    assert output.outcome == (4, "failed", "no_answer")
    assert shown(hocket, output.leaf)["reason"] == "no_answer"
    assert not (hocket.cwd / "made").exists()


def test_choice_is_answered_by_number(claude: ClaudeSetup, hocket: Hocket) -> None:
    options = [{"label": label, "description": "as it says"} for label in ("red", "green")]
    choice = {"question": "Which colour?", "header": "Colour", "options": options, "multiSelect": False}
    ask = {"tool": "AskUserQuestion", "input": {"questions": [choice]}, "allowed": [{"say": "noted"}]}
    claude.use_script({"do": [{"ask": ask}]})
    run_id, question = asked(hocket)
    assert (question["kind"], question["text"]) == ("choice", "Which colour? (1 red, 2 green)")
    assert hocket("answer", run_id, "2").returncode == 0
    code, ended = waited(hocket, run_id)
    assert (code, ended["result"]) == (0, "noted")
    assert "green" in data_of(hocket, run_id, "tool.finished")[0]["text"]


@pytest.mark.req("S1-45")
def test_inbox_question_is_answered_by_its_id(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    run_id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, run_id, "question")
    (question,) = json.loads(hocket("inbox", "--json").stdout)
    assert (question["run"], question["kind"], question["tool"]) == (run_id, "permission", "Bash")
    assert question["input"]["command"] == COMMAND
    assert hocket("answer", question["id"], "allow").returncode == 0
    assert json.loads(hocket("inbox", "--json").stdout) == []
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "made it")
    assert not (hocket.cwd / "made").exists()


@pytest.mark.req("S1-45")
def test_run_in_pipe_asks_no_question(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    output = run(hocket, "claude", "-p", "hello")
    assert output.outcome == (0, "done", "single_run")
    assert data_of(hocket, output.leaf, "question") == []
    assert not (hocket.cwd / "made").exists()


@pytest.mark.own_server
def test_agent_asks_question_with_hocket_command(claude: ClaudeSetup, hocket: Hocket) -> None:
    words = [sys.executable, "-m", "hocket", "ask", "Which colour?", "--option", "red", "--option", "blue"]
    claude.use_script({"do": [bash(shlex.join(words)), {"say": "noted"}]})
    run_id = spawn(hocket, "claude", "-p", "hello", "--", "--allowedTools", "Bash")
    question = wait_for(hocket, run_id, "question")["data"]
    assert (question["kind"], question["text"], question["options"]) == ("choice", "Which colour?", ["red", "blue"])
    assert shown(hocket, run_id)["needs_you"] is True
    os.kill(server_pid(hocket), signal.SIGKILL)
    assert hocket("answer", run_id, "2").returncode == 0
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "noted")
    (finished,) = data_of(hocket, run_id, "tool.finished")
    assert finished["text"].strip() == "blue"
