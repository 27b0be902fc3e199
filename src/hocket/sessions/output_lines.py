"""From bytes in a file to whole lines, starting at the offset of the last commit. Keeps no file open."""

from __future__ import annotations

import os
from typing import NamedTuple

from hocket.keeper import files

CHUNK = 256 * 1024
SCAN = 8 * 1024 * 1024
"""Bytes of an unfinished line that are searched in one go."""
LINES = 4096
"""Lines that are read in one go: no other run is read meanwhile."""
UNREAD, TAIL = 256 * 1024, 16 * 1024
"""Of an output ended for its size, more than UNREAD unread bytes are skipped, except for the last TAIL bytes."""


class OutputLine(NamedTuple):
    """One line without its end; ``whole_size`` is set where it was too long and ``head`` is only its beginning."""

    head: bytes
    whole_size: int | None = None


class Piece(NamedTuple):
    """Some lines, the offset behind them, how far the next one has been searched, and whether more can be read now."""

    lines: list[OutputLine]
    offset: int
    scanned: int
    more: bool


def read_lines(path: str | os.PathLike[str], offset: int, scanned: int, final: int | None, longest: int) -> Piece:
    """The lines that begin at ``offset``. ``final`` is the file's last size, once its writers are gone: what stands
    before it without a line end is a line too. Lines above ``longest`` bytes are known by their beginning."""
    try:
        descriptor = files.open_regular(path)
    except (FileNotFoundError, files.NotRegularError):
        return Piece([], offset, scanned, False)
    try:
        wanted = CHUNK if final is None else min(CHUNK, final - offset)
        data = os.pread(descriptor, wanted, offset) if wanted > 0 else b""
        end = data.rfind(b"\n")
        if end >= 0:
            found = data[:end].split(b"\n", LINES)
            more = len(data) == wanted
            if len(found) > LINES:
                end -= len(found.pop()) + 1
                more = True
            return Piece([OutputLine(line) for line in found], offset + end + 1, 0, more)
        at_end = final is not None and offset + len(data) >= final
        if at_end:
            return Piece([OutputLine(data)] if data else [], offset + len(data), 0, False)
        if len(data) < CHUNK:
            return Piece([], offset, 0, False)
        return _endless(descriptor, data, offset, max(scanned, offset + len(data)), final, longest)
    finally:
        os.close(descriptor)


def _endless(descriptor: int, head: bytes, offset: int, scanned: int, final: int | None, longest: int) -> Piece:
    """A line longer than we read at once: its end is looked for; if that is too far, its middle stays in the file."""
    limit = scanned + SCAN
    while scanned < limit:
        wanted = CHUNK if final is None else min(CHUNK, final - scanned)
        data = os.pread(descriptor, wanted, scanned) if wanted > 0 else b""
        end = data.find(b"\n")
        if end >= 0:
            return Piece([_long_line(descriptor, head, offset, scanned + end, longest)], scanned + end + 1, 0, True)
        scanned += len(data)
        if final is not None and scanned >= final:
            return Piece([_long_line(descriptor, head, offset, scanned, longest)], scanned, 0, False)
        if not data:
            return Piece([], offset, scanned, False)
    return Piece([], offset, scanned, True)


def _long_line(descriptor: int, head: bytes, offset: int, end: int, longest: int) -> OutputLine:
    size = end - offset
    if size <= max(longest, len(head)):
        return OutputLine(os.pread(descriptor, size, offset))
    return OutputLine(head, size)


def near_the_end(path: str | os.PathLike[str], offset: int, final: int) -> int:
    """Where to go on in a file of which too much is unread: at the beginning of one of its last lines, else at its end.

    The rest of a line could begin with the rest of a secret, which cannot be recognised.
    """
    if final - offset <= UNREAD:
        return offset
    return min(final, line_begin(path, final - TAIL))


def line_begin(path: str | os.PathLike[str], offset: int) -> int:
    """The beginning of the first line behind an offset; the end of the file if none begins there."""
    while offset > 0 and (data := read_at(path, offset, CHUNK)):
        if (line_end := data.find(b"\n")) >= 0:
            return offset + line_end + 1
        offset += len(data)
    return max(0, offset)


def read_tail(path: str | os.PathLike[str], limit: int) -> bytes:
    """The last ``limit`` bytes of a file that may not be there."""
    return read_at(path, max(0, files.size(path) - limit), limit)


def read_at(path: str | os.PathLike[str], offset: int, limit: int) -> bytes:
    """As many bytes as there are, up to a limit; none of a file that is missing or was replaced."""
    try:
        descriptor = files.open_regular(path)
    except (FileNotFoundError, files.NotRegularError):
        return b""
    try:
        return os.pread(descriptor, limit, offset)
    finally:
        os.close(descriptor)
