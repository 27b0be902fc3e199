"""Notices for people: retries, denials, compactions, usage limits, failing hooks, and messages of other sessions."""

from __future__ import annotations

import re
from typing import Any

from hocket.model import Spec
from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.subagents import who, who_is
from hocket.providers.output_lines import cut, dict_in, list_in, number_in, text_in
from hocket.redaction import Redactor

_REJECTED = "rejected"
_LIMIT_REACHED = "usage limit reached"
_UNKNOWN = "unknown"
_NO_CONNECTION_KIND = "connection_failed"
_NO_CONNECTION = (
    "API Error: Can't reach the API server",
    "API Error: Connection dropped",
    "API Error: Connection error",
    "API Error: Connection refused",
    "API Error: Connection to the API was lost",
    "API Error: No internet route",
    "API Error: Unable to connect to API (",
    "API Error: Unable to connect to API. ",
)
"""Error texts of older versions. With a colon after "API" the cause is a certificate, which does not pass by itself."""
_CANNOT_CONNECT = {
    "ConnectionRefused": "connection refused",
    "EAI_AGAIN": "its host name cannot be looked up",
    "ECONNREFUSED": "connection refused",
    "EHOSTUNREACH": "its host cannot be reached",
    "ENETUNREACH": "its network cannot be reached",
    "ENOTFOUND": "its host name is unknown",
}
"""By the code in the CLI's text. The other codes are those of connections that broke later."""
_CODE = re.compile(r"\((\w+)\)")
_COMPLAINTS = (
    b"error: unknown option '--forward-subagent-text'",
    b"error: unknown option '--permission-prompts'",
    b"invalid JSON: JSON Parse error: Unrecognized token '/'",
)
"""Complaints of versions before 2.1.228, 2.1.259 and 2.1.281 about arguments that they do not know."""
_FIRST_IN_MILLISECONDS = 1e11
"""In seconds this is the year 5138, in milliseconds 1973."""


def notice(kind: str, text: str, **more: Any) -> ReaderEvent:
    return "notice", {"kind": kind, **cut(text), **more}


def service_of(spec: Spec, redactor: Redactor) -> str:
    """The model's service as a message names it, with its address if that is the user's own."""
    url = redactor.text(spec.env.get("ANTHROPIC_BASE_URL", ""))
    return f"the model's service at {url}" if url else "the model's service"


def error_text(line: dict[str, Any], text: str, service: str) -> str:
    """The text of a failed request: the CLI's own, except that it names no address where it could not connect."""
    code = _CODE.search(text)
    why = _CANNOT_CONNECT.get(code[1]) if code is not None else None
    if code is None or why is None or (text_in(line, "api_error") or error_in_text(text)) != _NO_CONNECTION_KIND:
        return text
    return f"cannot connect to {service}: {why} ({code[1]})"


def synthetic(line: dict[str, Any], text: str, who: dict[str, Any]) -> ReaderEvent:
    """A message of the CLI in place of the model's: a failed request, or an unknown command."""
    error = text_in(line, "error") or None
    if error is None and line.get("is_api_error_message") is not True:
        return notice("info", text, **who)
    return notice("api_error", text, error=error, error_status=number_in(line, "api_error_status"), **who)


def retry(state: State, line: dict[str, Any], service: str) -> list[ReaderEvent]:
    """The CLI retries a request by itself. Without a status there was no response; why is not said before the end."""
    error = text_in(line, "error") or _UNKNOWN
    is_answered = error != _UNKNOWN or number_in(line, "error_status") is not None
    text = f"the model answered with an error ({error})" if is_answered else f"no response from {service}"
    text += "; trying again"
    attempt = {
        "attempt": number_in(line, "attempt"),
        "max_retries": number_in(line, "max_retries"),
        "delay_ms": number_in(line, "retry_delay_ms"),
        "error": error,
        "error_status": number_in(line, "error_status"),
        **who(state, line),
    }
    if error == "rate_limit":
        return [("rate_limited", {"status": "retrying", "resets_at": None, "text": text, **attempt})]
    return [notice("retry", text, **attempt)]


def too_old(line: bytes) -> list[ReaderEvent]:
    """The CLI's own complaint is about arguments that the user did not type."""
    if not line.startswith(_COMPLAINTS):
        return []
    return [notice("cli", "this claude is too old: run `hocket doctor` for details and `claude update` to update it")]


