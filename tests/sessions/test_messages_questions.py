"""Questions that an agent asks as text: recorded once, answered once, and always shown the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until
from world import Bin

from hocket.errors import Conflict, LimitReached, NotFound
from hocket.model import Kind, Reason, Run, Status
from hocket.sessions.messages import NO_ANSWERER, OPEN_AT_ONCE

SLEEPER = "import signal; signal.pause()"


async def sleeper(runner: EngineRunner, on_question: str | None = None) -> Run:
    return await runner.running(await runner.start("sleeper", on_question=on_question))


@pytest.fixture(autouse=True)
def _sleeper(agent: Bin) -> None:
    agent("sleeper", SLEEPER)


def test_first_answer_to_a_program_is_recorded(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            engine, run = runner.engine, await sleeper(runner)
            question = await engine.ask(run, "Which one?", (), "key")
            assert await engine.ask(run, "Which one?", (), "key") == question
            assert await engine.ask(run, "Which one?", (), "another") != question
            now = engine.find(run.id)
            assert (now.status, now.needs_you, len(now.open_questions)) == (Status.WAITING, True, 2)
            before = engine.question(run, question)
            assert (before["kind"], before["text"], before["open"], before["answered"]) == (
                "ask",
                "Which one?",
                True,
                False,
            )
            answers = (engine.answer(run, question, True, f"number {n}", "me") for n in range(50))
            said = await asyncio.gather(*answers, return_exceptions=True)
            (winner,) = (n for n, one in enumerate(said) if isinstance(one, dict))
            refused = [one for one in said if isinstance(one, Conflict)]
            assert len(refused) == 49
            assert all(f"already been answered by me: number {winner}" in one.message for one in refused)
            after = engine.question(run, question)
            assert (after["open"], after["answered"], after["allow"]) == (False, True, True)
            assert (after["answer"], after["by"]) == (f"number {winner}", "me")
            with pytest.raises(NotFound):
                engine.question(run, "nosuch")
            await stop_all(engine)
            assert engine.question(engine.find(run.id), question) == after

    asyncio.run(scene())


def test_late_answer_quotes_the_first_answer(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            engine = runner.engine
            chains = [await runner.chain("sleeper", on_question="ask") for _ in range(2)]
            for chain, said in zip(chains, ("red", "blue"), strict=True):
                top = chain.id
                await until(lambda: any(run.parent == top for run in engine.live()), "its agent")  # noqa: B023 - at once
                (leaf,) = (run for run in engine.live() if run.parent == chain.id)
                await engine.ask(leaf, "Which?")
                await engine.answer(chain, None, True, said, "me")
            await stop_all(engine)
            for chain, said in zip(chains, ("red", "blue"), strict=True):
                with pytest.raises(Conflict, match=f"has ended, and .*; the last one was answered by me: {said}"):
                    await engine.answer(engine.find(chain.id), None, True, "green", "you")

    asyncio.run(scene())


def test_number_selects_an_option_unless_it_names_one(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            engine, run = runner.engine, await sleeper(runner)
            for said, options, meant in (
                ("2", ("red", "blue"), "blue"),
                ("2", ("2", "3"), "2"),
                ("3", ("red", "blue"), "3"),
                ("neither", ("red", "blue"), "neither"),
                ("2", (), "2"),
            ):
                question = await engine.ask(run, "Which?", options)
                await engine.answer(run, None, True, said, "me")
                state = engine.question(run, question)
                assert (state["kind"], state["answer"]) == ("choice" if options else "ask", meant)
            await stop_all(engine)

    asyncio.run(scene())


def test_unattended_question_is_denied_or_ends_the_run(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            engine, run = runner.engine, await sleeper(runner, on_question="deny")
            question = await engine.ask(run, "Which?", ("a", "b"))
            state = engine.question(run, question)
            assert (state["answered"], state["allow"], state["answer"], state["by"]) == (
                True,
                False,
                NO_ANSWERER,
                "hocket",
            )
            assert engine.find(run.id).status is Status.RUNNING
            below = await runner.start("sleeper", engine.find(run.id))
            assert not (await runner.running(below)).needs_you
            denied = await engine.ask(below, "And here?")
            assert engine.question(below, denied)["allow"] is False
            free = await runner.start("sleeper", engine.find(run.id), on_question="ask")
            assert engine.question(free, await engine.ask(free, "And here?"))["open"]
            failing = await sleeper(runner, on_question="fail")
            await engine.ask(failing, "Which?")
            ended = await runner.wait(failing)
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.NO_ANSWER)
            with pytest.raises(Conflict, match="has ended"):
                await engine.ask(failing, "Still there?")
            await stop_all(engine)

    asyncio.run(scene())


def test_open_question_lasts_until_its_run_ends(home: Path, project: Path) -> None:
    async def first() -> tuple[Run, str]:
        async with engine_runner(home, project) as runner:
            run = await sleeper(runner)
            question = await runner.engine.ask(run, "Still there?", (), "key")
            return run, question

    async def second(run: Run, question: str) -> None:
        async with engine_runner(home, project) as runner:
            engine = runner.engine
            assert [one.asked["id"] for one in engine.inbox.questions()] == [question]
            assert await engine.ask(run, "Still there?", (), "key") == question
            assert len(engine.find(run.id).open_questions) == 1
            await stop_all(engine)
            state = engine.question(engine.find(run.id), question)
            assert (state["open"], state["answered"], state["answer"]) == (False, False, None)
            assert engine.inbox.questions() == []
            with pytest.raises(Conflict, match="has ended, and has no open question"):
                await engine.answer(engine.find(run.id), question, True, "yes", "late")

    asyncio.run(second(*asyncio.run(first())))


def test_open_questions_of_a_run_are_limited(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            run = await sleeper(runner)
            for number in range(OPEN_AT_ONCE):
                await runner.engine.ask(run, f"Number {number}?")
            with pytest.raises(LimitReached, match="open questions"):
                await runner.engine.ask(run, "One more?")
            assert len(runner.engine.inbox.questions()) == OPEN_AT_ONCE
            await stop_all(runner.engine)

    asyncio.run(scene())


def test_inbox_is_sorted_and_reports_every_change(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            engine = runner.engine
            seen: list[list[str]] = []

            async def look() -> None:
                async for questions in engine.inbox.follow(60):
                    seen.append([str(one.asked["text"]) for one in questions or ()])  # noqa: PERF401 - it is watched

            watching = asyncio.create_task(look())
            first, second = await sleeper(runner), await sleeper(runner)
            await until(lambda: seen == [[]], "the empty inbox")
            await engine.ask(second, "B")
            await until(lambda: seen[-1] == ["B"], "the first question")
            await engine.ask(first, "A")
            await until(lambda: seen[-1] == ["B", "A"], "the second question")
            await engine.answer(second, None, True, "yes", "me")
            await until(lambda: seen[-1] == ["A"], "the answer")
            await engine.stop(first)
            await until(lambda: seen[-1] == [], "the end")
            assert seen == [[], ["B"], ["B", "A"], ["A"], []]
            await stop_all(engine)
            engine.inbox.close()
            await asyncio.wait_for(watching, 5)

    asyncio.run(scene())


def test_agent_question_is_answered_by_its_chain(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            engine = runner.engine
            chain = await runner.chain("sleeper")
            await until(lambda: any(run.kind is Kind.LEAF and run.pid for run in engine.live()), "its agent")
            (leaf,) = (run for run in engine.live() if run.kind is Kind.LEAF)
            question = await engine.ask(leaf, "Which?")
            given = await engine.answer(chain, None, True, "this", "me")
            assert given == {"run": leaf.id, "question": question, "allow": True}
            with pytest.raises(Conflict, match="already been answered by me: this"):
                await engine.answer(chain, question, False, None, "late")
            await stop_all(engine)

    asyncio.run(scene())


def test_answer_at_the_terminal_closes_questions_of_hooks(home: Path, project: Path, agent: Bin) -> None:
    agent("claude", SLEEPER)

    async def scene() -> None:
        async with engine_runner(home, project) as runner:
            engine = runner.engine
            run = await runner.running(await runner.start("claude", on_question="ask"))
            call = {"tool": "Bash", "input": {"command": "make"}, "suggestions": []}
            first, own = await engine.ask_by_hook(run, call), await engine.ask(run, "Which?")
            second = await engine.ask_by_hook(run, call)
            await engine.close_hook_questions(run, {first, own})
            assert [one["id"] for one in engine.find(run.id).open_questions] == [own, second]
            said = engine.question(run, first)
            assert (said["answered"], said["allow"], said["answer"], said["by"]) == (True, None, None, "terminal")
            with pytest.raises(Conflict, match=f"question {first} of .* already been answered at the terminal"):
                await engine.answer(run, first, True, None, "me")
            before = engine.applied_seq
            await engine.close_hook_questions(run, {first})
            assert engine.applied_seq == before
            await engine.answer(run, second, True, None, "me")
            await engine.close_hook_questions(run, {first, second})
            assert engine.question(run, second)["allow"] is True
            assert [one["id"] for one in engine.find(run.id).open_questions] == [own]
            await stop_all(engine)
            await engine.close_hook_questions(engine.find(run.id), {second})

    asyncio.run(scene())
