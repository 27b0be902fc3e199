"""Who belongs to a run, and ending all of them."""

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

from hocket.keeper import linux, tree

PAUSE = "import signal; signal.pause()"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\nsignal.pause()"


@contextlib.contextmanager
def parent_of(code: str, **env: str) -> Iterator[tuple[int, int]]:
    """A process with one child that runs this code: their pids."""
    parent = subprocess.Popen(
        [sys.executable, "-I", "-c", PARENT, code], stdout=subprocess.PIPE, env={"PATH": "/bin", **env}
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


def found(*pids: int) -> tree.Found:
    table = linux.scan()
    return {pid: table[pid].start_time for pid in pids if pid in table}


def test_descendants_are_everything_below() -> None:
    with parent_of(PAUSE) as (parent, child):
        assert tree.descendants(parent) == found(child)
        assert tree.descendants(os.getpid()).items() >= found(parent, child).items()


def test_carrying_finds_the_cookie_and_no_prefix_of_it() -> None:
    with process(PAUSE, HOCKET_RUN="abc-1") as one, process(PAUSE, HOCKET_RUN="abc-12") as other:
        assert tree.carrying("abc-1") == found(one)
        assert tree.carrying("abc-12") == found(other)
        assert tree.carrying("abc") == {}
        assert tree.carrying("") == {}


def test_what_is_below_a_spared_process_is_spared_too() -> None:
    me = os.getpid()
    with (
        parent_of(PAUSE, HOCKET_SERVER="1") as (server, below),
        parent_of(PAUSE, HOCKET_RUN="other") as (other, below_other),
        process(PAUSE) as unmarked,
    ):
        targets = tree.sweep_targets(me, "mine")
        assert unmarked in targets
        assert not targets.keys() & {server, below, other, below_other, me}


def test_a_server_that_carries_the_cookie_is_still_a_server() -> None:
    with process(PAUSE, HOCKET_RUN="mine-2", HOCKET_SERVER="1") as server:
        assert server not in tree.sweep_targets(1, "mine-2")
        assert tree.sweep_cookie("mine-2") == (0, [])
        assert is_alive(server)


def test_ending_all_uses_force_only_after_the_grace() -> None:
    with parent_of(DEAF) as (parent, deaf), process(PAUSE) as willing:
        everybody = found(parent, deaf, willing)
        swept = tree.end_all(lambda: found(*everybody), grace=0.2)
        assert swept == (3, [])
        assert not any(is_alive(pid) for pid in everybody)


def test_ending_catches_what_appears_meanwhile() -> None:
    with process(PAUSE) as early, process(PAUSE) as late:
        looks = iter([found(early), {}, found(late)])
        swept = tree.end_all(lambda: next(looks, {}), grace=0)
        assert swept == (2, [])
        assert not is_alive(late)


def test_sweeping_a_cookie_takes_what_is_below_its_carriers() -> None:
    scrub = f"import os, sys; os.execve(sys.executable, [sys.executable, '-I', '-c', {PAUSE!r}], {{}})"
    with parent_of(scrub, HOCKET_RUN="mine-3") as (parent, scrubbed):
        wait_for(lambda: "HOCKET_RUN" not in linux.environ_of(scrubbed), "a scrubbed environment")
        assert tree.sweep_cookie("mine-3") == (2, [])
        assert not is_alive(parent)
        assert not is_alive(scrubbed)


def test_sweeping_a_home_takes_its_servers_too_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_HOME", "/nowhere/h")
    with (
        process(PAUSE, HOCKET_HOME="/nowhere/h", HOCKET_SERVER="1") as server,
        process(PAUSE, HOCKET_HOME="/nowhere/h", HOCKET_RUN="any") as running,
        process(PAUSE, HOCKET_HOME="/nowhere/h2") as other,
    ):
        assert tree.sweep_home("/nowhere/h", grace=5) == (2, [])
        assert [is_alive(pid) for pid in (server, running, other)] == [False, False, True]
