"""What an agent finds in its environment, which servers it has, and messages within its family: with the real CLI."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, bash, define, says
from e2e.commands import data_of, run, shown, spawn, wait_for, waited
from patience import PATIENCE
from world import Bin, Hocket

HAIKU = "claude-haiku-4-5-20251001"
PRINTING = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
ID = "cut -d '\"' -f 4"
"""Filters the id out of what ``spawn --json`` prints."""
FREE = '[claude]\npermission_mode = "bypassPermissions"\n'


def configure(home: Path, text: str = "") -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(FREE + text)


def found(path: Path) -> dict[str, str]:
    """The variables that a process wrote down of those that Hocket sets, and what the CLI adds."""
    kept = ("AGENT_", "CLAUDE_", "MAX_THINKING", "HOCKET_RUN")
    return {name: value for name, value in json.loads(path.read_text()).items() if name.startswith(kept)}


@pytest.mark.req("S3-12", "S3-13", "S3-15", "S3-42", "S3-43", "S3-44", "S3-45", "S3-46")
def test_family_of_agents_knows_its_variables(
    claude: ClaudeSetup, hocket: Hocket, agent: Bin, home: Path, project: Path
) -> None:
    configure(home, '[agents.show]\npath = "show"\n')
    show = agent("show", PRINTING)
    (Path.home() / ".claude").mkdir()
    (Path.home() / ".claude/settings.json").write_text('{"outputStyle": "Explanatory"}')
    head = {"model": "HAIKU", "thinkingBudget": "2048", "allowedAgents": "[worker]", "allowedMcpServers": "[]"}
    define(Path.home(), "lead", **head)
    define(Path.home(), "worker")
    claude.use_script(
        {
            "when": {"agent": "lead"},
            "do": [
                bash(f"{show} lead.json && hocket wait $(hocket spawn worker -p 'dig here' --json | {ID})"),
                {"say": "the end"},
            ],
        },
        {
            "when": {"agent": "worker"},
            "do": [bash(f"{show} worker.json && hocket run show -p no -- program.json"), {"say": "dug"}],
        },
    )  # fmt: skip
    told = run(hocket, "lead", "-p", "look around", timeout=PATIENCE)
    assert told.outcome == (0, "done", "single_run"), told.of("tool.finished")

    lead, worker, program = (run for run in hocket.runs() if run["kind"] == "leaf")
    seen = {name: found(project / f"{name}.json") for name in ("lead", "worker", "program")}
    assert (
        seen["lead"].items()
        >= {
            "CLAUDE_AGENT_ID": lead["id"],
            "CLAUDE_AGENT_DEPTH": "0",
            "AGENT_PROMPT": "look around",
            "AGENT_CWD": str(project),
            "AGENT_OUTPUT_STYLE": "Explanatory",
            "AGENT_MODEL": HAIKU,
            "CLAUDE_RUNNER_MODEL": HAIKU,
            "AGENT_THINKING_BUDGET": "2048",
            "MAX_THINKING_TOKENS": "2048",
            "AGENT_ALLOWED_AGENTS": '["worker"]',
            "AGENT_MCP_SERVERS": "[]",
            "CLAUDE_PID": str(lead["pid"]),
        }.items()
    )
    assert not {"CLAUDE_PARENT_PID", "AGENT_PROMPT_FILE"} & seen["lead"].keys()
    assert (
        seen["worker"].items()
        >= {
            "CLAUDE_AGENT_ID": worker["id"],
            "CLAUDE_AGENT_DEPTH": "1",
            "CLAUDE_PARENT_PID": str(lead["pid"]),
            "AGENT_PROMPT": "dig here",
            "AGENT_MODEL": HAIKU,
            "AGENT_ALLOWED_AGENTS": "null",
            "AGENT_MCP_SERVERS": "null",
        }.items()
    )
    assert not {"AGENT_THINKING_BUDGET", "MAX_THINKING_TOKENS"} & seen["worker"].keys()
    assert (
        seen["program"].items()
        >= {
            "CLAUDE_AGENT_ID": program["id"],
            "CLAUDE_AGENT_DEPTH": "2",
            "CLAUDE_PARENT_PID": str(worker["pid"]),
            "AGENT_PROMPT": "no",
            "AGENT_CWD": str(project),
        }.items()
    )
    assert not {"CLAUDE_PID", "CLAUDE_CODE_SESSION_ID"} & seen["program"].keys()
    assert [(one["depth"], one["parent"] is None) for one in (lead, worker)] == [(0, False), (1, False)]

    (thinking, *_) = (body["thinking"] for body in claude.model.bodies if body["model"] == HAIKU)
    assert (thinking["type"], thinking["budget_tokens"]) == ("enabled", 2048)


# --- Servers ------------------------------------------------------------------------------------------------


SERVER = """
import json, pathlib, sys
name, file = sys.argv[1:]
pathlib.Path(file).write_text(name)
for line in sys.stdin:
    asked = json.loads(line)
    method, result = asked.get("method"), {}
    if method == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": name, "version": "1"}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "description": "d", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "answer of " + name}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.req("S3-08", "S3-54", "S3-55")
