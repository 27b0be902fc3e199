"""Going on with a chain that failed or was stopped: where it begins, what it is told, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from workflows.engine_fixture import EngineRunner, engine_runner, until
from world import Bin

from hocket.errors import BadDirectory, Conflict, UsageError
from hocket.keeper import files
from hocket.model import BoundChain, Kind, Reason, Run, Spec, Status, Step
from hocket.workflows.request import ResumeRequest
from hocket.workflows.resume import remaining_chain

# --- Which steps are left -----------------------------------------------------------------------------------

RESULTS = {"leaf-0": "zero", "leaf-1": "one", "leaf-2": "two", "leaf-3": "three"}


def bound(*agents: str | tuple[str, ...], **more: Any) -> BoundChain:
    """A chain of these agents; those in a tuple run at the same time."""
    steps: list[Step] = []
    for number, together in enumerate(agents, 1):
        members = (together,) if isinstance(together, str) else together
        group = number if len(members) > 1 else None
        steps += [Step(name, 1, False, Spec(name, "executable", (name,), "/", {}), group) for name in members]
    return BoundChain("work", tuple(steps), "/", {}, **more)


def ended(*statuses: str, status: Status = Status.FAILED) -> Run:
    """A chain's run whose steps ended so."""
    reports = tuple(
        {"status": one, "runs": [] if one == "skipped" else ["older", f"leaf-{step}"]}
        for step, one in enumerate(statuses)
    )
    return Run("r1", 7, Kind.CHAIN, "work", None, None, "r1", 0, "/", 0.0, status, steps=reports)


def left(chain: BoundChain, run: Run, wanted: int | str | None = None) -> tuple[list[str], str | None, int]:
    found = remaining_chain(chain, run, wanted, RESULTS.get)
    assert found.resumed_from == run.id
    return [step.agent for step in found.steps], found.previous, found.first


def test_resume_begins_at_first_incomplete_step() -> None:
    chain = bound("a", "b", "c")
    assert left(chain, ended("done", "failed", "skipped")) == (["b", "c"], "zero", 1)
    assert left(chain, ended("done", "done", "stopped")) == (["c"], "one", 2)
    assert left(chain, ended("failed", "skipped", "skipped")) == (["a", "b", "c"], None, 0)
    assert left(chain, ended()) == (["a", "b", "c"], None, 0)


def test_only_incomplete_group_members_restart() -> None:
    chain = bound("a", ("b", "c", "d"), "e")
    assert left(chain, ended("done", "done", "failed", "skipped", "skipped")) == (["c", "d", "e"], "zero", 2)
    found = remaining_chain(chain, ended("done", "done", "failed", "done", "skipped"), None, RESULTS.get)
    assert (found.kept, [step.agent for step in found.steps]) == ((("b", "one"), ("d", "three")), ["c", "e"])
    again = remaining_chain(found, ended("done", "failed"), None, RESULTS.get)
    assert (again.previous, again.kept) == ("## b\n\none\n\n## d\n\nthree\n\n## c\n\nzero", ())
    assert remaining_chain(found, ended("failed", "skipped"), None, RESULTS.get).kept == found.kept


def test_chosen_group_restarts_as_a_whole() -> None:
    chain = bound("a", ("b", "c"), "d")
    assert left(chain, ended("done", "done", "failed", "skipped"), 2) == (["b", "c", "d"], "zero", 1)
    after = left(chain, ended("done", "done", "done", "failed"))
    assert after == (["d"], "## b\n\none\n\n## c\n\ntwo", 3)
    assert left(chain, ended("done", "done", "done", "failed"), "c") == (["b", "c", "d"], "zero", 1)
    assert left(chain, ended("done", "done", "done", "failed"), 3) == after


@pytest.mark.parametrize(
    ("wanted", "agents", "previous"),
    [(1, "abcd", None), ("1", "abcd", None), ("c", "cd", "zero"), (4, "d", "zero"), ("2", "bcd", "zero")],
)
def test_step_is_chosen_by_number_or_name(wanted: int | str, agents: Sequence[str], previous: str | None) -> None:
    chain, run = bound("a", "b", "c", "d"), ended("done", "failed", "skipped", "skipped")
    assert left(chain, run, wanted) == (list(agents), previous, 4 - len(agents))


def test_second_resume_keeps_earlier_results() -> None:
    chain = bound("a", "b", previous="from before", first=3)
    assert left(chain, ended("failed", "skipped")) == (["a", "b"], "from before", 3)
    assert left(chain, ended("done", "failed")) == (["b"], "zero", 4)


