"""A whole task with the real CLI: an orchestrator hands off its parts and gets only final messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, Document, bash
from e2e.commands import data_of, shown
from patience import PATIENCE
from world import Hocket

pytestmark = [pytest.mark.shared_server, pytest.mark.timeout(120)]


def by(name: str, *do: Document) -> Document:
    """A rule for one of the five default agents of Hocket."""
    return {"when": {"system": f"You are the {name}"}, "do": list(do)}


def new_task(hocket: Hocket, description: str = "Say hello in a file") -> str:
    done = hocket("task", "new", description, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def task_of(hocket: Hocket, task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hocket("task", "show", task, "--json").stdout)
    return found


@pytest.mark.req(
    "S2-54", "S2-56", "S2-57", "S2-58", "S2-62", "S2-63", "S2-64", "S2-72", "S2-76", "S2-77", "S2-78", "S2-79"
)
def test_orchestrator_hands_off_with_hocket_command(claude: ClaudeSetup, hocket: Hocket) -> None:
    """Through Bash, as its instructions say; only the PATH that Hocket sets contains `hocket`."""
    target = hocket.cwd / "hello.txt"
    write = {"tool": {"name": "Write", "input": {"file_path": str(target), "content": "hello\n"}}}
    claude.use_script(
        by("orchestrator", bash('hocket handoff planner "Plan \\"it\\""'), bash("hocket handoff developer 'Do $it'"),
           {"say": "planned and done"}),
        by("planner", {"say": "let me see"}, bash("true"), {"say": "THE-PLAN"}),
        by("developer", {"say": "thinking aloud"}, write, {"say": "THE-WORK"}),
    )  # fmt: skip
    task = new_task(hocket)
    done = hocket("handoff", task, "orchestrator", "Lead it.", timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "planned and done\n"), done.stderr
    assert target.read_text() == "hello\n"
    after = task_of(hocket, task)
    assert [(one["agentName"], one["status"], one["output"]) for one in after["agentChain"]] == [
        ("orchestrator", "done", "planned and done"),
        ("planner", "done", "THE-PLAN"),
        ("developer", "done", "THE-WORK"),
    ]
    assert (after["currentAgent"], after["status"]["type"]) == (None, "waiting")
    lead, planner, developer = (shown(hocket, one["run"]) for one in after["agentChain"])
    assert [one["parent"] for one in (planner, developer)] == [lead["id"]] * 2
    assert {one["task"] for one in (lead, planner, developer)} == {task}
    back = [data["text"].strip() for data in data_of(hocket, lead["id"], "tool.finished")]
    assert {"THE-PLAN", "THE-WORK"} <= set(back)
    heard = json.dumps([body["messages"] for body in claude.model.bodies if is_by(body, "orchestrator")])
    assert "THE-WORK" in heard
    assert "thinking aloud" not in heard, "only the final message goes back"
    assert [prompt_of(one) for one in (planner, developer)] == ['Plan "it"', "Do $it"]
    offered = {
        name: {tool["name"] for tool in body["tools"] if not tool["name"].startswith("mcp__")}
        for body in claude.model.bodies
        for name in ("orchestrator", "developer")
        if is_by(body, name)
    }
    assert "Edit" not in offered["orchestrator"]
    assert {"Edit", "Write", "Bash"} <= offered["developer"]


def prompt_of(run: dict[str, Any]) -> str:
    """The first line of a run's own input."""
    line = json.loads((Path(run["dir"]) / "in").read_bytes().split(b"\n")[0])
    return str(json.loads(line["data"])["message"]["content"])


def is_by(body: Any, name: str) -> bool:
    return f"You are the {name}" in json.dumps(body["system"])


@pytest.mark.req("S2-67", "S2-73")
def test_failed_hand_off_is_reported_to_caller(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(
        by("orchestrator", bash("hocket handoff developer 'Do it'"), {"say": "told"}),
        by("developer", {"fail": {"status": 400, "message": "no such luck"}}),
    )
    task = new_task(hocket)
    done = hocket("handoff", task, "orchestrator", "Lead it.", timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr
    lead, failed = task_of(hocket, task)["agentChain"]
    assert (lead["status"], failed["status"], failed["reason"]) == ("done", "failed", "error")
    assert failed["output"].startswith("failed (error)")
    (back,) = (data for data in data_of(hocket, lead["run"], "tool.finished") if "no such luck" in data["text"])
    assert back["error"]
    assert "Exit code 1" in back["text"]
