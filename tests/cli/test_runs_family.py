"""``ps --tree`` and ``show --why``: a family of runs, what it costs, and what a state rests on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from api.serving import wait_for
from cli.columns import lines_at, too_wide
from store.sample_events import StoreWriter, created, ended, said
from world import Bin, Hocket

from hocket.cli.runs import TREE_COLUMNS, ps_table
from hocket.model import Event
from hocket.store import NewRun, open_store

pytestmark = pytest.mark.shared_server


def tree_rows(hocket: Hocket, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(hocket("ps", "--tree", *words, "--json").stdout)
    return rows


def test_live_run_is_shown_below_its_ended_parents(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("sleeper", "import signal; signal.pause()")
    spawn = [sys.executable, "-m", "hocket", "spawn"]
    agent("middle", f"import subprocess; subprocess.run({[*spawn, 'sleeper']!r}, check=True)")
    agent("sibling", "print('done')")
    agent(
        "top", f"import subprocess; [subprocess.run([*{spawn!r}, name], check=True) for name in ('sibling', 'middle')]"
    )
    top = hocket.created("spawn", "top")
    assert hocket("wait", top).returncode == 0
    for run in hocket.runs():
        if run["agent"] != "sleeper":
            hocket("wait", run["id"])
    live = [run["agent"] for run in json.loads(hocket("ps", "--project", str(project), "--json").stdout)]
    assert live == ["sleeper"]
    here = ("--project", str(project))
    shown = tree_rows(hocket, *here)
    assert [(run["agent"], run["depth"], run["status"]) for run in shown] == [
        ("top", 0, "done"), ("middle", 1, "done"), ("sleeper", 2, "running"),
    ]  # fmt: skip
    assert [run["agent"] for run in tree_rows(hocket, *here, "-a")] == ["top", "sibling", "middle", "sleeper"]
    family = [run["agent"] for run in tree_rows(hocket, *here, "-a", "--agent", "middle")]
    assert family == ["top", "middle", "sleeper"], "what is above and below it, and nothing beside it"
    table = lines_at(80, project, "ps", "--tree", *here)
    assert [line.split()[1:3] for line in table] == [["AGENT", "D"], ["top", "0"], ["middle", "1"], ["sleeper", "2"]]
    assert [len(line) - len(line.lstrip()) for line in table[1:]] == [0, 2, 4]
    middle = next(run for run in shown if run["agent"] == "middle")
    assert f"parent   {middle['number']} middle" in hocket("show", shown[2]["id"]).stdout.split("\n")
    stopped = hocket("stop", top)
    assert (stopped.returncode, stopped.stdout) == (0, f"{top}  ✓ done  exit; 1 run below it ended too\n")
    assert tree_rows(hocket, *here) == [], "a stop of the ended root takes what is below it"


SPAWNED = """
import json, os, signal
about = {"streams": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)], "session": os.getsid(0)}
print(json.dumps(about), flush=True)
signal.pause()
"""


@pytest.mark.req("S3-20")
@pytest.mark.req("S3-21")
@pytest.mark.req("S3-22")
def test_spawned_agent_outlives_command_and_spawner(hocket: Hocket, agent: Bin, project: Path) -> None:
    """It has a session and streams of its own, its output is in its log, and it is stopped through the registry."""
    (project / "hocket.toml").write_text("registry_file = true\n")
    agent("spawned", SPAWNED)
    command = [sys.executable, "-m", "hocket", "spawn", "spawned", "--json"]
    lead = "import json, os, subprocess\n"
    lead += "streams = [os.readlink(f'/proc/self/fd/{number}') for number in (0, 1, 2)]\n"
    lead += f"child = json.loads(subprocess.run({command!r}, check=True, stdout=subprocess.PIPE).stdout)['run']\n"
    agent("lead", lead + "print(json.dumps({'child': child, 'streams': streams, 'session': os.getsid(0)}))")
    done = json.loads(hocket("run", "lead", "--quiet").stdout)
    child = done["child"]
    follower = hocket.start("logs", "-f", "--raw", child)
    assert follower.stdout is not None
    about = json.loads(follower.stdout.readline())
    assert about["session"] != done["session"]
    assert not set(about["streams"][1:]) & set(done["streams"]), "neither its output nor its errors go to the lead"
    assert about["streams"][0] != done["streams"][0] or about["streams"][0] == "/dev/null"
    shown = json.loads(hocket("show", child, "--json").stdout)
    assert (shown["status"], shown["depth"]) == ("running", 1)
    entries = json.loads((project / ".active-pids.json").read_text())
    assert (entries[child]["status"], entries[child]["pid"]) == ("in-progress", shown["pid"])
    assert hocket("stop", child).returncode == 0
    assert follower.wait(60) == 0
    wait_for(
        lambda: json.loads((project / ".active-pids.json").read_text())[child]["status"] == "interrupted", "its end"
    )
    assert not Path(f"/proc/{shown['pid']}").exists()


def test_tree_is_not_listed_for_sessions(hocket: Hocket) -> None:
    refused = hocket("ps", "--tree", "--observed")
    assert (refused.returncode, "give --observed or --tree, not both" in refused.stderr) == (2, True)


def _usage(run: str, root: str, cost: float | None, tokens: int | None, **more: Any) -> Event:
    return said(run, "usage", root, cost_usd=cost, tokens=tokens, **more)


@pytest.mark.own_server
def test_cost_of_run_includes_everything_below(hocket: Hocket, home: Path) -> None:
    """Also through chains and loops, of live and of ended runs; what is not reported is unknown, never zero."""
    store = open_store(home / "hocket.db")
    store_writer = StoreWriter(store)
    tree = [
        ("rtop", None, "leaf"), ("rchain", "rtop", "chain"), ("rloop", "rchain", "loop"), ("rpass1", "rloop", "leaf"),
        ("rpass2", "rloop", "leaf"), ("rsilent", "rpass2", "leaf"), ("rbelow", "rpass1", "leaf"),
    ]  # fmt: skip
    events = [created(name, place, parent, "rtop", kind) for place, (name, parent, kind) in enumerate(tree, 1)]
    events += [created("rother", 8)]
    events += [_usage("rtop", "rtop", 1.0, 100), _usage("rpass1", "rtop", 0.5, 50), _usage("rbelow", "rtop", 0.25, 25)]
    events += [_usage("rpass2", "rtop", 0.125, None, cost_estimated=True)]
    events += [ended(name, "rtop") for name, _, _ in reversed(tree)] + [ended("rother")]
    names = [*(name for name, _, _ in tree), "rother"]
    store_writer.write(*events, new={name: NewRun(b"{}") for name in names})
    store_writer.writer.close()
    store.close()
    rows = {run["id"]: run for run in tree_rows(hocket, "-a")}
    found = {name: (row["tree_cost_usd"], row["tree_tokens"], row["tree_cost_estimated"]) for name, row in rows.items()}
    assert found == {
        "rtop": (1.875, 175, True),
        "rchain": (0.875, 75, True),
        "rloop": (0.875, 75, True),
        "rpass1": (0.75, 75, False),
        "rbelow": (0.25, 25, False),
        "rpass2": (0.125, None, True),
        "rsilent": (None, None, False),
        "rother": (None, None, False),
    }
    assert "tree_cost_usd" not in json.loads(hocket("ps", "-a", "--json").stdout)[0]
    assert "$1.88" in hocket("ps", "-a", "--tree").stdout
    loop = json.loads(hocket("show", "rloop", "--json").stdout)
    assert (loop["tree_cost_usd"], loop["tree_tokens"], loop["tree_cost_estimated"]) == (0.875, 75, True)
    assert "tree cost  $0.7500, 75 tokens" in hocket("show", "rpass1").stdout
    assert "tree cost" not in hocket("show", "rbelow").stdout


NAMES = ("planner", "builder-with-a-long-name", "reviewer", "qa", "planner -> builder:3 -> (reviewer, qa)")


def deep_family(count: int = 40, deepest: int = 4) -> list[dict[str, Any]]:
    """A family in which each run above the last level has children, some of them chains with loops."""
    runs: list[dict[str, Any]] = []
    for number in range(count):
        parent = runs[(number - 1) // 2] if number else None
        depth = min(deepest, parent["depth"] + 1) if parent else 0
        status = ("running", "waiting", "done", "failed")[number % 4]
        ended_at = 900.0 if number % 4 > 1 else None
        runs.append(
            {"id": f"r{number}", "number": 9000 + number, "parent": parent and parent["id"], "depth": depth}
            | {"agent": NAMES[number % 5], "status": status, "started_at": 100.0, "ended_at": ended_at, "reason": None}
            | {
                "cwd": ("/srv/shop/api", "/srv/a-project-with-a-long-name")[number % 2],
                "last": "Edit src/session.py now",
            }
            | {"tree_cost_usd": 12.5 + number, "tree_tokens": 90_000, "needs_you": number == 5}
        )
    return runs


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_deep_family_is_readable_at_every_width(columns: int) -> None:
    head, *lines = ps_table(deep_family(), 1000.0, columns, headings=TREE_COLUMNS)
    assert {"RUN", "PROJECT", "AGENT", "D", "STATE", "TIME", "COST", "LAST"} <= set(head.split())
    assert (len(lines), too_wide(lines, columns)) == (40, [])
    for name in ("PROJECT", "AGENT", "STATE", "TIME", "COST", "LAST"):
        place = head.index(name)
        cells = [line[place:].split("  ")[0].strip() for line in lines]
        assert all(len(cell.rstrip("…")) >= 2 for cell in cells), name
    agents = [line[head.index("AGENT") :].split("  ")[0] for line in lines]
    assert all(len(cell) >= 8 or cell in ("planner", "qa") for cell in agents)


def test_indentation_is_limited_in_very_deep_trees() -> None:
    runs = [
        {"id": f"r{number}", "number": number, "parent": f"r{number - 1}", "agent": "builder", "status": "running"}
        for number in range(1, 40)
    ]
    for columns in (80, 120):
        lines = ps_table(runs, 0.0, columns)[1:]
        assert max(len(line) - len(line.lstrip()) for line in lines) <= columns // 10
        assert all(" builder " in line for line in lines)


def test_state_of_a_run_is_explained(hocket: Hocket, agent: Bin) -> None:
    agent("bad", "import sys; sys.exit(3)")
    run = hocket.created("spawn", "bad")
    assert hocket("wait", run).returncode == 1
    told = hocket("show", run, "--why")
    rows = dict(line.split("  ", 1) for line in told.stdout.splitlines())
    facts = {name: text.strip() for name, text in rows.items()}
    assert facts["why"] == "its process ended: exit code 3"
    assert facts["exit record"].startswith("code 3, ")
    assert facts["recorded end"] == "status failed, reason exit, exit code 3"
    assert facts["keeper lock"] in ("free", "held"), "its keeper leaves a moment after the end"
    found = json.loads(hocket("show", run, "--why", "--json").stdout)
    assert (found["exit"]["code"], found["status"], found["queue"]) == (3, "failed", None)
    assert hocket("show", "nosuch", "--why").returncode != 0
    assert hocket("show", run, "--why", "--full").returncode == 2
