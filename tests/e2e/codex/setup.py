"""The real Codex CLI with a scripted model, configured in a home of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hocket.rehearsal import ScriptedModel, parse

Document = Mapping[str, Any]
KEY = "sk-scripted-0123456789"
_CONFIG = """\
model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

# Its sandbox would put an empty /tmp/.git in place for a moment, which makes /tmp a repository for tests beside it.
[sandbox_workspace_write]
exclude_slash_tmp = true
"""


def real_codex() -> Path:
    """The program that ``scripts/test`` installs."""
    program = Path(sys.prefix) / "codex/node_modules/.bin/codex"
    if not program.exists():
        pytest.fail(f"the Codex CLI is not installed at {program}: scripts/test installs it with npm")
    return program


def environment(home: Path, model: ScriptedModel) -> dict[str, str]:
    """The variables with which the CLI talks to the model, after writing its configuration into ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(_CONFIG.format(url=model.url), encoding="utf-8")
    return {"CODEX_HOME": str(home), "OPENAI_API_KEY": KEY}


class CodexSetup:
    """Puts the CLI and its model into the environment of every later command."""

    def __init__(self, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home = world / "codex"
        self._monkeypatch = monkeypatch
        self._models: list[ScriptedModel] = []

    def use_script(self, *rules: Document) -> ScriptedModel:
        """Answer with a script of these rules from now on."""
        model = ScriptedModel(parse({"rules": list(rules)})).start()
        self._models.append(model)
        for name, value in {**environment(self._home, model), "HOCKET_CODEX": str(real_codex())}.items():
            self._monkeypatch.setenv(name, value)
        return model

    def close(self) -> None:
        for model in self._models:
            model.stop()


def shell(command: str) -> Document:
    """A script step that runs a shell command with Codex's own tool."""
    return {"tool": {"name": "exec_command", "input": {"cmd": command}}}
