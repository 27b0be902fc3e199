"""Tools at work: what they were given, and what came out."""

from __future__ import annotations

from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude.questions import settle
from hocket.providers.json_values import cut, dict_in, kept_input, text_in, with_newest

_OUTPUT_LIMIT = 16 * 1024


def started(state: State, block: dict[str, Any], who: dict[str, Any]) -> ReaderEvent:
    identity, name = text_in(block, "id"), text_in(block, "name")
    state["tools"] = with_newest(state.get("tools") or {}, identity, name)
    return "tool.started", {"id": identity, "name": name, **kept_input(dict_in(block, "input")), **who}


def finished(state: State, block: dict[str, Any], who: dict[str, Any]) -> ReaderEvent:
    identity, tools = text_in(block, "tool_use_id"), state.get("tools") or {}
    settle(state, identity)
    data = {
        "id": identity,
        "name": tools.get(identity),
        "error": block.get("is_error") is True,
        **cut(_text(block.get("content")), _OUTPUT_LIMIT),
        **who,
    }
    state["tools"] = {other: name for other, name in tools.items() if other != identity}
    return "tool.finished", data


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "\n".join(_block_text(block) for block in blocks if isinstance(block, dict))


def _block_text(block: dict[str, Any]) -> str:
    return text_in(block, "text") if block.get("type") == "text" else f"[{text_in(block, 'type') or 'unknown'}]"
