"""``hocket chains`` from outside, and the flags by which a chain is bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from world import Bin, Hocket

from hocket.cli.runs import ps_table

pytestmark = [pytest.mark.shared_server, pytest.mark.in_process]

TOML = """
[chains.ship]
description = "Plan, build, look again"
prompt = "Ship ${WHAT}"
until = "make test"
budget_usd = 5
steps = [
    { agent = "drafter", prompt = "Plan: {{task}}" },
    { group = [{ agent = "smith", iterations = 3, failures = 2 }, { agent = "critic", args = ["--in", "${WHERE}"] }] },
]
[chains.lost]
steps = [{ agent = "missing-agent" }]
"""


@pytest.fixture
def shop(agent: Bin, project: Path) -> Path:
    for name in ("drafter", "smith", "critic"):
        agent(name, f"import sys; print('{name}', *sys.argv[1:])")
    (project / "hocket.toml").write_text(TOML)
    return project


def chains_json(hocket: Hocket, *words: str, code: int = 0) -> Any:
    done = hocket("chains", *words, "--json")
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


@pytest.mark.own_server
def test_chains_are_listed_with_their_problems(hocket: Hocket, shop: Path, home: Path) -> None:
    done = hocket("chains")
    assert done.returncode == 0
    lost, ship = done.stdout.splitlines()[1:]
    assert lost.split()[:3] == ["lost", "missing-agent", "✗"]
    assert ship == "ship   drafter → (smith:3, critic)  Plan, build, look again"
    assert list(home.iterdir()) == []


def test_chains_are_listed_as_json(hocket: Hocket, shop: Path) -> None:
    found = chains_json(hocket)
    lost, ship = found["chains"]
    assert "missing-agent" in lost["problem"]
    assert (ship["file"], ship["problem"], found["problems"]) == (str(shop / "hocket.toml"), None, [])
    assert (ship["text"], ship["variables"]) == ("drafter -> (smith:3, critic)", ["WHAT", "WHERE"])
    steps = [(step["step"], step["grouped"], step["agent"], step["iterations"]) for step in ship["steps"]]
    assert steps == [(1, False, "drafter", None), (2, True, "smith", 3), (2, True, "critic", None)]
    assert (ship["budget_usd"], ship["steps"][1]["failures"]) == (5, 2)


def test_chain_is_shown_in_full(hocket: Hocket, shop: Path) -> None:
    shown = hocket("chains", "ship").stdout
    for words in ("make test (at most 10:00)", "$5.00", "2 failures in a row", "--in '${WHERE}'"):
        assert words in shown
    assert shown.endswith("hocket run --chain ship WHAT=… WHERE=…\n")
    assert chains_json(hocket, "ship")["name"] == "ship"


def test_unknown_chain_is_refused_with_a_suggestion(hocket: Hocket, shop: Path) -> None:
    done = hocket("chains", "shipp")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Available chains: lost, ship" in done.stderr
    assert 'did you mean "ship"?' in done.stderr


def test_broken_file_is_reported_and_hides_no_other(hocket: Hocket, shop: Path) -> None:
    (shop / "forge").mkdir()
    (shop / "forge/chains.json").write_text('{"chains": {"x": {"stepss": []}}}')
    done = hocket("chains")
    assert done.returncode == 1
    assert "drafter → (smith:3, critic)" in done.stdout
    assert f'{shop}/forge/chains.json: chain "x": unknown key "stepss"' in done.stderr
    assert 'did you mean "steps"?' in done.stderr
    (problem,) = chains_json(hocket, code=1)["problems"]
    assert (problem["path"], problem["hint"]) == (f"{shop}/forge/chains.json", 'did you mean "steps"?')


def test_without_any_chain_the_places_are_named(hocket: Hocket, project: Path) -> None:
    done = hocket("chains")
    assert (done.returncode, done.stdout) == (0, "")
    assert str(project / "forge/chains.json") in done.stderr
    assert hocket("chains", "--project", str(project / "gone")).returncode == 2


# --- Bounds on the command line -----------------------------------------------------------------------------


def dry(hocket: Hocket, *words: str) -> list[dict[str, Any]]:
    done = hocket("run", *words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    steps: list[dict[str, Any]] = json.loads(done.stdout)
    return steps


def test_detail_shows_line_ends_and_fractions_of_seconds(hocket: Hocket, shop: Path) -> None:
    flags = ["--idle-timeout", "100ms", "--max-failures", "1", "--no-progress", "1"]
    shown = hocket("run", "smith:4", "-p", "one\ntwo", "--dry-run", *flags).stdout
    assert "one ↵ two" in shown
    assert "0.1 s without output · 1 failure · 1 iteration without progress" in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--marker", ""], "marker: must not be empty"),
        (["--marker", "**"], "a marker is one line"),
        (["--timeout", "99999999d"], "timeout: expected `float` <= 1000000000.0"),
        (["-p", "use ${HOME}"], "the variable HOME has no value"),
    ],
)
def test_invalid_limits_are_refused(hocket: Hocket, shop: Path, flags: list[str], words: str) -> None:
    done = hocket("run", "smith:4", *flags, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    refused = hocket("run", "smith:4", *flags)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") <= 2


def test_hint_says_how_to_escape_a_dollar_sign(hocket: Hocket, shop: Path) -> None:
    assert "piped into -p -" in hocket("run", "smith", "-p", "use ${HOME}").stderr
    assert "use ${HOME}" in hocket("run", "smith", "-p", "-", stdin="use ${HOME}").stdout


def test_flags_bound_a_chain_and_its_steps(hocket: Hocket, shop: Path) -> None:
    flags = ["--budget", "2.50", "--budget-tokens", "9", "--idle-timeout", "5m", "--max-failures", "3"]
    more = ["--no-progress=2", "--gate-timeout", "90s", "--on-lost", "retry", "--until", "true"]
    step = dry(hocket, "smith:4", *flags, *more)[0]
    assert step["limits"] == {"idle_timeout": 300, "failures": 3, "no_progress": 2}
    assert step["chain_limits"] == {**step["limits"], "budget_usd": 2.5, "budget_tokens": 9}
    assert (step["gate"], step["gate_timeout"], step["on_lost"]) == ("true", 90, "retry")


@pytest.mark.req("S1-48")
def test_dry_run_shows_groups_gates_and_limits(hocket: Hocket, shop: Path) -> None:
    shown = hocket("run", "--chain", "ship", "WHAT=it", "WHERE=here", "--dry-run").stdout
    assert shown.startswith("limits of the chain: $5.00\nstep 1: drafter\n")
    assert "step 2, 1 of 2 in parallel: smith up to 3 times, until it says FORKHESTRA_COMPLETE\n" in shown
    assert "step 2, 2 of 2 in parallel: critic\n" in shown
    assert shown.count("gate     make test (at most 10:00)") == 3
    assert "limits   2 failures in a row" in shown
    assert "found    PATH" in shown


@pytest.mark.parametrize(
    "words",
    [
        *(["--budget", "0"], ["--budget", "-1"], ["--budget", "nan"], ["--budget", "1e3"], ["--budget", "x"]),
        *(["--budget-tokens", "0"], ["--budget-tokens", "1.5"], ["--max-failures", "0"], ["--no-progress", "-1"]),
        *(["--idle-timeout", "soon"], ["--idle-timeout", "0"], ["--gate-timeout", "0"], ["--on-lost", "panic"]),
    ],
    ids=" ".join,
)
def test_invalid_option_value_is_refused(hocket: Hocket, shop: Path, words: list[str]) -> None:
    done = hocket("run", "drafter", *words, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hocket: ")


def test_group_result_is_passed_to_the_next_step(hocket: Hocket, shop: Path) -> None:
    (shop / "hocket.toml").write_text(
        '[chains.c]\nsteps = [{ agent = "drafter" }, { group = [{ agent = "smith" }, { agent = "critic" }] },'
        ' { agent = "drafter", prompt = "after {{previous.result}}, for {{task}}" }]\n'
    )
    done = hocket("run", "--chain", "c", "-p", "me")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("drafter after ")
    assert "smith me" in done.stdout
    assert "critic me" in done.stdout
    assert done.stdout.endswith(", for me\n")


def test_step_has_the_same_number_everywhere(hocket: Hocket, shop: Path) -> None:
    """In a plan, in `ps` and for `resume --from` the members of a group share one."""
    dsl = "drafter -> (smith, critic) -> drafter"
    planned = hocket("run", dsl, "-p", "me", "--dry-run", cwd=shop).stdout
    assert [line[:6] for line in planned.splitlines() if line.startswith("step ")] == [
        *("step 1", "step 2", "step 2", "step 3"),
    ]
    assert hocket("run", dsl, "-p", "me", cwd=shop).returncode == 0
    below = [run for run in hocket.runs() if run["parent"]]
    shown = [line.split("✓")[0].split()[-1] for line in ps_table(below, 0.0, None)[1:]]
    assert sorted(shown) == ["1", "2", "2", "2", "3"]


# --- What it costs, and what it waits for -------------------------------------------------------------------

PAID = r"""
import json, os, sys, time

