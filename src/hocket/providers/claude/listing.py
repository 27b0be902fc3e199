"""The CLI's own list of agents: the request, and how to read the response.

The CLI answers before it calls a model, so neither credentials nor a network are needed.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from hocket.providers.output_lines import decoded, dict_in, text_in

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
    """The agents in the CLI's answer; None if its output has no answer."""
    for line in output.splitlines():
        response = dict_in(dict_in(decoded(line), "response"), "response")
        if isinstance(response.get("agents"), list):
            agents = (agent for agent in response["agents"] if isinstance(agent, dict))
            return [Listed(text_in(a, "name"), text_in(a, "description"), text_in(a, "model") or None) for a in agents]
    return None


def only_choices(settings: bytes) -> bytes | None:
    """The part of a settings file that chooses plugins, and nothing that could run or reach anything."""
    try:
        return json.dumps({_CHOOSING: json.loads(settings)[_CHOOSING]}).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
