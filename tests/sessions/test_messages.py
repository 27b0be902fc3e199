"""Messages to a run: each arrives once, is recorded once, and survives its sender."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENCE
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all

from hocket.errors import Conflict, StoreError, UsageError
from hocket.keeper import files
from hocket.model import Event, Kind, Reason, Run, Status
from hocket.providers.base import Answer
from hocket.providers.claude import conversation as claude_talk
from hocket.rehearsal import install
from hocket.sessions.journal import Journal
from hocket.sessions.messages import _meant
from hocket.sessions.run_identity import session_of
from hocket.store import Committed
from hocket.workflows.request import ResumeRequest, StartRequest

ASKING: list[Any] = [{"ask": {"tool": "Bash", "input": {"command": "touch x"}, "allowed": [{"say": "allowed"}],
                              "denied": [{"say": "denied"}]}}]  # fmt: skip
RULES: list[dict[str, Any]] = [
    {"when": {"prompt": "ask"}, "do": ASKING},
    {"when": {"prompt": "twice"}, "do": [{"tools": [{"name": "Read", "input": {"file_path": "a"}}]}, *ASKING]},
    {"when": {"prompt": "hang"}, "do": [{"say": "thinking"}, "hang"]},
    {"when": {"prompt": "fail"}, "do": [{"fail": {"status": 429, "message": "too much"}}]},
    {"when": {"prompt": "long"}, "do": [{"say": "x" * 400_000}]},
    {"when": {"prompt": "exit"}, "do": [{"fail": {"exit": 3}}]},
    {"when": {"prompt": "first"}, "do": [{"say": "one"}, {"cost": 0.5}]},
    {"when": {"prompt": "second"}, "do": [{"say": "two"}, {"cost": 0.25}]},
]


@pytest.fixture
def claude(home: Path, project: Path) -> Path:
    """A scripted agent in the CLI's place, and one definition."""
    script = home.parent / "script.json"
    script.write_text(json.dumps({"rules": RULES}))
    folder = project / ".claude/agents"
    folder.mkdir(parents=True)
    (folder / "planner.md").write_text("---\nname: planner\ndescription: plans\n---\nYou plan.\n")
    return install(home.parent / "play", script, home.parent / "state")


