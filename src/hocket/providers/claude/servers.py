"""MCP servers that Claude's own files configure for a directory. They may hold secrets and are never shown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.errors import NotTrusted
from hocket.providers.claude.paths import config_directory
from hocket.providers.claude.settings import settings
from hocket.providers.definition_files import Files, PathFault, Servers, read_object, shown
from hocket.providers.output_lines import dict_in, list_in

PROJECT_FILE = ".mcp.json"
_SERVERS = "mcpServers"
_DISABLED = "disabledMcpjsonServers"
_IGNORED = "; its MCP servers are ignored"


def configured_servers(
    files: Files, cwd: str, env: Mapping[str, str], roots: Sequence[str], *, trusted: bool
) -> tuple[Servers, list[PathFault]]:
    """Return the servers of a directory: the user's, a trusted project's, the user's own for this project.

    Of several with one name the last wins, as for the CLI. ``roots`` are the project's folders, the nearest first.
    """
    faults: list[PathFault] = []
    document, path = _user_document(files, cwd, env, faults)
    servers = _servers(document, path, faults)
    here = dict_in(dict_in(document, "projects"), os.path.realpath(roots[-1] if roots else cwd))
    if trusted:
        off = _strings(here, _DISABLED)
        off |= {name for given in settings(files, cwd, env, trusted=True) for name in _strings(given, _DISABLED)}
        for folder in reversed(roots):
            file = os.path.join(folder, PROJECT_FILE)
            found = _servers(read_object(files, file, faults, _IGNORED), file, faults)
            servers |= {name: server for name, server in found.items() if name not in off}
    servers |= _servers(here, path, faults)
    disabled = _strings(here, "disabledMcpServers")
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
    return read_object(files, path, faults, _IGNORED), path


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


def _strings(document: Mapping[str, Any], key: str) -> set[str]:
    return {item for item in list_in(document, key) if isinstance(item, str)}


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
    return list(dict_in(found, _SERVERS))
