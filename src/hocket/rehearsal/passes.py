"""How often each agent has been talked to: the one thing that players remember.

A small file that is locked while it is read and written, because the agents of a chain are processes of their own.
Conversations that nothing answered are noted beside it. Nothing else is kept here. Paths are plain texts: importing
``pathlib`` would be a noticeable part of a scripted agent's start-up.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from typing import Any

from hocket.rehearsal.play import Uncovered

PASSES = "passes.json"
UNCOVERED = "uncovered.jsonl"


class Passes:
    """``number(agent, conversation)``: 1 for the first conversation of that agent, 2 for the second …"""

    def __init__(self, state: str | os.PathLike[str] | None = None) -> None:
        self._state = state
        self._seen: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def number(self, agent: str, conversation: str) -> int:
        with self._lock:
            if conversation not in self._seen.get(agent, ()):
                self._register(agent, conversation)
            return self._seen[agent].index(conversation) + 1

    def _register(self, agent: str, conversation: str) -> None:
        if self._state is None:
            self._seen.setdefault(agent, []).append(conversation)
            return
        os.makedirs(self._state, exist_ok=True)
        descriptor = os.open(os.path.join(self._state, PASSES), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._seen = _with(_read(file.read()), agent, conversation)
            file.seek(0)
            file.truncate()
            json.dump(self._seen, file)


def _read(text: str) -> dict[str, list[str]]:
    """A player that died in the middle of writing leaves a torn file: counting then starts anew."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _with(seen: dict[str, list[str]], agent: str, conversation: str) -> dict[str, list[str]]:
    known = seen.get(agent, [])
    return seen if conversation in known else {**seen, agent: [*known, conversation]}


def conversations_in(state: str | os.PathLike[str]) -> dict[str, int]:
    """How often each agent was talked to by the players of a state directory."""
    try:
        with open(os.path.join(state, PASSES), encoding="utf-8") as file:
            seen = _read(file.read())
    except FileNotFoundError:
        return {}
    return {agent: len(conversations) for agent, conversations in seen.items()}


def note_uncovered(state: str | os.PathLike[str], uncovered: Uncovered) -> None:
    """One line with one write, so that players at the same time do not mix theirs."""
    os.makedirs(state, exist_ok=True)
    line = json.dumps(uncovered._asdict()) + "\n"
    descriptor = os.open(os.path.join(state, UNCOVERED), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def uncovered_in(state: str | os.PathLike[str]) -> list[Uncovered]:
    """What the players of a state directory could not answer."""
    try:
        with open(os.path.join(state, UNCOVERED), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [Uncovered(**entry) for entry in found]
