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
import re
import stat
import threading
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

VERSION = 1

SPEC = "spec.json"
STARTED = "started"
REFUSED = "refused"
LOCK = "lock"
PID = "pid"
OUT = "out"
ERR = "err"
IN = "in"
IN_POS = "in.pos"
BELL = "bell"
KEYS = "keys"
SIZE = "size"
PROMPT = "prompt"
EXIT_PRE = "exit.pre"
EXIT = "exit"

BELL_INPUT = b"i"
BELL_STOP = b"s"
BELL_KILL = b"k"
BELL_RESIZE = b"r"

MOST_CELLS = 1000
"""The most columns, and the most rows, that a terminal can have."""

EXIT_SIZE = 4096
# The trailer is a newline, eight hexadecimal digits of CRC-32 and a final newline.
_EXIT_BODY = EXIT_SIZE - 10
# Bounds that keep the record within its block even when every character needs twelve bytes of JSON.
_MAX_ERROR_TEXT = 256
_MAX_SURVIVORS = 40

_CHUNK = 1 << 16
_MAX_SMALL = 1 << 16
_MAX_SPEC = 1 << 24
_MAX_INPUT = 1 << 28

# An agent owns the files of its run and may put anything in their place. Opening it must not wait for the other end of
# a FIFO, follow a link or acquire a terminal.
_GUARDED = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_NOT_REGULAR = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EACCES, errno.EPERM}
)

_changing = threading.Lock()

_EOF = b'"eof":true}\n'
_SIZE = re.compile(rb"([0-9]{1,4}) ([0-9]{1,4})\n")

State = Literal["finished", "running", "lost", "unstarted"]
Appended = Literal["added", "present", "closed"]


class NotRegularError(OSError):
    """Something other than a readable regular file stands under the name of a run's file."""


CODE_NOT_FOUND = 127
"""The exit code of an agent whose program does not exist."""


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
    """Of the agent, which may be gone before its `pid` file was read."""
    lost_bytes: int = 0
    """Output of the agent that could not be written to `out` or `err`."""


class AgentPid(NamedTuple):
    """Who runs, for display and for pidfd. Never a liveness test: that is the lock."""

    pid: int
    start_time: int
    boot_id: str
    keeper: int


_NUMBER: tuple[type, ...] = (int, float)
_OPTIONAL_INT: tuple[type, ...] = (int, type(None))
_PID_TYPES: Mapping[str, tuple[type, ...]] = {"pid": (int,), "start_time": (int,), "boot_id": (str,), "keeper": (int,)}
_EXIT_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("code", "signal", "pid"), _OPTIONAL_INT),
    **dict.fromkeys(("out", "err", "swept"), (int,)),
    **dict.fromkeys(("ended_at", "duration"), _NUMBER),
    "error": (str, type(None)),
    "stopped": (bool,),
    "survivors": (list,),
}


def create(directory: str, spec: Mapping[str, Any], contents: Mapping[str, bytes] | None = None) -> None:
    """Make a run directory that a keeper can start from; calling it again completes what a crash left.

    ``contents`` are files that the agent needs from its first moment: its input, what its arguments name.
    """
    _make_private(directory)
    is_terminal = spec.get("stdin") == "terminal"
    for name in (BELL, KEYS) if is_terminal else (BELL,):
        with contextlib.suppress(FileExistsError):
            os.mkfifo(_in(directory, name), 0o600)
    for name in (LOCK, OUT, ERR):
        _touch(_in(directory, name))
    os.close(preallocate_exit(directory))
    for name, content in (contents or {}).items():
        # A file of a first attempt may have been added to since; one that a power cut emptied is written again.
        if not size(_in(directory, name)):
            replace(directory, name, content)
    if is_terminal or spec.get("stdin") == "lines":
        _touch(_in(directory, IN))
    # Last, because its presence says that the directory is complete. A file torn by a power cut is no spec.
    if read_spec(directory) is None:
        replace(directory, SPEC, _json_line({"v": VERSION, **spec}))


