"""From a name or a path to the one agent it means.

Names are looked up for the caller: in the caller's PATH, relative to the caller's directory, in the configuration and
the catalog of that directory. Nothing here looks at this process's own environment. Whether what was found may run is
decided by ``trust.check``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from hocket.catalog.configs import get_config, is_seeded, spec_of
from hocket.catalog.discovery import discover
from hocket.catalog.entries import ALIAS, CONFIG, LIBRARY, LOCATIONS, PLUGIN, REFUSED, SKIPPED, Catalog, Entry
from hocket.catalog.fields import read_definition
from hocket.catalog.files import check_project, is_claude_agent_path, parse_claude_path, project_folder, users_folder
from hocket.catalog.names import is_address
from hocket.catalog.plugins import definition as plugin_definition
from hocket.catalog.programs import check_program, did_you_mean, known_programs, path_of, search, trouble_with
from hocket.catalog.sources import find_in, names_in
from hocket.chain.parse import check_agent, is_path
from hocket.config.settings import AgentConfig, Config
from hocket.errors import BadDefinition, ProgramNotFound, SecurityError, UnknownAgent
from hocket.model import Agent, Definition
from hocket.providers import PROVIDERS
from hocket.providers.base import Program

CLAUDE = "claude"
EXECUTABLE = "executable"
_CLIS = {one.program.name: provider for provider, one in PROVIDERS.items() if one.program is not None}
"""The providers of CLIs that a bare name runs, by the name of their program."""
_MOST_LISTED = 30


def nothing_trusted(folder: str) -> bool:
    """Trust no folder."""
    del folder
    return False


class Sight(NamedTuple):
    """How to see what there is: for whoever remembers what was seen before."""

    catalog: Callable[[], Catalog]
    """What can run where the caller is. Asked only for a name, never for a path."""
    read: Callable[[str, str | None], Definition] = read_definition
    trusts: Callable[[str], bool] = nothing_trusted
    """Whether a folder's own settings count: they may switch plugins on."""


@dataclass(frozen=True, slots=True)
class UncheckedAgent:
    """What a name means, before ``trust.check`` has decided whether it may run and with which rights."""

    name: str
    """As it was asked for."""
    agent: Agent
    owner: str | None = None
    """The project that wrote its definition; None for the user's own."""
    words: tuple[str, ...] = ()
    """The names by which it was looked up; none for a path."""
    alias: AgentConfig | None = None
    reads_folder: bool = False
    """Whether its CLI reads settings of the folder that it works in."""
    missing: ProgramNotFound | None = None
    """Why its CLI cannot be run. Raised after the check of trust: what is not approved is refused for that first."""


class _Caller(NamedTuple):
    """For whom something is looked up, and by which name."""

    name: str
    cwd: str
    env: Mapping[str, str]
    config: Config
    alias: AgentConfig | None
    sight: Sight

    def catalog(self) -> Catalog:
        return self.sight.catalog()


def resolve(name: str, cwd: str, env: Mapping[str, str], config: Config, sight: Sight | None = None) -> UncheckedAgent:
    """The agent that a step's text means. Raises what tells the user why there is none.

    A name is an alias of the configuration, else what ``_by_name`` finds; a path forces the file.
    """
    sight = sight or Sight(lambda: discover(cwd, env, config.home, config))
    alias = None if is_path(name) else _alias(name, config, sight)
    target = alias.path or name if alias else check_agent(name, "agent")
    caller = _Caller(name, cwd, env, config, alias, sight)
    found = _by_path(target, caller) if is_path(target) else _by_name(target, caller)
    return replace(found, name=name, agent=_as_asked_for(found.agent, name, alias), alias=alias)


def _alias(name: str, config: Config, sight: Sight) -> AgentConfig | None:
    """What the configuration says about a name, or about the name that an address stands for."""
    if name in config.agents:
        return config.agents[name]
    if all(is_address(known) for known in config.agents):
        return None
    meant = next(iter(sight.catalog().find(name)), None)
    return config.agents.get(meant.name) if meant and meant.source == ALIAS else None


def _as_asked_for(found: Agent, name: str, alias: AgentConfig | None) -> Agent:
    """What was found, under the name it was asked for by and with what its alias adds."""
    if alias is None:
        return replace(found, name=name)
    return replace(
        found,
        name=name,
        alias=alias.source,
        args=alias.args,
        default_prompt=alias.default_prompt,
        default_prompt_file=alias.default_prompt_file,
        alias_project=alias.project,
        prompt_via=alias.prompt_via,
        model=alias.model,
        permission_mode=alias.permission_mode or found.permission_mode,
        allowed_tools=alias.allowed_tools or found.allowed_tools,
    )


