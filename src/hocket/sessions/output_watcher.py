"""Hearing what agents write: when to look at their output, and at whose.

Every write could wake us, and waking costs more than what there is to see. So while somebody writes we listen by the
clock. But what somebody waits for is seen by a glance at what was written, and looked at, or answered, at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from hocket.keeper.platform import Inotify
from hocket.sessions.leaf import GLANCE, PACE, Leaf

log = logging.getLogger("hocket")

GATHER = 0.004
"""How long a burst of output gathers before we listen again."""
QUICK_EARS = 12.0
"""So many times we listen again that soon: somebody may be waiting for what is written next. Else at the usual pace."""
QUICK_AGAIN = 6.0
"""So many of them come back in a second."""
QUICK_WHERE_URGENT = 6.0
"""And so many where somebody did wait: an agent that asks for one thing is likely to ask for the next."""


class Ears:
    """One per server. ``touch`` has a leaf looked at after a delay; ``answer`` sees to what a line wants of us alone,
    or says that it could not."""

    def __init__(self, touch: Callable[[Leaf, float], None], answer: Callable[[Leaf, bytes], bool]) -> None:
        self._touch = touch
        self._answer = answer
        self._inotify = Inotify()
        self._loop = asyncio.get_running_loop()
        self._speaking: dict[int, Leaf] = {}
        self._quick, self._counted_at = QUICK_EARS, 0.0
        self._attended_at = 0.0
        self._deaf_for = 0.0
        """How old what we hear now may be, at most."""
        self._closed = False

    def open(self) -> None:
        self._loop.add_reader(self._inotify.fileno(), self._wake)

    def close(self) -> None:
        self._closed = True
        self._loop.remove_reader(self._inotify.fileno())
        self._inotify.close()

    def watch(self, leaf: Leaf) -> None:
        """From now on; OSError where the user has no watches left."""
        leaf.outputs = [self._inotify.watch(path, "written") for path in (leaf.out, leaf.err)]
        self._speaking |= dict.fromkeys(leaf.outputs, leaf)

    def unwatch(self, leaf: Leaf) -> None:
        for watch in leaf.outputs:
            self._speaking.pop(watch, None)
            self._inotify.unwatch(watch)
        leaf.outputs = []
        # The kernel tells of that, too. Taken now, it wakes nobody.
        for other in self._heard(self._news()):
            self._touch(other, 0)

    def _wake(self) -> None:
        """Somebody writes. More is likely to follow, so from now on we listen by the clock, until there is nothing."""
        self._deaf_for = 0.0
        # Who waits for us is heard at once; but nobody is heard all the time, whatever they pretend to wait for.
        if self._loop.time() - self._attended_at < GATHER or not self._attend_all():
            self._loop.remove_reader(self._inotify.fileno())
            self._listen_later()

    def _hear(self) -> None:
        if self._closed:
            return
        if self._attend_all():
            self.open()
        else:
            self._listen_later()

    def _listen_later(self) -> None:
        self._deaf_for = self._patience()
        self._loop.call_later(self._deaf_for, self._hear)

    def _attend_all(self) -> bool:
        """Whether nothing more is likely to follow: nobody has written, or all wait for what we do."""
        self._attended_at = self._loop.time()
        news = self._news()
        waiting = [self._attend_safely(leaf, news) for leaf in self._heard(news)]
        return all(waiting)

    def _attend_safely(self, leaf: Leaf, news: set[int]) -> bool:
        """Whatever one of them writes, it must not cost the others their hearing."""
        try:
            return self._attend(leaf, news)
        except Exception:
            log.exception("what run %s wrote could not be glanced at", leaf.id)
            self._touch(leaf, leaf.pace)
            return False

    def _attend(self, leaf: Leaf, news: set[int]) -> bool:
        """Look at what it wrote in a while; but at once at what somebody waits for, and whether somebody does.

        That is an agent who waits for what we do, or people for what it has done.
        """
        conversation = leaf.provider.conversation
        if conversation is None:
            self._touch(leaf, leaf.pace - self._deaf_for)
            return False
        written = leaf.glance()
        if written is None:
            self._touch(leaf, 0)  # That look will tell why not, and is repeated if need be.
            return False
        if not written and news.isdisjoint(leaf.outputs[1:]):
            return True  # It was looked at in the meantime.
        urgent = conversation.is_urgent(written)
        if urgent:
            self._quick += QUICK_WHERE_URGENT
            if self._answered(leaf, written.splitlines()):
                return True  # Nobody has anything to learn from it: it is read with what comes next.
        self._touch(leaf, 0 if urgent or len(written) == GLANCE else leaf.pace - self._deaf_for)
        return urgent

    def _answered(self, leaf: Leaf, lines: Iterable[bytes]) -> bool:
        """Whether all of it was meant for us alone, and has its answer."""
        return all(self._answer(leaf, line) for line in lines)

    def _news(self) -> set[int]:
        """What was written to since we heard last."""
        news = {watch for watch, _mask, _name in self._inotify.read()}
        # If the queue overflowed, it may be anything.
        return set(self._speaking) if min(news, default=0) < 0 else news

    def _heard(self, news: set[int]) -> set[Leaf]:
        return {leaf for watch in news if (leaf := self._speaking.get(watch)) is not None}

    def _patience(self) -> float:
        """Short as long as we have quick ears, so that what comes after a pause is heard at once."""
        now = self._loop.time()
        self._quick = min(self._quick + (now - self._counted_at) * QUICK_AGAIN, QUICK_EARS)
        self._counted_at = now
        if self._quick < 1:
            return PACE
        self._quick -= 1
        return GATHER
