"""Agents that come with the CLI's plugins, under the names by which the CLI lists them.

Knows where the CLI keeps what it installed, and which settings switch a plugin on; writes nothing. A plugin whose
marketplace is a directory is used where it lies, any other where it was installed to. A project's own settings switch
off what they like, and on only where somebody vouches for the project.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

from hocket.catalog.entries import (
    DUPLICATE,
    HIDDEN,
    ODD,
    PLUGIN,
    REFUSED,
    RESCUED,
    SKIPPED,
    Entry,
    Found,
    Place,
    Problem,
    Scan,
)
from hocket.catalog.fields import cli_fields, entry_of, shown
from hocket.catalog.file_probe import MAX_FILE, Look
from hocket.catalog.files import plainly, printable
from hocket.catalog.frontmatter import Fault, Head, decode, parse, split
from hocket.catalog.json_files import read_object
from hocket.catalog.sources import main_root
from hocket.config.reading import read_bounded
from hocket.errors import BadDefinition
from hocket.input_limits import is_text
from hocket.model import Definition

MANAGED_SETTINGS = "/etc/claude-code/managed-settings.json"
MAX_DOCUMENT = 8 * 1024 * 1024
MAX_FILES = 5000
MAX_NAME = 256
"""As measured: a longer name is no name, and the file's own is taken."""
_MANIFEST = os.path.join(".claude-plugin", "plugin.json")
_MARKETPLACE = os.path.join(".claude-plugin", "marketplace.json")
_BUILT_IN = "builtin"
_IGNORED = ("hooks", "mcpServers", "permissionMode")
"""Keys of a definition that mean nothing in a plugin."""

Environ = Mapping[str, str]


class Plugin(NamedTuple):
    """One plugin that is switched on."""

    key: str
    """With its marketplace: ``name@marketplace``."""
    name: str
    """What its agents' names begin with."""
    root: str
    listed: tuple[str, ...] | None
    """The files that its manifest names in place of its folder of agents."""
    added: tuple[str, ...]
    """The files that its marketplace names besides."""


def plugins(look: Look, cwd: str, env: Environ, *, trusts: bool, managed: str = MANAGED_SETTINGS) -> list[Found]:
    """What every plugin has that is switched on in a directory. Of two with one name the later wins, so it is first."""
    problems: list[Problem] = []
    found = [_found(look, plugin) for plugin in _switched_on(look, cwd, env, trusts, managed, problems)][::-1]
    if problems:
        base = _folder(cwd, env) or cwd
        found.append(Found(Place(PLUGIN, base, look.exists(base), 0), Scan((), tuple(problems))))
    return found


def definition(entry: Entry, cwd: str, env: Environ, *, trusts: bool, managed: str = MANAGED_SETTINGS) -> Definition:
    """What one of these agents is told, as the CLI would tell it. Raises when its plugin or its file is gone."""
    on = _switched_on(Look(), cwd, env, trusts, managed, [])
    owners = [p for p in on if entry.name.startswith(f"{p.name}:") and entry.path.startswith(p.root + "/")]
    if not owners:
        raise BadDefinition(f"{entry.path} belongs to no plugin that is switched on")
    content = read_bounded(entry.path, MAX_FILE, BadDefinition)
    if content is None:
        raise BadDefinition(f"{entry.path} does not exist")
    head = _head_of(content, owners[-1].name)
    fields = {key: value for key, value in cli_fields(head).items() if key not in _IGNORED}
    folder = _folder(cwd, env) or ""
    return Definition(entry.name, {**fields, "prompt": _filled(fields["prompt"], owners[-1], folder)}, entry.path)


def _head_of(content: bytes, plugin: str) -> Head:
    head = parse(content)
    if isinstance(head, Fault) and head.ours:
        raise BadDefinition(f"line {head.line}: {head.reason}")
    if isinstance(head, Fault):
        head = Head({}, split(decode(content))[1].strip())
    return head._replace(values={**head.values, "description": _description(head, plugin)})


def _description(head: Head, plugin: str) -> str:
    """As the CLI makes one of whatever is there."""
    described = head.values.get("description")
    told = _as_text(described).strip() if isinstance(described, str | int | float) else ""
    return told or f"Agent from {plugin} plugin"


