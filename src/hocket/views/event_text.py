"""Events as lines of text: one table from an event's type to what it says to people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hocket.views.names import tool_name
from hocket.views.text import COMMAND, PROCESS_GONE, date_and_time, one_line, terminal_output, upcoming_time

Data = dict[str, Any]

SAID, ASIDE, NOTICE, ALERT, THOUGHT = "said", "aside", "notice", "alert", "thought"
"""Prominence of an event: output, what an agent does meanwhile, something unexpected, a question, thinking."""

LINE_LIMIT = 200
GATE_LINES = 8
"""How many of the last lines of a failed gate are shown."""
_MAIN_ARGUMENTS = (
    *("command", "file_path", "notebook_path", "path", "pattern", "url", "query", "subject", "description", "prompt"),
)
"""The arguments that say best what a tool call does, best first."""


def tool_summary(tool: str, arguments: Any) -> str:
    """A tool call on one line: ``Bash: make test``."""
    return shorten(one_line(tool_call(tool, arguments)), LINE_LIMIT)


def tool_call(tool: str, arguments: Any) -> str:
    """The tool and its main argument, neither shortened nor sanitized."""
    given = arguments if isinstance(arguments, dict) else {}
    name = main_argument(given)
    text = given[name] if name else argument_text(given) if given else ""
    return f"{tool_name(tool)}: {text}" if text else tool_name(tool)


def main_argument(arguments: Data) -> str | None:
    """The name of the argument that says best what a tool call does."""
    return next((name for name in _MAIN_ARGUMENTS if isinstance(arguments.get(name), str)), None)


def argument_text(value: Any) -> str:
    """A string as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters and an ellipsis."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def helper_name(data: Mapping[str, Any]) -> str:
    """The sub-agent that an event of a run is about; empty for the run's own agent, and for its team."""
    if data.get("team"):
        return ""
    return one_line(str(data.get("agent") or ("helper" if data.get("parent") else "")))


def with_helper(data: Mapping[str, Any], text: str) -> str:
    """``helper: text`` for what a sub-agent says or does, where its run has one line for all of its agents."""
    helper = helper_name(data)
    return f"{helper}: {text}" if helper and text else text


def _text(data: Data) -> str:
    return terminal_output(str(data.get("text", "")))


def _error_output(data: Data) -> str | None:
    """Standard error of a program. Unparsed lines of standard output are not for people."""
    if data.get("stream") != "stderr":
        return None
    return "\n".join(f"! {line}" for line in _text(data).split("\n"))


def _gate(data: Data) -> str:
    """The verdict; below a failure the end of the gate's output."""
    output = [] if data.get("passed") else terminal_output(str(data.get("output") or "")).split("\n")
    output = [shorten(line.rstrip(), LINE_LIMIT) for line in output if line.strip()]
    if len(output) > GATE_LINES:
        output = ["…", *output[-GATE_LINES:]]
    return "\n".join([gate_verdict(data), *(f"| {line}" for line in output)])


def gate_verdict(data: Data) -> str:
    """``gate passed: make test``."""
    failed = "timed out" if data.get("timed_out") else f"not passed (exit {data.get('exit_code')})"
    return f"gate {'passed' if data.get('passed') else failed}: {one_line(str(data.get('command', '')))}"


def gate_running(data: Data) -> str:
    """``gate: make test``."""
    return f"gate: {shorten(one_line(str(data.get('command', ''))), LINE_LIMIT)}"


def _reason(data: Data) -> str:
    code = data.get("exit_code")
    reason = f"{data.get('reason')} {code}" if data.get("reason") == "exit" and code is not None else data.get("reason")
    return f"{reason} ({data['error']})" if data.get("error") else str(reason)


def _run_ended(data: Data) -> str | None:
    """Why a run has ended; of a session that is only observed the outcome is unknown, and nothing is lost."""
    if data.get("reason") == PROCESS_GONE:
        return "ended: its process is gone"
    return None if data.get("status") == "done" else one_line(f"{data.get('status')}: {_reason(data)}")


