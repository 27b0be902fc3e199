"""The heir of a process does its work when that process is killed, and none when it ends by itself."""

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
from hocket.keeper.cleanup_process import heir

with heir([sys.executable, "-c", sys.argv[1], sys.argv[2]], {"HOCKET_HOME": "/h", "HOCKET_RUN": "r"}, sys.argv[3]):
    print("up", flush=True)
    sys.stdin.read()
"""
HEIR = """
import os, sys

said = os.open(sys.argv[1], os.O_WRONLY)
os.write(said, b"up\\n")
sys.stdin.read()
os.write(said, ("over " + " ".join(sorted(name for name in os.environ if name.startswith("HOCKET")))).encode())
"""


@contextmanager
def started(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with an heir, both of them up, and what the heir says: it ends with the heir."""
    said = folder / "said"
    os.mkfifo(said)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, HEIR, said, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        heard = os.open(said, os.O_RDONLY)  # waits for the heir
        try:
            assert parent.stdout is not None
            assert (parent.stdout.readline(), os.read(heard, 3)) == ("up\n", b"up\n")
            yield parent, heard
        finally:
            parent.kill()
            os.close(heard)


def test_an_heir_does_its_work_when_the_process_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as (parent, heard):
        parent.kill()
        assert os.read(heard, 100) == b"over HOCKET_SERVER"


@pytest.mark.parametrize("last", ["", "x"])
def test_an_heir_goes_with_a_process_that_ends_by_itself(tmp_path: Path, last: str) -> None:
    with started(tmp_path) as (parent, heard):
        parent.communicate(last, timeout=PATIENCE)
        assert (parent.returncode, os.read(heard, 100)) == (0, b"")
