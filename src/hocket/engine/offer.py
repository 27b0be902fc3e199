"""Whether an agent is given our own MCP server, and how that is started.

The interpreter that runs this process runs that server as well: it has everything that is needed, whatever is on the
agent's PATH.
"""

from __future__ import annotations

import sys

from hocket.config.settings import Config
from hocket.mcp.tools import SERVER, rules
from hocket.model import Agent
from hocket.providers.contract import OwnServer

# Safe path: the agent's directory must not decide what is imported. Not as a module: finding one by its name takes
# longer than all the rest that happens before the first answer.
_ARGUMENTS = ("-P", "-c", "from hocket.cli import main; main()", "mcp")


def own_server(agent: Agent, config: Config) -> OwnServer | None:
    """Ours, unless the user switched it off or the definition has a list of servers that does not name it."""
    listed = agent.definition.allowed_servers if agent.definition else None
    if not config.claude.mcp or not sys.executable or (listed is not None and SERVER not in listed):
        return None
    definition = {"command": sys.executable, "args": list(_ARGUMENTS), "env": {}}
    return OwnServer(SERVER, definition, rules())