def _by_path(target: str, caller: _Caller) -> UncheckedAgent:
    path = _absolute(target, caller)
    if is_claude_agent_path(path):
        return _claude_at(path, caller)
    check_program(path, target)
    return UncheckedAgent(target, Agent(target, EXECUTABLE, path, "path"))


def _by_name(name: str, caller: _Caller) -> UncheckedAgent:
    """What the catalog has under this name, the CLI of that name, a program on PATH: in this order."""
    candidates = caller.catalog().find(name)
    # An alias leads here by the name of what it stands for, never to another alias.
    entry = next((one for one in candidates if one.source != ALIAS), None)
    if entry is not None and not _yields(entry, caller):
        return _of_entry(entry, caller, name)
    if name == CLAUDE:
        return _claude(None, "cli", None, None, caller)
    if name in _CLIS:
        return UncheckedAgent(name, Agent(name, _CLIS[name], _cli_program(_CLIS[name], caller), "cli"))
    program = _on_path(name, caller)
    if is_claude_agent_path(program):
        return _claude_at(program, caller)
    return UncheckedAgent(name, Agent(name, EXECUTABLE, program, "PATH"))


def _yields(entry: Entry, caller: _Caller) -> bool:
    """Whether a program on PATH goes first: what Hocket brought along and nobody wrote hides nothing of the user's."""
    return is_seeded(entry) and search(entry.name, caller.cwd, caller.env).program is not None


def _absolute(target: str, caller: _Caller) -> str:
    if not target.startswith("~"):
        path = os.path.join(caller.cwd, target)
        # Behind a link ".." is not the parent that the text suggests, so such a path stays as it was written.
        return path if ".." in path.split("/") else os.path.normpath(path)
    rest, home = target[1:], caller.env.get("HOME")
    if not rest.startswith("/") or not home:
        raise ProgramNotFound(f"cannot tell which directory {target!r} begins with", "give the whole path")
    return home.rstrip("/") + rest


# --- Claude -------------------------------------------------------------------------------------------------


def _of_entry(entry: Entry, caller: _Caller, name: str) -> UncheckedAgent:
    """The agent of an entry of the catalog that was found by a name."""
    source = LOCATIONS[entry.source]
    if entry.source == CONFIG:
        return _configured(entry, caller)
    if entry.source == PLUGIN:
        trusts = caller.sight.trusts(caller.cwd)
        return _claude(plugin_definition(entry, caller.cwd, caller.env, trusts=trusts), source, None, None, caller)
    # In the library a file's name is enough.
    definition = caller.sight.read(entry.path, entry.name if entry.source == LIBRARY else None)
    return _claude(definition, source, entry.project, entry.project, caller, (name,))


def _configured(entry: Entry, caller: _Caller) -> UncheckedAgent:
    """One of Hocket's own agents: the config says what it may do, the project or Hocket itself what it is told."""
    told = spec_of(entry, caller.cwd, caller.env)
    config = get_config(caller.config.home or "", entry.name)
    found = _claude(told.definition, LOCATIONS[CONFIG], None, told.project, caller)
    if config is None:
        return found  # gone since it was listed
    agent = replace(found.agent, permission_mode=config.permission_mode, allowed_tools=config.allowed_tools)
    return replace(found, agent=agent)


def _claude_at(path: str, caller: _Caller) -> UncheckedAgent:
    """The agent that a path names: the file of that name, else the file whose head gives it that name."""
    parsed = parse_claude_path(path)
    if parsed is None:
        raise ProgramNotFound(f"{path} does not name a Claude agent")
    project, name = check_project(parsed[0]), parsed[1]
    folder = project_folder(project)
    file = os.path.join(folder, f"{name}.md")
    if os.path.exists(file):
        definition = _named_by_path(file, name, folder, caller)
    else:
        inside = find_in(folder, name)
        if inside is None:
            raise _no_agent(name, project)
        definition = caller.sight.read(inside, None)
    owner = None if _is_users(folder, caller) else project
    return _claude(definition, "path", owner, project, caller)


