"""What a watched run is drawn on, as a type: ``plain`` and ``terminal`` have one each, and so has the tour.

Apart from ``watch``, because a protocol costs time to make and is needed by type checkers alone.
"""

from __future__ import annotations

from typing import Any, Protocol

from hocket.cli.box import Box
from hocket.cli.progress import Progress


class View(Protocol):
    """Shows what happens as it happens."""

    colour: bool
    tick: float
    """So often, in seconds, ``idle`` is called while nothing happens."""

    @property
    def box(self) -> Box | None:
        """Where keys answer questions, if they do."""

    def __enter__(self) -> View: ...
    def __exit__(self, *_: object) -> None: ...
    def unread(self, text: bytes) -> bool:
        """Whether an event, as the server has written it, changes nothing here, provided that a run's end is shown."""

    def show(self, progress: Progress, event: dict[str, Any]) -> None: ...
    def idle(self, progress: Progress) -> None: ...
    def say(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def offer(self, progress: Progress, text: str) -> None: ...