def preallocate_exit(directory: str) -> int:
    """Room for the exit record, so that a disk that fills up later cannot cost us the exit status."""
    descriptor = open_regular(_in(directory, EXIT_PRE), os.O_WRONLY | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_size != EXIT_SIZE:
            write_all(descriptor, b" " * EXIT_SIZE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_spec(directory: str) -> dict[str, Any] | None:
    """The run's specification, or None if there is no readable one."""
    return _read_object(_in(directory, SPEC), _MAX_SPEC)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """Open a file of a run without ever blocking. NotRegularError unless it is a regular file that we may use.

    With ``folder``, the descriptor of a directory, the path is relative to that.
    """
    try:
        descriptor = os.open(path, flags | _GUARDED, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise NotRegularError(error.errno, f"not a usable regular file ({error.strerror})", path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotRegularError(errno.EINVAL, "not a regular file", path)


def read_regular(path: str | os.PathLike[str], limit: int, *, folder: int | None = None) -> bytes | None:
    """The content of a file of a run; None where there is no regular file, or one that is larger than ``limit``."""
    try:
        descriptor = open_regular(path, folder=folder)
    except (FileNotFoundError, NotRegularError):
        return None
    try:
        if os.fstat(descriptor).st_size > limit:
            return None
        content = bytearray()
        while chunk := os.read(descriptor, min(_CHUNK, limit + 1 - len(content))):
            content += chunk
        return bytes(content) if len(content) <= limit else None
    finally:
        os.close(descriptor)


def is_regular(path: str | os.PathLike[str]) -> bool:
    return _mode(path) == stat.S_IFREG


def is_same(path: str | os.PathLike[str], status: os.stat_result) -> bool:
    """Whether this name, if it is no link, stands for the file of this status."""
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        return False


def size(path: str | os.PathLike[str]) -> int:
    """How many bytes a file of a run has; 0 where there is no regular file."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def put_in_place(temporary: str, path: str) -> None:
    """Rename a file to its final name. A directory that an agent put there is moved aside, anything else replaced."""
    try:
        os.rename(temporary, path)
    except IsADirectoryError:
        os.rename(path, f"{path}.replaced-{os.urandom(4).hex()}")
        os.rename(temporary, path)


def replace(directory: str, name: str, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    temporary = _in(directory, f".{name}.{os.getpid()}")
    descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)
    put_in_place(temporary, _in(directory, name))


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
    try:
        fields = json.loads(body)
        known = {name: fields[name] for name in Exit._fields if name in fields}
        return Exit(**known) if _has_types(known, _EXIT_TYPES) else None
    except (ValueError, TypeError, RecursionError):
        return None


def read_exit(directory: str) -> Exit | None:
    """The run's exit record; None if missing or incomplete."""
    content = read_regular(_in(directory, EXIT), EXIT_SIZE)
    return None if content is None else decode_exit(content)


def is_locked(directory: str) -> bool:
    """Whether a keeper lives: the only liveness test there is."""
    return is_held(_in(directory, LOCK))


def may_be_locked(directory: str) -> bool:
    """The same, but also true where the lock was removed or replaced, so that nothing is known."""
    return not is_regular(_in(directory, LOCK)) or is_locked(directory)


def is_held(path: str) -> bool:
    """Whether some process holds the exclusive flock on this file. False where there is no regular file."""
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotRegularError):
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
    started = was_started(directory)
    if read_exit(directory) is not None:
        return "finished"
    if is_locked(directory):
        return "running"
    # The keeper may have written its record and left since the first look; it never leaves before it wrote.
    if read_exit(directory) is not None:
        return "finished"
    # Looked at again: a keeper that could not fork its agent gives the start back before it leaves.
    return "lost" if started and was_started(directory) else "unstarted"


def was_started(directory: str) -> bool:
    """Whether a keeper has claimed the start, or an agent has run that put something else in the lock's place."""
    return _mode(_in(directory, STARTED)) is not None or _mode(_in(directory, LOCK)) not in (None, stat.S_IFREG)


def claim_start(directory: str) -> bool:
    """Claim the start of this run; True for exactly one caller. OSError when it can be neither claimed nor checked."""
    started = _in(directory, STARTED)
    try:
        # A second name for a file that is there: as exclusive as making one, and many times faster.
        os.link(_in(directory, LOCK), started)
        return True
    except FileExistsError:
        return False
    except OSError:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(started, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return True
        return False


def give_start_back(directory: str, fork_refused: bool = False) -> None:
    """Undo `claim_start`. Only for the keeper that claimed it, under its lock, and only if no agent has come of it.

    A refused fork is noted, because it says nothing about the run: it is tried again for as long as it takes.
    """
    if fork_refused:
        with contextlib.suppress(OSError):
            _touch(_in(directory, REFUSED))
    os.unlink(_in(directory, STARTED))


def was_refused(directory: str) -> bool:
    """Whether the system refused to fork the agent at the last attempt, or at an earlier one."""
    return _mode(_in(directory, REFUSED)) is not None


def call_off(directory: str) -> bool:
    """Make sure that no keeper starts this run any more, not even one on its way; false when one has started it."""
    try:
        return claim_start(directory)
    except (FileNotFoundError, NotADirectoryError):
        return True


def read_pid(directory: str) -> AgentPid | None:
    """The agent's identity, or None before it started (or if it never did)."""
    fields = _read_object(_in(directory, PID), _MAX_SMALL) or {}
    known: dict[str, Any] = {name: fields.get(name) for name in AgentPid._fields}
    return AgentPid(**known) if _has_types(known, _PID_TYPES) else None


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

    With both ``data`` and ``eof`` the input ends after this data.
    The ``note`` is for later readers of the file; the agent does not get it. What is not ``durable`` is lost when
    the machine goes down, which no agent outlives. Only one process may append, in any of its threads: a lock in the
    file system could be held by the agent for ever.
    """
    if data is None and not eof:
        raise ValueError("an input record has data or eof")
    head = _input_head(id)
    descriptor = open_regular(_in(directory, IN), os.O_RDWR | os.O_APPEND)
    try:
        if os.fstat(descriptor).st_size > _MAX_INPUT:
            raise NotRegularError(errno.EFBIG, "larger than any input", _in(directory, IN))
        with _changing:
            present, closed, end = _scan_input(descriptor, head)
            if not present and not closed:
                _append(descriptor, end, input_record(id, data, note, eof))
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return "present" if present else "closed" if closed else "added"


def has_input(directory: str, id: str) -> bool:
    """Whether a record with this id is there."""
    head = _input_head(id)
    return any(line.startswith(head) for line in _input_lines(directory))


def input_record(id: str, data: str | None, note: Mapping[str, Any] | None = None, eof: bool = False) -> bytes:
    """One line of `in`; without data it is the end of the input, with ``eof`` the input ends after its data."""
    noted = b'"note":' + json.dumps(note).encode() + b"," if note is not None else b""
    given = b'"data":' + json.dumps(data).encode() if data is not None else b""
    end = _EOF if data is None else b"," + _EOF if eof else b"}\n"
    return _input_head(id) + noted + given + end


def input_notes(directory: str) -> list[dict[str, Any]]:
    """The notes beside a run's input, in order."""
    found = []
    for line in _input_lines(directory):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and _is_note(record.get("note")):
            found.append(record["note"])
    return found


def _has_types(fields: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]) -> bool:
    return all(type(value) in types.get(name, (type(value),)) for name, value in fields.items())


def _is_note(value: object) -> bool:
    """Whether this has the shape of what the engine writes: agents can write into the file, too."""
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        return False
    # A stop is recorded without any input.
    is_said = value.get("type") in ("input", "answer") and value["data"].get("kind") != "stop"
    return is_said and isinstance(value["data"].get("id"), str)


def ring(directory: str, byte: bytes) -> bool:
    """Wake the keeper with one byte; False when none is listening (not yet there, or gone, or its bell is)."""
    return _write_to_fifo(_in(directory, BELL), byte, _GUARDED) == len(byte)


def ring_descriptor(path: str, byte: bytes) -> bool:
    """The same by the bell that a keeper has open, named by its descriptor below /proc: that name is a link."""
    return _write_to_fifo(path, byte, _GUARDED & ~os.O_NOFOLLOW) == len(byte)


def type_keys(directory: str, data: bytes) -> int:
    """Type these bytes into a run's terminal, unrecorded; how many were taken, the rest is to be tried again.

    0 also when no keeper listens (not yet there, or gone, or its FIFO is). Up to PIPE_BUF bytes are taken together or
    not at all, and are not mixed with those of another caller.
    """
    return _write_to_fifo(_in(directory, KEYS), data, _GUARDED)


def _write_to_fifo(path: str, data: bytes, flags: int) -> int:
    """Write without waiting; how many bytes were taken."""
    descriptor = open_fifo(path, os.O_WRONLY, flags)
    if descriptor is None:
        return 0
    try:
        return os.write(descriptor, data)
    except (BlockingIOError, BrokenPipeError):
        return 0
    finally:
        os.close(descriptor)


def open_fifo(path: str, access: int, flags: int = _GUARDED) -> int | None:
    """Open a FIFO of a run without ever blocking; None where there is none, or for a writer no reader."""
    try:
        descriptor = os.open(path, access | flags)
    except OSError as error:
        if error.errno in _NOT_REGULAR or error.errno == errno.ENOENT:
            return None
        raise
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def set_size(directory: str, columns: int, rows: int) -> None:
    """Say which size a run's terminal is to have. Its keeper looks when it starts, and when `BELL_RESIZE` rings."""
    if not (_is_cells(columns) and _is_cells(rows)):
        raise ValueError(f"a terminal has 1 to {MOST_CELLS} columns and rows, not {columns} x {rows}")
    with _changing:
        replace(directory, SIZE, b"%d %d\n" % (columns, rows))


def read_size(directory: str) -> tuple[int, int] | None:
    """The columns and rows last set; None when there are none that can be used."""
    try:
        content = read_regular(_in(directory, SIZE), _MAX_SMALL) or b""
    except OSError:
        return None
    found = _SIZE.fullmatch(content)
    return None if found is None else usable_size([int(found[1]), int(found[2])])


def usable_size(value: object) -> tuple[int, int] | None:
    """These columns and rows, if a terminal can have them."""
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(map(_is_cells, value)):
        return None
    return value[0], value[1]


def _is_cells(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_CELLS


def _input_lines(directory: str) -> list[bytes]:
    return (read_regular(_in(directory, IN), _MAX_INPUT) or b"").splitlines()


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


def _mode(path: str | os.PathLike[str]) -> int | None:
    """What kind of file has this name, itself and not what it may point to; None when there is none."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return None


def _touch(path: str) -> None:
    os.close(open_regular(path, os.O_WRONLY | os.O_CREAT))


def _in(directory: str, name: str) -> str:
    return os.path.join(directory, name)


def _json_line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _read_object(path: str, limit: int) -> dict[str, Any] | None:
    content = read_regular(path, limit)
    try:
        value = json.loads(content or b"null")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
