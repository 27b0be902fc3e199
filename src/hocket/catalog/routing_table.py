"""The catalog as a routing table: plain values, in the shape that ``agents --json`` promises.

Everything in a table is a copy, so whoever gets one may change it. What is in a catalog is decided in ``discovery``;
how a person is told about it, elsewhere.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hocket.catalog.entries import (
    GLOBAL,
    LINKED,
    LOCATIONS,
    PROJECT,
    SOURCES,
    Catalog,
    Entry,
    Open,
    Place,
    Problem,
)

Table = dict[str, Any]
NeedsTrust = Callable[[Entry], Open]

GLOBAL_ONLY, LOCAL_ONLY, LOCAL_OVERRIDE = "global-only", "project-local-only", "project-local-override"
_MAX_BITS = 1024
"""Of a number that is still written in digits: neither we nor whoever reads it can do so with one of any size."""
DOCUMENTED = (GLOBAL_ONLY, LOCAL_ONLY, LOCAL_OVERRIDE)
"""Always there, and the only ones that count as the total: the two places that everybody has."""
FURTHER = tuple(source for source in SOURCES if source not in {GLOBAL, PROJECT})


def nothing_to_approve(_entry: Entry) -> Open:
    return Open()


def routing_table(catalog: Catalog, needs_trust: NeedsTrust = nothing_to_approve) -> Table:
    """All agents that can run, by name, tag and place; what they hide; and which files have something wrong."""
    linked = _linked_paths(catalog.problems)
    by_name = {
        name: _row(ranked, catalog.addresses[name], linked, needs_trust(ranked[0]))
        for name, ranked in catalog.ranked.items()
    }
    by_location = _by_location(by_name)
    return {
        "by_name": by_name,
        "by_tags": _by_tags(by_name),
        "by_location": by_location,
        "overrides": [_override(ranked) for ranked in catalog.ranked.values() if _kind(ranked) == LOCAL_OVERRIDE],
        "shadowed": [loser for ranked in catalog.ranked.values() for loser in _losers(ranked)],
        **_counts(by_location),
        "problems": [_problem(problem) for problem in sorted(catalog.problems, key=_where)],
        "places": [_place(place) for place in catalog.places],
    }


def render(table: Mapping[str, Any]) -> bytes:
    """What ``agents --json`` prints: one line in ASCII, without control characters."""
    text = json.dumps(table, allow_nan=False, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f").encode() + b"\n"


# --- One agent ----------------------------------------------------------------------------------------------


def _kind(ranked: Sequence[Entry]) -> str:
    """Where the agent comes from, in the words of the table's ``source``."""
    winner = ranked[0]
    if winner.source == GLOBAL:
        return GLOBAL_ONLY
    if winner.source != PROJECT:
        return winner.source
    return LOCAL_OVERRIDE if _hidden_global(ranked) else LOCAL_ONLY


def _hidden_global(ranked: Sequence[Entry]) -> Entry | None:
    return next((loser for loser in ranked[1:] if loser.source == GLOBAL), None)


def _row(ranked: Sequence[Entry], address: str, linked: frozenset[str], needs: Open) -> Table:
    entry, kind = ranked[0], _kind(ranked)
    hidden = _hidden_global(ranked) if kind == LOCAL_OVERRIDE else None
    row = {
        "name": entry.name,
        "address": address,
        "location": LOCATIONS[entry.source],
        "source": kind,
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
    if _is_linked(entry.path, linked):
        row["linked"] = True
    shadows = [{"source": LOCATIONS[loser.source], "path": loser.path} for loser in ranked[1:]]
    return row | {"shadows": shadows, "needs_trust": list(needs.reasons), "trust_targets": list(needs.targets)}


def _linked_paths(problems: Iterable[Problem]) -> frozenset[str]:
    return frozenset(problem.path for problem in problems if problem.kind == LINKED)


def _is_linked(path: str, linked: frozenset[str]) -> bool:
    """Whether the file, or a folder that it lies in, is a link."""
    return bool(linked) and any(part in linked for part in _upwards(path))


def _upwards(path: str) -> Iterator[str]:
    while len(path) > 1:
        yield path
        path = path.rpartition("/")[0]


def plain(value: Any) -> Any:
    """A copy that JSON can say: what a file's head may hold beyond that is spelled as text, and no number is lost."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return hex(value)
    return value if value is None or isinstance(value, str | int) else str(value)


# --- All of them --------------------------------------------------------------------------------------------


def _by_tags(by_name: Mapping[str, Table]) -> dict[str, list[str]]:
    tagged: dict[str, list[str]] = {}
    for name in sorted(by_name):
        for tag in dict.fromkeys(by_name[name]["tags"]):
            tagged.setdefault(tag, []).append(name)
    return dict(sorted(tagged.items()))


def _by_location(by_name: Mapping[str, Table]) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {kind: [] for kind in (*DOCUMENTED, *FURTHER)}
    for name in sorted(by_name):
        lists[by_name[name]["source"]].append(name)
    return {kind: names for kind, names in lists.items() if names or kind in DOCUMENTED}


def _counts(by_location: Mapping[str, Sequence[str]]) -> dict[str, int]:
    sizes = {kind: len(by_location.get(kind, ())) for kind in (*DOCUMENTED, *FURTHER)}
    return {
        "total_count": sum(sizes[kind] for kind in DOCUMENTED),
        "global_count": sizes[GLOBAL_ONLY],
        "project_local_count": sizes[LOCAL_ONLY] + sizes[LOCAL_OVERRIDE],
        **{f"{kind}_count": sizes[kind] for kind in FURTHER},
    }


def _losers(ranked: Sequence[Entry]) -> list[Table]:
    return [
        {"name": loser.name, "source": LOCATIONS[loser.source], "path": loser.path, "by": ranked[0].path}
        for loser in ranked[1:]
    ]


def _override(ranked: Sequence[Entry]) -> Table:
    winner, hidden = ranked[0], _hidden_global(ranked)
    assert hidden is not None  # noqa: S101 - only overrides are asked about
    return {
        "name": winner.name,
        "project_path": winner.path,
        "global_path": hidden.path,
        "project_version": winner.version,
        "global_version": hidden.version,
        "newer": newer(winner.version, hidden.version),
    }


def _where(problem: Problem) -> tuple[str, int, str, str]:
    return problem.path, problem.line or 0, problem.kind, problem.reason


def _problem(problem: Problem) -> Table:
    return {
        "path": problem.path,
        "line": problem.line,
        "reason": problem.reason,
        "claude_loads": problem.claude_loads,
        "kind": problem.kind,
    }


def _place(place: Place) -> Table:
    return {**place._asdict(), "source": LOCATIONS[place.source]}


# --- Versions -----------------------------------------------------------------------------------------------

_VERSION = re.compile(r"[vV]?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?:-([0-9A-Za-z.-]{1,64}))?(?:\+.*)?")


def newer(project: str, hidden: str) -> str | None:
    """Which of two versions is the later one: "project", "global", "same"; None when nobody can tell."""
    if project == hidden:
        return "same"
    ours, theirs = _order(project), _order(hidden)
    if ours is None or theirs is None:
        return None
    if ours == theirs:
        return "same"
    return "project" if ours > theirs else "global"


def _order(version: str) -> tuple[Any, ...] | None:
    """Something that sorts as versions do: by number, a preview before the release that it leads to."""
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 1.0 and 1.0.0 are the same
    preview = found[2]
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in preview.split(".")] if preview else []
    return tuple(numbers), preview is None, tuple(parts)
