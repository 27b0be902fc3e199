"""What a scripted agent's session remembers from one process to the next: its messages, and what it has cost.

One JSON file a session in the state directory, replaced as a whole. The real program has transcripts in the user's
home; a rehearsal never goes there.
"""

from __future__ import annotations

import json
import os
from typing import Any

from hocket.rehearsal.flags import Flags, Refusal
from hocket.rehearsal.stream import Usage, new_uuid, no_usage

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
        """Replaced as a whole: a process that dies now leaves the session as it was."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        fresh = f"{self._path}.{os.getpid()}"
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump({"messages": self.messages, "used": self.used}, file)
        os.replace(fresh, self._path)


def _path(state: str, id: str) -> str:
    """Ids that are resumed come from outside: what looks like a path is no more than a name."""
    return os.path.join(state, FOLDER, f"{os.path.basename(id)}.json")


def open_session(state: str, flags: Flags) -> Session:
    """The session that a command line asks for, with its history."""
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
