"""The limit on the teammates of one lead: those at work, and those that are being started."""

from __future__ import annotations

import time

from hocket.errors import LimitReached
from hocket.model import Run

RESERVED_SECONDS = 60.0
"""How long a teammate that may be started counts until it appears."""


class TeammateLimit:
    """Checks and reserves at once, so that calls at the same time do not exceed it. One per server."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._reserved: dict[str, list[tuple[str, float]]] = {}
        """By lead: names, and until when they count."""

    def check(self, lead: Run, name: str, present: int) -> None:
        """Raise if a lead has as many teammates as it may have; else the new one counts from now on.

        Another one with a name that is taken counts too: its CLI gives it a new name.
        """
        if self._most is None:
            return
        now = time.monotonic()
        reserved = [one for one in self._reserved.get(lead.id, ()) if one[1] > now]
        if (count := present + len(reserved)) >= self._most:
            raise LimitReached(
                f"teammates: run {lead.number} has {count}, which is the limit of {self._most}",
                "Wait until one has ended, or raise max_teammates_per_lead under [limits] in config.toml",
            )
        self._reserved[lead.id] = [*reserved, (name, now + RESERVED_SECONDS)]

    def excess(self, present: int) -> str | None:
        """In words, that there are more than allowed; None if there are not."""
        if self._most is None or present <= self._most:
            return None
        return f"{present} teammates, which is over the limit of {self._most} (max_teammates_per_lead)"

    def release(self, lead: str, name: str) -> None:
        """The teammate has appeared, with the name that was asked for or a longer one."""
        reserved = self._reserved.get(lead, [])
        names = [other for other, _ in reserved]
        wanted = name if name in names else max((other for other in names if name.startswith(other)), default=None)
        if wanted is not None:
            del reserved[names.index(wanted)]

    def forget(self, lead: str) -> None:
        self._reserved.pop(lead, None)
