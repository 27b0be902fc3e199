"""Which tools an agent is offered: by the command line, and by its definition. Pure.

The real program knows every tool that there is. Here a name that nobody has ruled out is as good as any other: a script
may use the tools of servers, and those of other versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hocket.rehearsal.flags import Flags
from hocket.rehearsal.steps import AGENT_TOOL
from hocket.rehearsal.stream import USUAL_TOOLS, camel

ALL = frozenset({"*", "default"})
SERVERS = "mcp__"
FORMER = {"Task": AGENT_TOOL}


class Toolbox(NamedTuple):
    chosen: tuple[str, ...] | None
    """The command line's choice among the program's own tools; None is all of them."""
    defined: tuple[str, ...] | None
    """What the definition allows of all tools; None is everything."""
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


def toolbox(flags: Flags, definition: Mapping[str, Any]) -> Toolbox:
    barred = [*(flags.tools("--disallowedTools") or ()), *(_listed(definition, "disallowed_tools") or ())]
    forbidden = tuple(FORMER.get(tool, tool) for tool in barred)  # what is in parentheses forbids only a part of it
    return Toolbox(_names(flags.tools("--tools")), _names(_listed(definition, "tools")), forbidden)


def _listed(definition: Mapping[str, Any], field: str) -> list[str] | None:
    given = definition.get(camel(field))
    return [tool for tool in given if isinstance(tool, str)] if isinstance(given, list) else None


def _names(given: list[str] | None) -> tuple[str, ...] | None:
    return None if given is None or ALL & set(given) else tuple(dict.fromkeys(map(_name, given)))


def _name(tool: str) -> str:
    name = tool.partition("(")[0]
    return FORMER.get(name, name)


def _covers(own: str, name: str) -> bool:
    """A server's name stands for all of its tools."""
    return own == name or (own.startswith(SERVERS) and name.startswith(own.removesuffix("__*") + "__"))
