"""Forks keepers through the zygote, and has it start another server if this one dies with work left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket import config
from hocket.keeper import files
from hocket.keeper.escalation import Identity, identify
from hocket.keeper.zygote import Zygote, ZygoteGone

FORK_TIMEOUT = 10.0


class Keepers:
    """Starts the keepers of runs, and the zygote that forks them. One per server."""

    def __init__(self, home: Path) -> None:
        self._home = str(home)
        self._zygote = Zygote(config.process_environment())
        self._needed_for: set[str] = set()
        self._closing = False

    def open(self) -> None:
        self._zygote.start()

    def start(
        self, place: str, spec: Mapping[str, Any], contents: Mapping[str, bytes], secrets: Mapping[str, str]
    ) -> Identity | None:
        """Write a run directory and fork its keeper. Blocks; called from one thread."""
        files.create(place, spec, contents)
        try:
            pid = self._zygote.fork(place, FORK_TIMEOUT, secrets)
        except ZygoteGone:
            self._zygote.start()
            pid = self._zygote.fork(place, FORK_TIMEOUT, secrets)
        return identify(pid)

    def need_server(self, what_for: str, needed: bool) -> None:
        """Record whether there is work that keepers alone cannot complete; if we die, a server is started for it."""
        (self._needed_for.add if needed else self._needed_for.discard)(what_for)
        if not self._closing:
            self._zygote.need_server(self._home if self._needed_for else "")

    def begin_close(self) -> None:
        """Send no more changes to the zygote: the server is about to close."""
        self._closing = True

    def close(self, back_at: float | None) -> None:
        """Release the zygote; with a time, it starts a server by then. Keepers live on."""
        self._zygote.close(self._home, back_at)
