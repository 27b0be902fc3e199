"""Leads in terminals: what many of them cost while nothing happens, and a look at the files of a large team."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measure import Figure, World, world

from hocket.providers import PROVIDERS
from hocket.redaction import NO_SECRETS
from hocket.sessions.run_identity import session_of
from hocket.teams.reading import PARTS, TeamFiles
from hocket.teams.state import TeamState

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

LEADS = 20
IDLE_SECONDS = 20.0
TASKS, MESSAGES, LOOKS = 10_000, 1_065, 9
TEAM, SESSION = "session-5f2e8a10", "5f2e8a10-0000-4000-8000-000000000001"


def idle() -> Iterator[Figure]:
    """Scripted leads with a team of one teammate each, all of them idle."""
    from scripted_lead import PROGRAM

    with world() as w:
        bin_folder = w.root / "bin"
        bin_folder.mkdir()
        w.program("bin/claude", f"#!{sys.executable}\n{PROGRAM}")
        (w.root / ".claude").mkdir()
        (w.root / ".claude.json").write_text(json.dumps({"hasCompletedOnboarding": True}))
        client, env = w.client(), {**w.env, "PATH": f"{bin_folder}:{w.env['PATH']}"}
        body = {"agent": "claude", "agentTeams": True, "prompt": "begin", "cwd": str(w.root), "env": env}
        for _ in range(LEADS):
            _add_team(w, client.request("POST", "/api/runs", body)["id"])
        _wait_until_idle(w)
        pid = w.server_pid()
        before = _processor_seconds(pid)
        time.sleep(IDLE_SECONDS)
        share = (_processor_seconds(pid) - before) / IDLE_SECONDS * 100
        yield Figure(f"processor time of the server with {LEADS} idle leads", share, "%", 1, note="of one core")


def _add_team(w: World, run: str) -> None:
    """Write the files of a team as the CLI would."""
    session = session_of(run)
    team = f"session-{session[:8]}"
    folder, tasks = w.root / ".claude/teams" / team, w.root / ".claude/tasks" / team
    (folder / "inboxes").mkdir(parents=True)
    tasks.mkdir(parents=True)
    member = {"agentId": f"alice@{team}", "name": "alice", "agentType": "general-purpose", "joinedAt": 1}
    config = {"name": team, "leadAgentId": f"team-lead@{team}", "leadSessionId": session, "members": [member]}
    (folder / "config.json").write_text(json.dumps(config))
    task = {"id": "1", "subject": "one", "description": "", "status": "pending", "blocks": [], "blockedBy": []}
    (tasks / "1.json").write_text(json.dumps(task))


def _wait_until_idle(w: World) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        runs = w.json("ps")
        if len(runs) == 2 * LEADS and all(run["status"] == "waiting" for run in runs if run["kind"] == "lead"):
            time.sleep(5)  # the last of their states and scans
            return
        time.sleep(0.5)
    raise AssertionError(f"{len(runs)} runs of {2 * LEADS} are there")


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def large() -> Iterator[Figure]:
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
