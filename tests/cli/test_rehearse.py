"""``hocket rehearse`` from outside: the chain is real, its agents are played, and nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli.leftovers import living_below, wait_until_gone
from e2e.claude.setup import define, real_cli
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
    ("player", "chain", "words"),
    [
        ("scripted", "planner -> claude -> builder", "I am builder. My prompt: Go\n"),
        ("scripted", "claude", "I am claude. My prompt: Go\n"),
        ("real", "claude:3", "I am claude, iteration 2. My prompt: Go\nFORKHESTRA_COMPLETE\n"),
    ],
)
def test_built_in_script_covers_the_bare_cli(
    hocket: Hocket, monkeypatch: pytest.MonkeyPatch, player: str, chain: str, words: str
) -> None:
    if player == "real":
        monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    done = hocket("rehearse", chain, "-p", "Go", *(["--real"] if player == "real" else []))
    assert (done.returncode, done.stdout) == (0, words), done.stderr
    assert "I am claude" in done.stdout + done.stderr


def test_loop_continues_until_its_gate_passes(hocket: Hocket, project: Path) -> None:
    gate = "echo x >> tries; test $(wc -l < tries) -ge 3"
    done = hocket("rehearse", "builder:9", "--until", gate, "--json")
    ended = events_of(done.stdout)[-1]["data"]
    assert (ended["reason"], ended["steps"][0]["iterations"]) == ("marker", 4)


def test_programs_run_for_real_and_are_announced(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("maker", "import pathlib; pathlib.Path('made').touch(); print('made it')")
    done = hocket("rehearse", "planner -> maker -> maker", "-p", "Go")
    assert (done.returncode, done.stdout) == (0, "made it\n")
    assert [line for line in done.stderr.splitlines() if "for real" in line] == ["rehearsal: runs for real: maker"]
    assert (project / "made").exists()


def test_failed_chain_has_its_own_exit_code(hocket: Hocket, agent: Bin) -> None:
    agent("failing", "import sys; sys.exit(3)")
    assert hocket("rehearse", "planner -> failing").returncode == 1


@pytest.mark.parametrize("words", [["nosuch"], ["planner ->"], []])
def test_invalid_chain_is_refused_before_the_start(hocket: Hocket, words: list[str]) -> None:
    done = hocket("rehearse", *words)
    assert (done.returncode, done.stdout) == (2, "")


# --- With a script ------------------------------------------------------------------------------------------


def test_project_script_is_found_from_a_subfolder(hocket: Hocket, project: Path) -> None:
    write(project, CALM)
    (project / ".git").mkdir()
    below = project / "src"
    below.mkdir()
    done = hocket("rehearse", "planner -> builder:3", "-p", "Go", cwd=below)
    assert (done.returncode, done.stdout) == (0, "The roof is on.\nFORKHESTRA_COMPLETE\n")
    assert f"scripted by {project / 'rehearsal.yaml'}" in done.stderr


def test_script_option_overrides_the_project_script(hocket: Hocket, project: Path) -> None:
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


def test_uncovered_request_fails_a_completed_chain(hocket: Hocket, project: Path) -> None:
    write(project, "rules: [{when: {agent: builder, pass: 2}, do: [marker]}]")
    done = hocket("rehearse", "builder:3")
    assert "2/3  marker" in done.stderr
    assert (done.returncode, "does not cover a request" in done.stderr) == (1, True)


def test_invalid_script_is_refused_with_its_position(hocket: Hocket, project: Path) -> None:
    path = write(project, "rules: [{do: [{shout: x}]}]")
    done = hocket("rehearse", "planner")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}: rules: rule 1: do: step 1: unknown key 'shout'" in done.stderr


def test_question_is_denied_unless_asking_is_requested(hocket: Hocket, project: Path) -> None:
    asks = "{ask: {tool: Bash, input: {command: make}, allowed: [{say: 'yes'}], denied: [{say: 'no'}]}}"
    write(project, f"rules: [{{do: [{asks}]}}]")
    assert hocket("rehearse", "planner", "-q").stdout == "no\n"
    assert hocket("rehearse", "planner", "--on-question", "fail", "-q").returncode == 4


@pytest.mark.parametrize(
    ("player", "helper", "is_trusted", "words"),
    [
        ("scripted", "user", False, "helped"),
        ("scripted", "project", False, "not found"),
        ("scripted", "project", True, "helped"),
        ("real", "project", False, "not found"),
        ("real", "project", True, "helped"),
    ],
)
def test_sub_agents_are_found_like_real_cli(
    hocket: Hocket,
    project: Path,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    player: str,
    helper: str,
    is_trusted: bool,
    words: str,
) -> None:
    define({"user": world / "user", "project": project}[helper], "helper")
    if is_trusted:
        assert hocket("trust", "--yes").returncode == 0
    if player == "real":
        monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    write(project, HELPED)
    how = ["--real"] if player == "real" else []
    done = hocket("rehearse", "planner", "-q", *how)
    assert done.stdout == f"{words}\n", done.stderr


# --- Where it takes place -----------------------------------------------------------------------------------


def test_users_home_is_read_but_not_changed(hocket: Hocket, home: Path, world: Path) -> None:
    (home / "config.toml").write_text('[chains.ship]\nsteps = [{ agent = "planner" }]\n', encoding="utf-8")
    done = hocket("rehearse", "--chain", "ship", "-p", "Go")
    assert (done.returncode, done.stdout) == (0, "I am planner. My prompt: Go\n")
    assert [path.name for path in home.iterdir()] == ["config.toml"]
    assert not (world / "user/.claude").exists()


def test_dangling_configuration_link_is_refused(hocket: Hocket, home: Path) -> None:
    (home / "config.toml").symlink_to("/nowhere/at-all")
    done = hocket("rehearse", "planner", "-p", "Go")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"it links to {home / 'config.toml'}, which does not exist" in done.stderr


@pytest.mark.parametrize("is_new", [True, False])
def test_default_agents_are_available(hocket: Hocket, home: Path, project: Path, is_new: bool) -> None:
    name = "qa" if is_new else "tester"
    if not is_new:
        (home / "data/agents").mkdir(parents=True)
        (home / "data/agents/tester.json").write_text('{"name": "tester", "specPath": "tester.md"}', encoding="utf-8")
        write(project, "You test.", "tester.md")
    done = hocket("rehearse", name, "-p", "Go")
    assert (done.returncode, done.stdout) == (0, f"I am {name}. My prompt: Go\n"), done.stderr
    assert hocket("rehearse", "tester" if is_new else "qa", "-p", "Go").returncode == 2
    assert [path.name for path in home.rglob("*.json")] == ([] if is_new else ["tester.json"])


def test_kept_folder_can_be_inspected(hocket: Hocket, temporary: Path) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signal_ends_everything(hocket: Hocket, project: Path, number: signal.Signals) -> None:
    process = hanging(hocket, project)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number


@pytest.mark.parametrize("server_is_there", [True, False])
def test_killed_rehearsal_leaves_nothing_but_the_users_server(
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


def test_killed_rehearsal_keeps_only_the_kept_folder(hocket: Hocket, project: Path, temporary: Path) -> None:
    process = hanging(hocket, project, "--keep")
    (kept,) = temporary.glob("hocket-rehearsal-*")
    (kept / KEPT).touch()
    process.kill()
    wait_until_gone(temporary, "none")
    found = json.loads(hocket("ps", "-a", "--json", env={"HOCKET_HOME": str(kept / "home")}).stdout)
    assert [run["status"] for run in found] == ["stopped", "stopped"]
    hocket("server", "stop", env={"HOCKET_HOME": str(kept / "home")})


# --- The real CLI -------------------------------------------------------------------------------------------


def test_real_cli_follows_the_script_with_its_tools(
    hocket: Hocket, project: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "an account of the user's")
    define(world / "user", "helper")
    writes = "{tool: {name: Write, input: {file_path: made, content: x}}}"
    write(project, f"rules: [{{when: {{agent: helper}}, do: [{writes}, {{say: written}}]}}]")
    done = hocket("rehearse", "helper", "--real")
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr
    assert (project / "made").read_text() == "x"
    # Beside the home lies the runtime directory, where the CLI puts sockets while it lives; that is no state.
    theirs = {str(path.relative_to(world / "user")) for path in (world / "user").rglob("*")}
    assert {name for name in theirs if not name.startswith("run")} == {
        ".claude",
        ".claude/agents",
        ".claude/agents/helper.md",
    }


def test_real_cli_without_tools_reports_uncovered_requests(
    hocket: Hocket, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    write(project, "rules: [{when: {agent: planner}, do: [{say: planned}]}]")
    define(project, "reviewer", body=" ", tools="[]")
    (project / "hocket.toml").write_text("[claude]\nmcp = false\n", encoding="utf-8")
    done = hocket("rehearse", "reviewer", "--real")
    assert (done.returncode, "does not cover a request" in done.stderr) == (1, True)


def test_same_instructions_are_refused_with_real_cli(
    hocket: Hocket, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    define(project, "planner", body=" ")
    define(project, "reviewer", body=" ")
    for second in ("reviewer", "claude"):
        done = hocket("rehearse", f"planner -> {second}", "-p", "Go", "--real")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"planner and {second} have the same instructions" in done.stderr
    assert hocket("rehearse", "planner -> reviewer", "-p", "Go", "-q").stdout == "I am reviewer. My prompt: Go\n"


def test_missing_real_cli_is_refused(hocket: Hocket) -> None:
    done = hocket("rehearse", "planner", "--real")
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs the Claude CLI, which was not found" in done.stderr


# --- Scripts ------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(hocket: Hocket, project: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The number of a run of the planner's, in the user's own home."""
    from hocket.rehearsal import install

    program = install(world / "player", write(project, CALM, "calm.yaml"), world / "state")
    monkeypatch.setenv("HOCKET_CLAUDE", str(program))
    assert hocket("run", "planner", "-p", "Go").returncode == 0
    return "2"


