"""The reserve: made where there is room, given up in slices on a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hocket.config.settings import Limits
from hocket.errors import DiskLow
from hocket.sessions.limits import SIZE, SLICE, Reserve, check_disk


def test_reserve_has_real_blocks_and_is_private(tmp_path: Path) -> None:
    Reserve(tmp_path).make()
    found = (tmp_path / "reserve").stat()
    assert (found.st_size, found.st_mode & 0o777) == (SIZE, 0o600)
    assert found.st_blocks * 512 >= SIZE
    assert [path.name for path in tmp_path.iterdir()] == ["reserve"]


def test_reserve_is_kept_while_there_is_room(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    reserve.make()
    assert not reserve.make_room()
    assert not reserve.in_use
    assert [path.name for path in tmp_path.iterdir()] == ["reserve"]


def test_start_is_refused_while_reserve_is_used(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    check_disk(tmp_path, Limits(min_free_mb=0))
    reserve.make()
    os.truncate(tmp_path / "reserve", SIZE - SLICE)
    (tmp_path / "reserve.new").mkdir()  # so that it cannot be made again
    with pytest.raises(DiskLow, match="is full"):
        check_disk(tmp_path, Limits(min_free_mb=0))


def test_start_restores_the_reserve(tmp_path: Path) -> None:
    Reserve(tmp_path).make()
    os.truncate(tmp_path / "reserve", 0)
    check_disk(tmp_path, Limits(min_free_mb=0))
    assert (tmp_path / "reserve").stat().st_size == SIZE


def test_link_instead_of_reserve_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"x" * 100)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "reserve").symlink_to(mine)
    reserve = Reserve(tmp_path / "home")
    assert not reserve.in_use
    reserve.make()
    assert mine.read_bytes() == b"x" * 100
    assert (tmp_path / "home" / "reserve").lstat().st_size == SIZE
