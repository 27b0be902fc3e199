"""Where Claude's files are: agents, settings and transcripts, of the user, a project and the machine."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping

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


# --- Transcripts --------------------------------------------------------------------------------------------
# The CLI names a project's folder after its directory: each UTF-16 unit that is no ASCII letter or digit becomes a
# dash, and a name of more than 200 characters keeps its first 200 and gets a short hash of the whole path.

LONGEST_NAME = 200
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,128}")
_DASHED = re.compile("[^A-Za-z0-9]")
_GLOB = re.compile(r"([*?\[])")


def transcripts(env: Mapping[str, str], cwd: str, session: str) -> tuple[str, ...]:
    """The candidates, most likely first; none for an invalid session id.

    After the two current names come those of older versions: the folder before long names were cut, the one in which
    only slashes were replaced, and both below the general configuration directory.
    """
    return tuple(dict.fromkeys(_candidates(env, cwd, session)))


def transcript_patterns(env: Mapping[str, str], cwd: str, session: str) -> tuple[str, ...]:
    """Where else it may be: in a folder with another hash than ours, or in that of any other directory."""
    if not _SESSION.fullmatch(session):
        return ()
    dashed = _dashed(cwd)
    folders = ((f"{dashed[:LONGEST_NAME]}-*",) if len(dashed) > LONGEST_NAME else ()) + ("*",)
    homes = [_GLOB.sub(r"[\1]", home) for home in _homes(env)]
    return tuple(posixpath.join(home, "projects", folder, f"{session}.jsonl") for folder in folders for home in homes)


def _candidates(env: Mapping[str, str], cwd: str, session: str) -> Iterator[str]:
    # The id comes from the agent's output: it must not lead out of the folder.
    if not _SESSION.fullmatch(session):
        return
    names = (f"session_{session}.jsonl", f"{session}.jsonl")
    folder = folder_name(cwd)
    for home in _homes(env):
        yield from (posixpath.join(home, "projects", folder, name) for name in names)
    for home in _homes(env):
        for older in (_dashed(cwd), cwd.replace("/", "-")):
            # File systems have no longer names, and a lookup would be an error.
            if len(older.encode()) <= 255:
                yield posixpath.join(home, "projects", older, names[1])


def _homes(env: Mapping[str, str]) -> tuple[str, ...]:
    if chosen := env.get("CLAUDE_CONFIG_DIR"):
        return (chosen,)
    if home := env.get("HOME"):
        general = env.get("XDG_CONFIG_HOME") or posixpath.join(home, ".config")
        return posixpath.join(home, ".claude"), posixpath.join(general, "claude")
    return ()


def folder_name(cwd: str) -> str:
    """The folder of a directory, which must have its links resolved."""
    dashed = _dashed(cwd)
    return dashed if len(dashed) <= LONGEST_NAME else f"{dashed[:LONGEST_NAME]}-{_hash(cwd)}"


def _dashed(cwd: str) -> str:
    # A character beyond the first 65,536 is two units.
    return _DASHED.sub(lambda letter: "--" if letter[0] > "\uffff" else "-", cwd)


def _units(text: str) -> memoryview:
    # Python reads undecodable bytes of a path as lone surrogates, which are single units as well.
    return memoryview(text.encode("utf-16", "surrogatepass")[2:]).cast("H")


def _hash(text: str) -> str:
    """A 31-times hash in signed 32 bits, its absolute value in base 36."""
    value = 0
    for unit in _units(text):
        value = (value * 31 + unit) & 0xFFFFFFFF
    value = min(value, 2**32 - value)
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
