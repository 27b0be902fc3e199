"""Recordings of real CLIs in the tree: ``<provider>/<version of the CLI>/<case>/`` with three files each.

command.json   how the program was started, the script of its model, and every line of its input
out.jsonl      every line of its output, normalised (see ``normalize.py``)
events.json    the events and the verdict that the provider derives from those lines
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from golden.normalize import PLACE

from hocket.model import Reason, Spec, Status
from hocket.providers import PROVIDERS
from hocket.providers.base import ReaderEvent, State
from hocket.redaction import NO_SECRETS


class Exit(NamedTuple):
    """How a recorded process ended."""

    code: int | None = None
    signal: int | None = None
    error: str | None = None
    stopped: bool = False


class Recording(NamedTuple):
    """One recorded process."""

    provider: str
    command: dict[str, Any]
    out: tuple[bytes, ...]

    @property
    def spec(self) -> Spec:
        """The part of the spec that a reader uses."""
        keys = ("session", "loop", "marker", "on_question", "session_tokens")
        used = {key: self.command[key] for key in keys if key in self.command}
        argv = tuple(self.command["argv"])
        return Spec("golden", self.provider, argv, f"{PLACE}/p", {"HOME": f"{PLACE}/user"}, **used)

    @property
    def exit(self) -> Exit:
        return Exit(self.command["exit_code"])


class Reading(NamedTuple):
    """The events and the verdict that a provider derives from a recording."""

    events: tuple[ReaderEvent, ...]
    status: Status
    reason: Reason
    transient: bool


def in_order(versions: Iterable[str]) -> list[str]:
    """Versions sorted by their numbers, newest last."""
    return sorted(versions, key=lambda version: [int(number) for number in re.findall(r"\d+", version)])


def read(recording: Recording) -> Reading:
    provider = PROVIDERS[recording.provider]
    step = provider.reader(recording.spec, NO_SECRETS)
    state: State = {}
    events: list[ReaderEvent] = []
    for line in recording.out:
        state, said = step(state, "out", line, None)
        events += said
    transient = provider.is_transient is not None and provider.is_transient(state)
    return Reading(tuple(events), *provider.verdict(state, recording.exit, None), transient)


class Recordings:
    """All recordings of one provider."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.folder = Path(__file__).parent / provider

    def versions(self) -> list[str]:
        return in_order(path.name for path in self.folder.iterdir())

    def cases(self, version: str) -> list[str]:
        return sorted(path.name for path in (self.folder / version).iterdir())

    def load(self, version: str, case: str) -> Recording:
        folder = self.folder / version / case
        command = json.loads((folder / "command.json").read_text(encoding="utf-8"))
        return Recording(self.provider, command, tuple((folder / "out.jsonl").read_bytes().splitlines(keepends=True)))

    def expected(self, version: str, case: str) -> Reading:
        """The reading that was stored with the recording, or approved in a later change."""
        stored = json.loads((self.folder / version / case / "events.json").read_text(encoding="utf-8"))
        events = tuple((kind, data) for kind, data in stored["events"])
        return Reading(events, Status(stored["status"]), Reason(stored["reason"]), stored["transient"])

    def save(self, version: str, case: str, recording: Recording) -> None:
        folder = self.folder / version / case
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "command.json").write_text(_command_text(recording), encoding="utf-8")
        (folder / "out.jsonl").write_bytes(b"".join(recording.out))
        (folder / "events.json").write_text(_reading_text(read(recording)), encoding="utf-8")


def _command_text(recording: Recording) -> str:
    """JSON with one line per key."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in recording.command.items())
    return "{" + ",\n ".join(lines) + "}\n"


def _reading_text(reading: Reading) -> str:
    """JSON with one line per event, so that a changed reader gives a readable diff."""
    lines: Iterable[str] = (json.dumps(event, ensure_ascii=False) for event in reading.events)
    events = ",\n  ".join(lines)
    head = (
        f'"status": "{reading.status}",\n "reason": "{reading.reason}",\n "transient": {json.dumps(reading.transient)}'
    )
    return f'{{{head},\n "events": [\n  {events}\n ]}}\n'
