"""Texts about a catalog: summary, trace, report, and why one agent won over another."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.catalog.configs import is_default_config
from hocket.catalog.entries import (
    ALIAS,
    CONFIG,
    GLOBAL,
    LOCATIONS,
    PROJECT,
    SOURCES,
    Catalog,
    Entry,
    Problem,
    SearchedPlace,
)
from hocket.catalog.programs import did_you_mean
from hocket.catalog.routing_table import CLI_LOADS, problem_row
from hocket.config.settings import DEFAULT_PERMISSION_MODE, AgentConfig, Config, approve_command
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
    agents = list(table["by_name"].values())
    locations = [agent["location"] for agent in agents]
    parts = [f"{number} {word}" for word in _in_order(locations) if (number := locations.count(word))]
    parts += _conflicts(table, locations)
    problems = len(table["problems"])
    parts += [count(problems, "problem")] if problems else []
    head = count(len(agents), "agent") if agents else "no agents"
    return f"{head}: {', '.join(parts)}" if parts else head


def _in_order(locations: Sequence[str]) -> list[str]:
    """Return the two documented locations first."""
    return [*DOCUMENTED, *sorted(set(locations) - set(DOCUMENTED))]


def _conflicts(table: Table, locations: Sequence[str]) -> list[str]:
    overrides = len(table["overrides"])
    if overrides:
        return [count(overrides, "override")]
    return ["no conflicts"] if all(location in locations for location in DOCUMENTED) else []


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
    return [
        *(line for location in DOCUMENTED for line in _looked(table, location, shown)),
        *(_looked_beside(place, shown) for place in table["places"] if place["source"] not in DOCUMENTED),
        "Merging: project-local agents override global ones of the same name",
        f"Total agents after merge: {table['total_count']}{_more(table)}",
        _overridden(table),
        *([f"{count(len(table['problems']), 'problem')} found"] if table["problems"] else []),
        "Building the routing table by name, tag and location",
        "Discovery complete",
    ]


def _looked(table: Table, location: str, shown: Shown) -> list[str]:
    places = _places(table, location)
    where = ", then ".join(shown(place["path"]) for place in places) or "no folder, because HOME is not set"
    found = sum(place["found"] for place in places)
    return [
        f"Starting {location} discovery: {where}",
        f"Found {_agents(found, location)}{'' if found else _empty(places)}",
    ]


def _agents(found: int, location: str) -> str:
    return count(found, f"{location} agent") if found else f"no {location} agents"


def _empty(places: Sequence[Mapping[str, Any]]) -> str:
    if not places:
        return ""
    return " (the folder is empty)" if any(place["exists"] for place in places) else " (the folder does not exist)"


def _looked_beside(place: Mapping[str, Any], shown: Shown) -> str:
    missing = "" if place["exists"] else " does not exist"
    return f"Found {_agents(place['found'], place['source'])}: {shown(place['path'])}{missing}"


def _more(table: Table) -> str:
    others = len(table["by_name"]) - int(table["total_count"])
    return f" (and {others} from other sources)" if others else ""


def _overridden(table: Table) -> str:
    names = ", ".join(override["name"] for override in table["overrides"])
    return f"Overrides detected: {names}" if names else "No overrides detected"


# --- The report ---------------------------------------------------------------------------------------------


def markdown(table: Table, shown: Shown = str) -> str:
    """Return the catalog as a Markdown document."""
    further = [location for location in LOCATIONS.values() if location not in DOCUMENTED]
    sections = [
        f"# Agent discovery report\n\n**Total agents:** {table['total_count']}{_more(table)}",
        *(_section(table, location, shown) for location in DOCUMENTED),
        _overrides_section(table, shown),
        *(_section(table, location, shown) for location in further if _names(table, location)),
        _problems_section(table, shown),
    ]
    return "\n\n".join(sections) + "\n"


def _section(table: Table, location: str, shown: Shown) -> str:
    folders = ", ".join(f"`{shown(place['path'])}`" for place in _places(table, location))
    title = f"{location.capitalize()} agents{f' ({folders})' if folders else ''}"
    return f"## {title}\n\n{_listed(_names(table, location), 'agent')}"


def _names(table: Table, location: str) -> list[str]:
    return [name for name, agent in table["by_name"].items() if agent["location"] == location]


def _listed(names: Sequence[str], noun: str) -> str:
    return f"{count(len(names), noun)}\n\n{', '.join(names) or 'None'}"


def _overrides_section(table: Table, shown: Shown) -> str:
    overrides = table["overrides"]
    lines = [
        f"- **{override['name']}**\n"
        f"  - Project: `{shown(override['project_path'])}`\n"
        f"  - Global: `{shown(override['global_path'])}`{_newer(override)}"
        for override in overrides
    ]
    told = "\n".join(lines) or "None"
    return f"## Overrides (project-local before global)\n\n{count(len(overrides), 'override')}\n\n{told}"


def _newer(override: Mapping[str, Any]) -> str:
    ours, theirs = override.get("project_version"), override.get("global_version")
    return f"\n  - Versions: project {ours}, global {theirs}" if ours != theirs else ""


def _problems_section(table: Table, shown: Shown) -> str:
    problems = table["problems"]
    lines = [f"- `{at(problem, shown)}`: {problem['reason']}{loaded_note(problem)}" for problem in problems]
    told = "\n".join(lines) or "None"
    return f"## Problems\n\n{count(len(problems), 'problem')}\n\n{told}"


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
    for problem in catalog.problems:
        if problem.kind in UNSEEN and stem(problem.path) == word:
            hint = f"{at(problem_row(problem))} is not used: {problem.reason}"
            break
    else:
        known = [*catalog.addresses, *catalog.addresses.values()]
        hint = did_you_mean(word, known) or "`hocket agents` lists all agents"
    raise AgentNotFound(f"there is no agent {word!r}", hint)


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


class Candidate(NamedTuple):
    """One place that was searched for a name, and the result."""

    verdict: str
    source: str
    path: str
    line: int | None = None
    reason: str | None = None


class PropertyOrigin(NamedTuple):
    """One property of an agent: its value, and where it is set."""

    field: str
    value: Any
    origin: str
    """``file``, ``configuration`` or ``default``."""
    path: str | None = None
    line: int | None = None
    instead_of: Any = None
    """The definition's value that the configuration replaces."""


