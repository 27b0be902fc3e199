"""A registry file: read, merged and replaced under a lock, because servers of several homes may share it.

The store is the truth; a file is a view of it. Entries of others, and what others add to ours, are kept.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Raw, Struct

from hocket.errors import RegistryUnusable
from hocket.registry import session_markers
from hocket.registry.entries import IN_PROGRESS, INTERRUPTED, Entry
from hocket.registry.project_folder import ProjectFolder, open_folder

MAX_BYTES = 16 * 1024**2
KEPT = 200
"""Entries of ended runs that a home keeps in a file: the newest ones."""
LOCK_PATIENCE = 2.0
"""Seconds. A writer holds the lock for milliseconds, unless it is suspended."""

_Entries = dict[str, Raw]


class _Owner(Struct, rename="camel"):
    """What is needed of an entry before it is written again: whose it is, and whether it may go."""

    home: str | None = None
    status: str | None = None
    ended_at: int | None = None
    parent_session_id: str | None = None


_entries = msgspec.json.Decoder(_Entries)
_fields = msgspec.json.Decoder(dict[str, Raw])
_owner = msgspec.json.Decoder(_Owner)


def update(path: str, entries: Mapping[str, Entry]) -> list[str]:
    """Write these entries and their session markers; return what the user should know. Blocks."""
    with open_folder(os.path.dirname(path)) as folder:
        name = os.path.basename(path)
        with _locked(folder, name):
            known, notices = _read(folder, name)
            for run, entry in entries.items():
                known[run] = _merged(folder, known.get(run), entry)
            for home in {entry.home for entry in entries.values()}:
                _drop_old(known, home)
            folder.replace(name, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")
            return notices + session_markers.update(folder, entries)


def unfinished(path: str, home: str) -> dict[str, Entry]:
    """Return the entries of a home that are in progress, as interrupted ones. Blocks."""
    with open_folder(os.path.dirname(path)) as folder:
        known, _notices = _decoded(folder.read(os.path.basename(path), MAX_BYTES))
    found = {}
    for run, raw in known.items():
        if _owner_of(raw).home == home and _owner_of(raw).status == IN_PROGRESS:
            try:
                entry = msgspec.json.decode(raw, type=Entry)
            except msgspec.DecodeError:
                continue
            found[run] = msgspec.structs.replace(entry, status=INTERRUPTED)
    return found


@contextmanager
def _locked(folder: ProjectFolder, name: str) -> Iterator[None]:
    """Hold the lock beside the file. It is never removed: a lock on a removed file excludes no other writer."""
    descriptor = folder.open_regular(f"{name}.lock", os.O_RDWR | os.O_CREAT)
    try:
        deadline, pause = time.monotonic() + LOCK_PATIENCE, 0.001
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Not a blocking call: a suspended holder would keep this thread, and with it the server, for ever.
                if time.monotonic() > deadline:
                    text = f"{folder.path}/{name} is locked by another process"
                    raise RegistryUnusable(text, f"`fuser {folder.path}/{name}.lock` names it") from None
                time.sleep(pause)
                pause = min(pause * 2, 0.05)
        yield
    finally:
        os.close(descriptor)


def _read(folder: ProjectFolder, name: str) -> tuple[_Entries, list[str]]:
    """Return the entries of a file, and a notice if it had to be set aside because it is damaged."""
    content = folder.read(name, MAX_BYTES)
    known, damage = _decoded(content)
    if damage is None:
        return known, []
    aside = _unused_name(folder, f"{name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
    folder.rename(name, aside)
    return {}, [f"{folder.path}/{name} was damaged ({damage}); it is kept as {aside}, and a new one was begun"]


def _decoded(content: bytes | None) -> tuple[_Entries, str | None]:
    """Return the entries in a file, or why there are none."""
    if content is None:
        return {}, None
    try:
        return _entries.decode(content), None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, str(error)


def _unused_name(folder: ProjectFolder, name: str) -> str:
    candidate, count = name, 1
    while folder.has(candidate):
        count += 1
        candidate = f"{name}-{count}"
    return candidate


def _merged(folder: ProjectFolder, before: Raw | None, entry: Entry) -> Raw:
    """Return an entry with the fields that others added to it, and with a parent session that was known before."""
    fields: dict[str, Any] = {}
    if entry.parent_session_id is None and entry.parent_pid is not None:
        known = None if before is None else _owner_of(before).parent_session_id
        session = known or session_markers.session_of(folder, entry.parent_pid)
        entry = msgspec.structs.replace(entry, parent_session_id=session)
    if before is not None and _owner_of(before).home == entry.home:
        fields = _fields.decode(before)
    own: dict[str, Any] = msgspec.to_builtins(entry)
    return Raw(msgspec.json.encode(fields | own))


def _drop_old(known: _Entries, home: str) -> None:
    """Remove the oldest entries of ended runs of a home beyond those that are kept."""
    ended = [
        (owner.ended_at or 0, run)
        for run, raw in known.items()
        if (owner := _owner_of(raw)).home == home and owner.status != IN_PROGRESS
    ]
    for _ended_at, run in sorted(ended)[:-KEPT]:
        del known[run]


def _owner_of(raw: Raw) -> _Owner:
    """Return whose an entry is; one that cannot be read is another program's."""
    try:
        return _owner.decode(raw)
    except msgspec.DecodeError:
        return _Owner()
