"""What there is to see before the user approves something: what it asks for, what it hides, what has changed.

Everything is told of the very bytes that would be approved, which were read once. What needs approval is decided in
``trust``; how this is shown, and who is asked, is the business of the command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Any, NamedTuple, TypeVar

from hocket.catalog.fields import read_definition
from hocket.config import ConfigFile
from hocket.config.reading import is_inside, read_bounded
from hocket.config.schema import parse as parse_config
from hocket.config.settings import AgentConfig, is_wider
from hocket.errors import BadDefinition, ConfigError, HomeError, NotTrusted
from hocket.model import Definition
from hocket.trust.approvals import FILE, FOLDER, MAX_KEPT, MCP, Approvals, Part, digest, joined, kept, repository
from hocket.trust.check import Reasons
from hocket.trust.privileges import own_permission_mode, widening

NEW, CHANGED, APPROVED = "new", "changed", "approved"
_TRIES = 5
_CONFIGS = ("hocket.toml", "forge/chains.json")

Seen = TypeVar("Seen")
Told = TypeVar("Told")


class Ask(NamedTuple):
    """One thing that is asked for, and what exactly."""

    what: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """One definition or folder that can be approved, as it was when somebody looked."""

    kind: str
    path: str
    """Real, as it is written down."""
    content: bytes
    """What would be approved."""
    state: str
    """Whether it is new, has changed since it was approved, or is approved as it is."""
    asks: tuple[Ask, ...] = ()
    replaced: str | None = None
    """What of the user's own it takes the place of."""
    against: str | None = None
    """What the difference is to: a file, or what was approved before."""
    diff: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Those of a folder that are covered."""


# --- Definitions --------------------------------------------------------------------------------------------


def explain_file(path: str, approvals: Approvals, reasons: Reasons = Reasons()) -> Explanation:  # noqa: B008 - a tuple
    """A definition; ``reasons`` say what it hides, which only a catalog knows."""
    cover, real = approvals.cover, os.path.realpath(path)
    content, definition = _steady(
        path, lambda: cover.file(real), lambda _: read_definition(path, os.path.basename(path).removesuffix(".md"))
    )
    state = _state(approvals, FILE, real, content)
    before = _approved_before(approvals, FILE, real, state) or _hidden(reasons.rival, state)
    asks = tuple(_asks_of(definition, approvals))
    return _explanation(Explanation(FILE, real, content, state, asks, reasons.replaced), before)


def _steady(path: str, look: Callable[[], Seen], tell: Callable[[Seen], Told]) -> tuple[Seen, Told]:
    """What was seen, and what is to be told of exactly that, though somebody may be writing meanwhile."""
    for _ in range(_TRIES):
        seen = look()
        told = tell(seen)
        if look() == seen:
            return seen, told
    raise NotTrusted(f"{path} is being changed while it is looked at", "try again when nobody writes to it")


def _hidden(rival: str | None, state: str) -> tuple[str, bytes] | None:
    """The file of the user's own that a definition hides."""
    if rival is None or state == APPROVED:
        return None
    with suppress(BadDefinition):
        content = read_bounded(rival, MAX_KEPT, BadDefinition)
        return None if content is None else (rival, content)
    return None


def _asks_of(definition: Definition, approvals: Approvals) -> Iterator[Ask]:
    mode = own_permission_mode(definition)
    if mode and is_wider(mode, approvals.config.ceiling):
        yield Ask(f"permission mode {mode}", (f"yours is {approvals.config.ceiling}",))
    if "hooks" in definition.fields:
        yield Ask("hooks", tuple(_hooks(definition.fields["hooks"])))
    servers = [*definition.fields.get("mcpServers", ()), *(definition.allowed_servers or ())]
    if servers:
        yield Ask("MCP servers", tuple(line for item in servers for line in _servers(item)))


# --- Folders ------------------------------------------------------------------------------------------------


def explain_folder(folder: str, approvals: Approvals) -> list[Explanation]:
    """A folder and those above it up to the repository's root, as far as they have anything to approve.

    Where none of them has, the folder itself is approved as one that brings nothing along.
    """
    found = [_explain_one(one, approvals) for one in repository(folder)]
    counting = [one for one in found if one.files or one.state != NEW]
    return counting or ([] if approvals.lists(folder) else found[:1])


def _explain_one(folder: str, approvals: Approvals) -> Explanation:
    cover = approvals.cover
    parts, asks = _steady(folder, lambda: cover.parts(folder), lambda found: _asks_of_parts(found, folder, approvals))
    content = joined(parts)
    state = _state(approvals, FOLDER, folder, content)
    found = Explanation(FOLDER, folder, content, state, asks, files=tuple(name for name, _ in parts))
    return _explanation(found, _approved_before(approvals, FOLDER, folder, state))


def _asks_of_parts(parts: Sequence[Part], folder: str, approvals: Approvals) -> tuple[Ask, ...]:
    return tuple(ask for name, raw in parts for ask in _asks_in(name, raw, folder, approvals))


def _asks_in(name: str, raw: bytes, folder: str, approvals: Approvals) -> Iterator[Ask]:
    if name in _CONFIGS:
        yield from _asks_of_config(name, raw, folder, approvals)
    elif name.endswith(".md"):
        yield from _asks_of_text(name, folder, approvals)
    else:
        yield from _asks_of_json(name, raw)


def _asks_of_json(name: str, raw: bytes) -> Iterator[Ask]:
    try:
        found = json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        yield Ask(f"{name}: cannot be read as settings")
        return
    if name == MCP:
        yield Ask(f"{name}: MCP servers", tuple(_servers(found.get("mcpServers"))))
        return
    for key, value in found.items():
        yield Ask(f"{name}: {key}", tuple(_hooks(value) if key == "hooks" else _lines(value)))


