"""The evidence for the state of a run, in each state, and that looking at it changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
from workflows.engine_fixture import EngineRunner, engine_runner, note, stop_all, until
from world import Bin

from hocket.api.wire import EvidenceOut
from hocket.keeper import files
from hocket.model import Run
from hocket.sessions.journal import run_event

SLEEPER = "import signal; signal.pause()"


async def evidence_of(runner: EngineRunner, run: Run) -> dict[str, Any]:
    """The evidence, which has the documented form."""
    found = await runner.engine.evidence(runner.engine.find(run.id))
    msgspec.convert(msgspec.to_builtins(found), EvidenceOut)
    return found


def traces(runner: EngineRunner, run: Run) -> object:
    """What would change if something were recorded or written."""
    times = {path.name: path.stat().st_mtime_ns for path in runner.engine.directory(run).iterdir()}
    return runner.engine.read.last_seq(), times


def test_evidence_of_live_run_names_its_process(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project, leaves=1) as runner:
            at_work = await runner.running(await runner.start("sleeper"))
            queued = [await runner.start("sleeper") for _ in range(2)]
            found = await evidence_of(runner, at_work)
            assert (found["status"], found["lock"], found["directory"], found["exit"]) == (
                "running",
                "held",
                "running",
                None,
            )
            assert (found["process"]["pid"], found["process"]["alive"]) == (at_work.pid, True)
            assert found["explanation"] == "its keeper holds the lock"
            waiting = await evidence_of(runner, queued[1])
            assert waiting["queue"] == {"position": 2, "taken": 1, "places": 1}
            assert waiting["explanation"] == "it waits for a place: number 2 in the queue, 1 of 1 places taken"
            assert (waiting["process"], waiting["directory"]) == (None, "unstarted")
            await stop_all(runner.engine)
            called_off = await evidence_of(runner, queued[1])
            assert [one["reason"] for one in called_off["stops"]] == ["stopped"]
            assert called_off["explanation"] == "a stop (stopped) was recorded, and its process is gone"

    asyncio.run(scene())


def test_evidence_has_questions_transcript_and_last_event(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)
    transcript = project / "session.jsonl"
    transcript.write_text("{}\n")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.running(await runner.start("sleeper"))
            await runner.engine.ask(run, "Which one?")
            session = {"session_id": "s", "transcript": str(transcript)}
            await runner.engine._journal.write([run_event(run, "session", session), note(run.id, run.id, "hello")])
            found = await evidence_of(runner, run)
            assert [one["text"] for one in found["questions"]] == ["Which one?"]
            assert (found["transcript"]["path"], found["transcript"]["bytes"]) == (str(transcript), 3)
            assert found["transcript"]["changed_at"] == transcript.stat().st_mtime
            assert found["last_event"]["type"] == "text"
            assert "1 open question" in found["explanation"]
            child = await runner.running(await runner.start("sleeper", run))
            assert (await evidence_of(runner, run))["live_below"] == [child.number]
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_evidence_of_ended_run_explains_its_verdict(home: Path, project: Path, agent: Bin) -> None:
    agent("bad", "import sys; sys.exit(3)")
    agent("killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.start("bad"))
            await until(lambda: not files.is_locked(str(runner.engine.directory(ended))), "the end of the keeper")
            before = traces(runner, ended)
            bad = await evidence_of(runner, ended)
            assert traces(runner, ended) == before
            assert (bad["exit"]["code"], bad["ending"]["reason"]) == (3, "exit")
            assert bad["explanation"] == "its process ended: exit code 3"
            shutil.rmtree(runner.engine.directory(runner.engine.find(bad["run"])))
            removed = await runner.engine.evidence(runner.engine.find(bad["run"]))
            assert (removed["directory"], removed["lock"], removed["exit"]) == ("removed", "missing", None)
            assert removed["ending"]["exit_code"] == 3, "what was recorded stays"
            killed = await evidence_of(runner, await runner.wait(await runner.start("killed")))
            assert (killed["exit"]["signal"], killed["ending"]["signal"]) == (signal.SIGKILL, "SIGKILL")
            lost = await runner.running(await runner.start("sleeper"))
            keeper = (await evidence_of(runner, lost))["process"]["keeper"]
            os.kill(keeper, signal.SIGKILL)
            found = await evidence_of(runner, await runner.wait(lost))
            assert (found["status"], found["exit"], found["lock"], found["directory"]) == ("lost", None, "free", "lost")
            await until(lambda: not os.path.exists(f"/proc/{lost.pid}/exe"), "the end of the agent")
            assert (await evidence_of(runner, lost))["process"]["alive"] is False
            assert found["explanation"] == ("its keeper was killed: there is no exit record, so the outcome is unknown")
            chain = await runner.chain("sleeper -> sleeper")
            await until(lambda: any(run.parent == chain.id for run in runner.engine.live()), "the first step")
            assert (await evidence_of(runner, chain))["explanation"] == "1 run below it has not ended"
            await stop_all(runner.engine)

    asyncio.run(scene())
