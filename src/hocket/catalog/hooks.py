"""Hooks as the CLI demands them in a definition: which mistakes make it drop the whole file.

Of a file it is that strict about the two events alone in which a hook may say no. In others a mistake only costs the
hooks themselves, unless the CLI is handed them: then it does not start. The rules are what was measured of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

STRICT_EVENTS = ("PreToolUse", "PermissionRequest")


def complaint_about_hooks(hooks: Mapping[str, Any]) -> str | None:
    """Why the CLI drops a definition with these hooks; None when it takes it."""
    reasons = (reason for event in STRICT_EVENTS for reason in _about_event(event, hooks.get(event)))
    return next((f"its hooks cannot be used: {reason}" for reason in reasons), None)


def are_usable(entries: Any) -> bool:
    """Whether the CLI starts when it is handed these hooks of an event: there it is as strict about all events."""
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
        yield f"{place} has a matcher that is not a text"
    for number, hook in enumerate(entry["hooks"], 1):
        yield from _about_hook(f"hook {number} in {place}", hook)


def _about_hook(place: str, hook: Any) -> Iterator[str]:
    kind = hook.get("type") if isinstance(hook, dict) else None
    rules = _RULES.get(kind) if isinstance(kind, str) else None
    if rules is None:
        yield f"{place} is of no type that the CLI knows"
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


_IGNORED_AROUND = "".join(map(chr, range(0x21)))
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_WITH_HOST = ("http", "https", "ws", "wss", "ftp")
_HOST_AND_PORT = re.compile(
    r"(?P<host>\[[0-9a-f:.]+\]|(?:%[0-9a-f]{2}|[^\x00-\x20\x7f#%/:<>?@\[\\\]^|])*+)(?::(?P<port>[0-9]*+))?",
    re.IGNORECASE,
)
_LAST_PORT = 65535


def _is_address(value: Any) -> bool:
    """Whether a browser would take it for an address. Which numbers are hosts is left out: nobody mistypes those."""
    text = re.sub("[\t\n\r]", "", value.strip(_IGNORED_AROUND)) if isinstance(value, str) else ""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return False
    rest, needs_host = text[scheme.end() :], scheme[1].lower() in _WITH_HOST
    if not needs_host and not rest.startswith("//"):
        return True
    authority = re.split(r"[/\\?#]", rest.lstrip("/\\") if needs_host else rest[2:], maxsplit=1)[0]
    found = _HOST_AND_PORT.fullmatch(authority.rpartition("@")[2])
    if found is None or (needs_host and not found["host"]):
        return False
    digits = (found["port"] or "").lstrip("0")
    return len(digits) <= len(str(_LAST_PORT)) and int(digits or "0") <= _LAST_PORT


# --- Types of hooks -----------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    fits: Callable[[Any], bool]
    words: str


class _Rules(NamedTuple):
    """The keys of one type of hook. Those that are unknown do no harm."""

    needed: dict[str, _Rule]
    possible: dict[str, _Rule]


_TEXT, _FILLED, _FLAG = _Rule(_is_text, "a text"), _Rule(_is_filled, "a text"), _Rule(_is_flag, "true or false")
_TEXTS, _MAPPING = _Rule(_are_texts, "a list of texts"), _Rule(_is_mapping, "a list of keys with values")
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
        {"url": _Rule(_is_address, "an address")},
        {**_EVERY, "headers": _Rule(_are_headers, "a list of keys with texts"), "allowedEnvVars": _TEXTS},
    ),
    "mcp_tool": _Rules(dict.fromkeys(["server", "tool"], _TEXT), {**_EVERY, "input": _MAPPING}),
}
