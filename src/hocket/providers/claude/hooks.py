"""Hooks of a definition: which mistakes make the CLI drop the file, or refuse to start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

STRICT_EVENTS = ("PreToolUse", "PermissionRequest")
"""Events for which the CLI drops the whole file because of a malformed hook (measured)."""


def complaint_about_hooks(hooks: Mapping[str, Any]) -> str | None:
    """Return why the CLI drops a definition with these hooks, or None."""
    reasons = (reason for event in STRICT_EVENTS for reason in _about_event(event, hooks.get(event)))
    return next((f"invalid hooks: {reason}" for reason in reasons), None)


def are_usable(entries: Any) -> bool:
    """True if the CLI starts when it is handed these hooks, which it checks strictly for every event."""
    return isinstance(entries, list) and bool(entries) and not any(_about_event("", entries))


def _about_event(event: str, entries: Any) -> Iterator[str]:
    if entries is None:
        return
    if not isinstance(entries, list):
        yield f"{event} is not a list"
        return
    for number, entry in enumerate(entries, 1):
        yield from _about_entry(f"entry {number} of {event}", entry)


def _about_entry(place: str, entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("hooks"), list):
        yield f"{place} has no list of hooks"
        return
    if "matcher" in entry and not _is_text(entry["matcher"]):
        yield f"{place} has a matcher that is not a string"
    for number, hook in enumerate(entry["hooks"], 1):
        yield from _about_hook(f"hook {number} in {place}", hook)


def _about_hook(place: str, hook: Any) -> Iterator[str]:
    kind = hook.get("type") if isinstance(hook, dict) else None
    rules = _RULES.get(kind) if isinstance(kind, str) else None
    if rules is None:
        yield f"{place} has an unknown type"
        return
    yield from (f"{place} has no {key}" for key in rules.needed if key not in hook)
    for key, rule in (rules.needed | rules.possible).items():
        if key in hook and not rule.fits(hook[key]):
            yield f"{place} has a value for {key} that is not {rule.words}"


# --- Values -------------------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_filled(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_headers(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_shell(value: Any) -> bool:
    return isinstance(value, str) and value in ("bash", "powershell")


_HOST = re.compile(r"(?:%[0-9a-f]{2}|[^\s%<>^|\\])+")
_WITH_HOST = ("http", "https", "ws", "wss")


def _is_url(value: Any) -> bool:
    try:
        parts = urlsplit(value.strip() if isinstance(value, str) else "")
        is_host = _HOST.fullmatch(parts.hostname or "") is not None
        return bool(parts.scheme) and parts.port != 0 and (is_host or parts.scheme not in _WITH_HOST)
    except ValueError:
        return False


# --- Types of hooks -----------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    fits: Callable[[Any], bool]
    words: str


class _Rules(NamedTuple):
    """The keys of one type of hook; unknown keys are ignored."""

    needed: dict[str, _Rule]
    possible: dict[str, _Rule]


_TEXT, _FILLED, _FLAG = _Rule(_is_text, "a string"), _Rule(_is_filled, "a string"), _Rule(_is_flag, "true or false")
_TEXTS, _MAPPING = _Rule(_are_texts, "a list of strings"), _Rule(_is_mapping, "a mapping")
_EVERY = {"if": _TEXT, "timeout": _Rule(_is_time, "a number above 0"), "statusMessage": _TEXT, "once": _FLAG}
_RULES: Mapping[str, _Rules] = {
    "command": _Rules(
        {"command": _TEXT},
        {
            **_EVERY,
            "args": _TEXTS,
            "shell": _Rule(_is_shell, "bash or powershell"),
            **dict.fromkeys(["async", "asyncRewake"], _FLAG),
            **dict.fromkeys(["rewakeMessage", "rewakeSummary"], _FILLED),
        },
    ),
    "prompt": _Rules({"prompt": _TEXT}, {**_EVERY, "model": _TEXT, "continueOnBlock": _FLAG}),
    "agent": _Rules({"prompt": _TEXT}, {**_EVERY, "model": _TEXT}),
    "http": _Rules(
        {"url": _Rule(_is_url, "a URL")},
        {**_EVERY, "headers": _Rule(_are_headers, "a mapping of strings"), "allowedEnvVars": _TEXTS},
    ),
    "mcp_tool": _Rules(dict.fromkeys(["server", "tool"], _TEXT), {**_EVERY, "input": _MAPPING}),
}
