"""The registry file of a project while its runs start, work and end: before, during and after each of them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until
from world import Bin

from hocket.config import agent_environment
from hocket.model import Reason, Run, Status
from hocket.sessions import registry_view

CHILD = """
import json, os, signal, sys
path = os.environ["CLAUDE_RUNNER_REGISTRY_PATH"]
entry = json.load(open(path))[os.environ["HOCKET_RUN"]]
open("seen." + os.environ["HOCKET_RUN"], "w").write(json.dumps(entry))
"""
SLEEPER = CHILD + "signal.pause()"


@pytest.fixture
def registry(project: Path) -> Path:
    (project / "hocket.toml").write_text("registry_file = true\n")
    return project / ".active-pids.json"


def entries(registry: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(registry.read_bytes()) if registry.exists() else {}
    return found


def rewrite(registry: Path, content: dict[str, Any]) -> None:
    registry.write_text(json.dumps(content))


async def until_entry(registry: Path, run: Run, **fields: Any) -> dict[str, Any]:
    """The entry of a run once it has these fields."""

    def has_fields() -> bool:
        entry = entries(registry).get(run.id, {})
        return all(entry.get(name) == value for name, value in fields.items())

    await until(has_fields, f"{fields} of {run.agent}")
    entry: dict[str, Any] = entries(registry)[run.id]
    return entry


@pytest.mark.req("S3-49")
@pytest.mark.req("S3-50")
@pytest.mark.req("S3-51")
@pytest.mark.req("S3-47")
def test_entry_exists_before_the_process(home: Path, project: Path, agent: Bin, registry: Path) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("sleeper")
            at_start = project / f"seen.{run.id}"
            await until(lambda: at_start.exists() and at_start.read_text(), "the agent's look at the registry")
            seen = json.loads(at_start.read_text())
            assert seen["status"] == "in-progress"
            entry = await until_entry(registry, run, pid=runner.engine.find(run.id).pid)
            expected = {"depth": 0, "parentId": None, "agentType": "sleeper", "status": "in-progress"}
            expected |= dict.fromkeys(("sessionId", "transcriptPath", "parentSessionId", "parentPid"))
            expected |= {"spawnedBySessionId": None, "home": str(home), "cwd": str(project), "number": 1}
            assert {name: entry[name] for name in expected} == expected
            await stop_all(runner.engine)
            assert (await until_entry(registry, run, status="interrupted"))["reason"] == "stopped"

    asyncio.run(scene())


def test_entry_is_written_before_the_keeper_starts(
    home: Path, project: Path, agent: Bin, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pid is null at that time: what starts the keeper reads the file first."""
    agent("brief", "print('done')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            keepers = runner.engine._supervisor._keepers
            seen: list[dict[str, Any]] = []
            start = keepers.start

            def reading_first(place: str, *rest: Any) -> Any:
                seen.append(entries(registry)[Path(place).name])
                return start(place, *rest)

            monkeypatch.setattr(keepers, "start", reading_first)
            await runner.wait(await runner.start("brief"))
            assert [(entry["pid"], entry["status"]) for entry in seen] == [(None, "in-progress")]

    asyncio.run(scene())


@pytest.mark.req("S3-35")
@pytest.mark.req("S3-36")
@pytest.mark.req("S3-37")
@pytest.mark.req("S3-38")
def test_each_end_has_its_status(home: Path, project: Path, agent: Bin, registry: Path) -> None:
    agent("good", "print('fine')")
    agent("bad", "import sys; sys.exit(3)")
    agent("killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            for name, status in (("good", "done"), ("bad", "failed"), ("killed", "failed")):
                run = await runner.wait(await runner.start(name))
                assert (await until_entry(registry, run, status=status))["endedAt"] is not None
            stopped = await runner.running(await runner.start("sleeper"))
            await runner.engine.stop(stopped)
            await until_entry(registry, stopped, status="interrupted", reason="stopped")
            orphan = await runner.running(await runner.start("sleeper"))
            keeper = json.loads((runner.engine.directory(orphan) / "pid").read_text())["keeper"]
            os.kill(keeper, signal.SIGKILL)
            lost = await runner.wait(orphan)
            assert lost.status is Status.LOST
            await until_entry(registry, lost, status="interrupted", reason="lost")

    asyncio.run(scene())


@pytest.mark.req("S3-33")
@pytest.mark.req("S3-41")
def test_child_names_its_parent_and_can_be_polled(home: Path, project: Path, agent: Bin, registry: Path) -> None:
    agent("sleeper", SLEEPER)
    agent("brief", "print('done')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            parent = await runner.running(await runner.start("sleeper", caller_session="s-caller", caller_pid=1))
            chain = await runner.wait(await runner.chain("brief", parent))
            child = next(
                run for run in runner.engine.read.below(chain.id) if run.agent == "brief" and run.id != chain.id
            )
            entry = await until_entry(registry, child, status="done")
            assert (entry["parentId"], entry["parentPid"], entry["depth"]) == (parent.id, parent.pid, 1)
            assert chain.id not in entries(registry), "a chain has no process"
            top = entries(registry)[parent.id]
            assert (top["spawnedBySessionId"], top["parentPid"], top["parentId"]) == ("s-caller", 1, None)
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_child_elsewhere_is_in_registry_of_parent(
    home: Path, project: Path, agent: Bin, registry: Path, world: Path
) -> None:
    agent("sleeper", SLEEPER)
    agent("brief", "print('done')")
    elsewhere = world / "elsewhere"
    elsewhere.mkdir()

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            parent = await runner.running(await runner.start("sleeper"))
            request = runner.request(agent="brief")
            child = await runner.engine.start(
                type(request)(cwd=str(elsewhere), env=request.env, agent="brief"), None, parent
            )
            await until_entry(registry, await runner.wait(child), status="done", cwd=str(elsewhere))
            assert list(elsewhere.iterdir()) == []
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_nothing_is_written_when_disabled(home: Path, project: Path, agent: Bin) -> None:
    agent("env", "import json, os; print(json.dumps(dict(os.environ)))")
    assert agent_environment({"CLAUDE_RUNNER_REGISTRY_PATH": "/the/callers"}, "claude") == {}

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            request = runner.request(agent="env")
            env = {**(request.env or {}), "CLAUDE_RUNNER_REGISTRY_PATH": "/the/callers"}
            run = await runner.wait(await runner.engine.start(type(request)(cwd=request.cwd, env=env, agent="env")))
            assert "CLAUDE_RUNNER_REGISTRY_PATH" not in json.loads(run.result or "")

    asyncio.run(scene())
    assert list(project.iterdir()) == []


# --- Problems -----------------------------------------------------------------------------------------------


async def notices(runner: EngineRunner, run: Run) -> list[str]:
    return [event["data"]["text"] for event in await runner.events(run) if event["type"] == "notice"]


@pytest.mark.req("S3-52")
def test_damaged_file_is_reported_to_the_run(home: Path, project: Path, agent: Bin, registry: Path) -> None:
    agent("sleeper", SLEEPER)
    registry.write_text("{ no json")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.running(await runner.start("sleeper"))
            (text,) = await notices(runner, run)
            (kept,) = [name for name in os.listdir(project) if ".corrupt-" in name]
            assert (project / kept).read_text() == "{ no json"
            assert kept in text
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_linked_registry_file_gives_a_notice(
    home: Path, project: Path, agent: Bin, registry: Path, world: Path
) -> None:
    agent("brief", "print('done')")
    (world / "target").write_text("mine")
    registry.symlink_to(world / "target")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.wait(await runner.start("brief"))
            assert run.reason is Reason.EXIT
            assert run.status is Status.DONE
            found = await notices(runner, run)
            assert len(found) == 1, "one problem is reported once"
            assert "not a regular file" in found[0]
            assert (world / "target").read_text() == "mine"

    asyncio.run(scene())


def test_file_is_written_once_after_several_failures(
    home: Path,
    project: Path,
    agent: Bin,
    registry: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent("brief", "print('done')")
    monkeypatch.setattr(registry_view, "RETRY_AFTER", 0.05)
    registry.symlink_to("target")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            runs = [await runner.wait(await runner.start("brief")) for _ in range(3)]
            os.unlink(registry)
            runs.append(await runner.wait(await runner.start("brief")))
            for run in runs:
                await until_entry(registry, run, status="done")

    asyncio.run(scene())
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_run_stopped_before_its_entry_never_starts(home: Path, project: Path, agent: Bin, registry: Path) -> None:
    agent("brief", "open('ran', 'w')")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            with open(f"{registry}.lock", "w") as lock:  # noqa: ASYNC230 - as another writer has it
                fcntl.flock(lock, fcntl.LOCK_EX)
                run = await runner.start("brief")
                stopping = asyncio.create_task(runner.engine.stop(run))
                await until(lambda: runner.engine.find(run.id).stop_reason is not None, "the recorded stop")
            await stopping
            ended = runner.engine.find(run.id)
            assert (ended.status, ended.started_at) == (Status.STOPPED, None)

    asyncio.run(scene())
    assert not (project / "ran").exists()


# --- The next server ----------------------------------------------------------------------------------------


@pytest.mark.req("S3-53")
def test_next_server_corrects_what_it_finds(home: Path, project: Path, agent: Bin, registry: Path) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            live = await runner.running(await runner.start("sleeper"))
            ended = await runner.running(await runner.start("sleeper"))
            await until_entry(registry, ended, pid=runner.engine.find(ended.id).pid)
            before = entries(registry)
            await runner.engine.stop(ended)
            await until_entry(registry, ended, status="interrupted")
        # As a kill between the commit and the write leaves it, with one run that the store has lost.
        rewrite(registry, {**before, "rgone": {**before[ended.id], "pid": 1}, "x": {"pid": 1}})
        async with engine_runner(home, project) as runner:
            await until_entry(registry, ended, status="interrupted", reason="stopped")
            await until(lambda: entries(registry)["rgone"]["status"] == "interrupted", "the entry of an unknown run")
            now = entries(registry)
            assert (now[live.id]["status"], now["x"]) == ("in-progress", {"pid": 1})
            await stop_all(runner.engine)

    asyncio.run(scene())
