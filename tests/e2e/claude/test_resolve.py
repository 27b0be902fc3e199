"""Which definition a name or a path means, where the agent works, and what it gets. Mostly both implementations."""

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
    """Another project than the one that the caller is in."""
    path = world / "other"
    path.mkdir()
    return path


def works_in(told: Any) -> str:
    """Where the agent itself says it is."""
    return str(told.of("session")[0]["cwd"])


def test_a_project_s_agent_wins_over_the_user_s(
    scripted: ClaudeSetup, hocket: Hocket, project: Path, other: Path
) -> None:
    define(project, "helper", body="You are agent: helper. Serve the PROJECT.")
    define(Path.home(), "helper", body="You are agent: helper. Serve the USER.")
    scripted.use_script(
        says("the project's", agent="helper", system="Serve the PROJECT."),
        says("the user's", agent="helper", system="Serve the USER."),
    )
    # It takes the place of the user's own, so the user has to say yes to it first.
    assert hocket("trust", "--yes", "helper").returncode == 0
    assert run(hocket, "helper", "-p", "hello").ended["result"] == "the project's"
    elsewhere = run(hocket, "helper", "-p", "hello", cwd=other)
    assert (elsewhere.ended["result"], works_in(elsewhere)) == ("the user's", str(other))


def test_of_duplicate_files_the_one_that_claude_takes_runs(claude: ClaudeSetup, hocket: Hocket, project: Path) -> None:
    files = [
        define(project, f"h{number}", name="helper", body=f"You are agent: helper. File {number}.")
        for number in range(5)
    ]
    *_, last = os.listdir(files[0].parent)
    claude.use_script(*(says(path.name, agent="helper", system=f"File {number}.") for number, path in enumerate(files)))
    assert run(hocket, "helper", "-p", "hello").ended["result"] == last


@pytest.mark.req("S1-06", "S1-07", "S1-25")
def test_an_agent_is_known_by_its_real_name_and_by_the_path_of_its_file(scripted: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "file_name", name="real-name")
    scripted.use_script(says("it is me", agent="real-name"))
    for text in ("real-name", "./.claude/agents/file_name.md"):
        told = run(hocket, text, "-p", "hello")
        assert (told.step["agent"], told.ended["result"]) == (text, "it is me")


@pytest.mark.req("S1-01", "S1-03", "S1-04", "S1-05", "S1-08", "S1-52")
def test_an_agent_of_another_project_works_there(claude: ClaudeSetup, hocket: Hocket, other: Path) -> None:
    define(other, "test-agent")
    claude.use_script({**PWD, "when": {"agent": "test-agent"}})
    told = run(hocket, other / ".claude/agents/test-agent.md", "-p", "where are you?")
    assert (*told.outcome, told.of("tool.finished")[0]["text"]) == (0, "done", "single_run", str(other))
    (hocket.cwd / "hocket.toml").write_text(f'[agents.away]\npath = "{other}/.claude/agents/test-agent"\n')
    by_alias = run(hocket, "away", "-p", "where are you?")
    assert (by_alias.step["agent"], by_alias.of("tool.finished")[0]["text"]) == ("away", str(other))


