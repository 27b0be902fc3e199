"""A configuration directory of the Claude CLI with records of sessions, as the CLI would write them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from hocket.keeper import platform


class ClaudeHome:
    """Writes records below ``root``. Live sessions have a real process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def transcript(self, *records: dict[str, Any], session: str | None = None, project: str = "-p") -> str:
        """Write a transcript; return the id of its session."""
        session = session or str(uuid.uuid4())
        path = self.path(session, project)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
        return session

    def talk(self, prompt: str, answer: str, *, cwd: str = "/p", agent: str | None = None, **more: Any) -> str:
        """Write the transcript of one turn; return the id of its session."""
        setting = [{"type": "agent-setting", "agentSetting": agent}] if agent else []
        return self.transcript(*setting, *turn(prompt, answer, cwd), **more)

    def path(self, session: str, project: str = "-p") -> Path:
        return self.root / "projects" / project / f"{session}.jsonl"

    def live(self, session: str, pid: int, **more: Any) -> Path:
        """Write the record of a session's process, which exists."""
        started = platform.start_time(pid)
        record = {"pid": pid, "sessionId": session, "cwd": "/p", "procStart": str(started), "status": "busy"}
        return self.record(f"sessions/{pid}.json", {**record, **more})

    def job(self, name: str, session: str, **more: Any) -> Path:
        record = {"sessionId": session, "intent": "job words", "createdAt": "2026-01-01T00:00:00Z", "cwd": "/p"}
        return self.record(f"jobs/{name}/state.json", {**record, **more})

    def worker(self, pid: int, session: str, /, *launchers: str, **more: Any) -> dict[str, Any]:
        """A job's entry in the roster, with a process that exists."""
        env = {"CLAUDE_CODE_LAUNCHED_BY_SESSION_IDS": ",".join(launchers)} if launchers else {}
        started = str(platform.start_time(pid))
        return {"pid": pid, "procStart": started, "sessionId": session, "cwd": "/p", "dispatch": {"env": env}, **more}

    def roster(self, **workers: Any) -> Path:
        return self.record("daemon/roster.json", {"proto": 1, "workers": workers})

    def record(self, name: str, content: Any) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        return path


def turn(prompt: str, answer: str, cwd: str = "/p") -> list[dict[str, Any]]:
    """The records of one turn."""
    place = {"cwd": cwd, "isSidechain": False, "timestamp": "2026-01-01T00:00:00.000Z"}
    content = [{"type": "text", "text": answer}]
    said = {"id": f"m-{uuid.uuid4()}", "role": "assistant", "model": "m", "content": content, "stop_reason": "end_turn"}
    asked = {"role": "user", "content": prompt}
    return [
        {"type": "user", "uuid": str(uuid.uuid4()), "message": asked, **place},
        {"type": "assistant", "uuid": str(uuid.uuid4()), "message": said, **place},
    ]


def set_age(path: Path, seconds: float, now: float) -> None:
    os.utime(path, (now - seconds, now - seconds))


def start_process() -> subprocess.Popen[bytes]:
    """A process that stands for a CLI. It ends when its standard input is closed."""
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
