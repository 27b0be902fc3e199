"""Modes of a terminal are read from what a program wrote, and its screen is kept apart from that of the user."""

from __future__ import annotations

import pytest

from hocket.views.terminal_modes import CLEAR, ENTER, LEAVE, MAX_PUSHED, RESET, AlternateScreen, TerminalModes


def restored(*pieces: bytes) -> bytes:
    modes = TerminalModes()
    for piece in pieces:
        modes.feed(piece)
    return modes.restored()


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (b"plain text \x1b[31mred\x1b[0m\x1b[2J\x1b[3;4H", b""),
        (b"\x1b[?2004h text \x1b[?1004h", b"\x1b[?1004h\x1b[?2004h"),
        (b"\x1b[?1000;1002;1006h", b"\x1b[?1000h\x1b[?1002h\x1b[?1006h"),
        (b"\x1b[?2004h\x1b[?2004l", b""),
        (b"\x1b[?25l\x1b[?7l", b"\x1b[?7l\x1b[?25l"),
        (b"\x1b[?25l\x1b[?25h", b""),
        (b"\x1b[?1h\x1b=", b"\x1b=\x1b[?1h"),
        (b"\x1b=\x1b>", b""),
        (b"\x1b[?1049h\x1b[?25l", b"\x1b[?1049h\x1b[?25l"),
        (b"\x1b[?47h\x1b[?1049l", b""),
        (b"\x1b[?2026h\x1b[?12h", b""),
        (b"\x1b[>4;2m", b"\x1b[>4;2m"),
        (b"\x1b[>4;2m\x1b[>4m", b""),
        (b"\x1b[?2004h\x1b[?1h\x1b[?25l\x1b[!p", b"\x1b[?2004h"),
        (b"\x1b[?1049h\x1b[>5u\x1b=\x1bc", b""),
        (b"\x1b[u\x1b[?u", b""),
    ],
)
def test_last_modes_are_restored(written: bytes, wanted: bytes) -> None:
    assert restored(written) == wanted


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (b"\x1b[>1u", b"\x1b[>1u"),
        (b"\x1b[>1u\x1b[>5u\x1b[<u", b"\x1b[>1u"),
        (b"\x1b[>1u\x1b[>5u\x1b[<9u", b""),
        (b"\x1b[=3u\x1b[=4;2u\x1b[=1;3u", b"\x1b[=6u"),
        (b"\x1b[>1u\x1b[?1049h\x1b[>3u", b"\x1b[>1u\x1b[?1049h\x1b[>3u"),
        (b"\x1b[?1049h\x1b[>3u\x1b[?1049l", b""),
        (b"\x1b[>1u" * 50, b"\x1b[>1u" * MAX_PUSHED),
    ],
)
def test_keyboard_modes_are_restored_for_each_screen(written: bytes, wanted: bytes) -> None:
    assert restored(written) == wanted


def test_missing_middle_keeps_earlier_modes() -> None:
    assert restored(b"\x1b[?1049h\x1b[?2004h", b"04h\x1b[?25l text") == b"\x1b[?1049h\x1b[?25l\x1b[?2004h"


def test_restored_modes_are_undone_by_reset() -> None:
    modes = TerminalModes()
    modes.feed(b"\x1b[?1049h\x1b[>3u\x1b[?25l\x1b[?7l\x1b[?1003;1006;2004;1004;2031;1h\x1b[>4;2m\x1b=")
    modes.feed(RESET + b"\x1b[?1049l")
    assert modes.restored() == b""


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"text\x1b[31m\x1b[?25l", b"text\x1b[31m\x1b[?25l"),
        (b"\x1b[?1049hfull", b"\x1b[2J\x1b[Hfull"),
        (b"\x1b[?1049;25l.", b"\x1b[?25l\x1b[2J\x1b[H."),
        (b"\x1b[2J\x1b[3J\x1b[H", b"\x1b[2J\x1b[H"),
        (b"\x1bc.", RESET + CLEAR + b"."),
        (b"\x1b[33m\x1b[?47l", b"\x1b[33m\x1b[2J\x1b[H"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_program_stays_on_alternate_screen(written: bytes, shown: bytes, size: int) -> None:
    screen = AlternateScreen()
    pieces = [written[begin : begin + size] for begin in range(0, len(written), size)]
    assert b"".join(map(screen.kept, pieces)) == shown


def test_screen_title_and_position_come_back() -> None:
    assert ENTER.startswith(b"\x1b[22;0t\x1b[?1049h")
    assert LEAVE.endswith(b"\x1b[?1049l\x1b[23;0t")
    assert RESET in LEAVE
