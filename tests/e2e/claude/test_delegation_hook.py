"""Calls of sub-agents become runs where a definition or the configuration asks for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, Document, bash, define, real_cli, says
from e2e.commands import data_of, shown, spawn, waited
from patience import PATIENCE
from world import Hocket

pytestmark = pytest.mark.shared_server

REVIEWER = says("reviewed it", agent="reviewer")


def calls(agent: str, prompt: str = "Review it.") -> Document:
    given = {"subagent_type": agent, "prompt": prompt, "description": "a call", "run_in_background": False}
    return {"tool": {"name": "Agent", "input": given}}


def lead(*steps: Document) -> Document:
    return {"when": {"agent": "lead"}, "do": [*steps, {"say": "all is done"}]}


def results(hocket: Hocket, run: str) -> list[tuple[bool, str]]:
    """The results of the tool calls of a run, as (is an error, text)."""
    return [(data["error"], data["text"]) for data in data_of(hocket, run, "tool.finished")]


def next_number(hocket: Hocket) -> int:
    """The number of the next run on this server, which no other test uses at the same time."""
    return 1 + max((int(run["number"]) for run in json.loads(hocket("ps", "-a", "--json").stdout)), default=0)


def model_of(claude: ClaudeSetup, agent: str) -> str:
    """The model that an agent's first request names."""
    bodies = (body for body in claude.model.bodies if f"agent: {agent}" in json.dumps(body.get("system")))
    return str(next(bodies)["model"])


