"""What of a project's needs the user's approval before it may run, and whether it has it.

A project may bring agents along. One that hides an agent of the user's own, or asks for more than the user gives to
every agent, runs only when the user has approved exactly that file, or vouches for its folder. How an approval is
written down is known to ``config.pins``; what there is to see before one is given is in ``explained``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from hocket.catalog.configs import is_seeded
from hocket.catalog.entries import ALIAS, CLI_NAMES, CONFIG, GLOBAL, LIBRARY, PLUGIN, PROJECT, Catalog, Entry, Open
from hocket.catalog.fields import allowed_servers, cli_fields, read_definition, with_defaults
from hocket.catalog.files import AGENTS, is_claude_agent_path
from hocket.catalog.frontmatter import Head, decode, parse
from hocket.catalog.sources import find_in
from hocket.chain.parse import is_path
from hocket.config.settings import AgentConfig, Config, is_wider, not_trusted
from hocket.errors import BadDefinition, NotTrusted
from hocket.model import Agent, Definition, Vouched
from hocket.trust.approvals import Known, digest
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


# --- Definitions --------------------------------------------------------------------------------------------


def reasons_of(
    definition: Definition, owner: str | None, config: Config, how: Reached = BY_PATH, own_mode: bool = True
) -> Reasons:
    """Why a definition needs approval, approved or not. None where it is the user's own (no ``owner``).

    Its permission mode does not count where another stands above it (``own_mode`` false).
    """
    if owner is None:
        return Reasons()
    own = [rival for rival in how.rivals if _is_own(rival)]
    wishes = _wishes(definition, config, own_mode)
    if wishes and (_is_users(definition.path, config) or any(_same(definition.path, rival.path) for rival in own)):
        wishes = []
    first = own[0] if own else None
    if first is not None and _same(definition.path, first.path):
        return Reasons(tuple(wishes))
    if not how.words:
        return Reasons(tuple(wishes))
    replaced = _replaced((*how.words, definition.name), first, config)
    return Reasons(tuple(wishes), replaced, first.path if first else None)


def check_definition(
    definition: Definition, owner: str | None, config: Config, how: Reached = BY_PATH, own_mode: bool = True
) -> tuple[Vouched, ...]:
    """Raise unless a definition may run: it needs no approval, or it has one for exactly what it says."""
    reasons = reasons_of(definition, owner, config, how, own_mode)
    if not reasons or owner is None:
        return ()
    path = definition.path
    if not config.lists(owner) and not _was_approved(definition, config):
        raise not_trusted(path, reasons.wishes, path, config, reasons.replaced)
    return (Vouched(path, owner, reasons.wishes, reasons.replaced, path, _digest(path, config)),)


def _digest(path: str, config: Config) -> str | None:
    with suppress(NotTrusted):
        return digest(config.pins.cover.file(path)) if config.pins else None
    return None


def _was_approved(definition: Definition, config: Config) -> bool:
    """Whether the approved content says what was read: since then somebody may have put it back into its file."""
    try:
        content = config.pins.cover.file(definition.path) if config.pins else None
    except NotTrusted:
        return False
    return content is not None and config.trusts_file(definition.path, content) and _says(content, definition)


def _says(content: bytes, definition: Definition) -> bool:
    head = parse(content)
    if isinstance(head, Head):
        stem = os.path.basename(definition.path).removesuffix(".md")
        allowed = allowed_servers(head.values)
        same_servers = (None if allowed is None else tuple(allowed)) == definition.allowed_servers
        return same_servers and dict(cli_fields(with_defaults(head, stem))) == dict(definition.fields)
    return decode(content).strip() == definition.fields.get("prompt")


def _wishes(definition: Definition, config: Config, own_mode: bool) -> list[str]:
    mode = own_permission_mode(definition) if own_mode else None
    return [
        *asks_for(definition),
        *([f"permission mode {mode}"] if mode and is_wider(mode, config.ceiling) else []),
    ]


def _is_own(entry: Entry) -> bool:
    """Whether an entry is what the user chose: written by the user, or put there on purpose."""
    if entry.project is not None:
        return False
    return entry.source in (GLOBAL, LIBRARY, ALIAS, PLUGIN) or (entry.source == CONFIG and not is_seeded(entry))


def _is_users(path: str, config: Config) -> bool:
    """Whether a path leads to a file in the user's own folders: whoever links to it brings nothing of his own."""
    if config.users_claude is None:
        return False
    folders = (os.path.realpath(os.path.join(config.users_claude, name)) for name in _OWN_FOLDERS)
    real = os.path.realpath(path)
    return any(real.startswith(f"{folder}/") for folder in folders)


