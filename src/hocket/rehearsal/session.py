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

    def __init__(self, state: str, flags: Flags) -> None:
        """Open the session that a command line asks for, with its history."""
        new, old = flags.values.get("--session-id"), flags.values.get("--resume")
        if new is not None and os.path.exists(_path(state, new)):
            raise Refusal(f"Error: Session ID {new} is already in use.")
        self.id = old if old is not None and "--fork-session" not in flags.switches else new or new_uuid()
        self.messages: list[dict[str, Any]] = []
        self.used: Usage = no_usage()
        self._path = _path(state, self.id)
        if old is not None:
            try:
                with open(_path(state, old), encoding="utf-8") as file:
                    stored = json.load(file)
            except OSError:
                raise UnknownSession(old) from None
            self.messages, self.used = stored["messages"], stored["used"]

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
