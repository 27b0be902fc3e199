"""Which processes belong to a run, and ending all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper.keeping import is_alive, process, wait_for

from hocket.keeper import linux, process_tree, programs

PAUSE = "import signal; signal.pause()"
IGNORES_SIGTERM = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\nsignal.pause()"
)


@contextlib.contextmanager
def parent_of(code: str, *words: str, program: str | None = None, **env: str) -> Iterator[tuple[int, int]]:
    """A process with one child that runs this code: their pids."""
    parent = subprocess.Popen(
        [sys.executable, "-I", "-c", program or PARENT, code, *words],
        stdout=subprocess.PIPE,
        env={"PATH": "/bin", **env},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_for(lambda: b"pause" in Path(f"/proc/{child}/cmdline").read_bytes(), "the child's program")
    try:
        yield parent.pid, child
    finally:
        for pid in (child, parent.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-c", sys.argv[1]], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
signal.pause()
"""


def found(*pids: int) -> process_tree.Found:
    table = linux.scan()
    return {pid: table[pid].start_time for pid in pids if pid in table}


def test_sweep_targets_are_all_descendants() -> None:
    with parent_of(PAUSE) as (parent, child):
        assert process_tree.sweep_targets(parent, "") == found(child)
        assert process_tree.sweep_targets(os.getpid(), "").items() >= found(parent, child).items()


def test_cookie_is_matched_exactly() -> None:
    with process(PAUSE, HOCKET_RUN="abc-1") as one, process(PAUSE, HOCKET_RUN="abc-12") as other:
        assert process_tree.carrying("abc-1") == found(one)
        assert process_tree.carrying("abc-12") == found(other)
        assert process_tree.carrying("abc") == {}
        assert process_tree.carrying("") == {}


# Works in the folder that it is given, holds the lock that it is given, and has one child.
HOLDER = """
import fcntl, os, sys
os.chdir(sys.argv[2])
lock = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
"""


def holder(folder: Path, lock: Path) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """A process that has the mark of a server, and its child."""
    return parent_of(PAUSE, str(folder), str(lock), program=HOLDER + PARENT, HOCKET_SERVER="1")


def test_server_and_keepers_are_spared_when_locked(tmp_path: Path) -> None:
    """Torture row 49. Each proves itself by the lock that it holds."""
    own, other = tmp_path / "runs/2026-01/own", tmp_path / "runs/2026-01/other"
    for folder in (own, other):
        folder.mkdir(parents=True)
    with (
        holder(tmp_path, tmp_path / "server.lock") as server,
        holder(other, other / "lock") as keeper,
        holder(own, own / "lock") as our_own,
        holder(other, tmp_path / "any") as liar,
    ):
        targets = process_tree.sweep_targets(os.getpid(), "mine", process_tree.spare_others(str(tmp_path), str(own)))
        assert targets.keys() >= {*our_own, *liar}
        assert not targets.keys() & {*server, *keeper, os.getpid()}


@pytest.mark.parametrize("mark", [{"HOCKET_SERVER": "1"}, {"HOCKET_RUN": "other"}, {}])
def test_nothing_is_spared_when_only_environment_claims_it(mark: dict[str, str], tmp_path: Path) -> None:
    """Torture row 49."""
    (tmp_path / "server.lock").touch()
    spared = process_tree.spare_others(str(tmp_path), str(tmp_path / "runs/2026-01/own"))
    with parent_of(PAUSE, **mark) as (parent, child):
        assert process_tree.sweep_targets(os.getpid(), "mine", spared).keys() >= {parent, child}
        assert process_tree.nearest_targets(os.getpid(), spared).keys() >= {parent, child}


def test_process_is_found_when_environment_is_cleared(tmp_path: Path) -> None:
    """Torture row 49."""
    daemon = (
        "env -i setsid sh -c 'echo $$ > pid; exec sleep 60' > /dev/null 2>&1 & until [ -s pid ]; do sleep 0.01; done"
    )
    cookie = os.urandom(8).hex()
    env = {"PATH": "/usr/bin:/bin", "HOCKET_RUN": cookie}
    programs.run_tool(["/bin/sh", "-c", daemon], str(tmp_path), env, timeout=10, output_limit=100)
    pid = int((tmp_path / "pid").read_text())
    assert process_tree.COOKIE not in linux.environ_of(pid)
    assert process_tree.carrying(cookie) == found(pid)
    assert process_tree.sweep_cookie(cookie) == (1, [])
    assert not is_alive(pid)


def test_marks_of_runs_differ() -> None:
    marks = {process_tree.mark_of(f"run{number}") for number in range(1000)}
    assert len(marks) == 1000
    assert all(1 << 61 <= mark < 1 << 62 for mark in marks)


def test_kill_is_sent_only_after_the_grace() -> None:
    with parent_of(IGNORES_SIGTERM) as (parent, ignoring), process(PAUSE) as willing:
        all_pids = found(parent, ignoring, willing)
        swept = process_tree.end_all(lambda: found(*all_pids), grace=0.2)
        assert swept == (3, [])
        assert not any(is_alive(pid) for pid in all_pids)


def test_processes_started_meanwhile_are_ended() -> None:
    with process(PAUSE) as early, process(PAUSE) as late:
        looks = iter([found(early), {}, found(late)])
        swept = process_tree.end_all(lambda: next(looks, {}), grace=0)
        assert swept == (2, [])
        assert not is_alive(late)


def test_sweep_by_cookie_includes_descendants() -> None:
    scrub = f"import os, sys; os.execve(sys.executable, [sys.executable, '-I', '-c', {PAUSE!r}], {{}})"
    with parent_of(scrub, HOCKET_RUN="mine-3") as (parent, scrubbed):
        wait_for(lambda: "HOCKET_RUN" not in linux.environ_of(scrubbed), "a scrubbed environment")
        assert process_tree.sweep_cookie("mine-3") == (2, [])
        assert not is_alive(parent)
        assert not is_alive(scrubbed)


def test_sweep_of_home_ends_only_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_HOME", "/nowhere/h")
    with (
        process(PAUSE, HOCKET_HOME="/nowhere/h", HOCKET_SERVER="1") as server,
        process(PAUSE, HOCKET_HOME="/nowhere/h", HOCKET_RUN="any") as running,
        process(PAUSE, HOCKET_HOME="/nowhere/h2") as other,
    ):
        assert process_tree.sweep_home("/nowhere/h", grace=5) == (2, [])
        assert [is_alive(pid) for pid in (server, running, other)] == [False, False, True]
