"""Paths of the transcripts of sessions.

The CLI names a project's folder after its directory: each UTF-16 unit that is no ASCII letter or digit becomes a dash,
and a name of more than 200 characters keeps its first 200 and gets a short hash of the whole path.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

LONGEST_NAME = 200
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,128}")
_DASHED = re.compile("[^A-Za-z0-9]")


def transcripts(env: Mapping[str, str], cwd: str, session: str) -> tuple[str, ...]:
    """The candidates, most likely first; none for an invalid session id.

    After the two current names come those of older versions: the folder before long names were cut, the one in which
    only slashes were replaced, and both below the general configuration directory.
    """
    return tuple(dict.fromkeys(_candidates(env, cwd, session)))


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
