"""The next message of a script: ``next_message(script, conversation)``, a pure function.

A conversation is a list of messages in the format of the Messages API. The position in a rule's list of steps follows
from the conversation itself, so no state is kept between two requests:

- a *turn* starts with a text of the user, with a message of a teammate, or with a notification, for example that a
  background agent has ended (it is *woken*);
- the first matching rule applies: one message up to each tool call, and the next one after the results;
- ``last`` matches the most recent result, and its rule takes over whenever it matches;
- ``allowed`` and ``denied`` of a question replace the rest of the list;
- a list that ends with a tool call or a ``break`` is closed with one more text; one that ends with ``refuse`` refuses
  again;
- a failure is final: later requests of the turn fail in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.input_limits import DEFAULT_MARKER
from hocket.rehearsal.steps import (
    AGENT_TOOL,
    Call,
    Calls,
    Echo,
    End,
    Fail,
    Marker,
    Say,
    Script,
    Spend,
    Step,
    Think,
    Wait,
    When,
)

CLOSING = "Done."
NOTED = (Say("Noted."),)
"""The answer to notices of the team that no rule answers."""
REFUSAL = "No."
"""The text of a refused message; without content it could not be counted."""
SHORT = 200

Part = Say | Think | Wait | Call
Messages = Sequence[Mapping[str, Any]]


class AgentConversation(NamedTuple):
    """Everything that a script can match."""

    agent: str
    messages: Messages
    system: str = ""
    tools: tuple[str, ...] = ()
    passage: int = 1
    """The number of the agent's conversation."""


class Message(NamedTuple):
    """One message of the agent, up to the next tool call or the end of the turn."""

    parts: tuple[Part, ...] = ()
    spend: Spend = Spend()
    fail: Fail | None = None
    end: str | None = None

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))

    @property
    def breaks(self) -> bool:
        """True if the stream breaks off and is requested again, as before an API failure after text."""
        spoken = any(isinstance(part, Say) for part in self.parts)
        return self.end == "break" or (spoken and self.fail is not None and self.fail.status is not None)

    @property
    def has_no_end(self) -> bool:
        """True if the stream ends without its final event."""
        return self.end in ("break", "hang", "crash") or self.fail is not None

    @property
    def stop_reason(self) -> str:
        if self.end == "refuse":
            return "refusal"
        return "tool_use" if self.calls else "end_turn"


class Uncovered(NamedTuple):
    """A request that no rule matches."""

    agent: str
    turn: int
    woken: int
    passage: int
    last: str

    def __str__(self) -> str:
        turn = f"wake {self.woken}" if self.woken else f"turn {self.turn}"
        return f"rehearsal: no rule fits agent {self.agent!r}, {turn}, pass {self.passage}, last message {self.last!r}"


def next_message(script: Script, conversation: AgentConversation) -> Message | Uncovered:
    turn = turn_of(conversation.messages)
    steps = _choose(script, conversation, turn, turn.prompt)
    if steps is None:
        return _uncovered(conversation, turn)
    marker = marker_for(script, conversation.system)
    last = turn.prompt
    for reply in turn.replies:
        message, rest = _take(steps, marker, turn.prompt, last)
        last = reply.text
        reaction = _choose(script, conversation, turn, reply.text, reacting=True)
        steps = _after(message, rest, reply) if reaction is None else reaction
    return _take(steps, marker, turn.prompt, last)[0]


def _uncovered(conversation: AgentConversation, turn: CurrentTurn) -> Uncovered:
    last = turn.replies[-1].text if turn.replies else turn.prompt
    shown = last if len(last) <= SHORT else last[:SHORT] + "…"
    return Uncovered(conversation.agent, turn.number, turn.woken, conversation.passage, shown)


# --- Which rule ---------------------------------------------------------------------------------------------


def _choose(
    script: Script, conversation: AgentConversation, turn: CurrentTurn, last: str, *, reacting: bool = False
) -> tuple[Step, ...] | None:
    """The steps of the first matching rule. During a turn only rules with ``last`` may take over."""
    for rule in script.rules:
        if (rule.when.last or not reacting) and fits(rule.when, conversation, turn, last):
            return rule.do
    if reacting or not turn.woken:
        return None if reacting else script.default
    return NOTED if TEAMMATE_MESSAGE.search(turn.prompt) else None


