"""What an agent may have only in a folder that the user vouches for, and by which words somebody else asks for it.

Knows the CLI's flags and the keys of a definition that widen what an agent can do. Whom the user vouches for, and what
happens to a wish, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from hocket.config import BYPASS
from hocket.config.settings import is_wider
from hocket.model import Definition


def asks_for(definition: Definition) -> list[str]:
    """The programs of its own that a definition would have started, in words."""
    fields = definition.fields
    servers = [item if isinstance(item, str) else ", ".join(item) for item in fields.get("mcpServers", ())]
    # A list of servers that it may have narrows what is there; but where nobody trusts the folder there are none.
    servers += [name for name in definition.allowed_servers or () if name not in servers]
    wishes = []
    if "hooks" in fields:
        wishes.append(f"hooks ({', '.join(fields['hooks'])})")
    if servers:
        wishes.append(f"MCP servers ({', '.join(servers)})")
    return wishes


_MODE_KEY = "permissionMode"


def own_permission_mode(definition: Definition | None) -> str | None:
    return definition.fields.get(_MODE_KEY) if definition else None


def in_mode(definition: Definition, mode: str) -> Definition:
    """The same definition; where it asks for a permission mode, for this one."""
    fields = definition.fields
    return replace(definition, fields={**fields, _MODE_KEY: mode}) if _MODE_KEY in fields else definition


WIDENING: Mapping[str, Sequence[str]] = {
    "lets it work without asking anybody": (
        *("--dangerously-*", "--allow-dangerously-*", "--allowedTools", "--allowed-tools"),
        *("--permission-prompt-tool", "--permission-prompts", "--inherit-permission-mode", "--enable-auto-mode"),
    ),
    "brings settings along, and with them hooks, servers and permissions": (
        *("--setting-sources", "--settings", "--managed-settings*", "--project-config-root"),
        *("--client-data-url", "--await-*"),
    ),
    "leaves out what the user's own settings forbid or watch over": ("--bare", "--safe-mode", "--restricted"),
    "starts programs, or connects to running ones": (
        *("--mcp-*", "--plugin-*", "--init", "--init-only", "--maintenance", "--chrome", "--ide"),
    ),
    "reads or writes where nobody would be asked": (
        *("--add-dir", "--debug-file", "--file", "--rewind-files", "--worktree", "-w", "--tmux"),
        *("--system-prompt-file", "--append-system-prompt-file"),
    ),
    "makes it another agent than the one that was looked up and checked": ("--agent*", "--team*", "--lead-verify-key"),
    "goes on with a session that nobody chose, and with what was allowed in it": (
        *("--session-*", "--resume*", "-r", "--continue", "-c", "--fork-session", "--from-pr", "--reply-on-resume"),
    ),
    "takes it where Hocket neither sees nor stops it": (
        *("--input-format", "--output-format", "--bg", "--background", "--desktop", "--handle-uri", "--deep-link-*"),
        *("--cloud", "--remote*", "--rc", "--environment", "--pool", "--teleport", "--attach-serve", "--sdk-url"),
    ),
    "lets somebody else speak to it": ("--channels", "--watch-artifact*", "--messaging-socket-path"),
    "makes mere words of what the user adds": ("--",),
}
"""What the CLI's flags do beyond what an agent was given leave for. ``*`` at the end of a flag stands for any rest.

Every other flag only shapes the work (its model, its bounds, its prompt, fewer tools), which a project may do; a flag
that the CLI does not know ends it with an error.
"""
_LETTERS = re.compile("-[phv]*([crw])")
"""Short flags in one argument, as the CLI takes them apart: after some without a value, one that widens."""


class Widening(NamedTuple):
    """An argument by which an agent could do more, and in what way."""

    argument: str
    reason: str


_MODEL_FLAGS = ("-m", "--model")


def unknown_widening(args: Sequence[str]) -> Widening | None:
    """The first argument of a CLI whose flags are not known here; only a model is known to widen nothing."""
    words = iter(args)
    for word in words:
        if word in _MODEL_FLAGS:
            next(words, None)
        elif not word.startswith("--model="):
            return Widening(word, "may let it do more than its permission mode")
    return None


def widening(args: Sequence[str], mode: str, before: Sequence[str] = ()) -> Widening | None:
    """The first of these arguments that lets Claude do more than its permission mode and the ones ``before`` do.

    Arguments that are only some flag's value are looked at like flags: which ones take a value differs from one
    version of the CLI to the next.
    """
    if args and (open_list := _open_list(before)) and not args[0].startswith("-"):
        return Widening(args[0], f"goes on with the values of {open_list}")
    for argument, following in pairwise((*args, "")):
        flag, given, value = argument.partition("=")
        if flag == "--permission-mode" and is_wider(value if given else following, mode):
            return Widening(f"{flag} {value if given else following}", f"allows more than {mode}")
        reason = _reason(flag)
        if reason:
            return Widening(flag, reason)
    return None


_MODE_FLAG = "--permission-mode"
_BYPASS_FLAG = "--dangerously-skip-permissions"


def mode_with(args: Sequence[str], mode: str) -> str:
    """The permission mode that the CLI works in with these arguments, where without them it is ``mode``."""
    for argument, following in pairwise((*args, "")):
        flag, given, value = argument.partition("=")
        if flag == _BYPASS_FLAG:
            return BYPASS
        if flag == _MODE_FLAG:
            mode = value if given else following
    return mode


def without_modes(args: Sequence[str]) -> tuple[str, ...]:
    """The same arguments, and not a word in them about the permission mode."""
    left, words = list[str](), iter(args)
    for word in words:
        if word == _MODE_FLAG:
            next(words, None)
        elif word.partition("=")[0] not in (_MODE_FLAG, _BYPASS_FLAG):
            left.append(word)
    return tuple(left)


def _open_list(args: Sequence[str]) -> str | None:
    """The widening flag, if any, that takes the next word too: some take as many as there are."""
    last = next((argument for argument in reversed(args) if argument.startswith("-")), "")
    return last if _reason(last) else None


def _reason(flag: str) -> str | None:
    letters = _LETTERS.match(flag)
    return _REASONS.get(f"-{letters[1]}" if letters else flag) or next(
        (reason for start, reason in _REASONS_BY_START.items() if flag.startswith(start)), None
    )


_REASONS = {flag: reason for reason, flags in WIDENING.items() for flag in flags}
_REASONS_BY_START = {flag[:-1]: reason for flag, reason in _REASONS.items() if flag.endswith("*")}
