"""Teammates as runs below their lead: created when they appear, and ended with the lead or when they leave its team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.model import Event, Kind, Origin, Reason, Run, Spec, Status
from hocket.providers.base import TeamMember
from hocket.redaction import Redactor
from hocket.sessions.journal import Journal, run_event
from hocket.sessions.transcripts import Transcripts
from hocket.teams.state import Data
from hocket.workflows.start import RunBatch, Starter

READ_SECONDS = 1.0
"""How long the end of a teammate waits for the rest of its transcript."""
_AT_ITS_END = {"done": (Status.DONE, Reason.SINGLE_RUN), "stopped": (Status.STOPPED, Reason.STOPPED)}


def member_data(before: Mapping[str, Any], status: str) -> Data:
    """The data of the event with a member's next status."""
    return {**before, "status": status}


def member_event(lead: Run, data: Mapping[str, Any]) -> Event:
    return run_event(lead, "member", data)


class Teammates:
    """Creates, follows and ends the runs of teammates. One per server."""

    def __init__(self, journal: Journal, starter: Starter, transcripts: Transcripts) -> None:
        self._journal = journal
        self._starter = starter
        self._transcripts = transcripts

    async def create(
        self, lead: Run, team: str, members: Sequence[TeamMember], env: Mapping[str, str], more: Sequence[Event]
    ) -> list[Data]:
        """Create the runs of new members in one transaction with their events; return the data of those."""
        batch, told = RunBatch(), list[Data]()
        for member in members:
            spec = Spec(member.name, lead.provider or "", (), lead.cwd, env)
            known = {"origin": Origin.OBSERVED, "teammate": member.id}
            run = self._starter.stage_run(batch, Kind.LEAF, spec, lead, lead.depth + 1, known)
            batch.events.append(run_event(run, "run.started", {"pid": None}))
            about = {"id": member.id, "name": member.name, "team": team, "agent": member.agent, "model": member.model}
            told.append({**about, "status": "started", "run": run.id})
            batch.events.append(member_event(lead, told[-1]))
        batch.events += more
        await self._starter.commit_runs(batch)
        return told

    async def follow(self, run: Run, transcript: str | None, redactor: Redactor) -> None:
        """Read the transcript of a teammate, a new one or the one that is known."""
        if transcript is not None:
            found = run_event(run, "session", {"session_id": None, "transcript": transcript})
            run = (await self._journal.write([found])).runs.get(run.id, run)
        self._transcripts.follow(run, {}, redactor=redactor)

    async def end(self, lead: Run, data: Mapping[str, Any], how: str) -> Data:
        """End the run of a member: ``done`` or ``stopped``; return the data of its event."""
        await self._transcripts.stop(data["run"] or "", READ_SECONDS)
        told = member_data(data, "stopped")
        run = self._journal.live.get(data["run"] or "")
        await self._journal.insist([*([_end_of(run, how)] if run is not None else []), member_event(lead, told)])
        return told


def _end_of(run: Run, how: str) -> Event:
    status, reason = _AT_ITS_END[how]
    known = {"result": run.result, "error": run.error, "tokens": run.tokens, "cost_usd": run.cost_usd}
    return run_event(run, "run.ended", {"status": status, "reason": reason, **known})
