"""The steps and conditions of a script as values. Plain tuples, because the scripted agent starts for every run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

AGENT_TOOL = "Agent"
"""The tool by which an agent starts another one."""
AGENT_TOOLS = (AGENT_TOOL, "Task")
"""With its former name."""
NO_DEFINITION = "claude"
"""The agent name of the Claude CLI without a definition."""
DEFAULT_TYPE = "general-purpose"
"""The type of a sub-agent if none is given."""


class Say(NamedTuple):
    text: str


class Echo(NamedTuple):
    """A text in which ``{prompt}``, ``{last}`` and ``{request_id}`` stand for values of the conversation."""

    text: str


class Think(NamedTuple):
    text: str


class Marker(NamedTuple):
    """Write the marker that the agent was given."""


class Wait(NamedTuple):
    seconds: float = 0.0
    file: str | None = None
    """A file to wait for, after the seconds."""


class Spend(NamedTuple):
    """Cost and tokens of the message that it is part of."""

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
    """Whether it needs permission."""
    allowed: tuple[Step, ...] | None = None
    denied: tuple[Step, ...] | None = None
    rule: str | None = None
    """The permission rule to suggest for this tool."""
    id: str | None = None
    """The id of the question; a new one if None."""
    echoes: bool = False
    """Whether its input has placeholders, as an ``Echo`` has."""


class Calls(NamedTuple):
    """Tool calls of one message. They end the message; the next one follows their results."""

    calls: tuple[Call, ...]


class Fail(NamedTuple):
    """An error status of the API, or an exit code of the program."""

    status: int | None = None
    message: str = "rehearsed failure"
    exit: int | None = None


class End(NamedTuple):
    """``refuse``: the model refuses. ``break``: the stream breaks off and continues in the next request.

    ``hang``: no response. ``crash``: the program crashes.
    """

    kind: str


Step = Say | Echo | Think | Marker | Wait | Spend | Calls | Fail | End


class Pattern(NamedTuple):
    """A substring, or a regular expression if written between slashes."""

    text: str
    regex: re.Pattern[str] | None = None

    def fits(self, other: str) -> bool:
        return self.regex.search(other) is not None if self.regex else self.text in other


class When(NamedTuple):
    """The conditions of a rule; None matches everything."""

    agent: str | None = None
    prompt: Pattern | None = None
    system: Pattern | None = None
    last: Pattern | None = None
    tools: tuple[str, ...] | None = None
    turn: int | None = None
    passage: int | None = None
    """The number of the agent's conversation; ``pass`` in scripts."""
    woken: int | None = None
    """0 for every turn that the end of a background agent or a notice of the team started, else its number."""


class Rule(NamedTuple):
    when: When
    do: tuple[Step, ...]


class Script(NamedTuple):
    rules: tuple[Rule, ...]
    default: tuple[Step, ...] | None = None
    """None: a request that no rule covers fails."""
    marker: str | None = None