def test_cli_gets_only_listed_servers(
    claude: ClaudeSetup, hocket: Hocket, home: Path, project: Path, world: Path
) -> None:
    program = world / "server.py"
    program.write_text(SERVER)

    def server(name: str) -> dict[str, Any]:
        return {"command": sys.executable, "args": [str(program), name, str(world / f"started-{name}")]}

    inner = project / "inner"
    inner.mkdir()
    (project / ".git").mkdir()
    configure(home, f'[trust]\nfolders = ["{project}"]\n')
    users = {"both": server("of_user"), "mine": server("mine"), "other": server("other")}
    (Path.home() / ".claude.json").write_text(json.dumps({"mcpServers": users}))
    (project / ".mcp.json").write_text('{"mcpServers": {"broken": ')
    (inner / ".mcp.json").write_text(json.dumps({"mcpServers": {"both": server("of_project"), "free": server("free")}}))
    define(inner, "picky", allowedMcpServers="[both, mine, gone]")
    call = {"tool": {"name": "mcp__both__of_project", "input": {}}}
    claude.use_script({"when": {"agent": "picky"}, "do": [call, {"say": "the end"}]})

    told = run(hocket, "picky", "-p", "go", cwd=inner, timeout=PATIENCE)
    assert (*told.outcome, told.of("tool.finished")[0]["text"]) == (0, "done", "single_run", "answer of of_project")
    offered = {tool["name"] for tool in claude.model.last["tools"] if tool["name"].startswith("mcp__")}
    assert offered == {"mcp__both__of_project", "mcp__mine__mine"}
    assert {path.name for path in world.glob("started-*")} == {"started-of_project", "started-mine"}
    notices = [data["text"] for data in told.of("notice")]
    assert any(text.startswith(f"{project}/.mcp.json: ") and text.endswith("are ignored") for text in notices)
    assert "no MCP server 'gone' is known here; picky has none" in notices


# --- Messages within a family -------------------------------------------------------------------------------


def test_family_exchanges_messages_when_other_sessions_are_refused(
    claude: ClaudeSetup, hocket: Hocket, home: Path
) -> None:
    configure(home, 'cross_session = "refuse"\n')
    define(Path.home(), "lead")
    define(Path.home(), "worker")
    claude.use_script(
        says("an apple came", agent="lead", prompt="APPLE"),
        {
            "when": {"agent": "lead", "prompt": "begin"},
            "do": [
                bash(f"printenv HOCKET_RUN > lead; hocket spawn worker --session -p hello --json | {ID} > worker"),
                {"say": "waiting"},
            ],
        },
        {
            "when": {"agent": "lead", "prompt": "now you"},
            "do": [bash("hocket send $(cat worker) ORANGE"), {"say": "sent"}],
        },
        {
            "when": {"agent": "worker", "prompt": "ORANGE"},
            "do": [bash("hocket send $(cat lead) APPLE"), {"say": "an orange came"}],
        },
        says("hello", agent="worker"),
    )
    lead = spawn(hocket, "lead", "-p", "begin", "--session")
    wait_for(hocket, lead, "turn.ended", lambda data: data["result"] == "waiting")
    worker = hocket.runs()[-1]["id"]
    assert hocket("send", lead, "now you").returncode == 0
    wait_for(hocket, worker, "turn.ended", lambda data: data["result"] == "an orange came")
    assert [data["text"] for data in data_of(hocket, worker, "input")] == ["ORANGE"]
    wait_for(hocket, lead, "turn.ended", lambda data: data["result"] == "an apple came")
    number = shown(hocket, worker)["number"]
    (*_, message) = [data["text"] for data in data_of(hocket, lead, "input") if data["kind"] == "message"]
    assert message == f"Message from run {number} (worker), which was started below you:\n\nAPPLE"
    assert hocket("stop", lead).returncode == 0
    assert waited(hocket, worker)[1]["status"] == "stopped"
