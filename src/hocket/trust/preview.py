"""What an approval would cover: what it asks for, what it replaces, what has changed since the last approval."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff

from hocket.catalog.report import stem
from hocket.config import ConfigFile
from hocket.config.reading import is_inside, read_bounded
from hocket.config.schema import parse as parse_config
from hocket.config.settings import AgentConfig, is_wider
from hocket.errors import BadDefinition, ConfigError, HomeError
from hocket.providers.defining import DEFINITIONS, PRIVILEGES
from hocket.providers.definition_files import Privilege
from hocket.trust.approvals import FILE, FOLDER, Approvals, kept
from hocket.trust.check import Reasons
from hocket.trust.folder_contents import HOCKET_FILES, MAX_KEPT, Part, digest, joined, repository

NEW, CHANGED, APPROVED = "new", "changed", "approved"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One definition or folder that can be approved, with its current content."""

    kind: str
    path: str
    """The real path, as recorded."""
    content: bytes
    """The content that would be approved."""
    state: str
    """``new``, ``changed`` or ``approved``."""
    asks: tuple[Privilege, ...] = ()
    replaced: str | None = None
    """What of the user's own it replaces."""
    against: str | None = None
    """What ``diff`` compares with: a file, or the approved content."""
    diff: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """The covered files of a folder."""


# --- Definitions --------------------------------------------------------------------------------------------


def explain_file(path: str, approvals: Approvals, reasons: Reasons = Reasons()) -> Explanation:  # noqa: B008 - a tuple
    """Explain a definition; ``reasons`` tell what it replaces."""
    real = os.path.realpath(path)
    content = approvals.cover.file(real)
    definition = DEFINITIONS.parse_definition(content, path, stem(path))
    state = _state(approvals, FILE, real, content)
    before = _approved_before(approvals, FILE, real, state)
    if before is None and state != APPROVED and reasons.replaced_path is not None:
        with suppress(BadDefinition):
            replaced = read_bounded(reasons.replaced_path, MAX_KEPT, BadDefinition)
            before = None if replaced is None else (reasons.replaced_path, replaced)
    asks = tuple(PRIVILEGES.requests(definition, approvals.config.ceiling))
    return _with_diff(Explanation(FILE, real, content, state, asks, reasons.replaced), before)


# --- Folders ------------------------------------------------------------------------------------------------


def explain_folder(folder: str, approvals: Approvals) -> list[Explanation]:
    """Explain a folder and those above it, up to the repository's root, that have anything to approve.

    If none has, the folder itself can be approved as empty.
    """
    found = [_explain_one(one, approvals) for one in repository(folder)]
    counting = [one for one in found if one.files or one.state != NEW]
    return counting or ([] if approvals.config.lists(folder) else found[:1])


def _explain_one(folder: str, approvals: Approvals) -> Explanation:
    parts = approvals.cover.parts(folder)
    content = joined(parts)
    state = _state(approvals, FOLDER, folder, content)
    asks = tuple(ask for part in parts for ask in _asks_in(part, folder, approvals))
    found = Explanation(FOLDER, folder, content, state, asks, files=tuple(name for name, _ in parts))
    return _with_diff(found, _approved_before(approvals, FOLDER, folder, state))


def _asks_in(part: Part, folder: str, approvals: Approvals) -> Iterator[Privilege]:
    name, content = part
    if name in HOCKET_FILES:
        yield from _asks_of_config(name, content, folder, approvals)
    elif name.endswith(".md"):
        yield from _asks_of_text(part, approvals)
    else:
        yield from PRIVILEGES.requests_in_settings(name, content)


def _asks_of_text(part: Part, approvals: Approvals) -> Iterator[Privilege]:
    """Yield what a definition asks for in detail; of a skill or a command only what it asks for."""
    name, content = part
    try:
        definition = DEFINITIONS.parse_definition(content, name, stem(name))
    except BadDefinition:
        return
    asks = list(PRIVILEGES.requests(definition, approvals.config.ceiling))
    if f"/{name}".startswith(DEFINITIONS.marker):
        yield from (Privilege(f"{name}: {ask.what}", ask.details) for ask in asks)
    elif asks:
        yield Privilege(f"{name}: {' and '.join(ask.what for ask in asks)}")


