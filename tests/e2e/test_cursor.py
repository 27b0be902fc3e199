"""Cursor as an agent: alone, in chains beside Claude, resumed, failing, stopped and missing. A script plays the CLI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.commands import make_gate, run, run_output, shown, spawn, wait_for, waited
from scripted_cursor import HELLO, install_cursor
from world import Bin, Hocket, processes_of

from hocket.rehearsal import install

pytestmark = pytest.mark.shared_server


@pytest.mark.req("S3-20")
def test_cursor_run_succeeds(hocket: Hocket, agent: Bin) -> None:
    install_cursor(agent, HELLO)
    output = run(hocket, "cursor-agent", "-p", "say hello")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert output.ended["result"] == "hello there"
    (session,) = output.of("session")
    leaf = shown(hocket, output.leaf)
    assert (leaf["provider"], leaf["session_id"], leaf["exit_code"]) == ("cursor", session["session_id"], 0)
    assert [one["text"] for one in output.of("text")] == ["hello there"]
    assert "the agent reported that it is done; exit code 0" in hocket("show", "--why", output.leaf).stdout


def test_unreported_cost_of_cursor_is_unknown(hocket: Hocket, agent: Bin) -> None:
    install_cursor(agent, HELLO)
    output = run(hocket, "cursor-agent", "-p", "say hello", "--budget", "1")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    for ref in (output.leaf, output.root):
        leaf = shown(hocket, ref)
        assert (leaf["cost_usd"], leaf["tokens"]) == (None, None)
    assert output.of("usage") == []
    assert ["no budget can hold" in one["text"] for one in output.of("notice")] == [True]
    assert "$0" not in hocket("show", output.leaf).stdout


@pytest.mark.parametrize(
    ("mode", "made"),
    [("acceptEdits", ["file"]), ("bypassPermissions", ["command", "file"]), ("default", []), ("plan", [])],
)
def test_cursor_does_only_what_its_mode_allows(
    hocket: Hocket, agent: Bin, project: Path, home: Path, mode: str, made: list[str]
) -> None:
    install_cursor(agent, {"write": "file"}, {"shell": "touch command"}, {"say": "tried"})
    (home / "config.toml").write_text(f'[agents.maker]\npath = "cursor-agent"\npermission_mode = "{mode}"\n')
    output = run(hocket, "maker", "-p", "make it")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert sorted(path.name for path in project.iterdir()) == made
    denied = [one["tool"] for one in output.of("notice") if one["kind"] == "permission_denied"]
    assert len(denied) == 2 - len(made)
    assert [one["error"] for one in output.of("tool.finished")].count(True) == len(denied)


def test_cursor_continues_its_session(hocket: Hocket, agent: Bin) -> None:
    install_cursor(agent, {"say": "turn {turn}"})
    first = spawn(hocket, "cursor-agent", "-p", "begin")
    assert waited(hocket, first)[0] == 0
    done = hocket("resume", first, "-p", "go on", "--json")
    output = run_output(done.returncode, done.stdout, done.stderr)
    assert output.outcome == (0, "done", "exit"), output.stderr
    ended = shown(hocket, output.root)
    assert (ended["result"], ended["session_id"]) == ("turn 2", shown(hocket, first)["session_id"])


def test_cursor_loop_beside_claude_ends_at_marker(
    hocket: Hocket, agent: Bin, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Claude said reaches Cursor through the prompt; the first iteration does not write the marker."""
    script = world / "script.json"
    script.write_text(json.dumps({"rules": [{"do": [{"say": "the plan of claude"}]}]}), encoding="utf-8")
    monkeypatch.setenv("HOCKET_CLAUDE", str(install(world / "scripted", script, world / "state")))
    first = {"session": 1, "prompt": "the plan of claude", "do": [{"say": "half done"}]}
    install_cursor(agent, {"say": "built\nFORKHESTRA_COMPLETE"}, rules=[first])
    output = run(hocket, "claude -> cursor-agent:3", "-p", "{{previous.result}}")
    assert output.outcome == (0, "done", "marker"), output.stderr
    assert [(step["agent"], step["iterations"]) for step in output.ended["steps"]] == [
        ("claude", 1),
        ("cursor-agent", 2),
    ]


def test_cursor_failure_shows_standard_error(hocket: Hocket, agent: Bin) -> None:
    install_cursor(agent, {"say": "I begin"}, {"fail": "the model is not available"})
    output = run(hocket, "cursor-agent", "-p", "go")
    assert output.outcome == (1, "failed", "exit")
    assert "the model is not available" in [one["text"] for one in output.of("raw")]


def test_stop_ends_cursor_and_its_command(hocket: Hocket, agent: Bin, project: Path, home: Path) -> None:
    gate = make_gate(project / "at_work")
    install_cursor(agent, {"shell": "echo begun > at_work; sleep 300"})
    (home / "config.toml").write_text('[agents.maker]\npath = "cursor-agent"\npermission_mode = "bypassPermissions"\n')
    run_id = spawn(hocket, "maker", "-p", "go")
    assert gate.read_text() == "begun\n"
    stopped = json.loads(hocket("stop", run_id, "--json").stdout)
    assert (stopped["status"], stopped["reason"], stopped["survivors"]) == ("stopped", "stopped", [])
    assert "sleep 300" not in " ".join(processes_of(home).values())


def test_text_is_shown_before_message_ends(hocket: Hocket, agent: Bin) -> None:
    install_cursor(agent, {"say": "first\nsecond"}, {"wait": True})
    run_id = spawn(hocket, "cursor-agent", "-p", "go")
    assert wait_for(hocket, run_id, "text")["data"] == {"text": "first"}


@pytest.mark.req("S3-59")
def test_missing_cursor_starts_nothing(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("planner", "open('ran', 'w')")
    done = hocket("run", "planner -> cursor-agent:2", "-p", "go")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the Cursor CLI, which was not found" in done.stderr
    assert "cursor.com/docs/cli/installation" in done.stderr
    assert not (project / "ran").exists()
    assert hocket.runs() == []


def test_cursor_key_is_redacted_and_not_shared(hocket: Hocket, agent: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURSOR_API_KEY", "key-0123456789abcdef")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    agent("planner", "import os\nprint('key', os.environ.get('CURSOR_API_KEY'))")
    install_cursor(agent, {"env": ["CURSOR_API_KEY", "OPENAI_API_KEY"]})
    output = run(hocket, "planner -> cursor-agent", "-p", "go")
    assert output.outcome == (0, "done", "single_run"), output.stderr
    assert [one["text"] for one in output.of("text")] == ["key None", "CURSOR_API_KEY=[redacted] OPENAI_API_KEY=None"]


def test_project_arguments_for_cursor_need_trust(hocket: Hocket, agent: Bin, project: Path) -> None:
    install_cursor(agent, HELLO)
    config = project / "hocket.toml"
    config.write_text('[agents.cu]\npath = "cursor-agent"\nargs = ["--approve-mcps"]\n')
    refused = hocket("run", "cu", "-p", "go")
    assert (refused.returncode, "--approve-mcps" in refused.stderr) == (4, True)
    config.write_text('[agents.cu]\npath = "cursor-agent"\nmodel = "gpt-5"\n')
    assert run(hocket, "cu", "-p", "go").outcome == (0, "done", "single_run")


def test_cursor_session_cannot_stay_open(hocket: Hocket, agent: Bin) -> None:
    install_cursor(agent, HELLO)
    done = hocket("spawn", "cursor-agent", "-p", "begin", "--session")
    assert (done.returncode, "reads no messages" in done.stderr) == (2, True)
