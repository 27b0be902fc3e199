"""From a name or a path to the one agent it means.

Names are looked up for the caller: in the caller's PATH, relative to the caller's directory, in the
configuration of that directory. Nothing here looks at this process's own environment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hocket.catalog.definitions import (
    asks_for,
    check_project,
    find,
    find_in,
    is_claude_agent_path,
    names,
    names_in,
    own_permission_mode,
    parse_claude_path,
    project_folder,
    read_definition,
    skipped,
    users_folder,
    widening,
)
from hocket.chain import check_agent, is_path
from hocket.config import UNASKED_MODES
from hocket.config.settings import AgentConfig, Config, not_trusted
from hocket.errors import ProgramNotFound
from hocket.model import Agent, Definition

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""For a caller who sends no PATH at all."""
CLAUDE = "claude"
EXECUTABLE = "executable"
_CLAUDE_VARIABLE = "HOCKET_CLAUDE"
_MOST_CANDIDATES = 5000
"""Programs looked at for a suggestion: enough for any real PATH, and a bound for a strange one."""
_MOST_LISTED = 30


class _Caller(NamedTuple):
    """For whom something is looked up, and by which name."""

    name: str
    cwd: str
    env: Mapping[str, str]
    config: Config
    alias: AgentConfig | None

    @property
    def path(self) -> str:
        return self.env.get("PATH") or DEFAULT_PATH


def resolve(name: str, cwd: str, env: Mapping[str, str], config: Config) -> Agent:
    """The agent that a step's text means. Raises what tells the user why there is none, or why it may not run.

    A name is an alias of the configuration, else what ``_by_name`` finds; a path forces the file.
    """
    alias = config.agents.get(name)
    target = alias.path or name if alias else check_agent(name, "agent")
    caller = _Caller(name, cwd, env, config, alias)
    found = _by_path(target, caller) if is_path(target) else _by_name(target, caller)
    return _as_asked_for(found, name, alias)


def _as_asked_for(found: Agent, name: str, alias: AgentConfig | None) -> Agent:
    """What was found, under the name it was asked for by and with what its alias adds."""
    if alias is None:
        return replace(found, name=name)
    return replace(
        found,
        name=name,
        source=alias.source,
        args=alias.args,
        default_prompt=alias.default_prompt,
        default_prompt_file=alias.default_prompt_file,
        prompt_via=alias.prompt_via,
        model=alias.model,
        permission_mode=alias.permission_mode,
        allowed_tools=alias.allowed_tools,
    )


def _by_path(target: str, caller: _Caller) -> Agent:
    path = _absolute(target, caller)
    if is_claude_agent_path(path):
        return _claude_at(path, caller)
    _check_program(path, target)
    return Agent(target, EXECUTABLE, path, "path")


def _by_name(name: str, caller: _Caller) -> Agent:
    """The nearest project's definition, the user's own, the CLI of that name, a program on PATH: in this order."""
    found = find(name, caller.cwd, caller.env)
    if found:
        definition = read_definition(found.path)
        if found.project is None:
            return _claude(definition, "global", None, None, caller)
        return _claude(definition, "project", found.project, found.project, caller)
    if name == CLAUDE:
        return _claude(None, "cli", None, None, caller)
    program = _on_path(name, caller)
    return _claude_at(program, caller) if is_claude_agent_path(program) else Agent(name, EXECUTABLE, program, "PATH")


# --- Claude -------------------------------------------------------------------------------------------------


def _claude_at(path: str, caller: _Caller) -> Agent:
    """The agent that a path names: the file of that name, else the file whose head gives it that name."""
    parsed = parse_claude_path(path)
    if parsed is None:
        raise ProgramNotFound(f"{path} does not name a Claude agent")
    project, name = check_project(parsed[0]), parsed[1]
    folder = project_folder(project)
    file = os.path.join(folder, f"{name}.md")
    if os.path.exists(file):
        definition = read_definition(file, stem=name)
    else:
        inside = find_in(folder, name)
        if inside is None:
            raise _no_agent(name, project)
        definition = read_definition(inside)
    owner = None if _is_users(folder, caller) else project
    return _claude(definition, "path", owner, project, caller)


def _claude(
    definition: Definition | None, source: str, owner: str | None, works_in: str | None, caller: _Caller
) -> Agent:
    """An agent of the CLI's. Its ``owner`` is the project that wrote it; the user's own definitions have none."""
    # Settings are read where it works, which a link may have put far away from the project that wrote it.
    folders = [works_in or caller.cwd, *([owner] if owner else [])]
    trusted = all(caller.config.trusts(folder) for folder in folders)
    _check_trust(definition, owner, caller)
    program = _claude_program(caller)
    name = definition.name if definition else CLAUDE
    return Agent(name, CLAUDE, program, source, definition=definition, cwd=works_in, trusted=trusted)


def _is_users(folder: str, caller: _Caller) -> bool:
    users = users_folder(caller.cwd, caller.env)
    return users is not None and os.path.realpath(users) == os.path.realpath(folder)


def _no_agent(name: str, project: str) -> ProgramNotFound:
    # The CLI's own words for it. It would not say them: with the input it gets it runs its default agent instead.
    known = names_in(project_folder(project))
    listed = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
    return ProgramNotFound(
        f"--agent {name!r} not found in {project}. Available agents: {listed or 'none'}", _did_you_mean(name, known)
    )


