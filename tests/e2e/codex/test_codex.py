"""The real Codex CLI as an agent: alone, in chains beside other agents, resumed, failing and stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.codex.setup import KEY, CodexSetup, shell
from e2e.commands import data_of, make_gate, run, run_output, shown, spawn, waited
from world import Bin, Hocket, processes_of

from hocket.rehearsal import install

HELLO = {"do": [{"say": "hello there"}]}


def test_codex_run_succeeds(codex: CodexSetup, hocket: Hocket) -> None:
    codex.use_script(HELLO)
    output = run(hocket, "codex", "-p", "say hello")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert output.ended["result"] == "hello there"
    (session,) = output.of("session")
    leaf = shown(hocket, output.leaf)
    assert (leaf["provider"], leaf["session_id"]) == ("codex", session["session_id"])
    assert (leaf["tokens"], leaf["exit_code"]) == (30, 0)


def test_codex_tool_call_is_reported(codex: CodexSetup, hocket: Hocket, project: Path) -> None:
    codex.use_script({"do": [{"think": "hm"}, shell("echo made > made; cat made"), {"say": "it is made"}]})
    output = run(hocket, "codex", "-p", "make it")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert (project / "made").read_text() == "made\n"
    (started,), (finished,) = output.of("tool.started"), output.of("tool.finished")
    assert (started["name"], started["id"]) == ("command_execution", finished["id"])
    assert "cat made" in started["input"]["command"]
    assert (finished["text"], finished["error"]) == ("made\n", False)
    assert [one["text"] for one in output.of("thinking")] == ["hm"]


def test_codex_cannot_write_in_plan_mode(codex: CodexSetup, hocket: Hocket, project: Path) -> None:
    codex.use_script({"do": [shell("touch made"), {"say": "tried"}]})
    (project / "hocket.toml").write_text('[agents.reader]\npath = "codex"\npermission_mode = "plan"\n')
    output = run(hocket, "reader", "-p", "make it")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert not (project / "made").exists()


@pytest.mark.req("S3-19")
def test_codex_keeps_to_a_definition(codex: CodexSetup, hocket: Hocket, project: Path, home: Path) -> None:
    """The model selects the CLI, which gets the instructions, and a sandbox without writing for want of a tool."""
    system = {"system": "You are the reviewer."}
    codex.use_script({"when": system, "do": [shell("touch made"), {"say": "reviewed"}]}, {"do": [{"say": "who am I"}]})
    (home / "config.toml").write_text('[models]\n"scripted" = "codex"\n')
    (project / ".claude/agents").mkdir(parents=True)
    head = "name: reviewer\ndescription: d\nmodel: scripted\ntools: Read, Bash\n"
    (project / ".claude/agents/reviewer.md").write_text(f"---\n{head}---\nYou are the reviewer.\n")
    output = run(hocket, "reviewer", "-p", "review it")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert (output.ended["result"], shown(hocket, output.leaf)["provider"]) == ("reviewed", "codex")
    assert not (project / "made").exists()
    assert "Codex does not enforce tools" in output.of("notice")[0]["text"]


def test_resumed_codex_session_counts_only_new_tokens(codex: CodexSetup, hocket: Hocket) -> None:
    codex.use_script({"when": {"turn": 1}, "do": [{"say": "first"}]}, {"when": {"turn": 2}, "do": [{"say": "second"}]})
    first = spawn(hocket, "codex", "-p", "begin")
    assert waited(hocket, first)[0] == 0
    done = hocket("resume", first, "-p", "go on", "--json")
    output = run_output(done.returncode, done.stdout, done.stderr)
    assert output.outcome == (0, "done", "exit"), output.stderr
    ended = shown(hocket, output.root)
    assert (ended["result"], ended["tokens"]) == ("second", 30)
    assert ended["session_id"] == shown(hocket, first)["session_id"]


def test_codex_session_cannot_stay_open(codex: CodexSetup, hocket: Hocket) -> None:
    codex.use_script(HELLO)
    done = hocket("spawn", "codex", "-p", "begin", "--session")
    assert (done.returncode, "reads no messages" in done.stderr) == (2, True)
    first = spawn(hocket, "codex", "-p", "begin")
    assert waited(hocket, first)[0] == 0
    again = hocket("resume", first, "--session")
    assert (again.returncode, "reads no messages" in again.stderr) == (2, True)


def test_loop_of_codex_ends_at_its_marker(codex: CodexSetup, hocket: Hocket, agent: Bin) -> None:
    """The first iteration does not write the marker, the second does."""
    agent("planner", "print('the plan')")
    codex.use_script({"when": {"pass": 1}, "do": [{"say": "half done"}]}, {"do": [{"say": "all done"}, "marker"]})
    output = run(hocket, "planner -> codex:3", "-p", "build it")
    assert output.outcome == (0, "done", "marker"), output.stderr
    assert [(step["agent"], step["iterations"]) for step in output.ended["steps"]] == [("planner", 1), ("codex", 2)]
    assert [one["line"] for one in output.of("marker")] == ["FORKHESTRA_COMPLETE"]


def test_codex_works_beside_claude_in_one_chain(
    codex: CodexSetup, hocket: Hocket, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Claude said reaches Codex through the prompt."""
    script = world / "script.json"
    script.write_text(json.dumps({"rules": [{"do": [{"say": "the plan of claude"}]}]}), encoding="utf-8")
    monkeypatch.setenv("HOCKET_CLAUDE", str(install(world / "scripted", script, world / "state")))
    codex.use_script({"when": {"prompt": "the plan of claude"}, "do": [{"say": "built by codex"}, "marker"]})
    output = run(hocket, "claude -> codex:2", "-p", "{{previous.result}}")
    assert output.outcome == (0, "done", "marker"), output.stderr
    assert "built by codex" in output.ended["result"]


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "error"), (401, "error"), (429, "rate_limited")], ids=["invalid", "key", "limit"]
)
def test_codex_fails_when_the_model_refuses(codex: CodexSetup, hocket: Hocket, status: int, reason: str) -> None:
    codex.use_script({"do": [{"fail": {"status": status, "message": "out of order"}}]})
    run_id = spawn(hocket, "codex", "-p", "go")
    code, ended = waited(hocket, run_id)
    assert (code, ended["status"], ended["reason"]) == (1, "failed", reason)
    (turn,) = data_of(hocket, run_id, "turn.ended")
    assert (turn["is_error"], bool(turn["error"])) == (True, True)


