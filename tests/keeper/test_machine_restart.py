"""Which runs a restart of the machine ended, and the note that is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.keeper import files
from hocket.keeper.machine_restart import NOTE, ended_by_restart, leave_note, take_note
from hocket.keeper.platform import boot_id


def begun(place: Path, boot: str) -> str:
    """A run that was at work under that start of the machine."""
    (place / files.PID).write_bytes(files.encode_pid(files.AgentPid(1, 2, boot, 3)))
    return str(place)


def test_only_runs_of_earlier_boot_ended_by_restart(tmp_path: Path) -> None:
    assert not ended_by_restart(str(tmp_path))
    assert not ended_by_restart(begun(tmp_path, boot_id()))
    assert not ended_by_restart(begun(tmp_path, ""))
    assert ended_by_restart(begun(tmp_path, "another"))


def test_restart_note_is_taken_once(tmp_path: Path) -> None:
    assert take_note(str(tmp_path)) == 0
    leave_note(str(tmp_path), 2)
    leave_note(str(tmp_path), 3)
    assert [take_note(str(tmp_path)) for _ in range(2)] == [3, 0]


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"\xff", b"1" * 5000])
def test_unreadable_restart_note_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NOTE).write_bytes(content)
    assert isinstance(take_note(str(tmp_path)), int)
    assert not (tmp_path / NOTE).exists()
    leave_note(str(tmp_path / "nowhere"), 1)
