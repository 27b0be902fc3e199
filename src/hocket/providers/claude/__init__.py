"""Claude Code: started as a program, talked to in lines of JSON, and judged by what it says.

``launch`` makes its command line, ``reader`` turns its lines into events, ``verdict`` says how it ended, ``talk`` is
what is written to it. Its own spelling of things stays in ``words``.
"""

from __future__ import annotations

from collections.abc import Callable

from hocket.providers.base import Conversation, Program, Said, Sessions, State
from hocket.providers.claude import talk
from hocket.providers.claude.launch import launch, prompted, tools_of, within
from hocket.providers.claude.reader import reader
from hocket.providers.claude.usage import unpriced
from hocket.providers.claude.verdict import is_transient, verdict

__all__ = [
    "conversation",
    "is_transient",
    "last_said",
    "launch",
    "longest_line",
    "program",
    "prompted",
    "reader",
    "result_of",
    "sessions",
    "tools_of",
    "unpriced",
    "verdict",
    "within",
]

longest_line = 16 * 1024 * 1024
program: Program | None = Program("claude", "the Claude CLI", "HOCKET_CLAUDE", "install Claude Code")
conversation: Conversation | None = talk
sessions: Sessions | None = talk


def last_said(state: State) -> list[Said]:
    """Its results have told everything; without one there is no end that could count."""
    del state
    return []


def result_of(tail: Callable[[], bytes]) -> str | None:
    """Its events have told it: the result of its last turn."""
    del tail
    return None
