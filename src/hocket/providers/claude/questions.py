"""Questions of an agent: permission to use a tool, or a choice. Answers are in ``conversation``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.claude import mcp_requests
from hocket.providers.claude.subagents import who_is
from hocket.providers.output_lines import cut, dict_in, kept_input, list_in, text_in, with_newest
from hocket.redaction import MASK

_SENTENCE_LIMIT = 2000
_SENTENCES: dict[str, tuple[str, str]] = {
    "Bash": ("command", "wants to run"),
    "Edit": ("file_path", "wants to change"),
    "MultiEdit": ("file_path", "wants to change"),
    "NotebookEdit": ("notebook_path", "wants to change"),
    "Read": ("file_path", "wants to read"),
    "WebFetch": ("url", "wants to fetch"),
    "WebSearch": ("query", "wants to search for"),
    "Write": ("file_path", "wants to write"),
}


def asked(state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
    if mcp_requests.is_request(line):
        mcp_requests.note(state, line)
        return []
    request, identity = dict_in(line, "request"), text_in(line, "request_id")
    tool = text_in(request, "tool_name")
    if text_in(request, "subtype") != "can_use_tool" or not identity or not tool:
        return None
    question = {"id": identity, **_question(tool, request), **_asker(state, line, request)}
    state["asked"] = with_newest(state.get("asked") or {}, identity, text_in(request, "tool_use_id"))
    return [("question", question)]


def asked_by_hook(call: Mapping[str, Any]) -> dict[str, Any]:
    """The question, without its id, about the ``tool`` and ``input`` of a call, with ``suggestions`` and an ``agent``,
    as the CLI describes it to a hook."""
    request = {"input": call["input"], "permission_suggestions": call["suggestions"]}
    return {**_question(call["tool"], request), **({"agent": call["agent"]} if call.get("agent") else {})}


def _question(tool: str, request: dict[str, Any]) -> dict[str, Any]:
    choice = tool == "AskUserQuestion"
    return {
        "kind": "choice" if choice else "permission",
        **cut((_choices if choice else _permission)(tool, request), _SENTENCE_LIMIT),
        "tool": tool,
        "suggestions": (suggestions := _suggestions(request)),
        **({"rule": rule[0]} if (rule := rule_in(suggestions)) else {}),
        **(_options(request) if choice else {}),
        **kept_input(dict_in(request, "input")),
    }


def withdrawn(state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
    """The CLI withdrew a question or a request."""
    identity = text_in(line, "request_id")
    if not identity:
        return None
    if mcp_requests.withdraw(state, identity):
        return []
    state["asked"] = {other: tool for other, tool in (state.get("asked") or {}).items() if other != identity}
    return [("answer", {"id": identity, "allow": False, "text": "withdrawn", "by": "agent"})]


def settle(state: State, tool: str) -> None:
    """A tool that has ended waits for no answer."""
    mcp_requests.settle(state, tool)
    if open_ones := state.get("asked"):
        state["asked"] = {identity: waiting for identity, waiting in open_ones.items() if waiting != tool}


def settle_all(state: State) -> None:
    state["asked"] = {}
    if state.get("calls"):
        state["calls"] = {}


def _suggestions(request: dict[str, Any]) -> list[Any]:
    """Permission rules that would make the question unnecessary, unless they are too long for an event."""
    suggestions = list_in(request, "permission_suggestions")
    return suggestions if "input_text" not in kept_input({"": suggestions}) else []


def rule_in(suggestions: Sequence[Any], named: str | None = None) -> tuple[str, dict[str, Any]] | None:
    """The first rule that would allow the like from now on: as text, and as the CLI expects it in the answer.

    With ``named`` the one with this text.

    It holds for the session only, also if the CLI suggests a file. A rule with a redacted secret would match nothing.
    """
    for one in suggestions:
        rules = list_in(one, "rules")
        if text_in(one, "type") != "addRules" or text_in(one, "behavior") != "allow" or not rules:
            continue
        tools = [text_in(rule, "toolName") for rule in rules]
        if all(tools):
            contents = [text_in(rule, "ruleContent") for rule in rules]
            text = ", ".join(f"{tool}({what})" if what else tool for tool, what in zip(tools, contents, strict=True))
            if MASK not in text and named in (None, text):
                return text, {**one, "destination": "session"}
    return None


def _asker(state: State, line: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    parent = text_in(line, "parent_tool_use_id") or text_in(request, "parent_tool_use_id")
    if parent:
        return who_is(state, parent)
    member = (state.get("members") or {}).get(text_in(request, "agent_id"))
    return {"parent": member["tool"], "agent": member["agent"]} if member else {}


def _permission(tool: str, request: dict[str, Any]) -> str:
    """A sentence to allow or deny."""
    given = dict_in(request, "input")
    key, wants = _SENTENCES.get(tool, ("", ""))
    if what := text_in(given, key):
        return f"{tool} {wants}: {what}"
    name = text_in(request, "display_name") or tool
    about = text_in(request, "description") or text_in(request, "title")
    return f"{name} wants to be used: {about}" if about else f"{name} wants to be used."


def _choices(tool: str, request: dict[str, Any]) -> str:
    asked = [_one_choice(question) for question in list_in(dict_in(request, "input"), "questions")]
    return "\n".join(text for text in asked if text) or f"{tool} wants an answer."


def _options(request: dict[str, Any]) -> dict[str, Any]:
    """The labels to choose one from; none for several questions or several choices."""
    questions = list_in(dict_in(request, "input"), "questions")
    if len(questions) != 1 or not isinstance(questions[0], dict) or questions[0].get("multiSelect"):
        return {}
    labels = [text_in(option, "label") for option in list_in(questions[0], "options")]
    return {"options": labels} if labels and all(labels) else {}


def _one_choice(question: Any) -> str:
    labels = [text_in(option, "label") for option in list_in(question, "options")]
    numbered = ", ".join(f"{number} {label}" for number, label in enumerate(labels, 1) if label)
    text = text_in(question, "question")
    return f"{text} ({numbered})" if numbered else text
