"""Files that describe agents: what reading one gives, and what can be wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from hocket.model import Agent, Definition

SKIPPED, REFUSED, LOADED_DESPITE_ERRORS, HIDDEN, RENAMED, DUPLICATE, LINKED, ODD = (
    *("skipped", "refused", "rescued", "hidden"),
    *("renamed", "duplicate", "linked", "odd"),
)
"""Kinds of problems: not a definition; not read at all; read although malformed; hidden by Hocket alone; listed under a
derived address; a name that its folder has already; a link; a field that is ignored.
"""
NOTHING: Mapping[str, Any] = MappingProxyType({})
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_LONGEST_SHOWN = 60


class Fault(NamedTuple):
    """Why a file or its frontmatter cannot be used, and the line in the file."""

    line: int
    reason: str
    kind: str = SKIPPED
    is_hocket_limit: bool = False
    """A limit of Hocket's own, which the CLI does not have."""


class Head(NamedTuple):
    """The frontmatter of a file and the text after it."""

    values: Mapping[str, Any]
    body: str
    lines: Mapping[str, int] = NOTHING
    """The line of each key in the file."""
    written: Mapping[str, str] = NOTHING
    """Scalar values as written: version 1.10 differs from 1.1."""
    repeated: Mapping[str, int] = NOTHING
    """Keys that occur more than once, with the line of the last occurrence."""
    mended: Fault | None = None
    """What was malformed, if it was read only with tolerance."""

    def line_of(self, key: str) -> int:
        return self.lines.get(key, 1)


class PathFault(NamedTuple):
    """What is wrong with a settings file."""

    path: str
    line: int | None
    reason: str
    kind: str = SKIPPED


class Plugin(NamedTuple):
    """One enabled plugin."""

    name: str
    """The prefix of its agents' names."""
    root: str
    data: str
    """Its folder for data, which its instructions may mention."""
    listed: tuple[str, ...] | None
    """The files that its manifest names in place of its folder of agents."""
    added: tuple[str, ...]
    """Further files that its marketplace names."""


Servers = dict[str, Mapping[str, Any]]
"""MCP servers by name, each as its file defines it."""


class Files(Protocol):
    """Read access to files, which a capability is given by its caller."""

    def exists(self, path: str) -> bool: ...

    def read_object(self, path: str) -> dict[str, Any] | Fault | None:
        """Return the JSON object in a file; None if there is no file."""


def read_object(files: Files, path: str, faults: list[PathFault], consequence: str = "") -> dict[str, Any]:
    """The JSON object in a file; empty without one. Why it cannot be read is added to ``faults``."""
    found = files.read_object(path)
    if isinstance(found, Fault):
        faults.append(PathFault(path, found.line, f"{found.reason}{consequence}", found.kind))
    return found if isinstance(found, dict) else {}


class Privilege(NamedTuple):
    """One privilege that is asked for, with its details."""

    what: str
    details: tuple[str, ...] = ()


class Widening(NamedTuple):
    """An argument by which an agent could do more, and in what way."""

    argument: str
    reason: str


class Definitions(Protocol):
    """Which files describe a CLI's agents, and how to read them. No method touches the disk but through ``Files``."""

    variables: tuple[str, ...]
    """The environment variables that decide where its files are."""
    managed_folder: str
    """The machine's own definitions."""
    default_user_folder: str
    """The user's folder as documented, for messages."""
    marker: str
    """Separates the project from the agent's name in a path."""
    largest_file: int
    """Bytes up to which the CLI reads a file."""
    restricted_fields: tuple[str, ...]
    """Fields that start programs or widen permissions."""
    managed_settings: str

    def user_folder(self, cwd: str, env: Mapping[str, str]) -> str | None: ...
    def project_folder(self, project: str) -> str: ...
    def is_definition_path(self, path: str) -> bool: ...
    def parse_definition_path(self, path: str) -> tuple[str, str] | None: ...
    def end_of(self, content: bytes) -> int | None: ...
    def parse(self, content: bytes) -> Head | Fault: ...
    def parse_definition(self, content: bytes, path: str, stem: str | None = None) -> Definition: ...
    def instructions(self, content: bytes, path: str) -> Head: ...
    def with_defaults(self, head: Head, stem: str) -> Head: ...
    def complaint(self, head: Head) -> Fault | None: ...
    def summary(self, head: Head) -> dict[str, Any]: ...
    def cli_fields(self, head: Head) -> dict[str, Any]: ...
    def is_foreign_model(self, model: str, env: Mapping[str, str]) -> bool: ...
    def ignored_fields(self, head: Head) -> Iterator[Fault]: ...
    def plugin_folder(self, cwd: str, env: Mapping[str, str]) -> str | None: ...
    def enabled_plugins(
        self, files: Files, cwd: str, env: Mapping[str, str], root: str | None, *, trusted: bool, managed: str = ...
    ) -> tuple[list[Plugin], list[PathFault]]: ...
    def plugin_head(self, head: Head | Fault, content: bytes, plugin: Plugin, name: str) -> Head: ...
    def plugin_agent_name(self, head: Head | Fault, stem: str) -> str: ...
    def configured_servers(
        self, files: Files, cwd: str, env: Mapping[str, str], roots: Sequence[str], *, trusted: bool
    ) -> tuple[Servers, list[PathFault]]: ...
    def output_style(self, files: Files, cwd: str, env: Mapping[str, str], *, trusted: bool) -> str | None: ...


class Privileges(Protocol):
    """What a definition, its arguments or a folder's files ask for. Paths are relative to the folder."""

    config_folder: str
    settings_files: tuple[str, ...]
    local_settings: str
    server_file: str
    text_folders: tuple[str, ...]
    instruction_files: tuple[str, ...]
    requesting_fields: tuple[str, ...]

    def may_request(self, text: bytes) -> bool: ...
    def server_names(self, content: bytes, path: str) -> list[str]: ...
    def requested(self, definition: Definition) -> list[str]: ...
    def asks_for_other_cli(self, runtime: str | None) -> bool: ...
    def requests(self, definition: Definition, ceiling: str) -> Iterator[Privilege]: ...
    def requests_in_settings(self, name: str, content: bytes) -> Iterator[Privilege]: ...
    def permission_mode(self, definition: Definition | None) -> str | None: ...
    def mode_of(self, agent: Agent, default: str) -> str: ...
    def model_of(self, agent: Agent, default: str | None) -> str | None: ...
    def tools_of(self, agent: Agent) -> tuple[str, ...] | None: ...
    def names_in(self, value: object) -> object: ...
    def with_permission_mode(self, definition: Definition, mode: str) -> Definition: ...
    def widening(self, args: Sequence[str], mode: str, before: Sequence[str] = ()) -> Widening | None: ...
    def mode_with(self, args: Sequence[str], mode: str) -> str: ...
    def without_modes(self, args: Sequence[str]) -> tuple[str, ...]: ...


def has_control_character(text: str) -> bool:
    return _CONTROL.search(text) is not None


def shown(value: object) -> str:
    """Quote a value from a file for a message: shortened, control characters escaped."""
    text = value if isinstance(value, str) else repr(value)
    cut = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
    return ascii(cut) if has_control_character(cut) else repr(cut) if isinstance(value, str) else cut
