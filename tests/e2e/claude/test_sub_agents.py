"""Sub-agents, and the turns that they cause, with both implementations."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, bash, message
from e2e.commands import data_of, run, spawn, wait_for
from world import Hocket

pytestmark = pytest.mark.shared_server

SCOUT = {"type": "general-purpose", "prompt": "look around", "description": "scout"}
LOOKS = {
    "when": {"agent": "general-purpose"},
    "do": [{"say": "looking"}, bash("echo hi", "hi"), {"say": "nothing there"}],
}


@pytest.mark.req("S2-58", "S2-61")
def test_background_agent_wakes_lead_for_another_turn(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(
        LOOKS,
        {"when": {"woken": True}, "do": [{"say": "it came back"}]},
        {"do": [{"agent": {**SCOUT, "background": True}}, {"say": "meanwhile"}]},
    )
    output = run(hocket, "claude", "-p", "go")
    assert (*output.outcome, output.ended["result"]) == (0, "done", "single_run", "it came back")
    turns = output.of("turn.ended")
    assert [turn["result"] for turn in turns] == ["meanwhile", "it came back"]
    assert [bool(turn["origin"]) for turn in turns] == [False, True]
    (lead,) = (data for data in output.of("tool.started") if data["name"] == "Agent")
    members = output.of("member")
    assert {data["tool"] for data in members} == {lead["id"]}
    assert (members[0]["status"], members[0]["background"]) == ("started", True)
    assert members[-1]["status"] == "completed"
    inner = [data for data in output.of("tool.started") if "parent" in data]
    assert [(data["name"], data["parent"], data["agent"]) for data in inner] == [("Bash", lead["id"], SCOUT["type"])]
    spoken = [data["text"] for data in output.of("text") if data.get("parent") == lead["id"]]
    assert spoken == ["looking", "nothing there"]


def test_foreground_agent_belongs_to_turn_of_lead(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(LOOKS, {"do": [{"say": "go"}, {"agent": SCOUT}, {"say": "all seen"}]})
    output = run(hocket, "claude", "-p", "go")
    assert (*output.outcome, output.ended["result"]) == (0, "done", "single_run", "all seen")
    (lead,) = (data for data in output.of("tool.started") if data["name"] == "Agent")
    assert {data["status"] for data in output.of("member")} >= {"started", "completed"}
    assert [data["parent"] for data in output.of("tool.started") if data["name"] == "Bash"] == [lead["id"]]
    assert [data["text"] for data in output.of("text") if "parent" not in data] == ["go", "all seen"]
    by_helper = {"parent": lead["id"], "agent": SCOUT["type"]}
    assert [data for data in output.of("text") if "parent" in data] == [
        {"text": "looking", **by_helper},
        {"text": "nothing there", **by_helper},
    ]
    assert len(output.of("turn.ended")) == 1
    logged = [line[9:] for line in hocket("logs", output.leaf).stdout.splitlines()]
    assert logged[-7:] == [
        "claude Agent: scout",
        "claude/general-purpose started: scout",
        "claude/general-purpose looking",
        "claude/general-purpose Bash: echo hi",
        "claude/general-purpose nothing there",
        "claude/general-purpose completed",
        "claude all seen",
    ]


@pytest.mark.req("S5-46")
@pytest.mark.parametrize("teams", [True, False])
def test_named_agents_and_lead_exchange_messages(
    claude: ClaudeSetup, hocket: Hocket, world: Path, monkeypatch: pytest.MonkeyPatch, teams: bool
) -> None:
    """Without a terminal the CLI has no team, but background agents with names, also if teams are switched on."""
    if teams:
        monkeypatch.setenv("CLAUDE_CODE_EXPERIMENTAL_AGENT_TEAMS", "1")
    told = world / "told"
    alice, bob = ({**SCOUT, "name": name, "prompt": f"help, {name}", "background": True} for name in ("alice", "bob"))
    builds = [message("main", "walls stand"), {"wait": {"file": str(told)}}, {"say": "built"}]
    claude.use_script(
        {"when": {"prompt": "go"}, "do": [{"tools": [{"agent": alice}, {"agent": bob}]}, {"say": "both started"}]},
        {"when": {"prompt": "walls stand"}, "do": [message("alice", "paint them"), {"say": "told alice"}]},
        {"when": {"prompt": "are they blue"}, "do": [{"say": "they are"}]},
        {"when": {"agent": "alice", "prompt": "paint them"}, "do": [{"say": "painted"}]},
        {"when": {"agent": "alice"}, "do": builds},
        {"when": {"agent": "bob"}, "do": [{"wait": {"file": str(told)}}, {"say": "watched"}]},
        {"when": {"woken": True}, "do": [{"say": "noted"}]},
    )
    run_id = spawn(hocket, "claude", "--session", "-p", "go", "--", "--permission-mode", "bypassPermissions")
    wait_for(hocket, run_id, "turn.ended", lambda data: data["result"] == "told alice")
    told.touch()
    wait_for(hocket, run_id, "member", lambda data: data["text"] == "painted")
    wait_for(hocket, run_id, "turn.ended", lambda data: data["result"] == "noted" and data["idle"])
    assert hocket("send", run_id, "are they blue?", "--wait").stdout == "they are\n"
    first, second = (data["id"] for data in data_of(hocket, run_id, "tool.started") if data["name"] == "Agent")
    messages = [data for data in data_of(hocket, run_id, "tool.started") if data["name"] == "SendMessage"]
    assert [(data.get("parent"), data["input"]["message"]) for data in messages] == [
        (first, "walls stand"),
        (None, "paint them"),
    ]
    members = data_of(hocket, run_id, "member")
    assert [data["text"] for data in members if data["status"] == "completed" and data["tool"] == first] == [
        "built",
        "painted",
    ]
    assert [data["text"] for data in members if data["status"] == "completed" and data["tool"] == second] == ["watched"]
    turns = data_of(hocket, run_id, "turn.ended")
    assert [
        (turn["result"], turn["origin"]) for turn in turns if turn["result"] != "" and turn["result"] != "noted"
    ] == [
        ("both started", None),
        ("told alice", "peer"),
        ("they are", None),
    ]
    assert {turn["origin"] for turn in turns if turn["result"] == "noted"} == {"task-notification"}
    assert claude.model.uncovered == []


@pytest.mark.req("S1-44")
def test_sub_agent_marker_does_not_end_loop(cli: ClaudeSetup, hocket: Hocket) -> None:
    """Neither the text of a sub-agent counts, nor that of one inside of it, nor their reports."""
    inner = {"agent": {**SCOUT, "prompt": "look inside"}}
    cli.use_script(
        {"when": {"prompt": "look inside"}, "do": ["marker"]},
        {"when": {"prompt": "look around"}, "do": [inner, "marker"]},
        {"do": [{"agent": SCOUT}, {"say": "not yet"}]},
    )
    output = run(hocket, "claude:2", "-p", "go")
    assert output.outcome == (1, "failed", "max_iterations")
    assert (output.ended["result"], output.of("marker")) == ("not yet", [])
    said = [data["text"] for data in output.of("text") if "parent" in data]
    assert said == ["FORKHESTRA_COMPLETE"] * 4
    assert len({data["parent"] for data in output.of("text") if "parent" in data}) == 4