def why(catalog: Catalog, table: Table, name: str, config: Config) -> dict[str, Any]:
    """Return why this agent won: candidates, properties, what it hides, whether it needs approval."""
    agent = table["by_name"][name]
    kept = ("name", "address", "location", "source", "path", "shadows", "needs_trust")
    return {
        **{key: agent[key] for key in kept},
        "candidates": [candidate._asdict() for candidate in candidates(catalog, name)],
        "fields": [said._asdict() for said in fields(catalog.ranked[name][0], agent, config)],
        "note": note(agent),
        "trust": trust_line(agent),
    }


def candidates(catalog: Catalog, name: str) -> list[Candidate]:
    """Return every place with what it has under a name, highest precedence first."""
    entries = catalog.ranked[name]
    found: list[Candidate] = []
    for source in SOURCES:
        places = [place for place in catalog.places if place.source == source]
        own = [entry for entry in entries if entry.source == source]
        for place in places:
            found += _at_place(place, own, entries[0], _problems_of(catalog, place, name, entries))
        strays = [entry for entry in own if not any(_is_in(entry.path, place.path) for place in places)]
        found += [_candidate(entry, entries[0]) for entry in strays]
    return found


def _at_place(
    place: SearchedPlace, own: Sequence[Entry], winner: Entry, problems: Sequence[Problem]
) -> Iterator[Candidate]:
    here = [entry for entry in own if _is_in(entry.path, place.path)]
    yield from (_candidate(entry, winner) for entry in here)
    source = LOCATIONS[place.source]
    yield from (Candidate(LEFT_OUT, source, one.path, one.line, one.reason) for one in problems)
    if not here and not problems:
        yield Candidate(NOTHING_HERE if place.exists else ABSENT, source, place.path)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _candidate(entry: Entry, winner: Entry) -> Candidate:
    line = entry.lines.get("name")
    if entry is winner:
        return Candidate(USED, LOCATIONS[entry.source], entry.path, line)
    return Candidate(SHADOWED, LOCATIONS[entry.source], entry.path, line, _beaten(entry, winner))


def _beaten(entry: Entry, winner: Entry) -> str:
    if entry.source == winner.source:
        return "a nearer one has the same name"
    return f"{LOCATIONS[winner.source]} comes before {LOCATIONS[entry.source]}"


