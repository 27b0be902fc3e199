"""Closes the input of agents that have finished their work and take no further messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from hocket.providers.base import State
from hocket.sessions.leaf import Leaf
from hocket.sessions.messages import Messages, takes_messages

SETTLE_SECONDS = 3.0
"""How long an agent that has finished may take to start something by itself."""


class InputEnd:
    """Ends the input of agents that have finished. One per server.

    ``on_settled`` is called when an agent was silent for long enough.
    """

    def __init__(
        self, messages: Messages, need_server: Callable[[str, bool], None], on_settled: Callable[[Leaf], None]
    ) -> None:
        self._messages = messages
        self._need_server = need_server
        self._on_settled = on_settled
        self._loop = asyncio.get_running_loop()
        self._settling: set[Leaf] = set()

    def heard(self, leaf: Leaf) -> None:
        """Note that an agent wrote something: it is at work."""
        leaf.is_settled = False
        if leaf.settling is not None:
            leaf.settling.cancel()
            leaf.settling = None
        self.forget(leaf)

    def forget(self, leaf: Leaf) -> None:
        self._settling.discard(leaf)
        self._need_server("settling", bool(self._settling))

    def close_if_over(self, leaf: Leaf, state: State) -> None:
        """Close the input of an agent whose work is done, now or once it has settled."""
        conversation = leaf.provider.conversation
        if conversation is None or leaf.spec.session or leaf.is_input_closed:
            return
        is_sure = leaf.is_settled or leaf.id not in self._messages.unread
        # Without messages it need not stay for its background commands, which it ends by itself.
        is_alone = not takes_messages(leaf.spec) and conversation.is_only_background(state)
        if (is_sure and conversation.is_finished(state, leaf.is_settled)) or (leaf.is_settled and is_alone):
            self._messages.end_input(leaf.place)
            leaf.is_input_closed = True
            self.forget(leaf)
        elif leaf.settling is None and conversation.is_finished(state, True):
            self._settle_after(SETTLE_SECONDS, leaf)
        elif leaf.settling is None and is_alone:
            self._settle_after(conversation.background_seconds, leaf)

    def due(self) -> list[float]:
        """When each agent that is settling will have been silent for long enough, in wall time."""
        now, wall = self._loop.time(), time.time()
        return [wall + (leaf.settling.when() - now if leaf.settling is not None else 0.0) for leaf in self._settling]

    def _settle_after(self, seconds: float, leaf: Leaf) -> None:
        leaf.settling = self._loop.call_later(seconds, self._settle, leaf)
        self._settling.add(leaf)
        self._need_server("settling", True)

    def _settle(self, leaf: Leaf) -> None:
        leaf.settling, leaf.is_settled = None, True
        self._on_settled(leaf)
