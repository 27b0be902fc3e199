"""The files of a run directory: their names, their formats, and how to read them.

Keeper, engine and tests share these functions, and a directory written by one version must be readable by
every later one, so each format carries its version. What belongs here: pure functions over a directory path.
What does not: processes, signals, and anything that decides what a run means.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

VERSION = 1

SPEC = "spec.json"
SPEC_NEW = ".spec.json"
STARTED = "started"
LOCK = "lock"
PID = "pid"
OUT = "out"
ERR = "err"
IN = "in"
IN_POS = "in.pos"
BELL = "bell"
PROMPT = "prompt"
EXIT_PRE = "exit.pre"
EXIT = "exit"

BELL_INPUT = b"i"
BELL_STOP = b"s"
BELL_KILL = b"k"

EXIT_SIZE = 4096
# The trailer is a newline, eight hexadecimal digits of CRC-32 and a final newline.
_EXIT_BODY = EXIT_SIZE - 10
# Bounds that keep the record within its block even when every character needs twelve bytes of JSON.
_MAX_ERROR_TEXT = 256
_MAX_SURVIVORS = 40

_CHUNK = 1 << 16

_EOF = b'"eof":true}\n'

State = Literal["finished", "running", "lost", "unstarted"]
Appended = Literal["added", "present", "closed"]


class Exit(NamedTuple):
    """How an agent ended. Exactly one of `code` and `signal` is set, unless it could not be ended at all."""

    code: int | None
    signal: int | None
    error: str | None
    stopped: bool
    out: int
    err: int
    survivors: list[int]
    swept: int
    ended_at: float
    duration: float
    pid: int | None = None
    """Of the agent, which may be gone before anybody could read its `pid` file."""
    lost_bytes: int = 0
    """Output of the agent that could not be written to `out` or `err`."""


class AgentPid(NamedTuple):
    """Who runs, for display and for pidfd. Never a liveness test: that is the lock."""

    pid: int
    start_time: int
    boot_id: str
    keeper: int


def create(
    directory: str, spec: Mapping[str, Any], contents: Mapping[str, bytes] | None = None, spare: str | None = None
) -> None:
    """Make a run directory that a keeper can start from; calling it again completes what a crash left.

    ``contents`` are files that the agent needs from its first moment: its input, what its arguments name. A ``spare``
    is a skeleton made before: it becomes the directory, which costs next to nothing.
    """
    if spare is None or not _move(spare, directory):
        make_skeleton(directory)
    for name, content in (contents or {}).items():
        # Somebody may have added to a file that a first attempt left; one that a power cut emptied is written again.
        if not _size(_in(directory, name)):
            replace(directory, name, content)
    if spec.get("stdin") == "lines":
        _touch(_in(directory, IN))
    # Last, because its presence says that the directory is complete. A file torn by a power cut is no spec.
    if read_spec(directory) is None:
        replace(directory, SPEC, _json_line({"v": VERSION, **spec}), SPEC_NEW)


def make_skeleton(directory: str) -> None:
    """What every run directory has before its run is known. Names are what costs time, and room what may be short."""
    _make_private(directory)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(_in(directory, BELL), 0o600)
    for name in (LOCK, OUT, ERR, SPEC_NEW):
        _touch(_in(directory, name))
    os.close(preallocate_exit(directory))


def preallocate_exit(directory: str) -> int:
    """Room for the exit record, so that a disk that fills up later cannot cost us the exit status."""
    descriptor = os.open(_in(directory, EXIT_PRE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size != EXIT_SIZE:
            write_all(descriptor, b" " * EXIT_SIZE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_spec(directory: str) -> dict[str, Any] | None:
    """The run's specification, or None if there is no readable one."""
    return _read_object(_in(directory, SPEC))


def replace(directory: str, name: str, content: bytes, by: str | None = None) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part; ``by`` way of this name."""
    temporary = _in(directory, by or f".{name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)
    os.rename(temporary, _in(directory, name))


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, over as many calls as the kernel asks for."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def encode_exit(ending: Exit) -> bytes:
    """The exit record: JSON padded with blanks, then a checksum over all of it, EXIT_SIZE bytes in total."""
    bounded = ending._replace(
        error=ending.error and ending.error[:_MAX_ERROR_TEXT], survivors=ending.survivors[:_MAX_SURVIVORS]
    )
    body = json.dumps({"v": VERSION, **bounded._asdict()}, separators=(",", ":")).encode().ljust(_EXIT_BODY)
    return body + _exit_trailer(body)


def decode_exit(content: bytes) -> Exit | None:
    """The exit record in these bytes, or None when they are not exactly what `encode_exit` wrote."""
    body, trailer = content[:_EXIT_BODY], content[_EXIT_BODY:]
    if len(content) != EXIT_SIZE or trailer != _exit_trailer(body):
        return None
    fields = json.loads(body)
    return Exit(**{name: fields[name] for name in Exit._fields if name in fields})


def read_exit(directory: str) -> Exit | None:
    """The run's exit record; a torn one is as good as none."""
    content = _read(_in(directory, EXIT))
    return None if content is None else decode_exit(content)


def is_locked(directory: str) -> bool:
    """Whether a keeper lives: the only liveness test there is."""
    return is_held(_in(directory, LOCK))


