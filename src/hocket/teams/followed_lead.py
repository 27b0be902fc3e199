"""One lead: its team's files are looked at, compared with what is recorded, and the differences are committed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hocket.config import session_places
from hocket.errors import LimitReached
from hocket.model import Event, Run, Status
from hocket.providers.base import Provider, Sessions, TeamFolders, Teams
from hocket.redaction import Redactor, secrets_of
from hocket.sessions.journal import Journal, run_event
from hocket.sessions.run_identity import session_of
from hocket.sessions.transcripts import locate, nearest_directory
from hocket.store import Queries
from hocket.teams.limits import TeammateLimit
from hocket.teams.reading import PARTS, Look, TeamFiles
from hocket.teams.state import TYPES, Data, TeamState, message_data
from hocket.teams.teammates import Teammates, member_data, member_event

AT_ONCE = 500
"""Events in one commit."""
_ACTIVE = ("started", "active")
_STATUS_OF_TURN = {"turn.started": "active", "turn.ended": "idle"}


class FoundPlace(NamedTuple):
    """A folder to watch: that of some part, or the nearest one above it."""

    inode: int
    parts: tuple[str, ...]
    names: frozenset[str] | None
    """The entries that matter; None if all do."""


class Findings(NamedTuple):
    """A look, and how it differs from what is recorded."""

    look: Look
    messages: list[Data]
    tasks: list[Data]
    places: dict[str, FoundPlace]


class Recorded(NamedTuple):
    """What the store has of a lead."""

    state: TeamState
    children: list[Run]
    """Its teammates."""
    calls: list[Event]
    """Results of tools since the last event of its team."""


class FollowedLead:
    """A lead and its team. ``examine`` is called in a thread, everything else in the loop, by one task at a time."""

    def __init__(
        self, run: Run, provider: Provider, teams: Teams, folders: TeamFolders, env: Mapping[str, str]
    ) -> None:
        self.id = run.id
        self.state = TeamState()
        self.changed: set[str] = set(PARTS)
        """The parts to look at."""
        self.events: list[Event] = []
        """Of the lead and its teammates, which were committed and are to be considered."""
        self.is_loaded = False
        self.is_ending = False
        self.is_thorough = True
        self.watched: dict[str, FoundPlace] = {}
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.done = asyncio.Event()
        self.teammates: set[str] = set()
        """The runs of its members that have not ended."""
        self._teams = teams
        self._sessions: Sessions | None = provider.sessions
        self.env = session_places(run.cwd, env)
        self.redactor = Redactor(secrets_of(env))
        self.files = TeamFiles(provider, teams, folders, self.redactor.text)
        self._compared: Mapping[str, Data | None] | None = None
        """The tasks that were compared last and are recorded."""
        self._transcripts: dict[str, list[str]] = {}
        self._used: set[str] = set()
        """Transcripts that are those of a run."""
        self._sent: list[Data] = []
        """Messages that are not recorded yet."""

    # --- Loading ---

    async def load(self, journal: Journal) -> None:
        """Continue with what is recorded."""
        self.state, children, calls = await journal.read_aside(partial(_recorded, lead=self.id))
        self._used = {run.transcript for run in children if run.transcript is not None}
        self.files.team = self.state.team
        self.events[:0] = [*calls, *(event for run in children for event in _turns(run))]
        self.teammates = {data["run"] for data in self.state.present.values() if data["run"]}
        self.is_loaded = True

    async def follow_again(self, journal: Journal, teammates: Teammates) -> None:
        """Continue to read the transcripts of the teammates."""
        for run in [journal.live[run] for run in self.teammates if run in journal.live]:
            if run.transcript is not None:
                await teammates.follow(run, None, self.redactor)

    # --- Looking ---

    def examine(self, run: Run, parts: set[str]) -> Findings:
        """Look at the files, and compare. Nothing changes the state meanwhile."""
        session = run.session_id or session_of(run.id)
        transcript = run.transcript or self._transcript(run, session)
        look = self.files.look(sessions_of(run), transcript, parts, thorough=self.is_thorough)
        is_same = look.tasks is None or look.team is None or look.tasks == self._compared
        tasks = [] if is_same else self.state.task_changes(look.team or "", look.tasks or {})
        messages = self.state.new_messages([*(look.messages or ()), *self._sent])
        return Findings(look, messages, tasks, dict(_found_places(self.files.places(transcript))))

    def _transcript(self, run: Run, session: str) -> str | None:
        if self._sessions is None or self._sessions.transcripts is None:
            return None
        return locate(self._sessions.transcripts(self.env, os.path.realpath(run.cwd), session))

    def possible_teams(self, run: Run) -> list[str]:
        """The teams that it may leave folders of: also one that was formed and is gone before it was seen."""
        return list(dict.fromkeys((*self.state.teams, *map(self._teams.first_name, sessions_of(run)))))

    # --- Recording ---

    async def record(self, run: Run, found: Findings, journal: Journal) -> None:
        """Commit what a look has found, except for members. Raises what the journal raises; then it is found again."""
        # Messages are gone from the files a moment later.
        known = {data["id"] for data in self._sent}
        self._sent += [data for data in found.messages if data["id"] not in known]
        team = found.look.team
        if team is not None and team != self.state.team and found.look.config is not None:
            await self._commit(run, journal, [("team.formed", {"team": team})])
        if self.state.team is None:
            del self._sent[:-AT_ONCE]
            return
        new = self.state.new_messages({**data, "team": data["team"] or self.state.team} for data in self._sent)
        messages: list[tuple[str, Data]] = [("message", data) for data in new]
        await self._commit(run, journal, [*messages, *(("task.changed", data) for data in found.tasks)])
        self._sent.clear()
        if found.look.tasks is not None:
            self._compared = found.look.tasks

    async def _commit(self, run: Run, journal: Journal, events: Sequence[tuple[str, Data]]) -> None:
        for begin in range(0, len(events), AT_ONCE):
            some = events[begin : begin + AT_ONCE]
            await journal.write([run_event(run, kind, data) for kind, data in some], durable=True)
            for kind, data in some:
                self.state.add(kind, data)

    async def record_members(
        self, run: Run, look: Look, journal: Journal, teammates: Teammates, limit: TeammateLimit
    ) -> None:
        """Record who has come and gone, and follow the transcripts of those that are there."""
        if look.transcripts is not None:
            self._transcripts = dict(look.transcripts)
        if look.config is not None and look.team is not None and self.state.team == look.team:
            for data in self.state.left_members(look.config.members):
                self._told(await teammates.end(run, data, "done"))
            await self._create(run, look, teammates, limit)
            await self._record_activity(run, look, journal)
        for data in self.state.present.values():
            teammate = journal.live.get(data["run"] or "")
            unused = [path for path in self._transcripts.get(data["id"], ()) if path not in self._used]
            if teammate is not None and teammate.transcript is None and unused:
                await teammates.follow(teammate, unused[-1], self.redactor)
                self._used.add(unused[-1])

    async def _create(self, run: Run, look: Look, teammates: Teammates, limit: TeammateLimit) -> None:
        missing = self.state.missing_members(look.config.members) if look.config is not None else []
        if not missing:
            return
        excess = limit.excess(len(self.state.present) + len(missing))
        more = [run_event(run, "notice", {"kind": "limit", "text": excess})] if excess is not None else []
        try:
            told = await teammates.create(run, look.team or "", missing, self.env, more)
        except LimitReached:
            return  # A budget above is used up: the lead is being stopped.
        for data in told:
            self._told(data)
            limit.release(run.id, data["name"])

    async def _record_activity(self, run: Run, look: Look, journal: Journal) -> None:
        """Record what the configuration says of members without a transcript."""
        for member in look.config.members if look.config is not None else ():
            data = self.state.present.get(member.id)
            teammate = journal.live.get(data["run"] or "") if data is not None else None
            if data is None or teammate is None or teammate.transcript is not None or member.is_active is None:
                continue
            status = Status.RUNNING if member.is_active else Status.WAITING
            if teammate.status is not status:
                session = run_event(teammate, "session", {"session_id": None, "status": status})
                told = member_data(data, "active" if member.is_active else "idle")
                await journal.write([session, member_event(run, told)])
                self._told(told)

    def _told(self, data: Data) -> None:
        """Apply the event of a member."""
        self.state.add("member", data)
        if data["status"] == "stopped":
            self.teammates.discard(data["run"])
        else:
            self.teammates.add(data["run"])

    async def record_events(self, run: Run, journal: Journal) -> None:
        """Record what follows from events of the lead and its teammates: messages, and who is at work."""
        for event in (events := list(self.events)):
            if event.type == "tool.finished" and (said := self._teams.sent(event.data)) is not None:
                self._sent.append(message_data(self.state.team or "", said, self.redactor.text))
            elif (status := _STATUS_OF_TURN.get(event.type)) is not None:
                await self._record_turn(run, journal, event.run, status)
        del self.events[: len(events)]

    async def _record_turn(self, run: Run, journal: Journal, teammate: str, status: str) -> None:
        for data in [one for one in self.state.present.values() if one["run"] == teammate]:
            if (data["status"] in _ACTIVE) != (status == "active"):
                told = member_data(data, status)
                await journal.write([member_event(run, told)], durable=True)
                self._told(told)

    async def end_members(self, run: Run, teammates: Teammates) -> None:
        """End all members with their lead."""
        for data in list(self.state.present.values()):
            self._told(await teammates.end(run, data, "stopped"))


def sessions_of(run: Run) -> tuple[str, ...]:
    """The session that a lead was started with, which its team keeps, and the one that it has now."""
    return tuple(dict.fromkeys((session_of(run.id), run.session_id or session_of(run.id))))


def _recorded(read: Queries, lead: str) -> Recorded:
    events = list(read.events_of_type(lead, *TYPES))
    last = max((event.seq for event in events), default=0)
    children = [run for run in read.each_child(lead) if run.teammate is not None]
    sources = [lead, *(run.id for run in children)]
    calls = [event for run in sources for event in read.events(run, last) if event.type == "tool.finished"]
    return Recorded(TeamState(events), children, calls)


def _turns(run: Run) -> list[Event]:
    """What the state of a teammate says of its last turn."""
    if run.status is Status.WAITING:
        return [run_event(run, "turn.ended", {})]
    return [run_event(run, "turn.started", {})] if run.status is Status.RUNNING else []


def _found_places(places: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, FoundPlace]]:
    """The folders to watch, by path."""
    found: dict[str, dict[str, Any]] = {}
    for path, parts in places.items():
        directory, name = nearest_directory(os.path.join(path, ""))
        known = found.setdefault(directory, {"parts": (), "names": set()})
        known["parts"] = tuple(dict.fromkeys((*known["parts"], *parts)))
        known["names"].add(name)
    for directory, known in found.items():
        try:
            inode = os.stat(directory).st_ino
        except OSError:
            continue
        names = None if "" in known["names"] else frozenset(known["names"])
        yield directory, FoundPlace(inode, known["parts"], names)
