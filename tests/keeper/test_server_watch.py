"""The scheduled start of a server for a home. Tests with real servers are in torture/."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from hocket.keeper.server_watch import SERVER_LOCK, ScheduledStart

SOON = 0.01
FIRST, SECOND = '{"pid": 1, "start_time": 1}\n', '{"pid": 2, "start_time": 1, "socket": "/s"}\n'
STILLBORN = '{"pid": 3, "start_time": 1}\n'
"""What is left of a server that failed before it listened."""
SLOW_TO_LEAVE = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
print("there", flush=True)
open(sys.argv[2]).close()
"""
"""A server that takes its time."""


def test_scheduled_start_is_over_after_another_server(tmp_path: Path) -> None:
    lock = tmp_path / SERVER_LOCK
    lock.write_text(FIRST)
    made = ScheduledStart(str(tmp_path), time.time() + 60)
    lock.write_text(SECOND)
    assert not made.wait(0, SOON)


def test_failed_server_does_not_end_scheduled_start(tmp_path: Path) -> None:
    lock = tmp_path / SERVER_LOCK
    lock.write_text(FIRST)
    made = ScheduledStart(str(tmp_path), time.time())
    lock.write_text(STILLBORN)
    assert made.wait(0, SOON)


def test_scheduled_start_is_over_without_home(tmp_path: Path) -> None:
    assert not ScheduledStart(str(tmp_path), time.time() + 60).wait(0, SOON)
    (tmp_path / SERVER_LOCK).write_text(FIRST)
    made = ScheduledStart(str(tmp_path), time.time() + 60)
    (tmp_path / SERVER_LOCK).unlink()
    assert not made.wait(0, SOON)


def test_scheduled_start_waits_for_time_and_pause(tmp_path: Path) -> None:
    (tmp_path / SERVER_LOCK).write_text(FIRST)
    for ahead, pause in ((0.3, 0.0), (0.0, 0.3)):
        began = time.time()
        assert ScheduledStart(str(tmp_path), began + ahead).wait(pause, SOON)
        assert time.time() - began >= 0.3


def test_scheduled_start_waits_for_running_server(tmp_path: Path) -> None:
    lock, go = tmp_path / SERVER_LOCK, tmp_path / "go"
    lock.write_text(FIRST)
    os.mkfifo(go)
    with subprocess.Popen([sys.executable, "-ISc", SLOW_TO_LEAVE, lock, go], stdout=subprocess.PIPE) as leaving:
        assert leaving.stdout is not None
        leaving.stdout.readline()
        told = threading.Event()

        def tell() -> None:
            told.set()
            go.open("w").close()

        let_go = threading.Timer(0.5, tell)
        let_go.start()
        assert ScheduledStart(str(tmp_path), time.time() - 1).wait(0, SOON)
        assert told.is_set()
        let_go.join()
