"""How many conversations each agent has had, for the ``pass`` condition of scripts.

A small locked file, because the agents of a chain are separate processes. Requests that no rule covers are recorded
beside it. Paths are plain strings, because the scripted agent starts for every run and does not need ``pathlib``.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading

from hocket.rehearsal.matching import Uncovered

PASSES = "passes.json"
UNCOVERED = "uncovered.jsonl"


class ConversationCounts:
    """Numbers the conversations of each agent, from 1."""

    def __init__(self, state: str | os.PathLike[str] | None = None) -> None:
        self._state = state
        self._seen: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def number(self, agent: str, conversation: str) -> int:
        with self._lock:
            if conversation not in self._seen.get(agent, ()):
                if self._state is None:
                    self._seen.setdefault(agent, []).append(conversation)
                else:
                    self._register(self._state, agent, conversation)
            return self._seen[agent].index(conversation) + 1

    def _register(self, state: str | os.PathLike[str], agent: str, conversation: str) -> None:
        os.makedirs(state, exist_ok=True)
        descriptor = os.open(os.path.join(state, PASSES), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                self._seen = json.load(file)
            except ValueError:
                self._seen = {}  # empty, or incomplete because a process died while writing it
            known = self._seen.setdefault(agent, [])
            if conversation not in known:
                known.append(conversation)
            file.seek(0)
            file.truncate()
            json.dump(self._seen, file)


def note_uncovered(state: str | os.PathLike[str], uncovered: Uncovered) -> None:
    """Append one line with one write, so that lines of parallel processes do not mix."""
    os.makedirs(state, exist_ok=True)
    line = json.dumps(uncovered._asdict()) + "\n"
    descriptor = os.open(os.path.join(state, UNCOVERED), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def uncovered_in(state: str | os.PathLike[str]) -> list[Uncovered]:
    """The requests in a state directory that no rule covered."""
    try:
        with open(os.path.join(state, UNCOVERED), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    return [Uncovered(**json.loads(line)) for line in lines]
