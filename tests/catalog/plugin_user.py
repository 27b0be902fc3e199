"""A user with plugins: a marketplace in a directory, the CLI's notes about it, and settings that switch things on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.catalog.entries import AgentEntry, Found, Problem
from hocket.catalog.file_probe import FileProbe
from hocket.catalog.plugins import plugins

ALPHA = "alpha@market"


def head(name: str, description: str = "does it", **more: str) -> str:
    lines = {"name": name, "description": description, **more}
    return "---\n" + "".join(f"{key}: {value}\n" for key, value in lines.items()) + f"---\nYou are {name}.\n"


def put(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


class User:
    """Its home, one project, one marketplace."""

    def __init__(self, root: Path) -> None:
        self.home = root / "user"
        self.project = root / "project"
        self.market = root / "market"
        self.kept = self.home / ".claude/plugins"
        self.env = {"HOME": str(self.home)}
        self.managed = root / "managed.json"
        self._offers: list[dict[str, Any]] = []
        self.home.mkdir()
        self.project.mkdir()
        put(self.kept / "known_marketplaces.json", {"market": self.known("directory", self.market)})

    def known(self, kind: str, where: Path) -> dict[str, Any]:
        source = {"source": kind, "path": str(where)} if kind == "directory" else {"source": kind, "repo": "a/b"}
        return {"source": source, "installLocation": str(where), "lastUpdated": "2026-01-01T00:00:00.000Z"}

    def offer(self, name: str, files: Mapping[str, str], manifest: Any = None, **entry: Any) -> Path:
        """Add a plugin to the marketplace; False as its manifest means none."""
        folder = self.market / name
        folder.mkdir(parents=True)
        if manifest is not False:
            put(folder / ".claude-plugin/plugin.json", manifest or {"name": name, "version": "1.0.0"})
        for file, text in files.items():
            put(folder / file, text)
        self._offers.append({"name": name, "source": f"./{name}", **entry})
        self.publish()
        return folder

    def publish(self, **more: Any) -> None:
        listed = {"name": "market", "owner": {"name": "owner"}, "plugins": self._offers, **more}
        put(self.market / ".claude-plugin/marketplace.json", listed)

    def switch(self, *keys: str, where: str = "user", on: Any = True) -> Path:
        paths = {
            "user": self.home / ".claude/settings.json",
            "project": self.project / ".claude/settings.json",
            "local": self.project / ".claude/settings.local.json",
            "managed": self.managed,
        }
        return put(paths[where], {"enabledPlugins": dict.fromkeys(keys, on)})

    def installed(self, **records: Any) -> None:
        put(self.kept / "installed_plugins.json", {"version": 2, "plugins": records})

    def record(self, path: Path, scope: str = "user", **more: Any) -> dict[str, Any]:
        when = "2026-01-01T00:00:00.000Z"
        about = {"version": "1.0.0", "installedAt": when, "lastUpdated": when}
        return {"scope": scope, "installPath": str(path), **about, **more}

    def found(self, *, trusted: bool = True, cwd: Path | None = None, **env: str) -> list[Found]:
        where = str(cwd or self.project)
        return plugins(FileProbe(), where, self.env | env, trusted=trusted, managed=str(self.managed))

    def entries(self, **how: Any) -> dict[str, AgentEntry]:
        listed = [entry for found in self.found(**how) for entry in found.entries]
        # The first of a name wins, as in every source.
        return {entry.name: entry for entry in reversed(listed)}

    def names(self, **how: Any) -> list[str]:
        return sorted(self.entries(**how))

    def problems(self, **how: Any) -> list[Problem]:
        return [problem for found in self.found(**how) for problem in found.problems]
