"""Asking the CLI which agents it would load: what to say to it, and how to read its answer. Nothing is run here.

It answers before it would speak to any model, so neither credentials nor a network are needed.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

ARGUMENTS = (
    *("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"),
    *("--no-session-persistence", "--strict-mcp-config"),
    *("--settings", json.dumps({"disableAllHooks": True})),
)
"""No hook is run, no server of tools is started, no transcript is written."""
REQUEST = json.dumps({"type": "control_request", "request_id": "agents", "request": {"subtype": "initialize"}}).encode()
ENVIRONMENT = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
_CHOOSING = "enabledPlugins"


class Listed(NamedTuple):
    """One agent of the CLI's own list."""

    name: str
    description: str
    model: str | None


def agents_listed(output: bytes) -> list[Listed] | None:
    """The agents that its answer names; None when there is no answer in what it wrote."""
    for line in output.splitlines():
        agents = _agents_in(line)
        if agents is not None:
            return [_listed(agent) for agent in agents if isinstance(agent, dict)]
    return None


def _agents_in(line: bytes) -> list[Any] | None:
    try:
        found = json.loads(line)
        agents = found["response"]["response"]["agents"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return agents if isinstance(agents, list) else None


def _listed(agent: dict[str, Any]) -> Listed:
    model = agent.get("model")
    return Listed(str(agent.get("name")), str(agent.get("description")), None if model is None else str(model))


def only_choices(settings: bytes) -> bytes | None:
    """Of a settings file the part that chooses plugins, and nothing that could run or reach anything."""
    try:
        chosen = json.loads(settings)[_CHOOSING]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return json.dumps({_CHOOSING: chosen}).encode()
