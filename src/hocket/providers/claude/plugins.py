"""Claude's plugins: which are enabled in a directory, their folders, and the names of their agents."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from hocket.input_limits import is_text
from hocket.providers.claude.frontmatter import decode, split
from hocket.providers.claude.paths import config_directory
from hocket.providers.definition_files import Fault, Files, Head, PathFault, Plugin, read_object, shown
from hocket.providers.output_lines import dict_in, list_in, text_in

MAX_NAME = 256
"""The CLI uses the file's name instead of a longer one (measured)."""
managed_settings = "/etc/claude-code/managed-settings.json"
_MANIFEST = os.path.join(".claude-plugin", "plugin.json")
_MARKETPLACE = os.path.join(".claude-plugin", "marketplace.json")
_BUILT_IN = "@builtin"


def plugin_folder(cwd: str, env: Mapping[str, str]) -> str | None:
    """Return the folder in which the CLI keeps its plugins."""
    moved, base = env.get("CLAUDE_CODE_PLUGIN_CACHE_DIR"), config_directory(cwd, env)
    if moved:
        return os.path.normpath(os.path.join(cwd, moved))
    return os.path.join(base, "plugins") if base else None


def enabled_plugins(
    files: Files,
    cwd: str,
    env: Mapping[str, str],
    root: str | None,
    *,
    trusted: bool,
    managed: str = managed_settings,
) -> tuple[list[Plugin], list[PathFault]]:
    """Return the plugins that are enabled in a directory, and the settings that cannot be used.

    ``root`` is the main working tree of its repository. Only a trusted project's settings enable a plugin; any
    project's settings may disable one.
    """
    base, folder = config_directory(cwd, env), plugin_folder(cwd, env)
    faults: list[PathFault] = []
    if base is None or folder is None:
        return [], faults
    user = os.path.join(base, "settings.json")
    settings = {path: _settings(files, path, faults) for path in (user, managed)}
    project = [path for path in _project_settings(cwd, root) if path not in settings]
    choices = _choices({path: _settings(files, path, faults) for path in project})
    if not trusted:
        choices = {key: choice for key, choice in choices.items() if choice[0] is not True}
    chosen = _choices({user: settings[user]}) | choices | _choices({managed: settings[managed]})
    enabled = {key: path for key, (value, path) in chosen.items() if value is True and not key.endswith(_BUILT_IN)}
    if not enabled:
        return [], faults
    store = _Store(files, cwd, folder, settings[user], faults)
    found = []
    for key, path in enabled.items():
        plugin = store.plugin(key)
        if isinstance(plugin, Plugin):
            found.append(plugin)
        else:
            faults.append(PathFault(path, None, f"enables {shown(key)}, which is missing: {plugin}"))
    return found, faults


def _project_settings(cwd: str, root: str | None) -> list[str]:
    """The settings files that the CLI reads for a project, the one that wins last."""
    local = os.path.join(".claude", "settings.local.json")
    own = [os.path.join(cwd, ".claude", "settings.json"), os.path.join(cwd, local)]
    return list(dict.fromkeys([*own, os.path.join(root, local)])) if root else own


def _choices(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Any, str]]:
    """By plugin, the value given for it and the file; the last file wins."""
    return {
        key: (value, path)
        for path, given in settings.items()
        for key, value in (given.get("enabledPlugins") or {}).items()
    }


def _settings(files: Files, path: str, faults: list[PathFault]) -> Mapping[str, Any]:
    """Read a settings file. The CLI ignores the whole file if one value under ``enabledPlugins`` is invalid."""
    given = read_object(files, path, faults)
    enabled = given.get("enabledPlugins")
    if enabled is None or (isinstance(enabled, dict) and all(isinstance(v, bool | list) for v in enabled.values())):
        return given
    reason = "enabledPlugins is not a mapping of plugins to true or false, so the whole file is ignored"
    faults.append(PathFault(path, None, reason))
    return {}


