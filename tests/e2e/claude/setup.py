"""Setup of the tests with Claude: the real CLI or the scripted agent, scripts and definitions.

Both implementations take the same script. ``claude`` is the real CLI with a scripted model, ``scripted`` the scripted
agent in its place. Everything runs through the command line, as for a user.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hocket.rehearsal import ScriptedModel, install, parse
from hocket.rehearsal.matching import Message
from hocket.rehearsal.steps import Script

Document = Mapping[str, Any]

IMPLEMENTATIONS = ("claude", "scripted")
ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "rehearsal",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_MAX_RETRIES": "1",
}
"""No network traffic but the API, no dialogues, one retry, and root is allowed."""
FIRST_STEPS_DONE = {"hasCompletedOnboarding": True}
"""What the CLI's own file of the user has to say, or it asks for a login and a theme in a terminal."""


def real_cli() -> Path:
    """The real program, inside a wheel that is not imported because that would take longer than a run."""
    found = importlib.util.find_spec("claude_agent_sdk")
    program = Path(found.origin).parent / "_bundled/claude" if found and found.origin else None
    if program is None or not program.exists():
        pytest.fail("the real CLI is not installed: pip install -e '.[test]' brings claude-agent-sdk, which has it")
    return program


# --- Implementations ------------------------------------------------------------------------------------------------


class Model(ScriptedModel):
    """A scripted model that keeps its requests."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.bodies: list[Mapping[str, Any]] = []

    def answer(self, body: Mapping[str, Any], session: str, sub_agent: str) -> Message:
        self.bodies.append(body)
        return super().answer(body, session, sub_agent)

    @property
    def last(self) -> Mapping[str, Any]:
        return self.bodies[-1]

    def request_text(self) -> str:
        """The last request as text."""
        return json.dumps(self.last, ensure_ascii=False)


class ClaudeSetup:
    """Puts an implementation into the environment of every later command."""

    def __init__(self, implementation: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.implementation = implementation
        self._world = world
        self._monkeypatch = monkeypatch
        self._models: list[Model] = []

    @property
    def is_real(self) -> bool:
        return self.implementation == "claude"

    def use_script(self, *rules: Document, **more: Any) -> None:
        """Use a script of these rules from now on."""
        document = {"rules": list(rules), **more}
        if self.is_real:
            self.use_model(document)
        else:
            script = self._world / "script.json"
            script.write_text(json.dumps(document), encoding="utf-8")
            program = install(self._world / "scripted", script, self._world / "state")
            self._monkeypatch.setenv("HOCKET_CLAUDE", str(program))

    def use_model(self, document: Document) -> None:
        model = Model(parse(document))
        model.start()
        self._models.append(model)
        for name, value in {**ENVIRONMENT, "ANTHROPIC_BASE_URL": model.url, "HOCKET_CLAUDE": str(real_cli())}.items():
            self._monkeypatch.setenv(name, value)

    def use_team(self, *rules: Document, **more: Any) -> None:
        """Use a script for leads of teams. In a terminal the CLI asks whether to use a key, but takes a token."""
        self.use_script(*rules, **more)
        self._monkeypatch.delenv("ANTHROPIC_API_KEY")
        self._monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "rehearsal")
        home = Path(os.environ["HOME"])
        (home / ".claude").mkdir(exist_ok=True)
        (home / ".claude.json").write_text(json.dumps(FIRST_STEPS_DONE), encoding="utf-8")

    @property
    def model(self) -> Model:
        return self._models[-1]

    def close(self) -> None:
        for model in self._models:
            model.stop()


# --- Scripts ------------------------------------------------------------------------------------------------


def says(*words: str, **when: Any) -> Document:
    """A rule with texts only."""
    return {"when": when, "do": [{"say": word} for word in words]}


def bash(command: str, result: str = "") -> Document:
    return {"tool": {"name": "Bash", "input": {"command": command, "description": "a command"}, "result": result}}


def asks_to(command: str, result: str = "", **branches: Any) -> Document:
    """A command that needs permission."""
    given = {"command": command, "description": "a command"}
    return {"ask": {"tool": "Bash", "input": given, "result": result, **branches}}


def message(to: str, text: str) -> Document:
    """A message to another agent, by its name."""
    return {"tool": {"name": "SendMessage", "input": {"to": to, "summary": text, "message": text}}}


def define(project: Path, file: str, *, name: str | None = None, body: str | None = None, **head: str) -> Path:
    """Write a definition below a project. Its body names the agent, by which a script identifies it."""
    called = name or file
    lines = {"name": called, "description": f"does what {called} does", **head}
    text = "".join(f"{key}: {value}\n" for key, value in lines.items())
    path = project / ".claude/agents" / f"{file}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\n{text}---\n{body or f'You are agent: {called}.'}\n", encoding="utf-8")
    return path
