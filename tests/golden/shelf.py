"""The recordings as they lie in the tree: ``claude/<version of the CLI>/<case>/`` with three files each.

command.json   how the program was started, what the model was told to say, and every line that went in
out.jsonl      every line that came out, normalised (see ``normal.py``)
events.json    what our reader makes of those lines, and the verdict
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from golden.normal import PLACE

from hocket.model import Reason, Spec, Status
from hocket.providers import Said, State
from hocket.providers.claude import is_transient, reader, verdict

FOLDER = Path(__file__).parent / "claude"


class Exit(NamedTuple):
    """How a recorded process ended."""

    code: int | None = None
    signal: int | None = None
    error: str | None = None
    stopped: bool = False


class Golden(NamedTuple):
    """One recording."""

    command: dict[str, Any]
    out: tuple[bytes, ...]

    @property
    def spec(self) -> Spec:
        """As much of it as a reader looks at."""
        how = {key: self.command[key] for key in ("session", "loop", "marker", "on_question")}
        return Spec("golden", "claude", tuple(self.command["argv"]), f"{PLACE}/p", {"HOME": f"{PLACE}/user"}, **how)

    @property
    def exit(self) -> Exit:
        return Exit(self.command["exit_code"])


class Reading(NamedTuple):
    """What our provider makes of a recording."""

    events: tuple[Said, ...]
    status: Status
    reason: Reason
    transient: bool
    """Whether it failed for a reason that passes by itself."""


def versions() -> list[str]:
    return in_order(path.name for path in FOLDER.iterdir())


def in_order(versions: Iterable[str]) -> list[str]:
    """The newest last."""
    return sorted(versions, key=lambda version: [int(number) for number in re.findall(r"\d+", version)])


def cases(version: str) -> list[str]:
    return sorted(path.name for path in (FOLDER / version).iterdir())


def read(golden: Golden) -> Reading:
    step = reader(golden.spec)
    state: State = {}
    events: list[Said] = []
    for line in golden.out:
        state, said = step(state, "out", line, None)
        events += said
    return Reading(tuple(events), *verdict(state, golden.exit, None), is_transient(state))


def load(version: str, case: str) -> Golden:
    folder = FOLDER / version / case
    command = json.loads((folder / "command.json").read_text(encoding="utf-8"))
    return Golden(command, tuple((folder / "out.jsonl").read_bytes().splitlines(keepends=True)))


def expected(version: str, case: str) -> Reading:
    """What was made of it when it was recorded, or when somebody last looked at it and agreed."""
    stored = json.loads((FOLDER / version / case / "events.json").read_text(encoding="utf-8"))
    events = tuple((kind, data) for kind, data in stored["events"])
    return Reading(events, Status(stored["status"]), Reason(stored["reason"]), stored["transient"])


def save(version: str, case: str, golden: Golden) -> None:
    folder = FOLDER / version / case
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "command.json").write_text(_command(golden), encoding="utf-8")
    (folder / "out.jsonl").write_bytes(b"".join(golden.out))
    (folder / "events.json").write_text(_written(read(golden)), encoding="utf-8")


def _command(golden: Golden) -> str:
    """One line a key."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in golden.command.items())
    return "{" + ",\n ".join(lines) + "}\n"


def _written(reading: Reading) -> str:
    """One line an event, so that a change of the reader is a readable change of this file."""
    lines: Iterable[str] = (json.dumps(event, ensure_ascii=False) for event in reading.events)
    events = ",\n  ".join(lines)
    head = (
        f'"status": "{reading.status}",\n "reason": "{reading.reason}",\n "transient": {json.dumps(reading.transient)}'
    )
    return f'{{{head},\n "events": [\n  {events}\n ]}}\n'
