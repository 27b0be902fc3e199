"""Follows the teams of all live leads: their files, through notifications and a slow scan, and their transcripts."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import msgspec

from hocket.config import session_places
from hocket.errors import HocketError
from hocket.model import Event, Run
from hocket.providers import PROVIDERS
from hocket.providers.base import Provider, Teams
from hocket.sessions.background import BackgroundTasks
from hocket.sessions.file_watcher import FileWatcher
from hocket.sessions.journal import RETRY_AFTER, Journal
from hocket.sessions.secret_store import SecretStore
from hocket.store import Committed
from hocket.teams.cleanup import TeamCleanup
from hocket.teams.followed_lead import Findings, FollowedLead
from hocket.teams.limits import TeammateLimit
from hocket.teams.reading import PARTS
from hocket.teams.state import TYPES, Data, TeamState
from hocket.teams.teammates import Teammates

THREADS = 2
SCAN_EVERY = 3.0
"""How often everything is looked at: a notification may be missing."""
THOROUGH_EVERY = 10
"""Of so many scans one also looks at each file of a large folder that seems unchanged."""
END_SECONDS = 10.0
"""How long the end of a lead waits for that of its team."""
_SHOWN = tuple(kind for kind in TYPES if kind != "message")
_CONSIDERED = frozenset({"tool.finished", "turn.started", "turn.ended"})

log = logging.getLogger("hocket")


class _TeamFlag(msgspec.Struct):
    """Of a spec, whether it leads a team."""

    team: bool = False


_flag = msgspec.json.Decoder(_TeamFlag)


class TeamWatch:
    """The teams of all leads of this server. The next server continues with what is recorded."""

    def __init__(
        self,
        journal: Journal,
        watcher: FileWatcher,
        secrets: SecretStore,
        teammates: Teammates,
        cleanup: TeamCleanup,
        limit: TeammateLimit,
    ) -> None:
        self._journal = journal
        self._watcher = watcher
        self._secrets = secrets
        self._teammates = teammates
        self._cleanup = cleanup
        self._limit = limit
        self._leads: dict[str, FollowedLead] = {}
        self._tasks = BackgroundTasks()
        self._threads = ThreadPoolExecutor(THREADS, "hocket-teams")
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._scans = 0
        self._closing = False

    def open(self) -> None:
        """Follow all live leads, and end what ended with a lead while no server ran."""
        self._journal.listen(self._on_commit)
        self._watcher.on_overflow(self._touch_all)
        for run in list(self._journal.live.values()):
            self._begin(run)
        lost = {run.parent for run in self._journal.live.values() if run.teammate is not None} - self._leads.keys()
        for lead in filter(None, (self._journal.run(parent or "") for parent in lost)):
            if (provider := _with_teams(lead)) is not None:
                self._add(lead, *provider)
                self._tasks.spawn(self._end(lead))

    async def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for lead in self._leads.values():
            self._forget(lead)
        await self._tasks.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def team(self, run: Run) -> TeamState:
        """What is recorded of the team of a run, as far as it is shown. That of a live lead is known already."""
        lead = self._leads.get(run.id)
        if lead is not None and lead.is_loaded:
            return lead.state
        return TeamState(self._journal.read.events_of_type(run.id, *_SHOWN))

    def teammates(self, run: Run) -> list[Data]:
        """The teammates of a lead, those that have stopped as well; none for other runs."""
        return self.team(run).teammates(run.id, has_ended=run.ended)

    def team_tasks(self, run: Run) -> list[Data]:
        """The tasks that a lead's team shares; none for other runs."""
        return self.team(run).team_tasks()

    def check_teammate(self, run: Run, name: str) -> None:
        """Raise if a lead may have no further teammate with this name."""
        self._limit.check(run, name, len(self.team(run).present))

    # --- Commits ---

    def _on_commit(self, committed: Committed) -> None:
        for event in committed.events:
            if event.type == "run.started" and (run := committed.runs.get(event.run)) is not None:
                self._begin(run)
            elif event.type == "run.ended" and (event.run in self._leads or self._cleanup.has_record(event.run)):
                self._tasks.spawn(self._end(committed.runs[event.run]))
            elif self._leads and event.type in _CONSIDERED:
                self._consider(event)
            elif event.type == "session" and (lead := self._leads.get(event.run)) is not None:
                self._touch(lead, PARTS)

    def _consider(self, event: Event) -> None:
        for lead in self._leads.values():
            is_call = event.type == "tool.finished" and event.run == lead.id
            if is_call or event.run in lead.teammates:
                lead.events.append(event)
                self._touch(lead, ())

    def _begin(self, run: Run) -> None:
        """Follow the team of a run if it leads one."""
        provider = _with_teams(run)
        if provider is None or run.id in self._leads or run.is_observed or not run.has_process:
            return
        if _flag.decode(self._journal.read.spec(run.id)).team:
            self._add(run, *provider)

    def _add(self, run: Run, provider: Provider, teams: Teams) -> None:
        env = self._secrets.environment(run)
        folders = teams.folders(session_places(run.cwd, env))
        if folders is None:
            return
        lead = self._leads[run.id] = FollowedLead(run, provider, teams, folders, env)
        if self._timer is None:
            self._timer = self._loop.call_later(SCAN_EVERY, self._scan)
        self._touch(lead, PARTS)

    async def _end(self, run: Run) -> None:
        """After the end of a lead: end its teammates, and clean up what its CLI left."""
        await self.finish(run)
        await self._cleanup.clean_after(run)

    async def finish(self, run: Run) -> None:
        """Look at the files of a lead's team once more, end its teammates, and follow it no longer."""
        lead = self._leads.get(run.id)
        if lead is None:
            return
        lead.is_ending = True
        self._touch(lead, PARTS)
        with suppress(TimeoutError):
            await asyncio.wait_for(lead.done.wait(), END_SECONDS)

    # --- Looking ---

    def _scan(self) -> None:
        self._timer = None
        if not self._leads or self._closing:
            return
        self._scans += 1
        for lead in self._leads.values():
            lead.is_thorough |= self._scans % THOROUGH_EVERY == 0
            self._touch(lead, PARTS)
        self._timer = self._loop.call_later(SCAN_EVERY, self._scan)

    def _touch_all(self) -> None:
        for lead in self._leads.values():
            lead.is_thorough = True
            self._touch(lead, PARTS)

    def _touch(self, lead: FollowedLead, parts: tuple[str, ...], *, was_written: bool = False) -> None:
        """Look at some parts again."""
        lead.changed.update(parts)
        lead.is_thorough |= was_written
        if lead.task is None and not self._closing:
            lead.task = self._tasks.spawn(self._follow(lead))

    async def _follow(self, lead: FollowedLead) -> None:
        """Look at a team until nothing changes. One task per lead."""
        try:
            await self._catch_up(lead)
        except (HocketError, OSError) as error:
            # Not recordable now (a full disk): the files, and what was read of them, are still there.
            log.warning("the team of run %s is not recorded; trying again: %s", lead.id, error)
            lead.changed.update(PARTS)
            lead.timer = self._loop.call_later(RETRY_AFTER, self._touch, lead, PARTS)
        finally:
            lead.task = None
        if (lead.changed or lead.events) and lead.timer is None and self._leads.get(lead.id) is lead:
            self._touch(lead, ())

    async def _catch_up(self, lead: FollowedLead) -> None:
        lead.timer = None
        if not lead.is_loaded:
            await lead.load(self._journal)
            await lead.follow_again(self._journal, self._teammates)
        while (lead.changed or lead.events) and self._leads.get(lead.id) is lead:
            run = self._journal.run(lead.id)
            if run is None:
                self._forget(lead)
                return
            is_last = lead.is_ending
            await self._look(lead, run)
            if is_last:
                await lead.end_members(run, self._teammates)
                self._forget(lead)
                return

    async def _look(self, lead: FollowedLead, run: Run) -> None:
        parts, lead.changed = lead.changed, set()
        await lead.record_events(run, self._journal)
        found = await self._loop.run_in_executor(self._threads, lead.examine, run, parts)
        lead.is_thorough = False
        self._watch(lead, found)
        await lead.record(run, found, self._journal)
        if lead.is_ending or not run.ended:
            await self._cleanup.note(run, lead.possible_teams(run), lead.files.folders, lead.files.session)
        if not lead.is_ending:
            await lead.record_members(run, found.look, self._journal, self._teammates, self._limit)

    def _watch(self, lead: FollowedLead, found: Findings) -> None:
        """Watch what a look has found; what changed before it was watched needs another look."""
        for path, place in found.places.items():
            if lead.watched.get(path) == place or lead.is_ending:
                continue
            lead.watched[path] = place
            touch = partial(self._touch, lead, place.parts, was_written=True)
            try:
                self._watcher.watch(lead, path, touch, names=place.names)
            except OSError:
                continue  # Missing, or no watches are left: the scan finds what changes.
            lead.changed.update(place.parts)

    def _forget(self, lead: FollowedLead) -> None:
        self._watcher.unwatch(lead)
        if lead.timer is not None:
            lead.timer.cancel()
        if not self._closing:
            self._leads.pop(lead.id, None)
            self._limit.forget(lead.id)
            lead.done.set()


def _with_teams(run: Run) -> tuple[Provider, Teams] | None:
    """The provider of a run, if its CLI has teams."""
    provider = PROVIDERS.get(run.provider or "")
    return (provider, provider.teams) if provider is not None and provider.teams is not None else None
