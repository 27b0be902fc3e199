"""Runs whose CLI has a terminal: what is typed, and what is recorded of them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from patience import PATIENCE
from scripted_lead import install_lead
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until
from world import Bin

from hocket.errors import Conflict, PromptError
from hocket.keeper import files
from hocket.model import Kind, Reason, Run, Spec, Status
from hocket.providers.claude.team import terminal
from hocket.sessions.journal import run_event
from hocket.sessions.run_identity import session_of
from hocket.sessions.terminal import keyboard, runs
from hocket.workflows.request import ResumeRequest, StartRequest


@pytest.fixture
def user(world: Path) -> Path:
    """The home of a user who has completed the first steps of the CLI."""
    folder = world / "user"
    (folder / ".claude").mkdir(parents=True)
    (folder / ".claude.json").write_text(json.dumps({"hasCompletedOnboarding": True}))
    return folder


class LeadRunner:
    """An engine with a scripted lead."""

    def __init__(self, runner: EngineRunner, user: Path) -> None:
        self.engine = runner.engine
        self.runner = runner
        self.project = runner.project
        self._user = user

    async def lead(self, prompt: str, *, session: bool = True, **options: Any) -> Run:
        return await self.engine.start(self.request(prompt, session=session, **options))

    def request(self, prompt: str, **options: Any) -> StartRequest:
        env = {"PATH": os.environ["PATH"], "HOME": str(self._user)}
        known = {"cwd": str(self.project), "env": env, "agent": "claude", "prompt": prompt, "agent_teams": True}
        return StartRequest(**{**known, **options})

    async def seen(self, run: Run, wanted: Callable[[Run], object]) -> Run:
        """The run once it is as wanted, as seen after each of its events."""
        async with asyncio.timeout(PATIENCE):
            async for _ in self.engine.follow(run, 0):
                if wanted(now := self.engine.find(run.id)):
                    return now
        raise AssertionError("it ended before it was as wanted")

    async def said(self, run: Run, text: str) -> Run:
        return await self.seen(run, lambda now: now.result == f"you said: {text}" and now.status is Status.WAITING)

    async def types(self, run: Run) -> list[str]:
        return [event["type"] for event in await self.runner.events(run)]


@asynccontextmanager
async def leads(home: Path, project: Path, user: Path) -> AsyncIterator[LeadRunner]:
    async with engine_runner(home, project) as runner:
        yield LeadRunner(runner, user)


Act = Callable[[LeadRunner], Awaitable[None]]
Scene = Callable[[Act], None]


@pytest.fixture
def scene(home: Path, project: Path, user: Path, agent: Bin) -> Scene:
    """Runs a coroutine with an engine, and stops what is left."""
    install_lead(agent)

    def play(act: Act) -> None:
        async def whole() -> None:
            async with leads(home, project, user) as runner:
                await act(runner)
                await stop_all(runner.engine)

        asyncio.run(whole())

    return play


@pytest.mark.req("S5-08", "S5-09", "S5-10", "S5-12", "S5-13")
def test_messages_are_turns_of_one_process(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        assert (run.kind, run.provider, run.session_id) == (Kind.LEAD, "claude", session_of(run.id))
        text = "first line\nsecond line\r\nthird \x1b[31mred"
        await runner.engine.send(run, text, "k1")
        after = await runner.said(run, "first line\nsecond line\nthird [31mred")
        assert (after.pid, after.status, after.transcript is not None) == (run.pid, Status.WAITING, True)
        await runner.engine.send(run, "again", "k2")
        await runner.engine.send(run, "again", "k2")
        await runner.said(run, "again")
        assert (await runner.types(run)).count("turn.ended") == 3
        inputs = [event["data"]["text"] for event in await runner.runner.events(run) if event["type"] == "input"]
        assert inputs == [text, "again"], "each once, though the transcript has them too"

    scene(act)


@pytest.mark.req("S5-10", "S5-15")
def test_message_to_an_ended_lead_is_refused(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        stopped = await runner.engine.stop(run)
        assert (stopped["status"], stopped["survivors"]) == (Status.STOPPED, [])
        with pytest.raises(Conflict, match="has ended"):
            await runner.engine.send(run, "late", "k")

    scene(act)


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_message_is_not_typed(text: str) -> None:
    with pytest.raises(PromptError):
        terminal.message(text)


def test_pasted_text_cannot_press_keys() -> None:
    assert terminal.message("a\x1b[201~\rb\x03\x9b\ttab") == "\x1b[200~a[201~\nb\ttab\x1b[201~"


def test_message_is_no_command_of_the_shell() -> None:
    assert terminal.message("!touch x") == "\x1b[200~ !touch x\x1b[201~"
    assert terminal.message("\x03!touch x") == "\x1b[200~ !touch x\x1b[201~"
    assert terminal.message("Stop!") == "\x1b[200~Stop!\x1b[201~"


@pytest.mark.req("S5-11")
def test_interrupted_turn_leaves_the_lead_open(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.lead("wait for it")
        await runner.seen(run, lambda now: now.status is Status.RUNNING and now.transcript is not None)
        await until(lambda: _record(runner, run)["status"] == "busy", "a turn at work")
        await runner.engine.interrupt(run, "i")
        await runner.seen(run, lambda now: now.error and now.status is Status.WAITING)
        await runner.engine.interrupt(run, "j")  # nothing to interrupt now
        await runner.engine.send(run, "next", "k")
        await runner.said(run, "next")

    scene(act)


def _record(runner: LeadRunner, run: Run) -> dict[str, Any]:
    user = runner.project.parent / "user"
    pid = runner.engine.find(run.id).pid
    try:
        found: dict[str, Any] = json.loads((user / f".claude/sessions/{pid}.json").read_text())
    except (OSError, ValueError):
        return {"status": None}
    return found


def test_nothing_is_typed_while_a_dialog_is_open(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.lead("ask me")
        await runner.seen(run, lambda now: now.transcript is not None)
        await until(lambda: _record(runner, run)["status"] == "waiting", "a dialog")
        with pytest.raises(Conflict, match="a dialog is open"):
            await runner.engine.send(run, "hello", "k")
        (runner.project / "decided").touch()
        await runner.said(run, "ask me")
        await runner.engine.send(run, "hello", "k")
        await runner.said(run, "hello")
        assert not (runner.project / "accepted").exists()

    scene(act)


def test_enter_waits_for_a_dialog_that_opens_behind_a_paste(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyboard, "PASTE_SECONDS", 3.0)  # time to open the dialog in

    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        await until(lambda: _record(runner, run)["status"] == "idle", "the end of its turn")
        record = runner.project.parent / f"user/.claude/sessions/{run.pid}.json"
        idle = record.read_text()
        await runner.engine.send(run, "hello", "k")
        record.write_text(idle.replace('"idle"', '"waiting"'))
        place = str(runner.engine.directory(run))
        with pytest.raises(Conflict, match="a dialog is open"):
            await runner.engine.send(run, "another", "l")
        await runner.engine.send(run, "hello", "k")  # again, because the response was lost
        assert not files.has_input(place, "enter:k")
        record.write_text(idle)
        await runner.said(run, "hello")
        assert files.has_input(place, "enter:k")

    scene(act)


def test_enter_waits_for_a_record_that_can_be_read(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        await until(lambda: _record(runner, run)["status"] == "idle", "the end of its turn")
        record = runner.project.parent / f"user/.claude/sessions/{run.pid}.json"
        idle = record.read_text()
        await runner.engine.send(run, "hello", "k")
        record.write_text("")
        with pytest.raises(Conflict):
            await runner.engine.send(run, "another", "l")
        assert not files.has_input(str(runner.engine.directory(run)), "enter:k")
        record.write_text(idle)
        await runner.said(run, "hello")

    scene(act)


def test_message_in_a_turn_that_is_not_recorded_counts(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        messages = runner.engine._messages
        await runner.engine.send(run, "wait for it", "k")
        messages.note_output(run.id, [run_event(run, "turn.started", {"turn": 2})])
        assert (await runner.engine.send(run, "second", "l")).ahead == 1
        (runner.project / "go").touch()
        await runner.said(run, "wait for it")

    scene(act)


def test_answered_message_is_ahead_of_none(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        assert (await runner.engine.send(run, "first", "k")).ahead == 0
        await runner.said(run, "first")
        assert (await runner.engine.send(run, "second", "l")).ahead == 0
        await runner.said(run, "second")

    scene(act)


def test_lead_is_not_ended_while_a_message_is_written(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SETTLE_SECONDS", 0.2)

    async def act(runner: LeadRunner) -> None:
        run = await runner.lead("begin", session=False)
        async with runner.engine._messages._input_lock(run):
            await runner.said(run, "begin")
            ending = asyncio.create_task(runner.runner.wait(run))
            done, _ = await asyncio.wait([ending], timeout=2.0)
            assert not done
        assert (await ending).status is Status.DONE

    scene(act)


def test_question_of_a_teammate_waits_for_its_dialog(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin", on_question="ask"), "begin")
        await until(lambda: _record(runner, run)["status"] == "idle", "the end of its turn")
        call = {"tool": "Bash", "input": {"command": "make"}, "suggestions": []}
        teammates = await runner.engine.ask_by_hook(run, {**call, "agent": "alice"})
        await runner.engine.ask_by_hook(run, call)
        after = await runner.seen(run, lambda now: len(now.open_questions) == 1)
        assert [one["id"] for one in after.open_questions] == [teammates], "the lead's own was answered before"
        record = runner.project.parent / f"user/.claude/sessions/{run.pid}.json"
        idle = record.read_text()
        record.write_text(idle.replace('"idle"', '"waiting"'))
        with pytest.raises(Conflict, match="asks a question"):
            await runner.engine.send(run, "hello", "k")
        record.write_text(idle)
        await runner.seen(run, lambda now: not now.open_questions)
        assert runner.engine.question(run, teammates)["by"] == "terminal"

    scene(act)


def test_paste_of_a_dead_server_is_sent_by_the_next(home: Path, project: Path, user: Path, agent: Bin) -> None:
    install_lead(agent)

    async def first() -> Run:
        async with leads(home, project, user) as runner:
            run = await runner.said(await runner.lead("begin"), "begin")
            note = {"type": "input", "data": {"kind": "message", "id": "k", "text": "hello"}}
            place = str(runner.engine.directory(run))
            assert files.append_input(place, "message:k", terminal.message("hello"), False, note) == "added"
            assert files.ring(place, files.BELL_INPUT)
            return run

    async def second(run: Run) -> None:
        async with leads(home, project, user) as runner:
            await runner.said(run, "hello")
            inputs = [event["data"]["id"] for event in await runner.runner.events(run) if event["type"] == "input"]
            assert inputs == ["k"]
            await stop_all(runner.engine)

    run = asyncio.run(first())
    asyncio.run(second(run))


@pytest.mark.req("S5-15")
def test_lead_that_is_no_session_ends_by_itself(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.lead("begin", session=False)
        ended = await runner.runner.wait(run)
        assert (ended.status, ended.reason, ended.result) == (Status.DONE, Reason.EXIT, "you said: begin")
        assert (ended.exit_code, ended.tokens) == (0, 15)

    scene(act)


def test_lead_with_a_helper_at_work_does_not_end(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.lead("start a helper", session=False)
        await runner.seen(run, lambda now: now.result)
        await runner.engine.send(run, "and then", "k")
        await runner.said(run, "and then")
        assert not files.has_input(str(runner.engine.directory(run)), "end")
        (runner.project / "go").touch()
        assert (await runner.runner.wait(run)).status is Status.DONE

    scene(act)


@pytest.mark.req("S5-15")
def test_exit_code_decides_about_a_lead(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        ended = await runner.runner.wait(await runner.lead("die now"))
        assert (ended.status, ended.reason, ended.exit_code) == (Status.FAILED, Reason.EXIT, 3)
        assert "the machine is on fire" in (ended.error or "")
        assert "\x1b" not in (ended.error or "")

    scene(act)


def test_session_that_the_cli_changes_is_followed(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        await runner.engine.send(run, "clear it", "k")
        changed = await runner.said(run, "clear it")
        assert changed.session_id != run.session_id
        assert str(changed.session_id) in str(changed.transcript)
        await runner.engine.stop(run)
        ended = runner.engine.find(run.id)
        assert (ended.cost_usd, ended.tokens) == (2, 30), "of both sessions"

    scene(act)


def test_lead_that_another_program_starts_is_followed(home: Path, project: Path, user: Path, agent: Bin) -> None:
    install_lead(agent, wrapped=True)

    async def act() -> None:
        async with leads(home, project, user) as runner:
            run = await runner.said(await runner.lead("begin"), "begin")
            await runner.engine.send(run, "clear it", "k")
            changed = await runner.said(run, "clear it")
            assert changed.session_id != run.session_id
            await runner.engine.send(run, "go on", "l")
            await runner.said(run, "go on")
            await stop_all(runner.engine)

    asyncio.run(act())


def test_record_of_an_earlier_process_is_not_believed(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        spec = await runner.engine._starter.bind(runner.request("begin"), None)
        assert isinstance(spec, Spec)
        folder = runner.project.parent / "user/.claude/sessions"
        folder.mkdir(parents=True)
        left = {"pid": os.getpid(), "sessionId": str(uuid4()), "status": "idle", "procStart": "1"}
        (folder / f"{os.getpid()}.json").write_text(json.dumps(left))
        assert keyboard.session_record(spec, os.getpid(), None) is None

    scene(act)


def test_marker_ends_a_loop_of_leads(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(runner.project.parent / "user")}
        request = StartRequest(
            cwd=str(runner.project), env=env, dsl="claude:3", prompt="x\nALL_DONE", marker="ALL_DONE", agent_teams=True
        )
        ended = await runner.runner.wait(await runner.engine.start(request))
        assert [(step["status"], step["reason"], step["iterations"]) for step in ended.steps] == [("done", "marker", 1)]

    scene(act)


def test_ended_lead_is_resumed_in_a_terminal(scene: Scene) -> None:
    async def act(runner: LeadRunner) -> None:
        run = await runner.said(await runner.lead("begin"), "begin")
        await runner.engine.stop(run)
        request = ResumeRequest(prompt="go on", session=True)
        resumed = await runner.engine.tasks.resume(runner.engine.find(run.id), request, None)
        assert (resumed.kind, resumed.resumed_from) == (Kind.LEAD, run.id)
        now = await runner.said(resumed, "go on")
        assert now.tokens == 15, "the lines of the session that it continues are those of the other run"
        assert (await runner.types(resumed)).count("turn.ended") == 1
        assert "input" not in await runner.types(resumed)
        await runner.engine.stop(resumed)
        ended = runner.engine.find(resumed.id)
        assert (ended.cost_usd, ended.tokens) == (1, 15), "the CLI tells the total of the session"

    scene(act)


def test_transcript_of_a_lead_that_ended_without_a_server_is_read(
    home: Path, project: Path, user: Path, agent: Bin
) -> None:
    install_lead(agent)

    async def first() -> tuple[Run, str]:
        async with leads(home, project, user) as runner:
            run = await runner.said(await runner.lead("begin"), "begin")
            await until(lambda: _record(runner, run)["status"] == "idle", "the end of its turn")
            return run, str(runner.engine.directory(run))

    async def second(run: Run, place: str) -> None:
        note = {"type": "input", "data": {"kind": "message", "id": "k", "text": "last words"}}
        assert files.append_input(place, "message:k", terminal.message("last words"), False, note) == "added"
        assert files.ring(place, files.BELL_INPUT)
        written = files.size(f"{place}/{files.IN}")
        await until(lambda: files.read_regular(f"{place}/{files.IN_POS}", 100) == b"%019d\n" % written, "its message")
        assert files.type_keys(place, b"\r/exit\r") > 0
        await until(lambda: files.read_exit(place) is not None, "its end")
        async with leads(home, project, user) as runner:
            ended = await runner.runner.wait(run)
            assert (ended.status, ended.result, ended.tokens) == (Status.DONE, "you said: last words", 30)
            inputs = [event["data"]["id"] for event in await runner.runner.events(run) if event["type"] == "input"]
            assert inputs == ["k"], "what the server that died had sent, once"

    run, place = asyncio.run(first())
    asyncio.run(second(run, place))
