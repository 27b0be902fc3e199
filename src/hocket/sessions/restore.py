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
from hocket.model import Event, Kind, Reason, Run, Spec, Status
from hocket.model.task import Handoff, Restore
from hocket.redaction import masked_prompt
from hocket.sessions.home import DATABASE
from hocket.store import Batch, NewRun, check, open_store, task_files
from hocket.store.task_files import StoredTask

LOST_OUTPUT = "lost (lost): its run left nothing behind"

RestoredRun = tuple[Event, NewRun]
"""A run's first event, and its specification."""

_NOT_RECORDED = frozenset({"env", "argv", "cwd", "stdin", "stop_grace", "prompt", "files", "max_output"})
"""Fields of a specification that are elsewhere in `spec.json`, or of no use after a restore."""
_LIMITS = ("budget_usd", "budget_tokens", "idle_timeout")
_IN_FIRST_EVENT = ("agent", "provider", "cwd", *_LIMITS, "resumed_from", "source", "definition")


def record_of(run: Run, spec: Spec) -> dict[str, Any]:
    """What `spec.json` says beside the process to start: enough to restore the run if the database is lost."""
    fields = {name: value for name, value in msgspec.to_builtins(spec).items() if name not in _NOT_RECORDED}
    return {
        **fields,
        "number": run.number,
        "root": run.root,
        "created_at": run.created_at,
        "prompt": masked_prompt(spec),
    }


class Restored(NamedTuple):
    """The result of a restore."""

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
    stored, unreadable_tasks = task_files.read_all(home)
    handoffs = _handoffs_by_run(stored)
    found = [_read_run(path, handoffs.get(path.name)) for path in sorted((home / "runs").glob("*/*")) if path.is_dir()]
    restored = sorted((run for run in found if run), key=lambda run: int(run[0].data["number"]))
    runs = frozenset(event.run for event, _ in restored)
    task_files.forget_mark(home)
    tasks = [_put_back(one, runs, time.time()) for one in stored]
    left = _write(home / DATABASE, restored, tasks)
    lost = sum(bool(batch.orders) for batch, _ in left)
    unreadable = len(found) - len(restored) + unreadable_tasks
    names = [f"task {batch.orders[0].task}" if batch.orders else f"run {batch.events[0].run}" for batch, _ in left]
    problems = tuple(f"{name}: {error}" for name, (_, error) in zip(names, left, strict=True))
    return Restored(aside, len(restored) - (len(left) - lost), len(tasks) - lost, unreadable, problems)


class HandedOff(NamedTuple):
    """Whose hand-off a run is, and below which run it was made, as far as that is still of use."""

    task: str
    handoff: str
    depth: int = 0
    parent: str | None = None
    root: str | None = None


def _handoffs_by_run(stored: Sequence[StoredTask]) -> dict[str, HandedOff]:
    """By run. Of those that were open each was handed over by the one before it."""
    handoffs: dict[str, HandedOff] = {}
    for one in stored:
        above: Handoff | None = None
        for record in one.handoffs:
            if record.run is None or record.elsewhere:
                continue
            handoff = HandedOff(one.task.id, record.id)
            if record.completed_at is None:
                if above is not None and above.run is not None:
                    root = handoffs[above.run].root or above.run
                    handoff = handoff._replace(depth=record.depth, parent=above.run, root=root)
                above = record
            handoffs[record.run] = handoff
    return handoffs


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


def _read_run(path: Path, handoff: HandedOff | None) -> RestoredRun | None:
    """A run's first event and its specification, from the file that its keeper was started with."""
    written = files.read_spec(str(path))
    if written is None or "record" not in written:
        return None
    if written.get("run", path.name) != path.name:
        return None  # A copy of another run's directory.
    try:
        record: dict[str, Any] = written["record"]
        process = {name: written[name] for name in ("argv", "cwd", "stdin", "stop_grace")}
        env = {name: value for name, value in written["env"].items() if not name.startswith("HOCKET_")}
        spec = msgspec.convert({**record, **process, "env": env, "prompt": None}, Spec)
        created_at, root = float(record["created_at"]), (handoff.root if handoff else None) or path.name
        data = {"number": int(record["number"]), "kind": Kind.LEAF, "step": None, "iteration": None}
        data |= {"parent": handoff.parent if handoff else None, "depth": handoff.depth if handoff else 0}
        data |= {"task": handoff.task, "handoff": handoff.handoff} if handoff else {}
        data |= {"prompt": record.get("prompt"), **{name: getattr(spec, name) for name in _IN_FIRST_EVENT}}
        event = Event(0, created_at, path.name, root, "run.created", data)
        return event, NewRun(_stored(path, msgspec.to_builtins(spec), written, root))
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError):
        return None  # An agent can write into the directory of its run.


def _stored(path: Path, spec: dict[str, Any], written: dict[str, Any], root: str) -> bytes:
    """The record of a run. If it has not ended, its secrets move to the root that it has from now on."""
    found = secret_files.with_added({}, [spec["env"]])
    if files.state(str(path)) != "finished":
        folder = path.parents[2] / secret_files.FOLDER
        with suppress(OSError, ValueError):
            known = secret_files.read_values(folder, written["record"].get("root", path.name))
            found = secret_files.with_added(known, [spec["env"]])
        if found:
            try:
                secret_files.write_values(folder, root, found)
            except OSError as error:
                raise StoreError(f"the secrets of {root} cannot be written to {folder}: {error.strerror}") from error
    return secret_files.conceal(msgspec.json.encode({**spec, "secrets": written.get("secrets") or {}}), found)


def _write(path: Path, runs: list[RestoredRun], tasks: list[Restore]) -> list[tuple[Batch, Exception]]:
    """Each by itself, so that one which cannot be written keeps no other out; the writer commits many at once."""
    batches = [Batch([event], {event.run: new}, durable=True) for event, new in runs]
    batches += [Batch([], orders=[one], durable=True) for one in tasks]
    with closing(open_store(path)) as store:
        failed = store.write_all(batches)
    for _, error in failed:
        if isinstance(error, DiskLow) or len(failed) == len(batches):
            raise error  # the trouble is with the disk, not with one of them
    return failed
