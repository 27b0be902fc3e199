"""The formats of a run directory: complete or absent, also after a crash while writing."""

from __future__ import annotations

import binascii
import fcntl
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.keeper import files

ENDING = files.Exit(
    code=3,
    signal=None,
    error=None,
    stopped=False,
    out=10,
    err=2,
    survivors=[],
    swept=1,
    ended_at=1.5,
    duration=0.25,
)
SPEC = {"argv": ["/bin/true"], "cwd": "/", "env": {"HOCKET_RUN": "r"}, "stdin": "lines"}


@pytest.fixture
def directory(tmp_path: Path) -> str:
    path = str(tmp_path / "2030-01" / "run")
    files.create(path, SPEC)
    return path


def write_exit(directory: str, content: bytes) -> None:
    Path(directory, files.EXIT).write_bytes(content)


def inputs(directory: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(directory, files.IN).read_bytes().splitlines()]


def test_created_directory_is_private_and_complete(directory: str) -> None:
    for path in (directory, os.path.dirname(directory)):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert stat.S_ISFIFO(os.stat(os.path.join(directory, files.BELL)).st_mode)
    assert files.read_spec(directory) == {"v": 1, **SPEC}
    assert os.stat(os.path.join(directory, files.IN)).st_size == 0


def test_repeated_creation_keeps_specification_and_input(directory: str) -> None:
    files.append_input(directory, "1", "hello\n")
    files.create(directory, {**SPEC, "argv": ["/bin/false"]})
    assert files.read_spec(directory) == {"v": 1, **SPEC}
    assert inputs(directory) == [{"id": "1", "data": "hello\n"}]


@pytest.mark.parametrize("left", ["", "{", "null"])
def test_repeated_creation_completes_a_torn_specification(tmp_path: Path, left: str) -> None:
    (tmp_path / files.SPEC).write_text(left)
    files.create(str(tmp_path), SPEC)
    assert files.read_spec(str(tmp_path)) == {"v": 1, **SPEC}


def test_exit_record_reads_back_as_written(directory: str) -> None:
    assert files.read_exit(directory) is None
    content = files.encode_exit(ENDING)
    assert len(content) == files.EXIT_SIZE
    write_exit(directory, content)
    assert files.read_exit(directory) == ENDING


def test_exit_record_fits_its_size_for_any_content() -> None:
    wide = ENDING._replace(error="\U0001f600" * 5000, survivors=list(range(4_000_000, 4_001_000)))
    content = files.encode_exit(wide)
    assert len(content) == files.EXIT_SIZE
    assert files.decode_exit(content) is not None


def test_truncated_exit_record_reads_as_missing() -> None:
    content = files.encode_exit(ENDING)
    assert [size for size in range(len(content)) if files.decode_exit(content[:size])] == []


def test_altered_exit_record_reads_as_missing() -> None:
    content = files.encode_exit(ENDING)
    accepted = []
    for position in range(len(content)):
        for flip in (0x01, 0x20, 0xFF):
            torn = bytearray(content)
            torn[position] ^= flip
            if files.decode_exit(bytes(torn)):
                accepted.append((position, flip))
    assert accepted == []


def test_preallocated_exit_record_reads_as_missing(directory: str) -> None:
    write_exit(directory, b" " * files.EXIT_SIZE)
    assert files.read_exit(directory) is None


