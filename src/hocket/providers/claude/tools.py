"""Calls of tools as events: when they start, and when they have a result."""

from __future__ import annotations

from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude import own_hooks, questions
from hocket.providers.output_lines import cut, dict_in, kept_input, text_in, with_newest

_OUTPUT_LIMIT = 16 * 1024
"""Bytes of a tool's output in an event."""


def started(state: State, block: dict[str, Any], who: dict[str, Any]) -> ReaderEvent:
    identity, name = text_in(block, "id"), text_in(block, "name")
    state["tools"] = with_newest(state.get("tools") or {}, identity, name)
    return "tool.started", {"id": identity, "name": name, **kept_input(dict_in(block, "input")), **who}


def finished(state: State, block: dict[str, Any], who: dict[str, Any]) -> ReaderEvent:
    identity, running = text_in(block, "tool_use_id"), state.get("tools") or {}
    questions.settle(state, identity)
    state["tools"] = {other: name for other, name in running.items() if other != identity}
    output = cut(_output(block.get("content")), _OUTPUT_LIMIT)
    is_error = block.get("is_error") is True and not own_hooks.is_started(output["text"])
    return "tool.finished", {"id": identity, "name": running.get(identity), "error": is_error, **output, **who}


def _output(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return "\n".join(
        text_in(block, "text") if block.get("type") == "text" else f"[{text_in(block, 'type') or 'unknown'}]"
        for block in blocks
    )
