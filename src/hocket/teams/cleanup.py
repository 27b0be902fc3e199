"""What is left of a team after its lead: moved to the trash, or kept and reported if the lead died by itself.

For each team that is not cleaned up there is a small file in HOCKET_HOME, so that the next server goes on with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hocket.errors import Conflict, HocketError, NotFound
from hocket.keeper import files
from hocket.model import Run, Status
from hocket.providers import PROVIDERS
from hocket.providers.base import TeamFolders, Teams
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.journal import Journal, run_event
from hocket.sessions.run_identity import session_of
from hocket.teams import trash

TRASH = "trash"
"""In HOCKET_HOME: what was moved, in a folder for each team."""
TEAMS = "teams"
"""In HOCKET_HOME: the teams that may have to be cleaned up, in a file for each lead."""
MOVED = "moved.json"
"""In the folder of a team in the trash: what was moved there, and from where."""
_RECORD_LIMIT = 1024 * 1024
_NOTICE = "team"

log = logging.getLogger("hocket")


class TeamRecord(msgspec.Struct, frozen=True):
    """The teams of one lead that are not cleaned up."""

    run: str
    provider: str
    session: str
    teams: tuple[str, ...]
    folders: TeamFolders


_record = msgspec.json.Decoder(TeamRecord)


class TeamCleanup:
    """Cleans up after leads. One per server."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self._home = home
        self._journal = journal
        self._records: dict[str, TeamRecord] = {}
        self._tasks = BackgroundTasks()
        self._cleaning = asyncio.Lock()

    def open(self) -> None:
        """Go on with what an earlier server left."""
        folder = self._home / TEAMS
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            if (record := _read(folder / name)) is not None:
                self._records[record.run] = record
        for record in list(self._records.values()):
            run = self._journal.run(record.run)
            if run is None:
                self._tasks.spawn(self._forget(record))  # Its history was removed.
            elif run.ended and not self._has_teammates(run):  # Otherwise they end first.
                self._tasks.spawn(self.clean_after(run))

    async def close(self) -> None:
        await self._tasks.close()

    def _has_teammates(self, run: Run) -> bool:
        return any(one.parent == run.id and one.teammate is not None for one in self._journal.live.values())

    def has_record(self, run_id: str) -> bool:
        return run_id in self._records

    async def note(self, run: Run, teams: Sequence[str], folders: TeamFolders, session: str | None) -> None:
        """Remember that these teams, which name this session, have to be cleaned up after a lead."""
        record = TeamRecord(run.id, run.provider or "", session or session_of(run.id), tuple(teams), folders)
        if self._records.get(run.id) == record:
            return
        await asyncio.to_thread(_write, self._home / TEAMS, record)
        self._records[run.id] = record

    async def clean_after(self, run: Run) -> None:
        """Clean up after a lead that has ended as it should; report what is left of any other."""
        record = self._records.get(run.id)
        if record is None:
            return
        if not await asyncio.to_thread(_left, record) or self._is_continued(run, record):
            await self._forget(record)
        elif _has_ended_orderly(run):
            try:
                await self._clean(run, record)
            except (HocketError, OSError) as error:
                await self._report(run, record, f"; not cleaned up: {error}")
        else:
            await self._report(run, record)

    async def clean(self, run: Run) -> dict[str, Any]:
        """Clean up an orphan team; return its run, its teams, and what was moved where."""
        record = self._records.get(run.id)
        if record is None or not _left(record):
            raise NotFound(f"run {run.number} has left no team")
        if not run.ended:
            raise Conflict(f"run {run.number} still leads its team", f"hocket stop {run.number}")
        if self._is_continued(run, record):
            raise Conflict(f"the session of run {run.number} goes on in another run", "its team belongs to that")
        return await self._clean(run, record)

    def orphans(self) -> list[dict[str, Any]]:
        """What is left of the teams of ended leads: run, team and exact paths."""
        found = list[dict[str, Any]]()
        for record in self._records.values():
            run = self._journal.run(record.run)
            if run is None or not run.ended or self._is_continued(run, record):
                continue
            about = {"run": run.id, "number": run.number}
            found += [{**about, "team": team, "paths": paths} for team, paths in _left(record).items()]
        return found

    def _is_continued(self, run: Run, record: TeamRecord) -> bool:
        """Whether another live run has the session of this one, and its team with it."""
        live = (one for one in self._journal.live.values() if one.id != run.id and one.provider == record.provider)
        return any((one.session_id or session_of(one.id)) == record.session for one in live)

    async def _clean(self, run: Run, record: TeamRecord) -> dict[str, Any]:
        async with self._cleaning:
            report: dict[str, Any] = {"run": run.id, "teams": [], "moved": [], "trash": []}
            for team in await asyncio.to_thread(_left, record):
                folder = str(self._home / TRASH / _folder_name(run, team))
                moved = await asyncio.to_thread(_move, record, team, folder, run)
                if moved:
                    report["teams"].append(team)
                    report["moved"] += moved
                    report["trash"].append(folder)
                    data = {"team": team, "moved": moved, "trash": folder}
                    await self._journal.insist([run_event(run, "team.removed", data)])
            await self._forget(record)
            return report

    async def _report(self, run: Run, record: TeamRecord, why: str = "") -> None:
        """Leave a notice with a lead of which something is left, once."""
        earlier = self._journal.read.events_of_type(run.id, "notice")
        if any(event.data.get("kind") == _NOTICE for event in list(earlier)):
            return
        left = await asyncio.to_thread(_left, record)
        paths = [path for some in left.values() for path in some]
        text = f"orphan team {', '.join(left)}: its lead has ended{why}; left: {', '.join(paths)}"
        data = {"kind": _NOTICE, "text": text, "teams": list(left), "paths": paths}
        await self._journal.insist([run_event(run, "notice", data)])

    async def _forget(self, record: TeamRecord) -> None:
        self._records.pop(record.run, None)
        remove = partial((self._home / TEAMS / f"{record.run}.json").unlink, missing_ok=True)
        try:
            await asyncio.to_thread(remove)
        except OSError as error:
            log.warning("the record of a team cannot be removed: %s", error)


