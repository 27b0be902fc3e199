"""A Claude agent with our MCP server hands off work and gets the final message alone."""

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
    """Those of our tools that the model was told of."""
    return {tool["name"] for tool in cli.model.bodies[0]["tools"]} & set(rules())


def came_back(hocket: Hocket, ref: str) -> list[tuple[bool, str]]:
    """What an agent's own tools gave it."""
    told = [event for event in events_of(hocket, ref) if event["type"] == "tool.finished" and event["run"] == ref]
    return [(event["data"]["error"], event["data"]["text"]) for event in told]


LEAD = {
    "when": {"agent": "lead"},
    "do": [calls("hand_off", agent="builder", prompt="Build it."), {"say": "all is done"}],
}
BUILDER = {
    "when": {"agent": "builder"},
    "do": [{"say": "thinking aloud"}, {"tool": {"name": "Read", "input": {"file_path": "x"}}}, {"say": "built it"}],
}


def test_an_agent_hands_work_over_and_gets_the_final_message_alone(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "lead")
    define(hocket.cwd, "builder")
    claude.use_script(LEAD, BUILDER)
    told = run(hocket, "lead", "-p", "hello", timeout=PATIENCE)
    assert (*told.outcome, told.ended["result"]) == (0, "done", "single_run", "all is done")
    assert came_back(hocket, told.leaf) == [(False, "built it")]
    parent, child = shown(hocket, told.leaf), hocket.runs()[-1]
    assert (child["agent"], child["parent"], child["depth"]) == ("builder", parent["id"], parent["depth"] + 1)
    assert offered(claude) == set(rules())


def test_an_agent_hands_work_to_an_agent_that_it_listed(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "lead")
    define(hocket.cwd, "builder")
    claude.use_script({**LEAD, "do": [calls("list_agents"), *LEAD["do"]]}, BUILDER)
    told = run(hocket, "lead", "-p", "hello", timeout=PATIENCE)
    (failed, text), handed = came_back(hocket, told.leaf)
    names = {line.partition(":")[0] for line in text.splitlines()}
    assert (failed, names >= {"lead", "builder", "planner", "claude"}) == (False, True)
    assert handed == (False, "built it")


@pytest.mark.own_server
def test_a_hand_off_outlives_a_kill_of_the_server(claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path) -> None:
    gate = slow(agent, home)
    claude.use_script({"do": [calls("hand_off", agent="slow", prompt="Take your time."), {"say": "all is done"}]})
    id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, id, "text", lambda data: data["text"] == "begun")
    os.kill(server_pid(hocket), signal.SIGKILL)
    open_gate(gate)
    code, ended = waited(hocket, id)
    assert (code, ended["status"], ended["result"]) == (0, "done", "all is done")
    assert came_back(hocket, id) == [(False, "begun\nat last\n")]
    assert [one["agent"] for one in hocket.runs()] == ["claude", "slow"]


def slow(agent: Bin, home: Path) -> Path:
    """An agent that says it has begun, and then waits at a gate."""
    gate = make_gate(agent.folder / "gate")
    agent("slow", f"print('begun', flush=True); open({str(gate)!r}).read(); print('at last')")
    (home / "config.toml").write_text('[agents.slow]\npath = "slow"\n')
    return gate


def test_no_process_of_ours_is_beside_a_run_that_uses_our_tools(
    claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path
) -> None:
    gate = slow(agent, home)
    claude.use_script({"do": [calls("hand_off", agent="slow", prompt="Take your time."), {"say": "all is done"}]})
    id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, id, "text", lambda data: data["text"] == "begun")
    pid = shown(hocket, id)["pid"]
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text().split() == []
    open_gate(gate)
    assert waited(hocket, id)[1]["result"] == "all is done"


@pytest.mark.own_server
def test_a_run_whose_server_is_killed_before_it_could_say_hello_has_our_tools_all_the_same(
    claude: ClaudeSetup, hocket: Hocket
) -> None:
    """Nobody asks for a server: its keeper does, when the program waits for one."""
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
    assert came_back(hocket, id) == [(False, "You have started no runs.")]


