"""Subagents of a run, and its commands in the background."""

from __future__ import annotations

from typing import Any

from hocket.providers.base import ReaderEvent, State
from hocket.providers.output_lines import cut, dict_in, list_in, text_in, with_newest

_COMMANDS = frozenset({"local_bash", "local_command", "monitor_mcp", "monitor_ws"})
"""Types of background tasks that are commands. An unknown type counts as an agent: to wait for it in vain is the
smaller mistake."""
_ENDED = frozenset({"completed", "failed", "killed", "stopped", "cancelled"})


def who(state: State, line: dict[str, Any]) -> dict[str, Any]:
    """The marks of a subagent's events; empty for the main agent."""
    parent = text_in(line, "parent_tool_use_id")
    return who_is(state, parent, text_in(line, "subagent_type")) if parent else {}


def who_is(state: State, parent: str, agent: str = "") -> dict[str, Any]:
    known = (member for member in (state.get("members") or {}).values() if member["tool"] == parent)
    return {"parent": parent, "agent": agent or next((member["agent"] for member in known), None)}


def has_background_agents(state: State) -> bool:
    return not all((state.get("tasks") or {}).values())


def list_changed(state: State, line: dict[str, Any]) -> list[ReaderEvent] | None:
    """The list of all background tasks, which arrives whenever it changes."""
    if not isinstance(line.get("tasks"), list):
        return None
    tasks = {text_in(task, "task_id"): _is_command(task) for task in list_in(line, "tasks")}
    _set_tasks(state, {task: is_command for task, is_command in tasks.items() if task})
    if not state.get("open") and not has_background_agents(state):
        state["asked"] = {}
    return []


def task_changed(state: State, line: dict[str, Any], status: str = "") -> list[ReaderEvent] | None:
    """A task that started, continues or ended; ``status`` where the line has none."""
    identity = text_in(line, "task_id")
    if not identity:
        return None
    known = (state.get("members") or {}).get(identity)
    member = _member(known, line)
    status = status or text_in(line, "status") or text_in(dict_in(line, "patch"), "status")
    _count(state, identity, line, member, status)
    # A success is reported once more, with its result.
    is_repeated = status in ("", "completed") or (known is not None and known["status"] == status)
    if line.get("subtype") == "task_updated" and is_repeated:
        return []
    state["members"] = with_newest(state.get("members") or {}, identity, {**member, "status": status})
    text = cut(text_in(line, "summary") or text_in(line, "description"))
    data = {"id": identity, "status": status or "running", "background": member["background"], **text}
    if member["command"]:
        return [("notice", {"kind": "background", **data})]
    return [("member", {**data, "tool": member["tool"], "parent": member["tool"], "agent": member["agent"]})]


def _member(known: dict[str, Any] | None, line: dict[str, Any]) -> dict[str, Any]:
    known = known or {"tool": None, "agent": None, "background": False, "command": _is_command(line)}
    return {
        "tool": text_in(line, "tool_use_id") or known["tool"],
        "agent": text_in(line, "subagent_type") or known["agent"],
        "background": known["background"] or line.get("is_backgrounded") is True,
        "command": known["command"],
    }


def _count(state: State, identity: str, line: dict[str, Any], member: dict[str, Any], status: str) -> None:
    """Older versions of the CLI send no list of background tasks."""
    tasks = state.get("tasks") or {}
    if line.get("subtype") == "task_started" and member["background"]:
        _set_tasks(state, {**tasks, identity: member["command"]})
    elif status in _ENDED and identity in tasks:
        _set_tasks(state, {other: kind for other, kind in tasks.items() if other != identity})


def _set_tasks(state: State, tasks: dict[str, bool]) -> None:
    """A task that ends between two turns makes the CLI start the next one by itself."""
    has_ended = (state.get("tasks") or {}).keys() - tasks.keys()
    state["waking"] = bool(not state.get("open") and (has_ended or state.get("waking")))
    state["tasks"] = tasks


def _is_command(line: Any) -> bool:
    return text_in(line, "task_type") in _COMMANDS
