"""Messages from other Claude sessions: those that reach the agent, and those that its settings hold back.

A message that the CLI refuses appears nowhere in its output.
"""

from __future__ import annotations

from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.notices import notice
from hocket.providers.json_values import cut, dict_in, list_in, number_in, text_in

KIND = "session_message"
_PEER, _HELPER = "peer", "senderTaskId"


def is_echo(line: dict[str, Any]) -> bool:
    """Whether a line repeats an input of the agent."""
    return line.get("isReplay") is True


def received(line: dict[str, Any]) -> list[ReaderEvent]:
    """An echoed message from another session. Our own messages are recorded when they are sent.

    Subagents of this session write to it in the same way and have events of their own.
    """
    origin = dict_in(line, "origin")
    if text_in(origin, "kind") != _PEER or _HELPER in origin:
        return []
    sender = _sender(text_in(origin, "from"), text_in(origin, "name"), number_in(origin, "verifiedPeerPid"))
    message = {"kind": KIND, "id": text_in(origin, "msg_id") or text_in(line, "uuid"), **cut(_body(origin, line))}
    return [("input", {**message, "sender": sender})]


def held(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    """A message that waits for an approval, which a run without a terminal cannot get, or its outcome."""
    del state
    sender = _sender(text_in(line, "from"), text_in(line, "from_name"), None)
    status = text_in(line, "state")
    why = text_in(line, "cause") or text_in(line, "outcome")
    name = sender["name"] or sender["address"] or "an unknown session"
    text = f"a message from session {name} was {status or 'held'}{f' ({why})' if why else ''}"
    return [notice(KIND, text, state=status or None, sender=sender)]


def _sender(address: str, name: str, pid: float | None) -> dict[str, Any]:
    return {"name": name or None, "address": address or None, "pid": pid}


def _body(origin: dict[str, Any], line: dict[str, Any]) -> str:
    """The message; all of them if several were delivered together."""
    parts = [text_in(origin, "body"), *(text_in(member, "body") for member in list_in(origin, "members"))]
    return "\n".join(part for part in parts if part) or text_in(dict_in(line, "message"), "content")
