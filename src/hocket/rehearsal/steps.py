"""The words of a script as values: what an agent does, and when a rule applies. No parsing, no playing.

Plain tuples, because a scripted agent is started for every run and must not pay for a heavier kind of class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

AGENT_TOOL = "Agent"
"""The tool by which an agent starts another one."""
AGENT_TOOLS = (AGENT_TOOL, "Task")
"""With the name that it had before."""
NOBODY = "claude"
"""What scripts call the CLI with no definition."""
DEFAULT_TYPE = "general-purpose"
"""Which one it is when nothing is said."""


class Say(NamedTuple):
    text: str


class Think(NamedTuple):
    text: str


class Marker(NamedTuple):
    """Says the marker, as the agent was told it."""


class Wait(NamedTuple):
    seconds: float


class Spend(NamedTuple):
    """What the message that it stands in costs."""

    cost: float | None = None
    input: int | None = None
    output: int | None = None


class Call(NamedTuple):
    """One use of a tool."""

    name: str
    input: Mapping[str, Any]
    result: str | None = None
    error: bool = False
    asks: bool = False
    """Whether it needs somebody's permission."""
    allowed: tuple[Step, ...] | None = None
    denied: tuple[Step, ...] | None = None


class Calls(NamedTuple):
    """Tools that one message uses together. It ends the message: the next one comes after their results."""

    calls: tuple[Call, ...]


class Fail(NamedTuple):
    """The API refuses the request with a status, or the program ends with an exit code."""

    status: int | None = None
    message: str = "rehearsed failure"
    exit: int | None = None


class End(NamedTuple):
    """``refuse``: the model will not. ``break``: the stream breaks off, and goes on when it is asked for again.

    ``hang``: no answer ever comes. ``crash``: the program dies.
    """

    kind: str


Step = Say | Think | Marker | Wait | Spend | Calls | Fail | End


class Pattern(NamedTuple):
    """A text to be found in another one, or with slashes around it a regular expression."""

    text: str
    regex: re.Pattern[str] | None = None

    def fits(self, other: str) -> bool:
        return self.regex.search(other) is not None if self.regex else self.text in other


class When(NamedTuple):
    """What must hold for a rule to apply. What is None is not asked for."""

    agent: str | None = None
    prompt: Pattern | None = None
    system: Pattern | None = None
    last: Pattern | None = None
    tools: tuple[str, ...] | None = None
    turn: int | None = None
    passage: int | None = None
    """Written ``pass``: which conversation of this agent's it is."""
    woken: int | None = None
    """0 for any turn that a background agent's end began, else which of them."""


class Rule(NamedTuple):
    when: When
    do: tuple[Step, ...]


class Script(NamedTuple):
    rules: tuple[Rule, ...]
    default: tuple[Step, ...] | None = None
    """None: a request that no rule covers fails, loudly."""
    marker: str | None = None
