"""``hocket rehearse`` from outside: the chain is real, its agents are played, and nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.leftovers import living_below, wait_until_gone
from e2e.claude.setup import define
from patience import PATIENCE
from world import Bin, Hocket

KEPT = "kept"
CALM = """
version: 1
rules:
  - when: {agent: planner}
    do: [{say: "One room."}]
  - when: {agent: builder, pass: 2}
    do: [{say: "The roof is on."}, marker]
  - when: {agent: builder}
    do: [{say: "The walls are up."}]
"""


HELPED = """
rules:
  - {when: {agent: helper}, do: [{say: helped}]}
  - {when: {agent: planner, last: helped}, do: [{say: helped}]}
  - {when: {agent: planner, last: not found}, do: [{say: not found}]}
  - {when: {agent: planner}, do: [{agent: {type: helper, prompt: Help}}]}
"""


@pytest.fixture(autouse=True)
def agents(project: Path) -> None:
    for name in ("planner", "builder", "reviewer"):
        define(project, name)


@pytest.fixture(autouse=True)
def temporary(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where rehearsals take place. Nothing may be left of any of them, neither processes nor files."""
    folder = world / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert living_below(folder) == []
    assert [path.name for path in folder.glob("hocket-rehearsal-*") if not (path / KEPT).exists()] == []


def write(project: Path, text: str, name: str = "rehearsal.yaml") -> Path:
    path = project / name
    path.write_text(text, encoding="utf-8")
    return path


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- Without a script ---------------------------------------------------------------------------------------


def test_built_in_script_introduces_agents_and_ends_loops(hocket: Hocket) -> None:
    done = hocket("rehearse", "planner -> builder:5 -> reviewer", "-p", "Build a house")
    assert (done.returncode, done.stdout) == (0, "I am reviewer. My prompt: Build a house\n")
    assert "builder[2/5] I am builder, iteration 2. My prompt: Build a house" in done.stderr
    assert "2/5  marker" in done.stderr
    assert "scripted by the built-in script" in done.stderr


def test_built_in_script_handles_repeated_agents_and_markers(hocket: Hocket) -> None:
    chain = "builder:3 -> builder -> builder:1 -> builder:4"
    done = hocket("rehearse", chain, "-p", "Go", "--marker", "ALL SET", "--json")
    ended = events_of(done.stdout)[-1]
    assert (done.returncode, ended["type"], done.stderr) == (0, "run.ended", "")
    assert [step["iterations"] for step in ended["data"]["steps"]] == [2, 1, 1, 2]


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ("claude", "I am claude. My prompt: Go\n"),
        ("claude:3", "I am claude, iteration 2. My prompt: Go\nFORKHESTRA_COMPLETE\n"),
        ("planner -> claude -> builder", "I am builder. My prompt: Go\n"),
    ],
)
def test_built_in_script_covers_the_cli_without_definition(hocket: Hocket, chain: str, words: str) -> None:
    done = hocket("rehearse", chain, "-p", "Go")
    assert (done.returncode, done.stdout) == (0, words), done.stderr
    assert "I am claude" in done.stdout + done.stderr


def test_a_loop_whose_gate_does_not_pass_at_once_goes_on(hocket: Hocket, project: Path) -> None:
    gate = "echo x >> tries; test $(wc -l < tries) -ge 3"
    done = hocket("rehearse", "builder:9", "--until", gate, "--json")
    ended = events_of(done.stdout)[-1]["data"]
    assert (ended["reason"], ended["steps"][0]["iterations"]) == ("marker", 4)


