"""Definitions that run with another CLI than Claude's, and CLIs that are missing. Scripts play the CLIs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.commands import run, run_output, shown, spawn, waited
from scripted_cursor import install_cursor
from world import Bin, Hocket

from hocket.providers import PROVIDERS
from hocket.rehearsal import install

pytestmark = pytest.mark.shared_server

MODELS = '[models]\n"gpt-*" = "cursor"\n'
WHAT_IT_GOT = {"say": "turn {turn} of {model}: {prompt}"}


def define(project: Path, name: str = "reviewer", head: str = "model: gpt-5\n") -> Path:
    path = project / ".claude/agents" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: d\n{head}---\nYou are the {name}.\n", encoding="utf-8")
    return path


@pytest.mark.req("S3-18", "S3-19")
def test_model_selects_the_cli_of_each_step(
    hocket: Hocket, agent: Bin, home: Path, project: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = world / "script.json"
    script.write_text(json.dumps({"rules": [{"do": [{"say": "the plan"}]}]}), encoding="utf-8")
    monkeypatch.setenv("HOCKET_CLAUDE", str(install(world / "scripted", script, world / "state")))
    install_cursor(agent, WHAT_IT_GOT)
    (home / "config.toml").write_text(MODELS)
    define(project, "planner", "model: sonnet\n")
    define(project)
    output = run(hocket, "planner -> reviewer", "-p", "{{previous.result}}")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    leaves = [shown(hocket, step["runs"][0]) for step in output.ended["steps"]]
    assert [(one["agent"], one["provider"]) for one in leaves] == [("planner", "claude"), ("reviewer", "cursor")]
    assert output.ended["result"] == "turn 1 of gpt-5: You are the reviewer.\n\n# Task\n\nthe plan"


@pytest.mark.req("S3-19")
def test_resumed_session_keeps_its_cli_and_model(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    install_cursor(agent, WHAT_IT_GOT)
    (home / "config.toml").write_text(MODELS)
    define(project)
    first = spawn(hocket, "reviewer", "-p", "begin")
    assert waited(hocket, first)[1]["result"].startswith("turn 1 of gpt-5: You are the reviewer.")
    # The session keeps its CLI and model, even if the configuration has changed.
    (home / "config.toml").write_text('[models]\n"gpt-*" = "codex"\n')
    done = hocket("resume", first, "-p", "go on", "--json")
    output = run_output(done.returncode, done.stdout, done.stderr)
    assert output.outcome == (0, "done", "exit"), output.stderr
    assert output.ended["result"] == "turn 2 of gpt-5: go on"
    assert (shown(hocket, output.root)["provider"], shown(hocket, output.root)["resumed_from"]) == ("cursor", first)


def test_withdrawn_approval_of_another_cli_ends_its_sessions(hocket: Hocket, agent: Bin, project: Path) -> None:
    install_cursor(agent, WHAT_IT_GOT)
    path = define(project, head="runtime: cursor\n")
    refused = hocket("run", "reviewer", "-p", "go")
    assert (refused.returncode, "another CLI (runtime: cursor)" in refused.stderr) == (4, True)
    assert hocket.runs() == []
    assert hocket("trust", path, "--yes").returncode == 0
    first = spawn(hocket, "reviewer", "-p", "begin")
    assert waited(hocket, first)[0] == 0
    assert hocket("trust", "--remove", path).returncode == 0
    assert hocket("resume", first, "-p", "go on").returncode == 4


def test_model_without_a_cli_starts_nothing(hocket: Hocket, project: Path) -> None:
    define(project)
    done = hocket("run", "reviewer", "-p", "go")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no model 'gpt-5'" in done.stderr
    assert '[models] "gpt-5" = "codex" or "cursor"' in done.stderr
    assert hocket.runs() == []


def test_unreported_cost_is_shown_as_unknown(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    install_cursor(agent, WHAT_IT_GOT)
    (home / "config.toml").write_text(MODELS)
    define(project, "auditor")
    done = hocket("run", "auditor", "-p", "go")
    number = hocket.number()
    listed = [line for line in hocket("ps", "-a").stdout.splitlines() if " auditor " in line]
    assert listed
    texts = [done.stderr, hocket("show", number).stdout, *listed]
    assert [text for text in texts if "$0" in text or "0 tokens" in text or " tok" in text] == []
    for one in (*json.loads(hocket("ps", "-a", "--json").stdout), shown(hocket, number)):
        if Path(one["cwd"]) == project:
            assert (one["cost_usd"], one["tokens"]) == (None, None)
    assert shown(hocket, hocket.number(2))["transcript"] is None


@pytest.mark.in_process
def test_agents_and_doctor_show_cli_of_definition(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    path = define(project, "auditor")
    listed = json.loads(hocket("agents", "auditor", "--json").stdout)
    assert (listed["provider"], listed["runtime"]) == (None, None)
    assert "has no model 'gpt-5'" in hocket("agents", "auditor").stdout
    done = hocket("doctor")
    assert (done.returncode, f"auditor cannot run: {listed['problem']}" in done.stdout) == (1, True)
    config = home / "config.toml"
    config.write_text(MODELS)
    assert "auditor cannot run: 'auditor' needs the Cursor CLI" in hocket("doctor").stdout
    install_cursor(agent, WHAT_IT_GOT)
    listed = json.loads(hocket("agents", "auditor", "--json").stdout)
    reason = f"model gpt-5, by [models] in {config}"
    assert (listed["provider"], listed["runtime"], listed["problem"]) == (
        "cursor",
        f"the Cursor CLI ({reason})",
        None,
    )
    assert "the Cursor CLI (model gpt-5" in hocket("agents", "auditor").stdout
    assert "definitions that can run here: 1 with cursor" in hocket("doctor").stdout
    planned = hocket("run", "auditor", "-p", "go", "--dry-run", "--json")
    assert [(step["provider"], step["definition"]) for step in json.loads(planned.stdout)] == [("cursor", str(path))]
    assert "runtime  cursor" in hocket("run", "auditor", "-p", "go", "--dry-run").stdout


@pytest.mark.in_process
@pytest.mark.req("S3-16")
def test_agents_show_that_a_required_model_is_missing(hocket: Hocket, agent: Bin, home: Path, project: Path) -> None:
    agent("claude", "")
    path = define(project, "auditor", "")
    (home / "config.toml").write_text("[spawn]\nrequire_model = true\n")
    problem = f"auditor has no model in {path}, and [spawn] require_model is set"
    listed = json.loads(hocket("agents", "auditor", "--json").stdout)
    assert (listed["provider"], listed["problem"]) == ("claude", problem)
    assert json.loads(hocket("agents", "auditor", "--why", "--json").stdout)["problem"] == problem
    assert hocket("agents", "auditor", env={"CLAUDE_RUNNER_MODEL": "opus"}).stdout.count("refused") == 0


@pytest.mark.in_process
def test_doctor_names_further_definitions_without_a_cli(hocket: Hocket, project: Path) -> None:
    for name in ("auditor", "clerk"):
        define(project, name, "runtime: pascal\n")
    assert "; 1 more cannot run: clerk\n" in hocket("doctor").stdout


# --- Missing programs ---

NAMES = {provider.program.name: provider.program for provider in PROVIDERS.values() if provider.program}


@pytest.mark.req("S3-59")
@pytest.mark.parametrize("name", NAMES)
def test_missing_cli_is_refused_with_install_hint(hocket: Hocket, agent: Bin, project: Path, name: str) -> None:
    agent("planner", "open('ran', 'w')")
    done = hocket("run", f"planner -> {name}", "-p", "go")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{NAMES[name].label}, which was not found: no program '{name}' on PATH" in done.stderr
    assert NAMES[name].install in done.stderr
    assert not (project / "ran").exists()
    assert hocket.runs() == []


@pytest.mark.req("S3-38", "S3-59")
@pytest.mark.parametrize("name", NAMES)
def test_removed_cli_fails_with_install_hint(hocket: Hocket, agent: Bin, name: str) -> None:
    path = agent(name, "pass")
    agent("thief", f"import os; os.unlink({str(path)!r})")
    output = run(hocket, f"thief -> {name}", "-p", "go")
    assert output.outcome == (1, "failed", "start_failed"), output.stderr
    leaf = shown(hocket, output.ended["steps"][1]["runs"][0])
    assert (leaf["status"], leaf["reason"], leaf["exit_code"]) == ("failed", "start_failed", 127)
    assert leaf["error"].startswith(f"ENOENT: {path}; {NAMES[name].label} is missing: {NAMES[name].install}")
