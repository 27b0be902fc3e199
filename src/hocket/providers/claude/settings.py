"""What Claude's own settings files say about a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from hocket.providers.claude.paths import config_directory
from hocket.providers.definition_files import Files, read_object

OUTPUT_STYLE = "outputStyle"


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
