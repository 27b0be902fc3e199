"""The agents that a scripted agent can start, and which of them a name means. Pure.

The real program has built-in agents, gets others on its command line and finds others in files. The installer of the
scripted agent says what is in those files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hocket.rehearsal.flags import Flags

BUILT_IN = ("claude", "Explore", "general-purpose", "Plan", "statusline-setup")
BETWEEN_WORDS = re.compile(r"[\s_-]+")


class NoSuchAgent(Exception):
    """A name that matches no agent, or several; the text is the real program's."""


def agents(flags: Flags, defined: Iterable[str], found: Mapping[str, str]) -> list[str]:
    """All agents in the real program's order. ``found`` maps those in files to ``user`` or ``project``."""
    sources = flags.values.get("--setting-sources")
    read = (name for name, source in found.items() if sources is None or source in sources.split(","))
    return sorted({*BUILT_IN, *defined, *read}, key=lambda name: (name.lower(), name.swapcase()))


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