def _asks_of_config(name: str, raw: bytes, folder: str, approvals: Approvals) -> Iterator[Privilege]:
    place = ConfigFile(os.path.join(folder, name), "project", name.endswith(".json"))
    try:
        part = parse_config(place, raw.decode("utf-8-sig", "replace"), approvals.config.users_home or "/")
    except ConfigError as error:
        yield Privilege(f"{name}: cannot be read", (error.message,))
        return
    mode = part.claude.get("permission_mode")
    if mode and is_wider(mode, approvals.config.ceiling):
        yield Privilege(f"{name}: permission mode {mode} for every agent", (f"yours is {approvals.config.ceiling}",))
    if part.models:
        yield Privilege(f"{name}: [models]", tuple(f"{rule.pattern}: {rule.runtime}" for rule in part.models))
    for agent, alias in part.agents.items():
        details = (*_of_alias(alias, approvals), *_prompt_files([alias.default_prompt_file], folder))
        if details:
            yield Privilege(f'{name}: agent "{agent}"', details)
    for chain in part.chains.values():
        modes = [f"permission mode {chain.permission_mode}"] if chain.permission_mode else []
        gates = [f"gate: {command}" for command in (chain.until, *(step.until for step in chain.steps)) if command]
        args = [f"{step.agent} {' '.join(step.args)}" for step in chain.steps if step.args]
        files = _prompt_files([chain.prompt_file, *(step.prompt_file for step in chain.steps)], folder)
        if details := (*modes, *gates, *args, *files):
            yield Privilege(f'{name}: chain "{chain.name}"', details)


def _prompt_files(files: Iterable[str | None], folder: str) -> Iterator[str]:
    """Yield the prompt files outside of the project, which stay refused after an approval."""
    paths = (os.path.join(folder, file) for file in files if file)
    for path in paths:
        if not is_inside(path, folder):
            yield f"prompt file {os.path.realpath(path)}: outside of the project and refused"


def _of_alias(alias: AgentConfig, approvals: Approvals) -> Iterator[str]:
    if alias.path:
        yield f"stands for {alias.path}"
    if alias.permission_mode and is_wider(alias.permission_mode, approvals.config.ceiling):
        yield f"permission mode {alias.permission_mode}"
    if alias.allowed_tools:
        yield f"allowed tools {alias.allowed_tools}"
    if PRIVILEGES.asks_for_other_cli(alias.runtime):
        yield f"runtime {alias.runtime}"
    found = PRIVILEGES.widening(alias.args, alias.permission_mode or approvals.config.ceiling)
    if alias.args:
        yield f"arguments {' '.join(alias.args)}" + (f": {found.argument} {found.reason}" if found else "")


# --- Changes ------------------------------------------------------------------------------------------------


def home_of(approvals: Approvals) -> str:
    """Return the HOCKET_HOME in which approvals are recorded."""
    if approvals.home is None:
        raise HomeError("approvals need a HOCKET_HOME")
    return approvals.home


def _state(approvals: Approvals, kind: str, real: str, content: bytes) -> str:
    pin = approvals.record.of(kind).get(real)
    if pin is None:
        return NEW
    return APPROVED if pin.sha256 == digest(content) else CHANGED


def _approved_before(approvals: Approvals, kind: str, real: str, state: str) -> tuple[str, bytes] | None:
    """Return the approved content of something that has changed, if it is stored."""
    content = kept(home_of(approvals), approvals.record.of(kind)[real]) if state == CHANGED else None
    return None if content is None else ("what you approved", content)


def _with_diff(found: Explanation, before: tuple[str, bytes] | None) -> Explanation:
    """Add the difference to earlier content, if there is any."""
    if before is None:
        return found
    name, content = before
    diff = unified_diff(_text(content), _text(found.content), name, found.path, lineterm="")
    return replace(found, against=name, diff=tuple(diff))


def _text(content: bytes) -> list[str]:
    """Split content into lines, with a mark for a missing line end and escapes for invalid UTF-8."""
    *whole, last = content.decode("utf-8", "backslashreplace").split("\n")
    return [*whole, f"{last} (no line end)"] if last else whole
