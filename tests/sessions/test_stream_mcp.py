"""Calls of Hocket's tools in the output of a run: answered once in its input, also by the next server."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENCE
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until
from world import processes_of

from hocket.keeper import files
from hocket.keeper.server_watch import SERVER_LOCK
from hocket.mcp import protocol
from hocket.mcp.protocol import ToolCall
from hocket.model import Run, Status
from hocket.providers import PROVIDERS
from hocket.sessions import leaf, stream_mcp

PROGRAM = """
import json, os, sys
def hear():
    line = sys.stdin.readline()
    with open("heard", "a") as heard: heard.write(line)
    return line
hear()
for move in json.load(open("moves")):
    if move == "hear": hear()
    elif isinstance(move, str): os.close(os.open(move, os.O_RDONLY))
    else: print(json.dumps(move), flush=True)
while hear(): pass
"""
"""In place of the CLI: prints its moves and records its input. A name is a FIFO to wait at."""
SECRET = "s3cret-s3cret-s3cret"
INIT = {"type": "system", "subtype": "init", "session_id": "s"}
DONE = {"type": "result", "subtype": "success", "is_error": False, "result": "done", "session_id": "s"}
Answering = Callable[[Run, ToolCall, str], Awaitable[dict[str, Any]]]


def asks(request: str, message: dict[str, Any] | None, server: str = "hocket") -> dict[str, Any]:
    inside = {"subtype": "mcp_message", "server_name": server, "message": message}
    return {"type": "control_request", "request_id": request, "request": inside}


def calls(request: str, id: int, **given: Any) -> dict[str, Any]:
    params = {"name": "status", "arguments": given, "_meta": {"claudecode/toolUseId": f"tool{id}", "progressToken": id}}
    return asks(request, {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


def text(said: str) -> dict[str, Any]:
    message = {"id": said, "model": "m", "content": [{"type": "text", "text": said}]}
    return {"type": "assistant", "message": message, "session_id": "s"}


class SpeakerRunner(EngineRunner):
    """A runner with one agent that plays a list of moves."""

    async def begin(self, *moves: Any) -> Run:
        (self.project / "moves").write_text(json.dumps(moves))
        request = self.request(agent="claude", prompt="go", on_question="deny")
        env = {
            **request.environment,
            "HOCKET_CLAUDE": str(self.project.parent / "bin/speaker"),
            "ANTHROPIC_API_KEY": SECRET,
        }
        return await self.engine.start(msgspec.structs.replace(request, env=env))

    def heard(self) -> list[dict[str, Any]]:
        """What the agent was answered, without its prompt."""
        path = self.project / "heard"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines[1:]]

    async def says(self, run: Run, words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            async for lines in self.engine.follow(run, 0):
                if any(words.encode() in line.text for line in lines):
                    return


@pytest.fixture
def speaker(agent: Any) -> None:
    agent("speaker", PROGRAM)


def speaker_runner(runner: EngineRunner) -> SpeakerRunner:
    runner.__class__ = SpeakerRunner
    assert isinstance(runner, SpeakerRunner)
    return runner


class CallHandler:
    """Records calls, and answers them once ``go_on`` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, ToolCall]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, run: Run, call: ToolCall, key: str) -> dict[str, Any]:
        self.calls.append((run.id, key, call))
        await self.go_on.wait()
        return protocol.call_result(call, f"answer {call.id}", False, {})

    async def called(self, times: int = 1) -> None:
        await until(lambda: len(self.calls) >= times, "a call")


def answered(line: dict[str, Any]) -> tuple[str, str]:
    response = line["response"]
    return response["request_id"], response["response"]["mcp_response"]["result"]["content"][0]["text"]


