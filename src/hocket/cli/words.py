"""What events say to people: one table from an event's type to its words. Questions have their own, in ``asking``.

Here belong words alone. Who speaks is ``progress``'s to know, and how loud it looks is ``terminal``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.cli.format import appointment, moment, one_line, uttered

Data = dict[str, Any]

SAID, ASIDE, NOTICE, ALERT, THOUGHT = "said", "aside", "notice", "alert", "thought"
"""How much an event wants to be seen: an agent's own words, what it does meanwhile, what went other than planned,
what waits for an answer, and what only the curious want to know."""

DEED_LIMIT = 200
GATE_LINES = 8
"""So many of a failed gate's last lines are shown; its event has more."""
_TELLING = (
    *("command", "file_path", "notebook_path", "path", "pattern", "url", "query", "description", "subject", "prompt"),
)
"""Which of a tool's arguments says best what it is about to do, the most telling first."""


class Way:
    """How one type of event is told."""

    __slots__ = ("tone", "words")

    def __init__(self, tone: str, words: Callable[[Data], str | None]) -> None:
        self.tone = tone
        self.words = words
        """None, or nothing but space, for an event of this type that is not worth a line."""


def deed(tool: str, given: Any) -> str:
    """What a tool is used for, on one line: ``Bash: make test``."""
    return _shortened(one_line(whole_deed(tool, given)), DEED_LIMIT)


def whole_deed(tool: str, given: Any) -> str:
    """The same as it was given: not shortened, and not harmless."""
    arguments = given if isinstance(given, dict) else {}
    name = telling(arguments)
    told = arguments[name] if name else as_text(arguments) if arguments else ""
    return f"{tool}: {told}" if told else tool


def telling(arguments: Data) -> str | None:
    """The name of the argument that says best what a tool is about to do."""
    return next((name for name in _TELLING if isinstance(arguments.get(name), str)), None)


