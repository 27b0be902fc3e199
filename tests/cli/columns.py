"""A command on a terminal that is so many columns wide, and what it wrote there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from patience import PATIENCE

from hocket.cli.format import display_width

_STYLE = re.compile("\x1b\\[[0-9;]*m")


def lines_at(columns: int, cwd: Path, *args: str, **env: str) -> list[str]:
    """The lines that a command writes, without their colours; its talk goes elsewhere."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "hocket", *args],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "TERM": "xterm", **env},
    )
    os.close(theirs)
    seen = b""
    while piece := _piece(ours):
        seen += piece
    os.close(ours)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return _STYLE.sub("", seen.decode()).splitlines()


def _piece(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux says when the other side has closed
        return b""


def too_wide(lines: list[str], columns: int) -> list[str]:
    """Those that would run on into the next line of the terminal."""
    return [line for line in lines if display_width(line) > columns]
