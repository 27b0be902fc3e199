"""What of a project needs the user's approval before it may run, and whether it has it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from hocket.catalog.configs import is_seeded
from hocket.catalog.entries import (
    ALIAS,
    CONFIG,
    GLOBAL,
    LIBRARY,
    PLUGIN,
    PROJECT,
    AgentEntry,
    Catalog,
    Problem,
)
from hocket.catalog.files import read_definition
from hocket.catalog.report import stem
from hocket.catalog.resolve import UncheckedAgent, resolve
from hocket.catalog.routing_table import Table, routing_table
from hocket.chain.parse import is_path
from hocket.config import config_files
from hocket.config.loading import load
from hocket.config.settings import AgentConfig, Config, is_wider
from hocket.errors import BadDefinition, ConfigError, HocketError, NotTrusted
from hocket.model import Agent, Approval, Definition
from hocket.providers.defining import CLI_NAMES, DEFINING_PROVIDER, DEFINITIONS, PRIVILEGES
from hocket.providers.definition_files import REFUSED, Widening
from hocket.trust.approvals import AgentIdentity, Approvals, not_trusted
from hocket.trust.folder_contents import digest

PROGRAM = "executable"
"""The provider of plain programs, which have the user's own privileges."""
_OWN_FOLDERS = ("agents", "agents-library")


class Reasons(NamedTuple):
    """Why something needs approval: the privileges it asks for, and what of the user's own it replaces."""

    privileges: tuple[str, ...] = ()
    replaced: str | None = None
    replaced_path: str | None = None
    """The path of the definition that it replaces."""

    def __bool__(self) -> bool:
        return bool(self.privileges or self.replaced)

    def as_texts(self) -> list[str]:
        return [
            *(f"asks for {privilege}" for privilege in self.privileges),
            *([f"replaces {self.replaced}"] if self.replaced else []),
        ]


class NameMatches(NamedTuple):
    """The names by which something was found, and all entries with those names; none for a path."""

    names: tuple[str, ...] = ()
    matches: tuple[AgentEntry, ...] = ()


BY_PATH = NameMatches()


def same_name_entries(names: Sequence[str], catalog: Catalog) -> NameMatches:
    """Return the entries that have one of these names; an address stands for all names that would have it."""
    meant = dict.fromkeys(one for name in names for one in (name, *catalog.meant.get(name, ())))
    return NameMatches(tuple(names), tuple(entry for name in meant for entry in catalog.ranked.get(name, ())))


# --- Agents and configurations ------------------------------------------------------------------------------

_FOLDER_INSTRUCTIONS = "instructions of its folder, which count as trusted"
_FOLDER_PRIVILEGES = "the files of its folder (settings, hooks, servers, instructions, skills, sub-agents)"


def authorize(found: UncheckedAgent, cwd: str, approvals: Approvals, catalog: Callable[[], Catalog]) -> Agent:
    """Return the agent with its privileges in a directory. Raises NotTrusted unless it may run."""
    agent = found.agent
    if found.reads_folder or agent.definition is not None:
        agent = _with_privileges(found, cwd, approvals, catalog)
    if found.alias and found.alias.project:
        approved = check_alias(found.name, found.alias, approvals, catalog(), agent)
        agent = replace(agent, approvals=(*agent.approvals, *approved))
    rule = found.runtime.rule
    if rule and rule.project:
        privilege = f"{rule.runtime} for the model {rule.pattern}"
        approved = _checked(Approval(f"{rule.source}: [models]", rule.project, (privilege,)), approvals)
        agent = replace(agent, approvals=(*agent.approvals, *approved))
    if found.missing is not None:
        raise found.missing
    return agent


def _with_privileges(found: UncheckedAgent, cwd: str, approvals: Approvals, catalog: Callable[[], Catalog]) -> Agent:
    agent, definition = found.agent, found.agent.definition
    approved: tuple[Approval, ...] = ()
    if definition is not None:
        how, own_mode = _name_matches(found, approvals, catalog)
        approved = check_definition(definition, found.owner, approvals, how, own_mode=own_mode)
    # Settings are read where it works, which a link may put outside of the project.
    place = agent.cwd or cwd
    folders = dict.fromkeys((place, *([found.owner] if found.owner else [])))
    is_trusted = all(map(approvals.trusts, folders))
    if not found.reads_folder:
        # What another CLI reads of a folder is its own matter; that its instructions are trusted is not.
        approved += tuple(Approval(found.name, one, (_FOLDER_INSTRUCTIONS,)) for one in folders if is_trusted)
        return replace(agent, trusted=is_trusted, approvals=approved)
    if not is_trusted:
        disabled = approvals.disabled(place, definition.path if definition else None)
        return replace(agent, changed=approvals.changed(place), disabled=disabled, approvals=approved)
    servers = approvals.untrusted_servers(place)
    approved += tuple(Approval(found.name, one, (_FOLDER_PRIVILEGES,), untrusted_servers=servers) for one in folders)
    return replace(agent, trusted=True, untrusted_servers=servers, approvals=approved)


