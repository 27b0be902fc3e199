"""All that can run in one directory: every source is asked, and of several agents with one name the first one counts.

Where files lie and what they mean is known to the sources, how a catalog is shown to ``table`` and ``report``. Each
call looks anew; ``cache`` is for whoever asks often.
"""

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
    CLI_NAMES,
    GLOBAL,
    LIBRARY,
    MANAGED,
    PROJECT,
    RENAMED,
    SKIPPED,
    SOURCES,
    Catalog,
    Entry,
    Found,
    Place,
    Problem,
    Scan,
)
from hocket.catalog.fields import complaint, entry_of, shown, with_defaults
from hocket.catalog.file_probe import Look, normal
from hocket.catalog.files import AGENTS, is_claude_agent_path
from hocket.catalog.frontmatter import Head, parse
from hocket.catalog.names import address_of, is_address
from hocket.catalog.plugins import plugins
from hocket.catalog.report import fix_steps
from hocket.catalog.sources import find_in, library, managed, projects, users
from hocket.chain.parse import is_path
from hocket.config.settings import AgentConfig, Config
from hocket.errors import GlobalAgentsDirectoryMissing, NoAgentsFound, NotTrusted

Environ = Mapping[str, str]

UNSETTLED = "?"
"""The signature of what was changed a moment ago: another change could still get the same times, so it never holds."""
_OF_FILES = (MANAGED, PROJECT, GLOBAL, LIBRARY)
_TICK_NS = 50_000_000
"""Longer than any clock that gives files their times stands still."""


class _Asked(NamedTuple):
    """For whom agents are looked for."""

    cwd: str | None
    env: Environ
    home: str | None
    config: Config
    trust: FolderTrust | None = None

    @property
    def base(self) -> str:
        """What a relative path in the environment is relative to."""
        return self.cwd or places_of_config.home_directory(self.env)


class FolderTrust(Protocol):
    """Which folders' own settings count."""

    def trusts(self, folder: str) -> bool: ...

    def watched(self, folder: str) -> Iterable[str]:
        """Every path by which the trust in a folder may change. Raises NotTrusted if there are too many."""


def discover(
    cwd: str | None,
    env: Environ,
    home: str | None,
    config: Config,
    trust: FolderTrust | None = None,
    *,
    strict: bool = False,
) -> Catalog:
    """Everything that can run in a directory; without one, everything that is the user's.

    A file that is broken is a problem in the catalog and never an error. ``strict`` is for whoever cannot do without
    a folder of global agents.
    """
    look, begun = Look(), time.time_ns()
    asked = _Asked(None if cwd is None else normal(cwd), env, home, config, trust)
    found = _ask_all_sources(look, asked)
    ranked = _ranked(found, config)
    addresses = _addresses(ranked)
    _watch(look, asked)
    catalog = Catalog(
        asked.cwd,
        MappingProxyType(ranked),
        MappingProxyType(addresses),
        _problems(found, ranked, addresses),
        tuple(one.place for one in found),
        MappingProxyType(_settled(look.seen, begun, time.time_ns())),
        MappingProxyType(_meant_by(ranked)),
    )
    if strict:
        require_global_folder(catalog)
    return catalog


def _ask_all_sources(look: Look, asked: _Asked) -> list[Found]:
    cwd, env = asked.cwd, asked.env
    found = [
        *managed(look),
        *(projects(look, cwd, env) if cwd is not None else ()),
        *users(look, asked.base, env),
        *(configs(look, asked.home) if asked.home else ()),
        *library(look, asked.base, env),
        *plugins(look, asked.base, env, trusts=_trusts(asked)),
    ]
    # Which aliases are agents of their own depends on what else there is.
    found += _aliases(look, asked, found)
    return sorted(found, key=lambda one: SOURCES.index(one.place.source))


def _trusts(asked: _Asked) -> bool:
    return asked.cwd is not None and asked.trust is not None and asked.trust.trusts(asked.cwd)


# --- Putting in order ---------------------------------------------------------------------------------------


def _ranked(found: Iterable[Found], config: Config) -> dict[str, tuple[Entry, ...]]:
    """By name, exactly as it is written: every candidate, the one that is used first."""
    candidates: dict[str, list[Entry]] = {}
    for one in found:
        for entry in one.scan.entries:
            candidates.setdefault(entry.name, []).append(entry)
    return {name: _with_alias(candidates[name], config.agents.get(name)) for name in sorted(candidates)}


def _with_alias(entries: Sequence[Entry], alias: AgentConfig | None) -> tuple[Entry, ...]:
    """An alias that names no other agent is none of its own: it gives more to the one that there is."""
    first, *rest = entries
    overlaid = alias is not None and alias.model is not None and first.source != ALIAS
    return (replace(first, model=alias.model) if alias and overlaid else first, *rest)


