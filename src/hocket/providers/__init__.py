"""How agents run: one module per kind of agent, each of them a ``Provider``.

Which agent a name means is the catalog's business; starting the process is the engine's and the keeper's.
"""

from __future__ import annotations

from collections.abc import Mapping

from hocket.providers import claude, codex, executable
from hocket.providers.base import (
    Conversation,
    Exit,
    Launch,
    Options,
    Program,
    Provider,
    Reader,
    Reply,
    Said,
    State,
)

PROVIDERS: Mapping[str, Provider] = {"claude": claude, "codex": codex, "executable": executable}

__all__ = [
    "PROVIDERS",
    "Conversation",
    "Exit",
    "Launch",
    "Options",
    "Program",
    "Provider",
    "Reader",
    "Reply",
    "Said",
    "State",
]
