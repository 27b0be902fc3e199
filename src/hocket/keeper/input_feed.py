"""Carrying a run's input from its `in` file to the agent's standard input.

The server appends records, the keeper alone holds the write end of the pipe: so each record arrives once
and in order, however often the server dies in between. What does not belong here: deciding when to look.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from typing import Any

from hocket.keeper import files

_CHUNK = 65536


class Feed:
    """Copies whole records to a pipe without ever blocking."""

    def __init__(self, directory: str, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe: int | None = pipe
        self._path = os.path.join(directory, files.IN)
        self._source = files.open_regular(self._path)
        self._position = files.open_regular(os.path.join(directory, files.IN_POS), os.O_WRONLY | os.O_CREAT)
        self._offset = 0
        self._unparsed = bytearray()
        self._searched = 0
        self._data: memoryview | None = None
        """What is being written: the rest of a record, or None."""
        self._record_size = 0
        self._is_last = False
        self._is_cut_off = False
        self._save_position()

    @property
    def awaited(self) -> dict[int, int]:
        """The descriptors to poll, and for what: the pipe, when it was full."""
        return {} if self._pipe is None or self._data is None else {self._pipe: select.POLLOUT}

    def pump(self) -> None:
        """Copy what there is, until the input is used up or the pipe is full."""
        while self._pipe is not None and (self._data is not None or self._next()):
            if not self._write():
                return
            self._data = None
            if self._record_size:
                self._count()
        if self._is_cut_off:
            self._end()

    def look_at_source(self) -> None:
        """An agent that removes or replaces its input file has closed its input: nothing more can come."""
        self._is_cut_off = self._is_cut_off or not files.is_same(self._path, os.fstat(self._source))

    def _end(self) -> None:
        """Tell the agent that nothing more will come."""
        self._close()

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = self._data = None

    def _write(self) -> bool:
        """Write what is begun; whether all of it is in the pipe."""
        while self._data and self._pipe is not None:
            try:
                self._data = self._data[os.write(self._pipe, self._data) :]
            except BlockingIOError:
                return False
            except OSError:
                # The agent has closed its standard input: nothing that follows can reach it.
                self._close()
                return False
        return True

    def _next(self) -> bool:
        """Begin with the next record, if there is one."""
        line = self._next_line()
        if line is None:
            return False
        record = _parse(line)
        self._record_size = len(line)
        self._data = memoryview(_encode(record.get("data")))
        self._is_last = record.get("eof") is True
        return True

    def _count(self) -> None:
        """The record that was begun is delivered."""
        self._offset += self._record_size
        self._record_size = 0
        self._save_position()
        if self._is_last:
            self._end()

    def _next_line(self) -> bytes | None:
        while (end := self._unparsed.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unparsed)
            chunk = os.read(self._source, _CHUNK)
            if not chunk:
                return None
            self._unparsed += chunk
        line = bytes(self._unparsed[: end + 1])
        del self._unparsed[: end + 1]
        self._searched = 0
        return line

    def _save_position(self) -> None:
        # A fixed-width write over the same block: no reader sees half of it, and a full disk has room for it.
        with contextlib.suppress(OSError):
            os.pwrite(self._position, b"%019d\n" % self._offset, 0)


def _parse(line: bytes) -> dict[str, Any]:
    """The record in this line; one that cannot be read carries nothing and is passed over."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _encode(data: object) -> bytes:
    if not isinstance(data, str):
        return b""
    try:
        return data.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # Half of a surrogate pair has no UTF-8 form; the bytes it would have are better than no record.
        return data.encode("utf-8", "surrogatepass")
