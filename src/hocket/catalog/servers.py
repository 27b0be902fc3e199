"""MCP servers that are configured for a directory, and the choice among them that a definition may make.

Reads the CLI's own files and keeps nothing of them but the servers, which may hold secrets: they are handed on, and
never shown. How an agent gets them is its provider's business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hocket.catalog.entries import REFUSED, SKIPPED, Problem
from hocket.catalog.fields import shown
from hocket.catalog.file_probe import Look
from hocket.catalog.frontmatter import Fault
from hocket.catalog.json_files import read_object
from hocket.catalog.sources import project_roots
from hocket.model import Agent

MAX_DOCUMENT = 8 * 1024 * 1024
_SERVERS = "mcpServers"
_PROJECT_FILE = ".mcp.json"

Environ = Mapping[str, str]
Servers = dict[str, Mapping[str, Any]]
"""By name, each as its file defines it."""


class Resolved(NamedTuple):
    """The servers of a directory, and the files that could not be used."""

    servers: Servers
    problems: tuple[Problem, ...] = ()


class Chosen(NamedTuple):
    """What a whitelist selects. ``servers`` is None where there is no whitelist: then nothing is restricted."""

    servers: Servers | None
    unknown: tuple[str, ...] = ()
    """Names on the list that stand for no server."""


def resolve_servers(look: Look, cwd: str, env: Environ, *, project_too: bool) -> Resolved:
    """Every server of a directory: the user's, then the project's, then the user's own for this project.

    The later one of a name counts, as for the CLI. ``project_too`` is for projects that somebody vouches for: the other
    two stand in a file that only the user writes.
    """
    problems: list[Problem] = []
    roots = project_roots(look, cwd, env)
    document, path = _users_document(look, cwd, env, problems)
    servers = _servers(document, path, problems)
    here = _here(document, roots[-1] if roots else cwd)
    if project_too:
        off = _names(here.get("disabledMcpjsonServers")) | _switched_off(look, cwd, env)
        for folder in reversed(roots):
            file = os.path.join(folder, _PROJECT_FILE)
            found = _servers(_object(look, file, problems), file, problems)
            servers |= {name: server for name, server in found.items() if name not in off}
    servers |= _servers(here, path, problems)
    disabled = _names(here.get("disabledMcpServers"))
    return Resolved({name: server for name, server in servers.items() if name not in disabled}, tuple(problems))


def select(servers: Mapping[str, Mapping[str, Any]], allowed: Sequence[str] | None) -> Chosen:
    """Those on the list and no others; without a list there is nothing to choose."""
    if allowed is None:
        return Chosen(None)
    chosen = {name: servers[name] for name in allowed if name in servers}
    return Chosen(chosen, tuple(name for name in allowed if name not in servers))


def servers_for(agent: Agent, cwd: str, env: Environ) -> Chosen:
    """The servers that an agent is to have where its definition has a word in it; else nothing is chosen."""
    definition = agent.definition
    allowed = definition.allowed_servers if definition else None
    if definition is not None and allowed is None and not agent.trusted:
        # In a folder that nobody trusts the CLI knows of no servers, so those that are only named have to be handed in.
        allowed = tuple(item for item in definition.fields.get(_SERVERS, ()) if isinstance(item, str)) or None
    if allowed is None:
        return Chosen(None)
    found = resolve_servers(Look(), agent.cwd or cwd, env, project_too=agent.trusted)
    return select(found.servers, allowed)


# --- Files --------------------------------------------------------------------------------------------------


def _users_document(look: Look, cwd: str, env: Environ, problems: list[Problem]) -> tuple[dict[str, Any], str]:
    """The CLI's own file about the user, and where it lies."""
    moved, home = env.get("CLAUDE_CONFIG_DIR"), env.get("HOME")
    if not moved and not home:
        return {}, ""
    folder = os.path.normpath(os.path.join(cwd, moved)) if moved else os.path.join(home or "", ".claude")
    older = os.path.join(folder, ".config.json")  # Where it is there, the CLI reads no other.
    path = older if look.exists(older) else os.path.join(folder if moved else home or "", ".claude.json")
    return _object(look, path, problems), path


def _here(document: Mapping[str, Any], root: str) -> Mapping[str, Any]:
    """What the user's file says about one project, which it knows by its real path."""
    projects = document.get("projects")
    found = projects.get(os.path.realpath(root)) if isinstance(projects, dict) else None
    return found if isinstance(found, dict) else {}


def _switched_off(look: Look, cwd: str, env: Environ) -> set[str]:
    """Servers of the project that the user's or its own settings switch off."""
    moved, home = env.get("CLAUDE_CONFIG_DIR"), env.get("HOME", "")
    base = os.path.normpath(os.path.join(cwd, moved)) if moved else os.path.join(home, ".claude")
    theirs = os.path.join(cwd, ".claude")
    files = [(base, "settings.json"), (theirs, "settings.json"), (theirs, "settings.local.json")]
    said = [_object(look, os.path.join(folder, name), []) for folder, name in files]
    return {name for settings in said for name in _names(settings.get("disabledMcpjsonServers"))}


def _object(look: Look, path: str, problems: list[Problem]) -> dict[str, Any]:
    found = read_object(look, path, MAX_DOCUMENT)
    if isinstance(found, Fault):
        kind = REFUSED if found.kind == REFUSED else SKIPPED
        problems.append(Problem(path, found.line, f"{found.reason}; its MCP servers are left out", False, kind))
    return found if isinstance(found, dict) else {}


def _servers(document: Mapping[str, Any], path: str, problems: list[Problem]) -> Servers:
    given = document.get(_SERVERS)
    if given is None:
        return {}
    if not isinstance(given, dict):
        problems.append(Problem(path, None, f"its {_SERVERS} are no servers with names", False, SKIPPED))
        return {}
    usable = {name: server for name, server in given.items() if _is_server(server)}
    for name in given.keys() - usable.keys():
        reason = f"the MCP server {shown(name)} has neither a command nor an address"
        problems.append(Problem(path, None, reason, False, SKIPPED))
    return usable


def _is_server(server: Any) -> bool:
    return isinstance(server, dict) and any(isinstance(server.get(key), str) for key in ("command", "url"))


def _names(value: Any) -> set[str]:
    return {item for item in value if isinstance(item, str)} if isinstance(value, list) else set()
