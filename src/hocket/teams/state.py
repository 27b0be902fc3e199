"""The state of a lead's team as the fold of recorded events, and how it differs from what the files say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hocket.model import Event
from hocket.providers.base import TeamMember, TeamMessage, TeamTask
from hocket.providers.output_lines import cut

TYPES = ("member", "message", "task.changed", "team.formed", "team.removed")
"""The events on a lead's run that make up the state of its team."""
_STATUS = {"started": "active"}
_SUBJECT_LIMIT, _TEXT_LIMIT = 1024, 16 * 1024
"""Bytes of a task's texts in an event. A message has as many as any text."""
_HIDDEN = "deleted"
_UNFINISHED = frozenset({"pending", "in_progress"})

Data = dict[str, Any]
Mask = Callable[[str], str]
"""Removes secrets from a text."""


class TeamState:
    """What is recorded of one lead's team. Members and tasks are the data of their last events."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.teams: list[str] = []
        """The names that its team had, the last one at the end."""
        self.is_removed = False
        self.members: dict[str, Mapping[str, Any]] = {}
        """By the id in the team."""
        self.tasks: dict[tuple[str, str], Mapping[str, Any]] = {}
        """By team and id."""
        self.messages: set[str] = set()
        for event in events:
            self.add(event.type, event.data)

    def add(self, kind: str, data: Mapping[str, Any]) -> None:
        """Apply one event. Those about sub-agents and about tasks of Hocket have no team."""
        team = data.get("team")
        if not isinstance(team, str):
            return
        if kind == "team.formed":
            self.teams = [*(one for one in self.teams if one != team), team]
        elif kind == "team.removed":
            self.is_removed = True
        elif kind == "member":
            self.members[data["id"]] = data
        elif kind == "task.changed":
            self.tasks[team, data["id"]] = data
        elif kind == "message":
            self.messages.add(data["id"])

    @property
    def team(self) -> str | None:
        return self.teams[-1] if self.teams else None

    @property
    def open_tasks(self) -> int:
        """How many tasks are unfinished."""
        return sum(data["status"] in _UNFINISHED for data in self.tasks.values())

    @property
    def present(self) -> dict[str, Mapping[str, Any]]:
        """The members that have not stopped."""
        return {name: data for name, data in self.members.items() if data["status"] != "stopped"}

    # --- What is shown ---

    def teammates(self, lead: str, *, has_ended: bool) -> list[Data]:
        """The teammates of a lead, the run with this id; once that has ended they have stopped, recorded or not."""
        return [self._teammate(lead, data, has_ended) for data in self.members.values()]

    def _teammate(self, lead: str, data: Mapping[str, Any], has_ended: bool) -> Data:
        status = "stopped" if has_ended else _STATUS.get(data["status"], data["status"])
        return {
            "name": data["name"],
            "agent_id": data["id"],
            "team_lead_id": lead,
            "team_name": data["team"],
            "status": status,
            "current_task": None if status == "stopped" else self._current_task(data),
            "run": data["run"],
            "model": data["model"],
            "agent": data["agent"],
        }

    def _current_task(self, member: Mapping[str, Any]) -> str | None:
        names = (member["name"], member["id"])
        own = (
            data["subject"]
            for (team, _), data in self.tasks.items()
            if team == member["team"] and data["status"] == "in_progress" and data["owner"] in names
        )
        return next(own, None)

    def team_tasks(self) -> list[Data]:
        """The shared tasks that were not deleted, in order of their ids."""
        names = ("id", "subject", "description", "status", "owner", "blocks", "blocked_by")
        found = sorted(self.tasks.items(), key=lambda one: (one[0][0] == self.team, _order(one[0][1])))
        return [{name: data[name] for name in names} for _, data in found if data["status"] != _HIDDEN]

    # --- Differences ---

    def new_messages(self, found: Iterable[Data]) -> list[Data]:
        """Those of these messages that are not recorded yet."""
        return list({one["id"]: one for one in found if one["id"] not in self.messages}.values())

    def task_changes(self, team: str, found: Mapping[str, Data | None]) -> list[Data]:
        """The data of events for tasks that differ from what is recorded.

        Tasks of which all are completed are removed by their CLI, which is no change of them.
        """
        count, changes = self.open_tasks, []
        for before, data in self._changed_tasks(team, found):
            count += (data["status"] in _UNFINISHED) - (before is not None and before["status"] in _UNFINISHED)
            changes.append({**data, "open": count})
        return changes

    def _changed_tasks(
        self, team: str, found: Mapping[str, Data | None]
    ) -> Iterator[tuple[Mapping[str, Any] | None, Data]]:
        """Each change with what was recorded before; a task that cannot be read now has not changed."""
        hidden = {name for name, data in found.items() if data is not None and data["status"] == _HIDDEN}
        for name in sorted(found.keys() - hidden, key=_order):
            before, data = self.tasks.get((team, name)), found[name]
            if data is not None and (before is None or any(before.get(key) != value for key, value in data.items())):
                yield before, data
        for (of_team, name), before in self.tasks.items():
            is_gone = of_team != team or name not in found or name in hidden
            if is_gone and before["status"] in _UNFINISHED:
                yield before, {**before, "status": _HIDDEN}

    def missing_members(self, found: Sequence[TeamMember]) -> list[TeamMember]:
        """The members that are not recorded as present."""
        present = self.present
        return [one for one in found if one.id not in present]

    def left_members(self, found: Sequence[TeamMember]) -> list[Mapping[str, Any]]:
        """What is recorded of members that have left."""
        known = {one.id for one in found}
        return [data for name, data in self.present.items() if name not in known]


def task_data(team: str, task: TeamTask, mask: Mask) -> Data:
    """The data of an event about a task, without the number of unfinished ones."""
    return {
        "team": team,
        "id": task.id,
        "subject": cut(mask(task.subject), _SUBJECT_LIMIT)["text"],
        "description": cut(mask(task.description), _TEXT_LIMIT)["text"],
        "status": task.status,
        "owner": mask(task.owner) if task.owner else None,
        "blocks": list(task.blocks),
        "blocked_by": list(task.blocked_by),
    }


def message_data(team: str, message: TeamMessage, mask: Mask) -> Data:
    """The data of an event about a message."""
    summary = mask(message.summary) if message.summary else None
    ends = {"id": message.id, "team": team, "from": message.sender, "to": message.recipient}
    return {**ends, **cut(mask(message.text)), "summary": summary, "kind": message.kind}


def _order(task: str) -> tuple[int, str]:
    return (int(task) if task.isascii() and task.isdigit() and len(task) < 19 else 2**63, task)
