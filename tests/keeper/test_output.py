"""What an agent writes reaches its files whole, however it writes, also on a full disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper.keeping import KEEPER, Runs, err_of, out_of, ring, wait_ended, wait_for, wait_pid, wait_said
from patience import PATIENCE

from hocket.keeper import files
from hocket.keeper.output import Output

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")

REOPENED = {
    "stdout": ("echo one; echo two > /dev/stdout; echo three", b"one\ntwo\nthree\n", b""),
    "stderr": ("echo one >&2; echo two > /dev/stderr; echo three >&2", b"", b"one\ntwo\nthree\n"),
    "by number": ("echo one; echo two > /proc/self/fd/1; echo three", b"one\ntwo\nthree\n", b""),
    "tee": ("echo one >&2; echo two | tee /dev/stderr; echo three >&2", b"two\n", b"one\ntwo\nthree\n"),
    "appended": ("echo one; echo two >> /dev/stdout; echo three", b"one\ntwo\nthree\n", b""),
}


@pytest.mark.parametrize("name", REOPENED)
def test_output_is_whole_when_reopened(runs: Runs, name: str) -> None:
    """Torture row 45."""
    script, out, err = REOPENED[name]
    directory = runs.create("/bin/sh", "-c", script)
    ending = runs.finish(directory)
    assert (out_of(directory), err_of(directory)) == (out, err)
    assert (ending.code, ending.out, ending.err, ending.lost_bytes) == (0, len(out), len(err), 0)


def test_output_after_closing_all_descriptors_is_kept(runs: Runs) -> None:
    """The pipe has no writer for a while: that is neither its end nor a reason for SIGPIPE."""
    code = (
        "import os\n"
        "os.write(1, b'one\\n')\n"
        "handle = os.open('/proc/self/fd/1', os.O_PATH)\n"
        "os.close(1)\n"
        "again = os.open(f'/proc/self/fd/{handle}', os.O_WRONLY)\n"
        "os.write(again, b'two\\n')\n"
    )
    directory = runs.python(code)
    assert (runs.finish(directory).code, out_of(directory)) == (0, b"one\ntwo\n")


def test_run_ends_while_its_pipe_is_flooded(runs: Runs) -> None:
    """A process that outlives the run may write on and on, and keep the other end of the pipe open."""
    directory = runs.create("/bin/sh", "-c", "echo ready; read x < gate; echo last")
    gate = Path(runs.root, "gate")
    os.mkfifo(gate)
    keeper = runs.keep(directory)
    wait_said(directory, b"ready")
    held = os.open(f"/proc/{wait_pid(directory).pid}/fd/2", os.O_WRONLY)
    flood = threading.Thread(target=write_until_broken, args=(held,))
    flood.start()
    gate.write_text("go\n")
    assert keeper.wait(PATIENCE) == 0
    flood.join()
    os.close(held)
    ending = files.read_exit(directory)
    assert ending is not None
    assert (ending.code, ending.lost_bytes, out_of(directory)) == (0, 0, b"ready\nlast\n")
    assert ending.err == len(err_of(directory))


def write_until_broken(descriptor: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        for _ in range(2**16):  # A bound, in case that it never breaks.
            os.write(descriptor, b"x" * 4096)


def test_sealed_output_ends_when_bytes_are_missing(tmp_path: Path) -> None:
    """The agent can read its own pipe: what it took will never come."""
    file = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    output = Output(file)
    assert output.source is not None
    os.write(output.sink, b"stolen")
    output.seal()
    os.read(output.source, 3)
    while not output.is_complete:
        output.copy()
    assert (tmp_path / "out").read_bytes() == b"len"


# Bounded: a keeper that fails to end it must not cost the machine its disk.
FLOOD = "import os, signal\nfor _ in range(2**12): os.write(1, b'x' * 2**16)\nwhile True: signal.pause()"


@pytest.mark.parametrize("ignores_term", [False, True])
def test_stop_ends_a_flood_within_the_grace(runs: Runs, ignores_term: bool) -> None:
    ignoring = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if ignores_term else ""
    directory = runs.python(ignoring + FLOOD, stop_grace=0.3)
    runs.keep(directory)
    out = Path(directory, files.OUT)
    wait_for(lambda: out.stat().st_size > 0, "the first of the flood")
    ring(directory, files.BELL_STOP)
    ending = wait_ended(directory)
    assert (ending.signal, ending.stopped) == (signal.SIGKILL if ignores_term else signal.SIGTERM, True)
    assert ending.out == out.stat().st_size
    assert ending.lost_bytes == 0


def test_last_words_of_a_leftover_are_kept(runs: Runs) -> None:
    """More than a pipe holds, written by a process that the agent left and that was asked to end."""
    code = (
        "import os, signal, sys\n"
        "told, tell = os.pipe()\n"
        "def speak(*_):\n"
        "    rest = memoryview(b'w' * 300_000)\n"
        "    while rest: rest = rest[os.write(1, rest):]\n"
        "    os._exit(0)\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, speak)\n"
        "    os.write(tell, b'.')\n"
        "    while True: signal.pause()\n"
        "os.read(told, 1)\n"
    )
    directory = runs.python(code)
    ending = runs.finish(directory)
    assert (ending.code, ending.swept, ending.survivors) == (0, 1, [])
    assert out_of(directory) == b"w" * 300_000


def test_output_beyond_file_size_limit_is_counted(runs: Runs) -> None:
    """A limit does not go away, so the agent goes on and what is cut off is known."""
    directory = runs.python("import os\nfor _ in range(10): os.write(1, b'x' * 10_000)")
    ending = runs.finish(directory, ["prlimit", "--fsize=16384", *KEEPER])
    assert (ending.code, ending.out, ending.lost_bytes) == (0, 16384, 100_000 - 16384)


# --- A full disk --------------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Runs]:
    """Runs on a file system of 256 kB that is soon full."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=True)
    made = Runs(place)
    yield made
    made.close()
    subprocess.run(["umount", "-l", str(place)], check=True)