def _has_ended_orderly(run: Run) -> bool:
    """Whether a lead was stopped or ended as it should; of any other the user may want to see what is left."""
    return run.status in (Status.DONE, Status.STOPPED) or (run.stop_reason is not None and run.status is Status.FAILED)


def _folder_name(run: Run, team: str) -> str:
    """The same each time, so that an interrupted move is completed."""
    ended = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(run.ended_at or run.created_at))
    return f"{ended}-{run.number}-{team}"


def _left(record: TeamRecord) -> dict[str, list[str]]:
    """The folders that are left, by team."""
    teams = _capability(record)
    found = {team: trash.existing(teams, record.folders, team, record.session) for team in record.teams if teams}
    return {team: paths for team, paths in found.items() if paths}


def _capability(record: TeamRecord) -> Teams | None:
    provider = PROVIDERS.get(record.provider)
    return provider.teams if provider is not None else None


def _move(record: TeamRecord, team: str, folder: str, run: Run) -> list[str]:
    if (teams := _capability(record)) is None:
        return []
    trash.check_team(teams, record.folders, team, record.session)
    moved = trash.move_team(record.folders, team, folder)
    about = {"run": run.id, "number": run.number, "session": record.session, "team": team, "moved": moved}
    files.replace(folder, MOVED, json.dumps(about, indent=2).encode() + b"\n")
    return moved


def _read(path: Path) -> TeamRecord | None:
    content = files.read_regular(path, _RECORD_LIMIT)
    try:
        return _record.decode(content) if content is not None and path.suffix == ".json" else None
    except msgspec.MsgspecError:
        return None


def _write(folder: Path, record: TeamRecord) -> None:
    folder.mkdir(0o700, exist_ok=True)
    files.replace(str(folder), f"{record.run}.json", msgspec.json.encode(record))