def test_other_settings_are_kept() -> None:
    chain = bound("a", "b", until="make", timeout=9, gate_timeout=3, on_lost="retry", task="a house")
    found = remaining_chain(chain, ended("done", "failed"), None, RESULTS.get)
    assert replace(found, previous=None, resumed_from=None, first=0, steps=chain.steps) == chain
    assert found.steps == chain.steps[1:]


@pytest.mark.parametrize(
    ("name", "left_of_it"),
    [("a->(b , c)-> d", "b -> d"), ("ship", "ship"), ("a -> b", "a -> b"), ("a ->", "a ->"), ("", "")],
)
def test_resumed_typed_chain_is_named_by_remaining_text(name: str, left_of_it: str) -> None:
    chain = replace(bound("a", ("b", "c"), "d"), name=name)
    assert remaining_chain(chain, ended("done", "failed", "done", "skipped"), None, RESULTS.get).name == left_of_it


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (0, "has no step 0"),
        (4, "has no step 4"),
        (-1, "has no step -1"),
        ("x", "has no step 'x'"),
        ("", "has no step ''"),
        ("9" * 5000, "has no step"),
        ("²", "has no step '²'"),
        ("a", "has 2 steps 'a'"),
    ],
)
def test_unknown_or_ambiguous_step_error_lists_steps(wanted: int | str, why: str) -> None:
    chain = bound("a", ("b", "c"), "a")
    with pytest.raises(UsageError, match=why) as caught:
        left(chain, ended("done", "failed", "failed", "skipped"), wanted)
    assert caught.value.hint == "its steps: 1 a, 2 (b, c), 3 a"


def test_done_chain_resumes_only_from_a_step() -> None:
    chain, run = bound("a", "b"), ended("done", "done", status=Status.DONE)
    with pytest.raises(Conflict, match="run 7 is done") as caught:
        left(chain, run)
    assert "hocket resume 7 --from STEP" in (caught.value.hint or "")
    assert left(chain, run, "b") == (["b"], "zero", 1)


# --- With real processes ------------------------------------------------------------------------------------

NOTING = """
import json, os, sys
name = os.path.basename(sys.argv[0])
ledger = os.open("ledger", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(ledger, (json.dumps([name, sys.argv[1]]) + "\\n").encode())
"""
BROKEN = "\nif not os.path.exists('mended'): sys.exit(3)\n"
CHAIN = """
[chains.work]
steps = [
  {agent = "planner", prompt = "plan {{task}}"},
  {agent = "builder", iterations = 2, prompt = "build {{previous.result}} for {{task}}", until = "test -e mended"},
  {agent = "closer", prompt = "close {{previous.result}}"},
]
"""


@pytest.fixture
def programs(agent: Bin, project: Path) -> Bin:
    agent("planner", NOTING + "print('the plan')\n")
    agent("builder", NOTING + "print('built')\nprint('FORKHESTRA_COMPLETE')\n")
    agent("closer", NOTING + "print('closed')\n")
    agent("broken", NOTING + BROKEN + "print('mended')\n")
    agent("hanging", NOTING + BROKEN.replace("sys.exit(3)", "__import__('signal').pause()") + "print('woken')\n")
    (project / "hocket.toml").write_text(CHAIN)
    return agent


def ledger(project: Path) -> list[list[str]]:
    path = project / "ledger"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(run: Run) -> list[tuple[Any, ...]]:
    def told(step: Mapping[str, Any]) -> tuple[Any, ...]:
        return step["agent"], step["status"], step["iterations"], step["max_iterations"]

    return [told(step) for step in run.steps]


def spec_of(runner: EngineRunner, run: Run) -> BoundChain:
    return msgspec.json.decode(runner.engine.read.spec(run.id), type=BoundChain)


async def again(runner: EngineRunner, run: Run, start_at: int | str | None = None) -> Run:
    return await runner.wait(await runner.engine.tasks.resume(run, ResumeRequest(start_at=start_at)))


