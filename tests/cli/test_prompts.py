"""What a run was asked, wherever people and programs look for it: ``show``, ``logs``, ``wait`` and the events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_claude import install_claude
from world import Bin, Hocket

from hocket.cli.plain import lines_of
from hocket.cli.runs import show_lines
from hocket.views.run_view import RunView

pytestmark = pytest.mark.shared_server

ECHO = "import sys; print('heard', sys.argv[-1])"
KEY = "sk-test-0123456789abcdef0123456789"


def detail(hocket: Hocket, ref: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hocket("show", ref, "--json").stdout)
    return found


def log(hocket: Hocket, ref: str, *words: str) -> list[str]:
    """The lines of the log, each without its time."""
    return [line.partition(" ")[2] for line in hocket("logs", ref, *words).stdout.splitlines()]


def test_prompt_is_show_lines_by_every_view(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    ran = hocket("run", "echo", "-p", "Fix the test.\nThen say so.")
    number = hocket.number()
    assert detail(hocket, number)["prompt"] == "Fix the test.\nThen say so."
    assert json.loads(hocket("wait", number, "--json").stdout)["prompt"] == "Fix the test.\nThen say so."
    assert "\nprompt\n  Fix the test.\n  Then say so.\n\n" in hocket("show", number).stdout
    assert log(hocket, number)[0] == f"run {number} > Fix the test. Then say so."
    assert ran.stderr.splitlines()[0].endswith(f"run {number} > Fix the test. Then say so.")
    first = json.loads(hocket("logs", number, "--json").stdout.splitlines()[0])
    assert (first["type"], first["data"]["prompt"]) == ("run.created", "Fix the test.\nThen say so.")
    assert hocket("logs", number, "--raw").stdout == "heard Fix the test.\nThen say so.\n"
    assert all("prompt" not in run for run in hocket.runs()), "a list would be too long with them"


def test_each_step_has_the_prompt_it_was_sent(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("plan", "print('three steps')")
    agent("build", ECHO)
    build = '{agent = "build", iterations = 2, prompt = "Do {{previous.result}}"}'
    (project / "hocket.toml").write_text(f'[chains.ship]\nsteps = [{{agent = "plan"}}, {build}]\n')
    hocket("run", "ship", "-p", "Expire sessions")
    runs = hocket.runs()
    assert [(run["kind"], detail(hocket, run["id"])["prompt"]) for run in runs] == [
        ("chain", "Expire sessions"),
        ("leaf", "Expire sessions"),
        ("loop", "Do three steps"),
        ("leaf", "Do three steps"),
        ("leaf", "Do three steps"),
    ]
    asked = [line for line in log(hocket, runs[0]["id"]) if " > " in line]
    assert asked == [f"run {runs[0]['number']} > Expire sessions", "build[1/2] > Do three steps"], "each one once"
    assert log(hocket, runs[-1]["id"])[0] == "build > Do three steps"


def test_failed_gate_is_part_of_the_next_prompt(hocket: Hocket, agent: Bin) -> None:
    agent("build", "print('FORKHESTRA_COMPLETE')")
    hocket("run", "build:2", "-p", "Build it", "--until", "echo it is red; false")
    loop, first, second = (detail(hocket, run["id"])["prompt"] for run in hocket.runs()[1:])
    assert (loop, first) == ("Build it", "Build it")
    assert second.startswith("Build it\n\n")
    assert "it is red" in second


def test_handoff_has_its_prompt(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    assert hocket("handoff", "echo", "Review it").returncode == 0
    number = hocket.number()
    assert detail(hocket, number)["prompt"] == "Review it"
    assert log(hocket, number)[0] == "echo > Review it"


def test_session_shows_prompt_messages_and_resumed_prompt(hocket: Hocket, agent: Bin) -> None:
    install_claude(agent.folder)
    spawned = json.loads(hocket("spawn", "claude", "--session", "-p", "Read the issue", "--json").stdout)["run"]
    assert hocket("send", spawned, "now fix it", "--wait").returncode == 0
    hocket("stop", spawned)
    lines = log(hocket, spawned)
    assert lines[0] == "claude > Read the issue"
    assert "claude > now fix it" in lines
    hocket("resume", spawned, "-p", "and test it", "-q")
    again = hocket.number(2)
    assert detail(hocket, again)["prompt"] == "and test it"
    assert log(hocket, again)[0] == "claude > and test it"


@pytest.mark.own_server
def test_secret_in_prompt_is_covered(hocket: Hocket, agent: Bin, home: Path) -> None:
    agent("echo", ECHO)
    (home / "config.toml").write_text('[env]\npass = ["MY_API_KEY"]\n')
    env = {"MY_API_KEY": KEY}
    ran = hocket("run", "echo -> echo:1", "-p", f"Log in with {KEY}!", env=env)
    task = json.loads(hocket("task", "new", "x", "--json").stdout)["id"]
    hocket("handoff", task, "echo", f"Log in with {KEY}!", env=env)
    for run in hocket.runs():
        told = "".join(
            hocket(*words).stdout for words in [("show", run["id"], "--json"), ("logs", run["id"], "--json")]
        )
        assert "Log in with [redacted]!" in told
        assert KEY not in told
    assert KEY not in hocket("task", "show", task, "-v").stdout
    assert KEY not in ran.stderr
    assert f"heard Log in with {KEY}!" in hocket("logs", hocket.number(2), "--raw").stdout, "the agent gets it"


def test_long_prompt_is_cut_unless_full_is_asked(hocket: Hocket, agent: Bin) -> None:
    agent("echo", ECHO)
    text = "\n".join(f"line {number}" for number in range(30))
    hocket("run", "echo", "-p", text)
    number = hocket.number()
    head = hocket("show", number).stdout
    assert f"\n  line 5\n  … {len(text)} characters in total: hocket show {number} --full\n" in head
    assert "  line 6\n" not in head
    assert "\n  line 29\n" in hocket("show", number, "--full").stdout
    wide = {"id": "r", "number": 3, "agent": "a", "status": "running", "prompt": "x" * 1000}
    assert "  " + "x" * 480 in show_lines(wide, 0.0, 80)
    assert "  " + "x" * 1000 in show_lines(wide, 0.0, 80, full=True)


def test_prompt_cannot_steer_the_terminal(hocket: Hocket, agent: Bin) -> None:
    agent("echo", "print('fine')")
    hocket("run", "echo", "-p", "\x1b]0;title\x07one\x1b[2J\x9b31m two")
    number = hocket.number()
    assert log(hocket, number)[0] == f"run {number} > one two"
    assert "\nprompt\n  one two\n" in hocket("show", number).stdout
    assert "\x1b" in detail(hocket, number)["prompt"]


def created(run: str, kind: str = "leaf", parent: str | None = "root", **data: Any) -> dict[str, Any]:
    data = {"kind": kind, "agent": run.rstrip("12"), "parent": parent, "number": 7, **data}
    return {"v": 1, "seq": 1, "ts": 0.0, "run": run, "root": "root", "type": "run.created", "data": data}


def test_only_new_prompts_are_logged() -> None:
    progress = RunView("root")
    steps = [{"agent": "plan", "iterations": 1}, {"agent": "build", "iterations": 3}]
    told = []
    for event in (
        created("root", "chain", None, prompt="do it", steps=steps),
        created("plan1", step=0, prompt="do it"),
        created("loop", "loop", step=1, prompt="build the plan"),
        created("build1", step=1, parent="loop", iteration=1, prompt="build the plan"),
        created("build2", step=1, parent="loop", iteration=2, prompt="build the plan"),
        created("critic", parent="build2", prompt="build the plan"),
        created("silent", parent="build2", prompt=None),
    ):
        progress.add(event)
        told += [line.partition(" ")[2] for line in lines_of(progress, event)]
    assert told == ["run 7 > do it", "build[1/3] > build the plan", "critic > build the plan"]