def fits(when: When, conversation: AgentConversation, turn: CurrentTurn, last: str) -> bool:
    values = ((when.agent, conversation.agent), (when.turn, turn.number), (when.passage, conversation.passage))
    patterns = ((when.prompt, turn.prompt), (when.system, conversation.system), (when.last, last))
    return (
        all(wanted is None or wanted == given for wanted, given in values)
        and all(pattern is None or pattern.fits(text) for pattern, text in patterns)
        and _fits_waking(when.woken, turn.woken)
        and _fits_tools(when.tools, conversation.tools)
    )


def _fits_waking(wanted: int | None, woken: int) -> bool:
    """A rule without ``woken`` never matches a woken turn, or one that starts background agents would not end."""
    if wanted is None:
        return woken == 0
    return woken > 0 and wanted in (0, woken)


def _fits_tools(wanted: tuple[str, ...] | None, offered: tuple[str, ...]) -> bool:
    """An empty list matches only a request without tools."""
    if wanted is None:
        return True
    return set(wanted) <= set(offered) if wanted else not offered


# --- Which message of its list ------------------------------------------------------------------------------


def _take(steps: tuple[Step, ...], marker: str, prompt: str, last: str) -> tuple[Message, tuple[Step, ...]]:
    """The next message of a list, and the rest of the list."""
    parts: list[Part] = []
    spend = Spend()
    for position, step in enumerate(steps, 1):
        match step:
            case Spend():
                spend = spend._replace(**{name: value for name, value in step._asdict().items() if value is not None})
            case Calls():
                calls = (_filled(call, prompt, last) for call in step.calls)
                return Message((*parts, *calls), spend), steps[position:]
            case Fail():
                return Message(tuple(parts), spend, fail=step), (step,)
            case End(kind="refuse"):
                return Message(_with_text(parts, REFUSAL), spend, end="refuse"), steps[position:] or (step,)
            case End(kind="break"):
                return Message(tuple(parts), spend, end="break"), steps[position:]
            case End():
                return Message(tuple(parts), spend, end=step.kind), (step,)
            case Marker():
                _say(parts, marker)
            case Say():
                _say(parts, step.text)
            case Echo():
                _say(parts, _fill(step.text, prompt, last))
            case _:
                parts.append(step)
    return Message(_with_text(parts, CLOSING), spend), ()


def _fill(text: str, prompt: str, last: str) -> str:
    request = (REQUEST_ID.findall(prompt) or [""])[-1]
    return text.replace("{request_id}", request).replace("{last}", last).replace("{prompt}", prompt)