def _asks_of_text(name: str, folder: str, approvals: Approvals) -> Iterator[Ask]:
    """A definition is told in full; of a skill or a command only that it may bring something along."""
    try:
        definition = read_definition(os.path.join(folder, name), os.path.basename(name).removesuffix(".md"))
    except BadDefinition:
        return
    asks = list(_asks_of(definition, approvals))
    if name.startswith(".claude/agents/"):
        yield from (Ask(f"{name}: {ask.what}", ask.details) for ask in asks)
    elif asks:
        yield Ask(f"{name}: {' and '.join(ask.what for ask in asks)}")


def _asks_of_config(name: str, raw: bytes, folder: str, approvals: Approvals) -> Iterator[Ask]:
    place = ConfigFile(os.path.join(folder, name), "project", name.endswith(".json"))
    try:
        part = parse_config(place, raw.decode("utf-8-sig", "replace"), approvals.config.users_home or "/")
    except ConfigError as error:
        yield Ask(f"{name}: cannot be read", (error.message,))
        return
    mode = part.claude.get("permission_mode")
    if mode and is_wider(mode, approvals.config.ceiling):
        yield Ask(f"{name}: permission mode {mode} for every agent", (f"yours is {approvals.config.ceiling}",))
    for agent, alias in part.agents.items():
        details = (*_of_alias(alias, approvals), *_prompt_files([alias.default_prompt_file], folder))
        if details:
            yield Ask(f'{name}: agent "{agent}"', details)
    for chain in part.chains.values():
        modes = [f"permission mode {chain.permission_mode}"] if chain.permission_mode else []
        gates = [f"gate: {command}" for command in (chain.until, *(step.until for step in chain.steps)) if command]
        args = [f"{step.agent} {' '.join(step.args)}" for step in chain.steps if step.args]
        files = _prompt_files([chain.prompt_file, *(step.prompt_file for step in chain.steps)], folder)
        if details := (*modes, *gates, *args, *files):
            yield Ask(f'{name}: chain "{chain.name}"', details)


def _prompt_files(files: Iterable[str | None], folder: str) -> Iterator[str]:
    """Those outside of the project, which an approval does not let it read either."""
    paths = (os.path.join(folder, file) for file in files if file)
    for path in paths:
        if not is_inside(path, folder):
            yield f"prompt file {os.path.realpath(path)}: outside of the project, so it is refused"


def _of_alias(alias: AgentConfig, approvals: Approvals) -> Iterator[str]:
    if alias.path:
        yield f"stands for {alias.path}"
    if alias.permission_mode and is_wider(alias.permission_mode, approvals.config.ceiling):
        yield f"permission mode {alias.permission_mode}"
    if alias.allowed_tools:
        yield f"allowed tools {alias.allowed_tools}"
    found = widening(alias.args, alias.permission_mode or approvals.config.ceiling)
    if alias.args:
        yield f"arguments {' '.join(alias.args)}" + (f": {found.argument} {found.reason}" if found else "")


# --- In words -----------------------------------------------------------------------------------------------


def _hooks(value: Any) -> Iterator[str]:
    """Each hook with its event and what it does."""
    if not isinstance(value, Mapping):
        yield from _lines(value)
        return
    for event, groups in value.items():
        for group in groups if isinstance(groups, list) else [groups]:
            hooks = group.get("hooks") if isinstance(group, Mapping) else None
            matcher = f" ({group['matcher']})" if isinstance(group, Mapping) and group.get("matcher") else ""
            for hook in hooks if isinstance(hooks, list) else [group]:
                yield f"{event}{matcher}: {_deed(hook)}"


def _deed(hook: Any) -> str:
    if isinstance(hook, Mapping):
        for key in ("command", "url", "prompt"):
            if isinstance(hook.get(key), str):
                args = hook.get("args")
                return " ".join([hook[key], *(map(str, args) if isinstance(args, list) else [])])
    return _compact(hook)


def _servers(value: Any) -> Iterator[str]:
    """Each server with what is started or connected to; a name alone means one that is configured elsewhere."""
    if isinstance(value, Mapping):
        for name, server in value.items():
            yield f"{name}: {_deed(server)}"
    else:
        yield value if isinstance(value, str) else _compact(value)


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}: {_compact(inner)}" for key, inner in value.items()]
    return [_compact(value)]


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# --- What has changed ---------------------------------------------------------------------------------------


def home_of(approvals: Approvals) -> str:
    """The HOCKET_HOME in which approvals are recorded."""
    if approvals.home is None:
        raise HomeError("nothing can be approved without HOCKET_HOME")
    return approvals.home


def _state(approvals: Approvals, kind: str, real: str, content: bytes) -> str:
    pin = approvals.record.of(kind).get(real)
    if pin is None:
        return NEW
    return APPROVED if pin.sha256 == digest(content) else CHANGED


def _approved_before(approvals: Approvals, kind: str, real: str, state: str) -> tuple[str, bytes] | None:
    """What was approved before it changed, if it is still known."""
    content = kept(home_of(approvals), approvals.record.of(kind)[real]) if state == CHANGED else None
    return None if content is None else ("what you approved", content)


def _explanation(found: Explanation, before: tuple[str, bytes] | None) -> Explanation:
    """With the difference to something else, if there is something to compare with."""
    if before is None:
        return found
    name, content = before
    diff = unified_diff(_text(content), _text(found.content), name, found.path, lineterm="")
    return replace(found, against=name, diff=tuple(diff))


def _text(content: bytes) -> list[str]:
    """Its lines, with all that tells one content from another: how they end, and bytes that are no text."""
    *whole, last = content.decode("utf-8", "backslashreplace").split("\n")
    return [*whole, f"{last} (no line end)"] if last else whole
