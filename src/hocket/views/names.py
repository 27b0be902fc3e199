"""Names for lists and logs: of agents given by path, of projects, of Hocket's own tools, of kinds of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hocket.views.text import one_line

PROCESS_KINDS = ("leaf", "lead")
"""Kinds of runs that are one process; every other kind only has runs below it."""
_ARROW = re.compile(r"\s*->\s*")
_STEP = re.compile(r"(.*?)(\s*:\s*[0-9]+)?", re.DOTALL)


def agent_name(agent: str) -> str:
    """``builder`` for ``/srv/.claude/agents/builder.md``, also inside the text of a chain; other names as given."""
    if "/" not in agent:
        return one_line(agent)
    return one_line(" -> ".join(map(_stage_name, _ARROW.split(agent))))


def _stage_name(stage: str) -> str:
    """The name of one agent, or the names of a group."""
    if stage.startswith("(") and stage.endswith(")"):
        return f"({', '.join(_step_name(member.strip()) for member in stage[1:-1].split(','))})"
    return _step_name(stage)


def _step_name(step: str) -> str:
    found = _STEP.fullmatch(step)
    path, count = (found[1], found[2] or "") if found else (step, "")
    return (path.rstrip("/").rpartition("/")[2].removesuffix(".md") or path) + count


def project_names(folders: Iterable[str]) -> dict[str, str]:
    """The shortest end of each path that no other path has: ``api``, or ``shop/api`` beside ``blog/api``."""
    parts = {folder: [part for part in folder.split("/") if part] for folder in folders}
    ends: dict[tuple[str, ...], int] = {}
    for path in parts.values():
        for length in range(1, len(path) + 1):
            end = tuple(path[-length:])
            ends[end] = ends.get(end, 0) + 1
    names: dict[str, str] = {}
    for folder, path in parts.items():
        unique = (path[-length:] for length in range(1, len(path) + 1) if ends[tuple(path[-length:])] == 1)
        names[folder] = one_line("/".join(next(unique, []))) or one_line(folder)
    return names


def tool_name(tool: str) -> str:
    """``hand_off`` for ``mcp__hocket__hand_off``; other tools as their CLI names them."""
    return tool.removeprefix("mcp__hocket__")
