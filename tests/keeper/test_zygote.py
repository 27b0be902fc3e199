"""The zygote: many keepers from one small process, which may die at any time without taking one along."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from keeper.keeping import Runs, is_alive, out_of, ring, wait_ended, wait_for, wait_pid, wait_said

from hocket.keeper import files, linux
from hocket.keeper.server_watch import SERVER_LOCK
from hocket.keeper.zygote import Zygote, ZygoteGone

HANG = "import signal\nprint('ready', flush=True)\nwhile True: signal.pause()"


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    made = Zygote({"PATH": "/usr/bin:/bin", "HOCKET_RUN": "of the server's own parent"})
    made.start()
    yield made
    made.close()


def pid_of(zygote: Zygote) -> int:
    assert zygote.pid is not None
    return zygote.pid


def descriptors_of(pid: int) -> dict[int, str]:
    folder = Path(f"/proc/{pid}/fd")
    return {int(entry.name): os.readlink(entry) for entry in folder.iterdir()}


def test_fifty_keepers_each_keep_their_own_run(runs: Runs, zygote: Zygote) -> None:
    directories = [runs.create("/bin/sh", "-c", f"echo {n}; exit {n}") for n in range(50)]
    pids = {zygote.fork(directory, 10) for directory in directories}
    assert len(pids) == 50
    endings = [wait_ended(directory) for directory in directories]
    assert [ending.code for ending in endings] == list(range(50))
    assert [out_of(directory) for directory in directories] == [b"%d\n" % n for n in range(50)]
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "no keeper, and no zombie")


def test_keepers_outlive_their_zygote(runs: Runs, zygote: Zygote) -> None:
    directory = runs.python(HANG)
    keeper = zygote.fork(directory, 10)
    wait_said(directory, b"ready")
    gone = pid_of(zygote)
    zygote.close()
    assert not os.path.exists(f"/proc/{gone}")
    assert files.state(directory) == "running"
    assert is_alive(keeper)
    ring(directory, files.BELL_KILL)
    assert wait_ended(directory).stopped


def test_zygote_holds_only_its_socket(runs: Runs, zygote: Zygote) -> None:
    zygote.fork(runs.create("/bin/true"), 10)
    held = descriptors_of(pid_of(zygote))
    assert held.pop(0).startswith("socket:")
    assert set(held.values()) == {"/dev/null"}


def test_keeper_holds_only_descriptors_of_its_run(runs: Runs, zygote: Zygote) -> None:
    directory = runs.python(HANG, stdin="lines")
    keeper = zygote.fork(directory, 10)
    wait_said(directory, b"ready")
    wait_pid(directory)
    for target in descriptors_of(keeper).values():
        assert target == "/dev/null" or target.startswith(("pipe:", directory))
    assert {"0", "1", "2"} == {str(fd) for fd in descriptors_of(wait_pid(directory).pid)}
    ring(directory, files.BELL_KILL)
    wait_ended(directory)


def test_keeper_has_its_own_session_and_default_signals(runs: Runs, zygote: Zygote) -> None:
    directory = runs.python(HANG)
    keeper = zygote.fork(directory, 10)
    wait_said(directory, b"ready")
    assert os.getsid(keeper) == keeper
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{keeper}/status").read_text().splitlines())
    ignored = {sig for sig in range(1, 65) if int(status["SigIgn"], 16) >> (sig - 1) & 1}
    assert ignored == {signal.SIGPIPE, signal.SIGXFSZ}
    assert int(status["SigBlk"], 16) == 0
    ring(directory, files.BELL_KILL)
    wait_ended(directory)


def test_zygote_and_keeper_carry_only_the_server_mark(zygote: Zygote) -> None:
    wait_for(lambda: linux.environ_of(pid_of(zygote)), "the exec")
    environ = linux.environ_of(pid_of(zygote))
    assert environ["HOCKET_SERVER"] == "1"
    assert "HOCKET_RUN" not in environ


def test_dead_zygote_can_be_restarted(runs: Runs, zygote: Zygote) -> None:
    first = runs.create("/bin/true")
    zygote.fork(first, 10)
    os.kill(pid_of(zygote), signal.SIGKILL)
    directory = runs.create("/bin/echo", "again")
    with pytest.raises(ZygoteGone):
        zygote.fork(directory, 10)
    with pytest.raises(ZygoteGone):
        zygote.fork(directory, 10)
    zygote.start()
    zygote.fork(directory, 10)
    assert wait_ended(directory).code == 0
    wait_ended(first)


def test_unresponsive_zygote_counts_as_gone(runs: Runs, zygote: Zygote) -> None:
    os.kill(pid_of(zygote), signal.SIGSTOP)
    directory = runs.create("/bin/echo", "late")
    with pytest.raises(ZygoteGone):
        zygote.fork(directory, 0.1)
    os.kill(pid_of(zygote), signal.SIGCONT)
    zygote.start()
    zygote.fork(directory, 10)
    wait_ended(directory)
    assert out_of(directory) == b"late\n"


class Overtaken:
    """A lock that runs a function in another thread before it is first acquired."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._first: Callable[[], None] | None = first

    def __enter__(self) -> None:
        if (first := self._first) is not None:
            self._first = None
            other = threading.Thread(target=first)
            other.start()
            other.join()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_zygote_starts_no_server_when_unneeded(tmp_path: Path) -> None:
    lock = tmp_path / SERVER_LOCK
    lock.write_text('{"pid": 1, "start_time": 1}')
    zygote = Zygote({"PATH": "/usr/bin:/bin"})
    zygote.need_server(str(tmp_path))
    zygote._writing = Overtaken(lambda: zygote.need_server(""))  # type: ignore[assignment]
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # A start of the server waits until the running server has ended.
        zygote.start()
        process = zygote._process
        zygote.close()
    assert process is not None
    assert process.returncode == 0, "it did not wait, and was not killed for it"


