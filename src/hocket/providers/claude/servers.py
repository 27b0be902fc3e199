"""MCP servers that Claude's own files configure for a directory. They may hold secrets and are never shown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.errors import NotTrusted
from hocket.providers.claude.paths import config_directory
from hocket.providers.definition_files import Fault, Files, PathFault, Servers, shown

PROJECT_FILE = ".mcp.json"
_SERVERS = "mcpServers"


def configured_servers(
    files: Files, cwd: str, env: Mapping[str, str], roots: Sequence[str], *, trusted: bool
) -> tuple[Servers, list[PathFault]]:
    """Return the servers of a directory: the user's, a trusted project's, the user's own for this project.

    Of several with one name the last wins, as for the CLI. ``roots`` are the project's folders, the nearest first.
    """
    faults: list[PathFault] = []
    document, path = _user_document(files, cwd, env, faults)
    servers = _servers(document, path, faults)
    projects = document.get("projects")
    here = projects.get(os.path.realpath(roots[-1] if roots else cwd)) if isinstance(projects, dict) else None
    here = here if isinstance(here, dict) else {}
    if trusted:
        off = _strings(here.get("disabledMcpjsonServers")) | _disabled_in_settings(files, cwd, env)
        for folder in reversed(roots):
            file = os.path.join(folder, PROJECT_FILE)
            found = _servers(_object(files, file, faults), file, faults)
            servers |= {name: server for name, server in found.items() if name not in off}
    servers |= _servers(here, path, faults)
    disabled = _strings(here.get("disabledMcpServers"))
    return {name: server for name, server in servers.items() if name not in disabled}, faults


def _user_document(
    files: Files, cwd: str, env: Mapping[str, str], faults: list[PathFault]
) -> tuple[dict[str, Any], str]:
    """The CLI's own file about the user, and its path."""
    base = config_directory(cwd, env)
    if base is None:
        return {}, ""
    older = os.path.join(base, ".config.json")  # where it exists, the CLI reads no other
    newer = os.path.join(base if env.get("CLAUDE_CONFIG_DIR") else os.path.dirname(base), ".claude.json")
    path = older if files.exists(older) else newer
    return _object(files, path, faults), path


def _disabled_in_settings(files: Files, cwd: str, env: Mapping[str, str]) -> set[str]:
    """Servers of the project that the user's or the project's settings disable."""
    base, project = config_directory(cwd, env) or "", os.path.join(cwd, ".claude")
    paths = [(base, "settings.json"), (project, "settings.json"), (project, "settings.local.json")]
    given = [_object(files, os.path.join(folder, name), []) for folder, name in paths]
    return {name for settings in given for name in _strings(settings.get("disabledMcpjsonServers"))}


def _object(files: Files, path: str, faults: list[PathFault]) -> dict[str, Any]:
    found = files.read_object(path)
    if isinstance(found, Fault):
        faults.append(PathFault(path, found.line, f"{found.reason}; its MCP servers are ignored", found.kind))
    return found if isinstance(found, dict) else {}


def _servers(document: Mapping[str, Any], path: str, faults: list[PathFault]) -> Servers:
    given = document.get(_SERVERS)
    if given is None:
        return {}
    if not isinstance(given, dict):
        faults.append(PathFault(path, None, f"{_SERVERS} is not a mapping of servers"))
        return {}
    usable = {name: server for name, server in given.items() if _is_server(server)}
    unusable = sorted(given.keys() - usable.keys())
    faults += [PathFault(path, None, f"the MCP server {shown(name)} has no command or URL") for name in unusable]
    return usable


def _is_server(server: Any) -> bool:
    return isinstance(server, dict) and any(isinstance(server.get(key), str) for key in ("command", "url"))


def _strings(value: Any) -> set[str]:
    return {item for item in value if isinstance(item, str)} if isinstance(value, list) else set()


def server_names(content: bytes, path: str) -> list[str]:
    """Return the servers that a ``.mcp.json`` defines; none where the CLI cannot read it either.

    Raises NotTrusted for what the CLI can read and we cannot.
    """
    try:
        found = json.loads(content.decode("utf-8-sig", "replace"))
    except json.JSONDecodeError:
        return []
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; thousands of brackets
        raise NotTrusted(
            f"{path} cannot be read here, but Claude would start its servers",
            "remove its oversized number or its deep nesting, or move the file away",
        ) from error
    servers = found.get(_SERVERS) if isinstance(found, dict) else None
    return list(servers) if isinstance(servers, dict) else []
