"""JSON files of others: an object, nothing, or the reason why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hocket.catalog.json_files import read_object

from hocket.catalog.file_probe import FileProbe
from hocket.providers.definition_files import Fault


def test_an_object_is_read_and_its_file_remembered(tmp_path: Path) -> None:
    path, look = tmp_path / "x.json", FileProbe()
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_object(look, str(path), 100) == {"a": 1}
    assert str(path) in look.seen


def test_a_file_that_is_not_there_is_nothing_and_remembered_too(tmp_path: Path) -> None:
    look = FileProbe()
    assert read_object(look, str(tmp_path / "x.json"), 100) is None
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
def test_anything_else_is_a_fault_with_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    found = read_object(FileProbe(), str(path), 390_000)
    assert isinstance(found, Fault)
    assert found.line == line


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    assert isinstance(read_object(FileProbe(), str(tmp_path / "x.json"), 100), Fault)