def _same(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _replaced(words: Sequence[str], first: Entry | None, config: Config) -> str | None:
    """What the user would get by these words without the project."""
    if first is not None:
        return f"your own agent {first.path}"
    for word in words:
        if word in config.own_agents:
            return f"your own name for it in {config.own_agents[word].source}"
        if word in CLI_NAMES:
            return f"the {word} CLI"
    return None


# --- Aliases and arguments ----------------------------------------------------------------------------------


def reasons_of_alias(alias: AgentConfig, config: Config, how: Reached) -> Reasons:
    """Why a name in a project's configuration needs the folder's approval, given or not; its arguments aside."""
    if alias.project is None:
        return Reasons()
    mode, tools = alias.permission_mode, alias.allowed_tools
    wishes = [
        *([f"permission mode {mode}"] if mode and is_wider(mode, config.ceiling) else []),
        *([f"allowed_tools ({tools}), which it may then use without asking"] if tools else []),
    ]
    own = next((rival for rival in how.rivals if _is_own(rival)), None)
    # What it says is laid over whatever has the name, so it need not name another agent to be in the way.
    return Reasons(tuple(wishes), _replaced(how.words, own, config))


def gives_leave(alias: AgentConfig | None, config: Config) -> bool:
    """Whether an alias lets whatever it stands for do more, so that it matters what that turns out to be."""
    if alias is None:
        return False
    mode = alias.permission_mode or config.ceiling
    return is_wider(mode, config.ceiling) or bool(alias.allowed_tools or widening(alias.args, mode))


def check_alias(name: str, alias: AgentConfig, config: Config, catalog: Catalog, agent: Agent) -> tuple[Vouched, ...]:
    """Raise unless a name may mean what a project's configuration says. A plain program has no use for wishes."""
    reasons = reasons_of_alias(alias, config, reached((name,), catalog))
    if agent.provider == PROGRAM:
        reasons = reasons._replace(wishes=())
    if not reasons or not alias.project:
        return ()
    return _checked(Vouched(f'{alias.source}: agent "{name}"', alias.project, reasons.wishes, reasons.replaced), config)


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


def check_arguments(given: Given, agent: Agent, default_mode: str, config: Config) -> tuple[Vouched, ...]:
    """Raise when an untrusted project gives a CLI an argument by which it could do more."""
    if agent.provider == PROGRAM or given.project is None:
        return ()
    mode = agent.permission_mode or own_permission_mode(agent.definition) or default_mode
    found = widening_of(agent, given.args, mode, given.before)
    if not found:
        return ()
    return _checked(Vouched(given.where, given.project, (f"{found.argument}, which {found.reason}",)), config)


# --- What was approved, later -------------------------------------------------------------------------------


def _checked(vouched: Vouched, config: Config) -> tuple[Vouched]:
    """What needs the approval of a folder, which it has."""
    if not config.trusts(vouched.folder):
        target = config.changed(vouched.folder) or vouched.folder
        raise not_trusted(vouched.what, vouched.wishes, target, config, vouched.replaced)
    return (vouched,)


def check_again(vouched: Vouched, config: Config) -> None:
    """Raise unless the user still vouches for what was started once."""
    if vouched.file is None:
        _checked(vouched, config)
    elif not config.lists(vouched.folder):
        _check_file_again(vouched, vouched.file, config)
    if vouched.strangers is not None:
        check_strangers(vouched.what, vouched.folder, vouched.strangers, config)


def check_strangers(what: str, folder: str, known: Collection[str], config: Config) -> None:
    """Raise if servers are written above a folder that nobody trusts and that were not kept off at first."""
    if new := set(config.strangers(folder)).difference(known):
        raise NotTrusted(
            f"{what} would get servers that are written above {folder} since: {', '.join(sorted(new))}",
            "look at the .mcp.json there, and approve its folder with hocket trust; a new run starts without them",
        )


def _check_file_again(vouched: Vouched, file: str, config: Config) -> None:
    if not config.trusts_file(file):
        raise not_trusted(vouched.what, vouched.wishes, file, config, vouched.replaced)
    if _digest(file, config) != vouched.sha256:
        raise NotTrusted(
            f"{file} is another than it was then, and what it was then is not approved any more",
            "a new run starts with what is approved now",
        )


# --- Edges --------------------------------------------------------------------------------------------------


def known_agent(name: str, agent: Agent, config: Config, catalog: Callable[[], Catalog]) -> Known:
    """By which name and place an edge means an agent that was found by a name, an address or a path."""
    if agent.alias:
        real = name if name in config.agents else catalog().find(name)[0].name
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


def approvals(entry: Entry, catalog: Catalog, config: Config) -> list[Needed]:
    """What has to be approved before an entry can run under its name, whether it is or not."""
    alias = config.agents.get(entry.name)
    found = []
    if alias and alias.project:
        reasons = reasons_of_alias(alias, config, reached(_words(entry, catalog), catalog))
        if not _is_claudes(entry, catalog):
            reasons = reasons._replace(wishes=())
        if reasons:
            found.append(Needed(alias.project, True, reasons, config.trusts(alias.project)))
    meant = _meant(entry, catalog, config)
    definition = _read(meant.path, meant.entry) if meant else None
    if meant and definition:
        own_mode = not (alias and alias.permission_mode)
        reasons = reasons_of(definition, meant.project, config, meant.how, own_mode)
        if reasons:
            found.append(Needed(meant.path, False, reasons, _is_approved(meant, config)))
    return found


def _is_approved(meant: _Meant, config: Config) -> bool:
    return config.lists(meant.project) or config.trusts_file(meant.path)


def needs(entry: Entry, catalog: Catalog, config: Config) -> Open:
    """Why an entry cannot run before somebody approves it; empty when it can."""
    left = [one for one in approvals(entry, catalog, config) if not one.approved]
    return Open(tuple(words for one in left for words in one.reasons.in_words()), tuple(one.target for one in left))


class _Meant(NamedTuple):
    """The definition of a project's that an entry stands for."""

    path: str
    project: str
    how: Reached
    entry: Entry | None


def _words(entry: Entry, catalog: Catalog) -> tuple[str, ...]:
    return tuple(dict.fromkeys((entry.name, catalog.addresses.get(entry.name, entry.name))))


def _meant(entry: Entry, catalog: Catalog, config: Config) -> _Meant | None:
    """None for what is the user's own, or no definition at all."""
    if entry.source == PROJECT and entry.project is not None:
        return _Meant(entry.path, entry.project, reached(_words(entry, catalog), catalog), entry)
    if entry.source != ALIAS or not entry.target:
        return None
    path = _claude_path(entry.target, catalog, config)
    if path is not None:
        return _Meant(path, path.rpartition(AGENTS)[0] or "/", BY_PATH, None)
    behind = next((one for one in catalog.find(entry.target) if one.source != ALIAS), None)
    meant = _meant(behind, catalog, config) if behind else None
    if meant and entry.project is None and gives_leave(config.agents.get(entry.name), config):
        return meant._replace(how=reached((*meant.how.words, entry.name), catalog))
    return meant


def _claude_path(target: str, catalog: Catalog, config: Config) -> str | None:
    """The file that an alias names, if it names a definition by its path."""
    if target.startswith("~/") and config.users_home:
        target = config.users_home.rstrip("/") + target[1:]
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
