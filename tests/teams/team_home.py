"""A home with the files of teams as the Claude CLI would write them, and leads that are real processes."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from patience import PATIENCE
from workflows.engine_fixture import EngineRunner, engine_runner, stop_all, until

from hocket.engine import Engine
from hocket.model import Run, Spec
from hocket.providers.claude.paths import folder_name
from hocket.sessions.run_identity import session_of

RESULT = json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "ok", "num_turns": 1})
WAITS = "while [ ! -e {end} ]; do sleep 0.02; done; "
"""A lead that ends when it is told to."""


class TeamHome:
    """The files of one user's teams."""

    def __init__(self, root: Path, project: Path) -> None:
        self.root = root
        self.project = project
        self.claude = root / ".claude"
        self.teams = self.claude / "teams"
        self.tasks = self.claude / "tasks"

    def write(self, path: Path, content: Any) -> Path:
        """Replace a file in one step, as the CLI does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        new = path.with_name(f"{path.name}.tmp.{uuid.uuid4().hex[:8]}")
        new.write_text(text)
        new.replace(path)
        return path

    def team(self, lead: Run, *names: str, team: str | None = None, **more: Any) -> str:
        """Write the configuration of a lead's team, with these members; return its name."""
        session = session_of(lead.id)
        team = team or f"session-{session[:8]}"
        self.transcript(lead)
        self.write(self.teams / team / "config.json", config(team, session, names, **more))
        return team

    def task(self, team: str, name: str, status: str = "pending", **more: Any) -> Path:
        about = {"id": name, "subject": f"task {name}", "description": "", "blocks": [], "blockedBy": []}
        return self.write(self.tasks / team / f"{name}.json", {**about, "status": status, **more})

    def inbox(self, team: str, name: str, *messages: dict[str, Any]) -> Path:
        return self.write(self.teams / team / "inboxes" / f"{name}.json", list(messages))

    def subagents(self, lead: Run) -> Path:
        folder = self.claude / "projects" / folder_name(os.path.realpath(self.project))
        return folder / session_of(lead.id) / "subagents"

    def transcript(self, lead: Run, *lines: dict[str, Any]) -> Path:
        """Add to the transcript of a lead."""
        return append(self.subagents(lead).parent.with_suffix(".jsonl"), *lines)

    def teammate(self, lead: Run, name: str, *lines: dict[str, Any], number: int = 1) -> Path:
        """Add to the transcript of a teammate."""
        stem = f"agent-a{name}-{number:016x}"
        team = f"session-{session_of(lead.id)[:8]}"
        about = {"agentType": name, "name": name, "taskKind": "in_process_teammate", "teamName": team}
        self.write(self.subagents(lead) / f"{stem}.meta.json", about)
        return append(self.subagents(lead) / f"{stem}.jsonl", *lines)