@pytest.mark.usefixtures("speaker")
def test_protocol_messages_are_answered_at_once(home: Path, project: Path) -> None:
    hello: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25"},
    }
    thanks: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    tools: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = speaker_runner(base)
            asked = [move for n, m in enumerate((hello, thanks, tools)) for move in (asks(f"q{n}", m), "hear")]
            run = await runner.wait(await runner.begin(*asked, INIT, DONE))
            assert (run.status, run.result) == (Status.DONE, "done")
            first, second, third = (line["response"] for line in runner.heard())
            assert [one["request_id"] for one in (first, second, third)] == ["q0", "q1", "q2"]
            assert first["response"]["mcp_response"]["result"]["protocolVersion"] == "2025-11-25"
            assert second["response"] == {"mcp_response": {"jsonrpc": "2.0", "result": {}}}
            assert {tool["name"] for tool in third["response"]["mcp_response"]["result"]["tools"]} >= {"hand_off"}
            assert not {"raw", "question", "answer"} & {event["type"] for event in await runner.events(run)}

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
def test_calls_run_concurrently_while_output_is_read(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner, handler = speaker_runner(base), CallHandler()
            runner.engine.stream_mcp.open(handler)
            moves = [calls("q1", 1), calls("q2", 2, run=SECRET), text("meanwhile"), "hear", "hear", DONE]
            run = await runner.begin(INIT, *moves)
            await handler.called(2)
            await runner.says(run, "meanwhile")
            assert runner.heard() == []
            handler.go_on.set()
            await runner.wait(run)
            assert sorted(map(answered, runner.heard())) == [("q1", "answer 1"), ("q2", "answer 2")]
            assert {id for id, _key, _call in handler.calls} == {run.id}
            assert len({key for _id, key, _call in handler.calls}) == 2
            # It is covered in what people read, not here.
            assert {"run": SECRET} in [call.arguments for _id, _key, call in handler.calls]

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
@pytest.mark.parametrize(
    "word", [{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}, None]
)
def test_cancelled_call_gets_no_answer(home: Path, project: Path, word: Any) -> None:
    withdrawn = {"type": "control_cancel_request", "request_id": "q1"} if word is None else asks("q2", word)

    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner, handler = speaker_runner(base), CallHandler()
            runner.engine.stream_mcp.open(handler)
            run = await runner.begin(INIT, calls("q1", 7), withdrawn, text("called off"), "gate", DONE)
            await runner.says(run, "called off")
            await handler.called()  # Calls of an ended run are not executed.
            assert handler.calls[0][2].cancelled
            handler.go_on.set()
            with (project / "gate").open("w"):
                pass
            await runner.wait(run)
            assert "q1" not in [line["response"]["request_id"] for line in runner.heard()]
            assert not {"raw", "answer"} & {event["type"] for event in await runner.events(run)}

    os.mkfifo(project / "gate")
    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
@pytest.mark.parametrize("behind", [[], [text("recorded")]], ids=["unrecorded", "recorded"])
def test_unanswered_call_is_repeated_with_the_same_key(home: Path, project: Path, behind: list[Any]) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner, first = speaker_runner(base), CallHandler()
            runner.engine.stream_mcp.open(first)
            run = await runner.begin(INIT, calls("q1", 1), *behind, "hear", DONE)
            await first.called()
            if behind:
                await runner.says(run, "recorded")
        first.go_on.set()
        async with engine_runner(home, project) as base:
            runner, second = speaker_runner(base), CallHandler()
            runner.engine.stream_mcp.open(second)
            await second.called()
            second.go_on.set()
            assert (await runner.wait(run)).status is Status.DONE
            assert list(map(answered, runner.heard())) == [("q1", "answer 1")]
            assert [call[:2] for call in first.calls] == [call[:2] for call in second.calls]

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
def test_answered_call_is_not_repeated(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner, first = speaker_runner(base), CallHandler()
            first.go_on.set()
            runner.engine.stream_mcp.open(first)
            run = await runner.begin(
                INIT, calls("q1", 1), text("recorded"), "hear", calls("q2", 2), "hear", "gate", DONE
            )
            await runner.says(run, "recorded")
            place = str(runner.engine.directory(run))
            await until(lambda: files.has_input(place, "mcp:q2"), "both answers")
        async with engine_runner(home, project) as base:
            runner, second = speaker_runner(base), CallHandler()
            runner.engine.stream_mcp.open(second)
            await until(lambda: len(runner.heard()) == 2, "what it was told")
            with (project / "gate").open("w"):
                pass
            await runner.wait(run)
            assert second.calls == []

    os.mkfifo(project / "gate")
    asyncio.run(scene())


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """As on a machine that has no descriptor left: for a while every look at a file fails."""
    opened = os.open

    def refuse(name: str, *rest: int, **more: int) -> int:
        if name == str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)
        return opened(name, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


async def looked() -> None:
    """Everything that was under way in the one thread for it has been done."""
    await asyncio.sleep(0)
    await asyncio.to_thread(int)


@pytest.mark.usefixtures("speaker")
@pytest.mark.parametrize("taken_over", [False, True], ids=["its-first-server", "the-next-one"])
def test_call_is_executed_when_files_become_readable(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch, taken_over: bool
) -> None:
    monkeypatch.setattr(stream_mcp, "RETRY_AFTER", 0.05)

    async def scene() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        handler = CallHandler()
        handler.go_on.set()
        async with engine_runner(home, project) as base:
            runner = speaker_runner(base)
            run = await runner.begin(INIT, calls("q1", 1), text("recorded"), "hear", DONE)
            await runner.says(run, "recorded")
            given = runner.engine.directory(run) / files.IN
            if not taken_over:
                with unreadable(given):
                    runner.engine.stream_mcp.open(handler)
                    await looked()
                await runner.wait(run)
        if taken_over:
            with ExitStack() as blind:
                blind.enter_context(unreadable(given))
                async with engine_runner(home, project) as base:
                    runner = speaker_runner(base)
                    runner.engine.stream_mcp.open(handler)
                    await looked()
                    blind.close()
                    await runner.wait(run)
        assert list(map(answered, runner.heard())) == [("q1", "answer 1")]

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
def test_closing_server_answers_protocol_messages_but_no_calls(home: Path, project: Path) -> None:
    tools = asks("q1", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner, handler = speaker_runner(base), CallHandler()
            runner.engine.stream_mcp.open(handler)
            runner.engine.end_followers()
            run = await runner.begin(INIT, tools, "hear", calls("q2", 2), text("recorded"), "hear", DONE)
            await until(lambda: runner.engine.read.offsets(run.id).reader.get("calls"), "the call to be recorded")
            assert [line["response"]["request_id"] for line in runner.heard()] == ["q1"]
        assert handler.calls == []
        assert runner.engine.stream_mcp.has_unserved_call
        async with engine_runner(home, project) as base:
            runner, handler = speaker_runner(base), CallHandler()
            handler.go_on.set()
            runner.engine.stream_mcp.open(handler)
            await runner.wait(run)
            assert answered(runner.heard()[1]) == ("q2", "answer 2")

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
def test_call_of_dead_program_is_not_executed(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that calls are looked at before the end of their run: what was said to it is looked at again a second later.
    monkeypatch.setattr(stream_mcp, "RETRY_AFTER", 0.05)

    async def scene() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        handler = CallHandler()
        handler.go_on.set()
        async with engine_runner(home, project) as base:
            runner = speaker_runner(base)
            run = await runner.begin(INIT, calls("q1", 1), text("recorded"), "hear", DONE)
            await runner.says(run, "recorded")
            pid = (await runner.running(run)).pid
            given = runner.engine.directory(run) / files.IN
        with (home / SERVER_LOCK).open("r+") as lock:  # Or its keeper would start a server.
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda: not processes_of(home), "the keeper's end")
        with ExitStack() as blind:
            blind.enter_context(unreadable(given))
            async with engine_runner(home, project) as successor:
                successor.engine.stream_mcp.open(handler)
                await looked()
                blind.close()
                assert (await successor.wait(run)).status is Status.FAILED
        assert handler.calls == []

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
def test_request_for_another_server_is_refused(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = speaker_runner(base)
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            run = await runner.begin(asks("q1", ping, "theirs"), "hear", asks("q2", None), "hear", INIT, DONE)
            await runner.wait(run)
            assert [line["response"]["subtype"] for line in runner.heard()] == ["error", "error"]
            assert "theirs" in runner.heard()[0]["response"]["error"]

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
def test_endless_background_command_does_not_block_the_run(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {"task_id": "b1", "task_type": "local_bash"}
    provider = PROVIDERS["claude"]
    assert provider.conversation is not None
    impatient = replace(provider, conversation=replace(provider.conversation, background_seconds=0.2))
    monkeypatch.setattr(leaf, "PROVIDERS", {**PROVIDERS, "claude": impatient})

    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = speaker_runner(base)
            changed = {"type": "system", "subtype": "background_tasks_changed", "tasks": [left], "session_id": "s"}
            assert (await runner.wait(await runner.begin(INIT, changed, DONE))).result == "done"

    asyncio.run(scene())


@pytest.mark.usefixtures("speaker")
def test_end_of_run_cancels_its_calls(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner, handler = speaker_runner(base), CallHandler()
            runner.engine.stream_mcp.open(handler)
            run = await runner.begin(INIT, calls("q1", 1), "hear", DONE)
            await handler.called()
            await stop_all(runner.engine)
            assert handler.calls[0][2].cancelled
            handler.go_on.set()
            assert (await runner.wait(run)).status is Status.STOPPED
            assert runner.heard() == []

    asyncio.run(scene())
