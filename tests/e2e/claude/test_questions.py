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


def test_an_allowed_question_has_its_effect_and_is_answered_once(cli: ClaudeSetup, hocket: Hocket) -> None:
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


def test_what_is_always_allowed_is_asked_once_and_written_nowhere(claude: ClaudeSetup, hocket: Hocket) -> None:
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


def test_a_question_without_a_rule_cannot_be_allowed_always(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    run_id, question = asked(hocket)
    refused = hocket("answer", run_id, "always")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"question {question['id']} suggests no rule" in refused.stderr
    assert hocket("answer", run_id, "allow").returncode == 0


def test_a_denial_tells_the_agent_why(cli: ClaudeSetup, hocket: Hocket) -> None:
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
def test_a_question_outlives_the_server(cli: ClaudeSetup, hocket: Hocket) -> None:
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


def test_of_two_answers_at_the_same_time_one_counts(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    run_id, _ = asked(hocket)
    both = {word: hocket.start("answer", run_id, word) for word in ("allow", "deny")}
    codes = {word: process.wait(15) for word, process in both.items()}
    assert sorted(codes.values()) == [0, 2]
    _, ended = waited(hocket, run_id)
    assert ended["result"] == ("made it" if codes["allow"] == 0 else "then not")
    assert len(data_of(hocket, run_id, "answer")) == 1


def test_a_question_of_a_background_agent_keeps_the_run_open(cli: ClaudeSetup, hocket: Hocket) -> None:
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


def test_a_question_that_nobody_may_answer_ends_the_run(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    told = run(hocket, "claude", "-p", "hello", "--on-question", "fail")
    assert told.outcome == (4, "failed", "no_answer")
    assert shown(hocket, told.leaf)["reason"] == "no_answer"
    assert not (hocket.cwd / "made").exists()


def test_a_choice_is_answered_by_its_number(claude: ClaudeSetup, hocket: Hocket) -> None:
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
def test_without_a_word_a_question_waits_in_the_inbox_until_it_is_answered_by_its_id(
    scripted: ClaudeSetup, hocket: Hocket
) -> None:
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
def test_in_a_pipe_nobody_is_asked(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(ASKS)
    told = run(hocket, "claude", "-p", "hello")
    assert told.outcome == (0, "done", "single_run")
    assert data_of(hocket, told.leaf, "question") == []
    assert not (hocket.cwd / "made").exists()


@pytest.mark.own_server
def test_an_agent_asks_people_in_its_own_words_by_a_command(claude: ClaudeSetup, hocket: Hocket) -> None:
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