if sys.argv[1:] == ["--version"]:
    print("2.1.325 (Claude Code)")
    sys.exit(0)
flag = "--session-id" if "--session-id" in sys.argv else "--resume"
session = sys.argv[sys.argv.index(flag) + 1]
sys.stdin.readline()

def say(kind, **more):
    print(json.dumps({"type": kind, "session_id": session, **more}), flush=True)

def result(words, **more):
    models = {"fake": {"inputTokens": 10, "outputTokens": 5, "costUSD": 1.0}}
    more = {"subtype": "success", "is_error": False, **more}
    say("result", result=words, num_turns=1, duration_ms=1, total_cost_usd=1.0, usage={}, modelUsage=models,
        permission_denials=[], **more)

if os.path.exists("limit"):
    os.rename("limit", "over")
    say("rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": int(time.time()) + 2})
    result("no more today", is_error=True, api_error_status=429)
    sys.exit(1)
result("a dollar's worth")
"""


def test_exhausted_budget_exits_with_five(hocket: Hocket, agent: Bin) -> None:
    agent("claude", PAID)
    done = hocket("run", "claude:9", "-p", "x", "--budget", "3")
    assert done.returncode == 5, done.stderr
    assert "✗ failed  claude  3/9  budget" in done.stderr
    assert "$3.00 of $3.00, 45 tokens" in done.stderr


def test_overshoot_of_a_budget_is_shown(hocket: Hocket, agent: Bin) -> None:
    agent("claude", PAID)
    done = hocket("run", "claude:9", "-p", "x", "--budget", "2.50", "--budget-tokens", "40")
    over = "$3.00 of $2.50, $0.50 over, 45 of 40 tokens, 5 over"
    assert over in done.stderr, "the third turn is the one that passes it, and the last one"
    number = hocket.number()
    assert over in hocket("show", number).stdout
    shown = json.loads(hocket("show", number, "--json").stdout)
    assert (shown["budget_usd"], shown["budget_tokens"], shown["cost_usd"]) == (2.5, 40, 3.0)


def test_usage_limit_is_awaited_without_an_iteration(hocket: Hocket, agent: Bin, project: Path) -> None:
    agent("claude", PAID)
    (project / "limit").touch()
    done = hocket("run", "claude", "-p", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a dollar's worth\n"
    assert f" run {hocket.number()} waits for the usage limit until " in done.stderr
    assert f" run {hocket.number()} continues" in done.stderr
    assert "✓ done  claude  1/1  single_run" in done.stderr
