"""Sub-agents, and the turns that they cause, with both implementations."""

from __future__ import annotations

import pytest
from e2e.claude.setup import ClaudeSetup, bash
from e2e.commands import run
from world import Hocket

pytestmark = pytest.mark.shared_server

SCOUT = {"type": "general-purpose", "prompt": "look around", "description": "scout"}
LOOKS = {
    "when": {"agent": "general-purpose"},
    "do": [{"say": "looking"}, bash("echo hi", "hi"), {"say": "nothing there"}],
}


@pytest.mark.req("S2-58", "S2-61")
def test_a_background_agent_wakes_its_lead_and_the_last_result_counts(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(
        LOOKS,
        {"when": {"woken": True}, "do": [{"say": "it came back"}]},
        {"do": [{"agent": {**SCOUT, "background": True}}, {"say": "meanwhile"}]},
    )
    told = run(hocket, "claude", "-p", "go")
    assert (*told.outcome, told.ended["result"]) == (0, "done", "single_run", "it came back")
    turns = told.of("turn.ended")
    assert [turn["result"] for turn in turns] == ["meanwhile", "it came back"]
    assert [bool(turn["origin"]) for turn in turns] == [False, True]
    (lead,) = (data for data in told.of("tool.started") if data["name"] == "Agent")
    members = told.of("member")
    assert {data["tool"] for data in members} == {lead["id"]}
    assert (members[0]["status"], members[0]["background"]) == ("started", True)
    assert members[-1]["status"] == "completed"
    inner = [data for data in told.of("tool.started") if "parent" in data]
    assert [(data["name"], data["parent"], data["agent"]) for data in inner] == [("Bash", lead["id"], SCOUT["type"])]
    spoken = [data["text"] for data in told.of("text") if data.get("parent") == lead["id"]]
    assert spoken == ["looking", "nothing there"]


def test_a_foreground_agent_belongs_to_the_turn_of_its_lead(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script(LOOKS, {"do": [{"say": "go"}, {"agent": SCOUT}, {"say": "all seen"}]})
    told = run(hocket, "claude", "-p", "go")
    assert (*told.outcome, told.ended["result"]) == (0, "done", "single_run", "all seen")
    (lead,) = (data for data in told.of("tool.started") if data["name"] == "Agent")
    assert {data["status"] for data in told.of("member")} >= {"started", "completed"}
    assert [data["parent"] for data in told.of("tool.started") if data["name"] == "Bash"] == [lead["id"]]
    assert [data["text"] for data in told.of("text") if "parent" not in data] == ["go", "all seen"]
    assert len(told.of("turn.ended")) == 1
