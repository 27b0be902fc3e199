"""Which agents there are for a scripted agent to start, and which of them a name means. Pure.

The real program brings some along, is given some on its command line, and finds others in files. Those files are not
read here: who installs a scripted agent says what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hocket.rehearsal.flags import Flags

BUILT_IN = ("claude", "Explore", "general-purpose", "Plan", "statusline-setup")
BETWEEN_WORDS = re.compile(r"[\s_-]+")


class NoSuchAgent(Exception):
    """A name that means no agent, or several, in the real program's words."""


def agents(flags: Flags, defined: Iterable[str], found: Mapping[str, str]) -> list[str]:
    """All of them, in the real program's order. ``found`` says whose files each was in: ``user`` or ``project``."""
    sources = flags.values.get("--setting-sources")
    read = (name for name, source in found.items() if sources is None or source in sources.split(","))
    return sorted({*BUILT_IN, *defined, *read}, key=lambda name: (name.lower(), name.swapcase()))


def meant(wanted: str, names: list[str]) -> str:
    """Exactly this one, else the one that differs in no more than capitals and in what stands between its words."""
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
