"""Hocket's own agents: one small JSON file each in HOCKET_HOME, and the instructions that it points to.

A config says what an agent may do, and a file of the project what it shall do; the five that Hocket brings along have
instructions of their own for projects that have none. Read tolerantly where something is missing, refused where a value
is wrong. Who writes the five into a new home is in the engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from hocket.catalog.entries import CONFIG, ODD, REFUSED, Entry, Found, Place, Problem, Scan
from hocket.catalog.fields import cli_fields, shown
from hocket.catalog.file_probe import MAX_FILE, Look
from hocket.catalog.frontmatter import Fault, Head, decode, parse, split
from hocket.catalog.json_files import parse_object, read_object
from hocket.catalog.names import is_address, validate_agent_name, validate_agent_path
from hocket.catalog.sources import project_roots
from hocket.config import PERMISSION_MODES
from hocket.config.reading import read_bounded
from hocket.errors import AgentNotFound, BadDefinition, ConfigError, HomeError
from hocket.input_limits import is_text
from hocket.model import Definition

MAX_CONFIG = 64 * 1024
_NAME, _SPEC_PATH, _ALLOWED_TOOLS, _PERMISSION_MODE = "name", "specPath", "allowedTools", "permissionMode"
_FROM_SPEC = ("description", "model", "tools", "disallowedTools", "maxTurns", "prompt")
"""What the file with the instructions may say too: nothing by which an agent could do more than its config lets it."""


class AgentFile(NamedTuple):
    """One of Hocket's own agents, as its file has it."""

    name: str
    spec_path: str | None = None
    """The file with its instructions, relative to the project's root."""
    allowed_tools: str | None = None
    permission_mode: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The documented form."""
        return dict(zip((_NAME, _SPEC_PATH, _ALLOWED_TOOLS, _PERMISSION_MODE), self, strict=True))


# --- Those that Hocket brings along -------------------------------------------------------------------------

_LOOKING = "Read Grep Glob Bash(git status *) Bash(git diff *) Bash(git log *) Bash(git show *)"
_TESTING = (
    "Bash(make test *) Bash(npm test *) Bash(npm run test *) Bash(pytest *) Bash(python -m pytest *)"
    " Bash(cargo test *) Bash(go test *)"
)
_HAND_OFF = "Bash(hocket handoff *) Bash(scripts/agent/handoff.sh *)"
_TOOLS = {
    "developer": f"{_LOOKING} Edit Write Bash(git add *) Bash(git commit *) {_TESTING} {_HAND_OFF}",
    "developer-review": f"{_LOOKING} {_HAND_OFF}",
    "qa": f"{_LOOKING} Edit Write {_TESTING} {_HAND_OFF}",
    "planner": f"{_LOOKING} {_HAND_OFF}",
    "orchestrator": f"{_LOOKING} Bash(hocket agents *) {_HAND_OFF}",
}
DEFAULTS = tuple(AgentFile(name, f"agents/{name}.md", tools, "acceptEdits") for name, tools in _TOOLS.items())
"""The agents of a new home."""
_DEFAULT_PATHS = {default.name: default.spec_path for default in DEFAULTS}


def is_seeded(entry: Entry) -> bool:
    """Whether this is one of Hocket's own as it was brought along: nobody has written it."""
    return entry.source == CONFIG and came_along(entry.metadata)


def came_along(metadata: Mapping[str, Any]) -> bool:
    return dict(metadata) in [default.as_json() for default in DEFAULTS]


def packaged(name: str) -> str:
    """The instructions that come with one of the five."""
    path = os.path.join(os.path.dirname(__file__), "defaults", f"{name}.md")
    with open(path, encoding="utf-8") as file:
        return file.read()


# --- Files --------------------------------------------------------------------------------------------------


def folder(home: str) -> str:
    return os.path.join(home, "data", "agents")


def configs(look: Look, home: str) -> list[Found]:
    """Hocket's own agents; a file that cannot be used is a problem and hides no other."""
    place, entries, problems = folder(home), list[Entry](), list[Problem]()
    for path in _files(look, place):
        found = _read(look, path)
        if isinstance(found, Fault):
            problems.append(Problem(path, found.line, found.reason, False, REFUSED))
        elif found is not None:
            entries.append(_entry(found, path))
    where = Place(CONFIG, place, look.exists(place), len(entries))
    return [Found(where, Scan(tuple(entries), tuple(problems)))]


def get_config(home: str, name: str) -> AgentFile | None:
    """The config of that name, or None when there is none. Raises when the name or the file cannot be one."""
    path = os.path.join(folder(home), f"{validate_agent_name(name)}.json")
    content = read_bounded(path, MAX_CONFIG, HomeError)
    if content is None:
        return None
    found = _parse(content, name)
    if isinstance(found, Fault):
        raise ConfigError(f"{path}, line {found.line}: {found.reason}")
    return found


def require_config(home: str, name: str) -> AgentFile:
    """The same, for whoever cannot do without."""
    found = get_config(home, name)
    if found is None:
        raise AgentNotFound(f"there is no agent {name!r} in {folder(home)}")
    return found


