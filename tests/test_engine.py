"""The engine with real processes: starting once, stopping a whole tree, and continuing after another engine."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from workflows.engine_fixture import SECRET, EngineRunner, engine_runner, stop_all, until
from world import Bin, processes_of

from hocket.errors import Conflict, Forbidden, Unauthorized, UnknownAgent
from hocket.keeper import files
from hocket.keeper.platform import Inotify
from hocket.keeper.zygote import Zygote
from hocket.model import Kind, Reason, Run, Status
from hocket.sessions import supervisor
from hocket.sessions.run_identity import run_token
from hocket.sessions.stops import stop_event

SLEEPER = "import signal; signal.pause()"
HALF_A_SENTENCE = """
import json
def say(**line): print(json.dumps({"type": "stream_event", "session_id": "s-1", "parent_tool_use_id": None, **line}),
                       flush=True)
def delta(text): say(event={"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
say(type="system", subtype="init", cwd="/", tools=[])
open("first").read()
say(event={"type": "message_start", "message": {"id": "m-1", "role": "assistant", "content": []}})
say(event={"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
delta("half ")
open("second").read()
delta("and half")
say(type="assistant", message={"id": "m-1", "content": [{"type": "text", "text": "half and half"}]})
say(type="result", subtype="success", is_error=False, result="half and half")
"""
LEDGER = "import os, sys; os.write(os.open('ledger', os.O_WRONLY | os.O_APPEND | os.O_CREAT), b'x')"


def test_run_goes_from_start_to_end(home: Path, project: Path, agent: Bin) -> None:
    agent("greeter", "import sys; print('hello', *sys.argv[1:]); print('oops', file=sys.stderr); sys.exit(3)")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("greeter", prompt="you there")
            assert (run.status, run.kind, run.depth, run.root, run.number) == (Status.STARTING, Kind.LEAF, 0, run.id, 1)
            ended = await runner.wait(run)
            assert (ended.status, ended.reason, ended.exit_code) == (Status.FAILED, Reason.EXIT, 3)
            assert ended.result == "hello you there\n"
            told = await runner.events(run)
            assert [event["type"] for event in told][:2] == ["run.created", "run.started"]
            assert sorted(event["type"] for event in told[2:-1]) == ["raw", "text"]
            assert told[-1]["type"] == "run.ended"
            assert runner.engine.live() == []
            assert runner.engine.count == 0

    asyncio.run(scene())


@pytest.mark.req("S5-16")
@pytest.mark.parametrize(("code", "status"), [(0, Status.DONE), (3, Status.FAILED)])
def test_run_without_team_ends_by_its_exit_code(
    home: Path, project: Path, agent: Bin, code: int, status: Status
) -> None:
    agent("quick", f"raise SystemExit({code})")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("quick")
            ended = await runner.wait(run)
            assert (run.status, ended.status, ended.waiting_since) == (Status.STARTING, status, None)
            types = [event["type"] for event in await runner.events(run)]
            assert (types[:2], types[-1]) == (["run.created", "run.started"], "run.ended")

    asyncio.run(scene())


def test_steady_output_is_read_while_written(home: Path, project: Path, agent: Bin) -> None:
    agent("talker", "import time\nfor i in range(200):\n    print(i, flush=True)\n    time.sleep(0.005)")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("talker")
            await runner.wait(run)
            said = [event for event in await runner.events(run) if event["type"] == "text"]
            assert [int(event["data"]["text"]) for event in said] == list(range(200))
            assert len({event["ts"] for event in said}) > 5, "it was not read while it was written"

    asyncio.run(scene())


def says(runner: EngineRunner, run: Run, text: str) -> bool:
    return runner.engine.hub.last.get(run.id) == text


def test_watcher_overflow_scans_every_run(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of events has overflowed, and no periodic scan finds what was lost."""
    agent("talker", "while said := open('gate').read(): print(said, flush=True)")
    os.mkfifo(project / "gate")
    monkeypatch.setattr(supervisor, "SCAN_EVERY", 3600.0)
    read = Inotify.read
    monkeypatch.setattr(Inotify, "read", lambda self: [(-1, 0, "") for _ in read(self)[:1]])

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("talker")
            for number in range(5):
                await asyncio.to_thread((project / "gate").write_text, str(number))
                await until(partial(says, runner, run, str(number)), "its word")
            await asyncio.to_thread((project / "gate").write_text, "")
            assert (await runner.wait(run)).status is Status.DONE

    asyncio.run(scene())


def test_refused_start_leaves_no_run(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            with pytest.raises(UnknownAgent):
                await runner.start("no-such-program")
            assert runner.engine.read.recent(10) == []
            assert not (home / "runs").exists()

    asyncio.run(scene())


def test_one_key_gives_one_run_across_restarts(home: Path, project: Path, agent: Bin) -> None:
    agent("once", LEDGER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            runs = await asyncio.gather(*(runner.start("once", key="k") for _ in range(100)))
            assert len({run.id for run in runs}) == 1
            await runner.wait(runs[0])
        async with engine_runner(home, project) as runner:
            assert (await runner.start("once", key="k")).id == runs[0].id
            assert len(runner.engine.read.recent(10)) == 1
        assert (project / "ledger").read_bytes() == b"x"

    asyncio.run(scene())


def test_key_of_refused_start_can_be_reused(home: Path, project: Path, agent: Bin) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            refused = await asyncio.gather(*(runner.start("later", key="k") for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in refused] == [UnknownAgent] * 3
            agent("later", "print('now')")
            assert (await runner.wait(await runner.start("later", key="k"))).result == "now\n"

    asyncio.run(scene())


def test_next_engine_adopts_live_runs(home: Path, project: Path, agent: Bin) -> None:
    agent("teller", "print('first', flush=True); open('gate').read(); print('second')")
    os.mkfifo(project / "gate")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("teller")
            await until(lambda: runner.engine.hub.last.get(run.id) == "first", "the first word")
        (project / "gate").write_text("")
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            assert (ended.status, ended.exit_code, ended.result) == (Status.DONE, 0, "first\nsecond\n")
            texts = [e["data"]["text"] for e in await runner.events(run) if e["type"] == "text"]
            assert texts == ["first", "second"]

    asyncio.run(scene())


def test_uncommitted_lines_are_read_by_next_engine(home: Path, project: Path, agent: Bin) -> None:
    """Such lines have no event of their own, such as half of a sentence."""
    agent("claude", HALF_A_SENTENCE)
    for gate in ("first", "second"):
        os.mkfifo(project / gate)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("claude", prompt="go")
            await until(lambda: runner.engine.find(run.id).session_id, "its session")
            committed = runner.engine.read.offsets(run.id).out
            (project / "first").write_text("")
            leaf = runner.engine._supervisor._leaves[run.id]
            await until(lambda: leaf.offsets.out > committed, "the half of a sentence to be read")
            assert runner.engine.read.offsets(run.id).out == committed
        (project / "second").write_text("")
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            assert (ended.status, ended.result) == (Status.DONE, "half and half")
            events = await runner.events(run)
            assert [e["data"]["text"] for e in events if e["type"] == "text"] == ["half and half"]
            assert [e["type"] for e in events].count("session") == 1

    asyncio.run(scene())


def test_stop_ends_run_with_its_descendants(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            top = await runner.start("sleeper")
            child = await runner.start("sleeper", parent=top)
            chain = await runner.chain("sleeper:2", parent=child)
            beside = await runner.start("sleeper")
            await runner.running(top)
            told = await runner.engine.stop(top)
            below = [run.id for run in runner.engine.read.below(top.id)]
            assert set(below) >= {top.id, child.id, chain.id}
            assert sorted(told["stopped"]) == sorted(below)
            assert (told["run"], told["status"], told["survivors"]) == (top.id, "stopped", [])
            assert [run.id for run in runner.engine.live()] == [beside.id]
            again = await runner.engine.stop(top)
            assert (again["status"], again["stopped"]) == ("stopped", [])
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_child_created_during_stop_is_stopped(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            parent = await runner.running(await runner.start("sleeper"))
            starting = asyncio.create_task(runner.start("sleeper", parent=parent))
            await asyncio.sleep(0)  # it has passed every check, and its commit is on the way
            await runner.engine.stop(parent)
            outcome = (await asyncio.gather(starting, return_exceptions=True))[0]
            survivors = [run.id for run in runner.engine.live() if run.stop_reason is None]
            await stop_all(runner.engine)
            assert isinstance(outcome, Run | Conflict), outcome
            assert survivors == []

    asyncio.run(scene())


def test_next_engine_carries_out_recorded_stop(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            parent = await runner.running(await runner.start("sleeper"))
            child = await runner.running(await runner.start("sleeper", parent))
            other = await runner.running(await runner.start("sleeper"))
            await runner.engine._journal.write([stop_event(parent, Reason.STOPPED)], durable=True)
        async with engine_runner(home, project) as runner:
            assert [(await runner.wait(run)).reason for run in (parent, child)] == [Reason.STOPPED] * 2
            assert runner.engine.find(other.id).status is Status.RUNNING
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_run_being_stopped_cannot_start_children(home: Path, project: Path, agent: Bin) -> None:
    os.mkfifo(project / "gate")
    agent(
        "stubborn", "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); open('gate').read()"
    )

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            parent = await runner.start("stubborn")
            await until(lambda: runner.engine.hub.last.get(parent.id), "its word")
            stopping = asyncio.create_task(runner.engine.stop(parent))
            await until(lambda: runner.engine.find(parent.id).stop_reason, "the request to stop")
            with pytest.raises(Conflict):
                await runner.start("stubborn", parent=runner.engine.run_of_token(run_token(SECRET, parent.id)))
            (project / "gate").write_text("")
            assert (await stopping)["status"] == "stopped"

    asyncio.run(scene())


def test_token_is_valid_while_its_run_lives(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("sleeper")
            token = run_token(SECRET, run.id)
            assert runner.engine.run_of_token(token).id == run.id
            await runner.engine.stop(run)
            with pytest.raises(Forbidden):
                runner.engine.run_of_token(token)
            with pytest.raises(Unauthorized):
                runner.engine.run_of_token("x.y")
            for forged in (f"{run.id}.", run_token(b"other", run.id)):
                with pytest.raises(Forbidden, match="not the token of this run"):
                    runner.engine.run_of_token(forged)

    asyncio.run(scene())


def test_message_to_program_or_ended_run_is_refused(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("sleeper")
            with pytest.raises(Conflict, match="does not read"):
                await runner.engine.send(run, "hi", "k")
            await runner.engine.stop(run)
            with pytest.raises(Conflict, match="has ended"):
                await runner.engine.send(run, "hi", "k")

    asyncio.run(scene())


def test_close_leaves_only_runs_and_keepers(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> Run:
        async with engine_runner(home, project) as runner:
            return await runner.running(await runner.start("sleeper"))

    async def clean_up() -> None:
        async with engine_runner(home, project) as runner:
            await stop_all(runner.engine)

    run = asyncio.run(scene())
    try:
        assert run.pid is not None
        assert run.pid in processes_of(home)
        asyncio.run(until(lambda: len(processes_of(home)) == 2, "the agent and its keeper alone"))
    finally:
        asyncio.run(clean_up())


def test_time_limit_continues_under_next_engine(home: Path, project: Path, agent: Bin) -> None:
    agent("sleeper", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.running(await runner.start("sleeper", timeout=0.3))
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(run)
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.TIMEOUT)

    asyncio.run(scene())


def test_start_failed_by_full_disk_blocks_no_run(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes no more names, for a while: the engine must go on with everything else."""
    agent("quick", "print('done')")
    refusals = iter([errno.EDQUOT, errno.EDQUOT])
    call_off = files.call_off

    def refuse_start(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    def refuse_twice(place: str) -> bool:
        for number in refusals:
            raise OSError(number, "no quota")
        return call_off(place)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            with monkeypatch.context() as patched:
                patched.setattr(files, "create", refuse_start)
                patched.setattr(files, "call_off", refuse_twice)
                ended = await asyncio.wait_for(runner.wait(await runner.start("quick")), 10)
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.START_FAILED)
            assert (await runner.wait(await runner.start("quick"))).status is Status.DONE
            assert next(refusals, None) is None

    asyncio.run(scene())


def test_flood_ends_soon_after_its_limit(home: Path, project: Path, agent: Bin) -> None:
    (home / "config.toml").write_text("[limits]\nmax_output_mb = 1\n")
    agent("flood", "import sys\nwhile True: sys.stdout.write('y\\n' * 10_000)")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.start("flood"))
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.LIMIT)
            told = await runner.events(ended)
            (notice,) = (event["data"]["text"] for event in told if event["type"] == "notice")
            lines = sum(event["type"] == "text" for event in told)
            written = (runner.engine.directory(ended) / files.OUT).stat().st_size
            assert notice == f"{written - 2 * lines} bytes of output are only in the run's files: hocket logs 1 --raw"
            assert lines < 200_000

    asyncio.run(scene())


def test_stop_does_not_wait_for_unread_output(home: Path, project: Path, agent: Bin) -> None:
    agent("flood", "print('y\\n' * 5_000_000, 'the last word', sep='', flush=True); import signal; signal.pause()")

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("flood")
            place = runner.engine.directory(run) / files.OUT
            await until(lambda: place.exists() and place.stat().st_size > 10_000_000, "its words")
            told = await asyncio.wait_for(runner.engine.stop(run), 10)
            assert told["status"] is Status.STOPPED
            events = await runner.events(run)
            assert [event["data"]["text"] for event in events if event["type"] == "text"][-1] == "the last word"
            assert len(events) < 1_000_000

    asyncio.run(scene())


def test_refused_fork_is_repeated_without_limit(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper that cannot fork its agent gives the start back; that is no fault of the run."""
    agent("later", "print('now')")
    monkeypatch.setattr(supervisor, "START_ATTEMPTS", 1)
    monkeypatch.setattr(supervisor, "SCAN_EVERY", 0.1)
    fork, refusals = Zygote.fork, iter(range(3))

    def refused_at_first(
        zygote: Zygote, directory: str, timeout: float, secrets: Mapping[str, str] | None = None
    ) -> int:
        if next(refusals, None) is None:
            return fork(zygote, directory, timeout, secrets)
        assert files.claim_start(directory)
        files.give_start_back(directory, fork_refused=True)
        return os.getpid()

    monkeypatch.setattr(Zygote, "fork", refused_at_first)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            ended = await runner.wait(await runner.start("later"))
            assert (ended.status, ended.result, next(refusals, None)) == (Status.DONE, "now\n", None)

    asyncio.run(scene())


def test_start_is_recorded_when_lock_is_replaced(
    home: Path, project: Path, agent: Bin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torture row 47. The agent was faster than the first look at its `pid`."""
    monkeypatch.setattr(supervisor, "SCAN_EVERY", 0.1)
    replacing = """
import glob, os, signal
(lock,) = glob.glob(os.path.join(os.environ["HOCKET_HOME"], "runs", "*", os.environ["HOCKET_RUN"], "lock"))
os.unlink(lock)
os.symlink("/dev/zero", lock)
signal.pause()
"""
    agent("replacer", replacing)
    monkeypatch.setattr(files, "read_pid", lambda directory: None)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await runner.start("replacer")
            await until(lambda: os.path.islink(runner.engine.directory(run) / files.LOCK), "the replaced lock")
            await until(lambda: runner.engine.find(run.id).status is Status.RUNNING, "the recorded start")
            await stop_all(runner.engine)

    asyncio.run(scene())
