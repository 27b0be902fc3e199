"""Hooks of ours in settings of Claude: those by which calls of sub-agents become runs, and those of a team's lead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

EVENT = "PreToolUse"
TIMEOUT = 120
"""In seconds. The CLI carries out a call whose hook takes longer, so the hook ends well before."""
PERMISSION_EVENT = "PermissionRequest"
PERMISSION_TIMEOUT = 7 * 24 * 3600
"""A person answers. Until then the terminal shows the same question."""
_MATCHER = "Task|Agent"
"""Both names of the tool. A matcher for either one matches both (measured)."""
STARTED = "Not an error: Hocket has started "
"""How the reason of a denial begins if the call was started as a run."""
_BLOCK = "|| exit 2"
"""The CLI carries out a call whose hook fails, unless it fails with this code."""


def entry(command: str) -> dict[str, Any]:
    """The entry of the event for a command, which the CLI passes to a shell."""
    return _entry(_MATCHER, command, TIMEOUT)


def for_runs(argv: Sequence[str]) -> dict[str, Any]:
    """The entry for a run: without the program of the hook, no call is carried out."""
    return entry(f"{shlex.join(argv)} {_BLOCK}")


def hooks_for_lead(hocket: Sequence[str], *, delegates: bool = False) -> dict[str, list[dict[str, Any]]]:
    """By event, the entries for a team's lead. ``hocket`` is its command line without a command.

    With ``delegates`` calls of sub-agents that are no teammates become runs. A permission request whose hook fails is
    left to the terminal.
    """
    before_calls = (*hocket, "hook", "pre-tool-use", "--team", *(("--always",) if delegates else ()))
    asking = shlex.join((*hocket, "hook", "permission-request"))
    return {EVENT: [for_runs(before_calls)], PERMISSION_EVENT: [_entry("*", asking, PERMISSION_TIMEOUT)]}


def is_started(output: str) -> bool:
    """Whether the CLI's text for a denied call says that it was started as a run instead."""
    return f" hook error: {STARTED}" in output.partition("\n")[0]


def _entry(matcher: str, command: str, timeout: int) -> dict[str, Any]:
    return {"matcher": matcher, "hooks": [{"type": "command", "command": command, "timeout": timeout}]}