def test_recorded_script_repeats_the_run(hocket: Hocket, project: Path, recorded: str) -> None:
    done = hocket("rehearse", "--record", recorded, "-o", "again.yaml")
    assert (done.returncode, done.stdout) == (0, "")
    assert hocket("rehearse", "--record", recorded).stdout == (project / "again.yaml").read_text()
    assert hocket("rehearse", "planner", "--script", "again.yaml", "-q").stdout == "One room.\n"


def test_refused_run_is_refused_again_by_a_model(
    hocket: Hocket, project: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hocket.rehearsal import install

    refusing = write(project, "rules: [{do: [{say: hm}, refuse]}]", "refusing.yaml")
    monkeypatch.setenv("HOCKET_CLAUDE", str(install(world / "player", refusing, world / "state")))
    assert hocket("run", "planner", "-p", "Go").returncode == 1
    assert hocket("rehearse", "--record", "2", "-o", "again.yaml").returncode == 0
    monkeypatch.setenv("HOCKET_CLAUDE", str(real_cli()))
    done = hocket("rehearse", "planner", "--script", "again.yaml", "--json", "--real")
    ended = events_of(done.stdout)[-1]["data"]
    assert (done.returncode, ended["status"], done.stderr) == (1, "failed", "")


def test_recording_notes_a_turn_ended_by_a_limit(
    hocket: Hocket, project: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hocket.rehearsal import install

    long = write(project, "rules: [{do: [{tool: {name: Bash, input: {command: ls}}}, {say: x}]}]", "long.yaml")
    monkeypatch.setenv("HOCKET_CLAUDE", str(install(world / "player", long, world / "state")))
    limit = ["--", "--max-turns", "1"]
    before = events_of(hocket("run", "planner", "-p", "Go", "--json", *limit).stdout)[-1]["data"]
    done = hocket("rehearse", "--record", "2", "-o", "again.yaml")
    note = "turn 1 did not end by itself (Reached maximum number of turns (1)): the same end needs the same limit again"
    assert (done.returncode, done.stderr.splitlines()) == (0, ["wrote again.yaml", f"rehearsal: {note}"])
    assert (project / "again.yaml").read_text().startswith(f"# {note}\n")
    again = hocket("rehearse", "planner", "--script", "again.yaml", "--json", *limit)
    ended = events_of(again.stdout)[-1]["data"]
    assert [ended[key] for key in ("status", "reason")] == [before[key] for key in ("status", "reason")]
    assert again.stderr == ""
    without = hocket("rehearse", "planner", "--script", "again.yaml")
    assert (without.returncode, "the recorded turn was ended here" in without.stderr) == (1, True)


def test_existing_file_is_overwritten_only_with_force(hocket: Hocket, project: Path, recorded: str) -> None:
    path = write(project, "mine", "again.yaml")
    done = hocket("rehearse", "--record", recorded, "-o", "again.yaml")
    assert (done.returncode, path.read_text()) == (2, "mine")
    assert hocket("rehearse", "--record", recorded, "-o", "again.yaml", "--force").returncode == 0
    assert "One room." in path.read_text()


def test_recording_a_chain_names_its_agents(hocket: Hocket, recorded: str) -> None:
    done = hocket("rehearse", "--record", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hint: its Claude runs: 2" in done.stderr


def served(hocket: Hocket) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = hocket.start("rehearse", "--serve", "calm.yaml")
    assert process.stdout is not None
    lines = [process.stdout.readline().split()[1].partition("=") for _ in range(2)]
    return process, {name: value for name, _, value in lines}


def ask(env: dict[str, str], system: str) -> httpx.Response:
    said = [{"role": "user", "content": "Go"}]
    body = {"model": "m", "system": system, "messages": said, "tools": [{"name": "Bash"}]}
    key = {"X-Api-Key": env["ANTHROPIC_API_KEY"]}
    return httpx.post(f"{env['ANTHROPIC_BASE_URL']}/v1/messages", json=body, headers=key)


def test_served_model_runs_until_interrupted(hocket: Hocket, project: Path) -> None:
    write(project, CALM, "calm.yaml")
    process, env = served(hocket)
    assert ask(env, "You are agent: planner.").json()["content"] == [{"type": "text", "text": "One room."}]
    process.send_signal(signal.SIGINT)
    _, reported = process.communicate(timeout=PATIENCE)
    assert (process.returncode, reported.splitlines()[-1]) == (0, "1 requests")


def test_served_model_reports_uncovered_requests(hocket: Hocket, project: Path) -> None:
    write(project, CALM, "calm.yaml")
    process, env = served(hocket)
    assert ask(env, "You are agent: reviewer.").status_code == 400
    process.send_signal(signal.SIGTERM)
    _, reported = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "does not cover a request" in reported


def test_served_model_refuses_indistinguishable_agents(hocket: Hocket, project: Path) -> None:
    write(project, CALM, "calm.yaml")
    for name in ("planner", "builder"):
        define(project, name, body="Be brief.")
    done = hocket("rehearse", "--serve", "calm.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "builder and planner have the same instructions" in done.stderr


def test_record_and_serve_exclude_other_options(hocket: Hocket) -> None:
    assert hocket("rehearse", "planner", "--record", "1").returncode == 2
    assert hocket("rehearse", "--serve", "x", "--record", "1").returncode == 2


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["-o", "x.yaml"], "--output needs --record"),
        (["--force"], "--force needs --record"),
        (["--port", "3"], "--port needs --serve"),
    ],
)
def test_option_of_another_mode_is_refused(hocket: Hocket, words: list[str], reported: str) -> None:
    refused = hocket("rehearse", "builder", *words)
    assert (refused.returncode, refused.stdout, reported in refused.stderr) == (2, "", True)
