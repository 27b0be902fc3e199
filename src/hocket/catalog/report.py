"""Texts about a catalog: summary, trace, report, and why one agent won over another."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hocket.catalog.configs import is_default_config
from hocket.catalog.entries import (
    ALIAS,
    CONFIG,
    GLOBAL,
    LOCATIONS,
    PROJECT,
    SOURCES,
    AgentEntry,
    Catalog,
)
from hocket.catalog.files import name_in
from hocket.catalog.names import is_address, similar_names
from hocket.catalog.routing_table import CLI_LOADS, problem_row
from hocket.config.settings import DEFAULT_PERMISSION_MODE, Config, approve_command
from hocket.errors import AgentNotFound
from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import DUPLICATE, HIDDEN, REFUSED, SKIPPED

Table = Mapping[str, Any]
Shown = Callable[[str], str]
"""How a path is displayed."""

DOCUMENTED = (LOCATIONS[GLOBAL], LOCATIONS[PROJECT])
"""The two locations that the counts of the table are about."""
DROPPED = frozenset({SKIPPED, REFUSED, DUPLICATE})
"""Kinds of problems that keep a definition from being used."""
UNSEEN = DROPPED | {HIDDEN}
USED, SHADOWED, LEFT_OUT, ABSENT, NOTHING_HERE = "used", "shadowed", "skipped", "absent", "none"
"""What one place has under a name."""
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def count(number: int, noun: str) -> str:
    """``1 agent``, ``2 agents``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


# --- Summary ------------------------------------------------------------------------------------------------


def summary(table: Table) -> str:
    """``5 agents: 3 global, 2 project-local, no conflicts``."""
    locations = [agent["location"] for agent in table["by_name"].values()]
    in_order = [*DOCUMENTED, *sorted(set(locations) - set(DOCUMENTED))]
    parts = [f"{locations.count(location)} {location}" for location in in_order if location in locations]
    if table["overrides"]:
        parts.append(count(len(table["overrides"]), "override"))
    elif all(location in locations for location in DOCUMENTED):
        parts.append("no conflicts")
    if table["problems"]:
        parts.append(count(len(table["problems"]), "problem"))
    head = count(len(locations), "agent") if locations else "no agents"
    return f"{head}: {', '.join(parts)}" if parts else head


def missing_global_folder(table: Table) -> str | None:
    """Return the global folder if it is missing and there are agents elsewhere."""
    missing = [place["path"] for place in _places(table, LOCATIONS[GLOBAL]) if not place["exists"]]
    return missing[0] if missing and table["by_name"] else None


def _places(table: Table, location: str) -> list[Mapping[str, Any]]:
    return [place for place in table["places"] if place["source"] == location]


def fix_steps(folder: str) -> tuple[str, str, str]:
    """Return how to create global agents."""
    return (
        f"create the folder: mkdir -p {shlex.quote(folder)}",
        "add a definition: a Markdown file with a name and a description in its frontmatter",
        "check the result: hocket agents",
    )


