"""What a step is told when it begins: the task, the result before it, and what the gate had against the last try."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner
from world import Bin

from hocket.model import Kind, Reason, Run, Status

NOTING = """
import json, os, sys
name = os.path.basename(sys.argv[0])
prompts = os.open("prompts", os.O_RDWR | os.O_APPEND | os.O_CREAT)
text = sys.stdin.read() or (sys.argv[1] if len(sys.argv) > 1 else None)
os.write(prompts, (json.dumps([name, text]) + "\\n").encode())
"""


@pytest.fixture
def programs(agent: Bin) -> Bin:
    agent("planner", NOTING + "print('the plan')\n")
    agent("left", NOTING + "print('from the left')\n")
    agent("right", NOTING + "print('from the right')\n")
    agent("builder", NOTING + "print('built')\n")
    agent("claiming", NOTING + "print('FORKHESTRA_COMPLETE')\n")
    agent("wordy", NOTING + "print('x' * 70_000)\n")
    return agent


def configured(project: Path, text: str) -> None:
    (project / "hocket.toml").write_text(text)


def prompts(project: Path) -> list[list[Any]]:
    path = project / "prompts"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def run_chain(runner: EngineRunner, **options: Any) -> Run:
    return await runner.wait(await runner.engine.start(runner.request(chain="work", **options)))


def test_each_step_gets_task_and_previous_result(home: Path, project: Path, programs: Bin) -> None:
    configured(
        project,
        """
        [chains.work]
        steps = [
          {agent = "planner", prompt = "plan {{task}}[{{previous.result}}]"},
          {group = [{agent = "left", prompt = "{{previous.result}}?"}, {agent = "right", prompt = "{{task}}?"}]},
          {agent = "builder", prompt = "build: {{previous.result}}"},
        ]
        """,
    )

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await run_chain(runner, prompt="a house")
            assert ended.status is Status.DONE
            told = dict(prompts(project))
            assert told["planner"] == "plan a house[]"
            assert (told["left"], told["right"]) == ("the plan?", "a house?")
            assert told["builder"] == "build: ## left\n\nfrom the left\n\n## right\n\nfrom the right"

    asyncio.run(scene())


@pytest.mark.parametrize("literal", [False, True], ids=["typed", "piped"])
def test_typed_prompt_gets_only_the_previous_result(home: Path, project: Path, programs: Bin, literal: bool) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            text = "Explain {{task}}: {{previous.result}}"
            run = await runner.chain("planner -> builder", prompt=text, prompt_literal=literal)
            assert (await runner.wait(run)).status is Status.DONE
            told = dict(prompts(project))
            assert told["builder"] == (text if literal else "Explain {{task}}: the plan")

    asyncio.run(scene())


def test_result_with_nul_reaches_the_next_step(home: Path, project: Path, programs: Bin, agent: Bin) -> None:
    agent("binary", NOTING + "print('a\\0b')\n")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("binary -> builder", prompt="{{previous.result}}"))
            assert ended.status is Status.DONE
            assert dict(prompts(project))["builder"] == "a\ufffdb"

    asyncio.run(scene())


def test_gate_feedback_reaches_only_the_next_iteration(home: Path, project: Path, programs: Bin) -> None:
    gate = "echo try $(wc -l < prompts); test $(wc -l < prompts) -ge 3 || exit 7"

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.chain("claiming:5", prompt="work", until=gate))
            assert (ended.status, ended.steps[0]["iterations"]) == (Status.DONE, 3)
            first, second, third = (text for _, text in prompts(project))
            assert first == "work"
            assert second.startswith("work\n\n")
            assert gate in second
            assert "exit code 7" in second
            assert second.endswith("try 1")
            assert third.endswith("try 2")
            assert "try 1" not in third

    asyncio.run(scene())


def test_result_too_large_for_argument_ends_the_chain(home: Path, project: Path, programs: Bin) -> None:
    configured(
        project,
        """
        [chains.work]
        steps = [{agent = "wordy"}, {agent = "builder", prompt = "build {{previous.result}}"}]
        """,
    )

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await run_chain(runner)
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.START_FAILED)
            last = runner.engine.read.children(ended.id)[-1]
            assert (last.kind, last.status, last.reason) == (Kind.LEAF, Status.FAILED, Reason.START_FAILED)
            assert "64 KiB" in (last.error or "")
            assert [name for name, _ in prompts(project)] == ["wordy"]
        async with engine_runner(home, project) as runner:
            assert runner.engine.live() == []

    asyncio.run(scene())


def test_step_gates_of_a_group_run_in_parallel(home: Path, project: Path, programs: Bin) -> None:
    """Each gate waits for the other to begin, so neither would pass if one had to wait for the other's end."""
    configured(
        project,
        """
        [chains.work]
        gate_timeout = 8
        steps = [{group = [
          {agent = "left", until = "echo > l; until test -e r; do sleep 0.02; done"},
          {agent = "right", until = "echo > r; until test -e l; do sleep 0.02; done"},
        ]}]
        """,
    )

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await run_chain(runner)
            assert (ended.status, [step["status"] for step in ended.steps]) == (Status.DONE, ["done", "done"])

    asyncio.run(scene())


def test_gate_timeout_fails_the_gate(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.chain("builder", prompt="work", until="sleep 300", gate_timeout=0.3)
            ended = await runner.wait(run)
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.GATE)
            (gate,) = [event["data"] for event in await runner.events(run) if event["type"] == "gate"]
            assert (gate["passed"], gate["timed_out"]) == (False, True)

    asyncio.run(scene())
