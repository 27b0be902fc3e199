"""Claude in chains and loops, with both implementations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.claude.setup import ClaudeSetup, define, says
from e2e.commands import run, shown
from world import Bin, Hocket

from hocket.model import DEFAULT_MARKER

pytestmark = pytest.mark.shared_server

DONE = [{"say": "now"}, "marker"]


@pytest.mark.req("S1-40", "S1-43", "S1-45", "S1-51")
def test_loop_ends_at_custom_marker(cli: ClaudeSetup, hocket: Hocket) -> None:
    cli.use_script({"when": {"pass": 2}, "do": DONE}, says("not yet"))
    output = run(hocket, "claude:5", "-p", "go", "--marker", "ALL_OF_IT_DONE")
    assert output.outcome == (0, "done", "marker")
    step = output.step
    assert (step["iterations"], step["max_iterations"], step["reason"]) == (2, 5, "marker")
    assert [data["line"] for data in output.of("marker")] == ["ALL_OF_IT_DONE"]
    assert output.ended["result"] == "now\nALL_OF_IT_DONE"
    assert len({shown(hocket, leaf)["session_id"] for leaf in step["runs"]}) == 2
    if cli.is_real:
        assert "ALL_OF_IT_DONE" in json.dumps(cli.model.last["system"])


@pytest.mark.req("S1-42")
def test_marker_in_definition_ends_loop_without_contract(claude: ClaudeSetup, hocket: Hocket) -> None:
    (hocket.cwd / "hocket.toml").write_text("[claude]\ncontract = false\n")
    define(hocket.cwd, "worker", body="You are agent: worker. When all is done write:\nFORKHESTRA_COMPLETE\n")
    claude.use_script({"when": {"agent": "worker"}, "do": DONE})
    output = run(hocket, "worker:3", "-p", "go")
    assert (*output.outcome, output.step["iterations"]) == (0, "done", "marker", 1)
    assert json.dumps(claude.model.last["system"]).count("FORKHESTRA_COMPLETE") == 1


def test_marker_in_prompt_or_tool_result_is_ignored(scripted: ClaudeSetup, hocket: Hocket) -> None:
    (hocket.cwd / "notes").write_text("FORKHESTRA_COMPLETE\n")
    read = {"name": "Read", "input": {"file_path": str(hocket.cwd / "notes")}, "result": "FORKHESTRA_COMPLETE"}
    scripted.use_script({"do": [{"tool": read}, {"say": "I read about FORKHESTRA_COMPLETE."}]})
    output = run(hocket, "claude:1", "-p", "write\nFORKHESTRA_COMPLETE\nwhen done")
    assert (*output.outcome, output.of("marker")) == (1, "failed", "max_iterations", [])


@pytest.mark.req("S1-23", "S1-24", "S1-25", "S1-26", "S1-46", "S1-51")
def test_mixed_chain_runs_steps_in_their_directories(cli: ClaudeSetup, hocket: Hocket, agent: Bin, world: Path) -> None:
    one, two = world / "one", world / "two"
    define(one, "reviewer")
    define(two, "fixer")
    agent("builder", "import os; print('built in', os.getcwd())")
    cli.use_script({"when": {"agent": "reviewer"}, "do": DONE}, {"when": {"agent": "fixer"}, "do": DONE})
    chain = f"{one}/.claude/agents/reviewer:3 -> builder -> ../two/.claude/agents/fixer:5"
    output = run(hocket, chain, "-p", "go")
    assert output.outcome == (0, "done", "marker")
    assert output.step_reasons == ["marker", "single_run", "marker"]
    leaves = [shown(hocket, step["runs"][0]) for step in output.ended["steps"]]
    assert [leaf["cwd"] for leaf in leaves] == [str(one), str(hocket.cwd), str(two)]
    assert leaves[1]["result"] == f"built in {hocket.cwd}\n"
    assert [data["cwd"] for data in output.of("session") if "cwd" in data] == [str(one), str(two)]


@pytest.mark.req("S1-26")
def test_chain_cost_is_sum_of_steps(scripted: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    define(world / "one", "planner")
    define(world / "two", "worker")
    scripted.use_script(
        {"when": {"agent": "planner"}, "do": [{"cost": 0.25}, {"usage": {"output": 500}}, {"say": "planned"}]},
        {"when": {"agent": "worker"}, "do": [{"cost": 0.5}, {"usage": {"output": 900}}, *DONE]},
    )
    output = run(hocket, "../one/.claude/agents/planner -> ../two/.claude/agents/worker:10", "-p", "go")
    costs = [shown(hocket, step["runs"][0])["cost_usd"] for step in output.ended["steps"]]
    assert (output.code, 0 < costs[0] < costs[1]) == (0, True)
    assert output.ended["cost_usd"] == pytest.approx(sum(costs))
    assert output.ended["tokens"] == 10 + 500 + 10 + 900


@pytest.mark.req("S1-05", "S1-23", "S1-25", "S1-40", "S1-51", "S1-52")
def test_agent_of_other_project_loops_in_its_directory(scripted: ClaudeSetup, hocket: Hocket, world: Path) -> None:
    define(world / "other", "reviewer")
    scripted.use_script({"when": {"agent": "reviewer", "pass": 2}, "do": DONE}, says("not yet", agent="reviewer"))
    output = run(hocket, "../other/.claude/agents/reviewer.md:5", "-p", "go")
    assert output.outcome == (0, "done", "marker")
    assert (output.step["iterations"], output.step["max_iterations"]) == (2, 5)
    assert [shown(hocket, leaf)["cwd"] for leaf in output.step["runs"]] == [str(world / "other")] * 2
    assert [shown(hocket, leaf)["result"] for leaf in output.step["runs"]] == ["not yet", f"now\n{DEFAULT_MARKER}"]


@pytest.mark.req("S1-24", "S1-31", "S1-46", "S1-52")
def test_named_chain_mixes_project_agents_and_programs(
    scripted: ClaudeSetup, hocket: Hocket, agent: Bin, world: Path
) -> None:
    define(world / "other", "reviewer")
    agent("builder", "import os; print('built in', os.getcwd())")
    (hocket.cwd / "forge").mkdir()
    steps = [{"agent": "strict", "iterations": 3}, {"agent": "builder"}]
    config = {"agents": {"strict": {"path": "../other/.claude/agents/reviewer"}}, "chains": {"both": {"steps": steps}}}
    (hocket.cwd / "forge/chains.json").write_text(json.dumps(config))
    scripted.use_script({"when": {"agent": "reviewer", "pass": 2}, "do": DONE}, says("not yet", agent="reviewer"))
    output = run(hocket, "--chain", "both", "-p", "go")
    assert output.outcome == (0, "done", "single_run")
    assert [(step["agent"], step["reason"], step["iterations"]) for step in output.ended["steps"]] == [
        ("strict", "marker", 2),
        ("builder", "single_run", 1),
    ]
    places = [shown(hocket, leaf)["cwd"] for step in output.ended["steps"] for leaf in step["runs"]]
    assert places == [str(world / "other"), str(world / "other"), str(hocket.cwd)]


@pytest.mark.req("S1-44")
def test_marker_counts_only_alone_in_code_block(scripted: ClaudeSetup, hocket: Hocket) -> None:
    quoted = f"At the end I shall run:\n\n```sh\nmake\necho done\n{DEFAULT_MARKER}\n```\n"
    said = f"Done.\n\n```\n{DEFAULT_MARKER}\n```\n"
    scripted.use_script(says(said, **{"pass": 2}), says(quoted))
    output = run(hocket, "claude:4", "-p", "go")
    assert (*output.outcome, output.step["iterations"]) == (0, "done", "marker", 2)
    assert [data["line"] for data in output.of("marker")] == [DEFAULT_MARKER]


def test_group_runs_in_parallel_before_next_step(
    scripted: ClaudeSetup, hocket: Hocket, agent: Bin, world: Path
) -> None:
    define(world / "one", "reviewer")
    define(world / "two", "qa")
    agent("builder", "print('built')")
    scripted.use_script(
        {"when": {"agent": "reviewer"}, "do": [{"say": "reviewed"}]},
        {"when": {"agent": "qa", "pass": 2}, "do": DONE},
        says("not yet", agent="qa"),
    )
    output = run(hocket, "(../one/.claude/agents/reviewer, ../two/.claude/agents/qa:3) -> builder", "-p", "go")
    assert output.outcome == (0, "done", "single_run")
    steps = output.ended["steps"]
    assert [(step["reason"], step["iterations"]) for step in steps] == [
        ("single_run", 1),
        ("marker", 2),
        ("single_run", 1),
    ]
    leaves = [[shown(hocket, leaf) for leaf in step["runs"]] for step in steps]
    (reviewer,), (first, second), (builder,) = leaves
    assert [leaf["cwd"] for leaf in (reviewer, first, builder)] == [
        str(world / "one"),
        str(world / "two"),
        str(hocket.cwd),
    ]
    (began,) = (
        event["seq"] for event in output.events if (event["type"], event["run"]) == ("run.created", first["id"])
    )
    (over,) = (
        event["seq"] for event in output.events if (event["type"], event["run"]) == ("run.ended", reviewer["id"])
    )
    assert began < over, "the members of a group do not wait for one another"
    assert builder["started_at"] >= max(reviewer["ended_at"], second["ended_at"])


def test_gate_output_is_in_next_prompt(claude: ClaudeSetup, hocket: Hocket) -> None:
    gate = "echo pass >> tries; [ $(wc -l < tries) -ge 2 ] || { echo test_of_everything FAILED; exit 1; }"
    claude.use_script({"do": DONE})
    output = run(hocket, "claude:3", "-p", "go", "--until", gate)
    assert (*output.outcome, output.step["iterations"]) == (0, "done", "marker", 2)
    assert "test_of_everything FAILED" in claude.model.request_text()
    assert "test_of_everything FAILED" not in json.dumps(claude.model.bodies[0])
