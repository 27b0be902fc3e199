"""What discovery returns: definitions that can run, problems with files, and the catalog of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import SKIPPED, Head, Plugin

ALIAS, MANAGED, PROJECT, GLOBAL, CONFIG, LIBRARY, PLUGIN = (
    *("alias", "managed", "project", "global"),
    *("config", "library", "plugin"),
)
SOURCES = (ALIAS, MANAGED, PROJECT, GLOBAL, CONFIG, LIBRARY, PLUGIN)
"""Where definitions come from, highest precedence first."""
LOCATIONS: Mapping[str, str] = MappingProxyType({source: source for source in SOURCES} | {PROJECT: "project-local"})
"""The name of each source in output."""


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One definition that can run."""

    name: str
    """As written in the file."""
    source: str
    path: str
    """The defining file: absolute, links not resolved."""
    project: str | None = None
    """The folder that the file belongs to; None for the user's own."""
    description: str = ""
    tags: tuple[str, ...] = ()
    delegates_to: tuple[str, ...] = ()
    version: str = "1.0.0"
    model: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """All keys of the file, without its body."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each key."""
    target: str | None = None
    """For an alias, what it stands for; for one of Hocket's configs, its file of instructions."""
    plugin: Plugin | None = None
    """The plugin that provides it."""


def entry_of(head: Head, path: str, source: str, project: str | None = None) -> AgentEntry:
    """Make the entry of a valid definition."""
    fields = DEFINITIONS.summary(head)
    return AgentEntry(source=source, path=path, project=project, metadata=head.values, lines=head.lines, **fields)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file, and whether its CLI loads it nevertheless."""

    path: str
    line: int | None
    reason: str
    cli_loads: bool
    kind: str = SKIPPED


class SearchedPlace(NamedTuple):
    """A place that was searched, and how many definitions it has."""

    source: str
    path: str
    exists: bool
    found: int


class Found(NamedTuple):
    """One place with its definitions, each name once, and its problems."""

    place: SearchedPlace
    entries: tuple[AgentEntry, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything that can run in one directory, at the time of discovery."""

    cwd: str | None
    """None for the user's own agents only."""
    ranked: Mapping[str, tuple[AgentEntry, ...]] = field(default_factory=dict)
    """By name, sorted: all candidates, the winner first."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """By name: what is typed, and used in routes, paths and flags."""
    problems: tuple[Problem, ...] = ()
    places: tuple[SearchedPlace, ...] = ()
    seen: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The signature of every path that the catalog depends on."""
    meant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By address: the names that cannot be typed and would have it if it were not taken."""

    def find(self, name: str) -> tuple[AgentEntry, ...]:
        """Return all candidates for a name as written, else for an address; the winner first."""
        if name in self.ranked:
            return self.ranked[name]
        return next((self.ranked[real] for real, address in self.addresses.items() if address == name), ())