def _problems_of(catalog: Catalog, place: SearchedPlace, name: str, entries: Sequence[Entry]) -> list[Problem]:
    """Return the unused files below a place that probably have this name."""
    paths = [entry.path for entry in entries]
    return [
        problem
        for problem in catalog.problems
        if problem.kind in UNSEEN
        and problem.path not in paths
        and _is_in(problem.path, place.path)
        and (stem(problem.path) == name or _is_second(problem, paths))
    ]


def _is_second(problem: Problem, paths: Sequence[str]) -> bool:
    return problem.kind == DUPLICATE and any(path in problem.reason for path in paths)


# --- Properties ---------------------------------------------------------------------------------------------

_VERSION = "1.0.0"
_FIRST = ("name", "description", "version", "model", "permission_mode", "tools", "allowed_tools", "prompt", "args")
_ALIAS_FIELDS = {
    "model": "model",
    "permission_mode": "permission_mode",
    "allowed_tools": "allowed_tools",
    "args": "args",
    "prompt": "default_prompt",
    "prompt_file": "default_prompt_file",
}


def fields(entry: Entry, agent: Mapping[str, Any], config: Config) -> list[PropertyOrigin]:
    """Return each property of an agent with its origin: file and line, configuration, or default."""
    said = {field: PropertyOrigin(field, value, "default") for field, value in _defaults(entry).items()}
    said |= {one.field: one for one in _from_config(said, config)}
    said |= {one.field: one for one in _from_file(entry, agent)}
    alias = config.agents.get(entry.name)
    said |= {one.field: one for one in _from_alias(alias, said)} if alias else {}
    order = [*_FIRST, *(field for field in said if field not in _FIRST)]
    return [said[field] for field in order if field in said]


def spelled(key: str) -> str:
    """Convert a key to snake_case."""
    return _CAMEL_HUMP.sub("_", key).replace("-", "_").lower()


def _defaults(entry: Entry) -> dict[str, Any]:
    common: dict[str, Any] = {"description": "", "version": _VERSION, "prompt": None, "args": []}
    if entry.source == ALIAS and DEFINITIONS.marker not in (entry.target or ""):
        return common  # possibly a plain program
    return {**common, "model": None, "permission_mode": DEFAULT_PERMISSION_MODE, "tools": None}


def _from_config(defaults: Mapping[str, PropertyOrigin], config: Config) -> Iterator[PropertyOrigin]:
    """Yield the configured defaults; their file is known only if there is just one."""
    path = config.files[0] if len(config.files) == 1 else None
    for field, value in (("model", config.default_model), ("permission_mode", config.default_permission_mode)):
        if field in defaults and value != defaults[field].value:
            yield PropertyOrigin(field, value, "configuration", path)


def _from_file(entry: Entry, agent: Mapping[str, Any]) -> Iterator[PropertyOrigin]:
    origin = "configuration" if entry.source == ALIAS else "file"
    yield PropertyOrigin("name", entry.name, origin, entry.path, entry.lines.get("name"))
    if entry.description:
        yield PropertyOrigin("description", entry.description, origin, entry.path, entry.lines.get("description"))
    if entry.version != _VERSION or "version" in entry.lines:
        yield PropertyOrigin("version", entry.version, origin, entry.path, entry.lines.get("version"))
    for key, value in agent["full_metadata"].items():
        if value is not None and spelled(key) not in ("name", "description", "version"):
            yield PropertyOrigin(_by_meaning(spelled(key)), value, origin, entry.path, entry.lines.get(key))
    yield PropertyOrigin("instructions", None, origin, entry.target or entry.path)


def _by_meaning(field: str) -> str:
    """Translate two names of an alias."""
    return {"default_prompt": "prompt", "default_prompt_file": "prompt_file"}.get(field, field)


def _from_alias(alias: AgentConfig, said: Mapping[str, PropertyOrigin]) -> Iterator[PropertyOrigin]:
    for field, attribute in _ALIAS_FIELDS.items():
        value = getattr(alias, attribute)
        if value is None or value == ():
            continue
        before = said.get(field)
        hidden = before.value if before is not None and before.origin == "file" else None
        shown = list(value) if isinstance(value, tuple) else value
        yield PropertyOrigin(field, shown, "configuration", alias.source, None, hidden)
