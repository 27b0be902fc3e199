"""From a name or a path to the one agent it means.

Names are looked up for the caller: in the caller's PATH, relative to the caller's directory, in the
configuration of that directory. Nothing here looks at this process's own environment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from hocket.chain import check_agent, is_path
from hocket.config import AgentConfig, Config
from hocket.errors import HocketError, ProgramNotFound, UnsupportedAgent
from hocket.model import Agent

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""For a caller who sends no PATH at all."""
_CLAUDE_AGENTS = "/.claude/agents/"
_MOST_CANDIDATES = 5000
"""Programs looked at for a suggestion: enough for any real PATH, and a bound for a strange one."""


def resolve(name: str, cwd: str, path_env: str | None, config: Config, home_directory: str | None = None) -> Agent:
    """The agent that a step's text means. Raises what tells the user why there is none."""
    alias = config.agents.get(name)
    target = alias.path or name if alias else check_agent(name, "agent")
    if is_path(target):
        program, found_by = _absolute(target, cwd, home_directory), "path"
        _check_program(program, target)
    else:
        program, found_by = _on_path(target, cwd, path_env, config), "PATH"
    return _agent(name, program, alias, found_by)


def is_claude_agent_path(path: str) -> bool:
    """Whether a path names a Claude agent, in whatever way it is spelled."""
    return _CLAUDE_AGENTS in path or _CLAUDE_AGENTS in os.path.normpath(path)


def _agent(name: str, program: str, alias: AgentConfig | None, found_by: str) -> Agent:
    if alias is None:
        return Agent(name, "executable", program, found_by)
    return Agent(
        name,
        "executable",
        program,
        alias.source,
        alias.args,
        alias.default_prompt,
        alias.default_prompt_file,
        alias.prompt_via,
    )


# --- Paths --------------------------------------------------------------------------------------------------


def _absolute(target: str, cwd: str, home_directory: str | None) -> str:
    if not target.startswith("~"):
        path = os.path.join(cwd, target)
        # Behind a link ".." is not the parent that the text suggests, so such a path stays as it was written.
        return path if ".." in path.split("/") else os.path.normpath(path)
    rest = target[1:]
    if not rest.startswith("/") or not home_directory:
        raise ProgramNotFound(f"cannot tell which directory {target!r} begins with", "give the whole path")
    return home_directory.rstrip("/") + rest


def _check_program(program: str, target: str) -> None:
    """Raise unless there is something at this path that can be executed as a program."""
    if is_claude_agent_path(program):
        raise UnsupportedAgent(
            f"{target} is a Claude agent, and this version does not run Claude agents yet",
            "plain programs can be run by name or by path",
        )
    problem = _problem(program)
    if problem:
        shown = target if target == program else f"{target} ({program})"
        raise ProgramNotFound(f"{shown} {problem[0]}", problem[1])


def _problem(program: str) -> tuple[str, str | None] | None:
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


# --- PATH ---------------------------------------------------------------------------------------------------


def _on_path(name: str, cwd: str, path_env: str | None, config: Config) -> str:
    searched = path_env or DEFAULT_PATH
    blocked = None
    for folder in _folders(searched, cwd):
        program = os.path.join(folder, name)
        if _problem(program) is None:
            _check_program(program, name)
            return program
        if blocked is None and os.path.isfile(program):
            blocked = program
    raise _not_found(name, searched, blocked, cwd, config)


def _folders(path_env: str, cwd: str) -> Iterator[str]:
    # An empty entry means the directory one is in, as every shell has it.
    return (os.path.join(cwd, folder) if folder else cwd for folder in path_env.split(os.pathsep))


def _not_found(name: str, searched: str, blocked: str | None, cwd: str, config: Config) -> HocketError:
    if blocked:
        return ProgramNotFound(f"{blocked} is not executable", f"chmod +x {blocked}")
    near = _near(name, [*config.agents, *config.chains, *_programs(searched, cwd)])
    return ProgramNotFound(
        f"there is no program {name!r} on PATH (searched {searched})",
        f"did you mean {' or '.join(near)}?" if near else None,
    )


def _near(name: str, known: Iterable[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.75)


def _programs(path_env: str, cwd: str) -> list[str]:
    names: list[str] = []
    for folder in _folders(path_env, cwd):
        try:
            names.extend(os.listdir(folder))
        except OSError:
            continue
        if len(names) >= _MOST_CANDIDATES:
            break
    return names[:_MOST_CANDIDATES]
