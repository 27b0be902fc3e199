"""The teams of live leads: real files, a real inotify, a real store and real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from teams.team_home import Leads, config, leads, message, sent, until

from hocket.model import Run, Status
from hocket.sessions.run_identity import session_of
from hocket.teams.watch import SCAN_EVERY


async def open_team(at: Leads, *names: str) -> tuple[Run, str]:
    """A lead with a team that is recorded."""
    lead = await at.start()
    team = at.files.team(lead, *names)
    await at.count(lead, "team.formed", 1)
    return lead, team


@pytest.mark.req("S5-17", "S5-19", "S5-20", "S5-21", "S5-29")
def test_task_changes_are_recorded_once_each(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at)
            at.files.task(team, "1", description="first")
            await at.count(lead, "task.changed", 1)
            at.files.task(team, "1", "in_progress", description="first", owner="alice")
            await at.count(lead, "task.changed", 2)
            at.files.task(team, "1", "in_progress", description="first", owner="alice")  # the same again
            at.files.task(team, "2", blockedBy=["1"])
            found = await at.count(lead, "task.changed", 3)
            assert [(one["id"], one["status"], one["owner"], one["open"]) for one in found] == [
                ("1", "pending", None, 1),
                ("1", "in_progress", "alice", 1),
                ("2", "pending", None, 2),
            ]
            assert at.engine.find(lead.id).open_tasks == 2
            assert [one["blocked_by"] for one in at.engine.team_tasks(lead)] == [[], ["1"]]

    asyncio.run(scene())


@pytest.mark.req("S5-21")
def test_rewrite_in_place_is_noticed(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at)
            path = at.files.task(team, "1")
            await at.count(lead, "task.changed", 1)
            path.write_text(path.read_text().replace("pending", "completed"))
            found = await at.count(lead, "task.changed", 2)
            assert found[-1]["status"] == "completed"

    asyncio.run(scene())


@pytest.mark.req("S5-25", "S5-26")
def test_completed_tasks_stay_when_their_files_go(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at)
            done, unfinished = at.files.task(team, "1", "completed"), at.files.task(team, "2")
            at.files.task(team, "3", metadata={"_internal": True})
            await at.count(lead, "task.changed", 2)
            done.unlink()
            unfinished.unlink()
            found = await at.count(lead, "task.changed", 3)
            assert (found[-1]["id"], found[-1]["status"], found[-1]["open"]) == ("2", "deleted", 0)
            assert [(one["id"], one["status"]) for one in at.engine.team_tasks(lead)] == [("1", "completed")]

    asyncio.run(scene())


@pytest.mark.req("S5-26")
def test_half_written_files_keep_the_last_state(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at, "alice")
            await at.statuses(lead, alice="active")
            at.files.task(team, "1")
            await at.count(lead, "task.changed", 1)
            at.files.write(at.files.tasks / team / "1.json", '{"id": "1", "sta')
            at.files.write(at.files.teams / team / "config.json", '{"name": "')
            at.files.write(at.files.tasks / team / "2.json", "")
            at.files.task(team, "3")
            found = await at.count(lead, "task.changed", 2)
            assert [one["id"] for one in found] == ["1", "3"]
            assert len(at.events(lead, "member")) == 1

    asyncio.run(scene())


@pytest.mark.req("S5-20")
def test_messages_are_recorded_once_by_their_ids(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at, "alice")
            at.files.inbox(team, "team-lead", message("alice", "hello", "m1", summary="greeting"))
            await at.count(lead, "message", 1)
            at.files.inbox(team, "team-lead")
            idle = '{"type":"idle_notification","from":"alice"}'
            shut = '{"type":"shutdown_request","requestId":"r","reason":"done"}'
            at.files.inbox(team, "alice", message("alice", idle), message("team-lead", shut, "m2"))
            await at.count(lead, "message", 2)
            # What the inbox had is in the transcript as well, and what it lost is there alone.
            at.files.transcript(lead, *sent("team-lead", "alice", "seen", "m3", side=False))
            at.files.teammate(lead, "alice", *sent("alice", "team-lead", "hello", "m1"))
            at.files.teammate(lead, "alice", *sent("alice", "bob", "missed", "m4"))
            at.follow(lead)
            found = await at.count(lead, "message", 4)
            assert sorted((one["id"], one["from"], one["to"], one["text"], one["kind"]) for one in found) == [
                ("m1", "alice", "team-lead", "hello", "message"),
                ("m2", "team-lead", "alice", "done", "shutdown_request"),
                ("m3", "team-lead", "alice", "seen", "message"),
                ("m4", "alice", "bob", "missed", "message"),
            ]

    asyncio.run(scene())


@pytest.mark.req("S5-23", "S5-24")
def test_leads_never_see_each_others_teams(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            one, of_one = await open_team(at, "alice")
            other, of_other = await open_team(at, "bob")
            at.files.write(at.files.teams / "shared" / "config.json", config("shared", None, ["carol"]))
            example = {"members": [{"name": "dora", "agentId": "d", "agentType": "teammate"}]}
            at.files.write(at.files.teams / "plain" / "config.json", example)
            at.files.task(of_one, "1")
            at.files.task(of_other, "2")
            await at.statuses(one, alice="active")
            await at.statuses(other, bob="active")
            await at.count(one, "task.changed", 1)
            await at.count(other, "task.changed", 1)
            assert [task["id"] for task in at.engine.team_tasks(one)] == ["1"]
            assert [task["id"] for task in at.engine.team_tasks(other)] == ["2"]

    asyncio.run(scene())


@pytest.mark.req("S5-46")
def test_explicit_team_with_any_name_is_found(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            about = {"agentId": "alice@my team", "name": "alice", "agentType": "general-purpose", "isActive": True}
            members = [*config("my team", "", [])["members"], about]
            head = config("my team", session_of(lead.id), [])
            at.files.write(at.files.teams / "my team" / "config.json", {**head, "members": members})
            await at.statuses(lead, alice="active")
            members[-1] = {**about, "isActive": False}
            at.files.write(at.files.teams / "my team" / "config.json", {**head, "members": members})
            await at.statuses(lead, alice="idle")
            assert [run.status for run in at.runs(lead)] == [Status.WAITING]

    asyncio.run(scene())


@pytest.mark.req("S5-39")
def test_links_and_strange_names_are_never_read(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at)
            outside = at.files.write(at.files.root / "outside" / "9.json", '{"id": "9", "status": "pending"}')
            folder = at.files.tasks / team
            folder.mkdir(parents=True)
            (folder / "9.json").symlink_to(outside)
            os.mkfifo(folder / "8.json")
            for name in ("..json", ".lock", "1.json.tmp.0123abcd", "x" * 220 + ".json"):
                (folder / name).write_text('{"status": "pending", "subject": "no"}')
            at.files.task(team, "1")
            await at.count(lead, "task.changed", 1)
            inboxes = at.files.teams / team / "inboxes"
            inboxes.symlink_to(at.files.root / "outside")
            at.files.task(team, "2")
            found = await at.count(lead, "task.changed", 2)
            assert [one["id"] for one in found] == ["1", "2"]

    asyncio.run(scene())


@pytest.mark.req("S5-26")
def test_removed_folders_end_nothing_while_the_lead_lives(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at, "alice")
            at.files.task(team, "1", "completed")
            await at.statuses(lead, alice="active")
            await at.count(lead, "task.changed", 1)
            for _ in range(20):
                shutil.rmtree(at.files.claude)
                at.files.team(lead, "alice")
                at.files.task(team, "1", "completed")
            at.files.task(team, "2")
            await at.count(lead, "task.changed", 2)
            shutil.rmtree(at.files.claude)
            await until(lambda: at.engine.find(lead.id).open_tasks == 0, "the task that is gone")
            assert [one["status"] for one in at.events(lead, "member")] == ["started"]

    asyncio.run(scene())


@pytest.mark.req("S5-21")
def test_nothing_is_recorded_twice_after_a_restart(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, stop=False) as at:
            lead, team = await open_team(at, "alice", "bob")
            at.files.inbox(team, "alice", *(message("bob", f"text {number}", f"m{number}") for number in range(20)))
            for number in range(5):
                at.files.task(team, str(number))
            await at.count(lead, "message", 20)
            await at.count(lead, "task.changed", 5)
            await at.statuses(lead, alice="active", bob="active")
        at.files.task(team, "5")
        at.files.team(lead, "alice")
        async with leads(home, project) as at:
            await at.count(lead, "task.changed", 6)
            await at.statuses(lead, alice="active", bob="stopped")
            at.files.inbox(team, "alice", message("bob", "text 0", "m0"), message("bob", "new", "m20"))
            await at.count(lead, "message", 21)
            counts = {kind: len(at.events(lead, kind)) for kind in ("message", "task.changed", "member", "team.formed")}
            assert counts == {"message": 21, "task.changed": 6, "member": 3, "team.formed": 1}
            assert len(at.runs(lead)) == 2

    asyncio.run(scene())


@pytest.mark.req("S5-26", "S5-42")
def test_torture_of_large_folders_records_each_change_once(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at, "alice")
            folder = at.files.tasks / team
            folder.mkdir(parents=True)
            for number in range(10_000):
                (folder / f"{number}.json").write_text('{"status": "pending", "subject": "s"}')
            at.files.inbox(team, "alice", *(message("team-lead", f"t{n}", f"m{n}") for n in range(1_065)))
            await at.count(lead, "message", 1_065)
            await until(lambda: at.engine.find(lead.id).open_tasks == 10_000, "all tasks")
            at.files.task(team, "77", "completed", subject="s")
            (folder / "78.json").write_text('{"status": "comp')
            await until(lambda: at.engine.find(lead.id).open_tasks == 9_999, "the change")
            assert len(at.events(lead, "message")) == 1_065
            assert len(at.events(lead, "task.changed")) == 10_001

    asyncio.run(scene())


@pytest.mark.req("S5-18")
def test_changes_are_found_without_any_notification(home: Path, project: Path) -> None:
    async def scene() -> None:
        assert 2 <= SCAN_EVERY <= 3
        async with leads(home, project) as at:
            lead, team = await open_team(at, "alice")
            at.files.task(team, "1")
            await at.count(lead, "task.changed", 1)
            watch = at.engine._teams
            await until(lambda: watch._leads[lead.id].task is None, "the end of a look")
            watch._watcher.unwatch(watch._leads[lead.id])
            at.files.task(team, "1", "completed")
            assert [one["status"] for one in await at.count(lead, "task.changed", 2)] == ["pending", "completed"]

    asyncio.run(scene())


@pytest.mark.req("S5-28", "S5-29")
def test_history_is_not_read_for_the_team_of_a_live_lead(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at, "alice")
            at.files.inbox(team, "alice", message("team-lead", "go", "m1"))
            await at.count(lead, "message", 1)
            await at.statuses(lead, alice="active")
            assert at.engine._teams.team(lead) is at.engine._teams.team(lead)
            live = at.engine.teammates(lead)
            await at.end(lead)
            await at.count(lead, "team.removed", 1)
            read = at.engine._teams.team(lead)
            assert (read.messages, list(read.members)) == (set(), [live[0]["agent_id"]])

    asyncio.run(scene())


@pytest.mark.req("S5-40")
def test_team_is_not_looked_at_after_the_end_of_its_lead(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await open_team(at, "alice")
            await at.statuses(lead, alice="active")
            await at.end(lead)
            await at.count(lead, "team.removed", 1)
            watch = at.engine._teams
            assert lead.id not in watch._leads
            before = len(at.events(lead, "task.changed", "member"))
            at.files.team(lead, "alice", "bob")
            at.files.task(team, "1")
            await until(lambda: watch._timer is None, "the end of the scans")
            assert len(at.events(lead, "task.changed", "member")) == before

    asyncio.run(scene())


@pytest.mark.req("S5-28", "S5-29")
def test_runs_without_a_team_have_no_teammates(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start()
            assert (at.engine.teammates(lead), at.engine.team_tasks(lead)) == ([], [])

    asyncio.run(scene())


def test_secrets_are_masked_in_what_a_team_says(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead = await at.start(secrets={"ANTHROPIC_API_KEY": "sk-very-secret-value"})
            team = at.files.team(lead, "alice")
            at.files.task(team, "1", description="use sk-very-secret-value")
            at.files.inbox(team, "alice", message("team-lead", "take sk-very-secret-value", "m1"))
            await at.count(lead, "message", 1)
            await at.count(lead, "task.changed", 1)
        with sqlite3.connect(home / "hocket.db") as database:
            stored = "".join(data for (data,) in database.execute("SELECT data FROM events"))
        assert "very-secret" not in stored

    asyncio.run(scene())
