"""What a script says next: ``next_message(script, conversation)``, a pure function.

A conversation is a list of messages as the Messages API has them. Where a rule's list of steps goes on is read off the
conversation itself, so a player remembers nothing between two requests:

- a *turn* begins with a user's text, or with the notice that a background agent has ended (then it is *woken*);
- the first rule that fits the turn is played: one message of the agent's up to each tool call, and on with the next
  one once the results are there;
- ``last`` looks at what came back most recently, and its rule takes over whenever it fits;
- ``allowed`` and ``denied`` of a question go on instead of the rest of the list;
- a list that ends with a tool call or a ``break`` is closed with one more word; one that ends with ``refuse`` refuses
  again;
- where the agent breaks off it stays broken: the CLI asks it to go on with what it had begun to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.rehearsal.steps import (
    AGENT_TOOL,
    Call,
    Calls,
    End,
    Fail,
    Marker,
    Pattern,
    Say,
    Script,
    Spend,
    Step,
    Think,
    Wait,
    When,
)

DEFAULT_MARKER = "FORKHESTRA_COMPLETE"
"""The same as the model's, spelled out: importing that module would double a scripted agent's start-up."""
CLOSING = "Done."
REFUSAL = "No."
"""What a refused message has said before it was stopped; one without content would leave no trace to count."""
SHORT = 200

Part = Say | Think | Wait | Call
Messages = Sequence[Mapping[str, Any]]


class Conversation(NamedTuple):
    """All that a script can look at."""

    agent: str
    messages: Messages
    system: str = ""
    tools: tuple[str, ...] = ()
    passage: int = 1
    """Which conversation of this agent's it is."""


class Message(NamedTuple):
    """What the agent says and does next, up to the point where it must wait for somebody."""

    parts: tuple[Part, ...] = ()
    spend: Spend = Spend()
    fail: Fail | None = None
    end: str | None = None

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))

    @property
    def breaks(self) -> bool:
        """Whether the stream breaks off and is asked for again; before a failure of the API it does so after words."""
        spoken = any(isinstance(part, Say) for part in self.parts)
        return self.end == "break" or (spoken and self.fail is not None and self.fail.status is not None)

    @property
    def has_no_end(self) -> bool:
        """Whether nothing tells whoever listens that all has been said."""
        return self.end in ("break", "hang", "crash") or self.fail is not None

    @property
    def stop_reason(self) -> str:
        if self.end == "refuse":
            return "refusal"
        return "tool_use" if self.calls else "end_turn"


class Uncovered(NamedTuple):
    """A request that no rule fits."""

    agent: str
    turn: int
    woken: int
    passage: int
    last: str

    def __str__(self) -> str:
        turn = f"wake {self.woken}" if self.woken else f"turn {self.turn}"
        return f"rehearsal: no rule fits agent {self.agent!r}, {turn}, pass {self.passage}, last message {self.last!r}"


def next_message(script: Script, conversation: Conversation) -> Message | Uncovered:
    turn = turn_of(conversation.messages)
    steps = _choose(script, conversation, turn, turn.prompt)
    if steps is None:
        return _uncovered(conversation, turn)
    marker = marker_for(script, conversation.system)
    for reply in turn.replies:
        message, rest = _take(steps, marker)
        reaction = _choose(script, conversation, turn, reply.text, reacting=True)
        steps = _after(message, rest, reply) if reaction is None else reaction
    return _take(steps, marker)[0]


def _uncovered(conversation: Conversation, turn: Turn) -> Uncovered:
    last = turn.replies[-1].text if turn.replies else turn.prompt
    shown = last if len(last) <= SHORT else last[:SHORT] + "…"
    return Uncovered(conversation.agent, turn.number, turn.woken, conversation.passage, shown)


# --- Which rule ---------------------------------------------------------------------------------------------


