"""What a definition, its arguments or a folder's files let Claude do: hooks, servers, permission modes, flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hocket.config import BYPASS
from hocket.config.settings import is_wider
from hocket.model import Agent, Definition
from hocket.providers.claude import servers as server_files
from hocket.providers.claude.frontmatter import texts
from hocket.providers.claude.models import normalise_model
from hocket.providers.definition_files import Privilege, Widening

# --- Definitions --------------------------------------------------------------------------------------------

_MODE_KEY = "permissionMode"
requesting_fields: tuple[str, ...] = ("hooks", "mcpServers", _MODE_KEY, "allowedMcpServers", "runtime")
"""Fields of a definition by which it may ask for privileges."""


def requested(definition: Definition) -> list[str]:
    """Return the programs that a definition would start, one phrase for each kind."""
    fields = definition.fields
    servers = [item if isinstance(item, str) else ", ".join(item) for item in fields.get("mcpServers", ())]
    # A list of allowed servers narrows what a trusted folder has; in an untrusted one it adds servers.
    servers += [name for name in definition.allowed_servers or () if name not in servers]
    found = []
    if "hooks" in fields:
        found.append(f"hooks ({', '.join(fields['hooks'])})")
    if servers:
        found.append(f"MCP servers ({', '.join(servers)})")
    if asks_for_other_cli(definition.runtime):
        found.append(f"another CLI (runtime: {definition.runtime})")
    return found


def asks_for_other_cli(runtime: str | None) -> bool:
    """True for a CLI that is not this one: it keeps to other settings, which no approval covers."""
    return runtime not in (None, "claude")


def requests(definition: Definition, ceiling: str) -> Iterator[Privilege]:
    """Yield in detail what a definition asks for beyond the user's permission mode."""
    mode = permission_mode(definition)
    if mode and is_wider(mode, ceiling):
        yield Privilege(f"permission mode {mode}", (f"yours is {ceiling}",))
    if "hooks" in definition.fields:
        yield Privilege("hooks", tuple(_hooks(definition.fields["hooks"])))
    servers = [*definition.fields.get("mcpServers", ()), *(definition.allowed_servers or ())]
    if servers:
        yield Privilege("MCP servers", tuple(line for item in servers for line in _servers(item)))
    if asks_for_other_cli(definition.runtime):
        yield Privilege("another CLI", (f"runtime: {definition.runtime}",))


def permission_mode(definition: Definition | None) -> str | None:
    return definition.fields.get(_MODE_KEY) if definition else None


def mode_of(agent: Agent, default: str) -> str:
    """The permission mode of an agent before its arguments: its own, that of its definition, else the default."""
    return agent.permission_mode or permission_mode(agent.definition) or default


def model_of(agent: Agent, default: str | None) -> str | None:
    """The model of an agent; None for that of the CLI."""
    own = agent.definition.fields.get("model") if agent.definition else None
    models = (model for model in (agent.model, own, default) if isinstance(model, str))
    return next((normalise_model(model) for model in models if model not in ("", "inherit")), None)


def tools_of(agent: Agent) -> tuple[str, ...] | None:
    """The tools that an agent has; None for all."""
    if texts(agent.allowed_tools or "", at_spaces=True):
        return allowed_names(agent.allowed_tools or "")
    own = agent.definition.fields.get("tools") if agent.definition else None
    return None if own is None else tuple(texts(own))


def allowed_names(allowed: str) -> tuple[str, ...]:
    """The tools in a list of permissions: without qualifiers, each once, in order."""
    names = (entry.partition("(")[0].strip() for entry in texts(allowed, at_spaces=True))
    return tuple(dict.fromkeys(name for name in names if name))


def names_in(value: object) -> object:
    """A value to compare: a list of tools in any of its forms."""
    return texts(value) if isinstance(value, str | list | tuple) else value


def with_permission_mode(definition: Definition, mode: str) -> Definition:
    """Replace the permission mode of a definition that has one."""
    fields = definition.fields
    return replace(definition, fields={**fields, _MODE_KEY: mode}) if _MODE_KEY in fields else definition


# --- Files of a folder --------------------------------------------------------------------------------------

config_folder = ".claude"
local_settings = ".claude/settings.local.json"
server_file, server_names = server_files.PROJECT_FILE, server_files.server_names
settings_files: tuple[str, ...] = (".claude/settings.json", local_settings, server_file)
"""Files by which a folder can make the CLI run programs."""
text_folders: tuple[str, ...] = (".claude/agents", ".claude/commands", ".claude/skills")
"""Folders of Markdown files that may ask for privileges in their frontmatter."""
instruction_files: tuple[str, ...] = (
    "CLAUDE.md",
    "CLAUDE.local.md",
    ".claude/CLAUDE.md",
    ".claude/rules",
    *text_folders,
)
"""What the CLI reads in a trusted folder only. It runs nothing, so no approval covers it."""
_REQUESTING_WORDS = (b"hooks", b"mcpServers", b"permissionMode", b"allowed-tools", b"\\")
"""Text without any of these asks for nothing; a backslash could escape any of them."""


def may_request(text: bytes) -> bool:
    """False if a Markdown file certainly asks for nothing."""
    return any(word in text for word in _REQUESTING_WORDS)


