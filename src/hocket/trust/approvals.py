"""What the user has approved, by content: the record in HOCKET_HOME, and whether an approval still holds.

An approval is void as soon as a byte of the approved content changes. Beside the approvals the record has edges: which
agent may start which other one with all its privileges.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Literal

import msgspec

from hocket.config import OWN_ENVIRONMENT
from hocket.config.loading import load
from hocket.config.reading import read_bounded
from hocket.config.settings import Config, approve_command
from hocket.errors import ConfigError, HomeError, NotTrusted
from hocket.trust.folder_contents import MAX_KEPT, Cover, digest, repository, servers_above

RECORD = "trust.json"
KEPT = "trust"
VERSION = 1
FILE, FOLDER = "file", "folder"
MAX_RECORD = 8 * 1024 * 1024

AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/")]


class Pin(msgspec.Struct, frozen=True):
    """One approval: the hash of the content, and when it was given."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    at: float


class AgentIdentity(msgspec.Struct, frozen=True):
    """An agent as an edge names it; another one of the same name in another place is not meant."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    path: AbsolutePath | None = None
    """The real path of its definition or program; None for a CLI without a definition."""


class Edge(msgspec.Struct, frozen=True):
    """One agent that may start another with all its privileges, and since when."""

    caller: AgentIdentity
    target: AgentIdentity
    at: float


class ApprovalRecord(msgspec.Struct):
    """The whole record."""

    version: Literal[1]
    files: dict[AbsolutePath, Pin]
    folders: dict[AbsolutePath, Pin]
    edges: list[Edge] = []

    def of(self, kind: str) -> dict[AbsolutePath, Pin]:
        return self.files if kind == FILE else self.folders


class Approvals:
    """What one user has approved, read on first use, and the folders that the configuration trusts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.home = config.home
        self.cover = Cover([config.user_config_dir] if config.user_config_dir else [])
        self.damage: HomeError | None = None
        """Why the record cannot be used. Nothing is approved then."""
        self._record: ApprovalRecord | None = None

    def __repr__(self) -> str:
        return f"Approvals({self.home!r})"

    @property
    def record(self) -> ApprovalRecord:
        """The record in HOCKET_HOME; empty if there is none, or if it cannot be used."""
        if self._record is None:
            try:
                self._record = read(self.home) if self.home is not None else empty_record()
            except HomeError as error:
                self._record, self.damage = empty_record(), error
        return self._record

    def trusts(self, folder: str) -> bool:
        """True if a folder is listed, or approved with its current content."""
        return self.config.lists(folder) or self.covers(folder)

    def trusts_file(self, path: str, content: bytes | None = None) -> bool:
        """True if a definition is approved with this content, by default its current one."""
        pin = self.record.files.get(os.path.realpath(path))
        with suppress(NotTrusted):
            return pin is not None and digest(self.cover.file(path) if content is None else content) == pin.sha256
        return False

    def allows(self, caller: AgentIdentity, target: AgentIdentity) -> bool:
        """True if the user lets one agent start another with all its privileges."""
        return any((edge.caller, edge.target) == (caller, target) for edge in self.record.edges)

    def disabled(self, folder: str, definition: str | None) -> tuple[str, ...]:
        """Return what is disabled in an untrusted folder, apart from a definition that is handed over."""
        return self.cover.disabled(folder, definition) if self.home is not None else ()

    def untrusted_servers(self, folder: str) -> tuple[str, ...]:
        """Return the MCP servers that a CLI would start in a trusted folder because of an untrusted file."""
        home = self.config.users_home
        own = os.path.realpath(home) if home is not None else None
        return servers_above(folder, lambda one: one == own or self.config.lists(one) or self._state(one) is True)

    def watched(self, folder: str) -> Sequence[str]:
        """Return every path that the trust in a folder depends on."""
        return self.cover.watched(folder) if self.record.folders else ()

    def covers(self, folder: str) -> bool:
        """True if everything in a folder and those above it, up to the repository's root, is approved."""
        if not self.record.folders:
            return False
        states = [self._state(one) for one in repository(folder)]
        return any(states) and all(state is not False for state in states)

    def changed(self, folder: str) -> str | None:
        """Return the folder, this one or one above up to the repository's root, that changed since its approval."""
        if self.config.lists(folder):
            return None
        pinned = [one for one in repository(folder) if one in self.record.folders]
        return next((one for one in pinned if self._state(one) is False), None)

    def _state(self, folder: str) -> bool | None:
        """Return whether a folder is approved; None if it has nothing to approve and was not approved as empty."""
        try:
            content = self.cover.folder(folder)
        except NotTrusted:
            return False
        pin = self.record.folders.get(folder)
        if pin is not None and pin.sha256 == digest(content):
            return True
        return False if content else None

    def state(self, kind: str, path: str) -> str:
        """Return what became of an approved path: ``approved``, ``changed`` or ``gone``."""
        try:
            content = self.cover.file(path) if kind == FILE else self.cover.folder(path)
        except NotTrusted:
            return "changed" if os.path.lexists(path) else "gone"
        if not os.path.lexists(path):
            return "gone"
        pin = self.record.of(kind).get(path)
        return "approved" if pin and pin.sha256 == digest(content) else "changed" if content else "gone"


