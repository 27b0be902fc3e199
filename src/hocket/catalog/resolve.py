"""From a name or a path to the one agent it means, for a caller's directory, PATH and configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from hocket.catalog.configs import is_seeded, privileges_of, spec_of
from hocket.catalog.discovery import discover
from hocket.catalog.entries import ALIAS, CONFIG, LIBRARY, LOCATIONS, PLUGIN, AgentEntry, Catalog
from hocket.catalog.files import check_project, find_in, names_in, read_definition
from hocket.catalog.names import is_address, similar_names
from hocket.catalog.plugins import definition as plugin_definition
from hocket.catalog.programs import check_program, path_of, search, trouble_with
from hocket.catalog.report import suggest_agents
from hocket.catalog.runtime import DEFAULT_RUNTIME, Runtime, runtime_of
from hocket.chain.parse import check_agent, is_path
from hocket.config.settings import AgentConfig, Config
from hocket.errors import (
    BadDefinition,
    ConfigError,
    HocketError,
    ProgramNotFound,
    SecurityError,
    UnknownAgent,
    UsageError,
)
from hocket.model import Agent, Definition
from hocket.providers import PROVIDERS
from hocket.providers.base import Program
from hocket.providers.defining import DEFINING_PROVIDER, DEFINITIONS

EXECUTABLE = "executable"
CLI, ON_PATH, BY_PATH = "cli", "PATH", "path"
"""Where an agent comes from that is in no catalog."""
_CLIS = {one.program.name: provider for provider, one in PROVIDERS.items() if one.program is not None}
"""The providers of CLIs that a bare name runs, by the name of their program."""
_MOST_LISTED = 30


@dataclass(frozen=True, slots=True)
class UncheckedAgent:
    """What a name means, before ``trust.check`` decides whether it may run and with which privileges."""

    name: str
    """As given by the caller."""
    agent: Agent
    owner: str | None = None
    """The project that wrote its definition; None for the user's own."""
    names: tuple[str, ...] = ()
    """The names by which it was found; none for a path."""
    alias: AgentConfig | None = None
    reads_folder: bool = False
    """Whether its CLI reads settings of its working directory."""
    missing: HocketError | None = None
    """Why its CLI cannot be run; raised after the check of trust."""
    runtime: Runtime = DEFAULT_RUNTIME
    """The CLI of a definition, and what chose it."""


class Meaning(NamedTuple):
    """What a name or path stands for, before anything of it is read."""

    target: str
    """The name itself, or what its alias stands for."""
    source: str | None
    """The location of the entry, or one of ``CLI``, ``ON_PATH`` and ``BY_PATH``; None if nothing has that name."""
    alias: AgentConfig | None = None
    entry: AgentEntry | None = None
    provider: str | None = None
    """The provider of the CLI with that name, also if it is not what is used."""
    program: str | None = None
    """The program of that name on PATH, also if it is not what is used."""
    blocked: str | None = None
    """A file of that name on PATH that is not executable."""


class _Caller(NamedTuple):
    """Where something is looked up, and by which name."""

    name: str
    cwd: str
    env: Mapping[str, str]
    config: Config
    alias: AgentConfig | None
    catalog: Callable[[], Catalog]


def resolve(
    name: str, cwd: str, env: Mapping[str, str], config: Config, catalog: Callable[[], Catalog] | None = None
) -> UncheckedAgent:
    """Return the agent that a step's text means. Raises if there is none.

    ``catalog`` is called only for names.
    """
    catalog = catalog or (lambda: discover(cwd, env, config.home, config))
    meant = meaning(name, cwd, env, config, catalog)
    caller = _Caller(name, cwd, env, config, meant.alias, catalog)
    found = _by_path(meant.target, caller) if meant.source == BY_PATH else _by_name(meant, caller)
    if meant.alias and meant.alias.runtime and found.agent.definition is None:
        raise ConfigError(
            f'{meant.alias.source}: agent "{name}": has a runtime, but {meant.target!r} is no definition', "remove it"
        )
    return replace(found, name=name, agent=_with_alias(found.agent, name, meant.alias), alias=meant.alias)