_TEAMMATES = {"started": "has joined", "active": "is at work", "idle": "is idle", "stopped": "has stopped"}
_SHUTDOWN = {
    "shutdown_request": "asks for a shutdown",
    "shutdown_approved": "agrees to shut down",
    "shutdown_rejected": "refuses to shut down",
}


def _teammate(data: Data) -> str:
    """``teammate alice has joined (reviewer, opus)``."""
    about = ", ".join(one_line(str(data[name])) for name in ("agent", "model") if data.get(name))
    status = str(data.get("status"))
    joined = f" ({about})" if about and status == "started" else ""
    return one_line(f"teammate {data.get('name') or data.get('id')} {_TEAMMATES.get(status, status)}{joined}")


def _task(data: Data) -> str:
    """``task 3 in progress, alice: Write the tests``."""
    owner = f", {data['owner']}" if data.get("owner") else ""
    head = f"task {data.get('id')} {str(data.get('status')).replace('_', ' ')}{owner}"
    return _with_text(head, {"text": data.get("subject")})


def _team_message(data: Data) -> str:
    """``alice to team-lead: Three tests fail``."""
    kind = str(data.get("kind") or "message")
    said = _SHUTDOWN.get(kind, "" if kind == "message" else kind.replace("_", " "))
    head = f"{data.get('from') or 'unknown'} to {data.get('to') or 'unknown'}"
    text = str(data.get("summary") or data.get("text") or "")
    return _with_text(f"{head} {said}".rstrip(), {"text": "" if _shutdown_of(text) else text})


def _shutdown_of(text: str) -> Data:
    """The content of a message with which a team shuts down a teammate; empty for any other text."""
    try:
        content, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and str(content.get("type")) in _SHUTDOWN else {}


def _member(data: Data) -> str | None:
    if data.get("team"):
        return _teammate(data)
    status = str(data.get("status"))
    return None if status in ("running", "pending") else _with_text(status, data)


def _notice(data: Data) -> str:
    """The text, and the command that it ends with on a line of its own."""
    kind = str(data.get("kind") or "info")
    if kind == "info":
        return one_line(_text(data))
    text, found, command = str(data.get("text") or "").rpartition(": hocket ")
    if not found:
        return _with_text(kind.replace("_", " "), data)
    return f"{_with_text(kind.replace('_', ' '), {'text': text})}:\n{COMMAND}{one_line(command)}"


def _rate_limited(data: Data) -> str | None:
    if data.get("status") == "allowed":
        return None
    at = data.get("resets_at")
    until = f" until {date_and_time(at)}" if isinstance(at, int | float) else ""
    return _with_text(f"rate limited{until}", data)


def parking(data: Data, now: float) -> str:
    """What a parked chain waits for, and until when."""
    at = data.get("until")
    until = f" until {upcoming_time(at, now)}" if isinstance(at, int | float) else ""
    if data.get("reason") == "rate_limited":
        return f"waits for the usage limit{until}"
    return f"waits{until}: the service is overloaded or unreachable"


def answer_text(data: Data, question: Data | None = None) -> str:
    """``allowed by operator``, with the rule and the message; ``answered by`` where the question wanted words.

    How a question was answered at the agent's own terminal is not known.
    """
    if data.get("allow") is None:
        return "answered at the terminal"
    always = f", always: {data['rule']}" if data.get("rule") else ""
    allowed = "answered" if question is not None and wants_text(question) else "allowed"
    return _with_text(f"{allowed if data.get('allow') else 'denied'} by {data.get('by') or 'unknown'}{always}", data)


def wants_text(question: Data) -> bool:
    """True if any text answers a question, not only a yes or a no."""
    return question.get("kind") in ("ask", "choice")


def reply_command(question: Data, run: object, several: bool = False) -> str:
    """The command that answers a question; with ``several`` open ones it names the question.

    The words to choose from are joined, so that the command as it stands allows nothing.
    """
    which = f" --question {one_line(str(question['id']))}" if several else ""
    words = '"YOUR ANSWER"' if wants_text(question) else "allow/deny"
    return f"hocket answer {run}{which} {words}"


