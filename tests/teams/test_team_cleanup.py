"""What is left of a team after its lead: moved to the trash, reported as an orphan, or left alone."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from teams.team_home import Leads, config, leads, until

from hocket.errors import Conflict, NotFound
from hocket.keeper import platform
from hocket.model import Run, Status
from hocket.providers import PROVIDERS
from hocket.providers.base import TeamFolders
from hocket.sessions.journal import run_event
from hocket.sessions.run_identity import session_of
from hocket.teams import trash


async def lead_with_team(at: Leads, *, code: int = 0, said: str | None = None) -> tuple[Run, str]:
    lead = await (at.start(code=code) if said is None else at.start(code=code, said=said))
    team = at.files.team(lead, "alice")
    at.files.task(team, "1")
    await at.statuses(lead, alice="active")
    await at.count(lead, "task.changed", 1)
    return lead, team


def snapshot(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.req("S5-37", "S5-38", "S5-39")
@pytest.mark.parametrize("way", ["stop", "end"])
def test_team_of_an_ended_lead_is_moved_to_the_trash(home: Path, project: Path, way: str) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await lead_with_team(at)
            at.files.write(at.files.teams / "other" / "config.json", config("other", "x", []))
            at.files.write(at.files.claude / "settings.json", {})
            await (at.engine.stop(lead) if way == "stop" else at.end(lead))
            (removed,) = await at.count(lead, "team.removed", 1)
            moved = Path(removed["trash"])
            assert removed["moved"] == [str(at.files.teams / team), str(at.files.tasks / team)]
            assert moved.parent == home / "trash"
            assert (moved / "teams/config.json").is_file()
            assert (moved / "tasks/1.json").is_file()
            assert json.loads((moved / "moved.json").read_text())["moved"] == removed["moved"]
            left = {name for name in snapshot(at.files.claude) if not name.startswith("projects")}
            assert left == {"teams", "teams/other", "teams/other/config.json", "tasks", "settings.json"}
            await until(lambda: not list((home / "teams").iterdir()), "the record to be removed")
            assert at.engine.orphan_teams() == []

    asyncio.run(scene())


@pytest.mark.req("S5-41")
def test_team_of_a_failed_lead_is_kept_until_it_is_cleaned(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await lead_with_team(at, code=3, said="")
            with pytest.raises(Conflict, match="still leads"):
                await at.engine.clean_orphan(lead)
            ended = await at.end(lead)
            assert ended.status is Status.FAILED
            (notice,) = [one for one in await at.count(lead, "notice", 1) if one["kind"] == "team"]
            assert notice["text"].startswith(f"orphan team {team}:")
            paths = [str(at.files.teams / team), str(at.files.tasks / team)]
            assert at.engine.orphan_teams() == [{"run": lead.id, "number": lead.number, "team": team, "paths": paths}]
        async with leads(home, project) as at:
            assert len(at.engine.orphan_teams()) == 1
            report = await at.engine.clean_orphan(ended)
            assert (report["moved"], at.engine.orphan_teams()) == (paths, [])
            assert len(at.events(lead, "notice")) == 1
            with pytest.raises(NotFound):
                await at.engine.clean_orphan(ended)

    asyncio.run(scene())


@pytest.mark.req("S5-39")
def test_tasks_alone_are_moved_when_the_cli_removed_the_team(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await lead_with_team(at)
            (at.files.teams / team).rename(at.files.teams / f"{team}.deleted-0")
            await at.engine.stop(lead)
            (removed,) = await at.count(lead, "team.removed", 1)
            assert removed["moved"] == [str(at.files.tasks / team)]

    asyncio.run(scene())


@pytest.mark.req("S5-39", "S5-23")
def test_team_that_another_session_has_now_is_left_alone(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await lead_with_team(at)
            at.files.write(at.files.teams / team / "config.json", config(team, "another", ["alice"]))
            before = snapshot(at.files.claude)
            await at.engine.stop(lead)
            await until(lambda: not list((home / "teams").iterdir()), "the record to be removed")
            assert snapshot(at.files.claude) == before
            assert at.engine.orphan_teams() == []

    asyncio.run(scene())


@pytest.mark.req("S5-39")
def test_link_in_place_of_a_team_is_not_followed(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await lead_with_team(at)
            (at.files.tasks / team).rename(at.files.root / "kept")
            (at.files.tasks / team).symlink_to(at.files.root / "kept")
            await at.engine.stop(lead)
            (removed,) = await at.count(lead, "team.removed", 1)
            assert removed["moved"] == [str(at.files.teams / team)]
            assert (at.files.root / "kept/1.json").is_file()
            assert (at.files.tasks / team).is_symlink()

    asyncio.run(scene())


@pytest.mark.req("S5-23", "S5-38")
def test_team_is_kept_and_cleaned_up_after_its_lead_changed_session(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project) as at:
            lead, team = await lead_with_team(at)
            now = "0f0e0d0c-6277-4c51-abf5-1aa1cbe20e8a"
            await at.engine._journal.write([run_event(lead, "session", {"session_id": now})])
            at.files.team(lead, "alice", "bob")
            at.files.write(at.files.tasks / "session-0f0e0d0c" / ".session-list", team)
            await at.statuses(lead, alice="active", bob="active")
            await at.engine.stop(lead)
            await until(lambda: not list((home / "teams").iterdir()), "the record to be removed")
            moved = [path for one in at.events(lead, "team.removed") for path in one["moved"]]
            own = [str(at.files.teams / team), str(at.files.tasks / team)]
            assert moved == [*own, str(at.files.tasks / "session-0f0e0d0c")]

    asyncio.run(scene())


@pytest.mark.req("S5-38")
def test_tasks_are_moved_of_a_team_that_no_server_has_seen(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, stop=False) as at:
            lead = await at.start()
            at.files.task(team := f"session-{session_of(lead.id)[:8]}", "1")
            at.let_end(lead)
        async with leads(home, project) as at:
            (removed,) = await at.count(lead, "team.removed", 1)
            assert removed["moved"] == [str(at.files.tasks / team)]

    asyncio.run(scene())


@pytest.mark.req("S5-38")
def test_next_server_cleans_up_after_a_lead(home: Path, project: Path) -> None:
    async def scene() -> None:
        async with leads(home, project, stop=False) as at:
            lead, _ = await lead_with_team(at)
            at.let_end(lead)
        async with leads(home, project) as at:
            (removed,) = await at.count(lead, "team.removed", 1)
            assert len(removed["moved"]) == 2

    asyncio.run(scene())


@pytest.mark.req("S5-39")
def test_interrupted_move_is_completed(tmp_path: Path) -> None:
    folders = TeamFolders(str(tmp_path / "teams"), str(tmp_path / "tasks"))
    for folder in folders:
        (Path(folder) / "t").mkdir(parents=True)
    assert trash.move_team(TeamFolders(folders.teams, str(tmp_path / "none")), "t", str(tmp_path / "trash"))
    assert trash.move_team(folders, "t", str(tmp_path / "trash")) == [f"{folders.teams}/t", f"{folders.tasks}/t"]
    assert trash.move_team(folders, "t", str(tmp_path / "trash")) == [f"{folders.teams}/t", f"{folders.tasks}/t"]


@pytest.mark.req("S5-39")
def test_copy_to_another_file_system_keeps_links_as_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner/deep").mkdir(parents=True)
    (source / "inner/deep/file").write_text("content")
    (source / "link").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    descriptor = os.open(source, os.O_RDONLY)
    (tmp_path / "target.unfinished").mkdir()
    trash._copy(descriptor, str(tmp_path / "target"))
    os.close(descriptor)
    assert (tmp_path / "target/inner/deep/file").read_text() == "content"
    assert (tmp_path / "target/link").readlink() == Path("/etc")
    assert snapshot(tmp_path / "target") == {"inner", "inner/deep", "inner/deep/file", "link"}


@pytest.mark.req("S5-39")
def test_team_with_a_live_process_or_a_bad_name_is_refused(tmp_path: Path) -> None:
    teams = PROVIDERS["claude"].teams
    assert teams is not None
    folders = TeamFolders(str(tmp_path / "teams"), str(tmp_path / "tasks"))
    (tmp_path / "teams/t").mkdir(parents=True)
    process = {"pid": os.getpid(), "procStart": str(platform.start_time(os.getpid()))}
    (tmp_path / "teams/t/config.json").write_text(json.dumps(config("t", "s", [], leadProcess=process)))
    with pytest.raises(Conflict, match="still leads"):
        trash.check_team(teams, folders, "t", "s")
    for name in ("..", ".", "a/b", "", "a\0b", "x" * 201):
        with pytest.raises(Conflict, match="not the name"):
            trash.check_team(teams, folders, name, session_of("r"))
    (tmp_path / "teams/t/config.json").write_text("{")
    with pytest.raises(Conflict, match="not readable"):
        trash.check_team(teams, folders, "t", "s")
