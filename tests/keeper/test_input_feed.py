"""Input reaches an agent once, in order, byte for byte, however slowly it reads."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from keeper.keeping import Runs, out_of, ring, wait_ended, wait_for, wait_said
from patience import PATIENCE

from hocket.keeper import files

ECHO = "import os, sys\nfor line in sys.stdin.buffer: os.write(1, line)"


def size_of_input(directory: str) -> int:
    return os.stat(os.path.join(directory, files.IN)).st_size


def position_of(directory: str) -> int:
    """How many bytes of `in` have gone to the agent."""
    path = os.path.join(directory, files.IN_POS)
    return int(Path(path).read_text() or 0) if os.path.exists(path) else 0  # empty while it is written


@pytest.mark.req("S5-08")
def test_input_written_before_the_start_arrives(runs: Runs) -> None:
    directory = runs.python(ECHO, stdin="lines")
    files.append_input(directory, "1", "first\n")
    files.append_input(directory, "2", None, eof=True)
    assert runs.finish(directory).code == 0
    assert out_of(directory) == b"first\n"
    assert position_of(directory) == size_of_input(directory)


@pytest.mark.req("S5-09")
def test_later_input_reaches_the_process_in_order(runs: Runs) -> None:
    directory = runs.python(ECHO, stdin="lines")
    runs.keep(directory)
    for number in range(20):
        files.append_input(directory, str(number), f"line {number}\n")
        ring(directory, files.BELL_INPUT)
        wait_said(directory, b"line %d\n" % number)
    files.append_input(directory, "end", None, eof=True)
    ring(directory, files.BELL_INPUT)
    assert wait_ended(directory).code == 0
    assert out_of(directory) == b"".join(b"line %d\n" % number for number in range(20))


def test_one_ring_is_enough_for_many_records(runs: Runs) -> None:
    directory = runs.python(ECHO, stdin="lines")
    runs.keep(directory)
    files.append_input(directory, "a", "a\n")
    ring(directory, files.BELL_INPUT)
    wait_said(directory, b"a\n")
    for name in "bcd":
        files.append_input(directory, name, f"{name}\n")
    files.append_input(directory, "end", None, eof=True)
    ring(directory, files.BELL_INPUT)
    assert wait_ended(directory).code == 0
    assert out_of(directory) == b"a\nb\nc\nd\n"


@pytest.mark.req("S5-10")
def test_odd_bytes_arrive_unchanged(runs: Runs) -> None:
    text = "two\nlines, NUL \0, é, \U0001f600, \udcff\u2028\r\n"
    directory = runs.create("/bin/cat", stdin="lines")
    files.append_input(directory, "1", text)
    files.append_input(directory, "2", None, eof=True)
    runs.finish(directory)
    assert out_of(directory) == text.encode("utf-8", "surrogateescape")


def test_lone_surrogate_does_not_stop_later_input(runs: Runs) -> None:
    directory = runs.create("/bin/cat", stdin="lines")
    files.append_input(directory, "1", "\ud800\n")
    files.append_input(directory, "2", "next\n")
    files.append_input(directory, "3", None, eof=True)
    runs.finish(directory)
    assert out_of(directory).endswith(b"\nnext\n")


def test_megabyte_reaches_a_slow_reader_whole(runs: Runs) -> None:
    """The pipe is full most of the time; the keeper stays awake for its bell meanwhile."""
    code = (
        "import hashlib, os, time\n"
        "seen, size = hashlib.sha256(), 0\n"
        "while chunk := os.read(0, 30_000):\n"
        "    seen.update(chunk); size += len(chunk); time.sleep(0.005)\n"
        "print(size, seen.hexdigest())\n"
    )
    directory = runs.python(code, stdin="lines")
    records = [f"{number}:" + "é" * 50_000 + "\n" for number in range(10)]
    for number, record in enumerate(records):
        files.append_input(directory, str(number), record)
    files.append_input(directory, "end", None, eof=True)
    assert runs.finish(directory).code == 0
    whole = "".join(records).encode()
    assert len(whole) > 1_000_000
    assert out_of(directory).decode().split() == [str(len(whole)), hashlib.sha256(whole).hexdigest()]


def test_position_counts_only_delivered_input(runs: Runs) -> None:
    """An agent that does not read: the pipe fills up, and the record that does not fit is not counted."""
    directory = runs.python("import signal\nsignal.pause()", stdin="lines")
    files.append_input(directory, "1", "small\n")
    first = size_of_input(directory)
    files.append_input(directory, "2", "x" * 1_000_000)
    runs.keep(directory)
    wait_for(lambda: position_of(directory) > 0, "a position")
    assert position_of(directory) == first
    ring(directory, files.BELL_KILL)
    assert wait_ended(directory).stopped


def test_agent_that_closed_its_input_continues(runs: Runs) -> None:
    code = "import os, sys\nos.close(0)\nprint('closed', flush=True)\nopen(sys.argv[1]).read()\nsys.exit(5)"
    gate = str(runs.root / "gate")
    os.mkfifo(gate)
    directory = runs.python(code, gate, stdin="lines")
    keeper = runs.keep(directory)
    wait_said(directory, b"closed")
    files.append_input(directory, "1", "nothing reads this\n")
    ring(directory, files.BELL_INPUT)
    Path(gate).write_text("")
    assert keeper.wait(PATIENCE) == 0
    assert wait_ended(directory).code == 5


def test_malformed_input_line_is_skipped(runs: Runs) -> None:
    directory = runs.create("/bin/cat", stdin="lines")
    files.append_input(directory, "1", "before\n")
    with open(os.path.join(directory, files.IN), "ab") as stream:
        stream.write(b"\0\0garbage\n[1]\n" + b"[" * 100_000 + b"\n")
    files.append_input(directory, "2", "after\n")
    files.append_input(directory, "3", None, eof=True)
    runs.finish(directory)
    assert out_of(directory) == b"before\nafter\n"


def test_input_after_eof_is_ignored(runs: Runs) -> None:
    directory = runs.create("/bin/cat", stdin="lines")
    files.append_input(directory, "1", None, eof=True)
    files.append_input(directory, "2", "too late\n")
    assert runs.finish(directory).code == 0
    assert out_of(directory) == b""


@pytest.mark.parametrize("replaced", [True, False])
def test_input_is_closed_when_its_file_is_gone(runs: Runs, replaced: bool) -> None:
    """Torture row 47."""
    directory = runs.create("/bin/cat", stdin="lines")
    files.append_input(directory, "1", "before\n")
    runs.keep(directory)
    wait_said(directory, b"before")
    path = os.path.join(directory, files.IN)
    os.unlink(path)
    if replaced:
        os.mkfifo(path)
    ring(directory, files.BELL_INPUT)
    assert wait_ended(directory).code == 0


def test_input_ends_after_data_with_eof(runs: Runs) -> None:
    """More than a pipe holds: the end comes when all of it is written."""
    directory = runs.create("/bin/cat", stdin="lines")
    files.append_input(directory, "1", "x" * 300_000, eof=True)
    files.append_input(directory, "2", "too late\n")
    assert runs.finish(directory).code == 0
    assert out_of(directory) == b"x" * 300_000
    assert position_of(directory) == size_of_input(directory)