def _problems(
    found: Iterable[Found], ranked: Mapping[str, Sequence[Entry]], addresses: Mapping[str, str]
) -> tuple[Problem, ...]:
    """All of them once, by path and line."""
    told = {problem for one in found for problem in one.scan.problems if problem.kind != RENAMED}
    told |= set(_renamed(ranked, addresses))
    return tuple(sorted(told, key=lambda problem: (problem.path, problem.line or 0, problem.kind, problem.reason)))


def _addresses(ranked: Mapping[str, Sequence[Entry]]) -> dict[str, str]:
    """What one types for each name.

    Whoever has a name that can be typed keeps it, so these come first; then what the user has, because what a project
    brings along must not be reached by an address of the user's.
    """
    taken: set[str] = set(CLI_NAMES)
    addresses: dict[str, str] = {}
    theirs = {name for name, entries in ranked.items() if all(entry.project is not None for entry in entries)}
    for name in sorted(ranked, key=lambda name: (not is_address(name), name in theirs, name)):
        addresses[name] = address_of(name, taken)
        taken.add(addresses[name])
    return dict(sorted(addresses.items()))


def _meant_by(ranked: Iterable[str]) -> dict[str, tuple[str, ...]]:
    meant: dict[str, tuple[str, ...]] = {}
    for name in ranked:
        if not is_address(name):
            address = address_of(name)
            meant[address] = (*meant.get(address, ()), name)
    return meant


def _renamed(ranked: Mapping[str, Sequence[Entry]], addresses: Mapping[str, str]) -> Iterator[Problem]:
    """Only here is it known who else wants an address. A plugin's agents have names that nobody chose to type."""
    for name, entries in ranked.items():
        if addresses[name] == name:
            continue
        for entry in entries:
            if entry.source in _OF_FILES:
                reason = f"its name {shown(name)} cannot be typed as it is; its address is {addresses[name]}"
                line = entry.lines.get("name")
                yield Problem(entry.path, line, reason, claude_loads=entry.source != LIBRARY, kind=RENAMED)


# --- Aliases ------------------------------------------------------------------------------------------------

_NOT_GIVEN = ("source", "project", "member")


def _aliases(look: Look, asked: _Asked, found: Sequence[Found]) -> list[Found]:
    """The aliases that are agents of their own, by the file that says so, in the order in which files win."""
    others = _ranked(found, Config())
    by_file: dict[str, list[Entry]] = {file: [] for file in asked.config.files}
    for name, alias in sorted(asked.config.agents.items()):
        target = alias.path or name
        entries = by_file.setdefault(alias.source, [])
        if target != name or name not in others:
            entries.append(_alias(name, alias, _meant(look, target, asked, others)))
    return [
        Found(Place(ALIAS, file, True, len(entries)), Scan(tuple(entries), tuple(_dead(look, entries, asked))))
        for file, entries in by_file.items()
        if entries
    ]


def _dead(look: Look, entries: Iterable[Entry], asked: _Asked) -> Iterator[Problem]:
    """Aliases for a path where nothing is."""
    for entry in entries:
        path = _absolute(entry.target, asked) if entry.target and is_path(entry.target) else None
        if path is None or any(look.exists(one) for one in (path, f"{path}.md")):
            continue
        if not is_claude_agent_path(path) or find_in(os.path.dirname(path), os.path.basename(path)) is None:
            reason = f"agent {shown(entry.name)}: {path} does not exist"
            yield Problem(entry.path, None, reason, claude_loads=False, kind=SKIPPED)


def _alias(name: str, alias: AgentConfig, meant: Entry | None) -> Entry:
    """What an alias says, and what it does not say from the definition that it stands for."""
    given: dict[str, Any] = {
        field: list(value) if isinstance(value, tuple) else value
        for field in AgentConfig._fields
        if field not in _NOT_GIVEN and (value := getattr(alias, field)) != AgentConfig._field_defaults.get(field)
    }
    base = meant or Entry(name, ALIAS, alias.source)
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


def _meant(look: Look, target: str, asked: _Asked, others: Mapping[str, Sequence[Entry]]) -> Entry | None:
    """The definition that an alias stands for, as far as one can be read."""
    if not is_path(target):
        return others[target][0] if target in others else None
    path = _absolute(target, asked)
    if path is None or not is_claude_agent_path(path):
        return None
    file = path if path.endswith(".md") else f"{path}.md"
    known = (entry for entries in others.values() for entry in entries if entry.path == file)
    return next(known, None) or _read(look, file)


