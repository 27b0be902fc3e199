"""The variables that tell an agent what it is, as plain programs find them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from scripted_claude import install_claude
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all
from world import Bin, Hocket

from hocket.config import calling_session, may_be_passed
from hocket.model import Kind, Run
from hocket.providers import agent_variables

PRINTING = "import json, os; print(json.dumps(dict(os.environ)))"
WAITING = "import signal; signal.pause()"
LIMIT = agent_variables.PROMPT_LIMIT
OURS = ("AGENT_", "CLAUDE_")


def variables_in(result: str | None) -> dict[str, str]:
    """What an agent found in its environment of what S3 names."""
    found: dict[str, str] = json.loads((result or "").splitlines()[-1])
    return {name: value for name, value in found.items() if name.startswith(OURS)}


def variables(run: Run) -> dict[str, str]:
    return variables_in(run.result)


def content_of_prompt_file(found: Mapping[str, str]) -> str:
    return Path(found["AGENT_PROMPT_FILE"]).read_text(encoding="utf-8")


async def variables_of_last_step(runner: EngineRunner, chain: Run) -> dict[str, str]:
    chain = await runner.wait(chain)
    leaves = [run for run in runner.engine.read.below(chain.id) if run.kind is Kind.LEAF]
    return variables(runner.engine.find(leaves[-1].id))


@pytest.mark.req("S3-42", "S3-43", "S3-44", "S3-46")
def test_program_knows_its_run_prompt_and_parent(home: Path, project: Path, agent: Bin) -> None:
    agent("show", PRINTING)
    agent("waiting", WAITING)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            alone = await runner.wait(await runner.start("show", prompt="look\naround"))
            expected = {
                "CLAUDE_AGENT_ID": alone.id,
                "CLAUDE_AGENT_DEPTH": "0",
                "AGENT_CWD": str(project),
                "AGENT_PROMPT": "look\naround",
                "AGENT_ALLOWED_AGENTS": "null",
                "AGENT_MCP_SERVERS": "null",
            }
            assert variables(alone) == expected
            parent = await runner.running(await runner.start("waiting"))
            child = await runner.wait(await runner.start("show", parent))
            known = {"CLAUDE_AGENT_ID": child.id, "CLAUDE_AGENT_DEPTH": "1", "CLAUDE_PARENT_PID": str(parent.pid)}
            del expected["AGENT_PROMPT"]
            assert variables(child) == {**expected, **known}
            in_chain = await variables_of_last_step(runner, await runner.chain("show", parent))
            assert (in_chain["CLAUDE_PARENT_PID"], in_chain["CLAUDE_AGENT_DEPTH"]) == (str(parent.pid), "1")
            await stop_all(runner.engine)

    asyncio.run(scene())


@pytest.mark.req("S3-43")
def test_root_has_parent_pid_of_its_caller(home: Path, project: Path, agent: Bin) -> None:
    agent("show", PRINTING)
    callers = {"AGENT_PROMPT": "mine", "CLAUDE_AGENT_ID": "rmine", "CLAUDE_PARENT_PID": "1", "AGENT_MODEL": "mine"}

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            for start in ({"agent": "show"}, {"dsl": "show"}):
                request = runner.request(**start, caller_pid=4711)
                request = msgspec.structs.replace(request, env={**(request.env or {}), **callers})
                run = await runner.wait(await runner.engine.start(request))
                leaf = run if run.kind is Kind.LEAF else runner.engine.read.below(run.id)[-1]
                found = variables(runner.engine.find(leaf.id))
                assert (found["CLAUDE_PARENT_PID"], found["CLAUDE_AGENT_ID"]) == ("4711", leaf.id)
                assert not {"AGENT_PROMPT", "AGENT_MODEL"} & found.keys()

    asyncio.run(scene())


@pytest.mark.req("S3-44")
def test_prompt_variable_has_filled_placeholders(home: Path, project: Path, agent: Bin) -> None:
    agent("first", "print('the plan')")
    agent("show", PRINTING)
    (project / "hocket.toml").write_text(
        '[chains.c]\nsteps = [{agent = "first"}, {agent = "show", prompt = "{{task}}: {{previous.result}}"}]\n'
    )

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.engine.start(runner.request(chain="c", prompt="build"))
            assert (await variables_of_last_step(runner, run))["AGENT_PROMPT"] == "build: the plan"

    asyncio.run(scene())


@pytest.mark.req("S3-44", "S3-48")
@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1, 3_000_000])
def test_long_prompt_is_in_file(home: Path, project: Path, agent: Bin, size: int) -> None:
    agent("show", PRINTING)
    (project / "hocket.toml").write_text('[agents.reader]\npath = "show"\nprompt_via = "stdin"\n')
    prompt = "é" + "x" * (size - 2)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            for name in ("show", "reader") if size < 64 * 1024 else ("reader",):
                run = await runner.wait(await runner.start(name, prompt=prompt))
                found = variables(run)
                if size <= LIMIT:
                    assert (found["AGENT_PROMPT"], "AGENT_PROMPT_FILE" in found) == (prompt, False)
                else:
                    assert (content_of_prompt_file(found), "AGENT_PROMPT" in found) == (prompt, False)
                    assert found["AGENT_PROMPT_FILE"] == str(runner.engine.directory(run) / "prompt")

    asyncio.run(scene())


@pytest.mark.req("S3-45")
def test_program_gets_default_model(home: Path, project: Path, agent: Bin) -> None:
    agent("show", PRINTING)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            request = runner.request(agent="show")
            request = msgspec.structs.replace(request, env={**(request.env or {}), "CLAUDE_RUNNER_MODEL": "HAIKU"})
            run = await runner.wait(await runner.engine.start(request))
            names = ("AGENT_MODEL", "CLAUDE_RUNNER_MODEL")
            assert [variables(run)[name] for name in names] == ["claude-haiku-4-5-20251001"] * 2

    asyncio.run(scene())


def test_parent_pid_within_run_is_no_caller() -> None:
    env = {"CLAUDE_PARENT_PID": "12"}
    assert not any(map(may_be_passed, env))
    assert calling_session(env) == {"caller_pid": 12}
    assert calling_session({**env, "HOCKET_RUN": "rx"}) == {}
    assert calling_session({**env, "HOCKET_RUN": "rx", "CLAUDE_PID": "13"}) == {"caller_pid": 13}


@pytest.mark.req("S3-42", "S3-43")
@pytest.mark.shared_server
def test_program_is_parent_of_what_it_spawns(hocket: Hocket, agent: Bin) -> None:
    agent("show", PRINTING)
    agent("outer", "#!/bin/sh\nhocket wait $(hocket spawn show --json | cut -d '\"' -f 4) > /dev/null\necho $$\n")
    outer = hocket.created("spawn", "outer")
    assert hocket("wait", outer).returncode == 0
    parent, child = hocket.runs()
    found = variables_in(child["result"])
    assert (parent["id"], found["CLAUDE_AGENT_ID"], found["CLAUDE_AGENT_DEPTH"]) == (outer, child["id"], "1")
    assert found["CLAUDE_PARENT_PID"] == parent["result"].strip() == str(parent["pid"])


@pytest.mark.req("S3-42", "S3-44")
@pytest.mark.shared_server
def test_resumed_run_has_own_prompt_and_id(hocket: Hocket, world: Path) -> None:
    install_claude(world / "bin")

    def environment(ref: str) -> dict[str, str]:
        assert hocket("wait", ref).returncode == 0
        place = json.loads(hocket("show", ref, "--json").stdout)["dir"]
        found: dict[str, str] = json.loads((Path(place) / "spec.json").read_text())["env"]
        return {name: found.get(name, "") for name in ("AGENT_PROMPT", "AGENT_PROMPT_FILE", "CLAUDE_AGENT_ID")}

    first = hocket.created("spawn", "claude", "-p", "first")
    assert environment(first) == {"AGENT_PROMPT": "first", "AGENT_PROMPT_FILE": "", "CLAUDE_AGENT_ID": first}
    for prompt in ("second", "x" * (LIMIT + 1)):
        assert hocket("resume", first, "-p", prompt).returncode == 0
        found = environment(resumed := hocket.runs()[-1]["id"])
        assert found["CLAUDE_AGENT_ID"] == resumed != first
        assert found["AGENT_PROMPT"] == ("second" if prompt == "second" else "")
        assert bool(found["AGENT_PROMPT_FILE"]) == (prompt != "second")


def test_prompt_with_nul_does_not_fit_variable() -> None:
    assert [agent_variables.is_in_variable(text) for text in (None, "", "x", "a\0b")] == [True, True, True, False]