def is_held(path: str) -> bool:
    """Whether some process holds the exclusive flock on this file; a missing file is held by nobody."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def state(directory: str) -> State:
    """Which of the four cases of reconciliation this directory is."""
    # `started` is looked at before the lock: a keeper that begins between the two looks must not seem lost.
    started = os.path.exists(_in(directory, STARTED))
    if read_exit(directory) is not None:
        return "finished"
    if is_locked(directory):
        return "running"
    # The keeper may have written its record and left since the first look; it never leaves before it wrote.
    if read_exit(directory) is not None:
        return "finished"
    # Looked at again: a keeper that could not fork its agent gives the start back before it leaves.
    return "lost" if started and os.path.exists(_in(directory, STARTED)) else "unstarted"


def claim_start(directory: str) -> bool:
    """Take the one start that a directory has: true once in its life. OSError when it can be neither taken nor seen."""
    started = _in(directory, STARTED)
    try:
        # A second name for a file that is there: as exclusive as making one, and many times faster.
        os.link(_in(directory, LOCK), started)
        return True
    except FileExistsError:
        return False
    except OSError:
        return _make_exclusively(started)


def _make_exclusively(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def give_start_back(directory: str) -> None:
    """Undo `claim_start`. Only for the keeper that claimed it, under its lock, and only if no agent has come of it."""
    os.unlink(_in(directory, STARTED))


def call_off(directory: str) -> bool:
    """Make sure that no keeper starts this run any more, not even one on its way; false when one has started it."""
    try:
        return claim_start(directory)
    except FileNotFoundError:
        return True


def read_pid(directory: str) -> AgentPid | None:
    """The agent's identity, or None before it started (or if it never did)."""
    fields = _read_object(_in(directory, PID))
    return None if fields is None else AgentPid(*(fields[name] for name in AgentPid._fields))


def encode_pid(identity: AgentPid) -> bytes:
    return _json_line({"v": VERSION, **identity._asdict()})


def append_input(
    directory: str,
    id: str,
    data: str | None,
    eof: bool = False,
    note: Mapping[str, Any] | None = None,
    durable: bool = True,
) -> Appended:
    """Add one input record, unless its id is there or the end of the input is: so a retry is harmless.

    The ``note`` is for whoever reads the file later; the agent does not get it. What is not ``durable`` is lost when
    the machine goes down, which no agent outlives.
    """
    if (data is None) != eof:
        raise ValueError("an input record has either data or eof")
    head = _input_head(id)
    descriptor = os.open(_in(directory, IN), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        present, closed, end = _scan_input(descriptor, head)
        if not present and not closed:
            _append(descriptor, end, input_record(id, data, note))
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return "present" if present else "closed" if closed else "added"


def has_input(directory: str, id: str) -> bool:
    """Whether a record with this id is there."""
    head = _input_head(id)
    return any(line.startswith(head) for line in (_read(_in(directory, IN)) or b"").splitlines())


def input_record(id: str, data: str | None, note: Mapping[str, Any] | None = None) -> bytes:
    """One line of `in`; without data it is the end of the input."""
    noted = b'"note":' + json.dumps(note).encode() + b"," if note is not None else b""
    return _input_head(id) + noted + (_EOF if data is None else b'"data":' + json.dumps(data).encode() + b"}\n")


def input_notes(directory: str) -> list[dict[str, Any]]:
    """The notes beside a run's input, in order."""
    found = []
    for line in (_read(_in(directory, IN)) or b"").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("note"), dict):
            found.append(record["note"])
    return found


def read_position(directory: str) -> int:
    """How many bytes of `in` have gone to the agent: always the end of a record."""
    return int(_read(_in(directory, IN_POS)) or 0)


def ring(directory: str, byte: bytes) -> bool:
    """Wake the keeper with one byte; False when none is listening (not yet there, or gone)."""
    try:
        descriptor = os.open(_in(directory, BELL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return False
        raise
    try:
        return os.write(descriptor, byte) == len(byte)
    except (BlockingIOError, BrokenPipeError):
        return False
    finally:
        os.close(descriptor)


def _input_head(id: str) -> bytes:
    return b'{"id":' + json.dumps(id).encode() + b","


def _scan_input(descriptor: int, head: bytes) -> tuple[bool, bool, int]:
    """Whether a record begins with `head`, whether the input has ended, and where the last whole record does."""
    present, closed, end = False, False, 0
    with open(descriptor, "rb", closefd=False) as stream:
        for line in stream:
            if line.endswith(b"\n"):
                end += len(line)
                present = present or line.startswith(head)
                # Any other record ends with the quote of a JSON text.
                closed = closed or line.endswith(_EOF)
    return present, closed, end


def _append(descriptor: int, end: int, record: bytes) -> None:
    if os.fstat(descriptor).st_size != end:
        # A torn tail was never acknowledged, and no keeper has read it, for it has no newline.
        os.ftruncate(descriptor, end)
    try:
        write_all(descriptor, record)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def _exit_trailer(body: bytes) -> bytes:
    return b"\n%08x\n" % binascii.crc32(body)


def _make_private(directory: str) -> None:
    parent = os.path.dirname(directory)
    if parent and not os.path.isdir(parent):
        _make_private(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)


def _move(spare: str, directory: str) -> bool:
    """Whether the spare became the directory; not if there was one already, or the spare is gone."""
    _make_private(os.path.dirname(directory))
    try:
        os.rename(spare, directory)
    except OSError:
        return False
    return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _in(directory: str, name: str) -> str:
    return os.path.join(directory, name)


def _json_line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        content = b""
        while chunk := os.read(descriptor, _CHUNK):
            content += chunk
        return content
    finally:
        os.close(descriptor)


def _read_object(path: str) -> dict[str, Any] | None:
    content = _read(path)
    try:
        value = json.loads(content or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
