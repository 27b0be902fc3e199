"""The usage of a lead, which includes that of its teammates: its CLI settles all of them together at the end.

As long as nothing is settled, a lead has the tokens of its own transcript and those of its teammates, so that budgets
count them at once. What a teammate used is shown on its run and added to nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hocket.model import Event, Run
from hocket.sessions.journal import Journal, run_event


class _Lead:
    """What is known of one lead and its teammates."""

    def __init__(self, own: int, others: dict[str, int]) -> None:
        self.own = own
        self.others = others
        """Tokens by teammate."""
        self.is_settled = False

    @property
    def tokens(self) -> int:
        return self.own + sum(self.others.values())


class TeamUsage:
    """The usage of all leads whose transcripts are read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._leads: dict[str, _Lead] = {}

    def forget(self, run_id: str) -> None:
        self._leads.pop(run_id, None)

    def with_teammates(self, run: Run, events: list[Event], *, lead_is_followed: bool) -> list[Event]:
        """Return these new events of a run, with the tokens of teammates in the usage of their lead.

        A lead whose usage comes from elsewhere than its transcript is left alone.
        """
        used = [event for event in events if event.type == "usage"]
        if not used:
            return events
        if run.teammate is not None:
            return [*events, *(self._of_lead(run, used) if lead_is_followed else ())]
        lead = self._leads.get(run.id) or self._load(run)
        return [self._completed(lead, event) if event.type == "usage" else event for event in events]

    def _of_lead(self, teammate: Run, used: Sequence[Event]) -> list[Event]:
        """The usage of the lead after that of a teammate."""
        run = self._journal.live.get(teammate.parent or "")
        if run is None or not isinstance(tokens := used[-1].data.get("tokens"), int):
            return []
        lead = self._leads.get(run.id) or self._load(run)
        lead.others[teammate.id] = tokens
        return [] if lead.is_settled else [run_event(run, "usage", {"tokens": lead.tokens, "estimate": True})]

    def _load(self, run: Run) -> _Lead:
        """What an earlier server knew of a lead."""
        known = [self._journal.run(one.id) or one for one in self._journal.read.each_child(run.id)]
        others = {one.id: one.tokens or 0 for one in known if one.teammate is not None}
        lead = self._leads[run.id] = _Lead(max(0, (run.tokens or 0) - sum(others.values())), others)
        return lead

    def _completed(self, lead: _Lead, event: Event) -> Event:
        tokens = event.data.get("tokens")
        if not isinstance(tokens, int):
            return event
        lead.is_settled = not event.data.get("estimate")
        if lead.is_settled:
            lead.own = max(0, tokens - sum(lead.others.values()))
            return event
        lead.own = tokens
        return replace(event, data={**event.data, "tokens": lead.tokens})