def dropped(problems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the problems that keep a definition from being used."""
    return [problem for problem in problems if problem["kind"] in DROPPED]


# --- Trace --------------------------------------------------------------------------------------------------


def trace(table: Table, shown: Shown = str) -> list[str]:
    """Return the steps of discovery."""
    lines: list[str] = []
    for location in DOCUMENTED:
        places = _places(table, location)
        where = ", then ".join(shown(place["path"]) for place in places) or "no folder, because HOME is not set"
        found = sum(place["found"] for place in places)
        state = "is empty" if any(place["exists"] for place in places) else "does not exist"
        why_none = f" (the folder {state})" if places and not found else ""
        lines += [f"Starting {location} discovery: {where}", f"Found {_agents(found, location)}{why_none}"]
    for place in table["places"]:
        if place["source"] not in DOCUMENTED:
            missing = "" if place["exists"] else " does not exist"
            lines.append(f"Found {_agents(place['found'], place['source'])}: {shown(place['path'])}{missing}")
    overridden = ", ".join(override["name"] for override in table["overrides"])
    return [
        *lines,
        "Merging: project-local agents override global ones of the same name",
        f"Total agents after merge: {_total(table)}",
        f"Overrides detected: {overridden}" if overridden else "No overrides detected",
        *([f"{count(len(table['problems']), 'problem')} found"] if table["problems"] else []),
        "Building the routing table by name, tag and location",
        "Discovery complete",
    ]


def _agents(found: int, location: str) -> str:
    return count(found, f"{location} agent") if found else f"no {location} agents"


def _total(table: Table) -> str:
    total = int(table["total_count"])
    others = len(table["by_name"]) - total
    return f"{total} (and {others} from other sources)" if others else str(total)


# --- The report ---------------------------------------------------------------------------------------------


def markdown(table: Table, shown: Shown = str) -> str:
    """Return the catalog as a Markdown document."""
    names: dict[str, list[str]] = {location: [] for location in LOCATIONS.values()}
    for name, agent in table["by_name"].items():
        names[agent["location"]].append(name)
    overrides, problems = table["overrides"], table["problems"]
    override_lines = [_override_line(override, shown) for override in overrides]
    problem_lines = [f"- `{at(problem, shown)}`: {problem['reason']}{loaded_note(problem)}" for problem in problems]
    further = [location for location in names if location not in DOCUMENTED and names[location]]
    sections = [
        f"# Agent discovery report\n\n**Total agents:** {_total(table)}",
        *(_agents_section(table, location, names[location], shown) for location in DOCUMENTED),
        _section("Overrides (project-local before global)", len(overrides), "override", "\n".join(override_lines)),
        *(_agents_section(table, location, names[location], shown) for location in further),
        _section("Problems", len(problems), "problem", "\n".join(problem_lines)),
    ]
    return "\n\n".join(sections) + "\n"


def _section(title: str, number: int, noun: str, content: str) -> str:
    return f"## {title}\n\n{count(number, noun)}\n\n{content or 'None'}"


def _agents_section(table: Table, location: str, names: Sequence[str], shown: Shown) -> str:
    folders = ", ".join(f"`{shown(place['path'])}`" for place in _places(table, location))
    title = f"{location.capitalize()} agents{f' ({folders})' if folders else ''}"
    return _section(title, len(names), "agent", ", ".join(names))


def _override_line(override: Mapping[str, Any], shown: Shown) -> str:
    project, hidden = override.get("project_version"), override.get("global_version")
    versions = f"\n  - Versions: project {project}, global {hidden}" if project != hidden else ""
    return (
        f"- **{override['name']}**\n"
        f"  - Project: `{shown(override['project_path'])}`\n"
        f"  - Global: `{shown(override['global_path'])}`{versions}"
    )


def at(problem: Mapping[str, Any], shown: Shown = str) -> str:
    """``path:line``."""
    line = problem["line"]
    return shown(problem["path"]) + ("" if line is None else f":{line}")


def loaded_note(problem: Mapping[str, Any]) -> str:
    """Note a file that the CLI loads and Hocket does not."""
    return " (the CLI loads it)" if problem[CLI_LOADS] and problem["kind"] in UNSEEN else ""


# --- One agent ----------------------------------------------------------------------------------------------


def find(catalog: Catalog, word: str) -> str:
    """Return the name that a word means: itself, or the name with that address. Raises AgentNotFound."""
    if entries := catalog.find(word):
        return entries[0].name
    raise AgentNotFound(f"there is no agent {word!r}", suggest_agents(word, catalog))


def suggest_agents(word: str, catalog: Catalog, others: Iterable[str] = ()) -> str:
    """Return a hint for a name that no agent has: the unusable file of that name, or similar names; and the rest.

    ``others`` are names of what is no agent and can be typed as well.
    """
    for problem in catalog.problems:
        if problem.kind in UNSEEN and word in (stem(problem.path), name_in(problem.path)):
            return f"{at(problem_row(problem))} is not used: {problem.reason}"
    near = similar_names(word, [*catalog.addresses.values(), *filter(is_address, catalog.addresses), *others])
    shown = {name for name, address in catalog.addresses.items() if {name, address} & {*near}}
    rest = len(catalog.addresses) - len(shown)
    if not near:
        return f"{count(rest, 'agent') if rest else 'no agent'} can run here: `hocket agents`"
    return f"did you mean {' or '.join(near)}?" + (f" {count(rest, 'other agent')}: `hocket agents`" if rest else "")


def stem(path: str) -> str:
    """Return a definition's file name without its endings."""
    return path.rpartition("/")[2].removesuffix(".deprecated").removesuffix(".md").removesuffix(".deprecated")


def selected(agent: Mapping[str, Any]) -> str:
    """Name an agent with its location."""
    return f"Selected Agent: {agent['name']} ({agent['location']})"


def note(agent: Mapping[str, Any], shown: Shown = str) -> str | None:
    """Explain an agent that overrides another or may be overridden; None for an ordinary one."""
    mine = shown(agent["path"])
    if agent["overridden"]:
        theirs = shown(agent["overridden_global_path"])
        return (
            f"There are two agents of that name. {mine} is used here, because a project's definition wins in its"
            f" project; {theirs} is global and used everywhere else."
        )
    if agent["location"] == LOCATIONS[PROJECT]:
        return "This agent belongs to the project: there is no global one of that name."
    if agent["location"] == LOCATIONS[CONFIG] and is_default_config(agent["full_metadata"]):
        return "This is an unchanged default agent of Hocket: a program of that name on PATH wins."
    return None


def trust_line(agent: Mapping[str, Any]) -> str | None:
    """Return the command that approves the agent; None if it needs no approval."""
    if not agent["needs_trust"]:
        return None
    return approve_command(*agent["trust_targets"])


# --- Why ----------------------------------------------------------------------------------------------------


def why(catalog: Catalog, table: Table, name: str, config: Config, used: AgentEntry | None = None) -> dict[str, Any]:
    """Return why an agent of the catalog is used: candidates, properties, what it hides, whether it needs approval.

    ``used`` is the entry that a run uses, which an alias or a program may replace.
    """
    agent, entry = table["by_name"][name], catalog.ranked[name][0]
    metadata = agent["full_metadata"]
    if used not in (None, entry) and entry.source != ALIAS:
        entry, metadata = used, used.metadata
    copied = ("name", "address", "shadows", "needs_trust")
    return {
        **{key: agent[key] for key in copied},
        "location": LOCATIONS[entry.source],
        "source": entry.source,
        "path": entry.path,
        "candidates": list(candidates(catalog, name, used or entry)),
        "fields": fields(entry, metadata, config),
        "note": note(agent),
        "trust": trust_line(agent),
    }


def candidates(catalog: Catalog, name: str, used: AgentEntry | None) -> Iterator[dict[str, Any]]:
    """Yield every place with what it has under a name, highest precedence first."""
    entries = catalog.ranked[name]
    winner = entries[0] if entries[0].source == ALIAS else used
    paths = [entry.path for entry in entries]
    # Unused files that probably have this name.
    unused = [
        problem
        for problem in catalog.problems
        if problem.kind in UNSEEN
        and problem.path not in paths
        and (
            stem(problem.path) == name or (problem.kind == DUPLICATE and any(path in problem.reason for path in paths))
        )
    ]
    for source in SOURCES:
        unplaced = [entry for entry in entries if entry.source == source]
        for place in catalog.places:
            if place.source != source:
                continue
            here = [entry for entry in unplaced if _is_in(entry.path, place.path)]
            unplaced = [entry for entry in unplaced if entry not in here]
            left_out = [problem for problem in unused if _is_in(problem.path, place.path)]
            yield from (_candidate(entry, winner) for entry in here)
            for one in left_out:
                yield candidate_row(LEFT_OUT, source, one.path, one.line, one.reason)
            if not here and not left_out:
                yield candidate_row(NOTHING_HERE if place.exists else ABSENT, source, place.path)
        yield from (_candidate(entry, winner) for entry in unplaced)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _candidate(entry: AgentEntry, winner: AgentEntry | None) -> dict[str, Any]:
    if entry is winner:
        return candidate_row(USED, entry.source, entry.path, entry.lines.get("name"))
    if winner is None or SOURCES.index(winner.source) > SOURCES.index(entry.source):
        reason = "a default agent of Hocket hides no program of that name"
        return candidate_row(SHADOWED, entry.source, entry.path, None, reason)
    reason = f"{LOCATIONS[winner.source]} comes before {LOCATIONS[entry.source]}"
    if entry.source == winner.source:
        reason = "a nearer one has the same name"
    return candidate_row(SHADOWED, entry.source, entry.path, entry.lines.get("name"), reason)


def candidate_row(
    verdict: str, source: str, path: str, line: int | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"verdict": verdict, "source": LOCATIONS.get(source, source), "path": path, "line": line, "reason": reason}


# --- Properties ---------------------------------------------------------------------------------------------

_VERSION = "1.0.0"
_FIRST = (
    "name",
    "description",
    "version",
    "runtime",
    "model",
    "permission_mode",
    "tools",
    "allowed_tools",
    "prompt",
    "args",
)
_RENAMED = {"default_prompt": "prompt", "default_prompt_file": "prompt_file"}
"""Fields of an alias that are properties of another name."""
_ALIAS_FIELDS = ("runtime", "model", "permission_mode", "allowed_tools", "args", "team", *_RENAMED)


def fields(entry: AgentEntry, metadata: Mapping[str, Any], config: Config) -> list[dict[str, Any]]:
    """Return each property of an agent with its origin: file and line, configuration, or default.

    ``instead_of`` is the definition's value that the configuration replaces.
    """
    found: dict[str, dict[str, Any]] = {}

    def add(
        field: str, value: Any, origin: str, path: str | None = None, line: int | None = None, instead_of: Any = None
    ) -> None:
        found[field] = {"field": field, "value": value, "origin": origin, "path": path, "line": line}
        found[field]["instead_of"] = instead_of

    for field, value in _defaults(entry).items():
        add(field, value, "default")
    # The file of a configured default is known only if there is just one.
    only_file = config.files[0] if len(config.files) == 1 else None
    for field, value in (("model", config.claude.model), ("permission_mode", config.claude.permission_mode)):
        if field in found and value != found[field]["value"]:
            add(field, value, "configuration", only_file)
    origin = "configuration" if entry.source == ALIAS else "file"
    own = {"name": entry.name, "description": entry.description or None, "version": entry.version}
    if entry.version == _VERSION and "version" not in entry.lines:
        own["version"] = None
    written = own | {key: value for key, value in metadata.items() if spelled(key) not in own}
    for key, value in written.items():
        if value is not None:
            add(_RENAMED.get(spelled(key), spelled(key)), value, origin, entry.path, entry.lines.get(key))
    add("instructions", None, origin, entry.target or entry.path)
    alias = config.agents.get(entry.name)
    for attribute in _ALIAS_FIELDS if alias else ():
        field, value = _RENAMED.get(attribute, attribute), getattr(alias, attribute)
        if alias and value not in (None, ()):
            before = found.get(field)
            hidden = before["value"] if before and before["origin"] == "file" else None
            add(field, list(value) if isinstance(value, tuple) else value, "configuration", alias.source, None, hidden)
    return in_order(found)


def in_order(rows: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of properties, the usual ones first."""
    order = [*_FIRST, *(field for field in rows if field not in _FIRST)]
    return [rows[field] for field in order if field in rows]


def spelled(key: str) -> str:
    """Convert a key to snake_case."""
    return _CAMEL_HUMP.sub("_", key).replace("-", "_").lower()


def _defaults(entry: AgentEntry) -> dict[str, Any]:
    common: dict[str, Any] = {"description": "", "version": _VERSION, "prompt": None, "args": []}
    if entry.source == ALIAS and DEFINITIONS.marker not in (entry.target or ""):
        return common  # possibly a plain program
    return {**common, "model": None, "permission_mode": DEFAULT_PERMISSION_MODE, "tools": None}
