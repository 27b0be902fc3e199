"""Hocket's own agents: one small JSON file each in HOCKET_HOME, and the instructions that it points to.

A config decides what an agent may do, and a file of the project what it does; the default agents have instructions of
their own for projects without any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from hocket.catalog.entries import CONFIG, Entry, Found, Problem, Scan, SearchedPlace
from hocket.catalog.file_probe import MAX_FILE, FileProbe, parse_object
from hocket.catalog.names import is_address, validate_agent_name, validate_agent_path
from hocket.catalog.sources import project_roots
from hocket.config import PERMISSION_MODES
from hocket.config.reading import read_bounded
from hocket.errors import BadDefinition, ConfigError, HomeError
from hocket.input_limits import is_text
from hocket.model import Definition
from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import REFUSED, Fault, Head, shown

MAX_CONFIG = 64 * 1024
_KEYS = ("name", "specPath", "allowedTools", "permissionMode")
_FROM_SPEC = ("description", "model", "tools", "disallowedTools", "maxTurns", "prompt")
"""Fields that the file of instructions may have: none that allows more than the config does."""


class AgentFile(NamedTuple):
    """The config of one of Hocket's own agents."""

    name: str
    spec_path: str | None = None
    """Its file of instructions, relative to the project's root."""
    allowed_tools: str | None = None
    permission_mode: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the documented form."""
        return dict(zip(_KEYS, self, strict=True))


# --- Default agents -----------------------------------------------------------------------------------------

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
    """True for an unchanged default agent."""
    return entry.source == CONFIG and is_default_config(entry.metadata)


def is_default_config(metadata: Mapping[str, Any]) -> bool:
    return dict(metadata) in [default.as_json() for default in DEFAULTS]


def packaged(name: str) -> str:
    """Return the packaged instructions of a default agent."""
    path = os.path.join(os.path.dirname(__file__), "defaults", f"{name}.md")
    with open(path, encoding="utf-8") as file:
        return file.read()


# --- Files --------------------------------------------------------------------------------------------------


def folder(home: str) -> str:
    return os.path.join(home, "data", "agents")


def configs(look: FileProbe, home: str) -> list[Found]:
    """Search Hocket's own agents; an unusable file is a problem and hides no other."""
    place, entries, problems = folder(home), list[Entry](), list[Problem]()
    for file in look.entries(place):
        # One leading dot marks an unfinished file of ours; two dots can be a mistyped name.
        if not file.name.endswith(".json") or (file.name.startswith(".") and not file.name.startswith("..")):
            continue
        content = look.read_object(file.path, MAX_CONFIG)
        found = _parse(content, file.name.removesuffix(".json")) if isinstance(content, dict) else content
        if isinstance(found, Fault):
            problems.append(Problem(file.path, found.line, found.reason, False, REFUSED))
        elif found is not None:
            entries.append(_entry(found, file.path))
    where = SearchedPlace(CONFIG, place, look.exists(place), len(entries))
    return [Found(where, Scan(tuple(entries), tuple(problems)))]


def get_config(home: str, name: str) -> AgentFile | None:
    """Return the config with a name, or None. Raises for an invalid name or file."""
    path = os.path.join(folder(home), f"{validate_agent_name(name)}.json")
    content = read_bounded(path, MAX_CONFIG, HomeError)
    if content is None:
        return None
    values = parse_object(content)
    found = _parse(values, name) if isinstance(values, dict) else values
    if isinstance(found, Fault):
        raise ConfigError(f"{path}, line {found.line}: {found.reason}")
    return found


def _parse(values: Mapping[str, Any], stem: str) -> AgentFile | Fault:
    """Return the config in a JSON object. Every key is optional; an invalid value is refused."""
    name, spec_path, tools, mode = given = [values.get(key) for key in _KEYS]
    for key, value in zip(_KEYS, given, strict=True):
        if value is not None and not (isinstance(value, str) and is_text(value)):
            return Fault(1, f"{key} must be a string; got {shown(value)}")
    reason = _complaint(stem, name, spec_path, mode)
    return Fault(1, reason) if reason else AgentFile(stem, spec_path, tools, mode)


def _complaint(stem: str, name: str | None, spec_path: str | None, mode: str | None) -> str | None:
    if not is_address(stem):
        return f"invalid agent name: {shown(stem)} (use letters, digits, - and _)"
    if name not in (None, stem):
        return f"name is {shown(name)}, but the file is called {stem}.json"
    if mode is not None and mode not in PERMISSION_MODES:
        return f"invalid permissionMode: {shown(mode)} (choose {', '.join(PERMISSION_MODES)})"
    if spec_path is not None and (not spec_path or "\0" in spec_path or _leaves(spec_path)):
        return f"specPath is {shown(spec_path)}, which is not a path within a project"
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
    head = DEFINITIONS.parse(packaged(name).encode())
    return str(head.values.get("description", "")) if isinstance(head, Head) else ""


# --- Instructions -------------------------------------------------------------------------------------------


def spec_of(entry: Entry, cwd: str, env: Mapping[str, str]) -> tuple[Definition, str | None]:
    """Return the instructions of a config's agent, and the project whose file they are; None for packaged ones.

    Raises BadDefinition if there are none.
    """
    root = (project_roots(FileProbe(), cwd, env) or [cwd])[-1]
    path = os.path.join(root, entry.target) if entry.target else None
    content = read_bounded(validate_agent_path(path, root), MAX_FILE, BadDefinition) if path else None
    if path and content is not None:
        return _instructions(entry.name, path, content), root
    if _is_default(entry.name, entry.target):
        return _instructions(entry.name, entry.path, packaged(entry.name).encode()), None
    missing = f"{path} does not exist" if path else f"{entry.path} has no specPath"
    raise BadDefinition(f"there are no instructions for {entry.name}: {missing}")


def _instructions(name: str, path: str, content: bytes) -> Definition:
    head = DEFINITIONS.instructions(content, path)
    described = head.values.get("description")
    description = described if isinstance(described, str) and described else name
    values = {**head.values, "description": description}
    fields = DEFINITIONS.cli_fields(head._replace(values=values))
    if not fields["prompt"]:
        raise BadDefinition(f"{path} has no instructions")
    return Definition(name, {key: value for key, value in fields.items() if key in _FROM_SPEC}, path)
