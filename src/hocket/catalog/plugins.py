"""Agents of the CLI's plugins, under the names by which the CLI lists them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hocket.catalog.entries import PLUGIN, AgentEntry, Found, Problem, SearchedPlace, entry_of
from hocket.catalog.file_probe import MAX_FILE, FileProbe
from hocket.catalog.files import RETIRED, mended_problem, printable
from hocket.catalog.sources import main_root
from hocket.config.reading import read_bounded
from hocket.errors import BadDefinition
from hocket.input_limits import is_text
from hocket.model import Definition
from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import (
    DUPLICATE,
    HIDDEN,
    LOADED_DESPITE_ERRORS,
    ODD,
    REFUSED,
    SKIPPED,
    Fault,
    Head,
    Plugin,
    shown,
)

MAX_FILES = 5000

Environ = Mapping[str, str]


def plugins(
    look: FileProbe, cwd: str, env: Environ, *, trusted: bool, managed: str = DEFINITIONS.managed_settings
) -> list[Found]:
    """Return the agents of every enabled plugin. Of two plugins with one name the later wins, so it comes first."""
    root = main_root(look, cwd, env)
    enabled, faults = DEFINITIONS.enabled_plugins(look, cwd, env, root, trusted=trusted, managed=managed)
    found = [_scan(look, plugin) for plugin in reversed(enabled)]
    if faults:
        base = DEFINITIONS.plugin_folder(cwd, env) or cwd
        problems = tuple(Problem(path, line, reason, False, kind) for path, line, reason, kind in faults)
        found.append(Found(SearchedPlace(PLUGIN, base, look.exists(base), 0), (), problems))
    return found


def definition(entry: AgentEntry) -> Definition:
    """Read the definition of a plugin's agent as the CLI does. Raises BadDefinition."""
    content = read_bounded(entry.path, MAX_FILE, BadDefinition)
    if content is None or entry.plugin is None:
        raise BadDefinition(f"{entry.path} does not exist")
    head = DEFINITIONS.parse(content)
    if isinstance(head, Fault) and head.is_hocket_limit:
        raise BadDefinition(f"{entry.path}, line {head.line}: {head.reason}")
    fields = DEFINITIONS.cli_fields(DEFINITIONS.plugin_head(head, content, entry.plugin, entry.name))
    ignored = DEFINITIONS.restricted_fields
    return Definition(entry.name, {key: value for key, value in fields.items() if key not in ignored}, entry.path)


def _scan(look: FileProbe, plugin: Plugin) -> Found:
    problems: list[Problem] = []
    entries: dict[str, AgentEntry] = {}
    for path, prefix in _files(look, plugin, problems):
        entry = _entry(look, path, plugin, prefix, problems)
        if entry is None:
            continue
        before = entries.pop(entry.name, None)
        if before:
            # The CLI reads the files of a plugin concurrently and uses the one that it finished last.
            reason = f"{shown(entry.name)} is also defined by {entry.path}, which wins here; the CLI's choice varies"
            problems.append(Problem(before.path, None, reason, False, DUPLICATE))
        entries[entry.name] = entry
    folder = os.path.join(plugin.root, "agents")
    place = SearchedPlace(PLUGIN, folder, look.exists(folder), len(entries))
    return Found(place, tuple(entries.values()), tuple(sorted(problems, key=lambda p: (p.path, p.line or 0))))


def _files(look: FileProbe, plugin: Plugin, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """Yield the files of a plugin's agents, each with the prefix of its name; the last of a name wins."""
    if plugin.listed is None:
        yield from _walk(look, plugin, problems)
    for relative in (*(plugin.listed or ()), *plugin.added):
        path = os.path.normpath(os.path.join(plugin.root, relative))
        if not path.startswith(plugin.root.rstrip("/") + "/"):
            problems.append(Problem(path, None, "is outside of the plugin that names it", False, REFUSED))
        elif look.exists(path):
            yield path, f"{plugin.name}:"
        else:
            problems.append(Problem(path, None, "is named by its plugin but does not exist", False, SKIPPED))


def _walk(look: FileProbe, plugin: Plugin, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    waiting, count = [(os.path.join(plugin.root, "agents"), f"{plugin.name}:")], 0
    while waiting:
        folder, prefix = waiting.pop(0)
        for entry in look.entries(folder):
            count += 1
            if count > MAX_FILES:
                reason = f"has more than {MAX_FILES} files and folders; the rest is ignored"
                problems.append(Problem(folder, None, reason, True, REFUSED))
                return
            is_definition = entry.name.lower().endswith(".md")
            if not is_text(entry.name):
                reason = "the file name is not valid UTF-8"
                problems.append(Problem(printable(entry.path), None, reason, False, REFUSED))
            elif entry.is_symlink():
                if is_definition:
                    reason = "is a link, which the CLI does not follow in a plugin"
                    problems.append(Problem(printable(entry.path), None, reason, False, SKIPPED))
            elif entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, f"{prefix}{entry.name}:"))
            elif is_definition:
                yield entry.path, prefix


def _entry(look: FileProbe, path: str, plugin: Plugin, prefix: str, problems: list[Problem]) -> AgentEntry | None:
    content = look.head(path)
    head = DEFINITIONS.parse(content) if isinstance(content, bytes) else content
    if isinstance(head, Fault) and (head.is_hocket_limit or head.kind == REFUSED):
        problems.append(Problem(printable(path), head.line, head.reason, head.is_hocket_limit, REFUSED))
        return None
    if ".deprecated" in os.path.basename(path):
        problems.append(Problem(path, 1, RETIRED.reason, True, HIDDEN))
        return None
    if isinstance(head, Fault):
        reason = f"{head.reason}; the CLI loads it under the name of its file"
        problems.append(Problem(path, head.line, reason, True, LOADED_DESPITE_ERRORS))
        head = Head({}, "")
    name = DEFINITIONS.plugin_agent_name(head, os.path.splitext(os.path.basename(path))[0])
    problems.extend(mended_problem(path, head))
    problems.extend(
        Problem(path, head.line_of(key), f"{key} is ignored in a plugin's agent", True, ODD)
        for key in DEFINITIONS.restricted_fields
        if key in head.values
    )
    listed = DEFINITIONS.plugin_head(head, b"", plugin, prefix + name)
    return replace(entry_of(listed, path, PLUGIN), metadata=head.values, plugin=plugin)
