"""A cleanup process does its work when its parent is killed, and none when the parent ends by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE

PARENT = """
import sys
from hocket.keeper.programs import cleanup_process

program = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
with cleanup_process(program, {"HOCKET_HOME": "/h", "HOCKET_RUN": "r"}, sys.argv[3]):
    print("up", flush=True)
    sys.stdin.read()
"""
CLEANUP = """
import os, sys

said = os.open(sys.argv[1], os.O_WRONLY)
os.write(said, b"up\\n")
sys.stdin.read()
os.write(said, ("over " + " ".join(sorted(name for name in os.environ if name.startswith("HOCKET")))).encode())
"""


@contextmanager
def started(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with its cleanup process, both running, and a pipe that the second one writes to."""
    said = folder / "said"
    os.mkfifo(said)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CLEANUP, said, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        heard = os.open(said, os.O_RDONLY)  # waits for the cleanup process
        try:
            assert parent.stdout is not None
            assert (parent.stdout.readline(), os.read(heard, 3)) == ("up\n", b"up\n")
            yield parent, heard
        finally:
            parent.kill()
            os.close(heard)


def test_cleanup_runs_when_the_process_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as (parent, heard):
        parent.kill()
        assert os.read(heard, 100) == b"over HOCKET_SERVER"


@pytest.mark.parametrize("last", ["", "x"])
def test_cleanup_is_skipped_when_the_process_ends(tmp_path: Path, last: str) -> None:
    with started(tmp_path) as (parent, heard):
        parent.communicate(last, timeout=PATIENCE)
        assert (parent.returncode, os.read(heard, 100)) == (0, b"")