class _Store:
    """The CLI's records of marketplaces and of the plugins installed from them."""

    def __init__(
        self, files: Files, cwd: str, folder: str, settings: Mapping[str, Any], faults: list[PathFault]
    ) -> None:
        self._files = files
        self._cwd = cwd
        self._folder = folder
        known = read_object(files, os.path.join(folder, "known_marketplaces.json"), faults)
        self._markets = {**_declared(dict_in(settings, "extraKnownMarketplaces")), **known}
        self._installed = dict_in(read_object(files, os.path.join(folder, "installed_plugins.json"), faults), "plugins")

    def plugin(self, key: str) -> Plugin | str:
        """Return the plugin with that key, or why there is none."""
        name, _, market = key.rpartition("@")
        base = text_in(self._markets.get(market), "installLocation")
        if not base:
            return f"the CLI knows no marketplace {shown(market)}"
        offers = self._files.read_object(os.path.join(base, _MARKETPLACE))
        if not isinstance(offers, dict) or not isinstance(offers.get("owner"), dict):
            return f"{base} has no valid marketplace.json"
        listed = (offer for offer in list_in(offers, "plugins") if isinstance(offer, dict))
        entry = next((offer for offer in listed if offer.get("name") == name), None)
        if entry is None:
            return f"{base} does not offer it"
        source = entry.get("source")
        if _is_directory(self._markets[market]) and isinstance(source, str):
            root = _within(base, source, offers)
        else:
            root = self._installed_root(key)
        return self._load(key, name, root, entry) if root else "it is not installed here"

    def _installed_root(self, key: str) -> str | None:
        given = self._installed.get(key)
        for record in given if isinstance(given, list) else [given]:
            path, project = text_in(record, "installPath"), text_in(record, "projectPath")
            if path and (not project or is_within(self._cwd, project)) and self._files.exists(path):
                return os.path.normpath(path)
        return None

    def _load(self, key: str, name: str, root: str, entry: Mapping[str, Any]) -> Plugin | str:
        path = os.path.join(root, _MANIFEST)
        manifest = self._files.read_object(path)
        if reason := _complaint(manifest):
            return f"{path} {reason}"
        if not self._files.exists(root):
            return f"{root} does not exist"
        given = manifest if isinstance(manifest, dict) else {}
        listed = _strings(given["agents"]) if "agents" in given else None
        data = os.path.join(self._folder, "data", key.replace("@", "-"))
        return Plugin(given.get("name", name), root, data, listed, _strings(entry.get("agents")))


def _declared(markets: Mapping[str, Any]) -> dict[str, Any]:
    """Marketplaces in directories that the user's settings name: the CLI records them at its next start."""
    paths = {name: text_in(dict_in(market, "source"), "path") for name, market in markets.items()}
    return {
        name: {**markets[name], "installLocation": path}
        for name, path in paths.items()
        if path and _is_directory(markets[name])
    }


def _is_directory(market: Any) -> bool:
    return text_in(dict_in(market, "source"), "source") == "directory"


def _within(base: str, source: str, offers: Mapping[str, Any]) -> str | None:
    """Locate a plugin in its marketplace; a bare name is relative to the marketplace's ``pluginRoot``."""
    above: Any = ""
    if not source.startswith("./") and source != ".":
        above = dict_in(offers, "metadata").get("pluginRoot")
        if not isinstance(above, str):
            return None
    path = os.path.normpath(os.path.join(base, above, source))
    return path if ".." not in source.split("/") and is_within(path, os.path.normpath(base)) else None


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _complaint(manifest: dict[str, Any] | Fault | None) -> str | None:
    """Return why the CLI does not load a plugin with this manifest. A missing manifest is valid."""
    if manifest is None:
        return None
    if isinstance(manifest, Fault):
        return manifest.reason
    name, agents = manifest.get("name"), manifest.get("agents", [])
    if not isinstance(name, str) or not name or re.search(r"\s", name) or not is_text(name):
        return "has no valid name"
    if not isinstance(manifest.get("version", ""), str):
        return "has a version that is not a string"
    listed = [agents] if isinstance(agents, str) else agents
    files = listed if isinstance(listed, list) else [None]
    if not all(isinstance(path, str) and path.startswith("./") and path.endswith(".md") for path in files):
        return "has a list of agents that does not name files"
    return None


def _strings(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, str))


# --- Agents of plugins --------------------------------------------------------------------------------------


def plugin_head(head: Head | Fault, content: bytes, plugin: Plugin, name: str) -> Head:
    """Return the frontmatter of a plugin's agent under its listed name, with placeholders in its body replaced.

    The CLI loads a file without valid frontmatter too, under its file's name.
    """
    if isinstance(head, Fault):
        head = Head({}, split(decode(content))[1].strip())
    description = head.values.get("description")
    described = _as_text(description).strip() if isinstance(description, str | int | float) else ""
    values = {**head.values, "name": name, "description": described or f"Agent from {plugin.name} plugin"}
    body = head.body.replace("${CLAUDE_PLUGIN_ROOT}", plugin.root).replace("${CLAUDE_PLUGIN_DATA}", plugin.data)
    return head._replace(values=values, body=body)


def plugin_agent_name(head: Head | Fault, stem: str) -> str:
    """Return the name that the CLI uses: any scalar as text, else the file's stem."""
    text = _as_text(head.values.get("name")) if isinstance(head, Head) else ""
    return text if text and len(text) <= MAX_NAME and is_text(text) else stem


def _as_text(value: Any) -> str:
    """Convert a value to a string as JavaScript does."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e21 else str(value)
    if isinstance(value, list):
        return ",".join(map(_as_text, value))
    return "[object Object]" if isinstance(value, dict) else str(value)
