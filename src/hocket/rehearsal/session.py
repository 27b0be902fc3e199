"""The session of a scripted agent: its messages and its usage, in one JSON file of the state directory."""

from __future__ import annotations

import json
import os
from typing import Any

from hocket.rehearsal.flags import Flags, Refusal
from hocket.rehearsal.stream_events import Usage, new_uuid, no_usage

FOLDER = "sessions"


class UnknownSession(Refusal):
    """There is nothing to resume."""

    def __init__(self, session: str) -> None:
        super().__init__(f"No conversation found with session ID: {session}")
        self.session = session


class Session:
    """The conversation of one session id."""

    def __init__(self, state: str, id: str) -> None:
        self.id = id
        self.messages: list[dict[str, Any]] = []
        self.used: Usage = no_usage()
        self._path = _path(state, id)

    def save(self) -> None:
        """Replace the file atomically."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        fresh = f"{self._path}.{os.getpid()}"
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump({"messages": self.messages, "used": self.used}, file)
        os.replace(fresh, self._path)


def _path(state: str, id: str) -> str:
    """The file of a session. An id from outside may look like a path, so only its base name counts."""
    return os.path.join(state, FOLDER, f"{os.path.basename(id)}.json")


def open_session(state: str, flags: Flags) -> Session:
    """Open the session that a command line asks for, with its history."""
    wanted, old = flags.values.get("--session-id"), flags.values.get("--resume")
    if wanted is not None and os.path.exists(_path(state, wanted)):
        raise Refusal(f"Error: Session ID {wanted} is already in use.")
    if old is None:
        return Session(state, wanted or new_uuid())
    session = Session(state, (wanted or new_uuid()) if "--fork-session" in flags.switches else old)
    kept = _kept(state, old)
    session.messages, session.used = kept["messages"], kept["used"]
    return session


def _kept(state: str, id: str) -> dict[str, Any]:
    try:
        with open(_path(state, id), encoding="utf-8") as file:
            kept: dict[str, Any] = json.load(file)
    except OSError:
        raise UnknownSession(id) from None
    return kept