def requests_in_settings(name: str, content: bytes) -> Iterator[Privilege]:
    """Yield what one of ``settings_files`` asks for."""
    try:
        found = json.loads(content.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        yield Privilege(f"{name}: cannot be read as settings")
    elif name == server_file:
        yield Privilege(f"{name}: MCP servers", tuple(_servers(found.get("mcpServers"))))
    else:
        for key, value in found.items():
            yield Privilege(f"{name}: {key}", tuple(_hooks(value) if key == "hooks" else _lines(value)))


def _hooks(value: Any) -> Iterator[str]:
    """Each hook with its event and what it runs."""
    if not isinstance(value, Mapping):
        yield from _lines(value)
        return
    for event, groups in value.items():
        for group in groups if isinstance(groups, list) else [groups]:
            hooks = group.get("hooks") if isinstance(group, Mapping) else None
            matcher = f" ({group['matcher']})" if isinstance(group, Mapping) and group.get("matcher") else ""
            for hook in hooks if isinstance(hooks, list) else [group]:
                yield f"{event}{matcher}: {_action(hook)}"


def _action(hook: Any) -> str:
    if isinstance(hook, Mapping):
        for key in ("command", "url", "prompt"):
            if isinstance(hook.get(key), str):
                args = hook.get("args")
                return " ".join([hook[key], *(map(str, args) if isinstance(args, list) else [])])
    return _compact(hook)


def _servers(value: Any) -> Iterator[str]:
    """Each server with its command or URL; a bare name is a server that is configured elsewhere."""
    if isinstance(value, Mapping):
        for name, server in value.items():
            yield f"{name}: {_action(server)}"
    else:
        yield value if isinstance(value, str) else _compact(value)


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}: {_compact(inner)}" for key, inner in value.items()]
    return [_compact(value)]


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# --- Arguments ----------------------------------------------------------------------------------------------

_MODE_FLAG = "--permission-mode"
_BYPASS_FLAG = "--dangerously-skip-permissions"
WIDENING: Mapping[str, Sequence[str]] = {
    "lets it work without asking": (
        *("--dangerously-*", "--allow-dangerously-*", "--allowedTools", "--allowed-tools"),
        *("--permission-prompt-tool", "--permission-prompts", "--inherit-permission-mode", "--enable-auto-mode"),
    ),
    "loads settings with hooks, servers and permissions": (
        *("--setting-sources", "--settings", "--managed-settings*", "--project-config-root"),
        *("--client-data-url", "--await-*"),
    ),
    "ignores restrictions of the user's own settings": ("--bare", "--safe-mode", "--restricted"),
    "starts programs, or connects to running ones": (
        *("--mcp-*", "--plugin-*", "--init", "--init-only", "--maintenance", "--chrome", "--ide"),
    ),
    "reads or writes files without asking": (
        *("--add-dir", "--debug-file", "--file", "--rewind-files", "--worktree", "-w", "--tmux"),
        *("--system-prompt-file", "--append-system-prompt-file"),
    ),
    "replaces the agent that was checked": ("--agent*", "--team*", "--lead-verify-key"),
    "resumes another session, with what was allowed in it": (
        *("--session-*", "--resume*", "-r", "--continue", "-c", "--fork-session", "--from-pr", "--reply-on-resume"),
    ),
    "moves it out of Hocket's control": (
        *("--input-format", "--output-format", "--bg", "--background", "--desktop", "--handle-uri", "--deep-link-*"),
        *("--cloud", "--remote*", "--rc", "--environment", "--pool", "--teleport", "--attach-serve", "--sdk-url"),
    ),
    "lets others send it messages": ("--channels", "--watch-artifact*", "--messaging-socket-path"),
    "turns the user's own arguments into text": ("--",),
}
"""Flags that widen what an agent may do, by how; ``*`` matches any ending.

Every other flag only shapes the work (model, limits, prompt, fewer tools), which a project may do; the CLI refuses
unknown flags.
"""
_LETTERS = re.compile("-[phv]*([crw])")
"""Combined short flags: some without a value, then one that widens."""


def widening(args: Sequence[str], mode: str, before: Sequence[str] = ()) -> Widening | None:
    """Return the first argument that allows more than the permission mode and the arguments ``before`` do.

    Values of flags are checked like flags: which flags take a value differs between versions of the CLI.
    """
    if args and (open_list := _open_list(before)) and not args[0].startswith("-"):
        return Widening(args[0], f"continues the values of {open_list}")
    for argument, following in pairwise((*args, "")):
        flag, given, value = argument.partition("=")
        if flag == _MODE_FLAG and is_wider(value if given else following, mode):
            return Widening(f"{flag} {value if given else following}", f"allows more than {mode}")
        reason = _reason(flag)
        if reason:
            return Widening(flag, reason)
    return None


def mode_with(args: Sequence[str], mode: str) -> str:
    """Return the permission mode that results from these arguments; ``mode`` without them."""
    for argument, following in pairwise((*args, "")):
        flag, given, value = argument.partition("=")
        if flag == _BYPASS_FLAG:
            return BYPASS
        if flag == _MODE_FLAG:
            mode = value if given else following
    return mode


def without_modes(args: Sequence[str]) -> tuple[str, ...]:
    """Remove the arguments that set the permission mode."""
    left, words = list[str](), iter(args)
    for word in words:
        if word == _MODE_FLAG:
            next(words, None)
        elif word.partition("=")[0] not in (_MODE_FLAG, _BYPASS_FLAG):
            left.append(word)
    return tuple(left)


def _open_list(args: Sequence[str]) -> str | None:
    """Return the last flag if it widens: some flags take any number of values."""
    last = next((argument for argument in reversed(args) if argument.startswith("-")), "")
    return last if _reason(last) else None


def _reason(flag: str) -> str | None:
    letters = _LETTERS.match(flag)
    return _REASONS.get(f"-{letters[1]}" if letters else flag) or next(
        (reason for start, reason in _REASONS_BY_START.items() if flag.startswith(start)), None
    )


_REASONS = {flag: reason for reason, flags in WIDENING.items() for flag in flags}
_REASONS_BY_START = {flag[:-1]: reason for flag, reason in _REASONS.items() if flag.endswith("*")}
