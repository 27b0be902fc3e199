"""What of a project's needs the user's approval before it may run, and whether it has it.

A project may bring agents along. One that hides an agent of the user's own, or asks for more than the user gives to
every agent, runs only when the user has approved exactly that file, or vouches for its folder. How an approval is
recorded is known to ``approvals``; what there is to see before one is given is in ``preview``.
"""

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
    CLI_NAMES,
    CONFIG,
    GLOBAL,
    LIBRARY,
    PLUGIN,
    PROJECT,
    REFUSED,
    Catalog,
    Entry,
    Open,
    Problem,
)
from hocket.catalog.fields import allowed_servers, cli_fields, read_definition, with_defaults
from hocket.catalog.files import AGENTS, is_claude_agent_path
from hocket.catalog.frontmatter import Head, decode, parse
from hocket.catalog.resolve import UncheckedAgent
from hocket.catalog.routing_table import Table, routing_table
from hocket.catalog.sources import find_in
from hocket.chain.parse import is_path
from hocket.config import config_files
from hocket.config.loading import load
from hocket.config.settings import AgentConfig, Config, is_wider
from hocket.errors import BadDefinition, ConfigError, HocketError, NotTrusted
from hocket.model import Agent, Definition, Vouched
from hocket.trust.approvals import Approvals, Known, digest, not_trusted
from hocket.trust.privileges import Widening, asks_for, own_permission_mode, unknown_widening, widening

_CLAUDE = "claude"
PROGRAM = "executable"
"""The provider of what is nobody's agent: it has the user's own rights."""
_ASKING = ("hooks", "mcpServers", "permissionMode", "allowedMcpServers")
_OWN_FOLDERS = ("agents", "agents-library")


class Reasons(NamedTuple):
    """Why something needs approval: what it asks for, and what of the user's it takes the place of."""

    wishes: tuple[str, ...] = ()
    replaced: str | None = None
    rival: str | None = None
    """The definition whose place it takes, if it is one."""

    def __bool__(self) -> bool:
        return bool(self.wishes or self.replaced)

    def in_words(self) -> list[str]:
        return [
            *(f"asks for {wish}" for wish in self.wishes),
            *([f"takes the place of {self.replaced}"] if self.replaced else []),
        ]


class Reached(NamedTuple):
    """The words by which something was reached, and all that the user could have meant by them.

    Nothing for a path, which hides nobody.
    """

    words: tuple[str, ...] = ()
    rivals: tuple[Entry, ...] = ()


BY_PATH = Reached()


def reached(words: Sequence[str], catalog: Catalog) -> Reached:
    """A name that cannot be typed is meant by the address that it would have if nobody stood in its way."""
    names = dict.fromkeys(name for word in words for name in (word, *catalog.meant.get(word, ())))
    return Reached(tuple(words), tuple(entry for name in names for entry in catalog.ranked.get(name, ())))


# --- Agents and configurations ------------------------------------------------------------------------------

_BROUGHT = "what its folder brings along (settings, hooks, servers, CLAUDE.md, skills, sub-agents)"


def authorize(found: UncheckedAgent, cwd: str, approvals: Approvals, catalog: Callable[[], Catalog]) -> Agent:
    """The agent with the rights that it has in a directory. Raises unless it may run."""
    agent = found.agent
    if found.reads_folder:
        agent = _with_rights(found, cwd, approvals, catalog)
    if found.alias and found.alias.project:
        vouched = check_alias(found.name, found.alias, approvals, catalog(), agent)
        agent = replace(agent, vouched=(*agent.vouched, *vouched))
    if found.missing is not None:
        raise found.missing
    return agent


