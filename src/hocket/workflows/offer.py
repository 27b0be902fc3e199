"""Whether an agent is given our own MCP server."""

from __future__ import annotations

from hocket.config.settings import Config
from hocket.mcp.tools import SERVER, rules
from hocket.model import Agent
from hocket.providers.base import OwnServer


def own_server(agent: Agent, config: Config) -> OwnServer | None:
    """Ours, unless the user switched it off or the definition has a list of servers that does not name it."""
    listed = agent.definition.allowed_servers if agent.definition else None
    if not config.claude.mcp or (listed is not None and SERVER not in listed):
        return None
    return OwnServer(SERVER, rules())
