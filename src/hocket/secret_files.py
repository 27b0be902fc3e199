"""Values of secret variables: which variables are secret, and the files that hold their values.

The record of a run and its ``spec.json`` are kept for ever; a key must not be. Both hold the names of secret variables
only. The values are in ``HOCKET_HOME/secrets/<owner>``, where the owner is the root of a tree of runs or an item of a
task's queue. Here belong the format of these files and how a record refers to them; when a file is written and removed
is decided in ``sessions.secret_store``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

FOLDER = "secrets"
VERSION = 1

_NAME = re.compile(
    r"(^|_)(APIKEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT|AUTH|CUSTOM_HEADERS)(_|$)"
)
_URL_WITH_PASSWORD = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@", re.IGNORECASE)
_OWNER = re.compile(r"^[rq][a-z0-9]{15,24}$")
_UNFINISHED = ".new"

Values = Mapping[str, Sequence[str]]
"""By name. Within one tree of runs a variable may have several values: a program may start a child with another one."""


def is_secret(name: str, value: str) -> bool:
    """True if the value of this variable must not be stored with a run."""
    return bool(value) and bool(_NAME.search(name.upper()) or _URL_WITH_PASSWORD.match(value))


def secret_part(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if is_secret(name, value)}


def public_part(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not is_secret(name, value)}


def references(env: Mapping[str, str], values: Values) -> dict[str, int]:
    """The secret variables of an environment, each with the position of its value; without those not in ``values``."""
    secret = secret_part(env)
    return {name: values[name].index(value) for name, value in secret.items() if value in values.get(name, ())}


def with_added(values: Values, environments: Iterable[Mapping[str, str]]) -> Values:
    """The same with all secrets of these environments. Values keep their positions."""
    found = {name: list(known) for name, known in values.items()}
    for env in environments:
        for name, value in secret_part(env).items():
            known = found.setdefault(name, [])
            if value not in known:
                known.append(value)
    return found


# --- Records ------------------------------------------------------------------------------------------------


def environments(record: bytes) -> list[dict[str, str]]:
    """Every environment in the record of a run: of one process, or of a chain and all its steps."""
    return [holder["env"] for holder in _holders(msgspec.json.decode(record))]


def conceal(record: bytes, values: Values) -> bytes:
    """A record with the names of secret variables instead of their values; one that is not in ``values`` stays."""
    if not values:
        return record
    data = msgspec.json.decode(record)
    for holder in _holders(data):
        if found := references(holder["env"], values):
            holder["env"] = {name: value for name, value in holder["env"].items() if name not in found}
            holder["secrets"] = {**holder.get("secrets", {}), **found}
    return msgspec.json.encode(data)


def reveal(record: bytes, value_of: Callable[[str, int], str | None]) -> bytes:
    """A record with the values of its secret variables, as far as ``value_of`` knows them by name and position."""
    if b'"secrets":' not in record:
        return record
    data = msgspec.json.decode(record)
    for holder in _holders(data):
        known = {name: value_of(name, position) for name, position in holder.pop("secrets", {}).items()}
        holder["env"] |= {name: value for name, value in known.items() if value is not None}
    return msgspec.json.encode(data)


def secret_names(record: bytes) -> set[str]:
    """The secret variables that a run was started with."""
    return {name for holder in _holders(msgspec.json.decode(record)) for name in holder.get("secrets", ())}


def _holders(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a record that have an environment."""
    yield record
    for step in record.get("steps", ()):
        yield step["spec"]
        if step.get("approval") is not None:
            yield step["approval"]["without"]


# --- Files --------------------------------------------------------------------------------------------------


def read_values(folder: Path, owner: str) -> Values:
    """What an owner's file holds; nothing if there is none. Raise ValueError for a file that is not one of these."""
    try:
        content = json.loads(_read_regular(folder / owner))
    except FileNotFoundError:
        return {}
    try:
        return {str(name): [str(value) for value in known] for name, known in content["values"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / owner} does not hold secrets") from error


def _read_regular(path: Path) -> bytes:
    """The content of a regular file; empty for anything else, such as a FIFO, without waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def write_values(folder: Path, owner: str, values: Values) -> None:
    """Replace an owner's file. It is on the disk, and readable by its owner alone, when this returns."""
    make_folder(folder)
    write_durably(folder / owner, json.dumps({"v": VERSION, "values": values}).encode() + b"\n")
    sync_directory(folder)


def make_folder(folder: Path) -> None:
    """Make the folder of these files, on the disk, unless it is there. Two threads may do so at once."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_directory(folder.parent)


def remove_values(folder: Path, owner: str) -> None:
    (folder / owner).unlink(missing_ok=True)


def owners(folder: Path) -> list[str]:
    """Those that have a file. What is left of a file that was never finished is removed."""
    found = []
    for name in os.listdir(folder) if folder.is_dir() else ():
        if _OWNER.match(name):
            found.append(name)
        elif name.startswith(".") and name.endswith(_UNFINISHED) and _OWNER.match(name[1 : -len(_UNFINISHED)]):
            (folder / name).unlink(missing_ok=True)
    return found


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that a reader finds the old content or the new one, also after a power cut."""
    unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        unfinished.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def sync_directory(folder: Path) -> None:
    """Make what was added to a folder, or removed from it, outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
