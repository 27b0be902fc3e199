"""Hooks of a definition: which mistakes make the CLI drop the file, or refuse to start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

STRICT_EVENTS = ("PreToolUse", "PermissionRequest")
"""Events for which the CLI drops the whole file because of a malformed hook (measured)."""
_HOST = re.compile(r"(?:%[0-9a-f]{2}|[^\s%<>^|\\])+")
_LONGEST_REASON = 200  # it quotes a value of the file
_WITH_HOST = ("http", "https", "ws", "wss")
_Filled: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class _Hook(msgspec.Struct, tag_field="type", rename="camel"):
    """What every type of hook may have. Defaults stand for absent keys; unknown keys are ignored, as by the CLI."""

    condition: str = msgspec.field(name="if", default="")
    timeout: Annotated[float, msgspec.Meta(gt=0)] = 1
    status_message: str = ""
    once: bool = False


class _Command(_Hook, tag="command", kw_only=True):
    command: str
    args: list[str] = []
    shell: Literal["bash", "powershell"] = "bash"
    is_async: bool = msgspec.field(name="async", default=False)
    async_rewake: bool = False
    rewake_message: _Filled = "x"
    rewake_summary: _Filled = "x"


class _Prompt(_Hook, tag="prompt", kw_only=True):
    prompt: str
    model: str = ""
    continue_on_block: bool = False


class _Agent(_Hook, tag="agent", kw_only=True):
    prompt: str
    model: str = ""


class _Http(_Hook, tag="http", kw_only=True):
    url: str
    headers: dict[str, str] = {}
    allowed_env_vars: list[str] = []

    def __post_init__(self) -> None:
        if not _is_url(self.url):
            raise ValueError("Expected a URL")


class _McpTool(_Hook, tag="mcp_tool", kw_only=True):
    server: str
    tool: str
    input: dict[str, Any] = {}


class _Entry(msgspec.Struct):
    hooks: list[_Command | _Prompt | _Agent | _Http | _McpTool]
    matcher: str = ""


def complaint_about_hooks(hooks: Mapping[str, Any]) -> str | None:
    """Return why the CLI drops a definition with these hooks, or None."""
    for event in STRICT_EVENTS:
        if hooks.get(event) is not None and (reason := _complaint(hooks[event])):
            return f"invalid hooks: {event}{reason}"
    return None


def are_usable(entries: Any) -> bool:
    """True if the CLI starts when it is handed these hooks, which it checks strictly for every event."""
    return isinstance(entries, list) and bool(entries) and not _complaint(entries)


def _complaint(entries: Any) -> str | None:
    """Where the hooks of an event are malformed, as a path, and why."""
    try:
        msgspec.convert(entries, list[_Entry])
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        return f"{place.rstrip('`')}: {reason[:_LONGEST_REASON]}"
    return None


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value.strip())
        is_host = _HOST.fullmatch(parts.hostname or "") is not None
        return bool(parts.scheme) and parts.port != 0 and (is_host or parts.scheme not in _WITH_HOST)
    except ValueError:
        return False
