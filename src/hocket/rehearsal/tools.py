"""The tools and the sub-agents that an agent is offered, by its command line and its definition. Pure.

A tool that is not excluded is accepted, because a script may use tools of MCP servers and of other versions. The
real program has built-in agents, gets others on its command line and finds others in files; the installer of the
scripted agent says what is in those files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hocket.rehearsal.flags import Flags
from hocket.rehearsal.steps import AGENT_TOOL
from hocket.rehearsal.stream_events import USUAL_TOOLS

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
    barred = [*(flags.tools("--disallowedTools") or ()), *(_listed(definition, "disallowedTools") or ())]
    forbidden = tuple(FORMER.get(tool, tool) for tool in barred)  # what is in parentheses forbids only a part of it
    return OfferedTools(_names(flags.tools("--tools")), _names(_listed(definition, "tools")), forbidden)


def _listed(definition: Mapping[str, Any], field: str) -> list[str] | None:
    given = definition.get(field)
    return [tool for tool in given if isinstance(tool, str)] if isinstance(given, list) else None


def _names(given: list[str] | None) -> tuple[str, ...] | None:
    return None if given is None or ALL & set(given) else tuple(dict.fromkeys(map(_name, given)))


def _name(tool: str) -> str:
    name = tool.partition("(")[0]
    return FORMER.get(name, name)


def _covers(own: str, name: str) -> bool:
    """The name of a server covers all of its tools."""
    return own == name or (own.startswith(SERVERS) and name.startswith(own.removesuffix("__*") + "__"))


# --- Sub-agents ----------------------------------------------------------------------------------------------

BUILT_IN_AGENTS = ("claude", "Explore", "general-purpose", "Plan", "statusline-setup")
BETWEEN_WORDS = re.compile(r"[\s_-]+")


class NoSuchAgent(Exception):
    """A name that matches no agent, or several; the text is the real program's."""


def startable_agents(flags: Flags, defined: Iterable[str], found: Mapping[str, str]) -> list[str]:
    """All agents in the real program's order. ``found`` maps those in files to ``user`` or ``project``."""
    sources = flags.values.get("--setting-sources")
    read = (name for name, source in found.items() if sources is None or source in sources.split(","))
    return sorted({*BUILT_IN_AGENTS, *defined, *read}, key=lambda name: (name.lower(), name.swapcase()))


def match_agent(wanted: str, names: list[str]) -> str:
    """The agent of this name, else the only one that differs in case and separators alone."""
    if wanted in names:
        return wanted
    alike = [name for name in names if _plain(name) == _plain(wanted)]
    if len(alike) == 1:
        return alike[0]
    if alike:
        choice = f"matches {', '.join(alike)}. Use the exact name: {' or '.join(alike)}"
        raise NoSuchAgent(f"Agent type '{wanted}' is ambiguous — {choice}")
    raise NoSuchAgent(f"Agent type '{wanted}' not found. Available agents: {', '.join(names)}")


def _plain(name: str) -> str:
    return BETWEEN_WORDS.sub("", name).lower()
