"""Agents that an agent works with, and commands it left in the background: who they are and how they are doing."""

from __future__ import annotations

from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.json_values import cut, dict_in, list_in, text_in, with_newest

_COMMANDS = frozenset({"local_bash", "local_command", "monitor_mcp", "monitor_ws"})
"""Kinds of background tasks that are no agents. What is not known by name is taken for an agent: waiting for one that
is none is the smaller mistake."""
_OVER = frozenset({"completed", "failed", "killed", "stopped", "cancelled"})


def who(state: State, line: dict[str, Any]) -> dict[str, Any]:
    """What marks everything of a sub-agent's; nothing for the main agent."""
    parent = text_in(line, "parent_tool_use_id")
    return who_is(state, parent, text_in(line, "subagent_type")) if parent else {}


def who_is(state: State, parent: str, agent: str = "") -> dict[str, Any]:
    known = (member for member in (state.get("members") or {}).values() if member["tool"] == parent)
    return {"parent": parent, "agent": agent or next((member["agent"] for member in known), None)}


def agents_at_work(state: State) -> bool:
    """Whether agents are at work in the background."""
    return not all((state.get("tasks") or {}).values())


def listed(state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
    """The whole list of what is in the background, each time it changes."""
    if not isinstance(line.get("tasks"), list):
        return None
    tasks = {text_in(task, "task_id"): _is_command(task) for task in list_in(line, "tasks")}
    _set_tasks(state, {task: is_command for task, is_command in tasks.items() if task})
    if not state.get("open") and not agents_at_work(state):
        state["asked"] = {}
    return []


def task(state: State, line: dict[str, Any], status: str) -> list[ReaderEvent] | None:
    """One member's news, or one command's."""
    identity = text_in(line, "task_id")
    if not identity:
        return None
    known = (state.get("members") or {}).get(identity)
    member = _member(known, line)
    status = status or text_in(line, "status") or text_in(dict_in(line, "patch"), "status")
    _keep_count(state, identity, line, member, status)
    if line.get("subtype") == "task_updated" and _is_old_news(known, status):
        return []
    state["members"] = with_newest(state.get("members") or {}, identity, {**member, "status": status})
    news = {"id": identity, "status": status or "running", "background": member["background"], **_text(line)}
    if member["command"]:
        return [("notice", {"kind": "background", **news})]
    tool, agent = member["tool"], member["agent"]
    return [("member", {**news, "tool": tool, "parent": tool, "agent": agent})]


def _is_old_news(known: dict[str, Any] | None, status: str) -> bool:
    """A success is announced once more, with what came out of it."""
    return status in ("", "completed") or (known is not None and known["status"] == status)


def _member(known: dict[str, Any] | None, line: dict[str, Any]) -> dict[str, Any]:
    known = known or {"tool": None, "agent": None, "background": False, "command": _is_command(line)}
    return {
        "tool": text_in(line, "tool_use_id") or known["tool"],
        "agent": text_in(line, "subagent_type") or known["agent"],
        "background": known["background"] or line.get("is_backgrounded") is True,
        "command": known["command"],
    }


def _keep_count(state: State, identity: str, line: dict[str, Any], member: dict[str, Any], status: str) -> None:
    """Older programs do not list what is in the background, so it is also counted."""
    tasks = state.get("tasks") or {}
    if line.get("subtype") == "task_started" and member["background"]:
        _set_tasks(state, {**tasks, identity: member["command"]})
    elif status in _OVER and identity in tasks:
        _set_tasks(state, {other: kind for other, kind in tasks.items() if other != identity})


def _set_tasks(state: State, tasks: dict[str, bool]) -> None:
    """What came back between two turns begins the next one, which the program starts by itself a moment later."""
    came_back = (state.get("tasks") or {}).keys() - tasks.keys()
    state["waking"] = bool(not state.get("open") and (came_back or state.get("waking")))
    state["tasks"] = tasks


def _is_command(line: Any) -> bool:
    return text_in(line, "task_type") in _COMMANDS


def _text(line: dict[str, Any]) -> dict[str, Any]:
    return cut(text_in(line, "summary") or text_in(line, "description"))
