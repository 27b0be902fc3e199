"""A power cut while a run begins: the run is not started a second time from the state of the disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from torture.installation import Installation, kill, verdict, wait_for
from world import Bin, processes_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and make control groups")

VICTIM = """#!/bin/sh
[ -e "$4" ] || kill -STOP $PPID "$2"
echo started >> "$1"
[ -e "$4" ] || cp "$3" "$4"
kill -CONT $PPID "$2"
"""
"""First of all it keeps the disk as a power cut would leave it now. Its keeper and the server stand still meanwhile."""


@contextlib.contextmanager
def disk(image: Path, place: Path) -> Iterator[None]:
    """An image of a disk, mounted. Its journal is not written by the clock, so only what is flushed is on it."""
    subprocess.run(["mount", "-o", "loop,commit=300", str(image), str(place)], check=True, timeout=PATIENCE)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=PATIENCE)


@needs_root
def test_run_starts_once_when_power_fails(agent: Bin, home: Path, project: Path, world: Path) -> None:
    """Torture row 50."""
    agent("victim", VICTIM)
    image, copy, ledger = world / "image", world / "copy", world / "ledger"
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, timeout=PATIENCE)
    installation = Installation(home, project)
    with disk(image, home):
        home.chmod(0o700)
        (home / "config.toml").write_text("[limits]\nmin_free_mb = 0\n")
        installation.ended(installation.spawn("/bin/true"))
        server = installation.server_pid()
        run = installation.spawn("victim", str(ledger), str(server), str(image), str(copy))
        assert verdict(installation.ended(run)) == ("done", "exit", 0)
        kill(server, signal.SIGTERM)
        wait_for(lambda: not processes_of(home), "the end of the first server")
    with disk(copy, home):
        after = installation.ended(run)
        assert ledger.read_text() == "started\n"
        assert verdict(after) == ("lost", "lost", None)
        installation.kill_server(signal.SIGTERM)
        wait_for(lambda: not processes_of(home), "the end of the second server")