def as_text(value: Any) -> str:
    """An argument of a tool, spelled as JSON where it is no text."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _text(data: Data) -> str:
    return uttered(str(data.get("text", "")))


def _error_output(data: Data) -> str | None:
    """What a program wrote beside its output. Lines that a reader made nothing of are for programs."""
    if data.get("stream") != "stderr":
        return None
    return "\n".join(f"! {line}" for line in _text(data).split("\n"))


def _gate(data: Data) -> str:
    """Its verdict, and below it, where it is a bad one, the end of what it said."""
    said = [] if data.get("passed") else _last_lines(str(data.get("output") or ""))
    return "\n".join([gate_verdict(data), *(f"| {line}" for line in said)])


def gate_verdict(data: Data) -> str:
    """``gate passed: make test``."""
    return f"gate {_verdict(data)}: {one_line(str(data.get('command', '')))}"


def gate_at_work(data: Data) -> str:
    """``gate: make test``."""
    return f"gate: {_shortened(one_line(str(data.get('command', ''))), DEED_LIMIT)}"


def _last_lines(text: str) -> list[str]:
    lines = [_shortened(line.rstrip(), DEED_LIMIT) for line in uttered(text).split("\n") if line.strip()]
    return ["…", *lines[-GATE_LINES:]] if len(lines) > GATE_LINES else lines


def _verdict(data: Data) -> str:
    if data.get("passed"):
        return "passed"
    return "timed out" if data.get("timed_out") else f"not passed (exit {data.get('exit_code')})"


def _ended(data: Data) -> str | None:
    return None if data.get("status") == "done" else one_line(f"{data.get('status')}: {_why(data)}")


def _why(data: Data) -> str:
    code = data.get("exit_code")
    told = f"{data.get('reason')} {code}" if data.get("reason") == "exit" and code is not None else data.get("reason")
    return f"{told} ({data['error']})" if data.get("error") else str(told)


def _tool_started(data: Data) -> str:
    return deed(str(data.get("name")), data.get("input"))


def _tool_finished(data: Data) -> str | None:
    return _with(f"{data.get('name')} failed", data) if data.get("error") else None


def _member(data: Data) -> str | None:
    status = str(data.get("status"))
    return None if status in ("running", "pending") else _with(status, data)


def _notice(data: Data) -> str:
    kind = str(data.get("kind") or "info")
    return one_line(_text(data)) if kind == "info" else _with(kind.replace("_", " "), data)


def _rate_limited(data: Data) -> str | None:
    if data.get("status") == "allowed":
        return None
    at = data.get("resets_at")
    until = f" until {moment(at)}" if isinstance(at, int | float) else ""
    return _with(f"rate limited{until}", data)


def _progress(data: Data) -> str | None:
    """Only what is missing is worth a line."""
    return (
        "nothing has changed since the pass before, and nothing new was said" if data.get("changed") is False else None
    )


def _worktree(data: Data) -> str:
    return one_line(f"works on branch {data.get('branch')} in {data.get('path')}")


def parking(data: Data, now: float) -> str:
    """What a chain waits for, and until when."""
    at = data.get("until")
    until = f" until {appointment(at, now)}" if isinstance(at, int | float) else ""
    if data.get("reason") == "rate_limited":
        return f"waits for the usage limit{until}"
    return f"waits{until}: the service is overloaded or cannot be reached"


def _parked(data: Data) -> str:
    import time

    return parking(data, time.time())


def _answer(data: Data) -> str:
    always = f", always: {data['rule']}" if data.get("rule") else ""
    return _with(f"{'allowed' if data.get('allow') else 'denied'} by {data.get('by') or 'somebody'}{always}", data)


def _input(data: Data) -> str | None:
    if data.get("kind") == "interrupt":
        return "interrupted"
    told = _shortened(one_line(_text(data)), DEED_LIMIT)
    if data.get("kind") == "session_message":
        return f"> message from session {_sender(data)}: {told}"
    return f"> {told}" if data.get("kind") == "message" else None


def _sender(data: Data) -> str:
    """Who sent a message, as far as the message says."""
    sender = data.get("sender") or {}
    return one_line(str(sender.get("name") or sender.get("address") or "unknown"))


def asked(data: Data) -> str | None:
    """What an agent, or a chain, was asked, on one line; None where it has no prompt."""
    text = one_line(str(data.get("prompt") or ""))
    return f"> {_shortened(text, DEED_LIMIT)}" if text else None


def _turn_ended(data: Data) -> str | None:
    """Of a run that ends with its turn, its own end tells the same."""
    if not data.get("is_error") or not data.get("idle"):
        return None
    why = one_line(str(data.get("error") or data.get("subtype") or data.get("result")))
    return f"the turn failed: {_shortened(why, DEED_LIMIT)}"


def _with(head: str, data: Data) -> str:
    """A head with the event's text behind it, where there is one; all on one line."""
    told = _shortened(one_line(_text(data)), DEED_LIMIT) if data.get("text") else ""
    return f"{one_line(head)}: {told}" if told else one_line(head)


WAYS: dict[str, Way] = {
    "run.created": Way(ASIDE, asked),
    "text": Way(SAID, _text),
    "raw": Way(SAID, _error_output),
    "gate": Way(SAID, _gate),
    "gate.started": Way(ASIDE, gate_at_work),
    "progress": Way(NOTICE, _progress),
    "worktree": Way(NOTICE, _worktree),
    "parked": Way(NOTICE, _parked),
    "unparked": Way(NOTICE, lambda data: "goes on"),
    "run.ended": Way(SAID, _ended),
    "input": Way(ASIDE, _input),
    "tool.started": Way(ASIDE, _tool_started),
    "tool.finished": Way(ASIDE, _tool_finished),
    "member": Way(ASIDE, _member),
    "thinking": Way(THOUGHT, lambda data: f"~ {one_line(_text(data))}"),
    "notice": Way(NOTICE, _notice),
    "rate_limited": Way(NOTICE, _rate_limited),
    "turn.ended": Way(NOTICE, _turn_ended),
    "answer": Way(NOTICE, _answer),
}
"""Questions are told by ``asking``; events of any other type are for programs: ``--json`` has them all."""


def tone_of(event: Data) -> str | None:
    """How much an event wants to be seen; None for one that is for programs."""
    if event["type"] == "question":
        return ALERT
    way = WAYS.get(event["type"])
    if way is not None and event["type"] == "gate" and not event["data"].get("passed"):
        return NOTICE  # why the work goes on
    if event["type"] == "input" and event["data"].get("kind") == "session_message":
        return NOTICE
    return way.tone if way is not None else None