def enlarge(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=8m", str(place)], check=True)


def wait_full(place: Path) -> None:
    wait_for(lambda: os.statvfs(place).f_bavail == 0, "a full disk")


WRITER = (
    "import os, sys\nfor number in range(int(sys.argv[1])):\n    os.write(1, b'%09d\\n' % number * 100)\nos._exit(3)"
)


def written(count: int) -> bytes:
    return b"".join(b"%09d\n" % number * 100 for number in range(count))


def is_in_write(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == "1"


@needs_root
def test_agent_waits_for_room_on_a_full_disk(full: Runs) -> None:
    directory = full.python(WRITER, "1000")
    keeper = full.keep(directory)
    wait_full(full.root)
    agent = wait_for(lambda: agent_of(keeper.pid), "the agent")
    wait_for(lambda: is_in_write(agent), "an agent that waits for its pipe")
    used, later = cpu_of(keeper.pid), time.monotonic() + 1
    wait_for(lambda: time.monotonic() > later, "a second in which the keeper has nothing to do")
    assert cpu_of(keeper.pid) - used < 30
    assert files.read_exit(directory) is None
    enlarge(full.root)
    assert keeper.wait(PATIENCE) == 0
    ending = files.read_exit(directory)
    assert ending is not None
    assert (ending.code, ending.lost_bytes) == (3, 0)
    assert out_of(directory) == written(1000)


def agent_of(keeper: int) -> int | None:
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return int(children[0]) if children else None


def cpu_of(pid: int) -> int:
    """Hundredths of a second that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@needs_root
def test_stop_works_on_a_full_disk(full: Runs) -> None:
    directory = full.python(WRITER, "1000", stop_grace=0.5)
    keeper = full.keep(directory)
    wait_full(full.root)
    ring(directory, files.BELL_STOP)
    assert keeper.wait(PATIENCE) == 0
    ending = files.read_exit(directory)
    assert ending is not None
    assert (ending.signal, ending.stopped) == (signal.SIGTERM, True)
    out = out_of(directory)
    assert written(1000).startswith(out)
    assert (ending.out, ending.lost_bytes > 0) == (len(out), True)


@needs_root
def test_lost_bytes_are_counted_when_disk_stays_full(full: Runs) -> None:
    directory = full.python("import os\nos.write(1, b'x' * 50_000)\nos.write(2, b'y' * 60_000)")
    (full.root / "ballast").write_bytes(b"x" * (os.statvfs(full.root).f_bavail * 4096 - 8192))
    began = time.monotonic()
    keeper = full.keep(directory)
    assert keeper.wait(2 * PATIENCE) == 0
    ending = files.read_exit(directory)
    assert ending is not None
    kept = len(out_of(directory)) + len(err_of(directory))
    assert (ending.code, ending.out + ending.err, ending.lost_bytes) == (0, kept, 110_000 - kept)
    assert time.monotonic() - began >= 10


@needs_root
def test_output_is_whole_when_room_is_made_later(full: Runs) -> None:
    directory = full.python("import os\nos.write(1, b'x' * 50_000)")
    (full.root / "ballast").write_bytes(b"x" * (os.statvfs(full.root).f_bavail * 4096 - 8192))
    keeper = full.keep(directory)
    wait_full(full.root)
    wait_for(lambda: agent_of(keeper.pid) is None, "the agent's end")
    assert files.read_exit(directory) is None
    (full.root / "ballast").unlink()
    assert keeper.wait(PATIENCE) == 0
    ending = files.read_exit(directory)
    assert ending is not None
    assert (ending.code, ending.lost_bytes, out_of(directory)) == (0, 0, b"x" * 50_000)
