"""The stream of the Cursor CLI, written after its documentation: no recording of the real program can be had."""

from __future__ import annotations

from typing import Any

Line = dict[str, Any]


def init() -> Line:
    about = {"apiKeySource": "login", "cwd": "/p", "model": "gpt-5", "permissionMode": "default"}
    return {"type": "system", "subtype": "init", "session_id": "chat-1", **about}


def prompt(text: str) -> Line:
    return {"type": "user", "message": _message("user", text), "session_id": "chat-1"}


def delta(text: str) -> Line:
    return message(text, timestamp_ms=1756000000000)


def message(text: str, **more: Any) -> Line:
    return {"type": "assistant", "message": _message("assistant", text), "session_id": "chat-1", **more}


def tool(phase: str, **success: Any) -> Line:
    """A call of the tool that reads files."""
    call = {"args": {"path": "a.txt"}, **({"result": {"success": success}} if phase == "completed" else {})}
    return {"type": "tool_call", "subtype": phase, "call_id": "call-1", "tool_call": {"readToolCall": call}}


def result(text: str) -> Line:
    took = {"duration_ms": 5234, "duration_api_ms": 5234}
    about = {"result": text, "session_id": "chat-1", "request_id": "request-1"}
    return {"type": "result", "subtype": "success", "is_error": False, **took, **about}


def _message(role: str, text: str) -> Line:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _shell(phase: str, **result: Any) -> Line:
    call = {"shellToolCall": {"args": {"command": "rm -rf a"}, **result}}
    return {"type": "tool_call", "subtype": phase, "call_id": "call-2", "tool_call": call, "session_id": "chat-1"}


SAID = ["I read it.", "Now I remove it.", "I may not."]
STREAM: tuple[Line, ...] = (
    init(),
    prompt("go"),
    {"type": "thinking", "subtype": "delta", "text": "hm", "timestamp_ms": 1756000000000},
    delta("I read"),
    delta(" it."),
    message(SAID[0], model_call_id="model-1", timestamp_ms=1756000000001),
    tool("started"),
    tool("completed", content="its text", totalLines=1),
    delta(SAID[1]),
    message(SAID[1], model_call_id="model-2", timestamp_ms=1756000000002),
    _shell("started"),
    _shell("completed", result={"rejected": {"command": "rm -rf a", "reason": "not on the list"}}),
    delta(SAID[2]),
    message(SAID[2]),
    result("".join(SAID)),
)
