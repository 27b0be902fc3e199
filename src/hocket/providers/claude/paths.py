"""Where Claude's files are: agents, settings, plugins and MCP servers, of the user, a project and the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hocket.errors import UsageError

variables: tuple[str, ...] = ("HOME", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_PLUGIN_CACHE_DIR")
"""The environment variables that decide where its files are."""
managed_folder = "/etc/claude-code/.claude/agents"
default_user_folder = "~/.claude/agents"
largest_file = 1024 * 1024
"""The CLI reads files up to this size (measured)."""
marker = "/.claude/agents/"
"""Separates the project from the agent's name in a path."""
_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def config_directory(cwd: str, env: Mapping[str, str]) -> str | None:
    """Return the user's configuration directory, or None if the environment names no user."""
    moved, home = env.get("CLAUDE_CONFIG_DIR"), env.get("HOME")
    if moved:
        return os.path.normpath(os.path.join(cwd, moved))
    return os.path.join(home, ".claude") if home else None


def user_folder(cwd: str, env: Mapping[str, str]) -> str | None:
    """Return the folder of the user's own definitions, or None if the environment names no user."""
    base = config_directory(cwd, env)
    return os.path.join(base, "agents") if base else None


def project_folder(project: str) -> str:
    return os.path.join(project, ".claude", "agents")


def is_definition_path(path: str) -> bool:
    """True if a path, however spelled, names an agent of a project."""
    return marker in path or marker in os.path.normpath(path)


def parse_definition_path(path: str) -> tuple[str, str] | None:
    """Return the project and the agent's name for an absolute path; None for any other path.

    What follows the last ``/.claude/agents/`` must be one simple name, with or without ``.md``.
    """
    spelled = _last_match(_without_dots(path)) or _last_match(os.path.normpath(path))
    if spelled is None:
        return None
    project, rest = spelled
    name = rest.removesuffix(".md")
    if not _SIMPLE_NAME.fullmatch(name):
        raise UsageError(
            f"{path} does not name a Claude agent: {rest!r} is not a simple name",
            "write it as PROJECT/.claude/agents/NAME, the name made of letters, digits, - and _",
        )
    return project or "/", name


def _without_dots(path: str) -> str:
    """Drop redundant dots and slashes but keep ``..``, which may lead elsewhere behind a link."""
    plain = "/" + "/".join(part for part in path.split("/") if part not in {"", "."})
    return plain + "/" if path.endswith("/") else plain


def _last_match(path: str) -> tuple[str, str] | None:
    project, separator, rest = path.rpartition(marker)
    return (project, rest) if separator and not rest.startswith("../") else None