def meaning(name: str, cwd: str, env: Mapping[str, str], config: Config, catalog: Callable[[], Catalog]) -> Meaning:
    """Decide what a step's text stands for.

    A name is an alias of the configuration; it, or what its alias stands for, is in the catalog, the name of a CLI, or
    a program on PATH, in this order. A path forces the file.
    """
    alias = None if is_path(name) else _alias(name, config, catalog)
    target = alias.path or name if alias else check_agent(name, "agent")
    if is_path(target):
        return Meaning(target, BY_PATH, alias)
    # An alias stands for a definition or a program, never for another alias.
    entries = [one for one in catalog().find(target) if one.source != ALIAS]
    on_path = search(target, cwd, env)
    if on_path.program:
        # Hocket's unchanged default agents hide no program.
        entries = [one for one in entries if not is_seeded(one)]
    entry, provider = next(iter(entries), None), _CLIS.get(target)
    source = LOCATIONS[entry.source] if entry else CLI if provider else ON_PATH if on_path.program else None
    return Meaning(target, source, alias, entry, provider, on_path.program, on_path.blocked)


def usable_clis(
    cwd: str, env: Mapping[str, str], config: Config, catalog: Callable[[], Catalog] | None = None
) -> list[str]:
    """Return the names of the CLIs that can be run by their bare name."""
    found = []
    for name in _CLIS:
        with suppress(HocketError):
            if resolve(name, cwd, env, config, catalog).missing is None:
                found.append(name)
    return found


def _alias(name: str, config: Config, catalog: Callable[[], Catalog]) -> AgentConfig | None:
    """Return the alias with a name, or with the name that an address stands for."""
    if name in config.agents:
        return config.agents[name]
    if all(is_address(known) for known in config.agents):
        return None
    meant = next(iter(catalog().find(name)), None)
    return config.agents.get(meant.name) if meant and meant.source == ALIAS else None


def _with_alias(found: Agent, name: str, alias: AgentConfig | None) -> Agent:
    """Return the agent under the given name, with the settings of its alias."""
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
        delegate=alias.delegate is not None,
        team=bool(alias.team),
    )


def _by_path(target: str, caller: _Caller) -> UncheckedAgent:
    path = _absolute(target, caller)
    if DEFINITIONS.is_definition_path(path):
        return _defined_at(path, caller)
    check_program(path, target)
    return UncheckedAgent(target, Agent(target, EXECUTABLE, path, BY_PATH))


def _by_name(meant: Meaning, caller: _Caller) -> UncheckedAgent:
    name = meant.target
    if meant.entry:
        return _of_entry(meant.entry, caller, name)
    if meant.provider == DEFINING_PROVIDER:
        return _defined(None, CLI, None, None, caller)
    if meant.provider:
        return UncheckedAgent(name, Agent(name, meant.provider, _cli_program(Runtime(meant.provider), caller), CLI))
    if meant.program is None:
        raise _not_found(name, meant.blocked, caller)
    if DEFINITIONS.is_definition_path(meant.program):
        return _defined_at(meant.program, caller)
    return UncheckedAgent(name, Agent(name, EXECUTABLE, meant.program, ON_PATH))


def _absolute(target: str, caller: _Caller) -> str:
    if not target.startswith("~"):
        path = os.path.join(caller.cwd, target)
        # Behind a link ".." is not the textual parent, so such a path stays as written.
        return path if ".." in path.split("/") else os.path.normpath(path)
    rest, home = target[1:], caller.env.get("HOME")
    if not rest.startswith("/") or not home:
        raise ProgramNotFound(f"cannot expand the home directory in {target!r}", "give an absolute path")
    return home.rstrip("/") + rest


# --- Definitions --------------------------------------------------------------------------------------------


def _of_entry(entry: AgentEntry, caller: _Caller, name: str) -> UncheckedAgent:
    """Return the agent of a catalog entry that was found by a name."""
    source = LOCATIONS[entry.source]
    if entry.source == CONFIG:
        return _configured(entry, caller)
    if entry.source == PLUGIN:
        return _defined(plugin_definition(entry), source, None, None, caller)
    # In the library a file need not have a name of its own.
    definition = read_definition(entry.path, entry.name if entry.source == LIBRARY else None)
    return _defined(definition, source, entry.project, entry.project, caller, (name,))


def _configured(entry: AgentEntry, caller: _Caller) -> UncheckedAgent:
    """Return one of Hocket's own agents: privileges by its config, instructions by the project or by Hocket."""
    definition, project = spec_of(entry, caller.cwd, caller.env)
    found = _defined(definition, LOCATIONS[CONFIG], None, project, caller)
    mode, tools = privileges_of(entry)
    return replace(found, agent=replace(found.agent, permission_mode=mode, allowed_tools=tools))


