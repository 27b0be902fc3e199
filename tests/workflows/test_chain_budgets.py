"""Budgets of steps and groups: what several attempts share, and what each of several agents at once is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from workflows.engine_fixture import engine_runner
from workflows.test_chain_parking import FAKE, Scene
from world import Bin

from hocket.model import Reason, Status

LIMITED = {"limit": 0.2}
"""Each attempt costs $0.25 and meets a limit."""


@pytest.fixture
def fake(agent: Bin) -> Path:
    return agent("fake-claude", FAKE)


def told(scene: Scene) -> list[float | None]:
    """What each call was told that it may cost."""
    found: list[float | None] = []
    for argv in (call["argv"] for call in scene.calls):
        flag = "--max-budget-usd"
        found.append(round(float(argv[argv.index(flag) + 1]), 4) if flag in argv else None)
    return found


@pytest.mark.parametrize("has_transcript", [True, False])
def test_step_budget_covers_all_attempts(home: Path, project: Path, fake: Path, has_transcript: bool) -> None:
    (project / "hocket.toml").write_text('[chains.c]\nsteps = [{agent = "claude", budget_usd = 0.4}]\n')
    scene = Scene(project, fake, [{**LIMITED, "transcript": has_transcript}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            request = runner.request(chain="c", prompt="go")
            run = await runner.engine.start(msgspec.structs.replace(request, env={**request.environment, **scene.env}))
            over = await runner.wait(run)
            assert (over.status, over.reason, over.cost_usd) == (Status.FAILED, Reason.BUDGET, 0.5)
            first, second = (runner.engine.find(leaf) for leaf in over.steps[0]["runs"])
            assert first.budget_usd == 0.4
            assert second.budget_usd == pytest.approx(0.15)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("dsl", "shares"),
    [
        ("(claude, claude, claude)", [2.0, 2.0, 2.0]),
        ("(claude, plain)", [6.0]),
        ("(claude, claude) -> claude", [3.0, 3.0, 5.5]),
    ],
)
def test_parallel_agents_get_a_share_of_the_budget(
    home: Path, project: Path, fake: Path, agent: Bin, dsl: str, shares: list[float]
) -> None:
    agent("plain", "")
    scene = Scene(project, fake, [{"say": "ok", "company": dsl.partition(" -> ")[0].count("claude")}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            over = await runner.wait(await scene.start(runner, dsl, prompt="x", budget_usd=6.0))
            assert over.status is Status.DONE
            assert told(scene) == shares

    asyncio.run(play())


def test_resumed_iteration_gets_the_remaining_budget(home: Path, project: Path, fake: Path) -> None:
    scene = Scene(project, fake, [LIMITED, {"say": "ok"}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            over = await runner.wait(await scene.start(runner, "claude", prompt="x", budget_usd=5.0))
            assert (over.status, told(scene)) == (Status.DONE, [5.0, 4.75])
            assert "--resume" in scene.calls[1]["argv"]

    asyncio.run(play())
