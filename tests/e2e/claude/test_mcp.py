"""Claude agents with Hocket's MCP tools: hand-offs, questions, sessions and settings."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, Document, define
from e2e.claude.test_trust import trust
from e2e.commands import events_of, make_gate, open_gate, run, server_pid, shown, spawn, wait_for, waited
from mcp_server.piping import Pipes
from patience import PATIENCE
from world import Bin, Hocket

from hocket.mcp.tools import TOOLS, rules

pytestmark = pytest.mark.shared_server


def calls(name: str, **given: Any) -> Document:
    return {"tool": {"name": f"mcp__hocket__{name}", "input": given}}


def offered(cli: ClaudeSetup) -> set[str]:
    """The Hocket tools in the first request to the model."""
    return {tool["name"] for tool in cli.model.bodies[0]["tools"]} & set(rules())


def tool_results(hocket: Hocket, ref: str) -> list[tuple[bool, str]]:
    """The results of an agent's tool calls, as (is an error, text)."""
    finished = [event for event in events_of(hocket, ref) if event["type"] == "tool.finished" and event["run"] == ref]
    return [(event["data"]["error"], event["data"]["text"]) for event in finished]


LEAD = {
    "when": {"agent": "lead"},
    "do": [calls("hand_off", agent="builder", prompt="Build it."), {"say": "all is done"}],
}
BUILDER = {
    "when": {"agent": "builder"},
    "do": [{"say": "thinking aloud"}, {"tool": {"name": "Read", "input": {"file_path": "x"}}}, {"say": "built it"}],
}


def test_hand_off_returns_only_final_message(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "lead")
    define(hocket.cwd, "builder")
    claude.use_script(LEAD, BUILDER)
    output = run(hocket, "lead", "-p", "hello", timeout=PATIENCE)
    assert (*output.outcome, output.ended["result"]) == (0, "done", "single_run", "all is done")
    assert tool_results(hocket, output.leaf) == [(False, "built it")]
    parent, child = shown(hocket, output.leaf), hocket.runs()[-1]
    assert (child["agent"], child["parent"], child["depth"]) == ("builder", parent["id"], parent["depth"] + 1)
    assert offered(claude) == set(rules())


def test_agent_hands_off_after_listing_agents(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "lead")
    define(hocket.cwd, "builder")
    claude.use_script({**LEAD, "do": [calls("list_agents"), *LEAD["do"]]}, BUILDER)
    output = run(hocket, "lead", "-p", "hello", timeout=PATIENCE)
    (failed, text), handed = tool_results(hocket, output.leaf)
    names = {line.partition(":")[0] for line in text.splitlines()}
    assert (failed, names >= {"builder", "planner", "claude"}, "lead" in names) == (False, True, False)
    assert handed == (False, "built it")


@pytest.mark.own_server
def test_hand_off_survives_server_kill(claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path) -> None:
    gate = create_slow_agent(agent, home)
    claude.use_script({"do": [calls("hand_off", agent="slow", prompt="Take your time."), {"say": "all is done"}]})
    id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, id, "text", lambda data: data["text"] == "begun")
    os.kill(server_pid(hocket), signal.SIGKILL)
    open_gate(gate)
    code, ended = waited(hocket, id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "all is done")
    assert tool_results(hocket, id) == [(False, "begun\nat last\n")]
    assert [one["agent"] for one in hocket.runs()] == ["claude", "slow"]


def create_slow_agent(agent: Bin, home: Path) -> Path:
    """Create an agent that prints a line and then waits at a gate."""
    gate = make_gate(agent.folder / "gate")
    agent("slow", f"print('begun', flush=True); open({str(gate)!r}).read(); print('at last')")
    (home / "config.toml").write_text('[agents.slow]\npath = "slow"\n')
    return gate


def test_hocket_tools_need_no_extra_process(claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path) -> None:
    gate = create_slow_agent(agent, home)
    claude.use_script({"do": [calls("hand_off", agent="slow", prompt="Take your time."), {"say": "all is done"}]})
    id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, id, "text", lambda data: data["text"] == "begun")
    pid = shown(hocket, id)["pid"]
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text().split() == []
    open_gate(gate)
    assert waited(hocket, id)[1]["result"] == "all is done"