def test_run_directory_has_four_states(directory: str) -> None:
    assert files.state(directory) == "unstarted"
    with open(os.path.join(directory, files.LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert files.state(directory) == "running"
    Path(directory, files.STARTED).touch()
    assert files.state(directory) == "lost"
    write_exit(directory, files.encode_exit(ENDING))
    assert files.state(directory) == "finished"


def test_exit_record_counts_while_lock_is_held(directory: str) -> None:
    write_exit(directory, files.encode_exit(ENDING))
    with open(os.path.join(directory, files.LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert files.is_locked(directory)
        assert files.state(directory) == "finished"


def test_input_with_the_same_id_is_added_once(directory: str) -> None:
    files.append_input(directory, "a", "one\n")
    files.append_input(directory, "ab", "two\n")
    files.append_input(directory, "a", "one\n")
    files.append_input(directory, "z", None, eof=True)
    files.append_input(directory, "z", None, eof=True)
    assert inputs(directory) == [
        {"id": "a", "data": "one\n"},
        {"id": "ab", "data": "two\n"},
        {"id": "z", "eof": True},
    ]


def test_id_inside_input_data_is_no_duplicate(directory: str) -> None:
    files.append_input(directory, "a", '{"id":"b","data":"x"}\n')
    files.append_input(directory, "b", "real\n")
    assert [record["id"] for record in inputs(directory)] == ["a", "b"]


def test_torn_input_record_is_replaced_by_its_retry(directory: str) -> None:
    files.append_input(directory, "a", "one\n")
    with open(os.path.join(directory, files.IN), "ab") as stream:
        stream.write(b'{"id":"b","data":"tw')
    files.append_input(directory, "b", "two\n")
    assert [record["data"] for record in inputs(directory)] == ["one\n", "two\n"]


def test_input_is_closed_after_data_with_eof(directory: str) -> None:
    files.append_input(directory, "a", 'x"eof":true}\n', note={"type": "input", "data": {"id": "a"}})
    assert files.append_input(directory, "b", "last\n", eof=True) == "added"
    assert files.append_input(directory, "b", "last\n", eof=True) == "present"
    assert files.append_input(directory, "c", "late\n") == "closed"
    assert inputs(directory)[1:] == [{"id": "b", "data": "last\n", "eof": True}]
    assert files.input_record("b", "last\n", eof=True) == Path(directory, files.IN).read_bytes().splitlines(True)[1]


def test_input_is_refused_without_data_and_eof(directory: str) -> None:
    with pytest.raises(ValueError, match="has data or eof"):
        files.append_input(directory, "a", None)


def test_only_directory_of_a_terminal_has_keys(directory: str, tmp_path: Path) -> None:
    terminal = str(tmp_path / "terminal")
    files.create(terminal, {**SPEC, "stdin": "terminal"})
    status = os.stat(os.path.join(terminal, files.KEYS))
    assert (stat.S_ISFIFO(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, 0o600)
    assert os.path.exists(os.path.join(terminal, files.IN))
    assert not os.path.exists(os.path.join(directory, files.KEYS))


def make_nothing(path: Path) -> None:
    assert not path.exists()


def new_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "make", [new_fifo, make_nothing, Path.touch, Path.mkdir, lambda path: path.symlink_to("other")]
)
def test_keys_are_not_taken_without_a_keeper(make: Callable[[Path], object], tmp_path: Path) -> None:
    other = os.open(new_fifo(tmp_path / "other"), os.O_RDWR)
    make(tmp_path / files.KEYS)
    assert files.type_keys(str(tmp_path), b"abc") == 0
    os.close(other)


def test_only_part_of_keys_is_taken_when_full(tmp_path: Path) -> None:
    reader = os.open(new_fifo(tmp_path / files.KEYS), os.O_RDWR | os.O_NONBLOCK)
    data = os.urandom(300_000)
    taken = files.type_keys(str(tmp_path), data)
    assert 0 < taken < len(data)
    assert files.type_keys(str(tmp_path), data[taken:]) == 0
    assert os.read(reader, len(data)) == data[:taken]
    os.close(reader)


def test_size_reads_as_it_was_set(directory: str) -> None:
    assert files.read_size(directory) is None
    files.set_size(directory, 132, 50)
    files.set_size(directory, 1000, 1)
    assert files.read_size(directory) == (1000, 1)
    assert Path(directory, files.SIZE).read_bytes() == b"1000 1\n"


@pytest.mark.parametrize("size", [(0, 40), (120, 1001), (-1, 1), (True, 40)])
def test_size_is_refused_when_out_of_range(size: tuple[int, int], directory: str) -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        files.set_size(directory, *size)
    assert files.read_size(directory) is None


@pytest.mark.parametrize(
    "written", [b"", b"80", b"80 24", b"0 24\n", b"80 1001\n", b"80 24\n\n", b"\xd9\xa1 2\n", b"-1 2\n"]
)
def test_size_reads_as_missing_when_malformed(written: bytes, directory: str) -> None:
    Path(directory, files.SIZE).write_bytes(written)
    assert files.read_size(directory) is None


def test_ring_returns_false_without_a_keeper(directory: str, tmp_path: Path) -> None:
    assert files.ring(directory, files.BELL_STOP) is False
    assert files.ring(str(tmp_path / "nowhere"), files.BELL_STOP) is False


def test_ring_reaches_the_reader_of_the_bell(directory: str) -> None:
    bell = os.open(os.path.join(directory, files.BELL), os.O_RDWR | os.O_NONBLOCK)
    try:
        assert files.ring(directory, files.BELL_STOP) is True
        assert os.read(bell, 10) == b"s"
    finally:
        os.close(bell)


def test_missing_pid_reads_as_none(directory: str) -> None:
    assert files.read_pid(directory) is None
    identity = files.AgentPid(pid=1, start_time=2, boot_id="b", keeper=3)
    files.replace(directory, files.PID, files.encode_pid(identity))
    assert files.read_pid(directory) == identity


def test_claim_start_raises_when_it_cannot_be_decided(tmp_path: Path) -> None:
    (tmp_path / "no-directory").touch()
    with pytest.raises(NotADirectoryError):
        files.claim_start(str(tmp_path / "no-directory"))


def make_fifo(path: str) -> None:
    os.mkfifo(path)


def make_directory(path: str) -> None:
    os.mkdir(path)


def make_link(path: str) -> None:
    os.symlink("/dev/zero", path)


def make_dangling_link(path: str) -> None:
    os.symlink("/nowhere/at/all", path)


def make_huge(path: str) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


REPLACEMENTS = (make_fifo, make_directory, make_link, make_dangling_link, make_huge)


@pytest.mark.parametrize("make", REPLACEMENTS)
def test_files_read_as_missing_when_replaced(make: Callable[[str], None], directory: str) -> None:
    """Torture row 47."""
    for name in (files.EXIT, files.PID, files.SPEC, files.IN, files.LOCK, files.STARTED, files.BELL):
        path = os.path.join(directory, name)
        if os.path.lexists(path):
            os.unlink(path)
        make(path)
    assert files.read_exit(directory) is None
    assert files.read_pid(directory) is None
    assert files.read_spec(directory) is None
    assert files.input_notes(directory) == []
    assert not files.has_input(directory, "x")
    assert not files.is_locked(directory)
    assert files.state(directory) == "lost", "an agent has run here"
    assert not files.ring(directory, files.BELL_STOP)
    with pytest.raises(files.NotRegularError):
        files.append_input(directory, "x", "y\n")


@pytest.mark.parametrize("make", REPLACEMENTS)
def test_file_is_written_when_name_is_taken(make: Callable[[str], None], directory: str) -> None:
    """Torture row 47."""
    path = Path(directory, files.PID)
    make(str(path))
    files.replace(directory, files.PID, b"new")
    assert path.read_bytes() == b"new"
    assert files.is_regular(path)


@pytest.mark.parametrize("make", [make_fifo, make_directory, make_link, make_dangling_link])
def test_write_is_refused_when_temporary_name_is_taken(make: Callable[[str], None], directory: str) -> None:
    """Torture row 47."""
    make(os.path.join(directory, f".{files.PID}.{os.getpid()}"))
    with pytest.raises(files.NotRegularError):
        files.replace(directory, files.PID, b"new")
    assert not os.path.lexists("/nowhere/at/all")


@pytest.mark.parametrize("field", [{"code": "x"}, {"out": None}, {"survivors": 1}, {"stopped": 0}, {"error": 5}])
def test_exit_reads_as_missing_when_type_is_wrong(field: dict[str, Any], directory: str) -> None:
    """Torture row 47. An agent can write one with a right checksum."""
    write_exit(directory, forged(field))
    assert files.read_exit(directory) is None


def forged(field: dict[str, Any]) -> bytes:
    body = json.dumps({"v": 1, **ENDING._asdict(), **field}).encode().ljust(files.EXIT_SIZE - 10)
    return body + b"\n%08x\n" % binascii.crc32(body)


@pytest.mark.parametrize(
    "written", [b"{}", b"[]", b'{"pid": "x", "start_time": 1, "boot_id": "", "keeper": 2}', b"[" * 9999]
)
def test_pid_reads_as_missing_when_malformed(written: bytes, directory: str) -> None:
    """Torture row 47."""
    Path(directory, files.PID).write_bytes(written)
    assert files.read_pid(directory) is None


def test_input_notes_are_skipped_when_malformed(directory: str) -> None:
    """Torture row 47."""
    files.append_input(directory, "a", "one\n", note={"type": "input", "data": {"id": "a"}})
    notes: list[Any] = ["x", [], {"type": "input"}, {"type": 1, "data": {"id": "b"}}, {"type": "input", "data": {}}]
    notes += [{"type": "run.ended", "data": {"id": "b"}}, {"type": "input", "data": {"id": "b", "kind": "stop"}}]
    for note in notes:
        with open(os.path.join(directory, files.IN), "ab") as file:
            file.write(json.dumps({"id": "b", "note": note, "data": "x"}).encode() + b"\n")
    assert files.input_notes(directory) == [{"type": "input", "data": {"id": "a"}}]


def test_deeply_nested_records_read_as_missing(directory: str) -> None:
    """Torture row 47. An agent can write them, and a checksum."""
    body = (b"[" * 2000 + b"]" * 2000).ljust(files.EXIT_SIZE - 10)
    write_exit(directory, body + b"\n%08x\n" % binascii.crc32(body))
    Path(directory, files.IN).write_bytes(b"[" * 100_000 + b"\n")
    assert files.read_exit(directory) is None
    assert files.input_notes(directory) == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: Path(path).touch()], ids=["fifo", "file"])
def test_replaced_run_directory_reads_as_missing(make: Callable[[str], None], tmp_path: Path) -> None:
    """Torture row 47."""
    directory = str(tmp_path / "run")
    make(directory)
    assert files.state(directory) == "unstarted"
    assert not files.ring(directory, files.BELL_STOP)
    assert files.call_off(directory)
    with pytest.raises(files.NotRegularError):
        files.append_input(directory, "a", "one\n")