def _with_rights(found: UncheckedAgent, cwd: str, approvals: Approvals, catalog: Callable[[], Catalog]) -> Agent:
    agent, alias, definition = found.agent, found.alias, found.agent.definition
    vouched: tuple[Vouched, ...] = ()
    if definition is not None:
        # An alias of the user's that widens what it stands for is meant for what the user had in mind.
        words = (*found.words, found.name) if found.words and gives_leave(alias, approvals) else found.words
        how = reached(words, catalog()) if words else BY_PATH
        own_mode = not (alias and alias.permission_mode)
        vouched = check_definition(definition, found.owner, approvals, how, own_mode=own_mode)
    # Settings are read where it works, which a link may have put far away from the project that wrote it.
    place = agent.cwd or cwd
    folders = dict.fromkeys((place, *([found.owner] if found.owner else [])))
    if not all(map(approvals.trusts, folders)):
        disabled = approvals.disabled(place, definition.path if definition else None)
        return replace(agent, changed=approvals.changed(place), left_off=disabled, vouched=vouched)
    servers = approvals.untrusted_servers(place)
    vouched += tuple(Vouched(found.name, one, (_BROUGHT,), strangers=servers) for one in folders)
    return replace(agent, trusted=True, strangers=servers, vouched=vouched)


def check_configuration(approvals: Approvals) -> None:
    """Raise if an untrusted project's file gives agents a wider permission mode than the user does."""
    for wider in approvals.config.wider_modes:
        if not approvals.trusts(wider.project):
            raise not_trusted(wider.speaker, [f"permission mode {wider.mode}"], wider.project, approvals)


def configuration(cwd: str, home: str, environ: Mapping[str, str]) -> tuple[Approvals, list[Problem]]:
    """The configuration of a directory for a listing: an unusable file is a problem, not an error.

    A project's file that asks for more than it may have is a problem too, but its values are still listed.
    """
    looked = tuple(place.path for place in config_files(cwd, home, environ))
    try:
        approvals = Approvals(load(cwd, home, environ))
    except HocketError as error:
        return Approvals(Config(looked=looked, home=home)), [_config_problem(looked, error)]
    try:
        check_configuration(approvals)
    except NotTrusted as error:
        return approvals, [_config_problem(looked, error)]
    return approvals, []


def _config_problem(looked: Sequence[str], error: HocketError) -> Problem:
    path = next((path for path in looked if path in error.message), looked[0])
    message = error.message.removeprefix(f"{path}: ")
    line = re.search(r"\bline (\d+)", message)
    reason = f"the configuration is ignored: {message}" if isinstance(error, ConfigError) else message
    return Problem(path, int(line[1]) if line else None, reason, False, REFUSED)


def table_of(catalog: Catalog, approvals: Approvals) -> Table:
    """The routing table, with what each agent needs approval for."""
    return routing_table(catalog, lambda entry: needs(entry, catalog, approvals))


# --- Definitions --------------------------------------------------------------------------------------------


def reasons_of(
    definition: Definition, owner: str | None, approvals: Approvals, how: Reached = BY_PATH, own_mode: bool = True
) -> Reasons:
    """Why a definition needs approval, approved or not. None where it is the user's own (no ``owner``).

    Its permission mode does not count where another stands above it (``own_mode`` false).
    """
    if owner is None:
        return Reasons()
    own = [rival for rival in how.rivals if _is_own(rival)]
    wishes = _wishes(definition, approvals, own_mode)
    if wishes and (_is_users(definition.path, approvals) or any(_same(definition.path, rival.path) for rival in own)):
        wishes = []
    first = own[0] if own else None
    if first is not None and _same(definition.path, first.path):
        return Reasons(tuple(wishes))
    if not how.words:
        return Reasons(tuple(wishes))
    replaced = _replaced((*how.words, definition.name), first, approvals)
    return Reasons(tuple(wishes), replaced, first.path if first else None)


def check_definition(
    definition: Definition, owner: str | None, approvals: Approvals, how: Reached = BY_PATH, own_mode: bool = True
) -> tuple[Vouched, ...]:
    """Raise unless a definition may run: it needs no approval, or it has one for exactly what it says."""
    reasons = reasons_of(definition, owner, approvals, how, own_mode)
    if not reasons or owner is None:
        return ()
    path = definition.path
    if not approvals.lists(owner) and not _was_approved(definition, approvals):
        raise not_trusted(path, reasons.wishes, path, approvals, reasons.replaced)
    return (Vouched(path, owner, reasons.wishes, reasons.replaced, path, _digest(path, approvals)),)