def _filled(prompt: str, plugin: Plugin, folder: str) -> str:
    data = os.path.join(folder, "data", plugin.key.replace("@", "-"))
    return prompt.replace("${CLAUDE_PLUGIN_ROOT}", plugin.root).replace("${CLAUDE_PLUGIN_DATA}", data)


# --- What is switched on ------------------------------------------------------------------------------------


def _config_folder(cwd: str, env: Environ) -> str | None:
    moved, home = env.get("CLAUDE_CONFIG_DIR"), env.get("HOME")
    if moved:
        return os.path.normpath(os.path.join(cwd, moved))
    return os.path.join(home, ".claude") if home else None


def _folder(cwd: str, env: Environ) -> str | None:
    """Where the CLI keeps its plugins."""
    moved, base = env.get("CLAUDE_CODE_PLUGIN_CACHE_DIR"), _config_folder(cwd, env)
    if moved:
        return os.path.normpath(os.path.join(cwd, moved))
    return os.path.join(base, "plugins") if base else None


def _switched_on(
    look: Look, cwd: str, env: Environ, trusts: bool, managed: str, problems: list[Problem]
) -> list[Plugin]:
    base, folder = _config_folder(cwd, env), _folder(cwd, env)
    if base is None or folder is None:
        return []
    users = os.path.join(base, "settings.json")
    settings = {path: _settings(look, path, problems) for path in (users, managed)}
    others = [path for path in _of_the_project(look, cwd, env) if path not in settings]
    theirs = _chosen({path: _settings(look, path, problems) for path in others})
    if not trusts:  # whoever it is, a folder may always do with less
        theirs = {key: choice for key, choice in theirs.items() if choice[0] is not True}
    wanted = _chosen({users: settings[users]}) | theirs | _chosen({managed: settings[managed]})
    on = {key: path for key, (value, path) in wanted.items() if value is True and not key.endswith(f"@{_BUILT_IN}")}
    if not on:
        return []
    store = _Store(look, cwd, folder, settings[users].get("extraKnownMarketplaces"), problems)
    found = []
    for key, path in on.items():
        plugin = store.plugin(key)
        if isinstance(plugin, Plugin):
            found.append(plugin)
        else:
            reason = f"switches on {shown(key)}, which is not there: {plugin}"
            problems.append(Problem(path, None, reason, False, SKIPPED))
    return found


def _of_the_project(look: Look, cwd: str, env: Environ) -> list[str]:
    """The files of settings that the CLI reads around a directory, the one that has the last word last."""
    root, local = main_root(look, cwd, env), os.path.join(".claude", "settings.local.json")
    own = [os.path.join(cwd, ".claude", "settings.json"), os.path.join(cwd, local)]
    return list(dict.fromkeys([*own, os.path.join(root, local)])) if root else own


def _chosen(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Any, str]]:
    """By plugin what is said about it, and where; the last one to say something counts."""
    return {
        key: (value, path)
        for path, said in settings.items()
        for key, value in (said.get("enabledPlugins") or {}).items()
    }


def _settings(look: Look, path: str, problems: list[Problem]) -> Mapping[str, Any]:
    """What a file of settings says. One wrong value under this key makes the CLI leave out the whole file."""
    said = _object(look, path, problems)
    enabled = said.get("enabledPlugins")
    if enabled is None or (isinstance(enabled, dict) and all(isinstance(v, bool | list) for v in enabled.values())):
        return said
    reason = "its enabledPlugins are no list of plugins with true or false, so nothing in it counts"
    problems.append(Problem(path, None, reason, False, SKIPPED))
    return {}


def _object(look: Look, path: str, problems: list[Problem]) -> dict[str, Any]:
    found = read_object(look, path, MAX_DOCUMENT)
    if isinstance(found, Fault):
        problems.append(Problem(path, found.line, found.reason, False, SKIPPED))
    return found if isinstance(found, dict) else {}


