"""What ``agents --json`` said last time, for as long as nothing has changed that it depends on.

On the shortest way of the command line, so it needs nothing that an interpreter has not loaded before the first line
of ours. Making and writing what is kept here is the business of ``cache``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from hocket import __version__

TTL = 300.0
"""In seconds. Nothing that we know of goes unnoticed for so long, and what we do not know of goes no longer."""
VARIABLES = ("HOME", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_PLUGIN_CACHE_DIR", "XDG_CONFIG_HOME")
"""What of an environment decides where definitions and configuration lie."""
ABSENT = "-"
_MAGIC = [b"hocket-agents", b"1", __version__.encode()]
_MAX_FILE = 64 * 1024 * 1024
_PRIME = 2**64 - 59


def read(home: str, cwd: str, environ: Mapping[str, str], ttl: float = TTL) -> bytes | None:
    """The text to print for a directory; None when there is none, or it may no longer be right."""
    try:
        wanted = key(home, cwd, environ)
        return _fresh(_content(file_of(home, wanted)), wanted, ttl)
    except (OSError, ValueError):  # nothing there, or nothing of ours
        return None


def _fresh(content: bytes, wanted: Sequence[bytes], ttl: float) -> bytes | None:
    begin = content.index(b"\n") + 1
    *magic, written, head_size, text_size = content[:begin].split()
    if magic != _MAGIC or not 0 <= time.time() - int(written) <= ttl:
        return None
    text = begin + int(head_size)
    head = content[begin:text].split(b"\0")
    count = len(wanted)
    complete = len(content) == text + int(text_size) and head[:count] == wanted
    return content[text:] if complete and _hold(head[count::2], head[count + 1 :: 2]) else None


def pack(wanted: Sequence[bytes], seen: Mapping[str, str], text: bytes) -> bytes:
    """The content of a file that ``read`` understands."""
    # What no path can have in it cannot come to be there either, so it need not be looked for again.
    pairs = [part for path, known in seen.items() if "\0" not in path for part in (os.fsencode(path), known.encode())]
    head = b"\0".join([*wanted, *pairs])
    return b"%s %d %d %d\n" % (b" ".join(_MAGIC), time.time(), len(head), len(text)) + head + text


def key(home: str, cwd: str, environ: Mapping[str, str]) -> list[bytes]:
    """What tells one kept text from another."""
    return [os.fsencode(part) for part in (home, normal(cwd), *(environ.get(name, "") for name in VARIABLES))]


def normal(path: str) -> str:
    """The one spelling of a directory that has no links in it, as a program sees it that works there."""
    try:
        return os.path.realpath(path)
    except ValueError:  # what no file can be called
        return os.path.normpath(path)


def folder_of(home: str) -> str:
    return os.path.join(home, "cache", "agents")


def file_of(home: str, wanted: Sequence[bytes]) -> str:
    # Any short name would do: the file begins with the key itself, so two that share a name are not mistaken.
    return os.path.join(folder_of(home), f"{int.from_bytes(bytes(1).join(wanted), 'big') % _PRIME:016x}")


def signature(found: os.stat_result) -> str:
    """What changes whenever a file or the list of a folder does."""
    return f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_size} {found.st_ino} {found.st_mode}"


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(descriptor, min(os.fstat(descriptor).st_size, _MAX_FILE))
    finally:
        os.close(descriptor)


def _hold(paths: Sequence[bytes], known: Sequence[bytes]) -> bool:
    """Whether every path still is what it was."""
    return all(signature_at(path) == was.decode() for path, was in zip(paths, known, strict=True))


def signature_at(path: str | bytes) -> str:
    try:
        return signature(os.stat(path))
    except (OSError, ValueError):
        return ABSENT
