"""Spare run directories: made ahead of time, used once, and never missed."""

from __future__ import annotations

import os
from pathlib import Path

from hocket.keeper import files
from hocket.sessions.spares import COUNT, Spares

SPEC = {"argv": ["/bin/true"], "cwd": "/", "env": {}, "stdin": "empty"}


def taken(spares: Spares) -> list[str]:
    found = []
    while (one := spares.take()) is not None:
        found.append(one)
    return found


def test_there_are_none_before_the_first_refill_and_a_few_after(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "spare")
    assert spares.take() is None
    spares.refill()
    assert len(set(taken(spares))) == COUNT


def test_a_spare_becomes_the_run_directory(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "spare")
    spares.refill()
    spare = spares.take()
    assert spare is not None
    inode = os.stat(spare).st_ino
    directory = str(tmp_path / "runs" / "one")
    files.create(directory, SPEC, spare=spare)
    assert os.stat(directory).st_ino == inode
    assert not os.path.exists(spare)
    assert files.read_spec(directory) == {"v": files.VERSION, **SPEC}
    assert files.state(directory) == "unstarted"


def test_a_directory_that_is_there_already_is_completed_and_the_spare_left(tmp_path: Path) -> None:
    directory = str(tmp_path / "one")
    files.create(directory, SPEC, {files.PROMPT: b"said before"})
    spares = Spares(tmp_path / "spare")
    spares.refill()
    spare = spares.take()
    files.create(directory, {**SPEC, "argv": ["/bin/false"]}, spare=spare)
    assert spare is not None
    assert os.path.isdir(spare)
    assert files.read_spec(directory) == {"v": files.VERSION, **SPEC}
    assert (tmp_path / "one" / files.PROMPT).read_bytes() == b"said before"


def test_what_a_crash_left_is_completed_and_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "spare"
    half = folder / "1-1"
    half.mkdir(parents=True)
    spares = Spares(folder)
    spares.refill()
    assert str(half) in taken(spares)
    assert (half / files.BELL).is_fifo()
    assert (half / files.EXIT_PRE).stat().st_size == files.EXIT_SIZE