def _digest(path: str, approvals: Approvals) -> str | None:
    with suppress(NotTrusted):
        return digest(approvals.cover.file(path))
    return None


def _was_approved(definition: Definition, approvals: Approvals) -> bool:
    """Whether the approved content says what was read: since then somebody may have put it back into its file."""
    try:
        content = approvals.cover.file(definition.path)
    except NotTrusted:
        return False
    return approvals.trusts_file(definition.path, content) and _says(content, definition)


def _says(content: bytes, definition: Definition) -> bool:
    head = parse(content)
    if isinstance(head, Head):
        stem = os.path.basename(definition.path).removesuffix(".md")
        allowed = allowed_servers(head.values)
        same_servers = (None if allowed is None else tuple(allowed)) == definition.allowed_servers
        return same_servers and dict(cli_fields(with_defaults(head, stem))) == dict(definition.fields)
    return decode(content).strip() == definition.fields.get("prompt")


def _wishes(definition: Definition, approvals: Approvals, own_mode: bool) -> list[str]:
    mode = own_permission_mode(definition) if own_mode else None
    return [
        *asks_for(definition),
        *([f"permission mode {mode}"] if mode and is_wider(mode, approvals.config.ceiling) else []),
    ]


def _is_own(entry: Entry) -> bool:
    """Whether an entry is what the user chose: written by the user, or put there on purpose."""
    if entry.project is not None:
        return False
    return entry.source in (GLOBAL, LIBRARY, ALIAS, PLUGIN) or (entry.source == CONFIG and not is_seeded(entry))


def _is_users(path: str, approvals: Approvals) -> bool:
    """Whether a path leads to a file in the user's own folders: whoever links to it brings nothing of his own."""
    if approvals.config.users_claude is None:
        return False
    folders = (os.path.realpath(os.path.join(approvals.config.users_claude, name)) for name in _OWN_FOLDERS)
    real = os.path.realpath(path)
    return any(real.startswith(f"{folder}/") for folder in folders)


