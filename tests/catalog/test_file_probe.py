"""Looking at the disk, and remembering what was seen."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from hocket.catalog.file_probe import ABSENT, MAX_FILE, FileProbe, signature
from hocket.providers.definition_files import Fault


def now(path: Path) -> str:
    return signature(path.stat())


def test_probe_records_signatures_of_visited_paths(tmp_path: Path) -> None:
    look, file = FileProbe(), tmp_path / "f"
    file.write_text("x")
    assert look.stat(str(file)) is not None
    assert look.exists(str(tmp_path))
    assert not look.exists(str(tmp_path / "gone"))
    assert not look.exists("a\0b")
    assert [entry.name for entry in look.entries(str(tmp_path))] == ["f"]
    assert look.head(str(file)) == b"x"
    assert look.seen[str(file)] == now(file)
    assert look.seen[str(tmp_path)] == now(tmp_path)
    assert look.seen[str(tmp_path / "gone")] == ABSENT


def test_signature_differs_after_every_change(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one")
    seen = {now(file)}
    os.utime(file, ns=(1, 1))
    seen.add(now(file))
    file.write_text("two")
    os.utime(file, ns=(1, 1))  # as an editor would that hides what it did
    seen.add(now(file))
    file.chmod(0o600)
    seen.add(now(file))
    (tmp_path / "g").write_text("two")
    (tmp_path / "g").replace(file)
    seen.add(now(file))
    assert len(seen) == 5


def test_changed_link_target_changes_signature(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "link"
    link.symlink_to("a")
    look = FileProbe()
    look.head(str(link))
    link.unlink()
    link.symlink_to("b")
    assert look.seen[str(link)] != now(link)


def test_folder_entries_are_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "C"):
        (tmp_path / name).touch()
    look = FileProbe()
    assert [entry.name for entry in look.entries(str(tmp_path))] == ["C", "a", "b"]
    assert look.entries(str(tmp_path / "gone")) == []
    assert look.entries(str(tmp_path / "a")) == []
    assert isinstance(look.listing(str(tmp_path / "a")), Fault)


@pytest.mark.req("S4-36", "S4-37")
@pytest.mark.parametrize("size", [10, 5_000, 70_000])
def test_only_the_frontmatter_is_read(tmp_path: Path, size: int) -> None:
    file = tmp_path / "a.md"
    head = b"---\nx: " + b"y" * size + b"\n---"
    file.write_bytes(head + b"\nbody --- body" * 10)
    assert FileProbe().head(str(file)) == head


@pytest.mark.parametrize("content", [b"", b"x", b"# Title\n", b"\n---\nname: a\n---\n", b"\xef\xbb\xbf# T"])
def test_file_without_frontmatter_is_read_in_part(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.md"
    file.write_bytes(content + b"y" * 100_000 * bool(content))
    found = FileProbe().head(str(file))
    assert isinstance(found, bytes)
    assert found.startswith(content)
    assert len(found) <= 8192


def test_special_files_and_huge_ones_are_not_read(tmp_path: Path) -> None:
    look = FileProbe()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1024**3)
    reasons = {}
    for name in ("fifo", "zero", "huge", "gone", ""):
        found = look.head(str(tmp_path / name))
        assert isinstance(found, Fault)
        reasons[name] = found.reason
        assert str(tmp_path / name) in look.seen
    assert reasons == {
        "fifo": "is a FIFO, not a file",
        "zero": "is a device, not a file",
        "huge": "is larger than 256 kB",
        "gone": "cannot be read: No such file or directory",
        "": "is a directory, not a file",
    }


def test_content_is_read_up_to_its_limit(tmp_path: Path) -> None:
    look, file = FileProbe(), tmp_path / "f.json"
    assert look.content(str(file), 10) is None
    file.write_bytes(b"x" * 10)
    assert look.content(str(file), 10) == b"x" * 10
    assert isinstance(look.content(str(file), 9), Fault)
    assert isinstance(look.content(str(tmp_path), 10), Fault)
    file.write_bytes(b"y" * 100_000)
    assert look.content(str(file), MAX_FILE) == b"y" * 100_000


def test_large_file_is_read_in_few_calls(tmp_path: Path) -> None:
    """Each piece is copied together with all before it, so many small ones would take for ever."""
    file, reads = tmp_path / "f.json", 0

    def count(_frame: object, event: str, called: object) -> None:
        nonlocal reads
        reads += event == "c_call" and called is os.read

    content = os.urandom(8 * 1024 * 1024)
    file.write_bytes(content)
    sys.setprofile(count)
    try:
        found = FileProbe().content(str(file), len(content))
    finally:
        sys.setprofile(None)
    assert found == content
    assert 0 < reads < 30


def test_fifo_with_a_writer_is_not_read(tmp_path: Path) -> None:
    fifo = tmp_path / "a.md"
    os.mkfifo(fifo)
    keep = os.open(fifo, os.O_RDWR)
    answers: list[object] = []
    reader = threading.Thread(target=lambda: answers.append(FileProbe().head(str(fifo))), daemon=True)
    reader.start()
    reader.join(5)
    os.close(keep)
    assert [type(answer) for answer in answers] == [Fault]


def test_unreadable_file_reports_permission(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("---\nname: a\n---\n")
    file.chmod(0)
    found = FileProbe().head(str(file))
    if os.access(file, os.R_OK):  # to the superuser nothing is closed
        assert isinstance(found, bytes)
    else:
        assert isinstance(found, Fault)
        assert "ermission" in found.reason


# --- JSON ---


def test_json_object_is_read_and_recorded(tmp_path: Path) -> None:
    path, look = tmp_path / "x.json", FileProbe()
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert look.read_object(str(path), 100) == {"a": 1}
    assert str(path) in look.seen


def test_missing_json_file_is_none_and_recorded(tmp_path: Path) -> None:
    look = FileProbe()
    assert look.read_object(str(tmp_path / "x.json"), 100) is None
    assert look.seen == {str(tmp_path / "x.json"): "-"}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", 1),
        (b"null", 1),
        (b"[{}]", 1),
        (b'{\n"a": }', 2),
        (b'{\n\n"a": "\xff"}', 3),
        (b'{"a": ' * 50_000, 1),
        (b'{"a": ' + b"9" * 10_000 + b"}", 1),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 1),
        (b"{" + b" " * 400_000 + b"}", 1),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_malformed_json_is_a_fault_with_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    found = FileProbe().read_object(str(path), 390_000)
    assert isinstance(found, Fault)
    assert found.line == line


def test_fifo_instead_of_json_is_a_fault(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    assert isinstance(FileProbe().read_object(str(tmp_path / "x.json"), 100), Fault)
