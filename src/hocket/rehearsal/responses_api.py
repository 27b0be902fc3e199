"""The Responses API as Codex uses it: requests become conversations, and messages become streams of events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hocket.rehearsal.matching import AgentConversation, Message, dicts
from hocket.rehearsal.messages_api import Frame, new_id, pauses, pieces, tokens
from hocket.rehearsal.steps import Call, Say, Think, Wait

AGENT = "codex"
"""What scripts call the Codex CLI."""
_ADDED = ("<environment_context>", "<turn_aborted>", "<user_instructions>", "# AGENTS.md instructions")
"""How texts begin that Codex itself sends in the role of the user."""


def conversation(body: Mapping[str, Any], passage: int) -> AgentConversation:
    """The conversation of a request, in the form of the Messages API, which scripts are matched against."""
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    for item in dicts(body.get("input")):
        role, block = _converted(item)
        if role == "developer":
            system.append(block["text"])
        elif role == "assistant" and messages and messages[-1]["role"] == "assistant":
            messages[-1]["content"].append(block)
        elif role:
            messages.append({"role": role, "content": [block]})
    names = tuple(str(tool.get("name") or tool.get("type")) for tool in dicts(body.get("tools")))
    return AgentConversation(AGENT, messages, "\n".join(system), names, passage)


def _converted(item: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The role and the content block of an input item; no role for what a script does not look at."""
    match item.get("type"):
        case "message":
            text = "\n".join(str(part.get("text", "")) for part in dicts(item.get("content")))
            is_added = item.get("role") == "user" and text.startswith(_ADDED)
            return "" if is_added else str(item.get("role")), {"type": "text", "text": text}
        case "function_call":
            return "assistant", {"type": "tool_use", "id": item.get("call_id"), "name": item.get("name")}
        case "function_call_output":
            result = {"type": "tool_result", "tool_use_id": item.get("call_id"), "content": str(item.get("output"))}
            return "user", result
    return "", {}


def events(message: Message) -> Iterator[Frame | float]:
    """The message as a stream. It ends without ``response.completed`` where the script breaks it off."""
    response = {"id": new_id("resp")}
    yield {"type": "response.created", "response": response}
    for part in message.parts:
        if isinstance(part, Wait):
            yield from pauses([part])
        else:
            yield from _item_events(part)
    if not message.has_no_end:
        given, made = tokens(message.spend)
        usage = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
        yield {"type": "response.completed", "response": {**response, "usage": usage}}


def _item_events(part: Say | Think | Call) -> Iterator[Frame]:
    if isinstance(part, Call):
        call = {"id": new_id("fc"), "call_id": new_id("call"), "name": part.name, "arguments": json.dumps(part.input)}
        yield {"type": "response.output_item.done", "item": {"type": "function_call", **call}}
        return
    if isinstance(part, Think):
        summary = [{"type": "summary_text", "text": part.text}]
        yield {
            "type": "response.output_item.done",
            "item": {"type": "reasoning", "id": new_id("rs"), "summary": summary},
        }
        return
    item = {"type": "message", "role": "assistant", "id": new_id("msg")}
    yield {"type": "response.output_item.added", "item": {**item, "content": []}}
    for piece in pieces(part.text):
        yield {"type": "response.output_text.delta", "item_id": item["id"], "delta": piece}
    content = [{"type": "output_text", "text": part.text}]
    yield {"type": "response.output_item.done", "item": {**item, "content": content}}
