"""Session markers: ``.session-markers/PID.json`` beside a registry file names the session of a process.

Hocket writes one for each live agent with a session, removes it at its end, and reads those of other programs to find
the session that a run was started from. A marker that is missing or malformed names none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from hocket.errors import RegistryUnusable
from hocket.registry.entries import Entry
from hocket.registry.project_folder import ProjectFolder

FOLDER = ".session-markers"
MAX_BYTES = 64 * 1024
MAX_SESSION = 256
"""Characters of a session's id."""


class SessionMarker(Struct, rename="camel"):
    """The content of a marker. Other programs write the session alone."""

    session_id: str
    agent_id: str | None = None
    home: str | None = None
    transcript_path: str | None = None


_marker = msgspec.json.Decoder(SessionMarker)


def session_of(folder: ProjectFolder, pid: int) -> str | None:
    """Return the session that the marker of a process names."""
    try:
        with folder.inner(FOLDER) as markers:
            found = _read(markers, pid)
    except (OSError, RegistryUnusable):
        return None
    return found.session_id if found is not None else None


def update(folder: ProjectFolder, entries: Mapping[str, Entry]) -> list[str]:
    """Write the markers of live agents and remove those of ended ones; return a notice if that is impossible."""
    known = {run: entry for run, entry in entries.items() if entry.pid is not None and entry.session_id is not None}
    if not known:
        return []
    try:
        with folder.inner(FOLDER, create=any(not entry.has_ended for entry in known.values())) as markers:
            for run, entry in known.items():
                _update(markers, run, entry)
    except FileNotFoundError:
        return []
    except (OSError, RegistryUnusable) as error:
        return [f"no session markers are written: {error}"]
    return []


def _update(markers: ProjectFolder, run: str, entry: Entry) -> None:
    name, before = f"{entry.pid}.json", _read(markers, entry.pid or 0)
    is_ours = before is not None and before.home == entry.home
    if entry.has_ended:
        if before is not None and is_ours and before.agent_id == run:
            markers.remove(name)
        return
    if not markers.has(".gitignore"):
        markers.replace(".gitignore", b"*\n")
    now = SessionMarker(entry.session_id or "", run, entry.home, entry.transcript_path)
    if before != now and (is_ours or not markers.has(name)):
        markers.replace(name, msgspec.json.encode(now) + b"\n")


def _read(markers: ProjectFolder, pid: int) -> SessionMarker | None:
    try:
        content = markers.read(f"{pid}.json", MAX_BYTES)
        found = None if content is None else _marker.decode(content)
    except (RegistryUnusable, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_named = found is not None and 0 < len(found.session_id) <= MAX_SESSION and found.session_id.isprintable()
    return found if is_named else None
