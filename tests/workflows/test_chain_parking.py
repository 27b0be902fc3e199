"""What passes by itself costs nothing: a usage limit parks the chain, a lost iteration is begun again where that is
wanted. A small program speaks for the real CLI."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin

from hocket.chain import decide
from hocket.keeper import files
from hocket.model import Kind, Reason, Run, Status

FAKE = """
import json, os, re, sys, time
def say(**line):
    print(json.dumps(line), flush=True)
prompt = json.loads(sys.stdin.readline())["message"]["content"]
calls = os.open("calls", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(calls, (json.dumps({"argv": sys.argv[1:], "prompt": prompt}) + "\\n").encode())
turn = os.pread(calls, 100_000, 0).count(b"\\n")
session = sys.argv[sys.argv.index("--session-id") + 1]
folder = os.path.join(os.environ["HOME"], ".claude/projects", re.sub("[^A-Za-z0-9]", "-", os.getcwd()))
plan = json.load(open("plan.json"))
now = plan[min(turn, len(plan)) - 1]
while os.pread(calls, 100_000, 0).count(b"\\n") < now.get("company", 0):
    time.sleep(0.01)
if now.get("transcript", True):
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, session + ".jsonl"), "w").close()
say(type="system", subtype="init", session_id=session, cwd=os.getcwd(), tools=[])
end = {"type": "result", "subtype": "success", "session_id": session, "total_cost_usd": 0.25}
if "limit" in now:
    info = {"status": "rejected"}
    if now["limit"] is not None:
        info["resetsAt"] = time.time() + now["limit"]
    say(type="rate_limit_event", rate_limit_info=info)
    say(**end, is_error=True, result="limit reached")
elif "overload" in now:
    say(**end, is_error=True, api_error_status=529, result="API Error: 529 overloaded")
elif "hang" in now:
    sys.stdin.read()
    time.sleep(300)
else:
    say(**end, is_error=False, result=now["say"])