def _choose(
    script: Script, conversation: Conversation, turn: Turn, last: str, *, reacting: bool = False
) -> tuple[Step, ...] | None:
    """The steps of the first rule that fits. In the middle of a turn only rules that ask for ``last`` may take over."""
    for rule in script.rules:
        if (rule.when.last or not reacting) and fits(rule.when, conversation, turn, last):
            return rule.do
    return None if reacting or turn.woken else script.default


def fits(when: When, conversation: Conversation, turn: Turn, last: str) -> bool:
    return (
        _is(when.agent, conversation.agent)
        and _is(when.turn, turn.number)
        and _is(when.passage, conversation.passage)
        and _fits_waking(when.woken, turn.woken)
        and _found(when.prompt, turn.prompt)
        and _found(when.system, conversation.system)
        and _found(when.last, last)
        and _offers(when.tools, conversation.tools)
    )


def _is(wanted: str | int | None, given: str | int) -> bool:
    return wanted is None or wanted == given


def _found(pattern: Pattern | None, text: str) -> bool:
    return pattern is None or pattern.fits(text)


def _fits_waking(wanted: int | None, woken: int) -> bool:
    """A rule that does not ask for it never answers a wake: one that starts background agents would never end."""
    if wanted is None:
        return woken == 0
    return woken > 0 and wanted in (0, woken)


def _offers(wanted: tuple[str, ...] | None, offered: tuple[str, ...]) -> bool:
    """An empty list asks for a request that offers no tools at all."""
    if wanted is None:
        return True
    return set(wanted) <= set(offered) if wanted else not offered


# --- Which message of its list ------------------------------------------------------------------------------


def _take(steps: tuple[Step, ...], marker: str) -> tuple[Message, tuple[Step, ...]]:
    """The next message of a list, and what is left of the list after it."""
    parts: list[Part] = []
    spend = Spend()
    for position, step in enumerate(steps, 1):
        match step:
            case Spend():
                spend = _added(spend, step)
            case Calls():
                return Message((*parts, *step.calls), spend), steps[position:]
            case Fail():
                return Message(tuple(parts), spend, fail=step), (step,)
            case End(kind="refuse"):
                return _refused(parts, spend), steps[position:] or (step,)
            case End(kind="break"):
                return Message(tuple(parts), spend, end="break"), steps[position:]
            case End():
                return Message(tuple(parts), spend, end=step.kind), (step,)
            case Marker():
                _say(parts, marker)
            case Say():
                _say(parts, step.text)
            case _:
                parts.append(step)
    if not any(isinstance(part, Say) for part in parts):
        parts.append(Say(CLOSING))
    return Message(tuple(parts), spend), ()


def _refused(parts: list[Part], spend: Spend) -> Message:
    if not any(isinstance(part, Say) for part in parts):
        parts.append(Say(REFUSAL))
    return Message(tuple(parts), spend, end="refuse")


def _say(parts: list[Part], text: str) -> None:
    """What is said in one breath is one text: a turn's result is its last text, and should be whole."""
    if parts and isinstance(parts[-1], Say):
        parts[-1] = Say(f"{parts[-1].text}\n{text}")
    else:
        parts.append(Say(text))


def _added(spend: Spend, more: Spend) -> Spend:
    return Spend(
        spend.cost if more.cost is None else more.cost,
        spend.input if more.input is None else more.input,
        spend.output if more.output is None else more.output,
    )


def _after(message: Message, rest: tuple[Step, ...], reply: Reply) -> tuple[Step, ...]:
    for call, result in zip(message.calls, reply.results, strict=False):
        if call.asks:
            branch = call.denied if result.denied else call.allowed
            return rest if branch is None else branch
    return rest


# --- Reading a conversation ---------------------------------------------------------------------------------

REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>\s*|\Z)", re.DOTALL)
NOTIFICATION = "<task-notification>"
STOPPED_BY_SAFETY = "Your response above was stopped by a safety classifier"
CUT_OFF = "Your response above was cut off mid-stream"
NOTES = ("[Request interrupted by user", STOPPED_BY_SAFETY, CUT_OFF, "[Your previous response had no visible output")
"""Texts of the CLI's own that stand where a user's would."""
MID_TURN = "The user sent a new message while you were working:"
"""How the CLI begins what it passes on to an agent that is in the middle of a turn."""
OWN_FAILURE = ("Exit code", "<tool_use_error>")
"""How a tool's own failure begins. Any other error of a tool that had to ask is a refusal."""


