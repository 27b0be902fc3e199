"""Hocket's own agents: one small JSON file each in HOCKET_HOME, and the instructions that it points to.

A config decides what an agent may do, and a file of the project what it does; the default agents have instructions of
their own for projects without any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from hocket.catalog.entries import CONFIG, AgentEntry, Found, Problem, SearchedPlace
from hocket.catalog.file_probe import MAX_FILE, FileProbe
from hocket.catalog.names import is_address, validate_agent_path
from hocket.catalog.sources import project_roots
from hocket.config import PERMISSION_MODES
from hocket.config.reading import read_bounded
from hocket.errors import BadDefinition
from hocket.input_limits import is_text
from hocket.model import Definition
from hocket.providers.defining import DEFINITIONS
from hocket.providers.definition_files import REFUSED, Fault, Head, shown

MAX_CONFIG = 64 * 1024
_KEYS = ("name", "specPath", "allowedTools", "permissionMode")
_FROM_SPEC = ("description", "model", "tools", "disallowedTools", "maxTurns", "prompt")
"""Fields that the file of instructions may have: none that allows more than the config does."""


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
DEFAULTS = tuple(
    {"name": name, "specPath": f"agents/{name}.md", "allowedTools": tools, "permissionMode": "acceptEdits"}
    for name, tools in _TOOLS.items()
)
"""The configs of a new home."""


def is_seeded(entry: AgentEntry) -> bool:
    """True for an unchanged default agent."""
    return entry.source == CONFIG and is_default_config(entry.metadata)


def is_default_config(metadata: Mapping[str, Any]) -> bool:
    """True for the content of an unchanged default config."""
    return dict(metadata) in DEFAULTS


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
    place, entries, problems = folder(home), list[AgentEntry](), list[Problem]()
    for file in look.entries(place):
        # One leading dot marks an unfinished file of ours; two dots can be a mistyped name.
        if not file.name.endswith(".json") or (file.name.startswith(".") and not file.name.startswith("..")):
            continue
        content = look.read_object(file.path, MAX_CONFIG)
        if content is None:
            continue
        name = file.name.removesuffix(".json")
        fault = content if isinstance(content, Fault) else _complaint(name, content)
        if fault is not None:
            problems.append(Problem(file.path, fault.line, fault.reason, False, REFUSED))
        elif not isinstance(content, Fault):
            entries.append(_entry(name, content, file.path))
    where = SearchedPlace(CONFIG, place, look.exists(place), len(entries))
    return [Found(where, tuple(entries), tuple(problems))]


def _complaint(stem: str, values: Mapping[str, Any]) -> Fault | None:
    """Return why a config cannot be used. Every key is optional; an invalid value is refused."""
    for key in _KEYS:
        value = values.get(key)
        if value is not None and not (isinstance(value, str) and is_text(value)):
            return Fault(1, f"{key} must be a string; got {shown(value)}")
    name, spec_path, _, mode = (values.get(key) for key in _KEYS)
    if not is_address(stem):
        return Fault(1, f"invalid agent name: {shown(stem)} (use letters, digits, - and _)")
    if name not in (None, stem):
        return Fault(1, f"name is {shown(name)}, but the file is called {stem}.json")
    if mode is not None and mode not in PERMISSION_MODES:
        return Fault(1, f"invalid permissionMode: {shown(mode)} (choose {', '.join(PERMISSION_MODES)})")
    if spec_path is not None and (not spec_path or "\0" in spec_path or _leaves(spec_path)):
        return Fault(1, f"specPath is {shown(spec_path)}, which is not a path within a project")
    return None


def _leaves(path: str) -> bool:
    return os.path.isabs(path) or os.path.normpath(path).split("/")[0] == ".."


def _entry(name: str, values: Mapping[str, Any], path: str) -> AgentEntry:
    config = {key: values.get(key) for key in _KEYS} | {"name": name}
    spec_path = config["specPath"]
    described = _own_description(name) if _is_default(name, spec_path) else ""
    return AgentEntry(name, CONFIG, path, description=described, metadata=config, target=spec_path)


def _is_default(name: str, spec_path: str | None) -> bool:
    return any(name == default["name"] and spec_path in (None, default["specPath"]) for default in DEFAULTS)


@cache
def _own_description(name: str) -> str:
    head = DEFINITIONS.parse(packaged(name).encode())
    return str(head.values.get("description", "")) if isinstance(head, Head) else ""


def privileges_of(entry: AgentEntry) -> tuple[str | None, str | None]:
    """Return the permission mode and the allowed tools of a config's agent."""
    return entry.metadata["permissionMode"], entry.metadata["allowedTools"]


# --- Instructions -------------------------------------------------------------------------------------------


def spec_of(entry: AgentEntry, cwd: str, env: Mapping[str, str]) -> tuple[Definition, str | None]:
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