def test_need_for_server_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Mapping[str, Any]] = []
    monkeypatch.setattr(Zygote, "_send", lambda self, request: said.append(request))
    zygote = Zygote({})
    for home in ("", "/a", "/a", "", "", "/a"):
        zygote.need_server(home)
    assert said == [{"wake": "/a"}, {"wake": ""}, {"wake": "/a"}]


def test_unstarted_zygote_is_an_error(runs: Runs) -> None:
    with pytest.raises(ZygoteGone):
        Zygote({}).fork(runs.create("/bin/true"), 1)


def test_missing_directory_ends_only_its_own_keeper(runs: Runs, zygote: Zygote) -> None:
    keeper = zygote.fork(str(runs.root / "nowhere"), 10)
    wait_for(lambda: not os.path.exists(f"/proc/{keeper}"), "the end of that keeper")
    directory = runs.create("/bin/true")
    zygote.fork(directory, 10)
    assert wait_ended(directory).code == 0


@pytest.fixture
def no_more_processes(zygote: Zygote) -> Iterator[Zygote]:
    """A zygote whose system has no room for another process."""
    if os.getuid() != 0:
        resource.prlimit(pid_of(zygote), resource.RLIMIT_NPROC, (1, 1))
        yield zygote
        return
    group = Path("/sys/fs/cgroup/pids") / f"hocket-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text("1")
        (group / "cgroup.procs").write_text(str(pid_of(zygote)))
    except OSError:
        pytest.skip("neither a limit nor a group can keep root from forking here")
    yield zygote
    zygote.close()
    group.rmdir()


def test_refused_fork_has_its_errno(runs: Runs, no_more_processes: Zygote) -> None:
    directory = runs.create("/bin/true")
    with pytest.raises(OSError, match=directory) as refusal:
        no_more_processes.fork(directory, 10)
    assert refusal.value.errno == errno.EAGAIN
    assert files.state(directory) == "unstarted"


def test_run_directory_path_may_have_any_characters(tmp_path: Path, zygote: Zygote) -> None:
    root = tmp_path / 'odd "name"\n é'
    root.mkdir()
    runs = Runs(root)
    directory = runs.create("/bin/echo", "here")
    zygote.fork(directory, 10)
    assert wait_ended(directory).code == 0
    wait_for(lambda: not files.is_locked(directory), "the keeper's end")
    shutil.rmtree(root)
