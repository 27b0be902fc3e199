"""HOCKET_HOME: made private, refused where it is not ours, and its secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hocket.client.startup import read_lock
from hocket.errors import HomeError, ServerRunning
from hocket.keeper.server_watch import SERVER_LOCK
from hocket.sessions.home import describe_holder, locked, prepare, secret_of


def test_missing_home_is_created_private(tmp_path: Path) -> None:
    home = tmp_path / "a/b"
    prepare(home)
    assert home.stat().st_mode & 0o777 == 0o700
    assert list(home.iterdir()) == []


def test_home_open_to_others_is_made_private(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir()
    home.chmod(0o755)
    prepare(home)
    assert home.stat().st_mode & 0o777 == 0o700


def test_link_or_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    with pytest.raises(HomeError, match="symbolic link"):
        prepare(link)
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(HomeError, match=str(place)):
            prepare(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir()
    os.chown(home, 65534, 65534)
    with pytest.raises(HomeError, match="another user"):
        prepare(home)


def test_secret_is_created_once_and_private(tmp_path: Path) -> None:
    first = secret_of(tmp_path, "token")
    assert len(first) >= 32
    assert secret_of(tmp_path, "token") == first
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert secret_of(tmp_path, "secret") != first


@pytest.mark.parametrize("torn", ["", "short"])
def test_truncated_secret_is_created_again(tmp_path: Path, torn: str) -> None:
    (tmp_path / "token").write_text(torn)
    assert len(secret_of(tmp_path, "token")) >= 32


def test_second_lock_holder_is_refused_with_pid(tmp_path: Path) -> None:
    (tmp_path / SERVER_LOCK).touch(0o600)
    (tmp_path / SERVER_LOCK).write_text('{"pid": 4711, "socket": "of the one before"}')
    with locked(tmp_path) as descriptor:
        with pytest.raises(ServerRunning, match=f"pid {os.getpid()}") as caught, locked(tmp_path):
            pass
        assert "socket" not in read_lock(str(tmp_path))
        describe_holder(descriptor, socket="here")
        assert (read_lock(str(tmp_path))["pid"], read_lock(str(tmp_path))["socket"]) == (os.getpid(), "here")
        assert caught.value.exit_code == 1
    with locked(tmp_path):
        assert (tmp_path / SERVER_LOCK).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"\xff"])
def test_lock_without_a_description_counts_as_held(tmp_path: Path, torn: bytes) -> None:
    with locked(tmp_path) as descriptor:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, torn, 0)
        with pytest.raises(ServerRunning, match="not known yet"), locked(tmp_path):
            pass


def test_lock_descriptor_is_not_inheritable(tmp_path: Path) -> None:
    with locked(tmp_path) as descriptor:
        assert not os.get_inheritable(descriptor)
