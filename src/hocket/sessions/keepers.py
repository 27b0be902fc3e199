"""Forks keepers through the zygote, and has it start another server if this one dies with work left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket import config
from hocket.keeper import files
from hocket.keeper.escalation import Identity, identify
from hocket.keeper.zygote import Zygote, ZygoteGone

FORK_TIMEOUT = 10.0
CALM = 5.0
"""Seconds after the last work for which another server would still be started: more work is likely to come."""


class Keepers:
    """One per server."""

    def __init__(self, home: Path) -> None:
        self._home = str(home)
        self._loop = asyncio.get_running_loop()
        self._zygote = Zygote(config.process_environment())
        self._needed_for: set[str] = set()
        self._calm: asyncio.TimerHandle | None = None
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
        before = bool(self._needed_for)
        (self._needed_for.add if needed else self._needed_for.discard)(what_for)
        if bool(self._needed_for) is before or self._closing:
            return
        self._cancel_calm()
        if before:
            self._calm = self._loop.call_later(CALM, self._zygote.need_server, "")
        else:
            self._zygote.need_server(self._home)

    def begin_close(self) -> None:
        """Send no more changes to the zygote: the server is about to close."""
        self._closing = True
        self._cancel_calm()

    def close(self, back_at: float | None) -> None:
        """Release the zygote; with a time, it starts a server by then. Keepers live on."""
        self._zygote.close(self._home, back_at)

    def _cancel_calm(self) -> None:
        if self._calm is not None:
            self._calm.cancel()
            self._calm = None