def users_approvals(home: str, environ: Mapping[str, str] = OWN_ENVIRONMENT) -> Approvals:
    """Load the approvals by the user's own files alone."""
    return Approvals(load(home, home, environ))


def is_trusted(folder: str, home: str, environ: Mapping[str, str] = OWN_ENVIRONMENT) -> bool:
    """True if the user trusts a folder with its current content; False if the user's files cannot be read."""
    try:
        return users_approvals(home, environ).trusts(folder)
    except ConfigError:
        return False


def not_trusted(
    what: str, privileges: Sequence[str], target: str, approvals: Approvals, replaced: str | None = None
) -> NotTrusted:
    """Return the refusal of what needs the user's approval, with the command that approves it.

    ``target`` is the definition or folder to approve; ``replaced`` what of the user's own it replaces.
    """
    claims = [
        *([f"asks for {' and '.join(privileges)}"] if privileges else []),
        *([f"replaces {replaced}"] if replaced else []),
    ]
    real, record = os.path.realpath(target), approvals.record
    known = real in record.files or real in record.folders
    state = "has changed since you approved it" if known else "is not approved"
    damage = approvals.damage
    first = f"{damage.message}: {damage.hint}; then run" if damage else "review it first; to approve it, run"
    return NotTrusted(f"{what} {' and '.join(claims)}, and {target} {state}", f"{first}: {approve_command(target)}")


# --- The record ---------------------------------------------------------------------------------------------


def empty_record() -> ApprovalRecord:
    return ApprovalRecord(1, {}, {})


def read(home: str) -> ApprovalRecord:
    """Read the record. Raises HomeError if it cannot be used."""
    path = os.path.join(home, RECORD)
    raw = read_bounded(path, MAX_RECORD, HomeError)
    if raw is None:
        return empty_record()
    try:
        return msgspec.json.decode(raw, type=ApprovalRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if _is_newer(raw):
            raise HomeError(
                f"{path} was written by a newer Hocket, so nothing is approved here",
                "install that version, or move the file away and approve again what you still want",
            ) from error
        raise HomeError(
            f"{path} is damaged, so nothing is approved", "move it away, and approve again what you still want"
        ) from error


def _is_newer(raw: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        found = json.loads(raw)
        return isinstance(found, dict) and type(found.get("version")) is int and found["version"] > VERSION
    return False


def approve(home: str, kind: str, path: str, content: bytes) -> Pin:
    """Record the approval of this content, which the user has seen, at this real path."""
    with _changing(home) as record:
        pin = record.of(kind)[path] = Pin(digest(content), time.time())
        if len(content) <= MAX_KEPT:
            _replace(os.path.join(home, KEPT, pin.sha256), content)
    return pin


def withdraw(home: str, kind: str, path: str) -> bool:
    """Remove an approval. Return False if there was none."""
    with suppress(HomeError):
        if path not in read(home).of(kind):
            return False
    with _changing(home) as record:
        return record.of(kind).pop(path, None) is not None


def allow(home: str, caller: AgentIdentity, target: AgentIdentity) -> Edge:
    """Record that one agent may start another with all its privileges."""
    with _changing(home) as record:
        edge = Edge(caller, target, time.time())
        record.edges = [one for one in record.edges if (one.caller, one.target) != (caller, target)] + [edge]
    return edge


def forbid(home: str, edges: Sequence[Edge]) -> None:
    """Remove recorded edges."""
    with _changing(home) as record:
        record.edges = [one for one in record.edges if one not in edges]


def kept(home: str, pin: Pin) -> bytes | None:
    """Return the approved content, if it is stored."""
    with suppress(HomeError):
        content = read_bounded(os.path.join(home, KEPT, pin.sha256), MAX_KEPT, HomeError)
        if content is not None and digest(content) == pin.sha256:
            return content
    return None


@contextmanager
def _changing(home: str) -> Iterator[ApprovalRecord]:
    """Yield the record and write it back atomically, under a lock."""
    import fcntl

    try:
        for folder in (home, os.path.join(home, KEPT)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(home, f"{KEPT}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = read(home)
            yield record
            document = msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=1)
            _replace(os.path.join(home, RECORD), document + b"\n")
            used = {pin.sha256 for pins in (record.files, record.folders) for pin in pins.values()}
            for name in os.listdir(os.path.join(home, KEPT)):
                if name not in used:
                    os.unlink(os.path.join(home, KEPT, name))
        finally:
            os.close(lock)
    except OSError as error:
        raise HomeError(
            f"cannot record approvals in {home}: {error.strerror}", "choose another place with HOCKET_HOME"
        ) from error


def _replace(path: str, content: bytes) -> None:
    """Write a file atomically. Only the holder of the lock writes, so one spare name is enough."""
    spare = f"{path}.new"
    descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(spare, path)
