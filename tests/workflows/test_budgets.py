"""Budgets: added up over whole trees, reached and not run past, and known again by the next server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from store.sample_events import created, ended, said
from workflows.engine_fixture import EngineRunner, EventLog, engine_runner, open_event_log, stop_all, until
from world import Bin, Hocket

from hocket.errors import LimitReached
from hocket.model import Event, Reason, Run, Status, fold
from hocket.sessions.stops import Stops, stopped_in
from hocket.store import Committed, NewRun
from hocket.workflows.budgets import Budgets, Spent, excess
from hocket.workflows.chain_state import LiveChains

SPEAKING = """
import json, os, select, sys
def say(**line):
    print(json.dumps(line), flush=True)
def turn(cost, **more):
    say(type="system", subtype="init", session_id="s", cwd=os.getcwd(), tools=[], model="m")
    with open("ledger", "a") as ledger:
        ledger.write(f"{cost}\\n")
    say(type="result", subtype="success", is_error=False, result="a turn", session_id="s",
        **({} if cost is None else {"total_cost_usd": cost}), **more)
with open("argv", "a") as argv:
    argv.write(json.dumps(sys.argv[1:]) + "\\n")
sys.stdin.readline()
"""
ONE_TURN = SPEAKING + "turn(1)\n"
MANY_TURNS = SPEAKING + "for cost in range(1, 40):\n    turn(cost)\n    select.select([], [], [], 0.6)\n"
TOKENS = SPEAKING + "turn(None, modelUsage={'m': {'inputTokens': 30, 'outputTokens': 10}})\n"
ODD = SPEAKING + "turn(float(sys.argv[-1]) if sys.argv[-1] != 'none' else None)\n"
SLEEPER = "import signal; signal.pause()"


def run_with(**bounds: Any) -> Run:
    event = created("r1", 1)
    return fold([Event(1, 0.0, "r1", "r1", "run.created", {**event.data, **bounds})])


# --- The rule -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "spent", "is_over"),
    [
        ({}, Spent(1e9, 10**9), False),
        ({"budget_usd": 5.0}, Spent(4.99, 10**9), False),
        ({"budget_usd": 5.0}, Spent(5.0, 0), True),
        ({"budget_usd": 0.3}, Spent(0.1 + 0.1 + 0.1 - 1e-12, 0), True),
        ({"budget_tokens": 100}, Spent(99.0, 99), False),
        ({"budget_tokens": 100}, Spent(0.0, 100), True),
        ({"budget_usd": 5.0, "budget_tokens": 100}, Spent(1.0, 101), True),
    ],
)
def test_budget_is_reached_by_cost_or_tokens(bounds: dict[str, Any], spent: Spent, is_over: bool) -> None:
    why = excess(run_with(**bounds), spent)
    assert (why is not None) is is_over
    assert why is None or "budget of" in why


# --- Adding up ----------------------------------------------------------------------------------------------


class Ledger:
    """A tree of runs as a journal tells of it, and whom the budgets have ended."""

    def __init__(self, log: EventLog) -> None:
        self.journal = log.journal
        self.ends: list[tuple[set[str], Reason]] = []
        self.budgets = Budgets(log.journal, Stops(Path(), log.journal), LiveChains())
        self.budgets.open()
        self.journal.listen(self._note_stops)

    def _note_stops(self, committed: Committed) -> None:
        if stopped := set(stopped_in(committed)):
            (reason,) = {committed.runs[run_id].stop_reason for run_id in stopped}
            assert reason is not None
            self.ends.append((stopped, reason))

    async def create(self, run: str, number: int, parent: str | None = None, **bounds: Any) -> Run:
        kind = "leaf" if "leaf" in run else "chain"
        event = created(run, number, parent, "r0" if parent else None, kind)
        event = Event(0, event.ts, event.run, event.root, event.type, {**event.data, **bounds})
        return (await self.journal.write([event], new={run: NewRun(b"{}")})).runs[run]

    async def used(self, run: str, usd: float | None = None, tokens: int | None = None) -> None:
        await self.journal.write([said(run, "usage", "r0", cost_usd=usd, tokens=tokens)])

    async def end(self, run: str, **data: Any) -> None:
        await self.journal.write([ended(run, "r0", **data)])


@asynccontextmanager
async def ledger_at(path: Path) -> AsyncIterator[Ledger]:
    async with open_event_log(path) as log:
        ledger = Ledger(log)
        try:
            yield ledger
        finally:
            await ledger.budgets.close()


def test_tree_is_added_up_and_stopped_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ledger_at(tmp_path / "db") as ledger:
            await ledger.create("r0", 1, budget_usd=5.0)
            await ledger.create("rleaf1", 2, "r0")
            nested = await ledger.create("rleaf2", 3, "rleaf1")
            await ledger.used("rleaf1", 2.0)
            await ledger.end("rleaf1", cost_usd=2.5)
            assert ledger.budgets.allowance(nested) == 2.5
            await ledger.used("rleaf2", 1.0)
            await ledger.used("rleaf2", 2.0)
            assert (ledger.budgets.allowance(nested), ledger.ends) == (0.5, [])
            await ledger.used("rleaf2", 2.6)
            await until(lambda: ledger.ends, "the end of everything")
            await ledger.used("rleaf2", 2.7)
            assert ledger.ends == [({"r0", "rleaf2"}, Reason.BUDGET)]
            with pytest.raises(LimitReached, match="budget"):
                ledger.budgets.check(nested)

    asyncio.run(scene())


def test_used_up_budget_gives_one_notice(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ledger_at(tmp_path / "db") as ledger:
            await ledger.create("r0", 1, budget_usd=5.0)
            first = await ledger.create("rleaf1", 2, "r0")
            second = await ledger.create("rleaf2", 3, "r0")
            assert ledger.budgets.budget_notices(msgspec.structs.replace(first, cost_usd=4.9)) == []
            (told,) = ledger.budgets.budget_notices(msgspec.structs.replace(first, cost_usd=5.5))
            assert (told.run, told.type, told.data["text"]) == (
                "r0",
                "notice",
                "the budget of $5.00 is used up: $5.50",
            )
            assert ledger.budgets.budget_notices(msgspec.structs.replace(second, cost_usd=9.0)) == []
            await ledger.journal.write([told, ended("rleaf1", "r0", cost_usd=5.5)])
            await until(lambda: ledger.ends, "the end of everything")
            assert ledger.ends == [({"r0", "rleaf2"}, Reason.BUDGET)]
            lines = ledger.journal.read.event_page("root", "r0", 0, 100, 100_000)
            assert [line.type for line in lines].count("notice") == 1

    asyncio.run(scene())


def test_budget_stops_only_runs_below_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ledger_at(tmp_path / "db") as ledger:
            top = await ledger.create("r0", 1, budget_usd=10.0)
            step = await ledger.create("rstep", 2, "r0", budget_tokens=100)
            await ledger.create("rleaf1", 3, "rstep")
            other = await ledger.create("rleaf2", 4, "r0")
            await ledger.used("rleaf1", 1.0, 100)
            await until(lambda: ledger.ends, "the end of the step")
            assert ledger.ends == [({"rstep", "rleaf1"}, Reason.BUDGET)]
            ledger.budgets.check(top)
            ledger.budgets.check(other)
            with pytest.raises(LimitReached, match="100 tokens"):
                ledger.budgets.check(step)

    asyncio.run(scene())


def test_run_created_during_budget_stop_is_stopped(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ledger_at(tmp_path / "db") as ledger:
            await ledger.create("r0", 1, budget_usd=1.0)
            await ledger.create("rleaf1", 2, "r0")
            await ledger.used("rleaf1", 1.0)
            await ledger.create("rleaf2", 3, "r0")
            await until(lambda: any("rleaf2" in runs for runs, _ in ledger.ends), "the late one's end")

    asyncio.run(scene())


@pytest.mark.parametrize("odd", [-3.0, float("nan"), float("inf"), None])
def test_invalid_cost_does_not_change_the_sum(tmp_path: Path, odd: float | None) -> None:
    async def scene() -> None:
        async with ledger_at(tmp_path / "db") as ledger:
            await ledger.create("r0", 1, budget_usd=5.0)
            leaf = await ledger.create("rleaf1", 2, "r0")
            await ledger.used("rleaf1", 2.0)
            await ledger.used("rleaf1", odd)
            assert (ledger.budgets.allowance(leaf), ledger.ends) == (3.0, [])

    asyncio.run(scene())


def test_next_server_knows_spent_budget(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ledger_at(tmp_path / "db") as ledger:
            await ledger.create("r0", 1, budget_usd=5.0)
            for number, cost in ((1, 2.0), (2, 1.0)):
                await ledger.create(f"rleaf{number}", number + 1, "r0")
                await ledger.used(f"rleaf{number}", cost)
            await ledger.end("rleaf1", cost_usd=2.0)
            assert ledger.ends == []
        async with ledger_at(tmp_path / "db") as ledger:
            leaf = ledger.journal.live["rleaf2"]
            assert ledger.budgets.allowance(leaf) == 2.0
            await ledger.budgets.close()
            await ledger.used("rleaf2", 3.0)
            assert ledger.ends == []
        async with ledger_at(tmp_path / "db") as ledger:
            await until(lambda: ledger.ends, "the end that was not recorded")
            assert ledger.ends == [({"r0", "rleaf2"}, Reason.BUDGET)]

    asyncio.run(scene())


# --- With processes -----------------------------------------------------------------------------------------


def turns(project: Path) -> int:
    path = project / "ledger"
    return len(path.read_text().split()) if path.exists() else 0


async def ended_by_budget(runner: EngineRunner, run: Run) -> Run:
    over = await runner.wait(run)
    assert (over.status, over.reason) == (Status.FAILED, Reason.BUDGET)
    await until(lambda: runner.engine.live() == [], "the end of all below")
    return over


def test_agent_is_stopped_at_its_budget(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", MANY_TURNS)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            over = await ended_by_budget(runner, await runner.start("claude", prompt="go", budget_usd=5.0))
            assert over.cost_usd in (5, 6)

    asyncio.run(scene())


def test_loop_stops_after_its_budget_is_spent(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", ONE_TURN)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            over = await ended_by_budget(runner, await runner.chain("claude:20", prompt="go", budget_usd=5.0))
            assert (over.cost_usd, turns(project)) == (5, 5)
            assert over.steps[0]["reason"] == "budget"
            notices = [event["data"] for event in await runner.events(over) if event["type"] == "notice"]
            assert [notice["text"] for notice in notices] == ["the budget of $5.00 is used up: $5.00"]
            # Each is told what is left, so that its own program can keep to it as well.
            told = [json.loads(line) for line in (project / "argv").read_text().splitlines()]
            left = [float(argv[argv.index("--max-budget-usd") + 1]) for argv in told]
            assert left == [5, 4, 3, 2, 1]

    asyncio.run(scene())


def test_concurrent_agents_share_one_budget(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", MANY_TURNS)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("(claude, claude, claude)", prompt="go", budget_usd=5.0)
            over = await ended_by_budget(runner, run)
            # One more turn for each is the most that can be on its way.
            assert 5 <= (over.cost_usd or 0) <= 8

    asyncio.run(scene())


def test_usage_of_nested_agents_counts_for_all_ancestors(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", MANY_TURNS)
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            chain = await runner.chain("sleeper", budget_usd=2.0)
            await until(lambda: any(one.pid for one in runner.engine.live()), "the first agent")
            (parent,) = (one for one in runner.engine.live() if one.kind == "leaf")
            nested = await runner.start("claude", parent=parent, prompt="go")
            await ended_by_budget(runner, chain)
            assert {runner.engine.find(one.id).reason for one in (parent, nested)} == {Reason.BUDGET}
            assert 2 <= turns(project) <= 3

    asyncio.run(scene())


def test_tokens_are_counted_without_a_cost(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", TOKENS)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            over = await ended_by_budget(runner, await runner.chain("claude:9", prompt="go", budget_tokens=100))
            assert (over.tokens, turns(project)) == (120, 3)

    asyncio.run(scene())


def test_unpriced_tokens_are_estimated_and_marked(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", TOKENS)

    async def scene() -> None:
        async with engine_runner(home, project, estimate_usd_per_mtok=1_000_000) as runner:
            over = await ended_by_budget(runner, await runner.chain("claude:9", prompt="go", budget_usd=100.0))
            assert (over.tokens, over.cost_usd, over.cost_estimated, turns(project)) == (120, 120.0, True, 3)
            assert (over.steps[0]["cost_usd"], over.steps[0]["cost_estimated"]) == (120.0, True)
            below = runner.engine.read.below(over.id)
            assert [(one.kind, one.cost_estimated) for one in below] == [
                ("chain", True),
                ("loop", True),
                *[("leaf", True)] * 3,
            ]
            (first, *_) = (event["data"] for event in await runner.events(over) if event["type"] == "usage")
            assert (first["tokens"], first["cost_usd"], first["cost_estimated"]) == (40, 40.0, True)

    asyncio.run(scene())


@pytest.mark.parametrize("cost", ["nan", "-5", "inf", "none"])
def test_unknown_cost_is_reported_and_stops_nothing(home: Path, project: Path, agent: Bin, cost: str) -> None:
    agent("claude", ODD)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("claude -> claude", prompt="go", budget_usd=1.0, args=(cost,))
            over = await runner.wait(run)
            assert (over.status, over.cost_usd, turns(project)) == (Status.DONE, None, 2)
            assert over.cost_estimated is False
            notices = [event["data"] for event in await runner.events(over) if event["type"] == "notice"]
            # Once, and not for every pass.
            assert [(notice["kind"], "no budget can hold" in notice["text"]) for notice in notices] == [
                ("budget", True)
            ]

    asyncio.run(scene())


def test_step_budget_ends_the_chain(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", ONE_TURN)
    (project / "hocket.toml").write_text(
        '[chains.work]\nsteps = [{agent = "claude", iterations = 9, budget_usd = 2}, {agent = "claude"}]\n'
    )

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.engine.start(runner.request(chain="work", prompt="go", budget_usd=50.0))
            over = await ended_by_budget(runner, run)
            assert [step["status"] for step in over.steps] == ["failed", "skipped"]
            assert turns(project) == 2

    asyncio.run(scene())


def test_budget_continues_under_another_server(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", ONE_TURN)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("claude:20", prompt="go", budget_usd=5.0)
            await until(lambda: turns(project) >= 3, "three turns")
        async with engine_runner(home, project) as runner:
            over = await ended_by_budget(runner, run)
            assert (over.cost_usd, turns(project)) == (5, 5)
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_used_up_budget_has_its_own_exit_code(hocket: Hocket, project: Path, agent: Bin) -> None:
    agent("claude", ONE_TURN)
    done = hocket("run", "--json", "claude:20", "-p", "go", "--budget", "3")
    assert done.returncode == 5, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])["data"]
    assert (last["reason"], last["cost_usd"], turns(project)) == ("budget", 3, 3)
