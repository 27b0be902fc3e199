"""Figures of teams: a look at large folders of a team, the first one and one without changes."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measure import Figure

from hocket.providers import PROVIDERS
from hocket.redaction import NO_SECRETS
from hocket.teams.reading import PARTS, TeamFiles
from hocket.teams.state import TeamState

TASKS, MESSAGES, LOOKS = 10_000, 1_065, 9
TEAM, SESSION = "session-5f2e8a10", "5f2e8a10-0000-4000-8000-000000000001"


def teams() -> Iterator[Figure]:
    """Looking at a team with many tasks and messages."""
    with tempfile.TemporaryDirectory() as folder:
        files = _written(Path(folder))
        first, again = _look(files), [_look(files) for _ in range(LOOKS)]
        note = f"{TASKS:,} tasks, {MESSAGES:,} messages; the first look {first * 1000:.0f} ms"
        yield Figure("a look at a large team without changes", statistics.median(again) * 1000, "ms", 100, note=note)


def _written(home: Path) -> TeamFiles:
    """The files of a team that have not changed for a while."""
    provider = PROVIDERS["claude"]
    capability = provider.teams
    folders = capability.folders({"HOME": str(home)}) if capability is not None else None
    assert capability is not None
    assert folders is not None
    team, tasks = Path(folders.teams, TEAM), Path(folders.tasks, TEAM)
    config = {"leadSessionId": SESSION, "members": [{"name": "alice", "agentId": f"alice@{TEAM}"}]}
    inbox = [{"from": "alice", "text": f"message {number} " * 10, "msg_id": str(number)} for number in range(MESSAGES)]
    contents = {team / "config.json": config, team / capability.inboxes / "team-lead.json": inbox}
    contents |= {tasks / f"{number}.json": {"subject": "s", "status": "pending"} for number in range(TASKS)}
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        os.utime(path, (time.time() - 60,) * 2)
    return TeamFiles(provider, capability, folders, NO_SECRETS.text)


def _look(files: TeamFiles) -> float:
    begin = time.perf_counter()
    found = files.look(SESSION, None, PARTS)
    took = time.perf_counter() - begin
    assert found.tasks is not None
    assert len(TeamState().task_changes(TEAM, found.tasks)) == TASKS
    return took
