"""Leads in terminals: what many of them cost the server while nothing happens."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from measure import Figure, World, world

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

LEADS = 20
IDLE_SECONDS = 20.0


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
    session = w.json("show", run)["session_id"] or _session_of(run)
    team = f"session-{session[:8]}"
    folder, tasks = w.root / ".claude/teams" / team, w.root / ".claude/tasks" / team
    (folder / "inboxes").mkdir(parents=True)
    tasks.mkdir(parents=True)
    member = {"agentId": f"alice@{team}", "name": "alice", "agentType": "general-purpose", "joinedAt": 1}
    config = {"name": team, "leadAgentId": f"team-lead@{team}", "leadSessionId": session, "members": [member]}
    (folder / "config.json").write_text(json.dumps(config))
    task = {"id": "1", "subject": "one", "description": "", "status": "pending", "blocks": [], "blockedBy": []}
    (tasks / "1.json").write_text(json.dumps(task))


def _session_of(run: str) -> str:
    from hocket.sessions.run_identity import session_of

    return session_of(run)


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
