"""A user and a project to look for agents in: private folders, and the real discovery."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import PATIENCE

from hocket.catalog.cache import is_settled
from hocket.catalog.discovery import discover
from hocket.catalog.entries import Catalog
from hocket.catalog.routing_table import routing_table
from hocket.config.loading import load
from hocket.trust.approvals import Approvals


class AgentWorld:
    """Its user lives in ``home``, its project in ``project``; nothing but these is there."""

    def __init__(self, root: Path) -> None:
        self.user = root / "user"
        self.home = root / "state"
        self.project = root / "project"
        self.user.mkdir()
        self.project.mkdir()
        self.env = {"HOME": str(self.user), "PATH": "/usr/bin:/bin"}

    @property
    def globals(self) -> Path:
        return self.user / ".claude" / "agents"

    @property
    def locals(self) -> Path:
        return self.project / ".claude" / "agents"

    @property
    def library(self) -> Path:
        return self.user / ".claude" / "agents-library"

    def catalog(self, cwd: Path | None = None, *, strict: bool = False) -> Catalog:
        where = str(cwd or self.project)
        config = load(where, str(self.home), self.env)
        return discover(where, self.env, str(self.home), config, Approvals(config), strict=strict)

    def table(self, cwd: Path | None = None) -> dict[str, Any]:
        return routing_table(self.catalog(cwd))

    def config(self, text: str, folder: Path | None = None) -> Path:
        path = (folder or self.project) / "hocket.toml"
        path.write_text(text)
        return path

    def agent_config(self, stem: str, **fields: Any) -> Path:
        folder = self.home / "data" / "agents"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}.json"
        given = {"specPath": f"agents/{stem}.md", "allowedTools": "Read", "permissionMode": "plan"}
        path.write_text(json.dumps({"name": stem} | given | fields))
        return path


def write(folder: Path, name: str, *, file: str | None = None, **fields: Any) -> Path:
    """A definition; each field as YAML has it, which for these is JSON."""
    path = folder / (file or f"{name}.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"name": name, "description": f"Does {name}", **fields}
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    path.write_text(f"---\n{lines}---\nYou are {name}.\n")
    return path


def settled(make: Callable[[], Catalog]) -> Catalog:
    """A catalog that may be kept: files that were written a moment ago have to become a little older."""
    end = time.monotonic() + PATIENCE
    while not is_settled(found := make()):
        assert time.monotonic() < end, "what was seen never settles"
    return found
