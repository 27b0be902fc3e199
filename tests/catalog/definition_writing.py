"""Writing definitions for tests."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, head: str = "", body: str = "Body.") -> Path:
    """A file with a head and a body."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\n{head}\n---\n{body}\n")
    return path


def agent(folder: Path, name: str, file: str | None = None, more: str = "") -> Path:
    """A definition in a project's folder."""
    return put(folder / ".claude" / "agents" / (file or f"{name}.md"), f"name: {name}\ndescription: d\n{more}")