@pytest.mark.own_server
def test_hocket_tools_work_after_early_server_kill(claude: ClaudeSetup, hocket: Hocket) -> None:
    """The keeper starts the server again, because the program waits for it."""
    claude.use_script({"do": [calls("status"), {"say": "fine"}]})
    id = spawn(hocket, "claude", "-p", "hello")
    place = Path(shown(hocket, id)["dir"])
    os.kill(server_pid(hocket), signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while not (place / "exit").exists():
        assert time.monotonic() < deadline, (place / "out").read_text()[-500:]
        time.sleep(0.05)
    code, ended = waited(hocket, id)
    assert (code, ended["result"], offered(claude)) == (0, "fine", set(rules()))
    assert tool_results(hocket, id) == [(False, "You have started no runs.")]


def test_long_final_message_arrives_completely(claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("long", "print('word ' * 12_000 + 'end of it')")
    (home / "config.toml").write_text('[agents.long]\npath = "long"\n')
    claude.use_script({"do": [calls("hand_off", agent="long", prompt="Tell me."), {"say": "I see"}]})
    assert run(hocket, "claude", "-p", "hello", timeout=PATIENCE).code == 0
    assert "word " * 12_000 + "end of it" in claude.model.request_text()


def test_session_has_hocket_tools_in_every_turn(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(
        {"when": {"turn": 2}, "do": [calls("status"), {"say": "second"}]}, {"do": [calls("status"), {"say": "first"}]}
    )
    id = spawn(hocket, "claude", "-p", "hello", "--session")
    wait_for(hocket, id, "turn.ended", lambda data: data["result"] == "first")
    assert hocket("send", id, "and now?").returncode == 0
    wait_for(hocket, id, "turn.ended", lambda data: data["result"] == "second")
    assert tool_results(hocket, id) == [(False, "You have started no runs.")] * 2
    assert hocket("stop", id).returncode == 0


def test_failed_hand_off_is_tool_error(claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("failing", "import sys; print('half of it'); sys.exit(3)")
    (home / "config.toml").write_text('[agents.failing]\npath = "failing"\n')
    claude.use_script({"do": [calls("hand_off", agent="failing", prompt="Try."), {"say": "too bad"}]})
    output = run(hocket, "claude", "-p", "hello", timeout=PATIENCE)
    assert output.ended["result"] == "too bad"
    assert tool_results(hocket, output.leaf) == [(True, "failed (exit)\n\nhalf of it")]


def test_allowed_tools_do_not_exclude_hocket_tools(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text('[agents.reader]\npath = "claude"\nallowed_tools = "Read"\n')
    claude.use_script({"do": [calls("status"), {"say": "fine"}]})
    output = run(hocket, "reader", "-p", "hello", timeout=PATIENCE)
    assert {tool["name"] for tool in claude.model.bodies[0]["tools"]} == {"Read", *rules()}
    assert tool_results(hocket, output.leaf) == [(False, "You have started no runs.")]


@pytest.mark.parametrize(
    ("tools", "expected"),
    [("Read, mcp__hocket__hand_off", {"mcp__hocket__hand_off"}), ("Read, mcp__hocket", set(rules()))],
)
def test_definition_tools_select_hocket_tools(
    claude: ClaudeSetup, hocket: Hocket, tools: str, expected: set[str]
) -> None:
    define(hocket.cwd, "narrow", tools=tools)
    claude.use_script({"do": [{"say": "fine"}]})
    assert run(hocket, "narrow", "-p", "hello", timeout=PATIENCE).code == 0
    assert offered(claude) == expected


def test_hand_off_tool_is_loaded_despite_tool_search(
    claude: ClaudeSetup, hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.use_script({"do": [calls("status"), {"say": "fine"}]})
    monkeypatch.setenv("ENABLE_TOOL_SEARCH", "true")
    output = run(hocket, "claude", "-p", "hello", timeout=PATIENCE)
    assert offered(claude) == {"mcp__hocket__hand_off"}
    assert tool_results(hocket, output.leaf) == [(False, "You have started no runs.")]


def test_mcp_setting_disables_hocket_tools(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text("[claude]\nmcp = false\n")
    claude.use_script({"do": [{"say": "fine"}]})
    assert run(hocket, "claude", "-p", "hello", timeout=PATIENCE).code == 0
    assert offered(claude) == set()


def test_project_server_named_hocket_is_ignored(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    theirs = {"command": "/bin/sh", "args": ["-c", f"touch {hocket.cwd}/theirs"]}
    (hocket.cwd / ".mcp.json").write_text(json.dumps({"mcpServers": {"hocket": theirs}}))
    define(hocket.cwd, "listing", allowedMcpServers="[hocket]")
    trust(home, hocket.cwd)
    claude.use_script({"do": [{"say": "fine"}]})
    assert run(hocket, "listing", "-p", "hello", timeout=PATIENCE).code == 0
    assert (offered(claude), (hocket.cwd / "theirs").exists()) == (set(rules()), False)


def test_user_files_contain_no_hocket_server(claude: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    claude.use_script({"do": [calls("status"), {"say": "fine"}]})
    assert run(hocket, "claude", "-p", "hello", timeout=PATIENCE).code == 0
    written = [path for path in (world / "user").rglob("*") if path.is_file() and path.suffix in (".json", ".toml")]
    assert not [path for path in written if '"hocket"' in path.read_text(errors="replace")]
    assert not (hocket.cwd / ".mcp.json").exists()


def test_agent_continues_with_answer_to_its_question(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script({"do": [calls("ask", question="Which colour?"), {"say": "thank you"}]})
    id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, id, "question")
    assert hocket("answer", id, "green").returncode == 0
    code, ended = waited(hocket, id)
    assert (code, ended["result"]) == (0, "thank you")
    assert tool_results(hocket, id) == [(False, "green")]


def test_wait_returns_each_turn_of_session(scripted: ClaudeSetup, hocket: Hocket) -> None:
    scripted.use_script({"when": {"turn": 2}, "do": [{"wait": 0.5}, {"say": "second"}]}, {"do": [{"say": "first"}]})
    with Pipes(hocket.cwd) as pipes:
        id = pipes.facts("spawn", agent="claude", prompt="hello", session=True)["run"]
        failed, text = pipes.call("wait", run=id)
        assert (failed, text) == (False, "first")
        assert not pipes.call("send", run=id, text="and now?")[0]
        pipes.start("wait", run=id)
        answer = pipes.next()["result"]
        assert (answer["content"][0]["text"], answer["_meta"]["hocket"]["status"]) == ("second", "waiting")
        assert not pipes.call("stop", run=id)[0]


def test_hocket_offers_exactly_these_tools() -> None:
    assert set(TOOLS) == {"list_agents", "hand_off", "spawn", "wait", "status", "send", "stop", "ask"}