def test_resumed_chain_keeps_prompts_gates_and_iterations(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            old = await runner.wait(await runner.engine.start(runner.request(chain="work", prompt="a house")))
            assert (old.status, old.reason) == (Status.FAILED, Reason.GATE)
            assert [name for name, _ in ledger(project)] == ["planner", "builder", "builder"]
            (project / "mended").touch()
            (project / "hocket.toml").unlink()  # the bound chain counts, not the file
            (project / "ledger").unlink()
            new = await again(runner, old)
            assert (new.status, new.resumed_from, new.result) == (Status.DONE, old.id, "closed\n")
            assert steps(new) == [("builder", "done", 1, 2), ("closer", "done", 1, 1)]
            assert ledger(project) == [
                ["builder", "build the plan for a house"],
                ["closer", "close built\nFORKHESTRA_COMPLETE"],
            ]
            below = {one.id for one in runner.engine.read.below(new.id)}
            assert not below & {one.id for one in runner.engine.read.below(old.id)}
            assert runner.engine.find(old.id) == old

    asyncio.run(scene())


def test_same_key_resumes_a_chain_once(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            old = await runner.chain("planner -> hanging:3 -> closer", prompt="x")
            await until(lambda: len(ledger(project)) == 2, "the second step")
            with pytest.raises(Conflict, match="has not ended"):
                await runner.engine.tasks.resume(old, ResumeRequest())
            await runner.engine.stop(old)
            (project / "mended").touch()
            old = runner.engine.find(old.id)
            assert old.status is Status.STOPPED
            one, same = [await runner.engine.tasks.resume(old, ResumeRequest(), "key") for _ in range(2)]
            assert one.id == same.id != old.id
            new = await runner.wait(one)
            # No agent writes the marker, so the loop repeats all its iterations and then fails.
            assert steps(new) == [("hanging", "failed", 3, 3), ("closer", "skipped", 0, 1)]
            assert [name for name, _ in ledger(project)] == ["planner", "hanging", *["hanging"] * 3]

    asyncio.run(scene())


def test_resumed_chain_can_be_resumed(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            first = await runner.wait(await runner.chain("planner -> (builder, broken) -> closer", prompt="x"))
            assert [step["status"] for step in first.steps] == ["done", "done", "failed", "skipped"]
            second = await again(runner, first)
            assert (second.status, second.resumed_from) == (Status.FAILED, first.id)
            (project / "mended").touch()
            third = await again(runner, second)
            assert (third.status, third.resumed_from) == (Status.DONE, second.id)
            assert [name for name, *_ in steps(third)] == ["broken", "closer"]
            assert [name for name, _ in ledger(project)].count("builder") == 1
            chain = spec_of(runner, third)
            assert (chain.previous, chain.first) == ("the plan\n", 2)
            assert [agent for agent, _ in chain.kept] == ["builder"]
            last = await again(runner, third, "closer")
            assert steps(last) == [("closer", "done", 1, 1)]
            assert spec_of(runner, last).first == 3

    asyncio.run(scene())


def test_chain_is_resumed_only_once(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            old = await runner.chain("planner -> hanging -> closer", prompt="x")
            await until(lambda: len(ledger(project)) == 2, "the second step")
            await runner.engine.stop(old)
            old = runner.engine.find(old.id)
            asked = [runner.engine.tasks.resume(old, ResumeRequest()) for _ in range(3)]
            new, *refused = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(new, Run)
            for error in refused:
                assert isinstance(error, Conflict)
                assert error.message == f"run {old.number} is already being resumed by run {new.number}"
            with pytest.raises(Conflict, match="already"):
                await runner.engine.tasks.resume(old, ResumeRequest(start_at=1))
            await until(lambda: len(ledger(project)) == 3, "the step that is gone on with")
            await runner.engine.stop(new)
            new = runner.engine.find(new.id)
            with pytest.raises(Conflict, match=f"run {old.number} was already resumed by run {new.number}") as caught:
                await runner.engine.tasks.resume(old, ResumeRequest())
            assert (caught.value.hint or "").endswith(f"hocket resume {new.number}")
            (project / "mended").touch()
            last = await again(runner, new)
            assert last.status is Status.DONE
            with pytest.raises(Conflict, match="which is done"):
                await runner.engine.tasks.resume(new, ResumeRequest())
            assert (await again(runner, new, "closer")).status is Status.DONE

    asyncio.run(scene())


def test_resume_works_after_server_restart(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            old = await runner.wait(await runner.chain("planner -> broken -> closer", prompt="x"))
        (project / "mended").touch()
        async with engine_runner(home, project) as runner:
            new = await again(runner, old)
            assert steps(new) == [("broken", "done", 1, 1), ("closer", "done", 1, 1)]

    asyncio.run(scene())


def test_resume_repeats_a_lost_step(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            old = await runner.chain("planner -> hanging -> closer", prompt="x", on_question="deny")
            await until(lambda: len(ledger(project)) == 2, "the second step")
            leaf = await runner.running(runner.engine.read.children(old.id)[-1])
            known = files.read_pid(str(runner.engine.directory(leaf)))
            assert known is not None
            os.kill(known.keeper, signal.SIGKILL)
            old = await runner.wait(old)
            assert (old.status, old.reason) == (Status.FAILED, Reason.LOST)
            (project / "mended").touch()
            new = await again(runner, old)
            assert steps(new) == [("hanging", "done", 1, 1), ("closer", "done", 1, 1)]
            assert [name for name, _ in ledger(project)] == ["planner", "hanging", "hanging", "closer"]

    asyncio.run(scene())


def test_missing_directory_refuses_resume(home: Path, project: Path, programs: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            old = await runner.wait(await runner.chain("broken", prompt="x"))
            os.rename(project, project.with_name("elsewhere"))
            with pytest.raises(BadDirectory):
                await runner.engine.tasks.resume(old, ResumeRequest())
            assert [run.number for run in runner.engine.read.children(old.id)] == [2]

    asyncio.run(scene())


# --- A chain, or the session of an agent in it --------------------------------------------------------------

AGENT = """
import json, sys
def say(**line):
    print(json.dumps(line), flush=True)
prompt = json.loads(sys.stdin.readline())["message"]["content"]
session = sys.argv[sys.argv.index("--session-id") + 1]
say(type="system", subtype="init", session_id=session, tools=[])
bad = prompt == "fail"
result = "no" if bad else prompt
say(type="result", subtype="success", session_id=session, is_error=bad, result=result, total_cost_usd=0)
"""


class Talkers:
    """Chains of agents that have sessions, beside plain programs."""

    def __init__(self, runner: EngineRunner, program: Path) -> None:
        self._runner = runner
        self._env = {"HOCKET_CLAUDE": str(program), "HOME": str(program.parent.parent / "user")}

    async def chain(self, dsl: str, **options: Any) -> Run:
        request = self._runner.request(dsl=dsl, **options)
        run = await self._runner.engine.start(
            msgspec.structs.replace(request, env={**request.environment, **self._env})
        )
        return await self._runner.wait(run)

    async def resumed(self, run: Run, prompt: str | None, **options: Any) -> Run:
        return await self._runner.wait(
            await self._runner.engine.tasks.resume(run, ResumeRequest(prompt=prompt, **options))
        )

    def leaves(self, run: Run) -> list[str]:
        return [one.id for one in self._runner.engine.read.below(run.id) if one.session_id]


def test_single_agent_resumes_its_session(home: Path, project: Path, programs: Bin) -> None:
    program = programs("fake-claude", AGENT)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            talkers = Talkers(runner, program)
            alone = await talkers.chain("claude", prompt="fail")
            for prompt in (None, "more"):
                new = await talkers.resumed(alone, prompt)
                assert (new.kind, [new.resumed_from]) == (Kind.LEAF, talkers.leaves(alone))
            begun = await talkers.resumed(alone, None, start_at=1)
            assert (begun.kind, begun.resumed_from, begun.status) == (Kind.CHAIN, alone.id, Status.FAILED)

            gated = await talkers.chain("claude", prompt="x", until="false")
            assert (await talkers.resumed(gated, None)).kind is Kind.CHAIN
            assert (await talkers.resumed(gated, "more")).kind is Kind.LEAF
            loop = await talkers.chain("claude:1", prompt="x")
            assert (await talkers.resumed(loop, None)).kind is Kind.CHAIN

    asyncio.run(scene())


def test_prompt_for_chain_with_several_sessions_is_refused(home: Path, project: Path, programs: Bin) -> None:
    program = programs("fake-claude", AGENT)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            talkers = Talkers(runner, program)
            failed = await talkers.chain("claude -> broken", prompt="x")
            (leaf,) = talkers.leaves(failed)
            number = runner.engine.find(leaf).number
            for options in ({"session": True}, {"start_at": 1}):
                with pytest.raises(Conflict, match="own prompts") as caught:
                    await runner.engine.tasks.resume(failed, ResumeRequest(prompt="more", **options))
                assert f"name its run: {number}" in (caught.value.hint or "")
            assert (await talkers.resumed(runner.engine.find(leaf), "more")).result == "more"
            new = await talkers.resumed(failed, None)
            assert [step["agent"] for step in new.steps] == ["broken"]
            with pytest.raises(UsageError, match="is not a chain"):
                await runner.engine.tasks.resume(runner.engine.find(leaf), ResumeRequest(start_at=1))

    asyncio.run(scene())
