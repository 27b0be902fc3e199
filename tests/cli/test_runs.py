"""``spawn ps show logs wait stop`` from outside, and the table of ``ps`` by itself."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from store.sample_events import StoreWriter, created, ended
from torture.installation import wait_for
from world import Bin, Hocket

from hocket.cli.runs import ps_table, show_lines
from hocket.store import NewRun, open_store
from hocket.views.run_list import tree_order

pytestmark = pytest.mark.shared_server

RUN_KEYS = {
    "id",
    "number",
    "kind",
    "agent",
    "provider",
    "status",
    "reason",
    "parent",
    "root",
    "depth",
    "task",
    "cwd",
    "pid",
    "session_id",
    "transcript",
    "started_at",
    "ended_at",
    "exit_code",
    "result",
    "cost_usd",
    "tokens",
    "needs_you",
}


def run(number: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": f"r{number}",
        "number": number,
        "agent": "builder",
        "status": "running",
        "parent": None if parent is None else f"r{parent}",
        "started_at": 100.0,
        **more,
    }


def test_runs_are_listed_below_their_parents() -> None:
    runs = [run(5, 2), run(1), run(4, 9), run(2, 1), run(3, 1)]
    assert [(one["number"], level) for one, level in tree_order(runs)] == [(1, 0), (2, 1), (5, 2), (3, 1), (4, 0)]


def test_table_labels_every_state_and_fits() -> None:
    runs = [
        run(1, status="waiting", needs_you=True, last="\x1b[1mpush?\x1b[0m\nnow"),
        run(2, 1, step=1, iteration=3, last="x" * 500, tokens=103_500, cost_usd=0.724),
        run(3, status="failed", reason="exit", exit_code=7, ended_at=160.0),
        run(4, status="failed", reason="start_failed", error="ENOENT: gone"),
    ]
    lines = ps_table(runs, 172.0, 110)
    assert lines[0].split() == ["RUN", "AGENT", "STEP", "STATE", "ELAPSED", "ENDED", "TOK", "COST", "LAST"]
    assert lines[1].endswith("◆ needs you  1:12              -       -      \\x1b[1mpush?\\x1b[0m now")
    assert lines[2].startswith("  2  builder  2 ·3")
    assert "  103.5k  $0.72  xxx" in lines[2]
    assert lines[2].endswith("…")
    assert lines[3].endswith("✗ failed     1:00     12s ago  -       -      exit 7")
    assert lines[4].endswith("ENOENT: gone")
    assert max(map(len, lines)) <= 110
    assert max(map(len, ps_table([*runs, run(5, agent="a-very-long-name" * 9)], 172.0, 40))) <= 40
    assert len(ps_table(runs, 172.0, None)[2]) > 200


CROWD = [
    run(812, agent="planner -> builder:3 -> (reviewer, qa) -> ship", cwd="/srv/shop/api", cost_usd=1.2, tokens=903_500),
    run(813, 812, agent="planner", step=0, cwd="/srv/shop/api", status="done", result="Six steps\n", ended_at=3500.0),
    run(815, 812, step=1, iteration=2, cwd="/hocket/worktrees/812-1/2-builder", last="Edit src/auth/session.py"),
    run(
        790,
        agent="/srv/other/.claude/agents/critic.md",
        cwd="/srv/blog/api",
        status="failed",
        reason="exit",
        exit_code=1,
    )
    | {"result": "2 failed, 31 passed", "ended_at": 150.0},
    run(780, agent="../tool", cwd="/srv/docs", status="waiting", parked_until=9e9, reason="rate_limited"),
]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (60, "RUN AGENT STATE TIME COST LAST"),
        (80, "RUN PROJECT AGENT STATE TIME COST LAST"),
        (120, "RUN PROJECT AGENT STEP STATE ELAPSED ENDED COST LAST"),
        (200, "RUN PROJECT AGENT STEP STATE ELAPSED ENDED TOK COST LAST"),
        (None, "RUN PROJECT AGENT STEP STATE ELAPSED ENDED TOK COST LAST"),
    ],
)
def test_table_shows_agent_and_last_words_always(columns: int | None, shown: str) -> None:
    head, *lines = ps_table(CROWD, 3620.0, columns)
    assert head.split() == shown.split()
    assert all(len(line) <= (columns or 300) for line in lines)
    assert all(any(agent in line for line in lines) for agent in (" planner ", " builder ", " critic ", " tool "))
    assert next(line for line in lines if " critic " in line)[head.index("LAST") :].startswith("exit 1: 2 fail")


def test_ended_runs_have_their_age() -> None:
    ages = dict(zip((780, 790, 812, 813, 815), ps_table(CROWD, 3620.0, 80)[1:], strict=True))
    assert [" 57m ago " in ages[790], " 2m ago " in ages[813], " 58:40 " in ages[815]] == [True, True, True]
    assert "‖ waits" in ages[780]
    assert ages[780].split("  ")[-1].startswith("until ")


def test_projects_are_listed_where_there_are_several() -> None:
    head, *lines = ps_table(CROWD, 3620.0, 120)
    projects = [line[head.index("PROJECT") :].split()[0] for line in lines]
    assert projects == ["docs", "blog/api", "shop/api", "shop/api", "shop/api"], "a worktree is part of its project"
    assert "PROJECT" not in ps_table(CROWD[:3], 3620.0, 120)[0]


def test_empty_columns_are_omitted_on_a_terminal() -> None:
    assert ps_table([run(1)], 172.0, 80)[0].split() == ["RUN", "AGENT", "STATE", "ELAPSED", "LAST"]
    assert "TOK" in ps_table([run(1)], 172.0, None)[0]


def test_last_words_are_not_the_marker() -> None:
    done = run(1, status="done", reason="marker", result="All green\n**FORKHESTRA_COMPLETE**\n", ended_at=170.0)
    assert ps_table([done], 172.0, 80)[1].endswith("All green")
    assert ps_table([{**done, "result": "FORKHESTRA_COMPLETE"}], 172.0, 80)[1].endswith("marker")


def test_states_are_coloured_where_colour_is_wanted() -> None:
    head, line = ps_table([run(1)], 172.0, 80, colour=True)
    assert (head.startswith("\x1b[1mRUN"), "\x1b[34m● running\x1b[0m" in line) == (True, True)
    assert "\x1b" not in "".join(ps_table([run(1)], 172.0, 80))


def test_show_prints_the_result_without_controls() -> None:
    lines = show_lines(run(1, kind="leaf", result="\x1b]0;x\x07done\n", dir="/h/runs/r1"), 160.0, 80)
    assert lines[-1] == "done"
    assert "files    /h/runs/r1" in lines
    assert not any(line.startswith("files") for line in show_lines(run(2, kind="chain", dir="/h/runs/r2"), 160.0, 80))


@pytest.mark.req("S4-52")
def test_show_always_says_where_the_agent_was_found() -> None:
    found = run(1, agent="reviewer", source="project-local", definition="/p/.claude/agents/reviewer.md")
    assert "agent    reviewer (project-local, /p/.claude/agents/reviewer.md)" in show_lines(found, 160.0, 80)
    assert "agent    make (PATH)" in show_lines(run(2, agent="make", source="PATH"), 160.0, 80)


@pytest.mark.own_server
def test_spawned_run_is_waited_for_and_shown(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("echo", "import sys; print(*sys.argv[1:]); print('aside', file=sys.stderr); sys.exit(4)")
    spawned = hocket("spawn", "echo", "-p", "the prompt", "--json", "--", "--flag")
    assert (spawned.returncode, spawned.stderr) == (0, "")
    ref = json.loads(spawned.stdout)["run"]

    waited = hocket("wait", ref, "--json")
    assert (waited.returncode, waited.stderr) == (1, "")
    seen = json.loads(waited.stdout)
    assert set(seen) >= RUN_KEYS
    assert (seen["status"], seen["reason"], seen["exit_code"]) == ("failed", "exit", 4)
    assert (seen["result"], seen["cwd"], seen["root"]) == ("--flag the prompt\n", str(project), ref)

    detail = json.loads(hocket("show", ref[:6], "--json").stdout)
    assert (detail["id"], detail["children"]) == (ref, [])
    assert Path(detail["dir"]).is_dir()
    human = hocket("show", str(seen["number"])).stdout
    assert "✗ failed exit" in human
    assert human.endswith("--flag the prompt\n")

    assert hocket("logs", ref, "--raw").stdout == "--flag the prompt\n"
    assert hocket("logs", ref, "--raw", "--err").stdout == "aside\n"
    said = [line.split(" ", 1)[1] for line in hocket("logs", ref).stdout.splitlines()]
    assert said[0] == "echo > the prompt"
    assert sorted(said[1:]) == ["echo ! aside", "echo --flag the prompt", "echo failed: exit 4"]
    assert [line.split(" ", 1)[1] for line in hocket("logs", ref, "--err").stdout.splitlines()] == ["echo ! aside"]
    events = [json.loads(line) for line in hocket("logs", ref, "--json").stdout.splitlines()]
    assert (events[0]["type"], events[-1]["type"]) == ("run.created", "run.ended")

    assert json.loads(hocket("ps", "--json").stdout) == []
    assert [one["id"] for one in json.loads(hocket("ps", "-a", "--json").stdout)] == [ref]
    stopped = json.loads(hocket("stop", ref, "--json").stdout)
    assert (stopped["status"], stopped["stopped"]) == ("failed", [])


def test_unknown_run_does_not_prevent_other_stops(hocket: Hocket, agent: Bin) -> None:
    agent("forever", "import time; time.sleep(600)")
    ref = hocket.created("spawn", "forever")
    done = hocket("stop", "nosuch", ref, "--json")
    assert done.returncode == 2
    assert "nosuch" in done.stderr
    assert json.loads(done.stdout)["stopped"] == [ref]


@pytest.mark.parametrize("chain", ["talker -> talker", "talker:3", "(talker, other)"])
def test_spawn_of_a_chain_suggests_run(hocket: Hocket, chain: str) -> None:
    done = hocket("spawn", chain)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"hint: spawn starts one agent; for a chain: hocket run --detach {shlex.quote(chain)}\n" in done.stderr
    assert "hocket run" not in hocket("spawn", "a typing error").stderr


def test_empty_list_suggests_the_next_command(hocket: Hocket) -> None:
    done = hocket("ps")
    assert (done.returncode, done.stdout) == (0, "")
    assert "hocket run" in done.stderr
    assert hocket("ps", "--json").stdout == "[]\n"


@pytest.mark.parametrize("command", ["show", "logs", "wait", "stop"])
def test_unknown_run_exits_with_two(hocket: Hocket, command: str) -> None:
    done = hocket(command, "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hocket: there is no run 'nosuch'\nhint: `hocket ps -a` lists them\n"


@pytest.mark.parametrize("command", ["show", "logs", "wait", "stop", "resume"])
@pytest.mark.parametrize("name", ["", "..", "1/output", "1/events", "../../etc"])
def test_invalid_name_is_unknown(hocket: Hocket, command: str, name: str) -> None:
    done = hocket(command, name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no run {name!r}" in done.stderr
    assert "route" not in done.stderr


LIMITED = """
import json, sys, time
if "--version" in sys.argv:
    sys.exit(print("2.1.325 (Claude Code)"))