def test_plain_programs_run_for_real_and_it_says_so_once(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("maker", "import pathlib; pathlib.Path('made').touch(); print('made it')")
    done = hocket("rehearse", "planner -> maker -> maker", "-p", "Go")
    assert (done.returncode, done.stdout) == (0, "made it\n")
    assert [line for line in done.stderr.splitlines() if "for real" in line] == ["rehearsal: runs for real: maker"]
    assert (project / "made").exists()


def test_a_chain_that_fails_has_its_own_exit_code(hocket: Hocket, agent: Bin) -> None:
    agent("failing", "import sys; sys.exit(3)")
    assert hocket("rehearse", "planner -> failing").returncode == 1


@pytest.mark.parametrize("words", [["nosuch"], ["planner ->"], []])
def test_what_cannot_be_put_together_is_refused_and_starts_nothing(hocket: Hocket, words: list[str]) -> None:
    done = hocket("rehearse", *words)
    assert (done.returncode, done.stdout) == (2, "")


# --- With a script ------------------------------------------------------------------------------------------


def test_the_script_of_the_project_is_found_from_below_its_root(hocket: Hocket, project: Path) -> None:
    write(project, CALM)
    (project / ".git").mkdir()
    below = project / "src"
    below.mkdir()
    done = hocket("rehearse", "planner -> builder:3", "-p", "Go", cwd=below)
    assert (done.returncode, done.stdout) == (0, "The roof is on.\nFORKHESTRA_COMPLETE\n")
    assert f"scripted by {project / 'rehearsal.yaml'}" in done.stderr


def test_a_script_that_is_given_wins_over_the_projects(hocket: Hocket, project: Path) -> None:
    write(project, CALM)
    write(project, "rules: [{do: [{say: other}]}]", "other.yaml")
    assert hocket("rehearse", "planner", "--script", "other.yaml", "-q").stdout == "other\n"


def test_uncovered_request_fails_with_the_rule_to_add(hocket: Hocket, project: Path) -> None:
    write(project, CALM)
    done = hocket("rehearse", "planner -> reviewer", "-p", "Look at it", "--json")
    assert done.returncode == 1
    assert "does not cover a request" in done.stderr
    assert 'agent reviewer, turn 1, pass 1, last message "Look at it"' in done.stderr
    rule = done.stderr.partition("add to its rules:\n")[2]
    write(project, CALM + rule)
    assert hocket("rehearse", "planner -> reviewer", "-p", "Look at it").returncode == 0


def test_an_uncovered_request_is_a_failure_also_when_the_chain_is_complete(hocket: Hocket, project: Path) -> None:
    write(project, "rules: [{when: {agent: builder, pass: 2}, do: [marker]}]")
    done = hocket("rehearse", "builder:3")
    assert "2/3  marker" in done.stderr
    assert (done.returncode, "does not cover a request" in done.stderr) == (1, True)


def test_a_script_with_a_mistake_is_refused_with_its_place(hocket: Hocket, project: Path) -> None:
    path = write(project, "rules: [{do: [{shout: x}]}]")
    done = hocket("rehearse", "planner")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}: rule 1, do: step 1: unknown key 'shout'" in done.stderr


def test_question_is_denied_unless_asking_is_requested(hocket: Hocket, project: Path) -> None:
    asks = "{ask: {tool: Bash, input: {command: make}, allowed: [{say: 'yes'}], denied: [{say: 'no'}]}}"
    write(project, f"rules: [{{do: [{asks}]}}]")
    assert hocket("rehearse", "planner", "-q").stdout == "no\n"
    assert hocket("rehearse", "planner", "--on-question", "fail", "-q").returncode == 4


@pytest.mark.parametrize(
    ("helper", "is_trusted", "words"),
    [
        ("user", False, "helped"),
        ("project", False, "not found"),
        ("project", True, "helped"),
        ("nobody", True, "not found"),
    ],
)
def test_sub_agents_are_found_where_the_real_cli_finds_them(
    hocket: Hocket, project: Path, world: Path, helper: str, is_trusted: bool, words: str
) -> None:
    if helper != "nobody":
        define({"user": world / "user", "project": project}[helper], "helper")
    if is_trusted:
        assert hocket("trust", "--yes").returncode == 0
    write(project, HELPED)
    done = hocket("rehearse", "planner", "-q")
    assert done.stdout == f"{words}\n", done.stderr


# --- Where it takes place -----------------------------------------------------------------------------------


