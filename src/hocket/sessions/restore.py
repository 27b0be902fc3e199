"""After the database was lost: writes a new one from the run directories, which only keepers change.

Every leaf gets its record back under its own id and number; the next server reads its output and its exit status as if
it had just come back from a crash. Tasks come back from their own files, with their hand-offs; one that was open is
closed by the end of its run, as ever. What only the database knew is gone: which chain a run belonged to, and gates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hocket import secret_files
from hocket.errors import DiskLow, NewerStore, StoreError
from hocket.keeper import files
from hocket.model import Approval, DelegationGrant, Event, Kind, Reason, Spec, Status
from hocket.model.task import Handoff, Restore
from hocket.sessions.home import DATABASE
from hocket.store import Batch, NewRun, check, open_store, task_files
from hocket.store.task_files import StoredTask

LOST_OUTPUT = "lost (lost): its run left nothing behind"

Birth = tuple[Event, NewRun]
"""A run's first event, and its specification."""


class Restored(NamedTuple):
    """What came of it."""

    aside: Path
    runs: int
    tasks: int
    unreadable: int
    left_out: tuple[str, ...]
    """What could be read and not be written, each with the reason."""


def restore(home: Path) -> Restored:
    """Move the damaged database aside, whole, and write a new one. The caller holds the server's lock."""
    aside = home / f"damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    aside.mkdir(mode=0o700)
    for part in home.glob(f"{DATABASE}*"):
        part.rename(aside / part.name)
    kept, untold = task_files.read_all(home)
    turns = _turns(kept)
    found = [_birth(path, turns.get(path.name)) for path in sorted((home / "runs").glob("*/*")) if path.is_dir()]
    births = sorted((birth for birth in found if birth), key=lambda birth: int(birth[0].data["number"]))
    runs = frozenset(event.run for event, _ in births)
    task_files.forget_mark(home)
    tasks = [_put_back(one, runs, time.time()) for one in kept]
    left = _write(home / DATABASE, births, tasks)
    lost = sum(bool(batch.orders) for batch, _ in left)
    unreadable = len(found) - len(births) + untold
    problems = tuple(f"{_named(batch)}: {error}" for batch, error in left)
    return Restored(aside, len(births) - (len(left) - lost), len(tasks) - lost, unreadable, problems)


class Turn(NamedTuple):
    """Whose hand-off a run is, and below which run it was made, as far as that is still of use."""

    task: str
    handoff: str
    depth: int = 0
    parent: str | None = None
    root: str | None = None


def _turns(kept: Sequence[StoredTask]) -> dict[str, Turn]:
    """By run. Of those that were open each was handed over by the one before it."""
    turns: dict[str, Turn] = {}
    for one in kept:
        above: Handoff | None = None
        for record in one.handoffs:
            if record.run is None or record.elsewhere:
                continue
            turn = Turn(one.task.id, record.id)
            if record.completed_at is None:
                if above is not None and above.run is not None:
                    root = turns[above.run].root or above.run
                    turn = turn._replace(depth=record.depth, parent=above.run, root=root)
                above = record
            turns[record.run] = turn
    return turns


def _put_back(one: StoredTask, runs: frozenset[str], now: float) -> Restore:
    """Close open hand-offs whose run is unknown."""
    records = tuple(
        replace(record, completed_at=now, status=Status.LOST, reason=Reason.LOST, output=LOST_OUTPUT)
        if record.completed_at is None and record.run not in runs
        else record
        for record in one.handoffs
    )
    return Restore(task_files.follow_handoffs(one.task, records), records, one.history)


def damage(home: Path) -> str | None:
    """Why the database cannot be used, or ``None``. Raises where a newer Hocket can use it."""
    path = home / DATABASE
    try:
        open_store(path).close()
    except NewerStore:
        raise
    except StoreError as error:
        return error.message
    trouble = check(path)
    return None if trouble is None else trouble.message


def _birth(path: Path, turn: Turn | None) -> Birth | None:
    """A run's first event and its specification, from the file that its keeper was started with."""
    written = files.read_spec(str(path))
    if written is None or "record" not in written:
        return None
    if written.get("run", path.name) != path.name:
        return None  # A copy of another run's directory.
    try:
        return _read_birth(path, turn, written)
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError):
        return None  # An agent can write into the directory of its run.


def _read_birth(path: Path, turn: Turn | None, written: dict[str, Any]) -> Birth:
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
        vouched=msgspec.convert(record.get("vouched", ()), tuple[Approval, ...]),
        leave=msgspec.convert(record.get("leave"), DelegationGrant | None),
    )
    data = {"number": int(record["number"]), "kind": Kind.LEAF, "agent": spec.agent, "provider": spec.provider}
    data |= {"parent": turn.parent if turn else None, "depth": turn.depth if turn else 0}
    data |= {"task": turn.task, "handoff": turn.handoff} if turn else {}
    data |= {"cwd": spec.cwd, "prompt": record.get("prompt"), "step": None, "iteration": None}
    data |= {"budget_usd": spec.budget_usd, "budget_tokens": spec.budget_tokens, "idle_timeout": spec.idle_timeout}
    data |= {"resumed_from": spec.resumed_from, "source": spec.source, "definition": spec.definition}
    root = (turn.root if turn else None) or path.name
    event = Event(0, float(record["created_at"]), path.name, root, "run.created", data)
    msgspec.json.decode(msgspec.json.encode(spec), type=Spec)  # So that the next server can read it.
    return event, NewRun(_stored(path, msgspec.to_builtins(spec), written, root))


def _stored(path: Path, spec: dict[str, Any], written: dict[str, Any], root: str) -> bytes:
    """The record of a run. If it has not ended, its secrets move to the root that it has from now on."""
    found = secret_files.with_added({}, [spec["env"]])
    if files.state(str(path)) != "finished":
        folder = path.parents[2] / secret_files.FOLDER
        with suppress(OSError, ValueError):
            known = secret_files.read_values(folder, written["record"].get("root", path.name))
            found = secret_files.with_added(known, [spec["env"]])
        if found:
            _write_secrets(folder, root, found)
    return secret_files.conceal(msgspec.json.encode({**spec, "secrets": written.get("secrets") or {}}), found)


def _write_secrets(folder: Path, root: str, values: secret_files.Values) -> None:
    try:
        secret_files.write_values(folder, root, values)
    except OSError as error:
        raise StoreError(f"the secrets of {root} cannot be written to {folder}: {error.strerror}") from error


def _write(path: Path, births: list[Birth], tasks: list[Restore]) -> list[tuple[Batch, Exception]]:
    """Each by itself, so that one which cannot be written keeps no other out; the writer commits many at once."""
    batches = [Batch([event], {event.run: birth}, durable=True) for event, birth in births]
    batches += [Batch([], orders=[one], durable=True) for one in tasks]
    with closing(open_store(path)) as store:
        failed = store.write_all(batches)
    for _, error in failed:
        if isinstance(error, DiskLow) or len(failed) == len(batches):
            raise error  # the trouble is with the disk, not with one of them
    return failed


def _named(batch: Batch) -> str:
    return f"task {batch.orders[0].task}" if batch.orders else f"run {batch.events[0].run}"