def rate_limit(state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
    info = dict_in(line, "rate_limit_info") or line
    status = text_in(info, "status")
    if not status:
        return None
    state["limited"] = status == _REJECTED
    if status == "allowed":
        return []
    limit = text_in(info, "rateLimitType")
    text = f"usage limit: {status}" + (f" ({limit})" if limit else "")
    resets_at = wall_time(number_in(info, "resetsAt"))
    return [("rate_limited", {"status": status, "resets_at": resets_at, "text": text})]


def limit_in_text(state: State, text: str) -> list[ReaderEvent]:
    """The usage limit in an error text of older versions, with the reset time after a bar."""
    reason, bar, end = text.strip().rpartition("|")
    if not bar or not reason.endswith(_LIMIT_REACHED) or not (end.isascii() and end.isdigit() and len(end) < 15):
        return []
    state["limited"] = True
    data = {"status": _REJECTED, "resets_at": wall_time(float(end)), "text": f"usage limit: {_REJECTED}"}
    return [("rate_limited", data)]


def error_in_text(text: str) -> str | None:
    """The kind of an error of older versions, which have it in the text only."""
    return _NO_CONNECTION_KIND if text.startswith(_NO_CONNECTION) else None


def wall_time(number: float | None) -> float | None:
    """Seconds since the epoch, also from milliseconds."""
    if number is None or number <= 0:
        return None
    return number / 1000 if number >= _FIRST_IN_MILLISECONDS else number


def denied(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    tool = text_in(line, "tool_name")
    text = text_in(line, "decision_reason") or text_in(line, "message")
    about = {"tool": tool, "id": text_in(line, "tool_use_id"), "reason": cut(text)["text"], **_denied_to(state, line)}
    return [notice("permission_denied", f"{tool or 'a tool'} was not allowed", **about)]


def _denied_to(state: State, line: dict[str, Any]) -> dict[str, Any]:
    member = (state.get("members") or {}).get(text_in(line, "agent_id"))
    return who_is(state, member["tool"] or "", member["agent"] or "") if member else who(state, line)


def compaction(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    del state
    before = number_in(dict_in(line, "compact_metadata"), "pre_tokens")
    return [notice("compaction", "the conversation was compacted", tokens_before=before)]


def status(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    """Only compacting is worth a notice; other values come with every request."""
    del state
    compacting = text_in(line, "status") == "compacting"
    return [notice("compaction", "the conversation is being compacted")] if compacting else []


def informational(state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
    text = text_in(line, "content")
    return [notice("info", text, level=text_in(line, "level") or None, **who(state, line))] if text else None


def refusal(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    text = text_in(line, "content") or text_in(line, "message") or "the model refused"
    return [notice("refusal", text, **who(state, line))]


def hook(state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
    """Only a failed hook is worth a notice."""
    del state
    code = number_in(line, "exit_code")
    if not code and text_in(line, "outcome") != "error":
        return None
    name = text_in(line, "hook_name") or text_in(line, "hook_event") or "a hook"
    output = text_in(line, "stderr") or text_in(line, "output") or text_in(line, "stdout")
    return [notice("hook", f"{name} failed: {output}" if output else f"{name} failed", exit_code=code)]


# --- Messages of other sessions -----------------------------------------------------------------------------
# A message that the CLI refuses appears nowhere in its output.

_SESSION_MESSAGE = "session_message"
_PEER, _HELPER = "peer", "senderTaskId"


def is_echo(line: dict[str, Any]) -> bool:
    """Whether a line repeats an input of the agent."""
    return line.get("isReplay") is True


def message_received(line: dict[str, Any]) -> list[ReaderEvent]:
    """An echoed message from another session. Our own messages are recorded when they are sent.

    Subagents of this session write to it in the same way and have events of their own.
    """
    origin = dict_in(line, "origin")
    if text_in(origin, "kind") != _PEER or _HELPER in origin:
        return []
    sender = _sender(text_in(origin, "from"), text_in(origin, "name"), number_in(origin, "verifiedPeerPid"))
    identity = text_in(origin, "msg_id") or text_in(line, "uuid")
    return [("input", {"kind": _SESSION_MESSAGE, "id": identity, **cut(_body(origin, line)), "sender": sender})]


def message_held(state: State, line: dict[str, Any]) -> list[ReaderEvent]:
    """A message that waits for an approval, which a run without a terminal cannot get, or its outcome."""
    del state
    sender = _sender(text_in(line, "from"), text_in(line, "from_name"), None)
    status = text_in(line, "state")
    why = text_in(line, "cause") or text_in(line, "outcome")
    name = sender["name"] or sender["address"] or "an unknown session"
    text = f"a message from session {name} was {status or 'held'}{f' ({why})' if why else ''}"
    return [notice(_SESSION_MESSAGE, text, state=status or None, sender=sender)]


def _sender(address: str, name: str, pid: float | None) -> dict[str, Any]:
    return {"name": name or None, "address": address or None, "pid": pid}


def _body(origin: dict[str, Any], line: dict[str, Any]) -> str:
    """The message; all of them if several were delivered together."""
    parts = [text_in(origin, "body"), *(text_in(member, "body") for member in list_in(origin, "members"))]
    return "\n".join(part for part in parts if part) or text_in(dict_in(line, "message"), "content")
