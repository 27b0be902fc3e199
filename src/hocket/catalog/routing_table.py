"""The catalog as a routing table: a copy in plain values, in the shape of ``agents --json``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hocket.catalog.entries import (
    GLOBAL,
    LOCATIONS,
    PROJECT,
    SOURCES,
    AgentEntry,
    Catalog,
    Problem,
)
from hocket.providers.definition_files import LINKED

Table = dict[str, Any]
NeededApproval = tuple[Sequence[str], Sequence[str]]
"""Why an agent needs approval before it may run, and the paths to approve."""
NeedsTrust = Callable[[AgentEntry], NeededApproval]

GLOBAL_ONLY, LOCAL_ONLY, LOCAL_OVERRIDE = "global-only", "project-local-only", "project-local-override"
CLI_LOADS = "claude_loads"
"""The key of a problem that tells whether the CLI loads the file."""
_MAX_BITS = 1024
"""Integers of more bits are written as hexadecimal text."""
DOCUMENTED = (GLOBAL_ONLY, LOCAL_ONLY, LOCAL_OVERRIDE)
"""Always present, and the only ones in the total count."""
FURTHER = tuple(source for source in SOURCES if source not in {GLOBAL, PROJECT})


def routing_table(catalog: Catalog, needs_trust: NeedsTrust = lambda _: ((), ())) -> Table:
    """Return all agents by name, tag and location, with overrides and problems."""
    links = [problem.path for problem in catalog.problems if problem.kind == LINKED]
    by_name = {
        name: _row(ranked, catalog.addresses[name], links, needs_trust(ranked[0]))
        for name, ranked in catalog.ranked.items()
    }
    by_tags: dict[str, list[str]] = {}
    by_location: dict[str, list[str]] = {kind: [] for kind in (*DOCUMENTED, *FURTHER)}
    for name in sorted(by_name):
        by_location[by_name[name]["source"]].append(name)
        for tag in dict.fromkeys(by_name[name]["tags"]):
            by_tags.setdefault(tag, []).append(name)
    sizes = {kind: len(names) for kind, names in by_location.items()}
    problems = sorted(catalog.problems, key=lambda one: (one.path, one.line or 0, one.kind, one.reason))
    return {
        "by_name": by_name,
        "by_tags": dict(sorted(by_tags.items())),
        "by_location": {kind: names for kind, names in by_location.items() if names or kind in DOCUMENTED},
        "overrides": [
            _override(ranked[0], hidden) for ranked in catalog.ranked.values() if (hidden := _hidden_global(ranked))
        ],
        "shadowed": [
            {"name": loser.name, "source": LOCATIONS[loser.source], "path": loser.path, "by": ranked[0].path}
            for ranked in catalog.ranked.values()
            for loser in ranked[1:]
        ],
        "total_count": sum(sizes[kind] for kind in DOCUMENTED),
        "global_count": sizes[GLOBAL_ONLY],
        "project_local_count": sizes[LOCAL_ONLY] + sizes[LOCAL_OVERRIDE],
        **{f"{kind}_count": sizes[kind] for kind in FURTHER},
        "problems": [problem_row(problem) for problem in problems],
        "places": [{**place._asdict(), "source": LOCATIONS[place.source]} for place in catalog.places],
    }


def render(table: Mapping[str, Any]) -> bytes:
    """Return the output of ``agents --json``: one line of ASCII without control characters."""
    text = json.dumps(table, allow_nan=False, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f").encode() + b"\n"


# --- One agent ----------------------------------------------------------------------------------------------


def _kind(ranked: Sequence[AgentEntry]) -> str:
    """Return the table's ``source`` of an agent."""
    winner = ranked[0]
    if winner.source == GLOBAL:
        return GLOBAL_ONLY
    if winner.source != PROJECT:
        return winner.source
    return LOCAL_OVERRIDE if _hidden_global(ranked) else LOCAL_ONLY


def _hidden_global(ranked: Sequence[AgentEntry]) -> AgentEntry | None:
    """Return the global agent that a project's agent overrides."""
    return next((loser for loser in ranked[1:] if loser.source == GLOBAL and ranked[0].source == PROJECT), None)


def _row(ranked: Sequence[AgentEntry], address: str, links: Sequence[str], needs: NeededApproval) -> Table:
    entry, hidden, (reasons, targets) = ranked[0], _hidden_global(ranked), needs
    row = {
        "name": entry.name,
        "address": address,
        "location": LOCATIONS[entry.source],
        "source": _kind(ranked),
        "path": entry.path,
        "description": entry.description,
        "tags": list(entry.tags),
        "delegates_to": list(entry.delegates_to),
        "version": entry.version,
        "model": entry.model,
        "full_metadata": plain(entry.metadata),
        "overridden": hidden is not None,
    }
    if hidden:
        row["overridden_global_path"] = hidden.path
    if entry.project is not None:
        row["project"] = entry.project
    if entry.target is not None:
        row["target"] = entry.target
    if any(entry.path == link or entry.path.startswith(f"{link}/") for link in links):
        row["linked"] = True
    shadows = [{"source": LOCATIONS[loser.source], "path": loser.path} for loser in ranked[1:]]
    return row | {"shadows": shadows, "needs_trust": list(reasons), "trust_targets": list(targets)}


def plain(value: Any) -> Any:
    """Copy a value for JSON; what JSON cannot express becomes text."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return hex(value)
    return value if value is None or isinstance(value, str | int) else str(value)


def _override(winner: AgentEntry, hidden: AgentEntry) -> Table:
    return {
        "name": winner.name,
        "project_path": winner.path,
        "global_path": hidden.path,
        "project_version": winner.version,
        "global_version": hidden.version,
        "newer": newer(winner.version, hidden.version),
    }


def problem_row(problem: Problem) -> Table:
    return {
        "path": problem.path,
        "line": problem.line,
        "reason": problem.reason,
        CLI_LOADS: problem.cli_loads,
        "kind": problem.kind,
    }


# --- Versions -----------------------------------------------------------------------------------------------

_VERSION = re.compile(r"[vV]?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?:-([0-9A-Za-z.-]{1,64}))?(?:\+.*)?")


def newer(project: str, hidden: str) -> str | None:
    """Return which version is later: "project", "global" or "same"; None if they cannot be compared."""
    if project == hidden:
        return "same"
    ours, theirs = _order(project), _order(hidden)
    if ours is None or theirs is None:
        return None
    if ours == theirs:
        return "same"
    return "project" if ours > theirs else "global"


def _order(version: str) -> tuple[Any, ...] | None:
    """Return a sort key: by number, a pre-release before its release."""
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 1.0 and 1.0.0 are the same
    preview = found[2]
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in preview.split(".")] if preview else []
    return tuple(numbers), preview is None, tuple(parts)
