"""What can be called: names, arguments and descriptions, as values. What a call does is told in ``calls``.

Every Claude run reads these descriptions, so they are short: each word of them costs tokens again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hocket.input_limits import whole

SERVER = "hocket"
"""What this server is called where it is configured, and so part of each tool's name there."""
DEFAULT_WAIT = 600.0
MAX_WAIT = 86_400.0
MAX_TEXT = 12 * 1024 * 1024
_LARGE = {"anthropic/maxResultSizeChars": 100_000}
"""A final message arrives whole: it may be longer than what Claude takes from a tool unless it is told."""
_AT_HAND = {"anthropic/alwaysLoad": True}
"""Claude keeps the tools of servers away until it looks for one. This one is what the server is there for."""

_TEXT, _NUMBER, _FLAG, _TEXTS = "string", "number", "boolean", "array"
_WORDS = {_TEXT: "a text", _NUMBER: "a number", _FLAG: "true or false", _TEXTS: "a list of texts"}


class Field:
    """One argument."""

    __slots__ = ("kind", "required", "says")

    def __init__(self, kind: str, says: str, required: bool = False) -> None:
        self.kind = kind
        self.says = says
        self.required = required

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.kind, "description": self.says}
        if self.kind == _NUMBER:
            return schema | {"exclusiveMinimum": 0, "maximum": MAX_WAIT}
        if self.kind == _TEXTS:
            return schema | {"items": {"type": _TEXT}, "minItems": 1, "maxItems": 20}
        return schema | {"minLength": 1} if self.kind == _TEXT else schema


class Tool:
    """One tool."""

    __slots__ = ("fields", "hints", "reads", "says")

    def __init__(self, says: str, reads: bool = False, hints: dict[str, Any] | None = None, **fields: Field) -> None:
        self.says = says
        self.reads = reads
        """It changes nothing, so a client may call several at once and ask nobody for leave."""
        self.hints = hints
        """What Claude alone understands."""
        self.fields = fields

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: field.schema() for name, field in self.fields.items()},
            "required": [name for name, field in self.fields.items() if field.required],
            "additionalProperties": False,
        }


_TIMEOUT = Field(_NUMBER, f"Seconds to wait, {DEFAULT_WAIT:.0f} if not given; the work goes on after that.")
_CWD = "Absolute path of the directory to work in; yours if not given."
_RUN = "A run's id or number."

TOOLS: dict[str, Tool] = {
    "list_agents": Tool(
        "List the agents that can be started here, with what each is for.",
        reads=True,
        contains=Field(_TEXT, "Only those with this in their name or description."),
    ),
    "hand_off": Tool(
        "Hand work to another agent and wait for it. Returns the agent's final message alone. It knows nothing of your "
        "conversation, so say everything in the prompt.",
        hints={**_LARGE, **_AT_HAND},
        agent=Field(_TEXT, "Its name, as list_agents gives it.", required=True),
        prompt=Field(_TEXT, "What to do, complete in itself.", required=True),
        task=Field(_TEXT, "Id or number of the task it belongs to; your own, else a new one, if not given."),
        cwd=Field(_TEXT, "Absolute path to work in, for a new task; yours if not given."),
        timeout=_TIMEOUT,
    ),
    "spawn": Tool(
        "Start an agent and come back at once with its run. Use wait for its final message.",
        agent=Field(_TEXT, "Its name, as list_agents gives it.", required=True),
        prompt=Field(_TEXT, "What to do, complete in itself.", required=True),
        cwd=Field(_TEXT, _CWD),
        session=Field(_FLAG, "It stays for more messages (send) after its first turn, until it is stopped."),
    ),
    "wait": Tool(
        "Wait for a run, a hand-off or a question of yours, and return its final message or its answer: the same, "
        "however often it is asked for. Name one of the three.",
        reads=True,
        hints=_LARGE,
        run=Field(_TEXT, _RUN),
        handoff=Field(_TEXT, "A hand-off's id."),
        task=Field(_TEXT, "The task of that hand-off; your own if not given."),
        question=Field(_TEXT, "The id of a question that ask gave."),
        timeout=_TIMEOUT,
    ),
    "status": Tool(
        "Tell how a run is doing, or, without one, all that you started.",
        reads=True,
        run=Field(_TEXT, _RUN),
    ),
    "send": Tool(
        "Say something to a run that is at work or waits for messages. Use wait for its answer.",
        run=Field(_TEXT, _RUN, required=True),
        text=Field(_TEXT, "What to say.", required=True),
    ),
    "stop": Tool(
        "Stop a run with everything below it; returns when all of it is gone.",
        run=Field(_TEXT, _RUN, required=True),
    ),
    "ask": Tool(
        "Ask the people you work for, and wait for their answer. Only for what you cannot decide or find out yourself.",
        question=Field(_TEXT, "The question, complete in itself.", required=True),
        options=Field(_TEXTS, "Answers to choose from."),
        timeout=_TIMEOUT,
    ),
}


LISTED: list[dict[str, Any]] = [
    {
        "name": name,
        "description": tool.says,
        "inputSchema": tool.schema(),
        "annotations": {"readOnlyHint": tool.reads, "destructiveHint": name == "stop", "openWorldHint": False},
        **({"_meta": tool.hints} if tool.hints else {}),
    }
    for name, tool in TOOLS.items()
]
"""All of them as the protocol tells of them."""


def rules(names: Iterable[str] = TOOLS) -> tuple[str, ...]:
    """What Claude calls these tools: each by itself, so that leave for them is leave for nothing else."""
    return tuple(f"mcp__{SERVER}__{name}" for name in names)


def complaint(name: str, arguments: dict[str, Any]) -> str | None:
    """What is wrong with the arguments of a call, in words that help to correct them."""
    fields = TOOLS[name].fields
    unknown = [given for given in arguments if given not in fields]
    if unknown:
        return f"{name} has no argument {unknown[0][:80]!r}; it has {', '.join(fields)}"
    missing = [one for one, field in fields.items() if field.required and arguments.get(one) is None]
    if missing:
        return f"{name} needs {' and '.join(missing)}"
    for given, value in arguments.items():
        if value is not None and not _fits(fields[given].kind, value):
            return f"{given} must be {_wanted(fields[given].kind)}"
    return None


def _wanted(kind: str) -> str:
    if kind == _NUMBER:
        return f"a number of seconds above 0, at most {MAX_WAIT:.0f}"
    return f"{_WORDS[kind]} that is not empty" if kind in (_TEXT, _TEXTS) else _WORDS[kind]


def _fits(kind: str, value: Any) -> bool:
    if kind == _FLAG:
        return isinstance(value, bool)
    if kind == _NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_WAIT
    if kind == _TEXTS:
        return isinstance(value, list) and 0 < len(value) <= 20 and all(_fits(_TEXT, one) for one in value)
    # Models write a run's number as a number.
    value = whole(value)
    return isinstance(value, str | int) and not isinstance(value, bool) and 0 < len(str(value)) <= MAX_TEXT


def settled(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments that fit, without those that say nothing, and texts as texts."""
    fields = TOOLS[name].fields
    return {
        given: str(whole(value)) if fields[given].kind == _TEXT else value
        for given, value in arguments.items()
        if value is not None
    }