def test_the_users_own_home_is_not_touched_and_its_configuration_holds(hocket: Hocket, home: Path, world: Path) -> None:
    (home / "config.toml").write_text('[chains.ship]\nsteps = [{ agent = "planner" }]\n', encoding="utf-8")
    done = hocket("rehearse", "--chain", "ship", "-p", "Go")
    assert (done.returncode, done.stdout) == (0, "I am planner. My prompt: Go\n")
    assert [path.name for path in home.iterdir()] == ["config.toml"]
    assert not (world / "user/.claude").exists()


def test_a_configuration_that_links_nowhere_is_refused_here_as_anywhere(hocket: Hocket, home: Path) -> None:
    (home / "config.toml").symlink_to("/nowhere/at-all")
    done = hocket("rehearse", "planner", "-p", "Go")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"it links to {home / 'config.toml'}, which does not exist" in done.stderr


@pytest.mark.parametrize("is_new", [True, False])
def test_hockets_own_agents_are_there_as_in_the_users_home(
    hocket: Hocket, home: Path, project: Path, is_new: bool
) -> None:
    name = "qa" if is_new else "tester"
    if not is_new:
        (home / "data/agents").mkdir(parents=True)
        (home / "data/agents/tester.json").write_text('{"name": "tester", "specPath": "tester.md"}', encoding="utf-8")
        write(project, "You test.", "tester.md")
    done = hocket("rehearse", name, "-p", "Go")
    assert (done.returncode, done.stdout) == (0, f"I am {name}. My prompt: Go\n"), done.stderr
    assert hocket("rehearse", "tester" if is_new else "qa", "-p", "Go").returncode == 2
    assert [path.name for path in home.rglob("*.json")] == ([] if is_new else ["tester.json"])


def test_what_is_kept_can_be_looked_at_later(hocket: Hocket, temporary: Path) -> None:
    done = hocket("rehearse", "planner", "-p", "Go", "--keep")
    (kept,) = temporary.glob("hocket-rehearsal-*")
    (kept / KEPT).touch()
    assert done.stderr.splitlines()[-1].startswith(f"kept {kept};")
    found = json.loads(hocket("ps", "-a", "--json", env={"HOCKET_HOME": str(kept / "home")}).stdout)
    assert [run["agent"] for run in found] == ["planner", "planner"]
    hocket("server", "stop", env={"HOCKET_HOME": str(kept / "home")})


def hanging(hocket: Hocket, project: Path, *options: str) -> subprocess.Popen[str]:
    """A rehearsal in whose midst an agent waits for ever."""
    write(project, "rules: [{do: [{say: up}, hang]}]")
    process = hocket.start("rehearse", "planner", *options)
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith(" planner up\n"):
            break
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(hocket: Hocket, project: Path, number: signal.Signals) -> None:
    process = hanging(hocket, project)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number


@pytest.mark.parametrize("server_is_there", [True, False])
def test_nothing_is_left_of_a_rehearsal_that_was_killed_and_the_users_own_server_serves_on(
    hocket: Hocket, project: Path, temporary: Path, server_is_there: bool
) -> None:
    process = hanging(hocket, project)
    hocket("ps")
    mine = json.loads(hocket("server", "status", "--json").stdout)["pid"]
    if not server_is_there:
        (place,) = temporary.glob("hocket-rehearsal-*")
        os.kill(json.loads((place / "home/server.lock").read_text())["pid"], signal.SIGKILL)
    process.kill()
    wait_until_gone(temporary, "hocket-rehearsal-*")
    assert json.loads(hocket("server", "status", "--json").stdout)["pid"] == mine


def test_a_rehearsal_that_was_killed_leaves_no_process_and_the_folder_that_was_to_be_kept(
    hocket: Hocket, project: Path, temporary: Path
) -> None:
    process = hanging(hocket, project, "--keep")
    (kept,) = temporary.glob("hocket-rehearsal-*")
    (kept / KEPT).touch()
    process.kill()
    wait_until_gone(temporary, "none")
    found = json.loads(hocket("ps", "-a", "--json", env={"HOCKET_HOME": str(kept / "home")}).stdout)
    assert [run["status"] for run in found] == ["stopped", "stopped"]
    hocket("server", "stop", env={"HOCKET_HOME": str(kept / "home")})
