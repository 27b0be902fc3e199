"""Reading growing files: however the growth is cut and wherever the reader is restarted, the events are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hocket.model import Spec
from hocket.providers import executable
from hocket.sessions import output_lines
from hocket.sessions.output_lines import CHUNK, SCAN, OutputLine, near_the_end, read_lines, read_tail

SPEC = Spec("a", "executable", ("a",), "/", {}, loop=True)
SMALL_CHUNK, SMALL_SCAN = 16, 40

pieces = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r", b"\0", b"\xff\xfe", b"\xc3", b"\xa4", b"FORKHESTRA_COMPLETE\n", b" `"]),
    st.integers(SMALL_CHUNK - 2, SMALL_CHUNK + 2).map(lambda size: b"x" * size),
    st.integers(3 * SMALL_CHUNK, 8 * SMALL_CHUNK).map(lambda size: b"y" * size),
)
recordings = st.lists(pieces, max_size=12).map(b"".join)


def expected_lines(content: bytes, chunk: int, longest: int = 0) -> list[OutputLine]:
    """What the content means, said as simply as possible."""
    found = content.split(b"\n")
    if found[-1] == b"":
        found.pop()
    return [
        OutputLine(line) if len(line) <= max(chunk, longest) else OutputLine(line[:chunk], len(line)) for line in found
    ]


class Ingest:
    """The engine's loop around the two pure halves, with a commit after each piece and a restart where wanted."""

    def __init__(self, path: Path, restart_always: bool = False, longest: int = 0) -> None:
        self.path = path
        self.longest = longest
        self.restart_always = restart_always
        self.offset = self.scanned = 0
        self.state: dict[str, Any] = {}
        self.lines: list[OutputLine] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.offsets = [0]

    def look(self, final: int | None = None) -> None:
        read = executable.reader(SPEC)
        more = True
        while more:
            piece = read_lines(self.path, self.offset, self.scanned, final, self.longest)
            for line in piece.lines:
                self.state, said = read(self.state, "out", line.head, line.whole_size)
                self.events += said
            self.lines += piece.lines
            self.offset, self.scanned, more = piece.offset, piece.scanned, piece.more
            self.offsets.append(self.offset)
            if self.restart_always:
                self.restart()

    def restart(self) -> None:
        """A new server knows what was committed: the offset and the reader's state."""
        self.scanned = 0
        self.state = json.loads(json.dumps(self.state))


def ingest(folder: Path, content: bytes, cuts: list[int], restarts: set[int], longest: int = 0) -> Ingest:
    path = folder / "out"
    path.unlink(missing_ok=True)
    ingested = Ingest(path, longest=longest)
    written = 0
    with path.open("ab", buffering=0) as file:
        for turn, cut in enumerate([*sorted(cuts), len(content)]):
            file.write(content[written:cut])
            written = max(written, cut)
            ingested.look()
            if turn in restarts:
                ingested.restart()
    ingested.look(final=len(content))
    return ingested


@settings(max_examples=150, deadline=None)
@example(b"", [], set(), 0)
@example(b"\n", [0], {0}, 0)
@example(b"x" * SMALL_CHUNK + b"\n", [SMALL_CHUNK], {0}, 0)
@example(b"x" * SMALL_CHUNK, [3], {0}, 0)
@example(b"a\r\nb\r", [2], {0}, 0)
@example(b"x" * 60 + b"\n" + b"y" * 61, [50], {0}, 60)
@given(
    content=recordings,
    cuts=st.lists(st.integers(0, 200), max_size=8),
    restarts=st.sets(st.integers(0, 8)),
    longest=st.sampled_from([0, SMALL_CHUNK, 3 * SMALL_CHUNK, 1000]),
)
def test_any_partition_gives_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int], restarts: set[int], longest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_lines, "CHUNK", SMALL_CHUNK)
        patch.setattr(output_lines, "SCAN", SMALL_SCAN)
        whole = expected_lines(content, SMALL_CHUNK, longest)
        cuts = [min(cut, len(content)) for cut in cuts]
        grown = ingest(tmp_path_factory.getbasetemp(), content, cuts, restarts, longest)
        assert grown.lines == whole
        assert grown.offset == len(content)
        assert all(offset in (0, len(content)) or content[offset - 1] == 0x0A for offset in grown.offsets)
        read, events = executable.reader(SPEC), []
        state: dict[str, Any] = {}
        for line in whole:
            state, said = read(state, "out", line.head, line.whole_size)
            events += said
        assert grown.events == events
        assert grown.state == state