class _Store:
    """What the CLI has written down about marketplaces and what it installed from them."""

    def __init__(self, look: Look, cwd: str, folder: str, declared: Any, problems: list[Problem]) -> None:
        self._look = look
        self._cwd = cwd
        known = _object(look, os.path.join(folder, "known_marketplaces.json"), problems)
        self._markets = {**_declared(declared), **known}
        installed = _object(look, os.path.join(folder, "installed_plugins.json"), problems).get("plugins")
        self._installed = installed if isinstance(installed, dict) else {}

    def plugin(self, key: str) -> Plugin | str:
        """The plugin of that key, or why there is none."""
        name, _, market = key.rpartition("@")
        known = self._markets.get(market)
        base = known.get("installLocation") if isinstance(known, dict) else None
        if not isinstance(known, dict) or not isinstance(base, str):
            return f"the CLI knows no marketplace {shown(market)}"
        offers = read_object(self._look, os.path.join(base, _MARKETPLACE), MAX_DOCUMENT)
        if not isinstance(offers, dict) or not isinstance(offers.get("owner"), dict):
            return f"{base} has no usable list of plugins"
        entry = next((offer for offer in _dicts(offers.get("plugins")) if offer.get("name") == name), None)
        if entry is None:
            return f"{base} does not offer it"
        root = self._root(key, entry, offers, base, _is_directory(known))
        return _plugin(self._look, key, name, root, entry) if root else "it is not installed here"

    def _root(
        self, key: str, entry: Mapping[str, Any], offers: Mapping[str, Any], base: str, lives: bool
    ) -> str | None:
        source = entry.get("source")
        if lives and isinstance(source, str):
            return _within(base, source, offers)
        records = self._installed.get(key)
        for record in _dicts([records] if isinstance(records, dict) else records):
            path, project = record.get("installPath"), record.get("projectPath")
            here = not isinstance(project, str) or _is_within(self._cwd, project)
            if here and isinstance(path, str) and self._look.exists(path):
                return plainly(path)
        return None


def _declared(markets: Any) -> dict[str, Any]:
    """Directories that the user's settings name as marketplaces: the CLI takes note of them when it starts next."""
    sources = {name: market.get("source") for name, market in _items(markets) if isinstance(market, dict)}
    return {
        name: {"source": source, "installLocation": source["path"]}
        for name, source in sources.items()
        if isinstance(source, dict) and source.get("source") == "directory" and isinstance(source.get("path"), str)
    }


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_directory(market: Mapping[str, Any]) -> bool:
    source = market.get("source")
    return isinstance(source, dict) and source.get("source") == "directory"


def _within(base: str, source: str, offers: Mapping[str, Any]) -> str | None:
    """Where a plugin lies in its marketplace; a bare name counts from the root that the marketplace may name."""
    above: Any = ""
    if not source.startswith("./") and source != ".":
        metadata = offers.get("metadata")
        above = metadata.get("pluginRoot") if isinstance(metadata, dict) else None
        if not isinstance(above, str):
            return None
    path = os.path.normpath(os.path.join(base, above, source))
    return path if ".." not in source.split("/") and _is_within(path, os.path.normpath(base)) else None


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# --- One plugin ---------------------------------------------------------------------------------------------


def _plugin(look: Look, key: str, name: str, root: str, entry: Mapping[str, Any]) -> Plugin | str:
    manifest = read_object(look, os.path.join(root, _MANIFEST), MAX_DOCUMENT)
    reason = _complaint(manifest)
    if not look.exists(root) or reason:
        return f"{os.path.join(root, _MANIFEST)} {reason}" if reason else f"{root} is not there"
    said = manifest if isinstance(manifest, dict) else {}
    listed = _texts(said["agents"]) if "agents" in said else None
    return Plugin(key, said.get("name", name), root, listed, _texts(entry.get("agents")))


def _complaint(manifest: dict[str, Any] | Fault | None) -> str | None:
    """Why the CLI does not load a plugin with this manifest. None is as good as a good one."""
    if manifest is None:
        return None
    if isinstance(manifest, Fault):
        return manifest.reason
    name, agents = manifest.get("name"), manifest.get("agents", [])
    if not isinstance(name, str) or not name or re.search(r"\s", name) or not is_text(name):
        return "gives it no name that can be one"
    if not isinstance(manifest.get("version", ""), str):
        return "has a version that is not a text"
    named = [agents] if isinstance(agents, str) else agents
    if not isinstance(named, list) or not all(_is_listed(path) for path in named):
        return "has a list of agents that names no files"
    return None


def _is_listed(path: Any) -> bool:
    return isinstance(path, str) and path.startswith("./") and path.endswith(".md")


