"""Discovery: ask every source what can run in a directory, and rank agents of the same name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from hocket import config as places_of_config
from hocket.catalog.configs import configs, is_seeded
from hocket.catalog.entries import (
    ALIAS,
    GLOBAL,
    LIBRARY,
    MANAGED,
    PROJECT,
    SOURCES,
    AgentEntry,
    Catalog,
    Found,
    Problem,
    SearchedPlace,
    entry_of,
)
from hocket.catalog.file_probe import FileProbe, changed_recently, real_path
from hocket.catalog.files import find_in
from hocket.catalog.names import address_of, is_address
from hocket.catalog.plugins import plugins
from hocket.catalog.report import fix_steps
from hocket.catalog.sources import library, managed, projects, users
from hocket.chain.parse import is_path
from hocket.config.settings import AgentConfig, Config
from hocket.errors import GlobalAgentsDirectoryMissing, NoAgentsFound, NotTrusted
from hocket.providers.defining import CLI_NAMES, DEFINITIONS
from hocket.providers.definition_files import RENAMED, SKIPPED, Head, shown

Environ = Mapping[str, str]

UNSETTLED = "?"
"""The signature of what changed a moment ago: the next change could get the same times, so it never matches."""
_OF_FILES = (MANAGED, PROJECT, GLOBAL, LIBRARY)


class _Query(NamedTuple):
    """The directory and the user that a discovery is for."""

    cwd: str | None
    env: Environ
    home: str | None
    config: Config
    trust: FolderTrust | None = None

    @property
    def base(self) -> str:
        """The base of relative paths in the environment."""
        return self.cwd or places_of_config.home_directory(self.env)


class FolderTrust(Protocol):
    """Tells which folders are trusted."""

    def trusts(self, folder: str) -> bool: ...

    def watched(self, folder: str) -> Iterable[str]:
        """Return every path that the trust in a folder depends on. Raises NotTrusted if there are too many."""


def discover(
    cwd: str | None,
    env: Environ,
    home: str | None,
    config: Config,
    trust: FolderTrust | None = None,
    *,
    strict: bool = False,
) -> Catalog:
    """Return everything that can run in a directory; without one, the user's own agents.

    A broken file is a problem in the catalog, never an error. ``strict`` raises if the user has no folder of agents.
    """
    look, begun = FileProbe(), time.time_ns()
    query = _Query(None if cwd is None else real_path(cwd), env, home, config, trust)
    found = _search(look, query)
    ranked = _ranked(found, config)
    addresses = _addresses(ranked)
    problems = {problem for one in found for problem in one.problems} | set(_renamed(ranked, addresses))
    by_address: dict[str, tuple[str, ...]] = {}
    for name in ranked:
        if not is_address(name):
            by_address[address_of(name)] = (*by_address.get(address_of(name), ()), name)
    for path in dict.fromkeys([*_config_paths(query), *_trust_paths(query)]):
        if path not in look.seen:
            look.stat(path)
    ended = time.time_ns()
    catalog = Catalog(
        query.cwd,
        MappingProxyType(ranked),
        MappingProxyType(addresses),
        tuple(sorted(problems, key=lambda one: (one.path, one.line or 0, one.kind, one.reason))),
        tuple(one.place for one in found),
        MappingProxyType(
            {path: UNSETTLED if changed_recently(at, begun, ended) else at for path, at in look.seen.items()}
        ),
        MappingProxyType(by_address),
    )
    if strict:
        require_global_folder(catalog)
    return catalog


def _search(look: FileProbe, query: _Query) -> list[Found]:
    """Return what every source has, highest precedence first."""
    cwd, env = query.cwd, query.env
    trusted = cwd is not None and query.trust is not None and query.trust.trusts(cwd)
    found = [
        *managed(look),
        *(projects(look, cwd, env) if cwd is not None else ()),
        *users(look, query.base, env),
        *(configs(look, query.home) if query.home else ()),
        *library(look, query.base, env),
        *plugins(look, query.base, env, trusted=trusted),
    ]
    # Whether an alias is an agent of its own depends on the other sources.
    found += _aliases(look, query, found)
    return sorted(found, key=lambda one: SOURCES.index(one.place.source))


# --- Precedence ---------------------------------------------------------------------------------------------


def _ranked(found: Iterable[Found], config: Config) -> dict[str, tuple[AgentEntry, ...]]:
    """Return all candidates by name as written, the winner first, with the model of an alias of the same name."""
    candidates: dict[str, list[AgentEntry]] = {}
    for one in found:
        for entry in one.entries:
            candidates.setdefault(entry.name, []).append(entry)
    for name, (first, *_) in candidates.items():
        alias = config.agents.get(name)
        if alias is not None and alias.model is not None and first.source != ALIAS:
            candidates[name][0] = replace(first, model=alias.model)
    return {name: tuple(candidates[name]) for name in sorted(candidates)}


def _addresses(ranked: Mapping[str, Sequence[AgentEntry]]) -> dict[str, str]:
    """Return the address of each name.

    A name that can be typed is its own address. Of the others the user's come first, so that a project's agent does
    not get an address of the user's.
    """
    taken: set[str] = set(CLI_NAMES)
    addresses: dict[str, str] = {}
    only_project = {name for name, entries in ranked.items() if all(entry.project is not None for entry in entries)}
    for name in sorted(ranked, key=lambda name: (not is_address(name), name in only_project, name)):
        addresses[name] = address_of(name, taken)
        taken.add(addresses[name])
    return dict(sorted(addresses.items()))


def _renamed(ranked: Mapping[str, Sequence[AgentEntry]], addresses: Mapping[str, str]) -> Iterator[Problem]:
    """Report names that cannot be typed, except those of plugins, which always contain a colon."""
    for name, entries in ranked.items():
        if addresses[name] == name:
            continue
        for entry in entries:
            if entry.source in _OF_FILES:
                reason = f"the name {shown(name)} is not a valid address; use {addresses[name]}"
                line = entry.lines.get("name")
                yield Problem(entry.path, line, reason, cli_loads=entry.source != LIBRARY, kind=RENAMED)


# --- Aliases ------------------------------------------------------------------------------------------------

_NOT_GIVEN = ("source", "project", "member")


def _aliases(look: FileProbe, query: _Query, found: Sequence[Found]) -> list[Found]:
    """Return the aliases that are agents of their own, by their file, highest precedence first."""
    others = _ranked(found, Config())
    by_file: dict[str, list[AgentEntry]] = {file: [] for file in query.config.files}
    for name, alias in sorted(query.config.agents.items()):
        target = alias.path or name
        entries = by_file.setdefault(alias.source, [])
        if target != name or name not in others:
            entries.append(_alias(name, alias, _meant(look, target, query, others)))
    return [
        Found(SearchedPlace(ALIAS, file, True, len(entries)), tuple(entries), tuple(_dead(look, entries, query)))
        for file, entries in by_file.items()
        if entries
    ]


def _dead(look: FileProbe, entries: Iterable[AgentEntry], query: _Query) -> Iterator[Problem]:
    """Report aliases whose path does not exist."""
    for entry in entries:
        path = _absolute(entry.target, query) if entry.target and is_path(entry.target) else None
        if path is None or any(look.exists(one) for one in (path, f"{path}.md")):
            continue
        if not DEFINITIONS.is_definition_path(path) or find_in(os.path.dirname(path), os.path.basename(path)) is None:
            reason = f"agent {shown(entry.name)}: {path} does not exist"
            yield Problem(entry.path, None, reason, cli_loads=False, kind=SKIPPED)


def _alias(name: str, alias: AgentConfig, meant: AgentEntry | None) -> AgentEntry:
    """Make the entry of an alias; the rest comes from the definition that it stands for."""
    given: dict[str, Any] = {
        field: list(value) if isinstance(value, tuple) else value
        for field in AgentConfig._fields
        if field not in _NOT_GIVEN and (value := getattr(alias, field)) != AgentConfig._field_defaults.get(field)
    }
    base = meant or AgentEntry(name, ALIAS, alias.source)
    return replace(
        base,
        name=name,
        source=ALIAS,
        path=alias.source,
        project=alias.project,
        model=alias.model or base.model,
        metadata=MappingProxyType(given),
        lines=MappingProxyType({}),
        target=alias.path or name,
    )


def _meant(
    look: FileProbe, target: str, query: _Query, others: Mapping[str, Sequence[AgentEntry]]
) -> AgentEntry | None:
    """Return the definition that an alias stands for, if it can be read."""
    if not is_path(target):
        return others[target][0] if target in others else None
    path = _absolute(target, query)
    if path is None or not DEFINITIONS.is_definition_path(path):
        return None
    file = path if path.endswith(".md") else f"{path}.md"
    known = (entry for entries in others.values() for entry in entries if entry.path == file)
    if (entry := next(known, None)) is not None:
        return entry
    content = look.head(file)
    head = DEFINITIONS.parse(content) if isinstance(content, bytes) else content
    if not isinstance(head, Head):
        return None
    named = DEFINITIONS.with_defaults(head, os.path.basename(file).removesuffix(".md"))
    return None if DEFINITIONS.complaint(named) else entry_of(named, file, ALIAS)


def _absolute(target: str, query: _Query) -> str | None:
    if not target.startswith("~"):
        return os.path.normpath(os.path.join(query.base, target))
    user = query.env.get("HOME")
    return user.rstrip("/") + target[1:] if user and target.startswith("~/") else None


# --- Dependencies -------------------------------------------------------------------------------------------


def _config_paths(query: _Query) -> Iterator[str]:
    """Yield the paths that decide which configuration applies."""
    cwd, env, home, config, _ = query
    yield from config.looked
    own = places_of_config.config_directory(env)
    if home:
        yield from (os.path.join(home, "config.toml"), os.path.join(home, "trust.json"))
    yield from (os.path.join(own, "config.toml"), os.path.join(own, "chains.json"))
    if cwd is not None:
        yield os.path.join(cwd, "forge", "chains.json")
    while cwd is not None:
        git, parent = os.path.join(cwd, ".git"), os.path.dirname(cwd)
        yield from (git, os.path.join(cwd, "hocket.toml"))
        cwd = None if parent == cwd or os.path.exists(git) else parent


def _trust_paths(query: _Query) -> Iterator[str]:
    """Yield the files that the approvals of the project and of alias targets cover."""
    if query.trust is not None:
        targets = [path for alias in query.config.agents.values() if (path := _absolute(alias.path or "", query))]
        elsewhere = [path.rpartition(DEFINITIONS.marker)[0] for path in targets if DEFINITIONS.marker in path]
        for folder in dict.fromkeys([*([query.cwd] if query.cwd else []), *elsewhere]):
            with suppress(NotTrusted):  # too large to be approved
                for path in query.trust.watched(folder):
                    # A new text shows only in its folder.
                    yield from (path, os.path.dirname(path)) if path.endswith(".md") else (path,)


# --- No agents ----------------------------------------------------------------------------------------------


def require_global_folder(catalog: Catalog) -> None:
    """Raise if the user has no folder of global agents."""
    folders = [place for place in catalog.places if place.source == GLOBAL]
    if any(place.exists for place in folders):
        return
    folder = folders[0].path if folders else DEFINITIONS.default_user_folder
    raise GlobalAgentsDirectoryMissing(
        f"the folder of global agents does not exist: {folder}",
        "; ".join(f"{number}. {step}" for number, step in enumerate(fix_steps(folder), 1)),
    )


def require_agents(catalog: Catalog) -> None:
    """Raise if there is no agent besides Hocket's default ones."""
    if not all(is_seeded(entry) for entries in catalog.ranked.values() for entry in entries):
        return
    checked = ""
    for place in sorted((one for one in catalog.places if one.source in (GLOBAL, PROJECT)), key=lambda one: one.source):
        state = "missing" if not place.exists else "empty" if not place.found else f"{place.found} found"
        checked += f"\n  {place.source}: {place.path} ({state})"
    raise NoAgentsFound(
        f"no agents found. Looked in:{checked}",
        "1. put definitions into one of these folders; 2. begin each file NAME.md with ---, name:, description: and"
        " ---; 3. check the problems that `hocket agents` lists for unusable files. Need help? `hocket demo` shows"
        " agents at work, `hocket doctor` checks the installation",
    )