def _input(data: Data) -> str | None:
    if data.get("kind") == "interrupt":
        return "interrupted"
    text = shorten(one_line(_text(data)), LINE_LIMIT)
    if data.get("kind") == "session_message":
        sender = data.get("sender") or {}
        name = one_line(str(sender.get("name") or sender.get("address") or "unknown"))
        if shutdown := _shutdown_of(str(data.get("text") or "")):
            said = f"> {name} {_SHUTDOWN[shutdown['type']]}"
            return _with_text(said, {"text": str(shutdown.get("reason") or "")})
        # A teammate has a name only; another session also has an address.
        return f"> message from {'session ' if sender.get('address') else ''}{name}: {text}"
    return f"> {text}" if data.get("kind") == "message" else None


def prompt_line(data: Data) -> str | None:
    """The prompt of a run on one line; None where it has none."""
    text = one_line(str(data.get("prompt") or ""))
    return f"> {shorten(text, LINE_LIMIT)}" if text else None


def _turn_ended(data: Data) -> str | None:
    """A failed turn of a session; that of any other run is told by its ``run.ended``."""
    if not data.get("is_error") or not data.get("idle"):
        return None
    why = one_line(str(data.get("error") or data.get("subtype") or data.get("result")))
    return f"the turn failed: {shorten(why, LINE_LIMIT)}"


def _with_text(head: str, data: Data) -> str:
    """``head: text`` on one line, or the head alone."""
    text = shorten(one_line(_text(data)), LINE_LIMIT) if data.get("text") else ""
    return f"{one_line(head)}: {text}" if text else one_line(head)


EVENT_TEXTS: dict[str, tuple[str, Callable[[Data], str | None]]] = {
    "run.created": (ASIDE, prompt_line),
    "text": (SAID, _text),
    "raw": (SAID, _error_output),
    "gate": (SAID, _gate),
    "gate.started": (ASIDE, gate_running),
    "progress": (
        NOTICE,
        lambda data: "no progress: no changes and no new output" if data.get("changed") is False else None,
    ),
    "worktree": (NOTICE, lambda data: one_line(f"works on branch {data.get('branch')} in {data.get('path')}")),
    "unparked": (NOTICE, lambda data: "continues"),
    "run.ended": (SAID, _run_ended),
    "input": (ASIDE, _input),
    "tool.started": (ASIDE, lambda data: tool_summary(str(data.get("name")), data.get("input"))),
    "tool.finished": (
        ASIDE,
        lambda data: _with_text(f"{tool_name(str(data.get('name')))} failed", data) if data.get("error") else None,
    ),
    "member": (ASIDE, _member),
    "task.changed": (ASIDE, _task),
    "message": (ASIDE, _team_message),
    "team.removed": (
        ASIDE,
        lambda data: one_line(f"what was left of {data.get('team')} is in {data.get('trash')}"),
    ),
    "thinking": (THOUGHT, lambda data: f"~ {one_line(_text(data))}"),
    "notice": (NOTICE, _notice),
    "rate_limited": (NOTICE, _rate_limited),
    "turn.ended": (NOTICE, _turn_ended),
}
"""By type, the tone and the text, which is None or blank for an event that is not worth a line.

Types without an entry, other than ``question``, ``answer`` and ``parked``, are for programs only.
"""


def text_of(event: Data, question: Data | None = None) -> str | None:
    """What an event says to people, of one or several lines; None for one that is not shown.

    ``question`` is what an ``answer`` answers.
    """
    if event["type"] == "parked":
        return parking(event["data"], event["ts"])
    if event["type"] == "answer":
        return answer_text(event["data"], question)
    entry = EVENT_TEXTS.get(event["type"])
    return entry[1](event["data"]) if entry is not None else None


def tone_of(event: Data) -> str | None:
    """The prominence of an event; None for one that is for programs only."""
    kind = event["type"]
    if kind == "question":
        return ALERT
    if (
        kind in ("answer", "parked")
        or (kind == "gate" and not event["data"].get("passed"))  # the reason why the loop continues
        or (kind == "input" and event["data"].get("kind") == "session_message")
    ):
        return NOTICE
    entry = EVENT_TEXTS.get(kind)
    return entry[0] if entry is not None else None