class Result(NamedTuple):
    text: str
    error: bool

    @property
    def denied(self) -> bool:
        return self.error and not self.text.startswith(OWN_FAILURE)


class Reply(NamedTuple):
    """What came back after one message of the agent's, in the order of its calls."""

    results: tuple[Result, ...]
    text: str


class Turn(NamedTuple):
    prompt: str
    number: int
    """How many texts of the user's there have been."""
    woken: int
    """0 unless the end of a background agent began it; then which of these turns it is."""
    replies: tuple[Reply, ...]


class _Open:
    """A message of the agent's whose results are being gathered."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.ids = [block.get("id") for block in blocks_of(message) if block.get("type") == "tool_use"]
        self.results: dict[Any, Result] = {}
        self.texts: list[str] = []

    def add(self, message: Mapping[str, Any]) -> None:
        for block in blocks_of(message):
            if block.get("type") == "tool_result":
                result = Result(flat_text(block.get("content")), block.get("is_error") is True)
                self.results[block.get("tool_use_id")] = result
                self.texts.append(result.text)

    def reply(self) -> Reply:
        known = (self.results.get(id, Result("", False)) for id in self.ids)
        return Reply(tuple(known), "\n".join(self.texts))


def turn_of(messages: Messages) -> Turn:
    """The turn that a conversation is in."""
    prompt, number, wakes, woken = "", 0, 0, False
    since: list[_Open] = []
    for message in messages:
        role = message.get("role")
        if role == "assistant":
            since.append(_Open(message))
        elif role == "system":
            if since and MID_TURN in (text := flat_text(message.get("content"))):
                since[-1].texts.append(text)
        elif texts := user_texts(message):
            prompt, number, woken, since = texts[-1], number + len(texts), False, []
        elif notice := notification(message):
            prompt, wakes, woken, since = notice, wakes + 1, True, []
        elif since:
            since[-1].add(message)
    return Turn(prompt, number, wakes if woken else 0, tuple(open_.reply() for open_ in since))


def user_texts(message: Mapping[str, Any]) -> list[str]:
    texts = (users_part(text) for text in _texts(message))
    return [text for text in texts if text and not text.startswith(NOTES)]


def users_part(text: str) -> str:
    """What a user wrote, without what the CLI puts around it."""
    return REMINDER.sub("", text).strip()


def is_reminded(message: Mapping[str, Any]) -> bool:
    """Whether the CLI has put something before or after what the user wrote."""
    return any(REMINDER.match(text) for text in _texts(message))


def notification(message: Mapping[str, Any]) -> str | None:
    return "\n".join(text for text in _texts(message) if NOTIFICATION in text) or None


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    for block in blocks_of(message):
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            yield block["text"]


def blocks_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def flat_text(content: Any) -> str:
    """Text, or the text of a list of blocks."""
    return content if isinstance(content, str) else "\n".join(_texts({"content": content}))


def sub_agent_type(script: Script, prompt: str) -> str | None:
    """The agent that the script gives this prompt to: how a sub-agent is known that nothing else names."""
    for call in _all_calls(script):
        if call.name == AGENT_TOOL and users_part(str(call.input.get("prompt", ""))) == users_part(prompt):
            return str(call.input.get("subagent_type"))
    return None


def _all_calls(script: Script) -> Iterator[Call]:
    for rule in script.rules:
        yield from _calls_in(rule.do)
    yield from _calls_in(script.default or ())


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
    """What the agent was told to write as a line of its own, else the script's, else what looks like one."""
    if told := ASKED_FOR.findall(system):
        return str(told[-1]).strip()
    alike = CAPITALS.findall(system)
    return script.marker or (str(alike[-1]).strip() if alike else DEFAULT_MARKER)
