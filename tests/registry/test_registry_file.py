"""The registry file and the session markers beside it, as servers of several homes write them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.errors import RegistryUnusable
from hocket.registry import registry_file
from hocket.registry.entries import DONE, IN_PROGRESS, INTERRUPTED, Entry

LIVE = Entry("builder", IN_PROGRESS, "/home/a", pid=4711, session_id="s-1", number=1)
DEEP = b'{"r0": ' + 2000 * b"[" + 2000 * b"]" + b"}"
ENDED = replace(LIVE, status=DONE, ended_at=5)


@pytest.fixture
def file(project: Path) -> Path:
    return project / ".active-pids.json"


def content(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


def marker(file: Path, pid: int = 4711) -> Path:
    return file.parent / ".session-markers" / f"{pid}.json"


@pytest.mark.req("S3-52")
def test_writers_of_two_homes_lose_no_entries(file: Path) -> None:
    script = """
import sys
from hocket.registry import registry_file
from hocket.registry.entries import Entry
home, path = sys.argv[1:]
for number in range(60):
    registry_file.update(path, {f"r{home}{number}": Entry("a", "in-progress", home, number=number)})
"""
    writers = [subprocess.Popen([sys.executable, "-c", script, home, str(file)]) for home in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert set(content(file)) == {f"r{home}{number}" for home in "abc" for number in range(60)}


def test_entries_of_others_are_kept_as_they_are(file: Path) -> None:
    others = {"x": {"pid": 1, "odd": [1.50, None, {"a": "ü"}], "status": "in-progress"}, "y": 7, "z": None}
    file.write_text(json.dumps(others))
    registry_file.update(str(file), {"r1": LIVE})
    assert content(file) == others | {"r1": content(file)["r1"]}


def test_foreign_fields_of_an_entry_are_kept(file: Path) -> None:
    registry_file.update(str(file), {"r1": LIVE})
    file.write_text(json.dumps({"r1": {**content(file)["r1"], "progress": "half", "status": "finished"}}))
    registry_file.update(str(file), {"r1": replace(LIVE, session_id="s-2")})
    entry = content(file)["r1"]
    assert (entry["progress"], entry["status"], entry["sessionId"]) == ("half", "in-progress", "s-2")


@pytest.mark.req("S3-52")
@pytest.mark.parametrize("damaged", [b'{"r0": {"pid": 1}, "r', b"\xff\xfe", b"[]", b"", b"null", DEEP])
def test_damaged_file_is_set_aside(file: Path, damaged: bytes) -> None:
    file.write_bytes(damaged)
    registry_file.update(str(file), {"r1": LIVE})
    file.write_bytes(damaged)
    notices = registry_file.update(str(file), {"r1": LIVE})
    kept = sorted(file.parent.glob(".active-pids.json.corrupt-*"))
    assert [one.read_bytes() for one in kept] == [damaged, damaged], "the second does not replace the first"
    assert len(notices) == 1
    assert any(one.name in notices[0] for one in kept)
    assert set(content(file)) == {"r1"}


@pytest.mark.parametrize("name", [".active-pids.json", ".active-pids.json.lock"])
def test_link_is_refused_and_its_target_untouched(file: Path, name: str) -> None:
    target = file.parent.parent / "target"
    target.write_text("mine")
    (file.parent / name).symlink_to(target)
    with pytest.raises(RegistryUnusable, match="not a regular file"):
        registry_file.update(str(file), {"r1": LIVE})
    assert target.read_text() == "mine"


def test_folder_behind_a_link_is_refused(file: Path) -> None:
    outside = file.parent.parent / "outside"
    outside.mkdir()
    (file.parent / "state").symlink_to(outside)
    with pytest.raises(RegistryUnusable, match="symbolic link"):
        registry_file.update(str(file.parent / "state/pids.json"), {"r1": LIVE})
    assert list(outside.iterdir()) == []


def test_unfinished_write_of_a_crash_is_replaced(file: Path) -> None:
    target = file.parent.parent / "target"
    target.write_text("mine")
    Path(f"{file}.new").symlink_to(target)
    registry_file.update(str(file), {"r1": LIVE})
    assert (set(content(file)), target.read_text()) == ({"r1"}, "mine")


def test_locked_file_is_an_error_after_a_while(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_file, "LOCK_PATIENCE", 0.05)
    registry_file.update(str(file), {"r1": LIVE})
    with open(f"{file}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RegistryUnusable, match="locked"):
            registry_file.update(str(file), {"r2": LIVE})
    assert set(content(file)) == {"r1"}


def test_only_the_newest_ended_entries_are_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_file, "KEPT", 2)
    other = replace(ENDED, home="/home/b", ended_at=1)
    registry_file.update(str(file), {"r0": LIVE, "b1": other})
    for number in range(1, 5):
        registry_file.update(str(file), {f"r{number}": replace(ENDED, ended_at=number)})
    assert set(content(file)) == {"r0", "b1", "r3", "r4"}


@pytest.mark.req("S3-53")
def test_unfinished_entries_of_one_home_are_found(file: Path) -> None:
    registry_file.update(str(file), {"r1": LIVE, "r2": ENDED, "b1": replace(LIVE, home="/home/b")})
    assert registry_file.unfinished(str(file), "/home/a") == {"r1": replace(LIVE, status=INTERRUPTED)}


# --- Session markers ----------------------------------------------------------------------------------------


def test_marker_exists_while_its_agent_lives(file: Path) -> None:
    registry_file.update(str(file), {"r1": LIVE})
    written = json.loads(marker(file).read_bytes())
    assert (written["sessionId"], written["agentId"]) == ("s-1", "r1")
    assert (marker(file).parent / ".gitignore").read_text() == "*\n"
    registry_file.update(str(file), {"r1": ENDED})
    assert not marker(file).exists()


@pytest.mark.parametrize("foreign", ['{"sessionId": "theirs"}', "{", '{"sessionId": 7}'])
def test_marker_of_another_program_is_left_alone(file: Path, foreign: str) -> None:
    marker(file).parent.mkdir()
    marker(file).write_text(foreign)
    registry_file.update(str(file), {"r1": LIVE})
    registry_file.update(str(file), {"r1": ENDED})
    assert marker(file).read_text() == foreign


@pytest.mark.req("S3-31")
def test_parent_session_comes_from_its_marker(file: Path) -> None:
    marker(file, 99).parent.mkdir()
    marker(file, 99).write_text('{"sessionId": "the parent\'s", "more": 1}')
    child = replace(LIVE, parent_pid=99)
    registry_file.update(str(file), {"r1": child})
    assert content(file)["r1"]["parentSessionId"] == "the parent's"
    marker(file, 99).unlink()
    registry_file.update(str(file), {"r1": replace(child, status=DONE)})
    assert content(file)["r1"]["parentSessionId"] == "the parent's", "it is known even after the parent is gone"


@pytest.mark.req("S3-32")
@pytest.mark.parametrize(
    "written", [None, "", "{", "[]", '"s"', '{"session": "s"}', '{"sessionId": null}', '{"sessionId": ""}', "link"]
)
def test_missing_or_malformed_marker_names_no_session(file: Path, written: str | None) -> None:
    marker(file, 99).parent.mkdir()
    if written == "link":
        (file.parent / "elsewhere").write_text('{"sessionId": "s"}')
        marker(file, 99).symlink_to(file.parent / "elsewhere")
    elif written is not None:
        marker(file, 99).write_text(written)
    assert registry_file.update(str(file), {"r1": replace(LIVE, parent_pid=99)}) == []
    assert content(file)["r1"]["parentSessionId"] is None
    assert content(file)["r1"]["parentPid"] == 99


def test_markers_behind_a_link_are_refused(file: Path) -> None:
    outside = file.parent.parent / "outside"
    outside.mkdir()
    (file.parent / ".session-markers").symlink_to(outside)
    notices = registry_file.update(str(file), {"r1": LIVE})
    assert len(notices) == 1
    assert "no session markers" in notices[0]
    assert os.listdir(outside) == []
    assert set(content(file)) == {"r1"}