def _defined_at(path: str, caller: _Caller) -> UncheckedAgent:
    """Return the agent that a path names: the file of that name, else the file with that name in its frontmatter."""
    parsed = DEFINITIONS.parse_definition_path(path)
    if parsed is None:
        raise ProgramNotFound(f"{path} does not name an agent")
    project, name = check_project(parsed[0]), parsed[1]
    folder = DEFINITIONS.project_folder(project)
    file = os.path.join(folder, f"{name}.md")
    if os.path.exists(file):
        definition = _named_by_path(file, name, folder)
    else:
        inside = find_in(folder, name)
        if inside is None:
            # The CLI's own message. With streamed input the CLI would run its default agent instead.
            known = names_in(folder)
            near = similar_names(name, known)
            listed = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
            raise UnknownAgent(
                f"--agent {name!r} not found in {project}. Available agents: {listed or 'none'}",
                f"did you mean {' or '.join(near)}?" if near else None,
            )
        definition = read_definition(inside)
    own = DEFINITIONS.user_folder(caller.cwd, caller.env)
    owner = None if own and os.path.realpath(own) == os.path.realpath(folder) else project
    return _defined(definition, BY_PATH, owner, project, caller)


def _named_by_path(file: str, name: str, folder: str) -> Definition:
    """Read a file that need not have frontmatter, unless it is a link to the outside.

    Otherwise a link to a private key would make the key an agent's instructions.
    """
    real, base = os.path.realpath(file), os.path.realpath(folder)
    if real.startswith(f"{base}/"):
        return read_definition(file, name)
    try:
        return read_definition(file)
    except BadDefinition as error:
        raise SecurityError(
            f"{file} leads to {real}, which is outside of {folder} and not an agent", error.message
        ) from error


def _defined(
    definition: Definition | None,
    source: str,
    owner: str | None,
    works_in: str | None,
    caller: _Caller,
    names: tuple[str, ...] = (),
) -> UncheckedAgent:
    """Return an agent of a CLI. Its ``owner`` is the project that it belongs to; None for the user's own."""
    runtime, program = DEFAULT_RUNTIME, ""
    missing: HocketError | None = None
    try:
        runtime = runtime_of(definition, caller.alias, caller.config, caller.env)
        program = _cli_program(runtime, caller)
    except (ProgramNotFound, UsageError) as error:
        missing = error
    name = definition.name if definition else DEFINING_PROVIDER
    agent = Agent(name, runtime.provider, program, source, definition=definition, cwd=works_in)
    reads_folder = runtime.provider == DEFINING_PROVIDER
    return UncheckedAgent(caller.name, agent, owner, names, reads_folder=reads_folder, missing=missing, runtime=runtime)


def _cli_program(runtime: Runtime, caller: _Caller) -> str:
    """Return the path of a CLI: the one in its environment variable, else the one on the caller's PATH."""
    program = PROVIDERS[runtime.provider].program
    if program is None:
        raise ProgramNotFound(f"{runtime.provider} has no program")
    wanted = caller.env.get(program.variable)
    if wanted and is_path(wanted):
        path = _absolute(wanted, caller)
        problem = trouble_with(path)
        if problem:
            raise _no_cli(program, caller, runtime, f"{program.variable} names {wanted}, which {problem[0]}")
        return path
    found = search(wanted or program.name, caller.cwd, caller.env).program
    if found is None:
        searched = path_of(caller.env)
        raise _no_cli(program, caller, runtime, f"no program {wanted or program.name!r} on PATH (searched {searched})")
    return found


def _no_cli(program: Program, caller: _Caller, runtime: Runtime, problem: str) -> ProgramNotFound:
    reason = f" ({runtime.reason})" if runtime.reason else ""
    return ProgramNotFound(
        f"{caller.name!r} needs {program.label}{reason}, which was not found: {problem}",
        f"{program.install}, or set {program.variable} to its program; "
        "`hocket doctor` compares the server's PATH with yours",
    )


# --- Programs -----------------------------------------------------------------------------------------------


def _not_found(name: str, blocked: str | None, caller: _Caller) -> ProgramNotFound:
    if blocked:
        return ProgramNotFound(f"{blocked} is not executable", f"chmod +x {blocked}")
    if name in caller.config.chains:
        hint = f"{name} is a chain, not an agent; to run it: hocket run --chain {name}"
    else:
        hint = suggest_agents(name, caller.catalog(), [*caller.config.chains, *_CLIS])
    where = ""
    if caller.alias:
        where = f", which the agent {caller.name!r} of {caller.alias.source} runs"
        hint = f"install {name}, or correct the path of {caller.name!r}; {hint}"
    return UnknownAgent(f"no agent {name!r} in this project or globally, and no program of that name{where}", hint)