def list_configs(home: str) -> list[AgentFile]:
    """All of them. Raises when one cannot be read: a list that is silently short helps nobody."""
    try:
        names = sorted(os.listdir(folder(home)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HomeError(f"cannot list {folder(home)}: {error.strerror}") from error
    stems = (name.removesuffix(".json") for name in names if _is_config(name))
    return [found for stem in stems if (found := get_config(home, stem))]


def _is_config(name: str) -> bool:
    # What begins with one dot is somebody's unfinished writing; with two, a name that somebody meant.
    return name.endswith(".json") and (not name.startswith(".") or name.startswith(".."))


def _files(look: Look, place: str) -> Iterator[str]:
    return (entry.path for entry in look.entries(place) if _is_config(entry.name))


def _read(look: Look, path: str) -> AgentFile | Fault | None:
    found = read_object(look, path, MAX_CONFIG)
    stem = os.path.basename(path).removesuffix(".json")
    return _understood(found, stem) if isinstance(found, dict) else found


def _parse(content: bytes, stem: str) -> AgentFile | Fault:
    found = parse_object(content)
    return _understood(found, stem) if isinstance(found, dict) else found


def _understood(values: Mapping[str, Any], stem: str) -> AgentFile | Fault:
    """The config that an object stands for. What is missing is missing; what is wrong is refused."""
    given = [values.get(key) for key in (_NAME, _SPEC_PATH, _ALLOWED_TOOLS, _PERMISSION_MODE)]
    for key, value in zip((_NAME, _SPEC_PATH, _ALLOWED_TOOLS, _PERMISSION_MODE), given, strict=True):
        if value is not None and not (isinstance(value, str) and is_text(value)):
            return Fault(1, f"{key} is {shown(value)}, which is not a text")
    name, spec_path, _, mode = given
    reason = _complaint(stem, name, spec_path, mode)
    return Fault(1, reason) if reason else AgentFile(stem, *given[1:])


def _complaint(stem: str, name: str | None, spec_path: str | None, mode: str | None) -> str | None:
    if not is_address(stem):
        return f"{shown(stem)} cannot be the name of an agent: only letters, digits, - and _ can be in one"
    if name not in (None, stem):
        return f"name is {shown(name)}, but the file is called {stem}.json"
    if mode is not None and mode not in PERMISSION_MODES:
        return f"{_PERMISSION_MODE} is {shown(mode)}, not one of {', '.join(PERMISSION_MODES)}"
    if spec_path is not None and (not spec_path or "\0" in spec_path or _leaves(spec_path)):
        return f"{_SPEC_PATH} is {shown(spec_path)}, which is no path within a project"
    return None


def _leaves(path: str) -> bool:
    return os.path.isabs(path) or os.path.normpath(path).split("/")[0] == ".."


def _entry(found: AgentFile, path: str) -> Entry:
    described = _own_description(found.name) if _is_default(found.name, found.spec_path) else ""
    return Entry(found.name, CONFIG, path, description=described, metadata=found.as_json(), target=found.spec_path)


def _is_default(name: str, spec_path: str | None) -> bool:
    return name in _DEFAULT_PATHS and spec_path in (None, _DEFAULT_PATHS[name])


@cache
def _own_description(name: str) -> str:
    head = parse(packaged(name).encode())
    return str(head.values.get("description", "")) if isinstance(head, Head) else ""


# --- Instructions -------------------------------------------------------------------------------------------


class Instructions(NamedTuple):
    """What one of Hocket's own agents is told in a project."""

    definition: Definition
    project: str | None
    """The folder whose file says so; None for what Hocket brings along."""
    problems: tuple[Problem, ...] = ()


def spec_of(entry: Entry, cwd: str, env: Mapping[str, str]) -> Instructions:
    """The instructions of a config's agent: its project's file, else those that came with it. Raises without any."""
    root = (project_roots(Look(), cwd, env) or [cwd])[-1]
    path = os.path.join(root, entry.target) if entry.target else None
    content = read_bounded(validate_agent_path(path, root), MAX_FILE, BadDefinition) if path else None
    if path and content is not None:
        return _instructions(entry.name, path, root, content)
    if _is_default(entry.name, entry.target):
        told = packaged(entry.name).encode()
        return _instructions(entry.name, entry.path, None, told)
    missing = f"{path} does not exist" if path else f"{entry.path} has no {_SPEC_PATH}"
    raise BadDefinition(f"there are no instructions for {entry.name}: {missing}")


def _instructions(name: str, path: str, project: str | None, content: bytes) -> Instructions:
    head = _head(path, content)
    described = head.values.get("description")
    told = head._replace(
        values={**head.values, "description": described if isinstance(described, str) and described else name}
    )
    fields = {key: value for key, value in cli_fields(told).items() if key in _FROM_SPEC}
    if not fields["prompt"]:
        raise BadDefinition(f"{path} has no instructions in it")
    return Instructions(Definition(name, fields, path), project, tuple(_ignored(head, path)))


def _head(path: str, content: bytes) -> Head:
    """A head is optional. One that is there and cannot be read is an error: what it forbids would be lost."""
    head = parse(content)
    if isinstance(head, Head):
        return head
    text = decode(content)
    if text.startswith("---") and split(text)[0] is not None:
        raise BadDefinition(f"{path}, line {head.line}: {head.reason}")
    return Head({}, text.strip())


def _ignored(head: Head, path: str) -> Iterator[Problem]:
    for key in ("hooks", "mcpServers", _PERMISSION_MODE):
        if key in head.values:
            reason = f"{key} is left out: what this agent may do is said by its config alone"
            yield Problem(path, head.line_of(key), reason, False, ODD)
