"""Teammates as runs: what they do by their transcripts, their usage, their limit, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from teams.team_home import PATIENCE, leads, prompt, said, until

from hocket.errors import Conflict, LimitReached
from hocket.model import Origin, Reason, Status
from hocket.workflows.request import ResumeRequest


@pytest.mark.req("S5-27", "S5-28", "S5-44")
def test_teammate_is_an_observed_run_below_its_lead(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            team = at.files.team(lead, "alice")
            at.files.task(team, "1", "in_progress", owner="alice", subject="write it")
            await at.statuses(lead, alice="active")
            await at.count(lead, "task.changed", 1)
            (run,) = at.runs(lead)
            assert (run.agent, run.teammate, run.provider, run.depth) == ("alice", f"alice@{team}", "claude", 1)
            assert (run.parent, run.origin, run.status) == (lead.id, Origin.OBSERVED, Status.RUNNING)
            assert at.engine.teammates(lead) == [
                {
                    "name": "alice",
                    "agent_id": f"alice@{team}",
                    "team_lead_id": lead.id,
                    "team_name": team,
                    "status": "active",
                    "current_task": "write it",
                    "run": run.id,
                    "model": "m",
                    "agent": "general-purpose",
                }
            ]
            assert at.engine.count == 1
            with pytest.raises(Conflict, match="teammate"):
                await at.engine.stop(run)

    asyncio.run(scene())


@pytest.mark.req("S5-13", "S5-20", "S5-27")
def test_turns_of_a_teammate_make_it_active_or_idle(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.files.teammate(lead, "alice", prompt("team-lead", "go"), said("working"))
            await at.statuses(lead, alice="idle")
            at.files.teammate(lead, "alice", prompt("bob", "more"), said("step", stop="tool_use"))
            await at.statuses(lead, alice="active")
            (run,) = at.runs(lead)
            (first, second) = at.events(run, "input")
            assert (first["text"], first["sender"]["name"]) == ("go", "team-lead")
            assert (second["text"], second["sender"]["name"]) == ("more", "bob")
            assert [one["text"] for one in at.events(run, "text")] == ["working", "step"]
            assert [one["status"] for one in at.events(lead, "member")] == ["started", "idle", "active"]

    asyncio.run(scene())


@pytest.mark.req("S5-27")
def test_lead_has_no_events_of_its_teammates(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.files.transcript(lead, said("lead", side=False))
            at.files.teammate(lead, "alice", prompt("team-lead", "go"), said("hers"))
            at.follow(lead)
            await at.statuses(lead, alice="idle")
            await at.count(lead, "text", 1)
            at.files.transcript(lead, prompt("alice", "news") | {"isSidechain": False}, said("heard", side=False))
            found = await at.count(lead, "text", 2)
            assert [one["text"] for one in found] == ["lead", "heard"]
            assert [one["origin"] for one in at.events(lead, "turn.started")] == [None, "teammate"]
            assert [one["sender"]["name"] for one in at.events(lead, "input")] == ["alice"]

    asyncio.run(scene())


@pytest.mark.req("S5-41")
def test_teammates_end_with_their_lead(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            at.files.team(lead, "alice", "bob")
            await at.statuses(lead, alice="active", bob="active")
            at.files.teammate(lead, "bob", prompt("team-lead", "go"), said("bob is done"))
            await at.statuses(lead, alice="active", bob="idle")
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active", bob="stopped")
            await at.end(lead)
            await at.statuses(lead, alice="stopped", bob="stopped")
            ended = {run.agent: (run.status, run.reason, run.result) for run in at.runs(lead)}
            assert ended["bob"] == (Status.DONE, Reason.SINGLE_RUN, "bob is done")
            await until(lambda: at.runs(lead)[0].ended, "the end of alice")
            assert at.runs(lead)[0].reason is Reason.STOPPED

    asyncio.run(scene())


@pytest.mark.req("S5-41")
def test_teammates_of_a_lead_that_ended_without_server_are_ended(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, stop=False) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            at.files.teammate(lead, "alice", prompt("team-lead", "go"), said("one"))
            await at.statuses(lead, alice="idle")
            at.let_end(lead)
        async with leads(home, project) as at:
            async with asyncio.timeout(PATIENCE):
                await at.engine.wait(lead)
                await at.engine.wait(at.runs(lead)[0])
            (run,) = at.runs(lead)
            assert (run.status, [one["text"] for one in at.events(run, "text")]) == (Status.STOPPED, ["one"])

    asyncio.run(scene())


@pytest.mark.req("S5-42")
def test_lost_lead_says_that_its_team_is_lost(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.follow(lead)
            at.files.transcript(lead, said("begun", side=False))
            await at.count(lead, "text", 1)
            process = (await at.engine.evidence(lead))["process"]
            os.kill(process["keeper"], signal.SIGKILL)
            ended = await at.runner.wait(lead)
            resume = f"its session goes on with: hocket resume {lead.number}"
            assert (ended.status, ended.error) == (Status.LOST, f"its keeper was killed; its team is lost; {resume}")
            await at.statuses(lead, alice="stopped")
            await until(lambda: at.runs(lead)[0].ended, "the end of alice")

    asyncio.run(scene())


def test_new_teammate_with_an_old_name_is_a_new_run(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            at.files.teammate(lead, "alice", prompt("team-lead", "go"), said("first"))
            await at.statuses(lead, alice="idle")
            at.files.team(lead)
            await at.statuses(lead, alice="stopped")
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.files.teammate(lead, "alice", prompt("team-lead", "go"), said("second"), number=2)
            await at.statuses(lead, alice="idle")
            texts = [[one["text"] for one in at.events(run, "text")] for run in at.runs(lead)]
            assert sorted(texts) == [["first"], ["second"]]
            assert len(at.engine.teammates(lead)) == 1

    asyncio.run(scene())


@pytest.mark.req("S5-44")
def test_usage_of_teammates_counts_once_and_at_once(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.files.transcript(lead, said("mine", tokens=100, side=False))
            at.follow(lead)
            at.files.teammate(lead, "alice", said("hers", tokens=30))
            await until(lambda: at.engine.find(lead.id).tokens == 130, "the usage of both")
            assert (at.runs(lead)[0].tokens, at.engine.spent_below(at.engine.find(lead.id)).tokens) == (30, 130)
            at.files.transcript(lead, said("again", tokens=7, side=False))
            await until(lambda: at.engine.find(lead.id).tokens == 137, "more usage")
            used = {"m": {"inputTokens": 150, "outputTokens": 0, "costUSD": 2.0}}
            at.files.transcript(lead, {"type": "cost-state", "totalCostUSD": 2.0, "modelUsage": used})
            await until(lambda: at.engine.find(lead.id).cost_usd == 2.0, "the settled usage")
            at.files.teammate(lead, "alice", said("last", tokens=5))
            await until(lambda: at.runs(lead)[0].tokens == 35, "the last words")
            assert at.engine.spent_below(at.engine.find(lead.id)).tokens == 150

    asyncio.run(scene())


@pytest.mark.req("S5-44")
def test_usage_of_teammates_is_kept_by_the_next_server(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, stop=False) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.files.transcript(lead, said("mine", tokens=100, side=False))
            at.follow(lead)
            at.files.teammate(lead, "alice", said("hers", tokens=30))
            await until(lambda: at.engine.find(lead.id).tokens == 130, "the usage of both")
        async with leads(home, project) as at:
            at.files.transcript(lead, said("again", tokens=7, side=False))
            at.follow(lead)
            await at.count(lead, "text", 2)
            assert at.engine.find(lead.id).tokens == 137

    asyncio.run(scene())


def test_token_budget_of_a_lead_stops_it_for_its_teammates(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start(budget_tokens=50)
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.files.transcript(lead, said("mine", tokens=10, side=False))
            at.follow(lead)
            at.files.teammate(lead, "alice", said("hers", tokens=60))
            assert (await at.runner.wait(lead)).reason is Reason.BUDGET

    asyncio.run(scene())


@pytest.mark.req("S5-45")
def test_limit_of_teammates_is_checked_and_reported(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, max_teammates_per_lead=2) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.engine.check_teammate(lead, "bob")
            with pytest.raises(LimitReached, match="limit of 2"):
                at.engine.check_teammate(lead, "carol")
            at.files.team(lead, "alice", "bob", "carol")
            await at.statuses(lead, alice="active", bob="active", carol="active")
            (notice,) = at.events(lead, "notice")
            assert (notice["kind"], notice["text"][:12]) == ("limit", "3 teammates,")
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active", bob="stopped", carol="stopped")
            at.engine.check_teammate(lead, "dora")

    asyncio.run(scene())


@pytest.mark.req("S5-45")
def test_teammates_with_the_same_name_all_count(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, max_teammates_per_lead=3) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            at.engine.check_teammate(lead, "alice")
            at.engine.check_teammate(lead, "alice")
            with pytest.raises(LimitReached):
                at.engine.check_teammate(lead, "alice")
            at.files.team(lead, "alice", "alice-2")
            await at.statuses(lead, **{"alice": "active", "alice-2": "active"})
            with pytest.raises(LimitReached):
                at.engine.check_teammate(lead, "alice")
            at.files.team(lead, "alice-2")
            await at.statuses(lead, **{"alice": "stopped", "alice-2": "active"})
            at.engine.check_teammate(lead, "bob")

    asyncio.run(scene())


@pytest.mark.req("S5-44")
def test_teammates_do_not_count_as_children(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, children=1) as at:
            lead = await at.start()
            at.files.team(lead, "alice", "bob")
            await at.statuses(lead, alice="active", bob="active")
            child = await at.start(parent=lead)
            assert (child.parent, at.engine.count) == (lead.id, 2)

    asyncio.run(scene())


@pytest.mark.req("S5-41", "S5-44")
def test_teammate_is_left_alone_by_the_next_server(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, stop=False) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            at.files.teammate(lead, "alice", prompt("team-lead", "go"), said("one"))
            await at.statuses(lead, alice="idle")
        at.files.teammate(lead, "alice", prompt("team-lead", "on"), said("two", stop="tool_use"))
        async with leads(home, project) as at:
            await at.statuses(lead, alice="active")
            (run,) = at.runs(lead)
            assert not run.ended
            assert [one["text"] for one in at.events(run, "text")] == ["one", "two"]

    asyncio.run(scene())


def test_ended_teammate_is_not_resumed(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            at.files.team(lead, "alice")
            await at.statuses(lead, alice="active")
            await at.end(lead)
            await at.statuses(lead, alice="stopped")
            (run,) = at.runs(lead)
            with pytest.raises(Conflict, match="a teammate cannot be resumed") as refused:
                await at.engine.tasks.resume(run, ResumeRequest())
            assert refused.value.hint == f"resume its lead: hocket resume {lead.number}"
            with pytest.raises(Conflict, match="has ended") as refused:
                await at.engine.send(run, "late", "k")
            assert not refused.value.hint

    asyncio.run(scene())
