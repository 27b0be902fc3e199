"""The output events of a scripted agent, in the format of the Claude CLI. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

Event = dict[str, Any]
Usage = dict[str, float]

IMITATED_VERSION = "2.1.325"
USUAL_TOOLS = ("Task", "Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "WebFetch", "WebSearch", "Write")
RETRIED = {401: "authentication_failed", 429: "rate_limit", 529: "overloaded"}
GIVEN_UP = {
    401: "authentication_failed",
    403: "authentication_failed",
    404: "model_not_found",
    413: "invalid_request",
    429: "rate_limit",
}
"""Names of API errors during retries and after the last one, which differ for a busy API."""
REQUESTING: Event = {"type": "system", "subtype": "status", "status": "requesting"}
REFUSED_ONCE: Event = {
    "type": "system",
    "subtype": "informational",
    "content": "The rehearsed model refused; it is asked once more.",
    "level": "notice",
}
INTERRUPTED = "[Request interrupted by user]"
INTERRUPTED_TOOL = "[Request interrupted by user for tool use]"


def new_uuid() -> str:
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


class TurnResult(NamedTuple):
    """How a turn ended."""

    text: str | None = None
    subtype: str = "success"
    terminal: str = "completed"
    stop_reason: str | None = "end_turn"
    status: int | None = None
    is_error: bool = False
    error: str | None = None


def error_result(subtype: str, terminal: str, error: str, stop_reason: str | None = "end_turn") -> TurnResult:
    """The end of a turn without a result."""
    return TurnResult(None, subtype, terminal, stop_reason, is_error=True, error=error)


def init(cwd: str, model: str, mode: str, tools: list[str], agents: list[str]) -> Event:
    return {
        "type": "system",
        "subtype": "init",
        "cwd": cwd,
        "tools": tools,
        "mcp_servers": [],
        "model": model,
        "permissionMode": mode,
        "apiKeySource": "none",
        "slash_commands": [],
        "claude_code_version": IMITATED_VERSION,
        "output_style": "default",
        "agents": agents,
        "skills": [],
        "plugins": [],
    }


def stream_event(frame: Mapping[str, Any]) -> Event:
    return {"type": "stream_event", "event": frame, "parent_tool_use_id": None}


def assistant(head: Mapping[str, Any], block: Mapping[str, Any], about: Mapping[str, Any]) -> Event:
    return {"type": "assistant", "message": {**head, "content": [block]}, "parent_tool_use_id": None, **about}


def user(content: list[dict[str, Any]], about: Mapping[str, Any], **more: Any) -> Event:
    return {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        **about,
        **more,
    }


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def tool_result(id: str, content: Any, *, error: bool) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": error}


def question(id: str, name: str, tool_input: Mapping[str, Any], tool_id: str, agent: str, rule: str | None) -> Event:
    suggested: dict[str, Any] = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    if rule is not None:
        rules = [{"toolName": name, "ruleContent": rule}]
        suggested = {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "localSettings"}
    request = {
        "subtype": "can_use_tool",
        "tool_name": name,
        "display_name": name,
        "input": dict(tool_input),
        "description": str(tool_input.get("description", "")),
        "permission_suggestions": [suggested],
        "tool_use_id": tool_id,
    }
    return {
        "type": "control_request",
        "request_id": id,
        "request": request | ({"agent_id": agent} if agent else {}),
    }


def interrupt_accepted(id: str) -> Event:
    return {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": id, "response": {"still_queued": []}},
    }


def control_error(id: str, subtype: str) -> Event:
    error = f"Unsupported control request subtype: {subtype}"
    return {"type": "control_response", "response": {"subtype": "error", "request_id": id, "error": error}}


def permission_denied(name: str, tool_id: str, message: str) -> Event:
    return {
        "type": "system",
        "subtype": "permission_denied",
        "tool_name": name,
        "tool_use_id": tool_id,
        "decision_reason": "this session cannot ask questions",
        "message": message,
    }


def api_retry(code: int) -> Event | None:
    """The event of a retry; None for errors that are not retried."""
    if code < 500 and code not in RETRIED:
        return None
    return {
        "type": "system",
        "subtype": "api_retry",
        "attempt": 1,
        "max_retries": 1,
        "retry_delay_ms": 0,
        "error_status": code,
        "error": RETRIED.get(code, "server_error"),
    }


def synthetic(text: str, stop_reason: str, about: Mapping[str, Any]) -> Event:
    """A message of the program itself in place of a failed model."""
    message = {"id": new_uuid(), "type": "message", "role": "assistant", "model": "<synthetic>"}
    head = {**message, "stop_reason": stop_reason, "stop_sequence": "", "usage": {}}
    return {**assistant(head, text_block(text), {}), "is_api_error_message": True, **about}


def task_event(subtype: str, task: Mapping[str, Any], **more: Any) -> Event:
    return {"type": "system", "subtype": subtype, **task, **more}


def no_usage() -> Usage:
    return {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}


def _by_model(model: str, used: Usage) -> dict[str, Any]:
    return {
        model: {
            "inputTokens": used["input_tokens"],
            "outputTokens": used["output_tokens"],
            "cacheReadInputTokens": 0,
            "cacheCreationInputTokens": 0,
            "webSearchRequests": 0,
            "costBasis": "list",
            "costUSD": used["cost"],
        }
    }


def result(ended: TurnResult, model: str, used: Usage, since: Usage, **more: Any) -> Event:
    """The end of a turn. ``used`` is the usage of the whole session, ``since`` that of this turn."""
    return {
        "type": "result",
        "subtype": ended.subtype,
        "is_error": ended.is_error,
        **({"errors": [ended.error]} if ended.error is not None else {"api_error_status": ended.status}),
        **({"result": ended.text} if ended.text is not None else {}),
        "stop_reason": ended.stop_reason,
        "terminal_reason": ended.terminal,
        "total_cost_usd": used["cost"],
        "usage": {
            "input_tokens": since["input_tokens"],
            "output_tokens": since["output_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
        "modelUsage": _by_model(model, used),
        "model_usage_since_last_result": _by_model(model, since),
        **more,
    }


def line(event: Mapping[str, Any], session: str) -> str:
    """An event as the program writes it. Control messages have no marks."""
    marks = {} if event["type"].startswith("control_") else {"session_id": session, "uuid": new_uuid()}
    return json.dumps({**event, **marks}) + "\n"
