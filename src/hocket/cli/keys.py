"""What is typed on the terminal while a run is watched, key by key. ``watch`` loads it when a key is wanted."""

from __future__ import annotations

import codecs
import os
import re
import select
import termios
import tty
from typing import Any


class Keys:
    """Single keys from the terminal itself, since standard input may be a file with the prompt."""

    def __init__(self) -> None:
        self._terminal: int | None = None
        self._before: list[Any] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._typed = Typed()

    def pressed(self) -> list[str]:
        """The keys that were pressed since the last look, and nothing of those that say more than one letter.

        The first look takes the terminal. What was typed before is left to be read: between an offer on the screen and
        this look no key may get lost.
        """
        if self._terminal is None:
            self._open()
        if self._terminal is None or not self._take():
            return []
        has_more = bool(select.select([self._terminal], [], [], 0)[0])
        return self._typed.keys(self._decoder.decode(os.read(self._terminal, 4096)) if has_more else "")

    def _open(self) -> None:
        try:
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            self._before = termios.tcgetattr(self._terminal)
        except (OSError, termios.error):
            self.close()

    def _take(self) -> bool:
        """Whether keys come one by one and to us: a shell that put us aside meanwhile has its own way with them."""
        if self._terminal is None or not _in_front(self._terminal):
            return False
        try:
            if termios.tcgetattr(self._terminal)[3] & termios.ICANON:
                tty.setcbreak(self._terminal, termios.TCSADRAIN)
        except termios.error:
            return False
        return True

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._terminal is None:
            return
        try:
            if self._before is not None and _in_front(self._terminal):
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):
            pass  # the terminal has gone, and its settings with it
        os.close(self._terminal)
        self._terminal = self._before = None


class Typed:
    """What a terminal sent, piece by piece. Arrows and their like begin with an escape and end with a letter, which
    must not count as that letter's key, also where it comes in a piece of its own."""

    def __init__(self) -> None:
        self._unfinished = ""

    def keys(self, piece: str) -> list[str]:
        """The keys in the next piece; an empty one says that nothing has come."""
        text = self._unfinished + piece
        begun = re.search("(?:\x1b(?:\\[[0-?]*[ -/]*|O)?)?\\Z", text)
        # An escape that nothing follows is the key of that name.
        self._unfinished = begun[0] if begun and (piece or begun[0] != "\x1b") else ""
        whole = text.removesuffix(self._unfinished)
        return list(re.sub("\x1b(?:\\[[0-?]*[ -/]*[@-~]|O.|[^\x1b])", "", whole))


def _in_front(terminal: int) -> bool:
    """Whether the terminal is ours to set and to read: a process in the background would be stopped for it."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