def _named_by_path(file: str, name: str, folder: str, caller: _Caller) -> Definition:
    """A file that lies where its path says may do without a head; one that a link puts there must describe an agent.

    Else whatever the link leads to, a key for instance, would become somebody's instructions.
    """
    real, base = os.path.realpath(file), os.path.realpath(folder)
    if real.startswith(f"{base}/"):
        return caller.sight.read(file, name)
    try:
        return caller.sight.read(file, None)
    except BadDefinition as error:
        raise SecurityError(
            f"{file} leads to {real}, which is outside of {folder} and describes no agent", error.message
        ) from error


def _claude(
    definition: Definition | None,
    source: str,
    owner: str | None,
    works_in: str | None,
    caller: _Caller,
    words: tuple[str, ...] = (),
) -> UncheckedAgent:
    """An agent of the CLI's. Its ``owner`` is the project that wrote it; the user's own definitions have none."""
    missing: ProgramNotFound | None = None
    try:
        program = _cli_program(CLAUDE, caller)
    except ProgramNotFound as error:
        program, missing = "", error
    name = definition.name if definition else CLAUDE
    agent = Agent(name, CLAUDE, program, source, definition=definition, cwd=works_in)
    return UncheckedAgent(caller.name, agent, owner, words, reads_folder=True, missing=missing)


def _is_users(folder: str, caller: _Caller) -> bool:
    users = users_folder(caller.cwd, caller.env)
    return users is not None and os.path.realpath(users) == os.path.realpath(folder)


def _no_agent(name: str, project: str) -> UnknownAgent:
    # The CLI's own words for it. It would not say them: with the input it gets it runs its default agent instead.
    known = names_in(project_folder(project))
    listed = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
    return UnknownAgent(
        f"--agent {name!r} not found in {project}. Available agents: {listed or 'none'}", did_you_mean(name, known)
    )


def _cli_program(provider: str, caller: _Caller) -> str:
    """The path of a CLI's program: the one that its variable names, else the one on the caller's PATH."""
    program = PROVIDERS[provider].program
    if program is None:
        raise ProgramNotFound(f"{provider} has no program")
    wanted = caller.env.get(program.variable)
    if wanted and is_path(wanted):
        path = _absolute(wanted, caller)
        problem = trouble_with(path)
        if problem:
            raise _no_cli(program, caller, f"{program.variable} names {wanted}, which {problem[0]}")
        return path
    found = search(wanted or program.name, caller.cwd, caller.env).program
    if found is None:
        searched = path_of(caller.env)
        raise _no_cli(program, caller, f"no program {wanted or program.name!r} on PATH (searched {searched})")
    return found


def _no_cli(program: Program, caller: _Caller, problem: str) -> ProgramNotFound:
    return ProgramNotFound(
        f"{caller.name!r} needs {program.label}, which was not found: {problem}",
        f"{program.install}, or set {program.variable} to its program; "
        "`hocket doctor` compares the server's PATH with yours",
    )


# --- Programs -----------------------------------------------------------------------------------------------


def _on_path(name: str, caller: _Caller) -> str:
    found = search(name, caller.cwd, caller.env)
    if found.program is None:
        raise _not_found(name, found.blocked, caller)
    return found.program


def _not_found(name: str, blocked: str | None, caller: _Caller) -> ProgramNotFound:
    if blocked:
        return ProgramNotFound(f"{blocked} is not executable", f"chmod +x {blocked}")
    catalog, config = caller.catalog(), caller.config
    # Only where definitions are told of: nobody is helped by a list of every plugin's folders.
    places = [place.path for place in catalog.places if place.source not in (ALIAS, PLUGIN)]
    typable = (name for name in catalog.ranked if is_address(name))
    known = [*config.agents, *config.chains, *typable, *catalog.addresses.values(), *_CLIS]
    unusable = next((one for one in catalog.problems if _is_about(one.path, name) and one.kind in _UNUSABLE), None)
    if name in config.chains:
        hint = f"{name} is a chain, and an agent or a program is needed here; to run it: hocket run --chain {name}"
    elif unusable:
        hint = f"a file of that name is not used: {unusable.path}, line {unusable.line or 1}: {unusable.reason}"
    else:
        hint = did_you_mean(name, [*known, *known_programs(caller.cwd, caller.env)]) or LIST
    return UnknownAgent(
        f"there is no agent {name!r} (looked in {', '.join(places)})"
        f" and no program {name!r} on PATH (searched {path_of(caller.env)})",
        hint,
    )


_UNUSABLE = (SKIPPED, REFUSED)
LIST = "`hocket agents` lists those that can run here"


def _is_about(path: str, name: str) -> bool:
    return os.path.basename(path) == f"{name}.md"