@pytest.mark.req("S1-13", "S1-14", "S1-15", "S1-16", "S1-18")
def test_the_last_of_nested_agent_folders_counts(cli: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    inner = world / "outer/.claude/agents/inner"
    inner.mkdir(parents=True)
    define(inner, "deep")
    cli.use_script({**PWD, "when": {"agent": "deep"}})
    told = run(hocket, "../outer/.claude/agents/inner/.claude/agents/deep", "-p", "where are you?")
    assert (*told.outcome, works_in(told)) == (0, "done", "single_run", str(inner))
    assert shown(hocket, told.leaf)["cwd"] == str(inner)


@pytest.mark.req("S1-22")
def test_an_unknown_agent_is_refused_before_anything_starts(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "planner")
    define(hocket.cwd, "builder")
    claude.use_script(says("never"))
    for text in ("./.claude/agents/nobody", "planner -> ./.claude/agents/nobody:3"):
        refused = refusal(hocket, text)
        assert "--agent 'nobody' not found" in refused
        assert "Available agents: builder, planner" in refused
    assert (hocket.runs(), claude.model.bodies) == ([], [])


def refusal(hocket: Hocket, *args: str) -> str:
    """What is said about a chain that cannot be run."""
    refused = hocket("run", "-p", "hello", "--json", *args)
    assert (refused.returncode, refused.stdout) == (2, "")
    return refused.stderr


@pytest.mark.req("S1-19", "S1-20", "S1-21")
def test_a_path_that_names_no_agent_is_an_error_and_never_a_program(claude: ClaudeSetup, hocket: Hocket) -> None:
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


def test_a_bad_definition_is_refused_with_its_file_and_the_reason(claude: ClaudeSetup, hocket: Hocket) -> None:
    file = define(hocket.cwd, "broken")
    claude.use_script(says("never"))
    for called, content, reason in BAD:
        file.write_text(content)
        refused = refusal(hocket, called)
        assert str(file) in refused
        assert reason in refused
    assert claude.model.bodies == []


@pytest.mark.req("S1-06")
def test_a_file_without_a_head_runs_when_its_path_is_given(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "plain").write_text("You are agent: plain.\n")
    claude.use_script(says("all of it was read", agent="plain", system="You are agent: plain."))
    assert run(hocket, "./.claude/agents/plain", "-p", "hello").ended["result"] == "all of it was read"


@pytest.mark.req("S1-04", "S1-14", "S1-48")
@pytest.mark.own_server
def test_a_dry_run_shows_the_command_and_the_directory_and_starts_nothing(
    claude: ClaudeSetup, hocket: Hocket, other: Path
) -> None:
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


# --- What it is given ---------------------------------------------------------------------------------------


def tools_in(body: Any) -> list[str]:
    return [tool["name"] for tool in body["tools"]]


@pytest.mark.req("S2-56", "S2-62", "S2-63", "S2-64", "S2-65", "S2-66", "S3-15")
def test_what_an_alias_says_reaches_the_model_and_decides_about_tools(
    claude: ClaudeSetup, hocket: Hocket, home: Path
) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(
        '[agents.careful]\npath = "claude"\nmodel = "claude-haiku-4-5-20251001"\npermission_mode = "default"\n'
        'allowed_tools = "Bash(sh yes.sh *) Bash(printenv *) Read(*)"\n'
    )
    (hocket.cwd / "yes.sh").write_text("echo $AGENT_MODEL $1 > yes\n")
    (hocket.cwd / "no.sh").write_text("echo > no\n")
    claude.use_script({"do": [bash("sh yes.sh ';touch injected'"), bash("sh no.sh"), {"say": "the end"}]})
    told = run(hocket, "careful", "-p", "hello")
    assert told.outcome == (0, "done", "single_run")
    assert sorted(name for name in tools_in(claude.model.last) if not name.startswith("mcp__")) == ["Bash", "Read"]
    assert claude.model.last["model"] == "claude-haiku-4-5-20251001"
    assert told.of("session")[0]["permission_mode"] == "default"
    assert (hocket.cwd / "yes").read_text() == "claude-haiku-4-5-20251001 ;touch injected\n"
    assert [(hocket.cwd / name).exists() for name in ("no", "injected")] == [False, False]
    assert [data["error"] for data in told.of("tool.finished")] == [False, True]


@pytest.mark.req("S3-15")
def test_the_caller_s_model_is_used_where_nothing_else_names_one(claude: ClaudeSetup, hocket: Hocket) -> None:
    claude.use_script(says("fine"))
    told = run(hocket, "claude", "-p", "hello", env={"CLAUDE_RUNNER_MODEL": "claude-sonnet-4-5-20250929"})
    assert (told.code, claude.model.last["model"]) == (0, "claude-sonnet-4-5-20250929")


def test_a_definition_s_own_model_tools_and_text_reach_the_model(claude: ClaudeSetup, hocket: Hocket) -> None:
    define(hocket.cwd, "narrow", model="claude-haiku-4-5-20251001", tools="Read, Grep")
    claude.use_script(says("fine", agent="narrow"))
    assert run(hocket, "narrow", "-p", "hello").ended["result"] == "fine"
    assert (sorted(tools_in(claude.model.last)), claude.model.last["model"]) == (
        ["Grep", "Read"],
        "claude-haiku-4-5-20251001",
    )
    assert "You are agent: narrow." in json.dumps(claude.model.last["system"])
