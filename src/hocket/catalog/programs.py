"""Programs: whether a path is executable, and which program a name means on a PATH."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hocket.errors import ProgramNotFound

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""For a caller without a PATH."""


class Searched(NamedTuple):
    """The first program found on PATH, and the first file of that name that is not executable."""

    program: str | None
    blocked: str | None


def path_of(env: Mapping[str, str]) -> str:
    return env.get("PATH") or DEFAULT_PATH


def check_program(program: str, target: str) -> None:
    """Raise ProgramNotFound unless a path can be executed."""
    problem = trouble_with(program)
    if problem:
        shown = target if target == program else f"{target} ({program})"
        raise ProgramNotFound(f"{shown} {problem[0]}", problem[1])


def trouble_with(program: str) -> tuple[str, str | None] | None:
    """Return why a path cannot be executed, with a hint; None if it can."""
    try:
        mode = os.stat(program).st_mode
    except (FileNotFoundError, NotADirectoryError):
        colon = ":" in os.path.basename(program)
        return "does not exist", "iterations are written as path:3, with only one :N" if colon else None
    except (OSError, ValueError) as error:
        return f"cannot be used: {getattr(error, 'strerror', None) or error}", None
    if stat.S_ISDIR(mode):
        return "is a directory, not a program", None
    if not stat.S_ISREG(mode):
        return "is not a regular file", None
    if not os.access(program, os.X_OK):
        return "is not executable", f"chmod +x {program}"
    return None


def search(name: str, cwd: str, env: Mapping[str, str]) -> Searched:
    """Search the caller's PATH, relative to the caller's directory."""
    blocked = None
    for folder in _folders(cwd, env):
        program = os.path.join(folder, name)
        if trouble_with(program) is None:
            return Searched(program, blocked)
        if blocked is None and os.path.isfile(program):
            blocked = program
    return Searched(None, blocked)


def _folders(cwd: str, env: Mapping[str, str]) -> Iterator[str]:
    # An empty entry means the current directory, as in every shell.
    return (os.path.join(cwd, folder) for folder in path_of(env).split(os.pathsep))
