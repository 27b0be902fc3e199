"""The two players of a rehearsal as environments: scripted agents, or the real CLI with a scripted model behind it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hocket.cli.private import Place

KEY = "rehearsal"
FOREIGN = ("ANTHROPIC_", "CLAUDE_")
"""What could lead the CLI to an account, a network or the user's own files."""
QUIET = {
    "ANTHROPIC_API_KEY": KEY,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "1",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",
}
LOOPBACK = "127.0.0.1,localhost"


def scripted(place: Place, script: Path, state: Path, found: Mapping[str, str]) -> dict[str, str]:
    """What makes scripted agents of all Claude agents. Raises when the script is none.

    ``found`` are those in files that may be their sub-agents.
    """
    from hocket.rehearsal import install

    return {"HOCKET_CLAUDE": str(install(place.folder("player"), script, state, found))}


def sub_agents(cwds: Iterable[str], env: Mapping[str, str], home: str) -> dict[str, str]:
    """Whom the Claude CLI would find in the files of these directories and of the user, and with which of the two."""
    from hocket.catalog.discovery import discover
    from hocket.catalog.entries import PROJECT
    from hocket.cli.verify import SHARED
    from hocket.config.loading import load

    entries = [
        entry
        for cwd in cwds
        for ranked in discover(cwd, env, home, load(cwd, home)).ranked.values()
        for entry in ranked
        if entry.source in SHARED
    ]
    # One that is with both is the user's as well: it is there also where the project's settings do not count.
    return {
        **{entry.name: "project" for entry in entries if entry.source == PROJECT},
        **{entry.name: "user" for entry in entries if entry.source != PROJECT},
    }


def real(place: Place, url: str, before: Mapping[str, str]) -> dict[str, str]:
    """What sends the real CLI to a model on this machine, with settings and transcripts of its own."""
    around = {name: _with_loopback(before.get(name, "")) for name in ("NO_PROXY", "no_proxy")}
    own = {"CLAUDE_CONFIG_DIR": str(place.folder("claude")), "TMPDIR": str(place.folder("tmp"))}
    own["XDG_CACHE_HOME"] = str(place.folder("cache"))  # where it keeps a log of what its servers say
    return {**QUIET, **around, **own, "ANTHROPIC_BASE_URL": url}


def without_account(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(FOREIGN)}


def _with_loopback(exceptions: str) -> str:
    return f"{exceptions},{LOOPBACK}" if exceptions else LOOPBACK


def share_agents(place: Place, cwd: str, before: Mapping[str, str]) -> None:
    """The user's own agents are found here, too."""
    from hocket.catalog.files import users_folder

    users = users_folder(cwd, before)
    if users is not None and os.path.isdir(users):
        os.symlink(os.path.abspath(users), place.folder("claude") / "agents")