session = sys.argv[sys.argv.index("--session-id") + 1]
def say(**line):
    print(json.dumps({**line, "session_id": session}), flush=True)
sys.stdin.readline()
say(type="system", subtype="init", cwd="/", tools=[])
say(type="rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": time.time() + 3000})
say(type="result", subtype="success", is_error=True, result="limit reached")
"""


def test_parked_chain_shows_reason_and_time(hocket: Hocket, agent: Bin) -> None:
    program = agent("limited-claude", LIMITED)
    ref = hocket.created("run", "claude:3", "-p", "x", "--detach", env={"HOCKET_CLAUDE": str(program)})
    parked = wait_for(lambda: [one for one in listed(hocket) if one["parked_until"]] or None, "a chain that waits")
    assert {(one["kind"], one["status"], one["reason"]) for one in parked} == {
        ("chain", "waiting", "rate_limited"),
        ("loop", "waiting", "rate_limited"),
    }
    lines = hocket("ps").stdout.splitlines()
    assert [("‖ waits " in line, line.endswith(": usage limit")) for line in lines[1:]] == [(True, True)] * 2
    waited = hocket("wait", ref, "--timeout", "0.1")
    assert waited.returncode == 3
    assert "it waits for the usage limit until " in waited.stderr
    assert "running" not in hocket("show", ref).stdout
    hocket("stop", ref)


def listed(hocket: Hocket) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hocket("ps", "--json").stdout)
    return found


def test_running_gate_is_shown(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "print('there')")
    ref = hocket.created("run", "quick", "--until", "sleep 600", "--detach")
    (chain,) = wait_for(lambda: [one for one in listed(hocket) if "gate" in str(one["last"])], "the gate")
    assert (chain["kind"], chain["last"]) == ("chain", "gate: sleep 600")
    assert "gate: sleep 600" in hocket("ps").stdout
    hocket("stop", ref)


def test_wait_timeout_leaves_the_run_running(hocket: Hocket, agent: Bin) -> None:
    agent("forever", "import time; print('up', flush=True); time.sleep(600)")
    ref = hocket.created("spawn", "forever")
    waited = hocket("wait", ref, "--timeout", "0.2", "--json")
    assert (waited.returncode, waited.stdout) == (3, "")
    following = hocket.start("logs", "-f", "--raw", ref)
    assert following.stdout is not None
    assert following.stdout.readline() == "up\n"
    listed = hocket("ps").stdout.splitlines()
    assert listed[1].split()[1:4] == ["forever", "●", "running"]
    stopped = hocket("stop", ref)
    assert (stopped.returncode, stopped.stdout) == (0, f"{ref}  ■ stopped\n")
    assert following.wait(timeout=PATIENCE) == 0
    assert hocket("wait", ref).returncode == 1


def test_table_escapes_what_is_to_be_allowed() -> None:
    hidden = run(1, status="waiting", needs_you=True, last="Bash wants to run: rm -rf ~ #\rls")
    assert ps_table([hidden], 172.0, 120)[1].endswith(r"Bash wants to run: rm -rf ~ #\rls")
    assert ps_table([run(1, last="10%\r50%")], 172.0, 120)[1].endswith("  50%")


def test_overwritten_lines_stay_in_the_result(hocket: Hocket, agent: Bin) -> None:
    written = b"10%\r50%\r100%\nwindows\r\n"
    agent("bar", f"import os\nos.write(1, {written!r})\nos.write(2, b'a\\rb\\n')")
    done = hocket("run", "bar")
    assert done.stdout == "10%\n50%\n100%\nwindows\n"
    ref = hocket.number(2)
    assert hocket("wait", ref).stdout == done.stdout
    assert hocket("show", ref).stdout.endswith("\n\n100%\nwindows\n")
    said = [line.split(" ", 2)[2] for line in hocket("logs", ref).stdout.splitlines()]
    assert sorted(said) == ["! b", "100%", "windows"]
    raw = subprocess.run([sys.executable, "-m", "hocket", "logs", "--raw", ref], capture_output=True, check=True)
    assert raw.stdout == written
    assert json.loads(hocket("show", ref, "--json").stdout)["result"] == written.decode()


def test_raw_log_of_a_chain_is_in_order(hocket: Hocket, agent: Bin) -> None:
    agent("first", "import sys; sys.stdout.buffer.write(b'\\xff\\x00one')")
    agent("second", "print('two')")
    done = hocket("run", "first -> second:2", "--json")
    ref = json.loads(done.stdout.splitlines()[-1])["root"]
    raw = hocket("logs", ref, "--raw").stdout
    assert raw == "\ufffd\x00onetwo\ntwo\n"
    assert hocket("logs", "-f", ref, "--raw").stdout == raw


def test_unwritable_output_is_reported_in_one_line(hocket: Hocket, agent: Bin) -> None:
    agent("quick", "print('done')")
    for command in (["ps", "-a", "--json"], ["run", "quick"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "hocket", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 1
        assert "cannot write the output: No space left" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.own_server
def test_long_history_is_listed_in_pages(home: Path, hocket: Hocket) -> None:
    store = open_store(home / "hocket.db")
    store_writer = StoreWriter(store)
    ids = {f"r{number}": number for number in range(1, 1003)}
    told = [event for run, number in ids.items() for event in (created(run, number), ended(run))]
    store_writer.write(*told, new={run: NewRun(b"{}") for run in ids})
    store_writer.writer.close()
    store.close()
    newest = hocket("ps", "-a")
    assert len(newest.stdout.splitlines()) == 1 + 1000
    assert newest.stderr.splitlines()[-1] == "Older runs: hocket ps -a --before 3"
    oldest = hocket("ps", "-a", "--before", "3")
    assert [line.split()[0] for line in oldest.stdout.splitlines()] == ["RUN", "1", "2"]
    assert "older ones" not in oldest.stderr
    assert [run["number"] for run in json.loads(hocket("ps", "-a", "--json", "--before", "2").stdout)] == [1]
