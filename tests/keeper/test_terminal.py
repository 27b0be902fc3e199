"""An agent in a terminal: it is typed to, resized, copied and ended, no matter what it does with its terminal."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import signal
import struct
import termios
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from keeper.keeping import (
    Runs,
    cookie_of,
    err_of,
    is_alive,
    out_of,
    ring,
    wait_ended,
    wait_for,
    wait_pid,
    wait_said,
)
from patience import PATIENCE

from hocket.keeper import files
from hocket.keeper.escalation import Escalation
from hocket.keeper.terminal import PseudoTerminal, TerminalOutput

pytestmark = pytest.mark.req("S5-12")

RAW = "import os, signal, sys, termios, tty\ntty.setraw(0, termios.TCSANOW)\nos.write(1, b'ready\\n')\n"
WRITE = "def write(data):\n    rest = memoryview(data)\n    while rest: rest = rest[os.write(1, rest):]\n"
ECHO = (
    RAW
    + WRITE
    + "left = int(sys.argv[1])\n"
    + "while left:\n"
    + "    chunk = os.read(0, int(sys.argv[2]))\n"
    + "    left -= len(chunk)\n"
    + "    write(chunk)\n"
)
"""Repeats so many bytes, read in pieces of at most so many."""
HANG = RAW + "while True: signal.pause()"
GATED = RAW + "open(sys.argv[3]).read()\n" + ECHO.removeprefix(RAW)


class Terminals(Runs):
    def terminal(self, code: str, *args: object, **spec: Any) -> str:
        return self.python(code, *map(str, args), stdin="terminal", **spec)

    def start(self, code: str, *args: object, **spec: Any) -> str:
        """Start an agent that says when it is ready."""
        directory = self.terminal(code, *args, **spec)
        self.keep(directory)
        wait_said(directory, b"ready")
        return directory


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    yield made
    made.close()


_ids = itertools.count()


def say(directory: str, text: str, eof: bool = False) -> None:
    assert files.append_input(directory, str(next(_ids)), text, eof, durable=False) == "added"
    ring(directory, files.BELL_INPUT)


def press(directory: str, keys: bytes) -> None:
    """Type all of these, however slowly they are taken."""
    rest = keys
    while rest:
        rest = rest[wait_for(partial(files.type_keys, directory, rest), "a keeper that takes keys") :]


def typed(directory: str) -> bytes:
    """What an agent that has repeated its input was typed."""
    assert wait_ended(directory).code == 0
    return out_of(directory).removeprefix(b"ready\n")


def test_agent_controls_its_terminal(runs: Terminals) -> None:
    code = (
        "import os, termios\n"
        "assert all(map(os.isatty, (0, 1, 2))) and len(set(map(os.ttyname, (0, 1, 2)))) == 1\n"
        "assert os.getsid(0) == os.getpid() == os.tcgetpgrp(0) == os.tcgetpgrp(os.open('/dev/tty', os.O_RDWR))\n"
        "assert sorted(os.listdir('/proc/self/fd')) == ['0', '1', '2', '3', '4']\n"
        "assert termios.tcgetattr(0)[0] & 0o40000, 'no UTF-8'\n"
        "os.write(2, b'one\\n')\n"
        "os.write(0, 'zwei é\\n'.encode())\n"
    )
    directory = runs.terminal(code)
    ending = runs.finish(directory)
    assert (ending.code, out_of(directory), err_of(directory)) == (0, "one\r\nzwei é\r\n".encode(), b"")
    assert (ending.out, ending.err, ending.lost_bytes) == (len(out_of(directory)), 0, 0)


SIZES = (
    "import os, signal\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
    "while True:\n"
    "    size = os.get_terminal_size()\n"
    "    print(f'{size.columns}x{size.lines}.', flush=True)\n"
    "    signal.sigwait([signal.SIGWINCH])\n"
)


def test_terminal_follows_the_size_that_is_set(runs: Terminals) -> None:
    directory = runs.terminal(SIZES)
    runs.keep(directory)
    wait_said(directory, b"120x40.")
    for columns, rows in ((80, 24), (1000, 1), (81, 25)):
        files.set_size(directory, columns, rows)
        ring(directory, files.BELL_RESIZE)
        wait_said(directory, b"%dx%d." % (columns, rows))


@pytest.mark.parametrize(
    ("asked", "written", "size"),
    [
        ([90, 30], None, b"90x30."),
        ([90, 30], b"70 20\n", b"70x20."),
        ([90, 30], b"70 2", b"90x30."),
        ([0, "x"], None, b"120x40."),
        (7, b"", b"120x40."),
    ],
)
def test_terminal_begins_with_the_best_known_size(
    asked: object, written: bytes | None, size: bytes, runs: Terminals
) -> None:
    directory = runs.terminal(SIZES, size=asked)
    if written is not None:
        Path(directory, files.SIZE).write_bytes(written)
    runs.keep(directory)
    wait_said(directory, size)


def test_pasted_record_arrives_byte_for_byte(runs: Terminals) -> None:
    """Also what would be an interrupt, an end or a flow control character outside of raw mode."""
    text = "\x1b[200~two\nlines\ttab é \U0001f600 \0\x03\x04\x11\x13\x1a\x7f\udcff\x1b[201~"
    data = text.encode("utf-8", "surrogateescape")
    directory = runs.start(ECHO, len(data) + 1, 100)
    say(directory, text)
    say(directory, "\r")
    assert typed(directory) == data + b"\r"


@pytest.mark.parametrize("piece", [1000, 65536])
def test_megabyte_is_typed_whole_to_slow_reader(piece: int, runs: Terminals) -> None:
    text = "".join(f"{number:07}\n" for number in range(131072))
    directory = runs.start(ECHO, len(text), piece)
    say(directory, text)
    assert typed(directory) == text.encode()


def test_keys_wait_for_the_record_that_is_begun(runs: Terminals) -> None:
    first, keys, second = "a" * 100_000, b"keys" * 1000, "b" * 1000
    gate = runs.root / "gate"
    os.mkfifo(gate)
    directory = runs.start(GATED, len(first) + len(keys) + len(second), 5000, gate)
    say(directory, first)
    wait_for(lambda: unread(directory), "the beginning of the record")
    assert files.type_keys(directory, keys) == len(keys)
    say(directory, second)
    gate.write_text("")
    assert typed(directory) == first.encode() + keys + second.encode()


def unread(directory: str) -> int:
    """How many bytes have been typed that the agent has not read."""
    slave = os.open(f"/proc/{wait_pid(directory).pid}/fd/0", os.O_RDONLY | os.O_NOCTTY)
    try:
        return int(struct.unpack("i", fcntl.ioctl(slave, termios.FIONREAD, bytes(4)))[0])
    finally:
        os.close(slave)


def test_keys_arrive_in_order_when_agent_is_slow(runs: Terminals) -> None:
    keys = random.Random(1).randbytes(300_000)
    directory = runs.start(ECHO, len(keys), 700)
    press(directory, keys)
    assert typed(directory) == keys


def test_key_interrupts_when_terminal_is_cooked(runs: Terminals) -> None:
    directory = runs.start("import time\nprint('ready', flush=True)\ntime.sleep(600)")
    assert files.type_keys(directory, b"\x03") == 1
    assert wait_ended(directory).signal == signal.SIGINT


@pytest.mark.parametrize("seed", range(3))
def test_records_are_never_torn_by_keys(seed: int, runs: Terminals) -> None:
    """Records of all lengths, in brackets, between keys that are digits, to a reader of its own pace."""
    dice = random.Random(seed)
    records = [f"[{chr(ord('a') + number) * int(10 ** dice.uniform(0, 4.8))}]" for number in range(20)]
    keys = [b"%d" % dice.randrange(10 ** dice.randrange(1, 300)) for _ in records]
    directory = runs.start(ECHO, sum(map(len, records)) + sum(map(len, keys)), dice.choice([300, 5000]))
    for record, key in zip(records, keys, strict=True):
        say(directory, record)
        press(directory, key)
    found = typed(directory).decode()
    depth, outside = 0, ""
    for character in found:
        depth += {"[": 1, "]": -1}.get(character, 0)
        outside += character if depth == 0 and character != "]" else ""
    assert outside.encode() == b"".join(keys)
    assert "".join(character for character in found if not character.isdigit()) == "".join(records)


def test_terminal_stays_open_after_the_last_record(runs: Terminals) -> None:
    directory = runs.start(ECHO, 7, 100)
    say(directory, "last", eof=True)
    wait_said(directory, b"last")
    with open(os.path.join(directory, files.IN), "ab") as stream:
        stream.write(files.input_record("late", "too late"))
    ring(directory, files.BELL_INPUT)
    press(directory, b"key")
    assert typed(directory) == b"lastkey"


def test_keys_are_typed_after_input_is_gone(runs: Terminals) -> None:
    """Torture row 47."""
    directory = runs.start(ECHO, 3, 100)
    os.unlink(os.path.join(directory, files.IN))
    ring(directory, files.BELL_INPUT)
    press(directory, b"key")
    assert typed(directory) == b"key"


def test_last_bytes_are_kept_when_agent_exits(runs: Terminals) -> None:
    code = RAW + WRITE + "write(b''.join(b'%09d\\n' % number for number in range(20_000)))\nos._exit(7)"
    for _ in range(5):
        directory = runs.terminal(code)
        ending = runs.finish(directory)
        assert (ending.code, ending.lost_bytes, err_of(directory)) == (7, 0, b"")
        assert out_of(directory) == b"ready\n" + b"".join(b"%09d\n" % number for number in range(20_000))


def test_output_is_cut_when_over_its_limit(runs: Terminals) -> None:
    """What stays begins with a line and ends with the last byte."""
    written = b"".join(b"%08d\n" % number for number in range(100_000))
    code = RAW + WRITE + "write(b''.join(b'%08d\\n' % number for number in range(100_000)))\nos._exit(0)"
    directory = runs.terminal(code, screen_limit=100_000)
    ending = runs.finish(directory)
    out = out_of(directory)
    assert 20_000 < len(out) <= 100_000
    assert out == written[-len(out) :]
    assert out[:9].endswith(b"\n")
    assert (ending.out, ending.lost_bytes) == (len(out), 0)


def test_cut_output_is_shorter_than_before(runs: Terminals) -> None:
    code = RAW + WRITE + "while size := os.read(0, 1): write(b'x' * 10_000 + size)"
    directory = runs.start(code, screen_limit=40_000)
    sizes = []
    for key in "abcdefg":
        press(directory, key.encode())
        wait_for(partial(has_answered, directory, key.encode()), "the answer to a key")
        sizes.append(os.stat(os.path.join(directory, files.OUT)).st_size)
    assert [now > before for before, now in itertools.pairwise(sizes)] == [True, True, False, True, True, False]
    assert max(sizes) <= 40_000


def has_answered(directory: str, key: bytes) -> bool:
    return out_of(directory).endswith(key)


def test_exit_code_and_signal_are_recorded(runs: Terminals) -> None:
    assert runs.finish(runs.terminal("raise SystemExit(5)")).code == 5
    killed = runs.finish(runs.terminal("import os\nos.kill(os.getpid(), 15)"))
    assert (killed.signal, killed.stopped) == (signal.SIGTERM, False)
    missing = runs.create("/nowhere/agent", stdin="terminal")
    assert (runs.finish(missing).code, out_of(missing)) == (127, b"")


def test_stop_kills_agent_that_ignores_it(runs: Terminals) -> None:
    """Also while a message waits that it does not read."""
    ignoring = "import signal\nfor sig in (1, 2, 15): signal.signal(sig, signal.SIG_IGN)\n"
    directory = runs.start(ignoring + HANG, stop_grace=0.2)
    say(directory, "x" * 100_000)
    wait_for(lambda: unread(directory), "the beginning of the record")
    ring(directory, files.BELL_STOP)
    ending = wait_ended(directory)
    assert (ending.signal, ending.stopped) == (signal.SIGKILL, True)


def test_stop_without_a_bell_types_nothing(runs: Terminals) -> None:
    directory = runs.start(
        RAW + WRITE + "signal.signal(15, signal.SIG_IGN)\nwhile key := os.read(0, 9): write(key)", stop_grace=0.2
    )
    press(directory, b"k")
    wait_said(directory, b"k")
    os.unlink(os.path.join(directory, files.BELL))
    escalation = Escalation(directory, cookie_of(directory), "")
    escalation.wake_keeper()
    assert escalation.is_obstructed
    assert wait_ended(directory).stopped
    assert out_of(directory) == b"ready\nk"


def test_stop_ends_a_flood_in_the_terminal(runs: Terminals) -> None:
    directory = runs.start(RAW + "for _ in range(2**16): os.write(1, b'x' * 2**16)", screen_limit=1_000_000)
    ring(directory, files.BELL_STOP)
    ending = wait_ended(directory)
    assert (ending.signal, ending.stopped, ending.lost_bytes) == (signal.SIGTERM, True, 0)
    assert ending.out == len(out_of(directory))


def test_flood_of_keys_does_not_delay_a_stop(runs: Terminals) -> None:
    code = RAW + "if os.fork() == 0:\n    while True: os.read(0, 65536)\nwhile True: signal.pause()"
    directory = runs.start(code)
    with flooding(os.open(os.path.join(directory, files.KEYS), os.O_WRONLY)):
        wait_for(lambda: unread(directory), "the first of the flood")
        ring(directory, files.BELL_STOP)
        assert wait_ended(directory).stopped


@contextlib.contextmanager
def flooding(descriptor: int) -> Iterator[None]:
    """Write on and on, until the reader is gone."""

    def write() -> None:
        with contextlib.suppress(OSError):
            for _ in range(2**20):  # A bound, in case that it never goes.
                os.write(descriptor, b"x" * 4096)

    thread = threading.Thread(target=write)
    thread.start()
    yield
    thread.join()
    os.close(descriptor)


def test_agent_dies_with_the_keeper_of_its_terminal(runs: Terminals) -> None:
    directory = runs.terminal("import signal\nsignal.signal(1, signal.SIG_IGN)\n" + HANG)
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    agent = wait_pid(directory).pid
    keeper.kill()
    keeper.wait()
    wait_for(lambda: not is_alive(agent), "the end of the agent")


def test_leftover_that_holds_the_terminal_is_swept(runs: Terminals) -> None:
    code = (
        RAW
        + "told, tell = os.pipe()\n"
        + "if os.fork() == 0:\n"
        + "    os.setsid()\n"
        + "    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'last words'), os._exit(0)))\n"
        + "    os.write(tell, b'.')\n"
        + "    while True: signal.pause()\n"
        + "os.read(told, 1)\n"
    )
    directory = runs.terminal(code)
    ending = runs.finish(directory)
    assert (ending.code, ending.swept, ending.survivors) == (0, 1, [])
    assert out_of(directory) == b"ready\nlast words"


def test_run_ends_while_its_terminal_is_flooded(runs: Terminals) -> None:
    """A process that is no part of the run may hold the terminal open, and write on and on."""
    gate = runs.root / "gate"
    os.mkfifo(gate)
    directory = runs.terminal(GATED, 0, 1, gate)
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    held = os.open(f"/proc/{wait_pid(directory).pid}/fd/1", os.O_WRONLY | os.O_NOCTTY)
    with flooding(held):
        wait_said(directory, b"x" * 10_000)
        gate.write_text("")
        assert keeper.wait(PATIENCE) == 0
    ending = files.read_exit(directory)
    assert ending is not None
    assert (ending.code, ending.lost_bytes, ending.out) == (0, 0, len(out_of(directory)))


REPLACEMENTS: dict[str, str] = {
    "fifo": "os.mkfifo(name)",
    "directory": "os.makedirs(name + '/inside')",
    "link": "os.symlink('/dev/zero', name)",
    "huge": "os.truncate(os.open(name, os.O_RDWR | os.O_CREAT), 1 << 40)",
    "nothing": "",
}


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_replaced_size_and_keys_do_no_harm(kind: str, runs: Terminals) -> None:
    """Torture row 47."""
    code = (
        "import os, signal, sys\n"
        "for name in ('size', 'keys'):\n"
        "    name = os.path.join(sys.argv[1], name)\n"
        "    if os.path.lexists(name): os.unlink(name)\n"
        f"    {REPLACEMENTS[kind]}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "print('ready', flush=True)\n"
        "input()\n"
        "while os.get_terminal_size() != (99, 33): signal.sigwait([signal.SIGWINCH])\n"
        "sys.exit(3)\n"
    )
    directory = runs.terminal(code, runs.root / "run1")
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    ring(directory, files.BELL_RESIZE)
    assert files.read_size(directory) is None
    assert files.type_keys(directory, b"never typed") == 0
    files.set_size(directory, 99, 33)
    ring(directory, files.BELL_RESIZE)
    say(directory, "\n")
    assert keeper.wait(PATIENCE) == 0
    assert wait_ended(directory).code == 3


def test_screen_is_read_again_after_a_hangup(tmp_path: Path) -> None:
    terminal = PseudoTerminal(str(tmp_path), {})
    file = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    screen = TerminalOutput(file, terminal)
    name = os.ttyname(terminal.slave)
    os.close(terminal.slave)
    screen.copy()
    assert screen.source is None
    assert screen.retry_at is not None
    again = os.open(name, os.O_RDWR | os.O_NOCTTY)
    os.write(again, b"again")
    screen.seal()
    while not screen.is_complete:
        screen.copy()
    assert (tmp_path / "out").read_bytes() == b"again"
    for descriptor in (again, terminal.master, file):
        os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hangs up its terminal")
def test_agent_continues_after_its_terminal_hung_up(runs: Terminals) -> None:
    code = (
        "import ctypes, os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "name = os.ttyname(0)\n"
        "os.write(1, b'ready\\n')\n"
        "input()\n"
        "assert ctypes.CDLL(None).vhangup() == 0\n"
        "for descriptor in (0, 1, 2): os.close(descriptor)\n"
        "again = os.open(name, os.O_RDWR | os.O_NOCTTY)\n"
        "os.write(again, b'after\\n')\n"
        "sys.exit(4)\n"
    )
    directory = runs.start(code)
    press(directory, b"\r")
    assert wait_ended(directory).code == 4
    assert out_of(directory).endswith(b"after\r\n")  # What was not read yet is dropped with the terminal.
