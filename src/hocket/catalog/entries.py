"""What discovery gives: definitions that could run, files with something wrong, and both of them put in order.

Values only. Who finds them is in ``sources``, who puts them in order in ``discovery``, how they are shown elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

ALIAS, MANAGED, PROJECT, GLOBAL, CONFIG, LIBRARY, PLUGIN = (
    *("alias", "managed", "project", "global"),
    *("config", "library", "plugin"),
)
SOURCES = (ALIAS, MANAGED, PROJECT, GLOBAL, CONFIG, LIBRARY, PLUGIN)
"""Where definitions come from, the one that wins first."""
CLI_NAMES = ("claude", "codex", "cursor-agent", "gemini", "opencode", "copilot", "amp")
"""Names that mean a CLI with no definition. Nobody expects anything else behind one."""
LOCATIONS: Mapping[str, str] = MappingProxyType({source: source for source in SOURCES} | {PROJECT: "project-local"})
"""What people are told about each source."""
NOTHING: Mapping[str, Any] = MappingProxyType({})

SKIPPED, REFUSED, RESCUED, HIDDEN, RENAMED, DUPLICATE, LINKED, ODD = (
    *("skipped", "refused", "rescued", "hidden"),
    *("renamed", "duplicate", "linked", "odd"),
)
"""What can be wrong with a file: no definition; not even read; read though it is broken; left out by us alone; listed
under a name that cannot be typed; a name that its folder has already; somewhere else than it seems; a field is useless.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One definition that could run, wherever it was found."""

    name: str
    """As it is written there."""
    source: str
    path: str
    """The file that says so: absolute, links not resolved."""
    project: str | None = None
    """The folder whose own file this is; None for what is the user's."""
    description: str = ""
    tags: tuple[str, ...] = ()
    delegates_to: tuple[str, ...] = ()
    version: str = "1.0.0"
    model: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """All that the file says, body excepted."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each of its keys."""
    target: str | None = None
    """For an alias, what it stands for; for one of Hocket's configs, the file with its instructions."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One file that is not simply a definition: what is wrong, where, and whether Claude takes it all the same."""

    path: str
    line: int | None
    reason: str
    claude_loads: bool
    kind: str = SKIPPED


class Open(NamedTuple):
    """What has to be approved before an agent may run: why, in words, and what to approve."""

    reasons: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


class Scan(NamedTuple):
    """What one source has, each name once, and what stands in the way."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[Problem, ...] = ()


class Place(NamedTuple):
    """Where was looked, and what was there."""

    source: str
    path: str
    exists: bool
    found: int


class Found(NamedTuple):
    """One place, and what it has."""

    place: Place
    scan: Scan = Scan()


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything that can run in one directory, as it was when somebody looked."""

    cwd: str | None
    """None when nobody's project was asked for."""
    ranked: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    """By name, sorted: every candidate, the one that is used first."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """By name: what one types, and what routes, paths and flags use."""
    problems: tuple[Problem, ...] = ()
    places: tuple[Place, ...] = ()
    seen: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Every path that the result depends on, with its signature then."""
    meant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By address: the names that would have it if nobody stood in their way, of those that cannot be typed."""

    def find(self, name: str) -> tuple[Entry, ...]:
        """Every candidate for a name as it is written, else for an address; the one that is used first."""
        if name in self.ranked:
            return self.ranked[name]
        return next((self.ranked[real] for real, address in self.addresses.items() if address == name), ())