class MessageRunner(EngineRunner):
    """A runner that sends messages to its agents."""

    async def begin(self, claude: Path, prompt: str, **options: Any) -> Run:
        return await self._begin(claude, self.request(agent="planner", prompt=prompt, **options))

    async def begin_chain(self, claude: Path, dsl: str, prompt: str, **options: Any) -> Run:
        return await self._begin(claude, self.request(dsl=dsl, prompt=prompt, **options))

    async def _begin(self, claude: Path, request: StartRequest) -> Run:
        env = {**request.environment, "HOCKET_CLAUDE": str(claude), "HOME": str(claude.parent / "user")}
        return await self.engine.start(msgspec.structs.replace(request, env=env))

    async def heard(self, run: Run, kind: str, times: int = 1) -> list[dict[str, Any]]:
        """The run's events up to the n-th of a type."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE):
            async for lines in self.engine.follow(run, 0):
                found += [json.loads(line.text) for line in lines]
                if sum(event["type"] == kind for event in found) >= times:
                    return found
        raise AssertionError(f"{kind} was not heard {times} times: {[event['type'] for event in found]}")


def message_runner(runner: EngineRunner) -> MessageRunner:
    runner.__class__ = MessageRunner
    assert isinstance(runner, MessageRunner)
    return runner


def test_first_answer_to_a_question_counts(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            run = await runner.begin(claude, "ask me", on_question="ask")
            (question,) = [e["data"] for e in await runner.heard(run, "question") if e["type"] == "question"]
            now = runner.engine.find(run.id)
            assert (now.status, now.needs_you, now.open_questions[0]["id"]) == (Status.WAITING, True, question["id"])
            answers = (runner.engine.answer(run, None, allow, None, "operator") for allow in (True, False, True))
            said = await asyncio.gather(*answers, return_exceptions=True)
            assert sum(isinstance(one, dict) for one in said) == 1
            assert sum(isinstance(one, Conflict) for one in said) == 2
            ended = await runner.wait(run)
            winner = next(allow for allow, one in zip((True, False, True), said, strict=True) if isinstance(one, dict))
            assert (ended.status, ended.result) == (Status.DONE, "allowed" if winner else "denied")
            assert sum(event["type"] == "answer" for event in await runner.events(run)) == 1
            with pytest.raises(Conflict):
                await runner.engine.answer(run, None, True, None, "late")

            again = await runner.begin(claude, "ask me", on_question="ask")
            await runner.heard(again, "question")
            same = [await runner.engine.answer(again, None, True, None, "me", "key") for _ in range(2)]
            await runner.wait(again)
            same.append(await runner.engine.answer(again, None, True, None, "me", "key"))
            assert same == [same[0]] * 3
            assert sum(event["type"] == "answer" for event in await runner.events(again)) == 1

    asyncio.run(scene())


def test_unrecorded_input_is_recorded_by_next_server(home: Path, project: Path, claude: Path) -> None:
    """The server dies after the agent got its line and before the input was recorded."""

    async def first() -> tuple[Run, Run]:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            told = await runner.begin(claude, "hang", session=True)
            asking = await runner.begin(claude, "ask me", session=True, on_question="ask")
            await runner.heard(told, "text")
            (question,) = [e["data"] for e in await runner.heard(asking, "question") if e["type"] == "question"]
        # Not before it is gone: it would read, and record, how the agent goes on.
        message = {"kind": "message", "id": "k", "text": "first"}
        unrecorded(runner, told, "message:k", claude_talk.message("first"), "input", message)
        answer = {"id": question["id"], "allow": True, "text": None, "by": "me", "key": "a"}
        line = claude_talk.answer(question, Answer(True))
        unrecorded(runner, asking, f"answer:{question['id']}", line, "answer", answer)
        return told, asking

    async def second(told: Run, asking: Run) -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            await runner.heard(told, "input")
            await runner.engine.send(told, "first", "k")  # as a client without a response would repeat it
            assert sum(event["type"] == "input" for event in await runner.events(told)) == 1
            heard = [event["type"] for event in await runner.heard(asking, "turn.ended")]
            assert heard.index("answer") < heard.index("turn.ended")
            assert (runner.engine.find(asking.id).status, runner.engine.find(asking.id).needs_you) == (
                Status.WAITING,
                False,
            )
            again = await runner.engine.answer(asking, None, True, None, "me", "a")
            assert again["allow"] is True
            assert sum(event["type"] == "answer" for event in await runner.events(asking)) == 1
            await stop_all(runner.engine)

    runs = asyncio.run(first())
    asyncio.run(second(*runs))


def unrecorded(runner: MessageRunner, run: Run, id: str, line: str, kind: str, data: dict[str, Any]) -> None:
    place = str(runner.engine.directory(run))
    assert files.append_input(place, id, line, False, {"type": kind, "data": data}) == "added"
    assert files.ring(place, files.BELL_INPUT)


def test_unrecorded_answer_is_recorded_when_repeated(
    home: Path, project: Path, claude: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            run = await runner.begin(claude, "ask me", session=True, on_question="ask")
            await runner.heard(run, "question")
            write = Journal.write

            async def full(journal: Journal, events: Sequence[Event], **more: Any) -> Committed:
                if any(event.type == "answer" for event in events):
                    raise StoreError("no room")
                return await write(journal, events, **more)

            with monkeypatch.context() as patch:
                patch.setattr(Journal, "write", full)
                with pytest.raises(StoreError):
                    await runner.engine.answer(run, None, True, None, "me", "a")
            question = runner.engine.find(run.id).open_questions
            if question:  # unless its turn is over by now
                with pytest.raises(Conflict):
                    await runner.engine.answer(run, None, True, None, "me", "another")
            await runner.engine.answer(run, None, True, None, "me", "a")
            assert sum(event["type"] == "answer" for event in await runner.events(run)) == 1
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_open_question_survives_a_restart(home: Path, project: Path, claude: Path) -> None:
    async def first() -> Run:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            run = await runner.begin(claude, "ask me", on_question="ask")
            await runner.heard(run, "question")
            return run

    async def second(run: Run) -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            assert runner.engine.find(run.id).needs_you
            await runner.engine.answer(run, None, False, "not today", "me")
            ended = await runner.wait(run)
            assert (ended.status, ended.result) == (Status.DONE, "denied")

    run = asyncio.run(first())
    asyncio.run(second(run))


def test_question_below_a_chain_is_answered_there(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            chain = await runner.begin_chain(claude, "planner:2", "ask me", on_question="ask")
            await runner.heard(chain, "question")
            said = await runner.engine.answer(chain, None, True, None, "me", "first")
            assert runner.engine.find(said["run"]).step == 0
            await runner.heard(chain, "question", 2)
            # A repeated request with the key of the first answer must not answer the next question.
            assert await runner.engine.answer(chain, None, True, None, "me", "first") == said
            assert sum(event["type"] == "answer" for event in await runner.events(chain)) == 1
            await runner.engine.answer(chain, None, False, None, "me")
            ended = await runner.wait(chain)
            assert (ended.status, ended.reason, ended.result) == (Status.FAILED, Reason.MAX_ITERATIONS, "denied")
            with pytest.raises(Conflict):
                await runner.engine.answer(chain, None, True, None, "late")

    asyncio.run(scene())


@pytest.mark.req("S1-45")
def test_unanswerable_question_fails_or_is_denied(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            ended = await runner.wait(await runner.begin(claude, "ask me", on_question="fail"))
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.NO_ANSWER)
            ended = await runner.wait(await runner.begin(claude, "ask me", on_question="deny"))
            assert (ended.status, ended.result) == (Status.DONE, "denied")

    asyncio.run(scene())


def test_session_has_turns_until_it_is_stopped(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            run = await runner.begin(claude, "first", session=True)
            await runner.heard(run, "turn.ended")
            idle = runner.engine.find(run.id)
            assert (idle.status, idle.needs_you, idle.result, idle.cost_usd) == (Status.WAITING, False, "one", 0.5)
            assert idle.session_id == session_of(run.id)
            await runner.engine.send(run, "second", "k2")
            await runner.heard(run, "turn.ended", 2)
            again = runner.engine.find(run.id)
            assert (again.result, again.pid, again.cost_usd) == ("two", idle.pid, 0.75)
            await runner.engine.send(run, "hang on", "k3")
            await runner.heard(run, "text", 3)
            assert runner.engine.find(run.id).status is Status.RUNNING
            await runner.engine.interrupt(run, "i1")
            await runner.heard(run, "turn.ended", 3)
            assert runner.engine.find(run.id).status is Status.WAITING
            await runner.engine.stop(run)
            ended = runner.engine.find(run.id)
            assert (ended.status, ended.reason) == (Status.STOPPED, Reason.STOPPED)
            with pytest.raises(Conflict):
                await runner.engine.send(run, "more", "k4")

    asyncio.run(scene())


def test_finished_run_takes_no_more_input(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            run = await runner.begin(claude, "first")
            ended = await runner.wait(run)
            assert (ended.status, ended.reason, ended.result) == (Status.DONE, Reason.EXIT, "one")
            place = str(runner.engine.directory(run))
            assert files.append_input(place, "late", "x\n") == "closed"

    asyncio.run(scene())


def test_only_an_ended_session_run_is_resumed(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            run = await runner.wait(await runner.begin(claude, "first"))
            new = await runner.engine.tasks.resume(run, ResumeRequest(prompt="second"), "key")
            same = await runner.engine.tasks.resume(run, ResumeRequest(prompt="second"), "key")
            assert new.id == same.id != run.id
            assert new.resumed_from == run.id
            ended = await runner.wait(new)
            assert (ended.status, ended.result, ended.cost_usd) == (Status.DONE, "two", 0.25)
            assert ended.session_id == session_of(new.id) != run.session_id
            # And once more, from the one that was itself resumed.
            third = await runner.wait(await runner.engine.tasks.resume(ended, ResumeRequest(prompt="first")))
            assert (third.status, third.resumed_from, third.cost_usd) == (Status.DONE, ended.id, 0.5)
            live = await runner.begin(claude, "hang")
            with pytest.raises(Conflict):
                await runner.engine.tasks.resume(live, ResumeRequest())
            chain = await runner.wait(await runner.chain("true"))
            with pytest.raises(Conflict):
                await runner.engine.tasks.resume(chain, ResumeRequest())
            alone = await runner.wait(await runner.begin_chain(claude, "true -> planner", "first"))
            below = [one for one in runner.engine.read.below(alone.id) if one.session_id]
            again = await runner.wait(await runner.engine.tasks.resume(alone, ResumeRequest(prompt="second")))
            assert ([again.resumed_from], again.result) == ([one.id for one in below], "two")
            twice = await runner.wait(await runner.begin_chain(claude, "planner -> planner", "first"))
            with pytest.raises(Conflict, match="2 sessions"):
                await runner.engine.tasks.resume(twice, ResumeRequest())
            await stop_all(runner.engine)

    asyncio.run(scene())


@pytest.mark.req("S2-67")
def test_failure_has_the_error_of_the_agent(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            limited = await runner.wait(await runner.begin(claude, "fail"))
            assert (limited.status, limited.reason) == (Status.FAILED, Reason.RATE_LIMITED)
            assert "too much" in (limited.error or "")
            gone = await runner.wait(await runner.begin(claude, "exit"))
            assert (gone.status, gone.reason, gone.exit_code) == (Status.FAILED, Reason.EXIT, 3)
            refused = await runner.wait(await runner.begin(claude, "first", args=("--no-such-flag",)))
            assert (refused.status, refused.reason) == (Status.FAILED, Reason.EXIT)
            assert "--no-such-flag" in (refused.error or "")

    asyncio.run(scene())


def test_long_output_line_is_read_whole(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            ended = await runner.wait(await runner.begin(claude, "long"))
            assert (ended.status, ended.reason) == (Status.DONE, Reason.EXIT)
            assert len(ended.result or "") == 64 * 1024

    asyncio.run(scene())


def test_message_to_unsuitable_run_is_refused(home: Path, project: Path, claude: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as base:
            runner = message_runner(base)
            sleeper = await runner.start("sleep", args=("60",))
            for attempt in (
                runner.engine.send(sleeper, "hello", "k"),
                runner.engine.interrupt(sleeper, "k"),
            ):
                with pytest.raises(Conflict, match="does not read messages"):
                    await attempt
            with pytest.raises(Conflict, match="no open question"):
                await runner.engine.answer(sleeper, None, True, None, "me")
            with pytest.raises(UsageError, match="reads no messages"):
                await runner.start("sleep", args=("60",), session=True)
            with pytest.raises(UsageError, match="single agent"):
                await runner.chain("sleep", session=True)
            run = await runner.begin(claude, "hang")
            await runner.heard(run, "text")
            with pytest.raises(Conflict, match="no open question"):
                await runner.engine.answer(run, None, True, None, "me")
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_open_questions_are_distinguished_by_id() -> None:
    asked = tuple({"id": name} for name in ("abc", "abd", "x", "xy"))
    run = Run("r1", 1, Kind.LEAF, "a", "claude", None, "r1", 0, "/", time.time(), open_questions=asked)
    assert _meant(run, "x")["id"] == "x"
    assert _meant(run, "abc")["id"] == "abc"
    for unclear in (None, "ab"):
        with pytest.raises(Conflict, match="open questions; say which one"):
            _meant(run, unclear)
    with pytest.raises(Conflict, match="no open question 'z'"):
        _meant(run, "z")
