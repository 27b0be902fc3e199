"""The terminal of a run in the user's own, in raw mode, until the run ends or a key leaves it."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from binascii import b2a_base64
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from hocket.cli import access
from hocket.cli.watch import DETACHED, ClientExit
from hocket.client import Client, quote
from hocket.client.transport import Connection
from hocket.errors import HocketError, ServerUnreachable, UsageError
from hocket.views.terminal_modes import ENTER, LEAVE, AlternateScreen

STDIN, STDOUT = 0, 1
HINT = "Ctrl-] leaves, the run continues"
HINT_SECONDS = 1.0
"""How long the hint is shown before the terminal, the first time."""
LOST = "\x1b7\x1b[r\x1b[999;1H\x1b[0;7m connecting to the server again · Ctrl-] leaves \x1b[0m\x1b8"
MAX_KEYS = 512 * 1024
"""Bytes that are typed by one request: a paste goes through whole up to this size."""
PASTE_SECONDS = 0.5
"""How long the rest of a paste is waited for."""
RETRY_SECONDS = 0.1
BELL = b"\a"
MAX_CELLS = 1000
OK = 200

_QUIT, _RESIZED = b"q", b"r"
_PASTE_BEGIN, _PASTE_END = b"\x1b[200~", b"\x1b[201~"
_CTRL = rb"(?:5|69|133|197)"
"""Ctrl alone, also with Caps Lock or Num Lock."""
_DETACH_OR_PASTE = re.compile(
    rb"(?P<paste>\x1b\[200~.*?(?:\x1b\[201~|\Z))"
    # As the terminal sends it, or as it does with the keyboard modes that the program may have set.
    rb"|\x1d|\x1b\[93(?::[\d:]*)?;%b(?::1)?u|\x1b\[27;5;93~" % _CTRL,
    re.DOTALL,
)


def keys_before_detach(typed: bytes) -> bytes | None:
    """What was typed before the key that leaves; None if it was not pressed. Inside a paste it is text."""
    for found in _DETACH_OR_PASTE.finditer(typed):
        if found["paste"] is None:
            return typed[: found.start()]
    return None


def is_within_paste(typed: bytes) -> bool:
    """True if the end of a paste is still to come."""
    return typed.rfind(_PASTE_BEGIN) > typed.rfind(_PASTE_END)


def terminal_size() -> tuple[int, int]:
    """The columns and rows of the user's terminal; one that does not know them counts as 80 x 24."""
    try:
        columns, rows = os.get_terminal_size(STDOUT)
    except OSError:
        columns = rows = 0
    return min(columns or 80, MAX_CELLS), min(rows or 24, MAX_CELLS)


