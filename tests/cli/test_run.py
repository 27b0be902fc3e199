"""``hocket run`` from outside, with the real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from scripted_claude import install_claude
from world import Bin, Hocket

pytestmark = pytest.mark.shared_server

COUNTING = """
import pathlib, sys, time
count = pathlib.Path("count")
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
print("pass", number, flush=True)
if number >= 2: print("FORKHESTRA_COMPLETE")
"""
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def until(stream: Any, wanted: str) -> str:
    """Read lines up to the one that has this in it; the test's own time limit bounds it."""
    for line in stream:
        if wanted in line:
            return str(line)
    raise AssertionError(f"{wanted!r} was never said")


def living_server(hocket: Hocket) -> int:
    """The server's pid, once there is one again."""
    while (found := json.loads(hocket("server", "status", "--json").stdout))["runs_live"] is None:
        continue
    return int(found["pid"])


@pytest.fixture
def agents(agent: Bin) -> Bin:
    agent("planner", "import sys; print('plan for', *sys.argv[1:]); print('trouble', file=sys.stderr)")
    agent("builder", COUNTING)
    agent("reviewer", "print('\\x1b[31mfine\\x1b[0m')")
    agent("failing", "import sys; print('half'); sys.exit(3)")
    agent("forever", FOREVER)
    return agent


@pytest.mark.req("S1-B21", "S1-B17")
def test_result_is_on_stdout_and_messages_on_stderr(hocket: Hocket, agents: Bin) -> None:
    done = hocket("run", "planner -> builder:3 -> reviewer", "-p", "peace")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "\x1b" not in done.stderr
    lines = done.stderr.splitlines()
    assert any(line.endswith(" planner plan for peace") for line in lines)
    assert any(line.endswith(" planner ! trouble") for line in lines)
    assert any(line.endswith(" builder[2/3] pass 2") for line in lines)
    assert [line.split()[:5] for line in lines[-5:-2]] == [
        ["✓", "done", "planner", "1/1", "single_run"],
        ["✓", "done", "builder", "2/3", "marker"],
        ["✓", "done", "reviewer", "1/1", "single_run"],
    ]


def test_forced_colour_in_a_pipe_moves_no_cursor(hocket: Hocket, agents: Bin) -> None:
    forced = hocket("run", "failing", "--until", "exit 3", env={"FORCE_COLOR": "1"})
    assert forced.stdout == "half\n"
    assert "\x1b[31m✗ failed\x1b[0m" in forced.stderr
    assert set(re.findall(r"\x1b[^m]*.", forced.stderr)) <= {f"\x1b[{style}m" for style in ("0", "31", "33", "2")}
    for env in ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, {"FORCE_COLOR": "0"}, {}):
        assert "\x1b" not in hocket("run", "failing", env=env).stderr


@pytest.mark.req("S1-B17", "S1-B16")
def test_incomplete_chain_exits_with_one(hocket: Hocket, agents: Bin) -> None:
    done = hocket("run", "failing -> planner")
    assert (done.returncode, done.stdout) == (1, "half\n")
    assert "failed: exit 3" in done.stderr
    assert "- skipped" in done.stderr


def test_json_ends_with_the_end_of_the_root(hocket: Hocket, agents: Bin) -> None:
    done = hocket("run", "planner -> builder:3", "--json")
    events = events_of(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert {frozenset(event) for event in events} == {frozenset(["v", "seq", "ts", "run", "root", "type", "data"])}
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs))
    last = events[-1]
    assert (last["type"], last["run"]) == ("run.ended", last["root"])
    assert [step["agent"] for step in last["data"]["steps"]] == ["planner", "builder"]


