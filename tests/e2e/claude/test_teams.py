"""Teams of the real CLI: a lead in a terminal, its teammates, their shared tasks and messages, from start to stop."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, Document, bash, message
from e2e.claude.test_trust import set_traps
from e2e.commands import data_of, server_pid, shown, spawn, wait_for
from patience import PATIENCE
from world import Hocket, processes_of

LEAD = "claude"


# --- Scripts ------------------------------------------------------------------------------------------------


def creates(subject: str) -> Document:
    return {"tool": {"name": "TaskCreate", "input": {"subject": subject, "description": f"do it: {subject}"}}}


def starts(name: str, prompt: str) -> Document:
    return {"agent": {"name": name, "description": f"{name} helps", "prompt": prompt, "background": True}}


def works_on(task: str, owner: str) -> Document:
    return {"tool": {"name": "TaskUpdate", "input": {"taskId": task, "status": "in_progress", "owner": owner}}}


def completes(task: str) -> Document:
    return {"tool": {"name": "TaskUpdate", "input": {"taskId": task, "status": "completed"}}}


def asks_to_end(name: str) -> Document:
    wish = {"type": "shutdown_request", "reason": "all is done"}
    return {"tool": {"name": "SendMessage", "input": {"to": name, "message": wish}}}


AGREES_TO_END: Document = {
    "tool": {
        "name": "SendMessage",
        "echo": {
            "to": "team-lead",
            "message": {"type": "shutdown_response", "request_id": "{request_id}", "approve": True},
        },
    }
}


def rule(agent: str, prompt: str, *do: Document) -> Document:
    return {"when": {"agent": agent, "prompt": prompt}, "do": list(do)}


def until(path: Path) -> Document:
    """A step that lasts until the test creates this file."""
    return {"wait": {"file": str(path)}}


def house(gates: Path) -> list[Document]:
    """A house with walls, a roof and paint, built by two teammates as far as the test lets them."""
    tasks = [creates(subject) for subject in ("walls", "roof", "paint")]
    team = [starts("alice", "Take task 1."), starts("bob", "Take task 2.")]
    return [
        rule(LEAD, "Build a house", *tasks, {"tools": team}, {"say": "both are at work"}),
        rule(LEAD, "the walls stand", message("alice", "paint them"), {"say": "told alice"}),
        rule(LEAD, "How far are you", {"say": "the walls are there"}),
        rule(LEAD, "Let alice go", asks_to_end("alice"), {"say": "asked alice"}),
        rule("alice", "shutdown_request", AGREES_TO_END),
        rule("alice", "paint them", works_on("3", "alice"), until(gates / "painted"), completes("3"), {"say": "blue"}),
        rule(
            "alice",
            "Take task 1",
            works_on("1", "alice"),
            until(gates / "walls"),
            completes("1"),
            message("team-lead", "the walls stand"),
            {"say": "built"},
        ),
        rule("bob", "Take task 2", works_on("2", "bob"), until(gates / "roof"), completes("2"), {"say": "covered"}),
    ]


# --- What is visible ----------------------------------------------------------------------------------------


def wait_task(hocket: Hocket, lead: str, task: str, status: str) -> dict[str, Any]:
    data: dict[str, Any] = wait_for(
        hocket, lead, "task.changed", lambda data: (data["id"], data["status"]) == (task, status)
    )["data"]
    return data


def wait_member(hocket: Hocket, lead: str, name: str, status: str) -> dict[str, Any]:
    data: dict[str, Any] = wait_for(
        hocket, lead, "member", lambda data: (data.get("name"), data["status"]) == (name, status)
    )["data"]
    return data


def wait_message(hocket: Hocket, lead: str, sender: str, receiver: str, fits: Callable[[dict[str, Any]], bool]) -> None:
    wait_for(hocket, lead, "message", lambda data: (data["from"], data["to"]) == (sender, receiver) and fits(data))


def team_of(hocket: Hocket, lead: str) -> dict[str, Any]:
    """What the command shows: ``teammates`` and ``tasks``."""
    done = hocket("team", lead, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def states(hocket: Hocket, lead: str) -> dict[str, list[str]]:
    """The states of each task, one after another. That the CLI deletes tasks once all are done is a matter of time."""
    found: dict[str, dict[str, None]] = {}
    for data in data_of(hocket, lead, "task.changed"):
        found.setdefault(data["subject"], {})[data["status"]] = None
    return {subject: [one for one in seen if one != "deleted"] for subject, seen in found.items()}


def files_of_teams_become(names: set[str]) -> bool:
    """Poll for what lies in the folders of the CLI for teams and tasks: they are cleaned up after the end of a lead."""
    folders = [Path.home() / ".claude" / folder for folder in ("teams", "tasks")]
    deadline = time.monotonic() + PATIENCE
    while (found := {entry.name for folder in folders for entry in folder.glob("*")}) != names:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return found == names


def start_house(claude: ClaudeSetup, hocket: Hocket, gates: Path) -> str:
    """A lead whose teammates have begun."""
    claude.use_team(*house(gates))
    lead = spawn(hocket, "claude", "--team", "-p", "Build a house")
    wait_task(hocket, lead, "1", "in_progress")
    wait_task(hocket, lead, "2", "in_progress")
    return lead


# --- The tests ----------------------------------------------------------------------------------------------


@pytest.mark.req("S5-01", "S5-05", "S5-08", "S5-09", "S5-19", "S5-20", "S5-21", "S5-24", "S5-27", "S5-37", "S5-38")
def test_team_is_visible_from_start_to_stop(claude: ClaudeSetup, hocket: Hocket, home: Path, world: Path) -> None:
    lead = start_house(claude, hocket, world)
    begun = shown(hocket, lead)
    assert (begun["kind"], begun["open_tasks"]) == ("lead", 3)
    alice, bob = (wait_member(hocket, lead, name, "started") for name in ("alice", "bob"))
    assert alice["id"].startswith("alice@session-")
    assert {one["name"] for one in team_of(hocket, lead)["teammates"]} == {"alice", "bob"}

    told = hocket("team", alice["run"]).stderr
    assert f"is a teammate of run {begun['number']}: hocket team {begun['number']}" in told

    (world / "walls").touch()
    began = time.monotonic()
    wait_message(hocket, lead, "alice", "team-lead", lambda data: data["text"] == "the walls stand")
    print(f"a message was visible {time.monotonic() - began:.1f} s after what it reports")  # 2 s on a machine at rest
    wait_message(hocket, lead, "team-lead", "alice", lambda data: data["text"] == "paint them")
    wait_task(hocket, lead, "3", "in_progress")

    os.kill(server_pid(hocket), signal.SIGKILL)
    (world / "roof").touch()
    asked = hocket("send", lead, "How far are you?", "--wait")
    assert (asked.returncode, asked.stdout) == (0, "the walls are there\n")
    assert shown(hocket, lead)["pid"] == begun["pid"]
    wait_task(hocket, lead, "2", "completed")
    wait_member(hocket, lead, "bob", "idle")

    (world / "painted").touch()
    assert wait_task(hocket, lead, "3", "completed")["open"] == 0
    assert hocket("send", lead, "Let alice go", "--wait").returncode == 0
    wait_message(hocket, lead, "team-lead", "alice", lambda data: data["kind"] == "shutdown_request")
    wait_member(hocket, lead, "alice", "stopped")

    assert hocket("stop", lead).returncode == 0
    ended = shown(hocket, lead)
    assert (ended["status"], ended["reason"]) == ("stopped", "stopped")
    mates = [shown(hocket, one["run"]) for one in (alice, bob)]
    assert [(mate["agent"], mate["parent"]) for mate in mates] == [("alice", lead), ("bob", lead)]
    assert [mate["status"] for mate in mates] == ["done", "stopped"], "alice agreed to end, bob ended with the lead"
    done = ["pending", "in_progress", "completed"]
    assert states(hocket, lead) == {"walls": done, "roof": done, "paint": done}
    messages = [data["id"] for data in data_of(hocket, lead, "message")]
    assert len(messages) == len(set(messages))
    assert files_of_teams_become(set())
    assert not [words for words in processes_of(home).values() if "session-id" in words]
    assert claude.model.uncovered == []


@pytest.mark.req("S5-23")
def test_leads_of_one_user_have_separate_teams(claude: ClaudeSetup, hocket: Hocket) -> None:
    helper = {"when": {"agent": "alice"}, "do": [{"say": "here"}]}
    claude.use_team(
        helper,
        *(rule(LEAD, one, creates(one), starts("alice", one), {"say": one}) for one in ("north", "south")),
    )
    leads = {one: spawn(hocket, "claude", "--team", "-p", one) for one in ("north", "south")}
    members = {one: wait_member(hocket, lead, "alice", "idle") for one, lead in leads.items()}
    assert members["north"]["id"] != members["south"]["id"]
    for one, lead in leads.items():
        assert states(hocket, lead) == {one: ["pending"]}
        assert [mate["agent_id"] for mate in team_of(hocket, lead)["teammates"]] == [members[one]["id"]]
    assert hocket("stop", leads["north"]).returncode == 0
    assert files_of_teams_become({members["south"]["team"]})
    assert [mate["status"] for mate in team_of(hocket, leads["south"])["teammates"]] == ["idle"]


def accept_at_terminal(keys: Path, made: Path) -> bool:
    """Press enter as a person does, until the tool has made its file: the question is known before its dialog opens."""
    deadline = time.monotonic() + PATIENCE
    while not made.exists() and time.monotonic() < deadline:
        keys.write_bytes(b"\r")
        time.sleep(0.2)
    return made.exists()


@pytest.mark.req("S5-02")
def test_dialog_is_answered_from_inbox_or_terminal(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    hook, server = set_traps(project)
    first, second = project / "first", project / "second"
    claude.use_team({"do": [*(bash(f"sh -c 'echo x > {path}'") for path in (first, second)), {"say": "both written"}]})
    lead = spawn(hocket, "claude", "--team", "-p", "go", "--on-question", "ask")
    question = wait_for(hocket, lead, "question")["data"]
    assert (question["tool"], str(first) in question["input"]["command"]) == ("Bash", True)
    assert (shown(hocket, lead)["status"], first.exists()) == ("waiting", False)
    assert hocket("answer", lead, "allow").returncode == 0
    wait_for(hocket, lead, "question", lambda data: data["id"] != question["id"])
    assert (first.exists(), second.exists()) == (True, False)
    assert accept_at_terminal(Path(shown(hocket, lead)["dir"]) / "keys", second)
    assert wait_for(hocket, lead, "turn.ended")["data"]["result"] == "both written"
    assert (second.exists(), shown(hocket, lead)["questions"]) == (True, [])
    assert (hook.exists(), server.exists()) == (False, False), "the folder is not trusted"
