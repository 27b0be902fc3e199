"""The modes that a program has set on its terminal, read from what it wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOUSE = (9, 1000, 1002, 1003, 1005, 1006, 1015, 1016)
_ON_BY_DEFAULT = (7, 25)
"""Wrapping at the margin, and the cursor."""
_SCREENS = (47, 1047, 1049)
_KEPT = frozenset({1, 66, 1004, 2004, 2031, *_MOUSE, *_ON_BY_DEFAULT, *_SCREENS})
"""Private modes that outlast a redraw. A redraw sets the others itself, and 2026 would hold it back."""
MAX_PUSHED = 16
"""Keyboard modes that a terminal keeps for a program to come back to."""

_NUMBER = re.compile(rb"\d+")
_SEQUENCES = re.compile(
    rb"\x1b(?:(?P<hard>c)|\[!p"
    rb"|\[\?(?P<private>[\d;]{1,100})(?P<set>[hl])"
    rb"|\[(?P<way>[<=>])(?P<flags>[\d;]{0,20})u"
    rb"|\[>4(?:;(?P<keys>\d))?(?P<modified>m)"
    rb"|(?P<keypad>[=>]))"
)


def _private(numbers: Iterable[int], final: str) -> bytes:
    return b"".join(b"\x1b[?%d%b" % (number, final.encode()) for number in numbers)


RESET = (
    # The keyboard first: each screen has keyboard modes of its own.
    b"\x1b[=0u\x1b[<%du\x1b[>4m" % MAX_PUSHED
    + _private((*_MOUSE, 1, 66, 1004, 2004, 2026, 2031), "l")
    # The margins last, because they move the cursor.
    + b"\x1b[4l\x1b>\x1b(B\x0f\x1b[0m\x1b[0 q\x1b[r"
    + _private(_ON_BY_DEFAULT, "h")
)
"""Undoes what programs set on a terminal, except for the screen that they draw on."""
CLEAR = b"\x1b[0m\x1b[2J\x1b[H"


class TerminalModes:
    """Follows the output of a program; a part of it may be left out between two pieces."""

    def __init__(self) -> None:
        self._modes: dict[int, bool] = {}
        self._pushed: dict[bool, list[int]] = {False: [0], True: [0]}
        """Keyboard flags of the main and the alternate screen, the present ones last."""
        self._keys = b""
        self._keypad = False

    def feed(self, piece: bytes) -> None:
        for found in _SEQUENCES.finditer(piece):
            if found["private"] is not None:
                self._set(map(int, _NUMBER.findall(found["private"])), found["set"] == b"h")
            elif found["way"] is not None:
                self._change_flags(found["way"], [int(number) for number in _NUMBER.findall(found["flags"])])
            elif found["modified"] is not None:
                self._keys = found["keys"] or b""
            elif found["keypad"] is not None:
                self._keypad = found["keypad"] == b"="
            elif found["hard"] is not None:
                self._forget()
            else:
                self._set((1, 66), False)
                self._set((25,), True)

    def _forget(self) -> None:
        """A hard reset leaves nothing."""
        self._modes, self._pushed = {}, {False: [0], True: [0]}
        self._keys, self._keypad = b"", False

    @property
    def _is_alternate(self) -> bool:
        return any(self._modes.get(number, False) for number in _SCREENS)

    def _set(self, numbers: Iterable[int], is_set: bool) -> None:
        for number in numbers:
            if number in _SCREENS:
                # A program may leave by another number than it came by.
                self._modes = {one: on for one, on in self._modes.items() if one not in _SCREENS}
            if number in _KEPT:
                self._modes[number] = is_set

    def _change_flags(self, way: bytes, numbers: list[int]) -> None:
        pushed = self._pushed[self._is_alternate]
        first = numbers[0] if numbers else 0
        if way == b">":
            pushed.append(first)
            del pushed[1:-MAX_PUSHED]
        elif way == b"<":
            del pushed[max(1, len(pushed) - max(1, first)) :]
        else:
            how = numbers[1] if len(numbers) > 1 else 1
            pushed[-1] = first if how == 1 else pushed[-1] | first if how == 2 else pushed[-1] & ~first

    def restored(self) -> bytes:
        """What sets these modes on a terminal that has none."""
        screens = [number for number in _SCREENS if self._modes.get(number, False)]
        changed = [one for one, on in self._modes.items() if one not in _SCREENS and on != (one in _ON_BY_DEFAULT)]
        return (
            self._pushes(False)
            + (_private(screens, "h") + self._pushes(True) if screens else b"")
            + (b"\x1b[>4;%bm" % self._keys if self._keys else b"")
            + (b"\x1b=" if self._keypad else b"")
            + b"".join(_private((one,), "h" if self._modes[one] else "l") for one in sorted(changed))
        )

    def _pushes(self, alternate: bool) -> bytes:
        base, *pushed = self._pushed[alternate]
        return (b"\x1b[=%du" % base if base else b"") + b"".join(b"\x1b[>%du" % flags for flags in pushed)


# --- Showing a terminal in another one ------------------------------------------------------------------------

ENTER = b"\x1b[22;0t\x1b[?1049h" + CLEAR
LEAVE = RESET + CLEAR + b"\x1b[?1049l\x1b[23;0t"
"""Title, screen and position of the user's terminal are kept, and come back."""

_SWITCHES = re.compile(rb"\x1b(?:c|\[(?:3J|\?([\d;]{1,100})([hl])))")
_UNFINISHED = re.compile(rb"\x1b(?:\[(?:3|\?[\d;]{0,100})?)?\Z")


class AlternateScreen:
    """Keeps a program on the alternate screen, so that the screen and the history of the user stay as they are."""

    def __init__(self) -> None:
        self._held = b""
        """The beginning of a sequence that the last piece ended in."""

    def kept(self, piece: bytes) -> bytes:
        """The next piece of output, without changes of the screen; where one was, the screen is cleared."""
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished else b""
        return _SWITCHES.sub(_without_switch, text.removesuffix(self._held))


def _without_switch(found: re.Match[bytes]) -> bytes:
    if found[1] is None:
        return RESET + CLEAR if found[0] == b"\x1bc" else b""
    numbers = [int(number) for number in _NUMBER.findall(found[1])]
    others = [number for number in numbers if number not in _SCREENS]
    return _private(others, found[2].decode()) + (b"" if others == numbers else b"\x1b[2J\x1b[H")