"""


class Scene:
    """A project with a CLI that follows a plan, call by call."""

    def __init__(self, project: Path, program: Path, plan: list[dict[str, Any]]) -> None:
        self.project = project
        self.env = {"HOCKET_CLAUDE": str(program), "HOME": str(program.parent.parent / "user")}
        (project / "plan.json").write_text(json.dumps(plan))

    async def start(self, runner: EngineRunner, dsl: str, **options: Any) -> Run:
        request = runner.request(dsl=dsl, **options)
        return await runner.engine.start(msgspec.structs.replace(request, env={**request.environment, **self.env}))

    @property
    def calls(self) -> list[dict[str, Any]]:
        path = self.project / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def fake(agent: Bin) -> Path:
    return agent("fake-claude", FAKE)


async def parked(runner: EngineRunner, run: Run) -> Run:
    await until(lambda: runner.engine.find(run.id).parked_until is not None, "parking")
    return runner.engine.find(run.id)


def resumes(call: dict[str, Any]) -> str | None:
    argv = call["argv"]
    return argv[argv.index("--resume") + 1] if "--resume" in argv else None


def test_usage_limit_parks_chain_without_an_iteration(home: Path, project: Path, fake: Path) -> None:
    scene = Scene(project, fake, [{"limit": 2.5}, {"say": "FORKHESTRA_COMPLETE"}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "claude:1", prompt="work")
            waiting = await parked(runner, run)
            assert waiting.status is Status.WAITING
            assert waiting.parked_until is not None
            ended = await runner.wait(run)
            assert (ended.status, ended.reason) == (Status.DONE, Reason.MARKER)
            assert (ended.steps[0]["iterations"], len(ended.steps[0]["runs"])) == (1, 2)
            assert ended.cost_usd == pytest.approx(0.5)
            told = [event for event in await runner.events(run) if event["type"] in ("parked", "unparked")]
            assert [event["type"] for event in told] == ["parked", "unparked"]
            assert told[0]["data"]["reason"] == "rate_limited"
            assert "claude" in told[0]["data"]["text"]
            first, second = (runner.engine.find(leaf) for leaf in ended.steps[0]["runs"])
            assert first.resets_at == waiting.parked_until <= second.created_at
            assert (second.resumed_from, second.iteration) == (first.id, 1)
            assert resumes(scene.calls[1]) == first.session_id
            assert "usage limit" in scene.calls[1]["prompt"]

    asyncio.run(play())


def test_step_restarts_without_a_session_file(home: Path, project: Path, fake: Path) -> None:
    scene = Scene(project, fake, [{"limit": 0.3, "transcript": False}, {"say": "done"}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await scene.start(runner, "claude", prompt="work"))
            assert ended.status is Status.DONE
            assert [call["prompt"] for call in scene.calls] == ["work", "work"]
            assert [resumes(call) for call in scene.calls] == [None, None]

    asyncio.run(play())


def test_next_engine_resumes_a_parked_chain(home: Path, project: Path, fake: Path) -> None:
    scene = Scene(project, fake, [{"limit": 4.0}, {"say": "done"}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "claude -> claude", prompt="work")
            until_when = (await parked(runner, run)).parked_until
        async with engine_runner(home, project) as runner:
            assert runner.engine.find(run.id).parked_until == until_when
            ended = await runner.wait(run)
            assert (ended.status, [step["iterations"] for step in ended.steps]) == (Status.DONE, [1, 1])
            told = [event["type"] for event in await runner.events(run) if event["run"] == run.id]
            assert told == ["run.created", "run.started", "parked", "unparked", "run.ended"]
        assert len(scene.calls) == 3

    asyncio.run(play())


@pytest.mark.parametrize("how", ["stop", "timeout"])
def test_parked_chain_can_be_stopped(home: Path, project: Path, fake: Path, how: str) -> None:
    scene = Scene(project, fake, [{"limit": 3600.0}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            limit = 4.0 if how == "timeout" else None
            run = await scene.start(runner, "claude:3 -> claude", prompt="work", timeout=limit)
            await parked(runner, run)
            if how == "stop":
                await asyncio.wait_for(runner.engine.stop(run), 5)
            ended = await runner.wait(run)
            wanted = (Status.STOPPED, Reason.STOPPED) if how == "stop" else (Status.FAILED, Reason.TIMEOUT)
            assert (ended.status, ended.reason) == wanted
            assert [step["status"] for step in ended.steps] == [wanted[0].value, "skipped"]
            assert ended.parked_until is None
            assert runner.engine.live() == []

    asyncio.run(play())


def test_group_parks_only_when_idle(home: Path, project: Path, fake: Path, agent: Bin) -> None:
    scene = Scene(project, fake, [{"limit": 1.0}, {"say": "done"}])
    os.mkfifo(project / "door")
    agent("held", "open('door').read()\nprint('through')")

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "(claude, held)", prompt="work")
            await until(lambda: len(scene.calls) == 2, "the second attempt, beside the other member")
            (project / "door").write_text("")
            ended = await runner.wait(run)
            assert [step["status"] for step in ended.steps] == ["done", "done"]
            assert "parked" not in [event["type"] for event in await runner.events(run)]

    asyncio.run(play())


async def lose_the_first(runner: EngineRunner, scene: Scene, run: Run) -> Run:
    """Kill the keeper of the chain's first iteration once its agent has begun."""
    await until(lambda: scene.calls, "the first attempt")
    leaf = next(one for one in runner.engine.read.below(run.id) if one.kind is Kind.LEAF)
    known = files.read_pid(str(runner.engine.directory(leaf)))
    assert known is not None
    os.kill(known.keeper, signal.SIGKILL)
    return leaf


def has_open_question(runner: EngineRunner) -> bool:
    return any(one.needs_you for one in runner.engine.live())