class RawTerminal:
    """The user's terminal while it shows that of a run. Everything is restored at the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._screen = AlternateScreen()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(STDIN)
        tty.setraw(STDIN, termios.TCSADRAIN)
        self.write(ENTER + f"{HINT}\r\n\x1b]0;{self._title}\a".encode())
        return self

    def __exit__(self, *_: object) -> None:
        # The terminal may have hung up, and its settings with it.
        with suppress(OSError, termios.error):
            self.write(LEAVE)
        with suppress(OSError, termios.error):
            # Answers of the terminal, and movements of the mouse, must not reach the shell.
            termios.tcsetattr(STDIN, termios.TCSAFLUSH, self._before)

    def show(self, piece: bytes) -> None:
        """Show what the program has written."""
        self.write(self._screen.kept(piece))

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(STDOUT, data) :]


class KeyForwarder(threading.Thread):
    """Types what the user types into the terminal of a run, and tells it the size of the user's own.

    The main thread reads what the terminal shows: only that one may start a server.
    """

    def __init__(self, client: Client, run: str) -> None:
        super().__init__(daemon=True)
        self.has_left = False
        """The user has pressed the key that leaves, or the terminal is gone."""
        self._client = client.without_start()
        self._path = f"/api/runs/{quote(run)}/terminal"
        self._connection: Connection | None = None
        self._pending = b""
        self._awakened, self._awaken = os.pipe()
        os.set_blocking(self._awaken, False)

    def __enter__(self) -> Self:
        signal.signal(signal.SIGWINCH, self._on_resize)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        with suppress(OSError):
            os.write(self._awaken, _QUIT)
        self.join(1.0)

    def connected(self, connection: Connection) -> None:
        """Take the connection that shows the terminal from now on."""
        self._connection = connection
        if self.has_left:
            connection.break_off()

    def interrupted(self) -> None:
        """Note that the terminal is not shown at present: what is typed waits until it is."""
        self._connection = None

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # Full: it is told already.
            os.write(self._awaken, _RESIZED)

    def run(self) -> None:
        """Forward keys and sizes until the key that leaves."""
        try:
            while self._forward():
                pass
        except OSError:
            self._leave()  # The terminal has hung up.

    def _forward(self) -> bool:
        within_paste = is_within_paste(self._pending)
        patience = None if not self._pending else PASTE_SECONDS if within_paste else RETRY_SECONDS
        ready, _, _ = select.select([STDIN, self._awakened], [], [], patience)
        if self._awakened in ready:
            told = os.read(self._awakened, 4096)
            if _QUIT in told:
                return False
            self._send_size()
        if STDIN in ready and not self._read():
            return False
        if self._pending and not (ready and is_within_paste(self._pending) and len(self._pending) < MAX_KEYS):
            self._send_keys()
        return True

    def _read(self) -> bool:
        """Read what is typed; false once the user leaves."""
        typed = os.read(STDIN, 65536)
        self._pending += typed
        before = keys_before_detach(self._pending)
        if typed and before is None:
            return True
        self._pending = before or b""
        if self._pending:
            self._send_keys()
        self._leave()
        return False

    def _leave(self) -> None:
        self.has_left = True
        if self._connection is not None:
            self._connection.break_off()

    def _send_keys(self) -> None:
        keys, connection = self._pending[:MAX_KEYS], self._connection
        if connection is None or connection.status != OK or not self._post_keys(keys, connection):
            self._pending = keys  # They are typed when there is a server again.
        else:
            self._pending = self._pending[len(keys) :]

    def _post_keys(self, keys: bytes, connection: Connection) -> bool:
        """Send keys once; false if no server has taken them."""
        try:
            self._client.post_once(self._path, {"data": b2a_base64(keys, newline=False).decode()})
        except ServerUnreachable:
            return False
        except (HocketError, OSError) as error:
            # The run does not read them; or they may have been typed, and twice would be worse than not at all.
            os.write(STDOUT, BELL)
            if isinstance(error, ConnectionError):
                connection.break_off()  # The server is gone: nothing more is sent until another one shows the terminal.
                self._connection = None
        return True

    def _send_size(self) -> None:
        """A viewer that is not known any more tells its size when it connects again."""
        viewer = self._connection.headers.get("hocket-viewer") if self._connection is not None else None
        if viewer is not None:
            columns, rows = terminal_size()
            with suppress(HocketError, OSError):
                self._client.post_once(self._path, {"viewer": viewer, "columns": columns, "rows": rows})


def show_terminal(client: Client, run: str, number: int) -> None:
    """Show the terminal of a live run until the run ends. Raises ClientExit where the user leaves it."""
    if not (os.isatty(STDIN) and os.isatty(STDOUT)):
        raise UsageError(
            f"run {number} has a terminal, which can be shown only on a terminal", f"hocket logs -f {number}"
        )
    sys.stdout.flush()
    with RawTerminal(f"run {number} · {HINT}") as terminal:
        if access.is_first_time("attach"):
            select.select([STDIN], [], [], HINT_SECONDS)
        with KeyForwarder(client, run) as keys:
            for piece in client.terminal(run, terminal_size, keys.connected):
                if keys.has_left:
                    raise ClientExit(DETACHED)
                if piece:
                    terminal.show(piece)
                else:
                    keys.interrupted()
                    terminal.write(LOST.encode())
