"""The tools that an agent is offered, by its command line and its definition. Pure.

A name that is not excluded is accepted, because a script may use tools of MCP servers and of other versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hocket.rehearsal.flags import Flags
from hocket.rehearsal.steps import AGENT_TOOL
from hocket.rehearsal.stream_events import USUAL_TOOLS, camel

ALL = frozenset({"*", "default"})
SERVERS = "mcp__"
FORMER = {"Task": AGENT_TOOL}


class OfferedTools(NamedTuple):
    chosen: tuple[str, ...] | None
    """Built-in tools that the command line selects; None for all."""
    defined: tuple[str, ...] | None
    """Tools that the definition allows; None for all."""
    forbidden: tuple[str, ...]

    def names(self) -> tuple[str, ...]:
        lists = (self.defined, self.chosen, tuple(map(_name, USUAL_TOOLS)))
        narrowest = next(names for names in lists if names is not None)
        return tuple(name for name in narrowest if self.offers(name))

    def offers(self, tool: str) -> bool:
        name = _name(tool)
        if name in self.forbidden or (self.defined is not None and not any(_covers(own, name) for own in self.defined)):
            return False
        return self.chosen is None or name.startswith(SERVERS) or name in self.chosen


def offered_tools(flags: Flags, definition: Mapping[str, Any]) -> OfferedTools:
    barred = [*(flags.tools("--disallowedTools") or ()), *(_listed(definition, "disallowed_tools") or ())]
    forbidden = tuple(FORMER.get(tool, tool) for tool in barred)  # what is in parentheses forbids only a part of it
    return OfferedTools(_names(flags.tools("--tools")), _names(_listed(definition, "tools")), forbidden)


def _listed(definition: Mapping[str, Any], field: str) -> list[str] | None:
    given = definition.get(camel(field))
    return [tool for tool in given if isinstance(tool, str)] if isinstance(given, list) else None


def _names(given: list[str] | None) -> tuple[str, ...] | None:
    return None if given is None or ALL & set(given) else tuple(dict.fromkeys(map(_name, given)))


def _name(tool: str) -> str:
    name = tool.partition("(")[0]
    return FORMER.get(name, name)


def _covers(own: str, name: str) -> bool:
    """The name of a server covers all of its tools."""
    return own == name or (own.startswith(SERVERS) and name.startswith(own.removesuffix("__*") + "__"))
