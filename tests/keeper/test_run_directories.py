"""Directories of runs: what is removed, and what a link leads to is not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.keeper.run_directories import disk_use, remove_runs

MONTH = "2026-01"
Make = Callable[[str], Path]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs" / MONTH).mkdir(parents=True)
    return tmp_path / "runs"


@pytest.fixture
def make(runs: Path) -> Make:
    def made(name: str) -> Path:
        place = runs / MONTH / name
        (place / "inner" / "deeper").mkdir(parents=True)
        for file in ("spec.json", "out", "inner/deeper/file"):
            (place / file).write_text("x")
        os.mkfifo(place / "bell")
        return place

    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file of the user."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "spec.json").write_text("mine")
    return folder


def test_only_the_named_directories_are_removed(runs: Path, make: Make) -> None:
    removed, other = make("rone"), make("rtwo")
    assert remove_runs(str(runs), MONTH, ["rone", "rgone"]) == {}
    assert not removed.exists()
    assert (other / "inner/deeper/file").read_text() == "x"
    assert remove_runs(str(runs), "1999-12", ["rtwo"]) == {}
    assert other.exists()


def test_links_are_removed_and_not_followed(runs: Path, make: Make, outside: Path) -> None:
    place = make("rone")
    (place / "spec.json").unlink()
    (place / "spec.json").symlink_to(outside / "spec.json")
    (place / "inner" / "link").symlink_to(outside)
    (runs / MONTH / "rlink").symlink_to(outside)
    (runs / MONTH / "rfile").write_text("in its place")
    assert remove_runs(str(runs), MONTH, ["rone", "rlink", "rfile"]) == {}
    assert os.listdir(runs / MONTH) == []
    assert (outside / "spec.json").read_text() == "mine"


@pytest.mark.parametrize("linked", ["month", "runs"])
def test_linked_folder_of_runs_is_refused(runs: Path, make: Make, outside: Path, linked: str) -> None:
    make("rone")
    away = outside.parent / "away"
    moved = runs if linked == "runs" else runs / MONTH
    moved.rename(away)
    moved.symlink_to(away)
    assert set(remove_runs(str(runs), MONTH, ["rone"])) == {"rone"}
    assert (away / "rone" if linked == "month" else away / MONTH / "rone").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../2026-02", "rone/inner"])
def test_name_that_is_a_path_is_refused(runs: Path, make: Make, name: str) -> None:
    place = make("rone")
    assert set(remove_runs(str(runs), MONTH, [name])) == {name}
    assert (place / "inner/deeper/file").exists()


def test_disk_use_counts_blocks_and_no_links(runs: Path, make: Make, outside: Path) -> None:
    place = make("rone")
    (place / "out").write_bytes(bytes(range(256)) * 4096)
    before = disk_use(str(place))
    assert before.is_complete
    assert 1024**2 <= before.bytes < 1024**2 + 64 * 1024
    (outside / "large").write_bytes(bytes(range(256)) * 4096)
    (place / "link").symlink_to(outside)
    assert disk_use(str(place)).bytes - before.bytes < 64 * 1024
    assert disk_use(str(place), time.monotonic() - 1).is_complete is False
    assert disk_use(str(runs / "nothing")) == (0, True)