def test_a_long_final_message_arrives_whole(claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("long", "print('word ' * 12_000 + 'end of it')")
    (home / "config.toml").write_text('[agents.long]\npath = "long"\n')
    claude.use_script({"do": [calls("hand_off", agent="long", prompt="Tell me."), {"say": "I see"}]})
    assert run(hocket, "claude", "-p", "hello", timeout=PATIENCE).code == 0
    assert "word " * 12_000 + "end of it" in claude.model.request_text()


def test_an_agent_that_stays_has_our_tools_in_every_turn(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(
        {"when": {"turn": 2}, "do": [calls("status"), {"say": "second"}]}, {"do": [calls("status"), {"say": "first"}]}
    )
    id = spawn(hocket, "claude", "-p", "hello", "--session")
    wait_for(hocket, id, "turn.ended", lambda data: data["result"] == "first")
    assert hocket("send", id, "and now?").returncode == 0
    wait_for(hocket, id, "turn.ended", lambda data: data["result"] == "second")
    assert came_back(hocket, id) == [(False, "You have started no runs.")] * 2
    assert hocket("stop", id).returncode == 0


def test_a_failed_hand_off_is_an_error_to_the_agent(
    claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path
) -> None:
    agent("failing", "import sys; print('half of it'); sys.exit(3)")
    (home / "config.toml").write_text('[agents.failing]\npath = "failing"\n')
    claude.use_script({"do": [calls("hand_off", agent="failing", prompt="Try."), {"say": "too bad"}]})
    told = run(hocket, "claude", "-p", "hello", timeout=PATIENCE)
    assert told.ended["result"] == "too bad"
    assert came_back(hocket, told.leaf) == [(True, "failed (exit)\n\nhalf of it")]


def test_a_list_of_permissions_keeps_none_of_our_tools_away(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text('[agents.reader]\npath = "claude"\nallowed_tools = "Read"\n')
    claude.use_script({"do": [calls("status"), {"say": "fine"}]})
    told = run(hocket, "reader", "-p", "hello", timeout=PATIENCE)
    assert {tool["name"] for tool in claude.model.bodies[0]["tools"]} == {"Read", *rules()}
    assert came_back(hocket, told.leaf) == [(False, "You have started no runs.")]


@pytest.mark.parametrize(
    ("tools", "expected"),
    [("Read, mcp__hocket__hand_off", {"mcp__hocket__hand_off"}), ("Read, mcp__hocket", set(rules()))],
)
def test_a_definition_with_tools_has_those_of_ours_that_it_names(
    claude: ClaudeSetup, hocket: Hocket, tools: str, expected: set[str]
) -> None:
    define(hocket.cwd, "narrow", tools=tools)
    claude.use_script({"do": [{"say": "fine"}]})
    assert run(hocket, "narrow", "-p", "hello", timeout=PATIENCE).code == 0
    assert offered(claude) == expected


def test_the_tool_for_handing_over_is_at_hand_where_others_have_to_be_looked_for(
    claude: ClaudeSetup, hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.use_script({"do": [calls("status"), {"say": "fine"}]})
    monkeypatch.setenv("ENABLE_TOOL_SEARCH", "true")
    told = run(hocket, "claude", "-p", "hello", timeout=PATIENCE)
    assert offered(claude) == {"mcp__hocket__hand_off"}
    assert came_back(hocket, told.leaf) == [(False, "You have started no runs.")]


def test_users_switch_it_off(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text("[claude]\nmcp = false\n")
    claude.use_script({"do": [{"say": "fine"}]})
    assert run(hocket, "claude", "-p", "hello", timeout=PATIENCE).code == 0
    assert offered(claude) == set()


def test_a_server_of_a_trusted_folder_with_our_name_does_not_take_our_place(
    claude: ClaudeSetup, hocket: Hocket, home: Path
) -> None:
    theirs = {"command": "/bin/sh", "args": ["-c", f"touch {hocket.cwd}/theirs"]}
    (hocket.cwd / ".mcp.json").write_text(json.dumps({"mcpServers": {"hocket": theirs}}))
    define(hocket.cwd, "listing", allowedMcpServers="[hocket]")
    trust(home, hocket.cwd)
    claude.use_script({"do": [{"say": "fine"}]})
    assert run(hocket, "listing", "-p", "hello", timeout=PATIENCE).code == 0
    assert (offered(claude), (hocket.cwd / "theirs").exists()) == (set(rules()), False)


def test_nothing_of_ours_is_left_in_the_users_files(claude: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    claude.use_script({"do": [calls("status"), {"say": "fine"}]})
    assert run(hocket, "claude", "-p", "hello", timeout=PATIENCE).code == 0
    written = [path for path in (world / "user").rglob("*") if path.is_file() and path.suffix in (".json", ".toml")]
    assert not [path for path in written if '"hocket"' in path.read_text(errors="replace")]
    assert not (hocket.cwd / ".mcp.json").exists()


def test_an_agent_asks_and_goes_on_with_the_answer(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script({"do": [calls("ask", question="Which colour?"), {"say": "thank you"}]})
    id = spawn(hocket, "claude", "-p", "hello")
    wait_for(hocket, id, "question")
    assert hocket("answer", id, "green").returncode == 0
    code, ended = waited(hocket, id)
    assert (code, ended["result"]) == (0, "thank you")
    assert came_back(hocket, id) == [(False, "green")]


def test_an_agent_that_stays_is_talked_to_and_each_turn_is_waited_for(scripted: ClaudeSetup, hocket: Hocket) -> None:
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


def test_all_tools_have_been_thought_about() -> None:
    assert set(TOOLS) == {"list_agents", "hand_off", "spawn", "wait", "status", "send", "stop", "ask"}
