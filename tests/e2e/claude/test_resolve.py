"""How names and paths resolve to definitions, where agents run, and which settings they get."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from e2e.claude.setup import ClaudeSetup, bash, define, says
from e2e.commands import run, shown
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

PWD = {"do": [bash("pwd", "scripted"), {"say": "seen"}]}


@pytest.fixture
def other(world: Path) -> Path:
    """A project that is not the current directory."""
    path = world / "other"
    path.mkdir()
    return path


def works_in(output: Any) -> str:
    """The directory that the agent reports."""
    return str(output.of("session")[0]["cwd"])


def test_project_agent_precedes_user_agent(scripted: ClaudeSetup, hocket: Hocket, project: Path, other: Path) -> None:
    define(project, "helper", body="You are agent: helper. Serve the PROJECT.")
    define(Path.home(), "helper", body="You are agent: helper. Serve the USER.")
    scripted.use_script(
        says("the project's", agent="helper", system="Serve the PROJECT."),
        says("the user's", agent="helper", system="Serve the USER."),
    )
    # It replaces the user's own agent, so it needs an approval.
    assert hocket("trust", "--yes", "helper").returncode == 0
    assert run(hocket, "helper", "-p", "hello").ended["result"] == "the project's"
    elsewhere = run(hocket, "helper", "-p", "hello", cwd=other)
    assert (elsewhere.ended["result"], works_in(elsewhere)) == ("the user's", str(other))


def test_duplicate_definition_runs_as_by_cli(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    files = [
        define(project, f"h{number}", name="helper", body=f"You are agent: helper. File {number}.")
        for number in range(5)
    ]
    *_, last = os.listdir(files[0].parent)
    claude.use_script(*(says(path.name, agent="helper", system=f"File {number}.") for number, path in enumerate(files)))
    assert run(hocket, "helper", "-p", "hello").ended["result"] == last


@pytest.mark.req("S1-06", "S1-07", "S1-25")
def test_agent_is_found_by_name_and_path(scripted: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "file_name", name="real-name")
    scripted.use_script(says("it is me", agent="real-name"))
    for text in ("real-name", "./.claude/agents/file_name.md"):
        output = run(hocket, text, "-p", "hello")
        assert (output.step["agent"], output.ended["result"]) == (text, "it is me")


@pytest.mark.req("S1-01", "S1-03", "S1-04", "S1-05", "S1-08", "S1-52")
def test_agent_of_other_project_runs_in_its_directory(claude: ClaudeSetup, hocket: Hocket, other: Path) -> None:
    define(other, "test-agent")
    claude.use_script({**PWD, "when": {"agent": "test-agent"}})
    output = run(hocket, other / ".claude/agents/test-agent.md", "-p", "where are you?")
    assert (*output.outcome, output.of("tool.finished")[0]["text"]) == (0, "done", "single_run", str(other))
    (hocket.cwd / "hocket.toml").write_text(f'[agents.away]\npath = "{other}/.claude/agents/test-agent"\n')
    by_alias = run(hocket, "away", "-p", "where are you?")
    assert (by_alias.step["agent"], by_alias.of("tool.finished")[0]["text"]) == ("away", str(other))


@pytest.mark.req("S1-13", "S1-14", "S1-15", "S1-16", "S1-18")
def test_innermost_agents_folder_is_the_project(cli: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    inner = world / "outer/.claude/agents/inner"
    inner.mkdir(parents=True)
    define(inner, "deep")
    cli.use_script({**PWD, "when": {"agent": "deep"}})
    output = run(hocket, "../outer/.claude/agents/inner/.claude/agents/deep", "-p", "where are you?")
    assert (*output.outcome, works_in(output)) == (0, "done", "single_run", str(inner))
    assert shown(hocket, output.leaf)["cwd"] == str(inner)


@pytest.mark.req("S1-22")
def test_unknown_agent_is_refused_before_start(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "planner")
    define(hocket.cwd, "builder")
    claude.use_script(says("never"))
    for text in ("./.claude/agents/unknown", "planner -> ./.claude/agents/unknown:3"):
        refused = refusal(hocket, text)
        assert "--agent 'unknown' not found" in refused
        assert "Available agents: builder, planner" in refused
    assert (hocket.runs(), claude.model.bodies) == ([], [])


def refusal(hocket: Hocket, *args: str) -> str:
    """The message with which a chain is refused."""
    refused = hocket("run", "-p", "hello", "--json", *args)
    assert (refused.returncode, refused.stdout) == (2, "")
    return refused.stderr


@pytest.mark.req("S1-19", "S1-20", "S1-21")
def test_agent_path_never_resolves_to_program(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(says("never"))
    agents = hocket.cwd / ".claude/agents"
    (agents / "team").mkdir(parents=True)
    for name in ("team/member", "no.such.name"):
        Bin(agents)(name, "open('executed', 'w')")
        assert f"{name!r} is not a simple name" in refusal(hocket, f"./.claude/agents/{name}")
    missing = hocket.cwd / "missing"
    assert f"the project directory {missing} does not exist" in refusal(hocket, "missing/.claude/agents/planner")
    assert not (hocket.cwd / "executed").exists()


BAD = [
    ("broken", "You are an agent.\n", "broken.md:1 is not used: does not begin with"),
    ("broken", "---\nname: broken\n---\nYou are an agent.\n", "has no description"),
    ("./.claude/agents/broken.md", "---\nname: broken\ndescription: x\n", "line 1: "),
    ("./.claude/agents/broken", "---\nname: -x\ndescription: x\n---\nYou are an agent.\n", "begins with a dash"),
]


def test_bad_definition_is_refused_with_file_and_reason(claude: ClaudeSetup, hocket: Hocket) -> None:
    file = define(hocket.cwd, "broken")
    claude.use_script(says("never"))
    for called, content, reason in BAD:
        file.write_text(content)
        refused = refusal(hocket, called)
        assert str(file) in refused
        assert reason in refused
    assert claude.model.bodies == []


@pytest.mark.req("S1-06")
def test_definition_without_frontmatter_runs_by_path(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "plain").write_text("You are agent: plain.\n")
    claude.use_script(says("all of it was read", agent="plain", system="You are agent: plain."))
    assert run(hocket, "./.claude/agents/plain", "-p", "hello").ended["result"] == "all of it was read"


@pytest.mark.req("S1-04", "S1-14", "S1-48")
@pytest.mark.own_server
def test_dry_run_shows_command_and_starts_nothing(claude: ClaudeSetup, hocket: Hocket, other: Path) -> None:
    define(other, "reviewer")
    claude.use_script(says("never"))
    dry = hocket("run", f"{other}/.claude/agents/reviewer:2", "-p", "look", "--dry-run", "--json", "--", "--model", "x")
    (step,) = json.loads(dry.stdout)
    argv = step["argv"]
    assert argv[argv.index("--agent") + 1] == "reviewer"
    assert argv[-2:] == ["--model", "x"]
    assert (step["cwd"], step["prompt"], step["prompt_via"]) == (str(other), "look", "stdin")
    assert json.loads(hocket("server", "status", "--json").stdout)["running"] is False
    assert claude.model.bodies == []


# --- Settings -----------------------------------------------------------------------------------------------


def tools_in(body: Any) -> list[str]:
    return [tool["name"] for tool in body["tools"]]


@pytest.mark.req("S2-56", "S2-62", "S2-63", "S2-64", "S2-65", "S2-66", "S3-15")
def test_alias_sets_model_mode_and_allowed_tools(claude: ClaudeSetup, hocket: Hocket, home: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(
        '[agents.careful]\npath = "claude"\nmodel = "claude-haiku-4-5-20251001"\npermission_mode = "default"\n'
        'allowed_tools = "Bash(sh yes.sh *) Bash(printenv *) Read(*)"\n'
    )
    (hocket.cwd / "yes.sh").write_text("echo $AGENT_MODEL $1 > yes\n")
    (hocket.cwd / "no.sh").write_text("echo > no\n")
    claude.use_script({"do": [bash("sh yes.sh ';touch injected'"), bash("sh no.sh"), {"say": "the end"}]})
    output = run(hocket, "careful", "-p", "hello")
    assert output.outcome == (0, "done", "single_run")
    assert sorted(name for name in tools_in(claude.model.last) if not name.startswith("mcp__")) == ["Bash", "Read"]
    assert claude.model.last["model"] == "claude-haiku-4-5-20251001"
    assert output.of("session")[0]["permission_mode"] == "default"
    assert (hocket.cwd / "yes").read_text() == "claude-haiku-4-5-20251001 ;touch injected\n"
    assert [(hocket.cwd / name).exists() for name in ("no", "injected")] == [False, False]
    assert [data["error"] for data in output.of("tool.finished")] == [False, True]


@pytest.mark.req("S3-15")
def test_model_from_caller_environment_is_default(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(says("fine"))
    output = run(hocket, "claude", "-p", "hello", env={"CLAUDE_RUNNER_MODEL": "claude-sonnet-4-5-20250929"})
    assert (output.code, claude.model.last["model"]) == (0, "claude-sonnet-4-5-20250929")


def test_definition_sets_model_tools_and_instructions(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "narrow", model="claude-haiku-4-5-20251001", tools="Read, Grep")
    claude.use_script(says("fine", agent="narrow"))
    assert run(hocket, "narrow", "-p", "hello").ended["result"] == "fine"
    assert (sorted(tools_in(claude.model.last)), claude.model.last["model"]) == (
        ["Grep", "Read"],
        "claude-haiku-4-5-20251001",
    )
    assert "You are agent: narrow." in json.dumps(claude.model.last["system"])