def append(path: Path, *lines: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return path


def config(team: str, session: str | None, names: Sequence[str], **more: Any) -> dict[str, Any]:
    lead = {"agentId": f"team-lead@{team}", "name": "team-lead", "agentType": "team-lead", "tmuxPaneId": "leader"}
    members = [
        {"agentId": f"{name}@{team}", "name": name, "agentType": "general-purpose", "model": "m"} for name in names
    ]
    head = {"name": team, "leadAgentId": lead["agentId"], "leadSessionId": session}
    return {**head, "members": [lead, *members], **more}


def message(sender: str, text: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    identity = name or str(uuid.uuid4())
    at = "2026-11-19T22:46:37.841Z"
    return {"from": sender, "text": text, "timestamp": at, "msg_id": identity, "type": "message", "read": False, **more}


def prompt(sender: str, text: str) -> dict[str, Any]:
    """The line of a teammate's transcript with a message to it."""
    content = f'<teammate-message teammate_id="{sender}" summary="s">\n{text}\n</teammate-message>'
    return {"type": "user", "isSidechain": True, "uuid": str(uuid.uuid4()), "message": {"content": content}}


def said(text: str, *, stop: str = "end_turn", tokens: int = 10, side: bool = True) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 0}
    content = [{"type": "text", "text": text}]
    head = {"id": f"msg_{uuid.uuid4()}", "model": "m", "content": content, "stop_reason": stop, "usage": usage}
    return {"type": "assistant", "isSidechain": side, "uuid": str(uuid.uuid4()), "message": head}


def sent(sender: str, target: str, text: str, name: str, *, side: bool = True) -> list[dict[str, Any]]:
    """The lines of a call that sends a message."""
    call = f"toolu_{uuid.uuid4().hex}"
    routing = {"sender": sender, "target": f"@{target}", "summary": "s", "content": text}
    result = json.dumps({"success": True, "message": "sent", "msg_id": name, "routing": routing})
    used = {"type": "tool_use", "id": call, "name": "SendMessage", "input": {"to": target, "message": text}}
    asked = {"id": f"msg_{uuid.uuid4()}", "model": "m", "content": [used], "stop_reason": "tool_use"}
    done = [{"type": "tool_result", "tool_use_id": call, "content": [{"type": "text", "text": result}]}]
    return [
        {"type": "assistant", "isSidechain": side, "uuid": str(uuid.uuid4()), "message": asked},
        {"type": "user", "isSidechain": side, "uuid": str(uuid.uuid4()), "message": {"content": done}},
    ]


class Leads:
    """An engine with leads whose processes only wait."""

    def __init__(self, runner: EngineRunner, files: TeamHome) -> None:
        self.runner = runner
        self.engine: Engine = runner.engine
        self.files = files

    async def start(
        self,
        *,
        code: int = 0,
        said: str = RESULT,
        secrets: dict[str, str] | None = None,
        parent: Run | None = None,
        **more: Any,
    ) -> Run:
        """Start a lead; ``end`` ends it with this code."""
        end = self.files.root / f"end-{uuid.uuid4().hex[:8]}"
        script = f"{WAITS.format(end=end)}echo '{said}'; exit {code}"
        env = {"PATH": os.environ["PATH"], "HOME": str(self.files.root), **(secrets or {})}
        spec = Spec(
            "lead",
            "claude",
            ("/bin/sh", "-c", script),
            str(self.files.project),
            env,
            team=True,
            prompt=str(end),
            **more,
        )
        run = await self.engine._starter.start_bound(spec, parent=parent)
        return await self.runner.running(run)

    def follow(self, lead: Run) -> None:
        """Have the transcript of a lead read, as that of a lead with a terminal is."""
        run = replace(self.engine.find(lead.id), session_id=session_of(lead.id))
        self.engine.transcripts.follow(run, {"HOME": str(self.files.root)})

    def let_end(self, run: Run) -> None:
        Path(self.engine.read.prompt(run.id) or "").touch()

    async def end(self, run: Run) -> Run:
        self.let_end(run)
        return await self.runner.wait(run)

    def events(self, run: Run, *types: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.engine.read.events(run.id) if event.type in types]

    def runs(self, lead: Run) -> list[Run]:
        """The runs of a lead's teammates."""
        return [self.engine.current(run.id) or run for run in self.engine.read.children(lead.id)]

    async def statuses(self, lead: Run, **wanted: str) -> None:
        """Wait until the teammates have these states."""

        def found() -> bool:
            return {one["name"]: one["status"] for one in self.engine.teammates(lead)} == wanted

        await until(found, f"the teammates {wanted}; they are {self.engine.teammates(lead)}")

    async def count(self, lead: Run, kind: str, number: int) -> list[dict[str, Any]]:
        """Wait for as many events of a kind."""
        await until(lambda: len(self.events(lead, kind)) >= number, f"{number} {kind} events")
        return self.events(lead, kind)


@asynccontextmanager
async def leads(home: Path, project: Path, *, stop: bool = True, **limits: Any) -> AsyncIterator[Leads]:
    """An engine; another one later takes over what it leaves if it does not stop it."""
    async with engine_runner(home, project, **limits) as runner:
        files = TeamHome(home.parent / "user", project)
        files.root.mkdir(exist_ok=True)
        found = Leads(runner, files)
        try:
            yield found
        finally:
            if stop:
                await stop_all(runner.engine)


__all__ = ["PATIENCE", "Leads", "TeamHome", "config", "leads", "message", "prompt", "said", "sent", "until"]
