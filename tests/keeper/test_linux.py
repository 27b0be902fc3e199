"""The kernel's calls: identity is never a bare pid, and the process table is read as it is."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper.keeping import is_alive, process, wait_for
from patience import PATIENCE

from hocket.keeper import linux

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these are calls of Linux")

PAUSE = "import signal; signal.pause()"


def started(pid: int) -> int:
    value = linux.start_time(pid)
    assert value is not None
    return value


def test_process_with_other_start_time_is_not_signalled() -> None:
    with process(PAUSE) as pid:
        assert linux.signal_process(pid, started(pid) + 1, signal.SIGKILL) is False
        assert linux.open_identity(pid, started(pid) - 1) is None
        assert is_alive(pid)
        assert linux.signal_process(pid, started(pid), signal.SIGKILL) is True
        wait_for(lambda: not is_alive(pid), "its end")


def test_unused_pid_is_not_an_error() -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert linux.start_time(child.pid) is None
    assert linux.signal_process(child.pid, 1, signal.SIGKILL) is False
    assert linux.environ_of(child.pid) == {}


def test_program_name_with_parentheses_is_parsed(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 ("
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    try:
        wait_for(lambda: linux.environ_of(child.pid), "the exec")
        assert linux.scan()[child.pid].ppid == os.getpid()
    finally:
        child.kill()
        child.wait()


def test_zombie_is_not_a_living_process() -> None:
    child = subprocess.Popen(["/bin/true"])
    wait_for(lambda: ") Z " in Path(f"/proc/{child.pid}/stat").read_text(), "a zombie")
    assert child.pid not in linux.scan()
    child.wait()


def test_process_with_ended_main_thread_is_alive() -> None:
    code = (
        "import ctypes, threading, signal\n"
        "threading.Thread(target=lambda: ctypes.CDLL(None).pause()).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with process(code) as pid:
        wait_for(lambda: ") Z " in Path(f"/proc/{pid}/stat").read_text(), "an ended main thread")
        assert is_alive(pid)


def test_waiting_ends_with_the_last_process() -> None:
    with process(PAUSE) as one, process(PAUSE) as other:
        found = {pid: started(pid) for pid in (one, other)}
        assert linux.wait_gone(found, 0) is False
        os.kill(one, signal.SIGKILL)
        assert linux.wait_gone(found, 0.05) is False
        os.kill(other, signal.SIGKILL)
        assert linux.wait_gone(found, PATIENCE) is True


def test_environment_is_that_of_the_start() -> None:
    with process(PAUSE, ODD="a=b\n\udcff") as pid:
        assert linux.environ_of(pid)["ODD"] == "a=b\n\udcff"


@pytest.fixture
def inotify() -> Iterator[linux.Inotify]:
    made = linux.Inotify()
    yield made
    made.close()


def events_of(inotify: linux.Inotify) -> list[tuple[int, str]]:
    assert select.select([inotify], [], [], PATIENCE)[0]
    return [(watch, name) for watch, _, name in inotify.read()]


def test_watched_directory_reports_changed_names(inotify: linux.Inotify, tmp_path: Path) -> None:
    watch = inotify.watch(str(tmp_path))
    assert inotify.read() == []
    (tmp_path / "new é").write_text("x")
    assert (watch, "new é") in events_of(inotify)
    (tmp_path / "new é").rename(tmp_path / "exit")
    assert (watch, "exit") in events_of(inotify)


def test_removed_watch_reports_nothing(inotify: linux.Inotify, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first, second = inotify.watch(str(tmp_path / "a")), inotify.watch(str(tmp_path))
    inotify.unwatch(first)
    inotify.read()
    (tmp_path / "a" / "unheard").touch()
    (tmp_path / "heard").touch()
    assert {watch for watch, _ in events_of(inotify)} == {second}


def test_watching_a_missing_path_is_an_error(inotify: linux.Inotify, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inotify.watch(str(tmp_path / "nowhere"))


def test_watch_reports_only_requested_events(inotify: linux.Inotify, tmp_path: Path) -> None:
    out, lock = tmp_path / "out", tmp_path / "lock"
    for file in (out, lock):
        file.touch()
    placed = inotify.watch(str(tmp_path), "placed")
    written = inotify.watch(str(out), "written")
    closed = inotify.watch(str(lock), "closed")
    with out.open("ab", buffering=0) as writing, lock.open("ab", buffering=0) as locking:
        locking.write(b"ignored")
        writing.write(b"a line\n")
        assert events_of(inotify) == [(written, "")]
    assert events_of(inotify) == [(closed, "")]
    lock.rename(tmp_path / "exit")
    assert events_of(inotify) == [(placed, "exit")]