@pytest.mark.req("S3-01", "S3-05", "S3-08", "S3-20")
def test_call_becomes_a_run_with_its_own_definition(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    hooks = {"PreToolUse": [{"matcher": "", "hooks": [{"type": "command", "command": f"touch {project}/theirs"}]}]}
    define(project, "lead", delegate="hocket", allowedAgents="reviewer")
    path = define(project, "reviewer", model="claude-opus-4-8", permissionMode="plan")
    (project / ".claude/settings.json").write_text(json.dumps({"hooks": hooks}))
    wait = {"tool": {"name": "mcp__hocket__wait", "input": {"run": str(next_number(hocket) + 1)}}}
    claude.use_script(lead(bash("echo untouched"), calls("reviewer"), wait), REVIEWER)
    parent = spawn(hocket, "lead", "-p", "hello")
    code, ended = waited(hocket, parent)
    assert (code, ended["result"]) == (0, "all is done")
    child = shown(hocket, hocket.runs()[-1]["id"])
    assert (child["agent"], child["parent"], child["depth"]) == ("reviewer", parent, 1)
    assert (child["definition"], child["prompt"]) == (str(path), "Review it.")
    assert model_of(claude, "reviewer") == "claude-opus-4-8" != model_of(claude, "lead")
    untouched, denial, message = results(hocket, parent)
    assert (untouched, message) == ((False, "untouched"), (False, "reviewed it"))
    assert not denial[0], "a started run is no failure in the log"
    assert f'call the tool mcp__hocket__wait with run "{child["id"]}"' in denial[1]
    assert data_of(hocket, parent, "member") == []
    assert not (project / "theirs").exists()


@pytest.mark.req("S3-04", "S3-56", "S3-58")
def test_refused_call_is_denied_and_starts_nothing(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    define(project, "lead", delegate="hocket", allowedAgents="reviewer, nosuch")
    define(project, "builder")
    claude.use_script(lead(calls("builder"), calls("lead"), calls("nosuch")), says("never", agent="builder"))
    parent = spawn(hocket, "lead", "-p", "hello")
    assert waited(hocket, parent)[1]["result"] == "all is done"
    builder, itself, unknown = results(hocket, parent)
    for (is_error, text), name in ((builder, "builder"), (itself, "lead")):
        assert is_error
        assert f"(not_allowed): run {hocket.number()} (lead) may not start '{name}'. Allowed agents: reviewer" in text
    assert unknown[0]
    users = Path(hocket.cwd.parent / "user/.claude")
    assert "no agent 'nosuch'" in unknown[1]
    assert f".claude/agents of the project, {users}/agents and {users}/agents-library" in unknown[1]
    assert [run["id"] for run in hocket.runs()] == [parent]


@pytest.mark.own_server
@pytest.mark.req("S3-57")
def test_call_beyond_the_depth_limit_is_denied(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text('[claude]\ndelegate = "hocket"\n[limits]\ndepth = 0\n')
    define(hocket.cwd, "lead")
    define(hocket.cwd, "reviewer")
    claude.use_script(lead(calls("reviewer")), REVIEWER)
    parent = spawn(hocket, "lead", "-p", "hello")
    assert waited(hocket, parent)[1]["result"] == "all is done"
    ((is_error, text),) = results(hocket, parent)
    assert (is_error, "Hocket did not start reviewer (limit): depth" in text) == (True, True)
    assert len(hocket.runs()) == 1


def test_call_stays_with_cli_without_delegation(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "lead")
    claude.use_script(lead(calls("general-purpose")), {"when": {"agent": "general-purpose"}, "do": [{"say": "looked"}]})
    parent = spawn(hocket, "lead", "-p", "hello")
    assert waited(hocket, parent)[1]["result"] == "all is done"
    ((is_error, text),) = results(hocket, parent)
    assert (is_error, "looked" in text) == (False, True)
    assert data_of(hocket, parent, "member")[-1]["status"] == "completed"
    assert len(hocket.runs()) == 1


# --- Sessions of the user's own -----------------------------------------------------------------------------


def own_session(hocket: Hocket, *words: str) -> str:
    """The final output of a Claude session of the user, whose settings contain the hook."""
    assert hocket("setup", "claude", "--write", "--yes").returncode == 0
    argv = [str(real_cli()), "-p", "hello", *words]
    done = subprocess.run(argv, cwd=hocket.cwd, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout.strip()


def tool_results(claude: ClaudeSetup, agent: str) -> list[str]:
    """The tool results in the last request of an agent."""
    bodies = [body for body in claude.model.bodies if f"agent: {agent}" in json.dumps(body.get("system"))]
    parts = [
        part
        for message in bodies[-1]["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return [str(part["content"]) for part in parts if part["type"] == "tool_result"]


@pytest.mark.req("S3-01", "S3-56")
def test_own_session_limits_permissions_of_its_runs(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    (home / "config.toml").write_text('[claude]\ndelegate = "hocket"\npermission_mode = "acceptEdits"\n')
    define(hocket.cwd, "lead", allowedAgents="reviewer, true")
    define(hocket.cwd, "reviewer")
    define(hocket.cwd, "builder")
    claude.use_script(lead(calls("reviewer"), calls("builder"), calls("true")), REVIEWER)
    assert own_session(hocket, "--agent", "lead", "--permission-mode", "default") == "all is done"
    started, builder, program = tool_results(claude, "lead")
    (run,) = hocket.runs()
    assert f'with run "{run["id"]}"' in started
    assert "may not start 'builder'. Allowed agents: reviewer, true" in builder
    assert "may not start 'true': it is a plain program" in program
    assert (run["agent"], run["parent"], run["depth"], run["cwd"]) == ("reviewer", None, 0, str(hocket.cwd))
    created = data_of(hocket, run["id"], "run.created")[0]
    assert f"session {created['caller_session'][:8]} (lead) may not start" in builder
    assert created["caller_pid"] > 0
    argv = json.loads((Path(shown(hocket, run["id"])["dir"]) / "spec.json").read_text())["argv"]
    assert argv[argv.index("--permission-mode") + 1] == "default"
    assert waited(hocket, run["id"])[1]["result"] == "reviewed it"


@pytest.mark.own_server
def test_own_session_keeps_sub_agents_without_delegation(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(
        {"when": {"agent": "general-purpose"}, "do": [{"say": "looked"}]},
        {"do": [calls("general-purpose"), {"say": "all is done"}]},
    )
    assert own_session(hocket) == "all is done"
    assert "looked" in claude.model.request_text()
    assert json.loads(hocket("server", "status", "--json").stdout)["running"] is False
