"""The versions of installed CLIs: a program is asked once, and again only after its file has changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from hocket.keeper import files
from hocket.keeper.programs import run_tool

FILE = "cli-versions.json"
SECONDS = 10.0
MOST = 50
"""Programs that are remembered, the ones that were asked last."""
_LONGEST_FILE, _LONGEST_TEXT = 64 * 1024, 200


class AskedProgram(NamedTuple):
    """What a program printed, and its file at that time."""

    size: int
    mtime_ns: int
    text: str


_decoder = msgspec.json.Decoder(dict[str, AskedProgram])


def version_text(program: str, env: Mapping[str, str], home: str | None) -> str | None:
    """What a program prints for ``--version``; None if it cannot be asked. Blocks: call it from a thread.

    The answer is kept in ``home`` if that exists.
    """
    try:
        status = os.stat(program)
    except OSError:
        return None
    known = _read(home)
    if (asked := known.get(program)) is not None and asked[:2] == (status.st_size, status.st_mtime_ns):
        return asked.text
    text = _ask(program, env)
    if text is not None and home is not None:
        known.pop(program, None)
        kept = [*known.items()][-(MOST - 1) :]
        _write(home, {**dict(kept), program: AskedProgram(status.st_size, status.st_mtime_ns, text)})
    return text


def version_numbers(text: str | None) -> tuple[int, ...]:
    """The leading numbers of a version, for comparing two of them; none if it has none."""
    numbers: list[int] = []
    for part in (text or "").split(".")[:4]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not (digits.isascii() and 0 < len(digits) < 10):
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _ask(program: str, env: Mapping[str, str]) -> str | None:
    try:
        done = run_tool([program, "--version"], "/", env, SECONDS, 4096)
    except OSError:
        return None
    if done.timed_out or done.code != 0:
        return None
    return done.output.decode(errors="replace").strip()[:_LONGEST_TEXT]


def _read(home: str | None) -> dict[str, AskedProgram]:
    with suppress(OSError, msgspec.DecodeError):
        content = files.read_regular(os.path.join(home, FILE), _LONGEST_FILE) if home is not None else None
        return _decoder.decode(content) if content else {}
    return {}


def _write(home: str, known: Mapping[str, AskedProgram]) -> None:
    with suppress(OSError, UnicodeEncodeError):  # without the file the program is asked again
        files.replace(home, FILE, msgspec.json.encode(known))
