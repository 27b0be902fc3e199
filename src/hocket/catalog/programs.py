"""Programs: whether a path is one, and which one a name means on somebody's PATH."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hocket.errors import ProgramNotFound

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""For a caller who sends no PATH at all."""
_MOST_CANDIDATES = 5000
"""Programs looked at for a suggestion: enough for any real PATH, and a bound for a strange one."""


class Searched(NamedTuple):
    """What a search along PATH gave: the first program, and the first file of that name that is none."""

    program: str | None
    blocked: str | None


def path_of(env: Mapping[str, str]) -> str:
    return env.get("PATH") or DEFAULT_PATH


def check_program(program: str, target: str) -> None:
    """Raise unless there is something at this path that can be executed as a program."""
    problem = trouble_with(program)
    if problem:
        shown = target if target == program else f"{target} ({program})"
        raise ProgramNotFound(f"{shown} {problem[0]}", problem[1])


def trouble_with(program: str) -> tuple[str, str | None] | None:
    """Why a path cannot be executed, and what to do about it."""
    try:
        mode = os.stat(program).st_mode
    except (FileNotFoundError, NotADirectoryError):
        colon = ":" in os.path.basename(program)
        return "does not exist", "iterations are written as path:3" if colon else None
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
    """Look along the caller's PATH, from the caller's directory."""
    blocked = None
    for folder in _folders(cwd, env):
        program = os.path.join(folder, name)
        if trouble_with(program) is None:
            return Searched(program, blocked)
        if blocked is None and os.path.isfile(program):
            blocked = program
    return Searched(None, blocked)


def known_programs(cwd: str, env: Mapping[str, str]) -> list[str]:
    """What else is there, for a suggestion."""
    found: list[str] = []
    for folder in _folders(cwd, env):
        try:
            found.extend(os.listdir(folder))
        except OSError:
            continue
        if len(found) >= _MOST_CANDIDATES:
            break
    return found[:_MOST_CANDIDATES]


def _folders(cwd: str, env: Mapping[str, str]) -> Iterator[str]:
    # An empty entry means the directory one is in, as every shell has it.
    return (os.path.join(cwd, folder) for folder in path_of(env).split(os.pathsep))


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The question that helps whoever misspelled a name; None when nothing is near."""
    import difflib

    near = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.75)
    return f"did you mean {' or '.join(near)}?" if near else None