def test_lost_iteration_is_retried_if_configured(home: Path, project: Path, fake: Path) -> None:
    scene = Scene(project, fake, [{"hang": True}, {"say": "done"}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "claude", prompt="work", on_lost="retry")
            leaf = await lose_the_first(runner, scene, run)
            ended = await runner.wait(run)
            assert (ended.status, ended.steps[0]["iterations"]) == (Status.DONE, 1)
            assert len(scene.calls) == 2
            assert resumes(scene.calls[1]) == runner.engine.find(leaf.id).session_id

    asyncio.run(play())


def test_lost_iteration_ends_chain_without_questions(home: Path, project: Path, fake: Path) -> None:
    scene = Scene(project, fake, [{"hang": True}, {"say": "done"}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "claude:3", prompt="work", on_question="deny")
            await lose_the_first(runner, scene, run)
            ended = await runner.wait(run)
            assert (ended.status, ended.reason, ended.steps[0]["iterations"]) == (Status.FAILED, Reason.LOST, 1)
            assert len(scene.calls) == 1

    asyncio.run(play())


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("by", ["the same engine", "another engine", "an engine that comes after the answer"])
def test_answer_decides_about_lost_iteration(home: Path, project: Path, fake: Path, allow: bool, by: str) -> None:
    scene = Scene(project, fake, [{"hang": True}, {"say": "done"}])

    async def answer(runner: EngineRunner, run: Run) -> None:
        (asked,) = runner.engine.find(run.id).open_questions
        assert (asked["kind"], asked["step"]) == ("lost", 0)
        await runner.engine.answer(run, None, allow, None, "a test")

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "claude", prompt="work")
            await lose_the_first(runner, scene, run)
            await until(partial(has_open_question, runner), "the question")
            if by != "another engine":
                await answer(runner, run)
            ended = await runner.wait(run) if by == "the same engine" else None
        if ended is None:
            async with engine_runner(home, project) as runner:
                if by == "another engine":
                    await answer(runner, run)
                ended = await runner.wait(run)
        wanted = (Status.DONE, Reason.SINGLE_RUN) if allow else (Status.FAILED, Reason.LOST)
        assert (ended.status, ended.reason) == wanted
        assert len(scene.calls) == (2 if allow else 1)

    asyncio.run(play())


def test_chain_with_open_question_can_be_stopped(home: Path, project: Path, fake: Path) -> None:
    scene = Scene(project, fake, [{"hang": True}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "claude:3", prompt="work", on_question="ask")
            await lose_the_first(runner, scene, run)
            await until(partial(has_open_question, runner), "the question")
            await asyncio.wait_for(runner.engine.stop(run), 5)
            assert runner.engine.find(run.id).status is Status.STOPPED
            assert runner.engine.find(run.id).open_questions == ()

    asyncio.run(play())


def test_interrupted_iteration_keeps_gate_feedback(home: Path, project: Path, fake: Path) -> None:
    """Also when another engine starts that one."""
    done = {"say": "FORKHESTRA_COMPLETE"}
    scene = Scene(project, fake, [done, {"limit": 2.5, "transcript": False}, done])
    gate = "test $(wc -l < calls) -ge 3 || { echo not good enough; exit 6; }"

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            run = await scene.start(runner, "claude:2", prompt="work", until=gate)
            await parked(runner, run)
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            assert (ended.status, ended.reason, ended.steps[0]["iterations"]) == (Status.DONE, Reason.MARKER, 2)
            first, second, third = (call["prompt"] for call in scene.calls)
            assert first == "work"
            assert second == third
            assert third.startswith("work\n\n")
            assert third.endswith("not good enough")

    asyncio.run(play())


def test_overloaded_service_is_retried_after_a_pause(
    home: Path, project: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "FIRST_PAUSE", 0.3)
    scene = Scene(project, fake, [{"overload": True}, {"overload": True}, {"say": "FORKHESTRA_COMPLETE"}])

    async def play() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await scene.start(runner, "claude:1", prompt="work"))
            assert (ended.status, ended.reason, ended.steps[0]["iterations"]) == (Status.DONE, Reason.MARKER, 1)
            told = [event for event in await runner.events(ended) if event["type"] == "parked"]
            assert [event["data"]["reason"] for event in told] == ["overloaded"] * 2
            pauses = [event["data"]["until"] - event["ts"] for event in told]
            assert pauses[1] > pauses[0] > 0
            assert "could not be reached" in scene.calls[1]["prompt"]

    asyncio.run(play())