def _name_matches(
    found: UncheckedAgent, approvals: Approvals, catalog: Callable[[], Catalog]
) -> tuple[NameMatches, bool]:
    """Return how a definition was found, and whether its own permission mode applies."""
    # An alias of the user's that widens privileges is meant for the user's own agent.
    names = (*found.names, found.name) if found.names and widens(found.alias, approvals) else found.names
    own_mode = not (found.alias and found.alias.permission_mode)
    return (same_name_entries(names, catalog()) if names else BY_PATH), own_mode


def check_configuration(approvals: Approvals) -> None:
    """Raise NotTrusted if an untrusted project's file gives agents a wider permission mode than the user does."""
    for wider in approvals.config.wider_modes:
        if not approvals.trusts(wider.project):
            raise not_trusted(wider.origin, [f"permission mode {wider.mode}"], wider.project, approvals)


def configuration(cwd: str, home: str, environ: Mapping[str, str]) -> tuple[Approvals, list[Problem]]:
    """Load the configuration of a directory for a listing: an unusable file is a problem, not an error.

    A project's file that asks for too much is a problem too, but its values are listed.
    """
    looked = tuple(place.path for place in config_files(cwd, home, environ))
    approvals = Approvals(Config(looked=looked, home=home))
    try:
        approvals = Approvals(load(cwd, home, environ))
        check_configuration(approvals)
    except HocketError as error:
        path = next((path for path in looked if path in error.message), looked[0])
        message = error.message.removeprefix(f"{path}: ")
        line = re.search(r"\bline (\d+)", message)
        reason = f"the configuration is ignored: {message}" if isinstance(error, ConfigError) else message
        return approvals, [Problem(path, int(line[1]) if line else None, reason, False, REFUSED)]
    ignored = (setting.partition(": ") for setting in approvals.config.ignored)
    return approvals, [Problem(path, None, reason, False) for path, _, reason in ignored]


def table_of(catalog: Catalog, approvals: Approvals, env: Mapping[str, str]) -> Table:
    """Return the routing table, with what each agent needs approval for."""
    return routing_table(catalog, lambda entry: needs(entry, catalog, approvals, env))


# --- Definitions --------------------------------------------------------------------------------------------


def reasons_of(
    definition: Definition, owner: str | None, approvals: Approvals, how: NameMatches = BY_PATH, own_mode: bool = True
) -> Reasons:
    """Return why a definition needs approval, approved or not; nothing for the user's own (no ``owner``).

    ``own_mode`` is false if an alias replaces its permission mode.
    """
    if owner is None:
        return Reasons()
    own = [entry for entry in how.matches if _is_own(entry)]
    privileges = PRIVILEGES.requested(definition)
    mode = PRIVILEGES.permission_mode(definition) if own_mode else None
    if mode and is_wider(mode, approvals.config.ceiling):
        privileges = [*privileges, f"permission mode {mode}"]
    if privileges and (_is_users(definition.path, approvals) or any(_same(definition.path, one.path) for one in own)):
        privileges = []
    first = own[0] if own else None
    if not how.names or (first is not None and _same(definition.path, first.path)):
        return Reasons(tuple(privileges))
    replaced = _replaced((*how.names, definition.name), first, approvals)
    return Reasons(tuple(privileges), replaced, first.path if first else None)


def check_definition(
    definition: Definition, owner: str | None, approvals: Approvals, how: NameMatches = BY_PATH, own_mode: bool = True
) -> tuple[Approval, ...]:
    """Raise NotTrusted unless a definition needs no approval, or has one for its exact content."""
    reasons = reasons_of(definition, owner, approvals, how, own_mode)
    if not reasons or owner is None:
        return ()
    path = definition.path
    if not approvals.config.lists(owner) and not _was_approved(definition, approvals):
        raise not_trusted(path, reasons.privileges, path, approvals, reasons.replaced)
    return (Approval(path, owner, reasons.privileges, reasons.replaced, path, _digest(path, approvals)),)


def _digest(path: str, approvals: Approvals) -> str | None:
    with suppress(NotTrusted):
        return digest(approvals.cover.file(path))
    return None


def _was_approved(definition: Definition, approvals: Approvals) -> bool:
    """True if the approved content is what was read: the file may have been changed and restored in between."""
    with suppress(NotTrusted, BadDefinition):
        content = approvals.cover.file(definition.path)
        if approvals.trusts_file(definition.path, content):
            approved = DEFINITIONS.parse_definition(content, definition.path, stem(definition.path))
            return replace(approved, allowed_agents=definition.allowed_agents, name=definition.name) == definition
    return False