def test_codex_fails_when_its_arguments_are_wrong(codex: CodexSetup, hocket: Hocket) -> None:
    codex.use_script(HELLO)
    output = run(hocket, "codex", "-p", "go", "--", "--no-such-flag")
    assert output.outcome == (1, "failed", "exit")
    assert "--no-such-flag" in json.dumps(output.events)


def test_stop_ends_codex_and_its_command(codex: CodexSetup, hocket: Hocket, project: Path, home: Path) -> None:
    gate = make_gate(project / "at_work")
    codex.use_script({"do": [shell("sh -c 'echo begun > at_work; sleep 300'"), {"say": "never said"}]})
    run_id = spawn(hocket, "codex", "-p", "go")
    assert gate.read_text() == "begun\n"
    assert "sleep 300" in " ".join(processes_of(home).values())
    stopped = json.loads(hocket("stop", run_id, "--json").stdout)
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])
    assert "sleep 300" not in " ".join(processes_of(home).values())


def test_missing_codex_starts_nothing(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("planner", "open('ran', 'w')")
    done = hocket("run", "planner -> codex:2", "-p", "go")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the Codex CLI, which was not found" in done.stderr
    assert "npm install -g @openai/codex" in done.stderr
    assert not (project / "ran").exists()


def test_codex_key_is_redacted_and_not_shared(codex: CodexSetup, hocket: Hocket, agent: Bin) -> None:
    agent("planner", "import os\nprint('key', os.environ.get('OPENAI_API_KEY'))")
    codex.use_script({"do": [shell("echo $OPENAI_API_KEY"), {"say": "done"}]})
    output = run(hocket, "planner -> codex", "-p", "go")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert "key None" in [one["text"] for one in output.of("text")]
    assert [one["text"] for one in output.of("tool.finished")] == ["[redacted]\n"]
    assert KEY not in json.dumps(output.events)


def test_project_arguments_for_codex_need_trust(codex: CodexSetup, hocket: Hocket, project: Path) -> None:
    codex.use_script(HELLO)
    config = project / "hocket.toml"
    config.write_text('[agents.cx]\npath = "codex"\nargs = ["-c", "sandbox_mode=danger-full-access"]\n')
    refused = hocket("run", "cx", "-p", "go")
    assert (refused.returncode, "-c" in refused.stderr) == (4, True)
    config.write_text('[agents.cx]\npath = "codex"\nmodel = "other"\n')
    assert run(hocket, "cx", "-p", "go").outcome == (0, "done", "single_run")
