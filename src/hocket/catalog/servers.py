"""MCP servers that are configured for a directory, and the choice among them that a definition makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hocket.catalog.file_probe import FileProbe
from hocket.catalog.sources import project_roots
from hocket.model import Agent
from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import PathFault, Servers


class ChosenServers(NamedTuple):
    """The servers of a whitelist. ``servers`` is None without a whitelist: then nothing is restricted."""

    servers: Servers | None
    unknown: tuple[str, ...] = ()
    """Names on the list for which there is no server."""
    faults: tuple[PathFault, ...] = ()
    """Why a file, or a server in it, is ignored."""


def resolve_servers(
    look: FileProbe, cwd: str, env: Mapping[str, str], *, trusted: bool
) -> tuple[Servers, list[PathFault]]:
    """Return every server of a directory; those of the project itself only if it is trusted."""
    return DEFINITIONS.configured_servers(look, cwd, env, project_roots(look, cwd, env), trusted=trusted)


def servers_for(agent: Agent, cwd: str, env: Mapping[str, str]) -> ChosenServers:
    """Return the servers that an agent's definition chooses."""
    definition = agent.definition
    allowed = definition.allowed_servers if definition else None
    if definition is not None and allowed is None and not agent.trusted:
        # In an untrusted folder the CLI knows no servers, so those that the definition names are handed over.
        allowed = tuple(item for item in definition.fields.get("mcpServers", ()) if isinstance(item, str)) or None
    if allowed is None:
        return ChosenServers(None)
    servers, faults = resolve_servers(FileProbe(), agent.cwd or cwd, env, trusted=agent.trusted)
    chosen = {name: servers[name] for name in allowed if name in servers}
    return ChosenServers(chosen, tuple(name for name in allowed if name not in servers), tuple(faults))