def _is_own(entry: AgentEntry) -> bool:
    """True for an entry that the user wrote or installed."""
    if entry.project is not None:
        return False
    return entry.source in (GLOBAL, LIBRARY, ALIAS, PLUGIN) or (entry.source == CONFIG and not is_seeded(entry))


def _is_users(path: str, approvals: Approvals) -> bool:
    """True if a path leads to a file in the user's own folders: a link to it adds nothing."""
    if approvals.config.user_config_dir is None:
        return False
    folders = (os.path.realpath(os.path.join(approvals.config.user_config_dir, name)) for name in _OWN_FOLDERS)
    real = os.path.realpath(path)
    return any(real.startswith(f"{folder}/") for folder in folders)


def _same(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _replaced(names: Sequence[str], first: AgentEntry | None, approvals: Approvals) -> str | None:
    """Return what the user would get by these names without the project."""
    if first is not None:
        return f"your own agent {first.path}"
    for name in names:
        if name in approvals.config.own_agents:
            return f"your own alias in {approvals.config.own_agents[name].source}"
        if name in CLI_NAMES:
            return f"the {name} CLI"
    return None


# --- Aliases and arguments ----------------------------------------------------------------------------------


def alias_reasons(
    names: Sequence[str], alias: AgentConfig, approvals: Approvals, catalog: Catalog, agent: Agent | None
) -> Reasons:
    """Return why an alias of a project needs the folder's approval, given or not; its arguments aside.

    ``agent`` is what it stands for. Privileges mean nothing to a plain program.
    """
    if alias.project is None:
        return Reasons()
    how = same_name_entries(names, catalog)
    mode, tools = alias.permission_mode, alias.allowed_tools
    privileges = [
        *([f"permission mode {mode}"] if mode and is_wider(mode, approvals.config.ceiling) else []),
        *([f"allowed_tools ({tools}), which it may then use without asking"] if tools else []),
        *([f"another CLI (runtime = {alias.runtime})"] if PRIVILEGES.asks_for_other_cli(alias.runtime) else []),
    ]
    own = next((entry for entry in how.matches if _is_own(entry)), None)
    if agent is not None and agent.provider == PROGRAM:
        privileges = []
    # It also changes an agent of the same name, so it replaces one even without naming another.
    return Reasons(tuple(privileges), _replaced(how.names, own, approvals))


def widens(alias: AgentConfig | None, approvals: Approvals) -> bool:
    """True if an alias widens the privileges of what it stands for."""
    if alias is None:
        return False
    mode = alias.permission_mode or approvals.config.ceiling
    return is_wider(mode, approvals.config.ceiling) or bool(
        alias.allowed_tools or PRIVILEGES.widening(alias.args, mode)
    )


def check_alias(
    name: str, alias: AgentConfig, approvals: Approvals, catalog: Catalog, agent: Agent
) -> tuple[Approval, ...]:
    """Raise NotTrusted unless a project's alias may be used."""
    reasons = alias_reasons((name,), alias, approvals, catalog, agent)
    if not reasons or not alias.project:
        return ()
    return _checked(
        Approval(f'{alias.source}: agent "{name}"', alias.project, reasons.privileges, reasons.replaced), approvals
    )


class ConfiguredArguments(NamedTuple):
    """Arguments that a configuration gives to an agent, and where."""

    where: str
    project: str | None
    """The folder whose file has them; None for the user's own."""
    args: Sequence[str]
    before: Sequence[str] = ()
    """The arguments before them on the command line, from elsewhere."""


def widening_of(agent: Agent, args: Sequence[str], mode: str, before: Sequence[str] = ()) -> Widening | None:
    """Return the first argument that allows more than the permission mode and the arguments ``before`` do.

    Of a CLI whose flags are not known, only the choice of a model is known to widen nothing.
    """
    if agent.provider == DEFINING_PROVIDER:
        return PRIVILEGES.widening(args, mode, before)
    words = iter(args)
    for word in words:
        if word in ("-m", "--model"):
            next(words, None)
        elif not word.startswith("--model="):
            return Widening(word, "may let it do more than its permission mode")
    return None


def check_arguments(
    given: ConfiguredArguments, agent: Agent, default_mode: str, approvals: Approvals
) -> tuple[Approval, ...]:
    """Raise NotTrusted if an untrusted project gives a CLI an argument by which it could do more."""
    if agent.provider == PROGRAM or given.project is None:
        return ()
    mode = PRIVILEGES.mode_of(agent, default_mode)
    found = widening_of(agent, given.args, mode, given.before)
    if not found:
        return ()
    return _checked(Approval(given.where, given.project, (f"{found.argument}, which {found.reason}",)), approvals)


# --- Later checks -------------------------------------------------------------------------------------------


def _checked(approval: Approval, approvals: Approvals) -> tuple[Approval]:
    """Raise NotTrusted unless the folder is trusted."""
    if not approvals.trusts(approval.folder):
        target = approvals.changed(approval.folder) or approval.folder
        raise not_trusted(approval.what, approval.privileges, target, approvals, approval.replaced)
    return (approval,)


def check_again(approval: Approval, approvals: Approvals) -> None:
    """Raise NotTrusted unless an approval that a run relied on still holds."""
    file = approval.file
    if file is None:
        _checked(approval, approvals)
    elif not approvals.config.lists(approval.folder):
        if not approvals.trusts_file(file):
            raise not_trusted(approval.what, approval.privileges, file, approvals, approval.replaced)
        if _digest(file, approvals) != approval.sha256:
            raise NotTrusted(
                f"{file} has changed, and its earlier content is no longer approved",
                "start a new run, which uses the approved content",
            )
    if approval.untrusted_servers is not None:
        check_untrusted_servers(approval.what, approval.folder, approval.untrusted_servers, approvals)


def check_untrusted_servers(what: str, folder: str, known: Collection[str], approvals: Approvals) -> None:
    """Raise NotTrusted if there are untrusted servers above a folder besides the known ones."""
    if new := set(approvals.untrusted_servers(folder)).difference(known):
        raise NotTrusted(
            f"{what} would get new MCP servers from above {folder}: {', '.join(sorted(new))}",
            "review the .mcp.json there and approve its folder with hocket trust; a new run starts without them",
        )


# --- Edges --------------------------------------------------------------------------------------------------


def known_agent(name: str, agent: Agent, approvals: Approvals, catalog: Callable[[], Catalog]) -> AgentIdentity:
    """Return how an edge names an agent that was found by a name, an address or a path."""
    if agent.alias:
        real = name if name in approvals.config.agents else catalog().find(name)[0].name
    elif agent.definition:
        real = agent.definition.name
    else:
        real = os.path.realpath(agent.path) if is_path(name) else name
    if agent.definition:
        return AgentIdentity(real, os.path.realpath(agent.definition.path))
    return AgentIdentity(real, os.path.realpath(agent.path) if agent.provider == PROGRAM else None)


# --- Entries of a catalog -----------------------------------------------------------------------------------


class Needed(NamedTuple):
    """Something that needs approval, and why."""

    target: str
    """A definition's path, or a folder."""
    is_folder: bool
    reasons: Reasons
    approved: bool


def needed_approvals(entry: AgentEntry, catalog: Catalog, approvals: Approvals, env: Mapping[str, str]) -> list[Needed]:
    """Return what has to be approved before an entry can run under its name, approved or not."""
    alias = approvals.config.agents.get(entry.name)
    if alias is None and entry.source != PROJECT:
        return []
    names = tuple(dict.fromkeys((entry.name, catalog.addresses.get(entry.name, entry.name))))
    found = _unchecked(names, entry, catalog, approvals, env)
    needed = []
    if alias and alias.project:
        reasons = alias_reasons(names, alias, approvals, catalog, found.agent if found else None)
        if reasons:
            needed.append(Needed(alias.project, True, reasons, approvals.trusts(alias.project)))
    if found and found.agent.definition and found.owner:
        path, (how, own_mode) = found.agent.definition.path, _name_matches(found, approvals, lambda: catalog)
        reasons = reasons_of(found.agent.definition, found.owner, approvals, how, own_mode)
        if reasons:
            approved = approvals.config.lists(found.owner) or approvals.trusts_file(path)
            needed.append(Needed(path, False, reasons, approved))
    return needed


def _unchecked(
    names: tuple[str, ...], entry: AgentEntry, catalog: Catalog, approvals: Approvals, env: Mapping[str, str]
) -> UncheckedAgent | None:
    """Return what an entry stands for under its names; None if it cannot be started."""
    with suppress(HocketError):
        if entry.name not in approvals.config.agents:
            # One that asks for nothing, as its metadata shows, need not be read again.
            asks = any(key in entry.metadata for key in PRIVILEGES.requesting_fields)
            definition = (
                read_definition(entry.path, stem(entry.path)) if asks else Definition(entry.name, {}, entry.path)
            )
            agent = Agent(entry.name, DEFINING_PROVIDER, "", entry.source, definition=definition)
            return UncheckedAgent(entry.name, agent, entry.project, names)
        return resolve(entry.name, catalog.cwd or "/", env, approvals.config, lambda: catalog)
    return None


def needs(
    entry: AgentEntry, catalog: Catalog, approvals: Approvals, env: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return why an entry still needs approval before it can run, and the paths to approve."""
    left = [one for one in needed_approvals(entry, catalog, approvals, env) if not one.approved]
    return [text for one in left for text in one.reasons.as_texts()], [one.target for one in left]
