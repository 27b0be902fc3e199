"""A shell in a real terminal, that of tmux, which is asked what it shows and which modes it has."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import PATIENCE

PROMPT = "ready>"
MODES = "cursor_flag alternate_on mouse_any_flag keypad_cursor_flag keypad_flag wrap_flag insert_flag"
CLEAN = "1 0 0 0 0 1 0"
"""The modes of a terminal on which no program has set any."""


class Pane:
    """A window of a tmux server of its own, with bash in it."""

    def __init__(self, folder: Path, name: str, columns: int = 100, rows: int = 30) -> None:
        self._socket = str(folder / f"tmux-{name}")
        hocket = folder / "bin/hocket"
        hocket.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hocket "$@"\n')
        hocket.chmod(0o755)
        shell = f"PS1='{PROMPT} ' exec bash --norc --noprofile"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), shell)
        self.wait_for(PROMPT)

    def _tmux(self, *args: str, stdin: bytes | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", self._socket, *args],
            input=stdin,
            env={**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"},
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        return done.stdout.decode()

    def text(self, *, colours: bool = False) -> str:
        """What the terminal shows."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def modes(self) -> str:
        """The values of MODES."""
        return self._tmux("display-message", "-p", " ".join(f"#{{{name}}}" for name in MODES.split())).strip()

    def title(self) -> str:
        return self._tmux("display-message", "-p", "#{pane_title}").strip()

    def wait_until(self, is_so: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, f"{complaint}:\n{self.text()}"
            time.sleep(0.02)

    def wait_for(self, wanted: str) -> None:
        self.wait_until(lambda: wanted in self.text(), f"{wanted!r} is not shown")

    def type(self, text: str) -> None:
        """Type a text, and no Enter."""
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by their names, such as ``C-]``."""
        self._tmux("send-keys", *keys)

    def enter(self, line: str) -> None:
        """Type a line to the shell, once it is ready for one."""
        self.wait_until(self.is_at_prompt, "the shell is not ready")
        self.type(line)
        self.press("Enter")

    def is_at_prompt(self) -> bool:
        return self.text().rstrip().endswith(PROMPT)

    def paste(self, text: bytes) -> None:
        """Paste, with brackets if a program has asked for them."""
        self._tmux("load-buffer", "-", stdin=text)
        self._tmux("paste-buffer", "-p", "-r")

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def child(self) -> int:
        """The process that the shell is running."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def close(self) -> None:
        self._tmux("kill-server")


@contextmanager
def opening_panes(folder: Path) -> Iterator[Callable[..., Pane]]:
    """A function that opens a pane; all are closed at the end."""
    opened: list[Pane] = []

    def start(columns: int = 100, rows: int = 30) -> Pane:
        opened.append(Pane(folder, str(len(opened)), columns, rows))
        return opened[-1]

    try:
        yield start
    finally:
        for one in opened:
            one.close()