def _texts(value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def _found(look: Look, plugin: Plugin) -> Found:
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    for path, prefix in _files(look, plugin, problems):
        entry = _entry(look, path, plugin.name, prefix, problems)
        if entry is None:
            continue
        before = entries.pop(entry.name, None)
        if before:
            # The CLI reads the files of a plugin at the same time, and takes the one whose reading ended last.
            reason = f"{shown(entry.name)} is also described by {entry.path}, which wins; for Claude that varies"
            problems.append(Problem(before.path, None, reason, False, DUPLICATE))
        entries[entry.name] = entry
    folder = os.path.join(plugin.root, "agents")
    place = Place(PLUGIN, folder, look.exists(folder), len(entries))
    return Found(place, Scan(tuple(entries.values()), tuple(sorted(problems, key=lambda p: (p.path, p.line or 0)))))


def _files(look: Look, plugin: Plugin, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """The files of a plugin's agents, each with what its name begins with; the last one of a name counts."""
    if plugin.listed is None:
        yield from _walk(look, plugin, problems)
    for relative in (*(plugin.listed or ()), *plugin.added):
        path = os.path.normpath(os.path.join(plugin.root, relative))
        if not _is_within(path, plugin.root):
            problems.append(Problem(path, None, "is outside of the plugin that names it", False, REFUSED))
        elif look.exists(path):
            yield path, f"{plugin.name}:"
        else:
            problems.append(Problem(path, None, "is named by its plugin, and does not exist", False, SKIPPED))


def _walk(look: Look, plugin: Plugin, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    waiting, count = [(os.path.join(plugin.root, "agents"), f"{plugin.name}:")], 0
    while waiting:
        folder, prefix = waiting.pop(0)
        for entry in look.entries(folder):
            count += 1
            if count > MAX_FILES:
                reason = f"has more than {MAX_FILES} files and folders below it, and the rest is not looked at"
                problems.append(Problem(folder, None, reason, True, REFUSED))
                return
            if not is_text(entry.name):
                problems.append(Problem(printable(entry.path), None, "its file name is not UTF-8", False, REFUSED))
            elif entry.is_symlink():
                if entry.name.lower().endswith(".md"):
                    reason = "is a link, which the CLI does not follow in a plugin"
                    problems.append(Problem(printable(entry.path), None, reason, False, SKIPPED))
            elif entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, f"{prefix}{entry.name}:"))
            elif entry.name.lower().endswith(".md"):
                yield entry.path, prefix


def _entry(look: Look, path: str, plugin: str, prefix: str, problems: list[Problem]) -> Entry | None:
    content, stem = look.head(path), os.path.splitext(os.path.basename(path))[0]
    head = parse(content) if isinstance(content, bytes) else content
    if isinstance(head, Fault) and (head.ours or head.kind == REFUSED):
        problems.append(Problem(printable(path), head.line, head.reason, head.ours, REFUSED))
        return None
    if ".deprecated" in os.path.basename(path):
        reason = 'is left out because of ".deprecated" in its file name'
        problems.append(Problem(path, 1, reason, True, HIDDEN))
        return None
    if isinstance(head, Fault):
        reason = f"{head.reason}; the CLI takes it under the name of its file"
        problems.append(Problem(path, head.line, reason, True, RESCUED))
        head = Head({}, "")
    name = _name(head.values.get("name")) or stem
    known = {**head.values, "name": prefix + name, "description": _description(head, plugin)}
    problems.extend(_remarks(head, path))
    return replace(entry_of(head._replace(values=known), path, PLUGIN), metadata=head.values)


def _remarks(head: Head, path: str) -> Iterator[Problem]:
    if head.mended:
        yield Problem(path, head.mended.line, f"{head.mended.reason}; read all the same", True, RESCUED)
    for key in _IGNORED:
        if key in head.values:
            yield Problem(path, head.line_of(key), f"{key} means nothing in a plugin's agent", True, ODD)


# --- Names --------------------------------------------------------------------------------------------------


def _name(value: Any) -> str | None:
    """A value as the CLI makes a name of it, whatever it is; None where it takes the file's."""
    text = _as_text(value)
    return text if text and len(text) <= MAX_NAME and is_text(text) else None


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list):
        return ",".join(_as_text(item) for item in value)
    return "[object Object]" if isinstance(value, dict) else str(value)


def _number(value: float) -> str:
    """As JavaScript writes numbers: a double, without an exponent as long as it has at most 21 digits."""
    number = float(value)
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "0"
    if 1e-7 < abs(number) < 1e21:
        plain = format(Decimal(repr(number)), "f")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    return re.sub(r"e([+-])0+", r"e\1", repr(number)).replace(".0e", "e")
