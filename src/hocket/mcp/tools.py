"""The tools: names, arguments and descriptions. What a call of one does is in ``calls``.

The agents of every run read the descriptions, so they are short: each word costs tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hocket.input_limits import whole

SERVER = "hocket"
"""The name of this server in configurations, and so part of the name of each tool there."""
DEFAULT_WAIT = 600.0
MAX_WAIT = 86_400.0
MAX_TEXT = 12 * 1024 * 1024
_LARGE = {"anthropic/maxResultSizeChars": 100_000}
"""Raises the limit of some CLIs on the length of a tool result."""
_ALWAYS_LOADED = {"anthropic/alwaysLoad": True}
"""Makes some CLIs load the tool without a search."""

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_SECONDS: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT}
_FLAG: dict[str, Any] = {"type": "boolean"}
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 20}
_EXPECTED = {
    "string": "a non-empty string",
    "number": f"a number of seconds above 0, at most {MAX_WAIT:.0f}",
    "boolean": "true or false",
    "array": "a list of 1 to 20 non-empty strings",
}


class Tool(NamedTuple):
    """One tool."""

    description: str
    arguments: dict[str, dict[str, Any]]
    """The JSON schema of each argument."""
    required: tuple[str, ...] = ()
    read_only: bool = False
    """It changes nothing, so a client may run several calls at once without asking for permission."""
    hints: dict[str, Any] | None = None
    """Metadata for the client."""


def _argument(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


_TIMEOUT = _argument(_SECONDS, f"Seconds to wait, default {DEFAULT_WAIT:.0f}; the work continues after that.")
_AGENT = _argument(_TEXT, "Name of the agent, as in list_agents.")
_PROMPT = _argument(_TEXT, "What to do, self-contained.")
_RUN = _argument(_TEXT, "A run's id or number.")

TOOLS: dict[str, Tool] = {
    "list_agents": Tool(
        "List the agents that can be started here, with their descriptions.",
        {
            "contains": _argument(_TEXT, "Only agents with this text in their name or description."),
            "cwd": _argument(_TEXT, "Absolute path of the directory to hand off in, default yours."),
        },
        read_only=True,
    ),
    "hand_off": Tool(
        "Hand work to another agent and wait for it. Returns the agent's final message alone. It does not see your "
        "conversation, so put everything it needs into the prompt.",
        {
            "agent": _AGENT,
            "prompt": _PROMPT,
            "task": _argument(_TEXT, "Id or number of the task, default your own, else a new one."),
            "cwd": _argument(_TEXT, "Absolute path of the directory for a new task, default yours."),
            "timeout": _TIMEOUT,
        },
        required=("agent", "prompt"),
        hints={**_LARGE, **_ALWAYS_LOADED},
    ),
    "spawn": Tool(
        "Start an agent and return at once with its run. Use wait for its final message.",
        {
            "agent": _AGENT,
            "prompt": _PROMPT,
            "cwd": _argument(_TEXT, "Absolute path of the directory to work in, default yours."),
            "session": _argument(_FLAG, "Keep it for more messages (send) after its first turn, until it is stopped."),
        },
        required=("agent", "prompt"),
    ),
    "wait": Tool(
        "Wait for one run, hand-off or question of yours and return its final message or answer. Repeated calls "
        "return the same.",
        {
            "run": _RUN,
            "handoff": _argument(_TEXT, "A hand-off's id."),
            "task": _argument(_TEXT, "The task of the hand-off, default your own."),
            "question": _argument(_TEXT, "The id of a question, from ask."),
            "timeout": _TIMEOUT,
        },
        read_only=True,
        hints=_LARGE,
    ),
    "status": Tool(
        "Show the status of a run, or of all runs that you started.",
        {"run": _RUN},
        read_only=True,
    ),
    "send": Tool(
        "Send a message to a run that you started, or that started you, while it works or waits for messages. "
        "Use wait for the answer of one that you started.",
        {"run": _RUN, "text": _argument(_TEXT, "The message.")},
        required=("run", "text"),
    ),
    "stop": Tool(
        "Stop a run with everything it started; returns when all of it has ended.",
        {"run": _RUN},
        required=("run",),
    ),
    "ask": Tool(
        "Ask the people you work for and wait for the answer. Only for what you cannot decide or find out yourself.",
        {
            "question": _argument(_TEXT, "The question, self-contained."),
            "options": _argument(_TEXTS, "Answers to choose from."),
            "timeout": _TIMEOUT,
        },
        required=("question",),
    ),
}


LISTED: list[dict[str, Any]] = [
    {
        "name": name,
        "description": tool.description,
        "inputSchema": {
            "type": "object",
            "properties": tool.arguments,
            "required": list(tool.required),
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": tool.read_only, "destructiveHint": name == "stop", "openWorldHint": False},
        **({"_meta": tool.hints} if tool.hints else {}),
    }
    for name, tool in TOOLS.items()
]
"""All tools as ``tools/list`` returns them."""


def rules(names: Iterable[str] = TOOLS) -> tuple[str, ...]:
    """Return one permission rule for each of these tools, as the agent's CLI spells them."""
    return tuple(f"mcp__{SERVER}__{name}" for name in names)


def argument_error(name: str, arguments: dict[str, Any]) -> str | None:
    """Return what is wrong with the arguments of a call, and what is expected; None if they are valid."""
    declared = TOOLS[name].arguments
    unknown = [given for given in arguments if given not in declared]
    if unknown:
        return f"{name} has no argument {unknown[0][:80]!r}; it has {', '.join(declared)}"
    missing = [one for one in TOOLS[name].required if arguments.get(one) is None]
    if missing:
        return f"{name} needs {' and '.join(missing)}"
    for given, value in arguments.items():
        kind = declared[given]["type"]
        if value is not None and not _is_valid(kind, value):
            return f"{given} must be {_EXPECTED[kind]}"
    return None


def _is_valid(kind: str, value: Any) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_WAIT
    if kind == "array":
        return isinstance(value, list) and 0 < len(value) <= 20 and all(_is_valid("string", one) for one in value)
    value = whole(value)  # models write the number of a run as a number
    return isinstance(value, str | int) and not isinstance(value, bool) and 0 < len(str(value)) <= MAX_TEXT


def normalized(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return valid arguments without nulls, and with strings where strings are expected."""
    declared = TOOLS[name].arguments
    return {
        given: str(whole(value)) if declared[given]["type"] == "string" else value
        for given, value in arguments.items()
        if value is not None
    }
