"""What is on the disk before an agent runs: after a power cut a started run must not look unstarted."""

from __future__ import annotations

import os
import re
from pathlib import Path

from keeper.keeping import KEEPER, Runs, wait_for
from patience import PATIENCE

from hocket.keeper import files


def traced(log: Path, *calls: str) -> list[str]:
    """The beginning of a command line; strace is one of the programs that the tests need."""
    return ["strace", "-f", "-y", "-s", "4096", "-o", str(log), "-e", f"trace={','.join(calls)}"]


def places(log: Path, pattern: str) -> list[int]:
    """The numbers of the lines that a call is in."""
    return [number for number, line in enumerate(log.read_text().splitlines()) if re.search(pattern, line)]


def flushes(log: Path, path: str | Path) -> list[int]:
    return places(log, rf"fsync\(\d+<{re.escape(str(path))}>\)")


def test_start_is_on_disk_before_the_agent_runs(runs: Runs, tmp_path: Path) -> None:
    """Torture row 50."""
    log = tmp_path / "log"
    directory = runs.create("/bin/true")
    runs.finish(directory, [*traced(log, "link", "linkat", "fsync", "execve"), *KEEPER])
    (claimed,) = places(log, r'link.*/started"')
    (began,) = places(log, r'execve\("/bin/true"')
    assert claimed < flushes(log, directory)[0] < began


def test_pid_is_on_disk_while_the_agent_runs(runs: Runs, tmp_path: Path) -> None:
    """By it a run that a restart of the machine ended is told from one whose keeper was killed."""
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(gate)
    directory = runs.create("/bin/sh", "-c", "read x < gate")
    tracer = runs.keep(directory, [*traced(log, "fsync"), *KEEPER])
    try:
        wait_for(lambda: log.exists() and flushes(log, Path(directory, files.PID)), "a flush of the pid")
    finally:
        gate.write_text("go\n")
    assert tracer.wait(PATIENCE) == 0