@pytest.mark.req("S1-B20", "S1-B17")
@pytest.mark.parametrize("words", [["planner -> nosuch"], ["planner ->"], ["--chain", "x"]])
def test_refusal_exits_with_two_and_empty_stdout(hocket: Hocket, agents: Bin, words: list[str]) -> None:
    for more in ([], ["--json"]):
        done = hocket("run", *words, *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("hocket: ")


@pytest.mark.own_server
def test_missing_agent_exits_with_two_and_example(hocket: Hocket) -> None:
    done = hocket("run")
    assert (done.returncode, done.stdout) == (2, "")
    assert 'hocket run "planner -> builder:3' in done.stderr
    assert hocket("server", "status").stdout.startswith("not running")


@pytest.mark.req("S1-B06", "S1-B07", "S1-B11")
def test_words_are_joined_and_variables_substituted(hocket: Hocket, agents: Bin) -> None:
    done = hocket("run", "planner", "->", "planner", "WHO=you", "-p", "${WHO} there", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "plan for you there\n", "")


@pytest.mark.req("S1-B12")
def test_prompt_is_read_from_option_stdin_or_file(hocket: Hocket, agents: Bin, project: Path) -> None:
    (project / "ask.txt").write_text("from a file")
    assert hocket("run", "planner", "-q", "-p", "-", stdin="from stdin").stdout == "plan for from stdin\n"
    assert hocket("run", "planner", "-q", "--prompt-file", "ask.txt").stdout == "plan for from a file\n"
    named = hocket("run", "planner", "-q", "--prompt-file", "${NAME}.txt", "NAME=ask")
    assert named.stdout == "plan for from a file\n"
    missing = hocket("run", "planner", "--prompt-file", "nosuch.txt")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "nosuch.txt" in missing.stderr


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_two_prompts_are_refused(hocket: Hocket, agents: Bin, command: str) -> None:
    done = hocket(command, "planner", "-p", "inline", "--prompt-file", "ask.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "hocket: --prompt and --prompt-file 'ask.txt' both give the prompt\nhint: remove one of them\n"
    )


def test_variable_that_nothing_uses_is_refused(hocket: Hocket, agents: Bin) -> None:
    done = hocket("run", "planner", "VAR=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hocket: the chain does not use the variable VAR\nhint: it uses no variables\n"


def test_prompt_from_file_is_not_a_template(hocket: Hocket, agents: Bin, project: Path) -> None:
    (project / "ask.txt").write_text("use ${NOWHERE}")
    assert hocket("run", "planner", "-q", "--prompt-file", "ask.txt").stdout == "plan for use ${NOWHERE}\n"
    assert hocket("run", "planner", "-q", "-p", "-", stdin="${A} $B $$").stdout == "plan for ${A} $B $$\n"
    typed = hocket("run", "planner", "-q", "-p", "use ${NOWHERE}")
    assert (typed.returncode, typed.stdout) == (2, "")
    assert "NOWHERE" in typed.stderr


def test_arguments_after_two_dashes_are_unchanged(hocket: Hocket, agents: Bin) -> None:
    done = hocket("run", "planner", "-q", "--", "--json", "$(touch pwned)", "->", "-p")
    assert done.stdout == "plan for --json $(touch pwned) -> -p\n"


@pytest.mark.req("S1-B22")
def test_working_directory_can_be_chosen(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("where", "import os; print(os.getcwd())")
    (project / "sub").mkdir()
    assert hocket("run", "where", "-q", "--cwd", "sub").stdout == f"{project / 'sub'}\n"
    missing = hocket("run", "where", "--cwd", "nosuch")
    assert missing.returncode == 2
    assert "nosuch" in missing.stderr


@pytest.mark.req("S1-B22")
@pytest.mark.own_server
def test_dry_run_starts_nothing(hocket: Hocket, agents: Bin, home: Path) -> None:
    words = ["run", "planner -> builder:3", "-p", "go on", "--until", "true", "--dry-run"]
    shown = hocket(*words, "--", "--fast")
    assert shown.returncode == 0
    assert "step 2: builder up to 3 times" in shown.stdout
    assert f"{agents.folder / 'planner'} --fast 'go on'" in shown.stdout
    steps = json.loads(hocket(*words, "--json").stdout)
    assert [(step["agent"], step["iterations"], step["gate"]) for step in steps] == [
        ("planner", 1, "true"),
        ("builder", 3, "true"),
    ]
    assert hocket("run", "nosuch", "--dry-run").returncode == 2
    assert list(home.iterdir()) == []


@pytest.mark.req("S1-47")
def test_verbose_output_shows_what_is_started(hocket: Hocket, agents: Bin, project: Path) -> None:
    done = hocket("run", "planner", "-v", "-p", "go")
    assert done.stdout == "plan for go\n"
    assert f"program  {agents.folder / 'planner'}" in done.stderr
    assert f"argv     {agents.folder / 'planner'} go" in done.stderr
    assert f"cwd      {project}" in done.stderr


def test_detached_runs_go_on_and_end_by_themselves(hocket: Hocket, agents: Bin) -> None:
    plain = hocket("run", "planner", "--detach")
    as_json = hocket("run", "planner", "--detach", "--json")
    assert (plain.returncode, plain.stderr, as_json.stderr) == (0, "", "")
    number, id_ = hocket.number(), json.loads(as_json.stdout)["run"]
    assert plain.stdout == f"run {number}\n"
    assert id_ != hocket.runs()[0]["id"]
    assert [hocket("wait", run).returncode for run in (number, id_)] == [0, 0]


@pytest.mark.req("S1-B17", "S1-B18")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_the_whole_run(hocket: Hocket, agents: Bin, number: signal.Signals, code: int) -> None:
    running = hocket.start("run", "forever -> planner")
    assert running.stderr is not None
    until(running.stderr, "forever up")
    running.send_signal(number)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == code
    assert "■ stopped  run" in err
    assert json.loads(hocket("ps", "--json").stdout) == []


@pytest.mark.req("S1-B18")
def test_signal_with_json_ends_with_the_root(hocket: Hocket, agents: Bin) -> None:
    running = hocket.start("run", "forever:3", "--json")
    assert running.stdout is not None
    assert running.stderr is not None
    until(running.stdout, '"text"')
    running.send_signal(signal.SIGINT)
    last = json.loads(list(running.stdout)[-1])
    assert (running.wait(timeout=PATIENCE), running.stderr.read()) == (130, "")
    assert (last["type"], last["run"], last["data"]["status"]) == ("run.ended", last["root"], "stopped")


@pytest.mark.parametrize("gap", [0.0005, 0.005])
def test_two_signals_at_once_stop_once(hocket: Hocket, agents: Bin, gap: float) -> None:
    running = hocket.start("run", "forever", "--json")
    assert running.stdout is not None
    assert running.stderr is not None
    until(running.stdout, '"text"')
    running.send_signal(signal.SIGTERM)
    time.sleep(gap)  # The second comes while the first is still being dealt with, or just after.
    running.send_signal(signal.SIGTERM)
    last = json.loads(list(running.stdout)[-1])
    assert (running.wait(timeout=PATIENCE), running.stderr.read()) == (143, "")
    assert (last["type"], last["data"]["status"]) == ("run.ended", "stopped")


def test_hangup_leaves_the_run_alone(hocket: Hocket, agents: Bin) -> None:
    running = hocket.start("run", "forever")
    assert running.stderr is not None
    until(running.stderr, "forever up")
    running.send_signal(signal.SIGHUP)
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out) == (129, "")
    assert "hocket wait" in err
    (root, _) = json.loads(hocket("ps", "--json").stdout)
    assert root["status"] == "running"
    stopped = json.loads(hocket("stop", root["id"], "--json").stdout)
    assert (stopped["status"], stopped["survivors"]) == ("stopped", [])


def test_stop_from_elsewhere_exits_with_one(hocket: Hocket, agents: Bin) -> None:
    running = hocket.start("run", "forever", "--json")
    assert running.stdout is not None
    run = json.loads(until(running.stdout, '"text"'))["root"]
    hocket("stop", run)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 1


@pytest.mark.own_server
def test_killed_server_loses_no_watched_event(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("slow", "import pathlib, time\nfor n in range(60): print(n, flush=True); time.sleep(0.05)")
    running = hocket.start("run", "slow -> slow", "--json")
    assert running.stdout is not None
    assert running.stderr is not None
    lines = [until(running.stdout, '"text"')]
    for _ in range(3):
        lines += [next(running.stdout) for _ in range(8)]
        os.kill(living_server(hocket), signal.SIGKILL)
    # Not communicate(): it would miss what the reading above has taken ahead.
    lines += list(running.stdout)
    err = running.stderr.read()
    running.wait(timeout=PATIENCE)
    events = events_of("".join(lines))
    seqs = [event["seq"] for event in events]
    said = [event["data"]["text"] for event in events if event["type"] == "text"]
    assert (running.returncode, err) == (0, "")
    assert seqs == sorted(set(seqs))
    assert said == [str(n) for n in range(60)] * 2
    assert [event["run"] for event in events if event["type"] == "run.ended"].count(events[0]["root"]) == 1


def test_closed_stdout_is_no_failure(hocket: Hocket, agents: Bin) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m hocket run planner --json | head -n 1', sys.executable],
        cwd=hocket.cwd,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert json.loads(done.stdout)["type"] == "run.created"
    assert done.stderr == ""


def test_forkhestra_is_run(hocket: Hocket, agents: Bin) -> None:
    program = "import sys; from hocket.cli import forkhestra; sys.exit(forkhestra())"
    done = hocket("planner", "-q", "-p", "x", command=[sys.executable, "-c", program])
    assert (done.returncode, done.stdout) == (0, "plan for x\n")


def test_run_started_by_an_agent_is_its_child(hocket: Hocket, agents: Bin) -> None:
    command = [sys.executable, "-m", "hocket", "run", "planner", "-q"]
    agents("outer", f"import os; os.execv({sys.executable!r}, {command!r})")
    done = hocket("run", "outer")
    assert (done.returncode, done.stdout) == (0, "plan for\n")
    listed = {run["agent"]: run for run in hocket.runs() if run["kind"] == "leaf"}
    inner = next(run for run in hocket.runs() if run["depth"] == 1)
    assert inner["parent"] == listed["outer"]["id"]
    assert inner["root"] == listed["outer"]["root"]


INNER = """
import subprocess, sys
def dry(*words):
    command = [sys.executable, "-m", "hocket", "run", "planner", "--dry-run", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"{done.returncode} {done.stdout}{done.stderr}"
"""


def test_dry_run_inside_a_run_has_its_limits(hocket: Hocket, agent: Bin, agents: Bin) -> None:
    agent("outer", INNER + "print(dry())")
    code, _, said = hocket("run", "outer", "--timeout", "60").stdout.partition(" ")
    (step,) = json.loads(said)
    assert code == "0"
    assert 0 < step["chain_limits"]["timeout"] <= 60


def test_dry_run_inside_a_run_is_refused_alike(hocket: Hocket, agent: Bin, agents: Bin, world: Path) -> None:
    scripted = install_claude(world / "scripted")
    note = "if '--session-id' in sys.argv: open('told', 'w').write(dry('--until', 'true'))\n"
    agent("claude", f"import os\n{INNER}{note}os.execv({str(scripted)!r}, sys.argv)\n")
    assert hocket("run", "claude", "-p", "x").returncode == 0
    told = (hocket.cwd / "told").read_text()
    assert told.startswith("2 ")
    assert "may not set a gate" in told
    assert len(hocket.runs()) == 2, "nothing was started by it"


@pytest.mark.own_server
def test_dry_run_inside_a_run_starts_no_server(hocket: Hocket, agent: Bin, agents: Bin, world: Path) -> None:
    """Both ends of a FIFO wait for each other, so that no server is started before the dry run."""
    door = world / "door"
    os.mkfifo(door)
    agent("outer", INNER + f"open({str(door)!r}).read()\nsaid = dry()\nopen({str(door)!r}, 'w').write(said)")
    hocket("spawn", "outer")
    hocket("server", "stop")
    door.write_text("now")
    assert door.read_text().startswith("2 hocket: no server is running")
