"""After the database was lost: a new one, written from the run directories, which nobody but their keepers touch.

Every leaf gets its record back under its own id and number; the next server reads its output and its exit status as if
it had just come back from a crash. What only the database knew is gone: which chain a run belonged to, and gates.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hocket.engine.home import DATABASE
from hocket.errors import StoreError
from hocket.keeper import files
from hocket.model import Event, Kind, Spec
from hocket.store import Batch, NewRun, check, open_store

_AT_ONCE = 200


class Restored(NamedTuple):
    """What came of it."""

    aside: Path
    runs: int
    unreadable: int


def restore(home: Path) -> Restored:
    """Move the damaged database aside, whole, and write a new one. The caller holds the server's lock."""
    aside = home / f"damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    aside.mkdir(mode=0o700)
    for part in home.glob(f"{DATABASE}*"):
        part.rename(aside / part.name)
    found = [_birth(path) for path in sorted((home / "runs").glob("*/*")) if path.is_dir()]
    births = sorted((birth for birth in found if birth), key=lambda birth: int(birth[0].data["number"]))
    _write(home / DATABASE, births)
    return Restored(aside, len(births), len(found) - len(births))


def damage(home: Path) -> str | None:
    """Why the database cannot be used, or ``None``."""
    path = home / DATABASE
    try:
        open_store(path).close()
    except StoreError as error:
        return error.message
    return check(path)


def _birth(path: Path) -> tuple[Event, NewRun] | None:
    """A run's first event and its specification, from the file that its keeper was started with."""
    written = files.read_spec(str(path))
    if written is None or "record" not in written:
        return None
    record: dict[str, Any] = written["record"]
    spec = Spec(
        agent=record["agent"],
        provider=record["provider"],
        argv=tuple(written["argv"]),
        cwd=written["cwd"],
        env={name: value for name, value in written["env"].items() if not name.startswith("HOCKET_")},
        stdin=written["stdin"],
        loop=record["loop"],
        marker=record["marker"],
        stop_grace=written["stop_grace"],
        session=record.get("session", False),
        resumed_from=record.get("resumed_from"),
        on_question=record.get("on_question", "deny"),
        served=record.get("served", False),
        timeout=record.get("timeout"),
        idle_timeout=record.get("idle_timeout"),
        budget_usd=record.get("budget_usd"),
        budget_tokens=record.get("budget_tokens"),
        source=record.get("source"),
        definition=record.get("definition"),
        permission_mode=record.get("permission_mode"),
        allowed_agents=None if (allowed := record.get("allowed_agents")) is None else tuple(allowed),
        known_as=record.get("known_as"),
        unvouched=record.get("unvouched", False),
    )
    data = {"number": record["number"], "kind": Kind.LEAF, "agent": spec.agent, "provider": spec.provider}
    data |= {"parent": None, "depth": 0, "cwd": spec.cwd, "step": None, "iteration": None}
    data |= {"budget_usd": spec.budget_usd, "budget_tokens": spec.budget_tokens, "idle_timeout": spec.idle_timeout}
    data |= {"resumed_from": spec.resumed_from, "source": spec.source, "definition": spec.definition}
    event = Event(0, record["created_at"], path.name, path.name, "run.created", data)
    return event, NewRun(msgspec.json.encode(spec))


def _write(path: Path, births: list[tuple[Event, NewRun]]) -> None:
    with closing(open_store(path)) as store:
        store.write_all(list(_batches(births)))


def _batches(births: list[tuple[Event, NewRun]]) -> Iterator[Batch]:
    for first in range(0, len(births), _AT_ONCE):
        some = births[first : first + _AT_ONCE]
        yield Batch([event for event, _ in some], {event.run: birth for event, birth in some}, durable=True)