@settings(max_examples=50, deadline=None)
@given(content=recordings)
def test_restart_at_any_offset_gives_the_same_events(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "restarted"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_lines, "CHUNK", SMALL_CHUNK)
        # A search that is given up before its end must go on: here the whole line fits into one.
        patch.setattr(output_lines, "SCAN", 10_000)
        restarted, straight = Ingest(path, restart_always=True), Ingest(path)
        for one in (restarted, straight):
            one.look()
            one.look(final=len(content))
        assert restarted.events == straight.events
        for offset in set(straight.offsets):
            rest = Ingest(path)
            rest.offset = offset
            rest.look(final=len(content))
            count = len(expected_lines(content[:offset], SMALL_CHUNK))
            assert straight.lines[count:] == rest.lines


REAL = {
    "as long as a chunk": b"x" * CHUNK + b"\nend\n",
    "one byte longer than a chunk": b"x" * (CHUNK + 1) + b"\nend",
    "longer than a search": b"x" * (CHUNK + SCAN + 5) + b"\nend\n",
    "endless and never ended": b"a\n" + b"\xff" * (CHUNK + 2 * SCAN),
    "many short ones": b"line\r\n" * 100_000,
}


@pytest.mark.parametrize("content", REAL.values(), ids=list(REAL))
def test_lines_of_every_length_are_read_once(tmp_path: Path, content: bytes) -> None:
    grown = ingest(tmp_path, content, [1, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + SCAN], {0, 2, 4})
    assert grown.lines == expected_lines(content, CHUNK)
    for kind, data in grown.events:
        assert kind == "text"
        assert data.get("oversize", False) == (data.get("bytes", 0) > 64 * 1024)


def test_reading_ends_at_the_final_size(tmp_path: Path) -> None:
    """What another process wrote behind the end is not part of the run."""
    path = tmp_path / "out"
    path.write_bytes(b"mine\nlast words and then another process\n")
    ingested = Ingest(path)
    ingested.look(final=len(b"mine\nlast words"))
    assert [line.head for line in ingested.lines] == [b"mine", b"last words"]


def test_reading_ends_when_file_shrank_or_vanished(tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert read_lines(path, 0, 0, None, 9) == ([], 0, 0, False)
    assert read_lines(path, 7, 0, 99, 9) == ([], 7, 0, False)
    path.write_bytes(b"ab")
    assert read_lines(path, 100, 0, 100, 9) == ([], 100, 0, False)
    assert read_lines(path, 100, 0, 50, 9) == ([], 100, 0, False)
    assert read_lines(path, 0, 0, 100, 9) == ([], 0, 0, False)


def test_tail_is_the_end_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert read_tail(path, 5) == b""
    path.write_bytes(b"0123456789")
    assert read_tail(path, 4) == b"6789"
    assert read_tail(path, 99) == b"0123456789"


def test_long_file_is_continued_at_a_line_start(tmp_path: Path) -> None:
    """Never from the middle of one: that could be the middle of a secret."""
    path = tmp_path / "out"
    content = b"x" * output_lines.UNREAD + b"\n" + b"y" * 100 + b"\n" + b"z" * 100
    path.write_bytes(content)
    assert near_the_end(path, 0, len(content)) == len(content) - 201
    path.write_bytes(b"x" * (output_lines.UNREAD + 1))
    assert near_the_end(path, 0, output_lines.UNREAD + 1) == output_lines.UNREAD + 1