def _same(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _replaced(words: Sequence[str], first: Entry | None, approvals: Approvals) -> str | None:
    """What the user would get by these words without the project."""
    if first is not None:
        return f"your own agent {first.path}"
    for word in words:
        if word in approvals.config.own_agents:
            return f"your own name for it in {approvals.config.own_agents[word].source}"
        if word in CLI_NAMES:
            return f"the {word} CLI"
    return None


# --- Aliases and arguments ----------------------------------------------------------------------------------


def reasons_of_alias(alias: AgentConfig, approvals: Approvals, how: Reached) -> Reasons:
    """Why a name in a project's configuration needs the folder's approval, given or not; its arguments aside."""
    if alias.project is None:
        return Reasons()
    mode, tools = alias.permission_mode, alias.allowed_tools
    wishes = [
        *([f"permission mode {mode}"] if mode and is_wider(mode, approvals.config.ceiling) else []),
        *([f"allowed_tools ({tools}), which it may then use without asking"] if tools else []),
    ]
    own = next((rival for rival in how.rivals if _is_own(rival)), None)
    # What it says is laid over whatever has the name, so it need not name another agent to be in the way.
    return Reasons(tuple(wishes), _replaced(how.words, own, approvals))


def gives_leave(alias: AgentConfig | None, approvals: Approvals) -> bool:
    """Whether an alias lets whatever it stands for do more, so that it matters what that turns out to be."""
    if alias is None:
        return False
    mode = alias.permission_mode or approvals.config.ceiling
    return is_wider(mode, approvals.config.ceiling) or bool(alias.allowed_tools or widening(alias.args, mode))


def check_alias(
    name: str, alias: AgentConfig, approvals: Approvals, catalog: Catalog, agent: Agent
) -> tuple[Vouched, ...]:
    """Raise unless a name may mean what a project's configuration says. A plain program has no use for wishes."""
    reasons = reasons_of_alias(alias, approvals, reached((name,), catalog))
    if agent.provider == PROGRAM:
        reasons = reasons._replace(wishes=())
    if not reasons or not alias.project:
        return ()
    return _checked(
        Vouched(f'{alias.source}: agent "{name}"', alias.project, reasons.wishes, reasons.replaced), approvals
    )


class Given(NamedTuple):
    """Arguments that a configuration gives to an agent, and who says so."""

    where: str
    project: str | None
    """The folder whose own file has them; None for what the user wrote or typed."""
    args: Sequence[str]
    before: Sequence[str] = ()
    """What stands before them on the command line, from another place."""


def widening_of(agent: Agent, args: Sequence[str], mode: str, before: Sequence[str] = ()) -> Widening | None:
    """The first of these arguments that lets an agent do more than its permission mode and the ones ``before`` do."""
    return widening(args, mode, before) if agent.provider == _CLAUDE else unknown_widening(args)


def check_arguments(given: Given, agent: Agent, default_mode: str, approvals: Approvals) -> tuple[Vouched, ...]:
    """Raise when an untrusted project gives a CLI an argument by which it could do more."""
    if agent.provider == PROGRAM or given.project is None:
        return ()
    mode = agent.permission_mode or own_permission_mode(agent.definition) or default_mode
    found = widening_of(agent, given.args, mode, given.before)
    if not found:
        return ()
    return _checked(Vouched(given.where, given.project, (f"{found.argument}, which {found.reason}",)), approvals)


# --- What was approved, later -------------------------------------------------------------------------------


def _checked(vouched: Vouched, approvals: Approvals) -> tuple[Vouched]:
    """What needs the approval of a folder, which it has."""
    if not approvals.trusts(vouched.folder):
        target = approvals.changed(vouched.folder) or vouched.folder
        raise not_trusted(vouched.what, vouched.wishes, target, approvals, vouched.replaced)
    return (vouched,)


def check_again(vouched: Vouched, approvals: Approvals) -> None:
    """Raise unless the user still vouches for what was started once."""
    if vouched.file is None:
        _checked(vouched, approvals)
    elif not approvals.lists(vouched.folder):
        _check_file_again(vouched, vouched.file, approvals)
    if vouched.strangers is not None:
        check_strangers(vouched.what, vouched.folder, vouched.strangers, approvals)


def check_strangers(what: str, folder: str, known: Collection[str], approvals: Approvals) -> None:
    """Raise if servers are written above a folder that nobody trusts and that were not kept off at first."""
    if new := set(approvals.untrusted_servers(folder)).difference(known):
        raise NotTrusted(
            f"{what} would get servers that are written above {folder} since: {', '.join(sorted(new))}",
            "look at the .mcp.json there, and approve its folder with hocket trust; a new run starts without them",
        )


def _check_file_again(vouched: Vouched, file: str, approvals: Approvals) -> None:
    if not approvals.trusts_file(file):
        raise not_trusted(vouched.what, vouched.wishes, file, approvals, vouched.replaced)
    if _digest(file, approvals) != vouched.sha256:
        raise NotTrusted(
            f"{file} is another than it was then, and what it was then is not approved any more",
            "a new run starts with what is approved now",
        )


# --- Edges --------------------------------------------------------------------------------------------------


def known_agent(name: str, agent: Agent, approvals: Approvals, catalog: Callable[[], Catalog]) -> Known:
    """By which name and place an edge means an agent that was found by a name, an address or a path."""
    if agent.alias:
        real = name if name in approvals.config.agents else catalog().find(name)[0].name
    elif agent.definition:
        real = agent.definition.name
    else:
        real = os.path.realpath(agent.path) if is_path(name) else name
    if agent.definition:
        return Known(real, os.path.realpath(agent.definition.path))
    return Known(real, os.path.realpath(agent.path) if agent.provider == PROGRAM else None)


# --- Entries of a catalog -----------------------------------------------------------------------------------


class Needed(NamedTuple):
    """Something that needs approval, and why."""

    target: str
    """A definition's path, or a folder."""
    is_folder: bool
    reasons: Reasons
    approved: bool


def needed_approvals(entry: Entry, catalog: Catalog, approvals: Approvals) -> list[Needed]:
    """What has to be approved before an entry can run under its name, whether it is or not."""
    alias = approvals.config.agents.get(entry.name)
    found = []
    if alias and alias.project:
        reasons = reasons_of_alias(alias, approvals, reached(_words(entry, catalog), catalog))
        if not _is_claudes(entry, catalog):
            reasons = reasons._replace(wishes=())
        if reasons:
            found.append(Needed(alias.project, True, reasons, approvals.trusts(alias.project)))
    meant = _meant(entry, catalog, approvals)
    definition = _read(meant.path, meant.entry) if meant else None
    if meant and definition:
        own_mode = not (alias and alias.permission_mode)
        reasons = reasons_of(definition, meant.project, approvals, meant.how, own_mode)
        if reasons:
            found.append(Needed(meant.path, False, reasons, _is_approved(meant, approvals)))
    return found


def _is_approved(meant: _Meant, approvals: Approvals) -> bool:
    return approvals.lists(meant.project) or approvals.trusts_file(meant.path)


def needs(entry: Entry, catalog: Catalog, approvals: Approvals) -> Open:
    """Why an entry cannot run before somebody approves it; empty when it can."""
    left = [one for one in needed_approvals(entry, catalog, approvals) if not one.approved]
    return Open(tuple(words for one in left for words in one.reasons.in_words()), tuple(one.target for one in left))


class _Meant(NamedTuple):
    """The definition of a project's that an entry stands for."""

    path: str
    project: str
    how: Reached
    entry: Entry | None


def _words(entry: Entry, catalog: Catalog) -> tuple[str, ...]:
    return tuple(dict.fromkeys((entry.name, catalog.addresses.get(entry.name, entry.name))))


def _meant(entry: Entry, catalog: Catalog, approvals: Approvals) -> _Meant | None:
    """None for what is the user's own, or no definition at all."""
    if entry.source == PROJECT and entry.project is not None:
        return _Meant(entry.path, entry.project, reached(_words(entry, catalog), catalog), entry)
    if entry.source != ALIAS or not entry.target:
        return None
    path = _claude_path(entry.target, catalog, approvals)
    if path is not None:
        return _Meant(path, path.rpartition(AGENTS)[0] or "/", BY_PATH, None)
    behind = next((one for one in catalog.find(entry.target) if one.source != ALIAS), None)
    meant = _meant(behind, catalog, approvals) if behind else None
    if meant and entry.project is None and gives_leave(approvals.config.agents.get(entry.name), approvals):
        return meant._replace(how=reached((*meant.how.words, entry.name), catalog))
    return meant


def _claude_path(target: str, catalog: Catalog, approvals: Approvals) -> str | None:
    """The file that an alias names, if it names a definition by its path."""
    if target.startswith("~/") and approvals.config.users_home:
        target = approvals.config.users_home.rstrip("/") + target[1:]
    path = os.path.normpath(os.path.join(catalog.cwd or "/", target))
    if "/" not in target or not is_claude_agent_path(path):
        return None
    file = path if path.endswith(".md") else f"{path}.md"
    folder, _, name = file.removesuffix(".md").rpartition("/")
    return file if os.path.exists(file) else find_in(folder, name) or file


def _is_claudes(entry: Entry, catalog: Catalog) -> bool:
    """Whether it is Claude that runs: a plain program has no use for permission modes."""
    target = entry.target or entry.name
    others = (one for one in catalog.find(target) if one.source != ALIAS)
    path = os.path.join(catalog.cwd or "/", target)
    return entry.source != ALIAS or target == _CLAUDE or is_claude_agent_path(path) or any(others)


def _read(path: str, entry: Entry | None) -> Definition | None:
    """The definition behind an entry. Most ask for nothing, and what is known of them already is enough."""
    if entry and not any(key in entry.metadata for key in _ASKING):
        return Definition(entry.name, {}, path)
    with suppress(BadDefinition):
        return read_definition(path, os.path.basename(path).removesuffix(".md"))
    return None
