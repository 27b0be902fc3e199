"""The hook by which calls of sub-agents become runs: its entry in settings of Claude."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

EVENT = "PreToolUse"
TIMEOUT = 120
"""In seconds. The CLI carries out a call whose hook takes longer, so the hook ends well before."""
_MATCHER = "Task|Agent"
"""Both names of the tool. A matcher for either one matches both (measured)."""
STARTED = "Not an error: Hocket has started "
"""How the reason of a denial begins if the call was started as a run."""
_BLOCK = "|| exit 2"
"""The CLI carries out a call whose hook fails, unless it fails with this code."""


def entry(command: str) -> dict[str, Any]:
    """The entry of the event for a command, which the CLI passes to a shell."""
    return {"matcher": _MATCHER, "hooks": [{"type": "command", "command": command, "timeout": TIMEOUT}]}


def for_runs(argv: Sequence[str]) -> dict[str, Any]:
    """The entry for a run: without the program of the hook, no call is carried out."""
    return entry(f"{shlex.join(argv)} {_BLOCK}")


def is_started(output: str) -> bool:
    """Whether the CLI's text for a denied call says that it was started as a run instead."""
    return f" hook error: {STARTED}" in output.partition("\n")[0]