def _filled(call: Call, prompt: str, last: str) -> Call:
    """A call whose input has values of the conversation."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return _fill(value, prompt, last)
        if isinstance(value, dict):
            return {key: fill(one) for key, one in value.items()}
        return [fill(one) for one in value] if isinstance(value, list) else value

    return call._replace(input=fill(dict(call.input))) if call.echoes else call


def _with_text(parts: list[Part], text: str) -> tuple[Part, ...]:
    """The parts of a message, with this text if they have none."""
    return tuple(parts) if any(isinstance(part, Say) for part in parts) else (*parts, Say(text))


def _say(parts: list[Part], text: str) -> None:
    """Consecutive texts are joined, because the result of a turn is its last text."""
    if parts and isinstance(parts[-1], Say):
        parts[-1] = Say(f"{parts[-1].text}\n{text}")
    else:
        parts.append(Say(text))


def _after(message: Message, rest: tuple[Step, ...], reply: Reply) -> tuple[Step, ...]:
    for call, result in zip(message.calls, reply.results.values(), strict=False):
        if call.asks:
            branch = call.denied if result.denied else call.allowed
            return rest if branch is None else branch
    return rest


# --- Reading a conversation ---------------------------------------------------------------------------------

REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>\s*|\Z)", re.DOTALL)
NOTIFICATION = "<task-notification>"
TEAMMATE_MESSAGE = re.compile(r"<teammate-message [^\n]*>\n(.*?)\n</teammate-message>", re.DOTALL)
TEAM_NOTICE = re.compile(
    r'\{"type":"(idle_notification|task_assignment|task_completed|shutdown_approved|teammate_terminated)"'
)
"""How a message begins that the CLI itself sends to an agent of a team, and that needs no answer."""
REQUEST_ID = re.compile(r'"requestId":"([^"]+)"')
STOPPED_BY_SAFETY = "Your response above was stopped by a safety classifier"
CUT_OFF = "Your response above was cut off mid-stream"
NOTES = ("[Request interrupted by user", STOPPED_BY_SAFETY, CUT_OFF, "[Your previous response had no visible output")
"""Texts that the CLI itself sends in the role of the user."""
MID_TURN = "The user sent a new message while you were working:"
"""How the CLI introduces a message that arrives during a turn."""
OWN_FAILURE = ("Exit code", "<tool_use_error>")
"""How the failure of a tool begins. Any other error of a tool that needs permission is a denial."""


class ReceivedResult(NamedTuple):
    text: str
    error: bool

    @property
    def denied(self) -> bool:
        return self.error and not self.text.startswith(OWN_FAILURE)


class Reply(NamedTuple):
    """What came after one message of the agent."""

    results: dict[Any, ReceivedResult]
    """By the id of the tool call, in the order of the calls."""
    texts: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


class CurrentTurn(NamedTuple):
    prompt: str
    number: int
    """The number of user texts so far."""
    woken: int
    """The number of the turn among those that a notification started; else 0."""
    replies: tuple[Reply, ...]


def turn_of(messages: Messages) -> CurrentTurn:
    """The current turn of a conversation."""
    prompt, number, wakes, woken = "", 0, 0, False
    replies: list[Reply] = []
    for message in messages:
        role = message.get("role")
        if role == "assistant":
            calls = [block.get("id") for block in blocks_of(message) if block.get("type") == "tool_use"]
            replies.append(Reply(dict.fromkeys(calls, ReceivedResult("", False)), []))
        elif role == "system":
            if replies and MID_TURN in (text := flat_text(message.get("content"))):
                replies[-1].texts.append(text)
        elif texts := user_texts(message):
            prompt, number, woken, replies = texts[-1], number + len(texts), False, []
        elif notice := notification(message):
            prompt, wakes, woken, replies = notice, wakes + 1, True, []
        elif replies:
            for block in blocks_of(message):
                if block.get("type") == "tool_result":
                    result = ReceivedResult(flat_text(block.get("content")), block.get("is_error") is True)
                    replies[-1].results[block.get("tool_use_id")] = result
                    replies[-1].texts.append(result.text)
    return CurrentTurn(prompt, number, wakes if woken else 0, tuple(replies))


def user_texts(message: Mapping[str, Any]) -> list[str]:
    texts = (users_part(text) for text in _texts(message))
    return [text for text in texts if text and not text.startswith(NOTES)]


def users_part(text: str) -> str:
    """The user's or the teammates' part of a text, without what the CLI adds."""
    text = REMINDER.sub("", text).strip()
    messages = TEAMMATE_MESSAGE.findall(text)
    return "\n".join(one for one in messages if not TEAM_NOTICE.match(one)) if messages else text


def is_reminded(message: Mapping[str, Any]) -> bool:
    """True if the CLI has added a reminder to the message."""
    return any(REMINDER.match(text) for text in _texts(message))


def notification(message: Mapping[str, Any]) -> str | None:
    texts = (text for text in _texts(message) if NOTIFICATION in text or TEAMMATE_MESSAGE.search(text))
    return "\n".join(texts) or None


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    for block in blocks_of(message):
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            yield block["text"]


def blocks_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else dicts(content)


def dicts(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list; empty for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def flat_text(content: Any) -> str:
    """A text, or the joined text of content blocks."""
    return content if isinstance(content, str) else "\n".join(_texts({"content": content}))


def sub_agent_type(script: Script, prompt: str) -> str | None:
    """The name or the type of the agent for which the script has this prompt; nothing else identifies a sub-agent."""
    for steps in (*(rule.do for rule in script.rules), script.default or ()):
        for call in _calls_in(steps):
            if call.name == AGENT_TOOL and users_part(str(call.input.get("prompt", ""))) == users_part(prompt):
                return str(call.input.get("name") or call.input.get("subagent_type"))
    return None


def _calls_in(steps: Iterable[Step]) -> Iterator[Call]:
    for step in steps:
        if isinstance(step, Calls):
            for call in step.calls:
                yield call
                yield from _calls_in((call.allowed or ()) + (call.denied or ()))


# --- The marker ---------------------------------------------------------------------------------------------

ASKED_FOR = re.compile(r"\bline of its own\b[^\n]*:[ \t]*\n\s*([^\n]+)")
CAPITALS = re.compile(r"^[ \t`*]*([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)[ \t`*]*$", re.MULTILINE)


def marker_for(script: Script, system: str) -> str:
    """The marker in the agent's instructions, else the script's, else a line in capitals."""
    if found := ASKED_FOR.findall(system):
        return str(found[-1]).strip()
    alike = CAPITALS.findall(system)
    return script.marker or (str(alike[-1]).strip() if alike else DEFAULT_MARKER)