def _claude_program(caller: _Caller) -> str:
    """The CLI's own program: the one that the caller names, else the one on the caller's PATH."""
    wanted = caller.env.get(_CLAUDE_VARIABLE)
    if wanted and is_path(wanted):
        program = _absolute(wanted, caller)
        problem = _problem(program)
        if problem:
            raise _no_cli(f"{_CLAUDE_VARIABLE} names {wanted}, which {problem[0]}")
        return program
    found, _ = _first_on_path(wanted or CLAUDE, caller)
    if found is None:
        raise _no_cli(f"the Claude CLI is not there: no program {wanted or CLAUDE!r} on PATH (searched {caller.path})")
    return found


def _no_cli(problem: str) -> ProgramNotFound:
    return ProgramNotFound(problem, f"install Claude Code, or let {_CLAUDE_VARIABLE} name its program")


# --- Trust --------------------------------------------------------------------------------------------------


def _check_trust(definition: Definition | None, owner: str | None, caller: _Caller) -> None:
    """Raise when somebody else's file asks for what only a folder may have that the user vouches for."""
    alias, config = caller.alias, caller.config
    wishes = _wishes(alias) if alias else []
    if alias and alias.project and wishes and not config.trusts(alias.project):
        raise not_trusted(f'{alias.source}: agent "{caller.name}"', wishes, alias.project)
    if definition is None or owner is None or config.trusts(owner):
        return
    wishes = asks_for(definition, own_mode=not (alias and alias.permission_mode))
    if wishes:
        raise not_trusted(definition.path, wishes, owner)


def _wishes(alias: AgentConfig) -> list[str]:
    """What an alias wants that only a trusted folder may have, its arguments aside: they may have variables in them."""
    mode, tools = alias.permission_mode, alias.allowed_tools
    return [
        *([f"permission mode {mode}"] if mode in UNASKED_MODES else []),
        *([f"allowed_tools ({tools}), which it may then use without asking"] if tools else []),
    ]


class Given(NamedTuple):
    """Arguments that a configuration gives to an agent, and who says so."""

    where: str
    project: str | None
    """The folder whose own file has them; None for what the user wrote or typed."""
    args: Sequence[str]
    before: Sequence[str] = ()
    """What stands before them on the command line, from another place."""


def check_arguments(given: Given, agent: Agent, default_mode: str, config: Config) -> None:
    """Raise when a project that nobody vouches for gives Claude an argument by which it could do more."""
    if agent.provider != CLAUDE or given.project is None or config.trusts(given.project):
        return
    mode = agent.permission_mode or own_permission_mode(agent.definition) or default_mode
    found = widening(given.args, mode, given.before)
    if found:
        raise not_trusted(given.where, [f"{found.argument}, which {found.reason}"], given.project)


# --- Paths --------------------------------------------------------------------------------------------------


def _absolute(target: str, caller: _Caller) -> str:
    if not target.startswith("~"):
        path = os.path.join(caller.cwd, target)
        # Behind a link ".." is not the parent that the text suggests, so such a path stays as it was written.
        return path if ".." in path.split("/") else os.path.normpath(path)
    rest, home = target[1:], caller.env.get("HOME")
    if not rest.startswith("/") or not home:
        raise ProgramNotFound(f"cannot tell which directory {target!r} begins with", "give the whole path")
    return home.rstrip("/") + rest


def _check_program(program: str, target: str) -> None:
    """Raise unless there is something at this path that can be executed as a program."""
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


def _on_path(name: str, caller: _Caller) -> str:
    program, blocked = _first_on_path(name, caller)
    if program is None:
        raise _not_found(name, blocked, caller)
    return program


def _first_on_path(name: str, caller: _Caller) -> tuple[str | None, str | None]:
    """The first program of that name, and the first file of that name that is none."""
    blocked = None
    for folder in _folders(caller):
        program = os.path.join(folder, name)
        if _problem(program) is None:
            return program, blocked
        if blocked is None and os.path.isfile(program):
            blocked = program
    return None, blocked


def _folders(caller: _Caller) -> Iterator[str]:
    # An empty entry means the directory one is in, as every shell has it.
    return (os.path.join(caller.cwd, folder) for folder in caller.path.split(os.pathsep))


def _not_found(name: str, blocked: str | None, caller: _Caller) -> ProgramNotFound:
    if blocked:
        return ProgramNotFound(f"{blocked} is not executable", f"chmod +x {blocked}")
    config = caller.config
    known = [*config.agents, *config.chains, *names(caller.cwd, caller.env), CLAUDE, *_programs(caller)]
    unusable = skipped(name, caller.cwd, caller.env)
    return ProgramNotFound(
        f"there is no program {name!r} on PATH (searched {caller.path})",
        f"a file of that name is not used: {unusable.message}" if unusable else _did_you_mean(name, known),
    )


def _did_you_mean(name: str, known: Sequence[str]) -> str | None:
    near = _near(name, known)
    return f"did you mean {' or '.join(near)}?" if near else None


def _near(name: str, known: Iterable[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.75)


def _programs(caller: _Caller) -> list[str]:
    found: list[str] = []
    for folder in _folders(caller):
        try:
            found.extend(os.listdir(folder))
        except OSError:
            continue
        if len(found) >= _MOST_CANDIDATES:
            break
    return found[:_MOST_CANDIDATES]