def _read(look: Look, file: str) -> Entry | None:
    content = look.head(file)
    head = parse(content) if isinstance(content, bytes) else content
    if not isinstance(head, Head):
        return None
    named = with_defaults(head, os.path.basename(file).removesuffix(".md"))
    return None if complaint(named) else entry_of(named, file, ALIAS)


def _absolute(target: str, asked: _Asked) -> str | None:
    if not target.startswith("~"):
        return os.path.normpath(os.path.join(asked.base, target))
    user = asked.env.get("HOME")
    return user.rstrip("/") + target[1:] if user and target.startswith("~/") else None


# --- What a catalog depends on beyond the definitions -------------------------------------------------------


def _watch(look: Look, asked: _Asked) -> None:
    """Look at whatever decides which configuration counts and what is trusted, so that a change of it is noticed."""
    for path in dict.fromkeys([*_watched(asked), *_trusted_as_they_were(asked)]):
        if path not in look.seen:
            look.stat(path)


def _watched(asked: _Asked) -> Iterator[str]:
    cwd, env, home, config, _ = asked
    yield from config.looked
    own = places_of_config.config_directory(env)
    if home:
        yield from (os.path.join(home, "config.toml"), os.path.join(home, "trust.json"))
    yield from (os.path.join(own, "config.toml"), os.path.join(own, "chains.json"))
    if cwd is None:
        return
    yield os.path.join(cwd, "forge", "chains.json")
    for folder in _up_to_repository(cwd):
        yield from (os.path.join(folder, ".git"), os.path.join(folder, "hocket.toml"))


def _trusted_as_they_were(asked: _Asked) -> Iterator[str]:
    """What an approval of a folder covers. Nobody need look at that before there is one."""
    if asked.trust is not None:
        targets = [path for alias in asked.config.agents.values() if (path := _absolute(alias.path or "", asked))]
        elsewhere = [path.rpartition(AGENTS)[0] for path in targets if AGENTS in path]
        for folder in dict.fromkeys([*([asked.cwd] if asked.cwd else []), *elsewhere]):
            with suppress(NotTrusted):  # too much to be approved at all
                for path in asked.trust.watched(folder):
                    # A text that is new shows in its folder alone.
                    yield from (path, os.path.dirname(path)) if path.endswith(".md") else (path,)


def _up_to_repository(folder: str) -> Iterator[str]:
    while True:
        yield folder
        parent = os.path.dirname(folder)
        if parent == folder or os.path.exists(os.path.join(folder, ".git")):
            return
        folder = parent


def _settled(seen: Mapping[str, str], begun: int, ended: int) -> dict[str, str]:
    return {path: UNSETTLED if is_young(known, begun, ended) else known for path, known in seen.items()}


def is_young(known: str, begun: int, ended: int) -> bool:
    """Whether something with this signature was changed so shortly before it was looked at, or since, that the next
    change may not show. What seems to come from the future is older than a clock that was set back.
    """
    changed = known.split(" ", 2)[1:2]
    return bool(changed) and begun - _TICK_NS < int(changed[0]) < ended + _TICK_NS


# --- Nothing there ------------------------------------------------------------------------------------------


def require_global_folder(catalog: Catalog) -> None:
    """Raise when the user has no folder of global agents."""
    folders = [place for place in catalog.places if place.source == GLOBAL]
    if any(place.exists for place in folders):
        return
    folder = folders[0].path if folders else "~/.claude/agents"
    raise GlobalAgentsDirectoryMissing(
        f"there is no folder of global agents: {folder}. What every project falls back on belongs there",
        "; ".join(f"{number}. {step}" for number, step in enumerate(fix_steps(folder), 1)),
    )


def has_agents(catalog: Catalog) -> bool:
    """Whether anybody has written a single agent. What Hocket brings along does not count."""
    return any(not is_seeded(entry) for entries in catalog.ranked.values() for entry in entries)


def require_agents(catalog: Catalog) -> None:
    """Raise when there is none."""
    if has_agents(catalog):
        return
    checked = "".join(f"\n  {line}" for line in _checked(catalog.places))
    raise NoAgentsFound(
        f"no agents found. Looked in:{checked}",
        "1. put definitions into one of these folders; 2. let each be a file NAME.md that begins with ---, a name:,"
        " a description: and --- again; 3. look at the problems that `hocket agents` lists for files that are there"
        " and do not count. Shall Hocket help? `hocket demo` shows agents at work, `hocket doctor` what is missing",
    )


def _checked(places: Iterable[Place]) -> Iterator[str]:
    words = {GLOBAL: "global", PROJECT: "project"}
    for place in sorted((place for place in places if place.source in words), key=lambda place: place.source):
        state = "missing" if not place.exists else "empty" if not place.found else f"{place.found} found"
        yield f"{words[place.source]}: {place.path} ({state})"
