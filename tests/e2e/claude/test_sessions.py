"""Sessions that stay open, and sessions that are resumed, with both implementations."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, bash, define, says
from e2e.commands import data_of, make_gate, open_gate, run, run_output, server_pid, shown, spawn, wait_for, waited
from patience import PATIENCE
from world import Hocket

pytestmark = pytest.mark.shared_server

PRICE = [{"cost": 0.25}, {"usage": {"input": 100, "output": 100}}]
"""The cost of each turn, the same in both implementations."""


def costs_of(hocket: Hocket, run_id: str) -> list[float]:
    """The cost recorded at the end of each turn."""
    return [data["cost_usd"] for data in data_of(hocket, run_id, "usage") if not data["estimate"]]


@pytest.mark.own_server
def test_session_keeps_its_process_after_server_kill(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(
        {"when": {"turn": 1}, "do": [*PRICE, {"say": "one"}]},
        {"when": {"turn": 2}, "do": [*PRICE, {"say": "two"}]},
    )
    run_id = spawn(hocket, "claude", "--session", "-p", "first")
    assert wait_for(hocket, run_id, "turn.ended")["data"]["idle"] is True
    idle = shown(hocket, run_id)
    assert (idle["status"], idle["needs_you"], idle["result"]) == ("waiting", False, "one")
    os.kill(server_pid(hocket), signal.SIGKILL)
    second = hocket("send", run_id, "and", "then?", "--wait")
    assert (second.returncode, second.stdout, second.stderr) == (0, "two\n", "")
    later = shown(hocket, run_id)
    assert (later["status"], later["pid"], later["session_id"]) == ("waiting", idle["pid"], idle["session_id"])
    assert costs_of(hocket, run_id) == [pytest.approx(idle["cost_usd"]), pytest.approx(2 * idle["cost_usd"])]
    assert (idle["tokens"], later["tokens"]) == (200, 400)
    assert hocket("stop", run_id).returncode == 0
    ended = shown(hocket, run_id)
    assert (ended["status"], ended["reason"]) == ("stopped", "stopped")
    assert ended["cost_usd"] == pytest.approx(2 * idle["cost_usd"])
    too_late = hocket("send", run_id, "hello?")
    assert (too_late.returncode, too_late.stdout) == (2, "")


def test_cost_of_interrupted_turn_is_estimated(cli: ClaudeSetup, hocket: Hocket) -> None:
    begun = [{"usage": {"input": 100, "output": 100_000}}, {"say": "begun"}, bash("true")]
    cli.use_script(
        {"when": {"turn": 1}, "do": [*PRICE, {"say": "one"}]},
        {"when": {"turn": 2}, "do": [*begun, "hang"]},
    )
    run_id = spawn(hocket, "claude", "--session", "-p", "first")
    wait_for(hocket, run_id, "turn.ended")
    before = shown(hocket, run_id)
    assert (before["cost_estimated"], before["tokens"]) == (False, 200)
    assert hocket("send", run_id, "more").returncode == 0
    wait_for(hocket, run_id, "tool.finished")
    assert hocket("stop", run_id).returncode == 0
    ended = shown(hocket, run_id)
    assert (ended["status"], ended["tokens"] > 100_000, ended["cost_estimated"]) == ("stopped", True, True)
    assert ended["cost_usd"] > before["cost_usd"]
    assert re.search(r"^cost +~\$", hocket("show", run_id).stdout, re.MULTILINE)


def test_empty_message_is_refused(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(says("fine"))
    run_id = spawn(hocket, "claude", "--session", "-p", "hello")
    wait_for(hocket, run_id, "turn.ended")
    refused = hocket("send", run_id, " ", "--wait")
    assert (refused.returncode, "the message is empty" in refused.stderr) == (2, True)
    assert (hocket("send", run_id, "and now?", "--wait").stdout, hocket("stop", run_id).returncode) == ("fine\n", 0)


def test_compaction_is_reported_as_notices(claude: ClaudeSetup, hocket: Hocket) -> None:
    """The CLI lets the model summarize the conversation and continues with the summary."""
    claude.use_script(says("first"))
    run_id = spawn(hocket, "claude", "--session", "-p", "hello")
    wait_for(hocket, run_id, "turn.ended")
    assert hocket("send", run_id, "/compact", "--wait").returncode == 0
    notices = [data["text"] for data in data_of(hocket, run_id, "notice") if data["kind"] == "compaction"]
    assert notices == ["the conversation is being compacted", "the conversation was compacted"]
    assert hocket("send", run_id, "and now?", "--wait").returncode == 0
    assert hocket("stop", run_id).returncode == 0


def test_session_continues_after_interrupted_turn(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(
        {"when": {"prompt": "for ever"}, "do": [{"say": "thinking\nof it"}, "hang"]},
        says("at your service", prompt="instead"),
    )
    run_id = spawn(hocket, "claude", "--session", "-p", "for ever")
    wait_for(hocket, run_id, "text")
    assert hocket("send", run_id, "--interrupt").returncode == 0
    cut = wait_for(hocket, run_id, "turn.ended")["data"]
    assert (cut["is_error"], cut["subtype"], cut["idle"]) == (True, "error_during_execution", True)
    before = shown(hocket, run_id)
    assert before["status"] == "waiting"
    answer = hocket("send", run_id, "this instead", "--wait")
    assert (answer.returncode, answer.stdout) == (0, "at your service\n")
    assert shown(hocket, run_id)["pid"] == before["pid"]


def test_interrupting_message_is_answered(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(
        {"when": {"prompt": "for ever"}, "do": [{"say": "thinking\nof it"}, "hang"]},
        says("at your service", prompt="instead"),
    )
    run_id = spawn(hocket, "claude", "--session", "-p", "for ever")
    wait_for(hocket, run_id, "text")
    answer = hocket("send", run_id, "this instead", "--interrupt", "--wait", timeout=PATIENCE)
    assert (answer.returncode, answer.stdout) == (0, "at your service\n")


def test_message_during_turn_reaches_agent(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    gate = make_gate(project / "gate")
    claude.use_script({"do": [bash("cat gate"), {"say": "the end"}]}, says("an answer", prompt="by the way"))
    run_id = spawn(hocket, "claude", "-p", "go", "--on-question", "ask")
    wait_for(hocket, run_id, "tool.started")
    assert hocket("send", run_id, "by the way").returncode == 0
    open_gate(gate)
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"]) == (0, "done")
    assert "by the way" in claude.model.request_text()


def test_message_to_closed_input_is_refused(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script({"do": [{"say": "begun"}, "hang"]})
    run_id = spawn(hocket, "claude", "-p", "go", "--on-question", "deny")
    wait_for(hocket, run_id, "text")
    refused = hocket("send", run_id, "by the way")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "takes no more input" in refused.stderr
    assert "--session" in refused.stderr
    assert hocket("stop", run_id).returncode == 0


# --- Resuming -----------------------------------------------------------------------------------------------

PAST = (
    {"when": {"turn": 2}, "do": [*PRICE, {"say": "I remember"}]},
    {"when": {"turn": 1}, "do": [*PRICE, {"say": "noted: blue"}]},
)


def resumed(hocket: Hocket, run_id: str) -> tuple[Any, dict[str, Any]]:
    done = hocket("resume", run_id, "-p", "what was it?", "--json")
    output = run_output(done.returncode, done.stdout, done.stderr)
    return output, shown(hocket, output.events[-1]["run"])


def check_resumed(cli: ClaudeSetup, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert (new["status"], new["result"], new["resumed_from"]) == ("done", "I remember", old["id"])
    assert new["id"] != old["id"]
    assert new["session_id"] not in (None, old["session_id"])
    assert (new["cost_usd"], new["tokens"]) == (pytest.approx(old["cost_usd"]), 200)
    if cli.is_real:
        for words in ("the colour is blue", "noted: blue", "what was it?"):
            assert words in cli.model.request_text()


def test_resumed_session_budget_starts_at_zero(cli: ClaudeSetup, hocket: Hocket) -> None:
    """So the remaining budget of a chain can be passed to a resumed iteration unchanged."""
    turn = [{"cost": 0.4}, {"usage": {"output": 20000}}, {"say": "a turn"}]
    cli.use_script({"do": turn})
    first = run(hocket, "claude", "-p", "hello", "--", "--max-budget-usd", "0.6")
    assert (first.code, first.ended["cost_usd"]) == (0, pytest.approx(0.4, abs=0.01))
    output, new = resumed(hocket, first.leaf)
    assert (output.code, new["cost_usd"]) == (0, pytest.approx(0.4, abs=0.01))


def test_finished_run_resumes_as_new_run(cli: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    define(world / "other", "painter")
    cli.use_script(*PAST)
    old = shown(hocket, run(hocket, "../other/.claude/agents/painter", "-p", "the colour is blue").leaf)
    output, new = resumed(hocket, old["id"])
    assert output.code == 0
    check_resumed(cli, old, new)
    assert (new["agent"], new["cwd"]) == (old["agent"], str(world / "other"))
    assert shown(hocket, old["id"])["result"] == "noted: blue"


@pytest.mark.req("S3-23")
def test_clear_starts_new_session_and_keeps_cost(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(says("anew", prompt="second"), says("on it goes", prompt="what was it"), says("one"))
    run_id = spawn(hocket, "claude", "--session", "-p", "first words")
    wait_for(hocket, run_id, "turn.ended")
    old = shown(hocket, run_id)
    for text in ("/clear", "second words"):
        assert hocket("send", run_id, text, "--wait").returncode == 0
    cleared = shown(hocket, run_id)
    assert (cleared["pid"], cleared["result"]) == (old["pid"], "anew")
    assert cleared["session_id"] not in (None, old["session_id"])
    assert cleared["session_id"] in cleared["transcript"]
    assert cleared["cost_usd"] == pytest.approx(2 * old["cost_usd"])
    assert cleared["tokens"] == 2 * old["tokens"]
    assert hocket("stop", run_id).returncode == 0
    output, new = resumed(hocket, run_id)
    assert (output.code, new["result"]) == (0, "on it goes")
    assert ("second words" in claude.model.request_text(), "first words" in claude.model.request_text()) == (
        True,
        False,
    )


def test_resume_without_transcript_fails(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(*PAST)
    old = shown(hocket, run(hocket, "claude", "-p", "the colour is blue").leaf)
    Path(old["transcript"]).unlink()
    output, new = resumed(hocket, old["id"])
    assert output.outcome == (1, "failed", "error")
    assert f"No conversation found with session ID: {old['session_id']}" in new["error"]


def test_lost_run_resumes_but_not_running_one(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script(*PAST)
    run_id = spawn(hocket, "claude", "--session", "-p", "the colour is blue")
    wait_for(hocket, run_id, "turn.ended")
    old = shown(hocket, run_id)
    refused = hocket("resume", run_id, "-p", "what was it?")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "has not ended" in refused.stderr
    os.kill(json.loads((Path(old["dir"]) / "pid").read_text())["keeper"], signal.SIGKILL)
    code, lost = waited(hocket, run_id)
    assert (code, lost["status"], lost["result"]) == (1, "lost", "noted: blue")
    output, new = resumed(hocket, run_id)
    assert output.code == 0
    check_resumed(scripted, old, new)
