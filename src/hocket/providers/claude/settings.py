"""What Claude's own files say: the settings of a directory, and what a person has confirmed in a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from hocket.providers.base import Obstacle, TeamStart
from hocket.providers.claude.paths import config_directory
from hocket.providers.definition_files import Files, read_object

OUTPUT_STYLE = "outputStyle"
LAST_TEAMS_IN_PRINT = (2, 1, 177)
"""Later versions have the tools of teams in a terminal only."""
_CONFIRMED = ".claude.json"
_KEY, _TOKEN = "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"
_KEY_END = 20
"""How many of the last characters of a key the CLI records when a person approves it."""


def settings(files: Files, cwd: str, env: Mapping[str, str], *, trusted: bool) -> Iterator[dict[str, Any]]:
    """Yield the user's settings, then a trusted project's; of a key in several of them the last counts."""
    base, project = config_directory(cwd, env) or "", os.path.join(cwd, ".claude")
    places = [(base, "settings.json")]
    places += [(project, "settings.json"), (project, "settings.local.json")] if trusted else []
    for folder, name in places:
        yield read_object(files, os.path.join(folder, name), [])


def output_style(files: Files, cwd: str, env: Mapping[str, str], *, trusted: bool) -> str | None:
    """Return the output style that is set for a directory."""
    found = [given.get(OUTPUT_STYLE) for given in settings(files, cwd, env, trusted=trusted)]
    return next((style for style in reversed(found) if isinstance(style, str) and style), None)


# --- What a person has confirmed in a terminal --------------------------------------------------------------


def confirmed_file(cwd: str, env: Mapping[str, str]) -> str | None:
    """Return the path of the file where the CLI records it, or None if the environment names no user."""
    folder = config_directory(cwd, env) if env.get("CLAUDE_CONFIG_DIR") else env.get("HOME")
    return os.path.join(folder, _CONFIRMED) if folder else None


def obstacle(env: Mapping[str, str], content: bytes | None) -> Obstacle | None:
    """Return what the CLI would ask in a terminal before it reads a prompt, with what to do once by hand."""
    confirmed = _confirmed(content)
    if confirmed.get("hasCompletedOnboarding") is not True:
        return Obstacle("the first steps of the Claude CLI are not completed", "run `claude` once in a terminal")
    key = env.get(_KEY)
    if not key or env.get(_TOKEN) or key[-_KEY_END:] in _approved_keys(confirmed):
        return None
    return Obstacle(
        f"the key in {_KEY} was never approved in a terminal",
        f"run `claude` once in a terminal with this key and choose to use it, or unset {_KEY}",
    )


def _confirmed(content: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _approved_keys(confirmed: Mapping[str, Any]) -> list[Any]:
    answers = confirmed.get("customApiKeyResponses")
    approved = answers.get("approved") if isinstance(answers, dict) else None
    return approved if isinstance(approved, list) else []


team_start = TeamStart(
    needs_terminal=lambda version: not version or version > LAST_TEAMS_IN_PRINT,
    home=config_directory,
    confirmed=confirmed_file,
    obstacle=obstacle,
)
