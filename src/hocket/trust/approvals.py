"""What the user has approved, by its content: the record of it in HOCKET_HOME, and what an approval covers.

An approval is void as soon as a byte of what was approved is another. Who needs one is decided in ``catalog.trust``,
who asks for it is the command line; here it is only written down, and compared with what is there now. Beside the
approvals stand edges: which agent may start which other one with all that the other may do.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from hocket.config.loading import load
from hocket.config.reading import read_bounded
from hocket.config.settings import Config, approve_command
from hocket.errors import ConfigError, HomeError, NotTrusted

RECORD = "trust.json"
KEPT = "trust"
VERSION = 1
FILE, FOLDER = "file", "folder"
EDGES = "edges"
_SECTIONS = {FILE: "files", FOLDER: "folders"}

MAX_RECORD = 8 * 1024 * 1024
MAX_KEPT = 256 * 1024
"""Of what was approved, so that a later change can be shown; what is larger is only known by its hash."""
MAX_FILE = 1024 * 1024
MAX_ALL = 16 * 1024 * 1024
MAX_ENTRIES = 5000


@dataclass(frozen=True)
class Pin:
    """One approval: of what, and when."""

    sha256: str
    at: float


@dataclass(frozen=True)
class Known:
    """An agent as an edge names it: another one of the same name, in another place, is not meant."""

    name: str
    path: str | None = None
    """Its definition's file, links followed, or its program; None for a CLI without a definition."""


@dataclass(frozen=True)
class Edge:
    """One agent that may start another with all that the other may do, and since when."""

    caller: Known
    target: Known
    at: float


@dataclass(frozen=True)
class ApprovalRecord:
    """The whole record; when it cannot be used it is empty, and says why."""

    files: Mapping[str, Pin] = field(default_factory=dict)
    folders: Mapping[str, Pin] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    trouble: HomeError | None = None

    def of(self, kind: str) -> Mapping[str, Pin]:
        return self.files if kind == FILE else self.folders


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


# --- What an approval covers --------------------------------------------------------------------------------

MCP = ".mcp.json"
LOCAL = ".claude/settings.local.json"
_HOCKETS = ("hocket.toml", "forge/chains.json")
NAMED = (".claude/settings.json", LOCAL, MCP, *_HOCKETS)
"""The files by which a folder can make Claude or Hocket do things by itself."""
_ALSO = ("agents", "commands", "skills")
_ASKING = (b"hooks", b"mcpServers", b"permissionMode", b"allowed-tools", b"\\")
"""A text below ``.claude`` in which none of these stands brings nothing along; a backslash could hide any of them."""
_TOLD = ("CLAUDE.md", "CLAUDE.local.md", ".claude/CLAUDE.md", ".claude/rules", *(f".claude/{name}" for name in _ALSO))
"""What a folder tells Claude. It runs nothing by itself, so it is no part of an approval, but it is off without one."""


Part = tuple[str, bytes]
"""A file's name within its folder, and its content."""


class Cover:
    """What counts as a folder's own, for one user: never what is the user's."""

    def __init__(self, users: Sequence[str] = ()) -> None:
        self.users = tuple(sorted({os.path.realpath(folder) for folder in users}))
        """The configuration directory of the user's Claude, which may look like that of a project."""

    def file(self, path: str) -> bytes:
        """A definition as it is now."""
        return _content(os.path.realpath(path))

    def folder(self, folder: str) -> bytes:
        """All of a folder that an approval covers, as one text; empty when there is nothing of the sort.

        Nothing can be approved as well: whatever comes to be there is then a change.
        """
        return joined(self.parts(folder))

    def parts(self, folder: str) -> list[Part]:
        """The files of a folder that an approval covers, each with its name within the folder."""
        parts, size = list[Part](), 0
        for name, path in self._files(folder):
            content = read_bounded(path, MAX_FILE, NotTrusted)
            if content is None or (path.endswith(".md") and not _asks(content)):
                continue
            size += len(content)
            if size > MAX_ALL:
                raise NotTrusted(f"{folder} has too much in it to be approved by its content")
            parts.append((name, content))
        return parts

    def _files(self, folder: str) -> Iterator[tuple[str, str]]:
        """What is looked at, by its name within the folder."""
        is_users = os.path.realpath(os.path.join(folder, ".claude")) in self.users
        for name in NAMED:
            if not (is_users and name.startswith(".claude/")):
                yield name, os.path.join(folder, name)
        main = _main_tree(folder)
        if main and os.path.realpath(os.path.join(main, ".claude")) not in self.users:
            yield os.path.join(main, LOCAL), os.path.join(main, LOCAL)
        for below in () if is_users else _ALSO:
            for path in _texts(os.path.join(folder, ".claude", below)):
                yield os.path.relpath(path, folder), path

    def fingerprint(self, folder: str) -> str:
        """A hash of all that a folder and those above it, up to the repository's root, bring along for Claude.

        Every working tree of a repository with the same files has the same one: of a second working tree Claude reads
        the first one's local settings as its own.
        """
        folders, found = repository(folder), set[bytes]()
        for one in folders:
            place = os.path.relpath(one, folders[-1])
            for name, content in self.parts(one):
                within = LOCAL if os.path.isabs(name) else name
                if within not in _HOCKETS:
                    found.add(joined([(os.path.join(place, within), content)]))
        return digest(b"".join(sorted(found)))

    def disabled(self, folder: str, without: str | None = None) -> tuple[str, ...]:
        """What there is that Claude reads in a trusted folder alone, in this one or above, up to the repository's root.

        ``without`` is a definition that is handed over anyway.
        """
        own = os.path.realpath(without) if without else None
        there = [name for one in repository(folder) for name in self._told(one) if _has(os.path.join(one, name), own)]
        return tuple(dict.fromkeys(there))

    def _told(self, folder: str) -> Iterator[str]:
        is_users = os.path.realpath(os.path.join(folder, ".claude")) in self.users
        for name in (*_TOLD, *(name for name in NAMED if name not in _HOCKETS)):
            if not (is_users and name.startswith(".claude/")):
                yield name

    def watched(self, folder: str) -> list[str]:
        """Every path by which the trust in a folder may change, whether it is there or not."""
        folders = repository(folder)
        return [
            *(path for one in folders for _, path in self._files(one)),
            *(os.path.join(one, ".claude", below) for one in folders for below in _ALSO),
        ]


def joined(parts: Sequence[Part]) -> bytes:
    """Several files as one text. With its length in front no content can look like the beginning of another file."""
    heads = (f"=== {name}, {len(content)} bytes\n".encode("utf-8", "surrogateescape") for name, content in parts)
    return b"".join(head + content + b"\n" for head, (_, content) in zip(heads, parts, strict=True))


def _content(path: str) -> bytes:
    content = read_bounded(path, MAX_KEPT, NotTrusted)
    if content is None:
        raise NotTrusted(f"{path} does not exist")
    return content


def _has(path: str, without: str | None) -> bool:
    """Whether there is a file, or a folder with anything in it but the one file."""
    try:
        names = os.listdir(path)
    except OSError:
        return os.path.isfile(path)
    return any(os.path.realpath(os.path.join(path, name)) != without for name in names)


def _asks(content: bytes) -> bool:
    return any(word in content for word in _ASKING)


def _texts(folder: str) -> list[str]:
    """The texts below a folder as Claude finds them: links are followed, each folder is entered once."""
    waiting, entered, found, seen = [folder], set[tuple[int, int]](), list[str](), 0
    while waiting:
        current = waiting.pop()
        try:
            there = os.stat(current)
            if (there.st_dev, there.st_ino) in entered:
                continue
            entered.add((there.st_dev, there.st_ino))
            names = sorted(os.listdir(current))
        except OSError:
            continue
        seen += len(names)
        if seen > MAX_ENTRIES:
            raise NotTrusted(f"{folder} has too many files in it to be approved by their content")
        paths = [os.path.join(current, name) for name in names]
        waiting += [path for path in paths if os.path.isdir(path)]
        found += [path for path in paths if path.endswith(".md") and os.path.isfile(path)]
    return sorted(found)


def repository(folder: str) -> list[str]:
    """A folder and those above it, up to its repository's root; outside of one the folder alone."""
    folders = above(folder)
    root = next((number for number, one in enumerate(folders) if os.path.exists(os.path.join(one, ".git"))), 0)
    return folders[: root + 1]


def above(folder: str) -> list[str]:
    """A folder and all those that it really lies in."""
    folders = [os.path.realpath(folder)]
    while (parent := os.path.dirname(folders[-1])) != folders[-1]:
        folders.append(parent)
    return folders


def _main_tree(folder: str) -> str | None:
    """Of a second working tree of a repository the first one, whose local settings Claude reads as well."""
    with suppress(OSError, ValueError, NotTrusted):
        link = read_bounded(os.path.join(folder, ".git"), 4096, NotTrusted) or b""
        if not link.startswith(b"gitdir:"):
            return None
        own = os.path.join(folder, os.fsdecode(link[len(b"gitdir:") :].strip()))
        common = read_bounded(os.path.join(own, "commondir"), 4096, NotTrusted) or b""
        if common:
            return os.path.dirname(os.path.realpath(os.path.join(own, os.fsdecode(common.strip()))))
    return None


# --- What holds now -----------------------------------------------------------------------------------------


class Approvals:
    """What one user has approved, read on first use, beside the folders that the configuration trusts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.home = config.home
        self.cover = Cover([config.users_claude] if config.users_claude else [])
        self._record: ApprovalRecord | None = None

    def __repr__(self) -> str:
        return f"Approvals({self.home!r})"

    @property
    def record(self) -> ApprovalRecord:
        """What is recorded in HOCKET_HOME; nothing without one."""
        if self._record is None:
            self._record = read(self.home) if self.home is not None else ApprovalRecord()
        return self._record

    def lists(self, folder: str) -> bool:
        """Whether the configuration trusts a folder with everything that is ever put into it."""
        return self.config.lists(folder)

    def trusts(self, folder: str) -> bool:
        """Whether a folder's own settings count: it is listed, or approved as it is now."""
        return self.lists(folder) or self.covers(folder)

    def trusts_file(self, path: str, content: bytes | None = None) -> bool:
        """Whether a definition is approved with this content, by default its present one."""
        return self.has_file(path, content)

    def allows(self, caller: Known, target: Known) -> bool:
        """Whether the user lets one agent start another with all that the other may do."""
        return any((edge.caller, edge.target) == (caller, target) for edge in self.record.edges)

    def disabled(self, folder: str, definition: str | None) -> tuple[str, ...]:
        """What an untrusted folder has that is disabled, apart from a definition that is handed over."""
        return self.cover.disabled(folder, definition) if self.home is not None else ()

    def untrusted_servers(self, folder: str) -> tuple[str, ...]:
        """MCP servers that a CLI would start in a trusted folder because of an untrusted file."""
        return servers_above(folder, self._vouches)

    def watched(self, folder: str) -> Sequence[str]:
        """Every path by which the trust in a folder may change."""
        return self.cover.watched(folder) if self.record.folders else ()

    def _vouches(self, folder: str) -> bool:
        home = self.config.users_home
        is_home = home is not None and folder == os.path.realpath(home)
        return is_home or self.lists(folder) or self.has_folder(folder)

    def has_file(self, path: str, content: bytes | None = None) -> bool:
        """Whether a definition is approved as it is: with the content that somebody has read, else with its present."""
        pin = self.record.files.get(os.path.realpath(path))
        return pin is not None and _same(pin, lambda: self.cover.file(path) if content is None else content)

    def has_folder(self, folder: str) -> bool:
        """Whether this folder alone is approved as it is."""
        real = os.path.realpath(folder)
        pin = self.record.folders.get(real)
        return pin is not None and _same(pin, lambda: self.cover.folder(real))

    def covers(self, folder: str) -> bool:
        """Whether all is approved that a folder and those above it, up to the repository's root, bring along."""
        if not self.record.folders:
            return False
        states = [self._state(one) for one in repository(folder)]
        return any(states) and all(state is not False for state in states)

    def changed(self, folder: str) -> str | None:
        """The folder, of this one and those above it up to the repository's root, that was approved and has changed."""
        if self.lists(folder):
            return None
        pinned = [one for one in repository(folder) if one in self.record.folders]
        return next((one for one in pinned if self._state(one) is False), None)

    def _state(self, folder: str) -> bool | None:
        """None when there is nothing that needs approval, and nobody has approved just that."""
        try:
            content = self.cover.folder(folder)
        except NotTrusted:
            return False
        pin = self.record.folders.get(folder)
        if pin is not None and pin.sha256 == digest(content):
            return True
        return False if content else None

    def state(self, kind: str, path: str) -> str:
        """What has become of something that was approved: it is as it was, it has changed, it is gone."""
        try:
            content = self.cover.file(path) if kind == FILE else self.cover.folder(path)
        except NotTrusted:
            return "changed" if os.path.lexists(path) else "gone"
        if not os.path.lexists(path):
            return "gone"
        pin = self.record.of(kind).get(path)
        return "approved" if pin and pin.sha256 == digest(content) else "changed" if content else "gone"


def _same(pin: Pin, content: Callable[[], bytes]) -> bool:
    try:
        return digest(content()) == pin.sha256
    except NotTrusted:
        return False


def users_approvals(home: str, environ: Mapping[str, str] | None = None) -> Approvals:
    """The approvals by the user's own files alone: nothing of a project is read for them."""
    return Approvals(load(home, home, environ))


def is_trusted(folder: str, home: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user trusts a folder as it is now. Nothing is trusted if the user's files cannot be read."""
    try:
        return users_approvals(home, environ).trusts(folder)
    except ConfigError:
        return False


def not_trusted(
    what: str, privileges: Sequence[str], target: str, approvals: Approvals, replaced: str | None = None
) -> NotTrusted:
    """The refusal of what needs the user's approval, with the command that approves it.

    ``target`` is the definition or folder to approve; ``replaced`` what of the user's it takes the place of.
    """
    claims = [
        *([f"asks for {' and '.join(privileges)}"] if privileges else []),
        *([f"takes the place of {replaced}"] if replaced else []),
    ]
    damage = approvals.record.trouble
    first = f"{damage.message}: {damage.hint}; then run" if damage else "review it first; to approve it, run"
    return NotTrusted(
        f"{what} {' and '.join(claims)}, and {_standing(target, approvals)}", f"{first}: {approve_command(target)}"
    )


def _standing(target: str, approvals: Approvals) -> str:
    real = os.path.realpath(target)
    if real in approvals.record.files or real in approvals.record.folders:
        return f"{target} has changed since you approved it"
    return f"{target} is not approved"


# --- Servers that are written above -------------------------------------------------------------------------


def servers_above(folder: str, vouches: Callable[[str], bool]) -> tuple[str, ...]:
    """Names of servers that Claude would start here because of a file that nobody vouches for.

    It reads such a file in every folder above, to the root of the file system, and of two servers of one name it
    starts the nearer.
    """
    names: dict[str, bool] = {}
    for one in above(folder):
        path = os.path.join(one, MCP)
        raw = read_bounded(path, MAX_FILE, NotTrusted) if os.path.lexists(path) else None
        if raw is not None:
            is_fine = vouches(one)
            names = {**dict.fromkeys(_servers_in(raw, path), is_fine), **names}
    return tuple(sorted(name for name, is_fine in names.items() if not is_fine))


def outside(folder: str) -> list[str]:
    """The folders that a folder's repository lies in."""
    return above(folder)[len(repository(folder)) :]


def servers_written_in(folders: Sequence[str]) -> str:
    """A hash of all servers that these folders bring along."""
    paths = (os.path.join(folder, MCP) for folder in folders)
    found = ((path, read_bounded(path, MAX_FILE, NotTrusted)) for path in paths if os.path.lexists(path))
    return digest(joined([(path, content) for path, content in found if content is not None]))


def _servers_in(raw: bytes, path: str) -> list[str]:
    """None for what Claude could not read either; what it can read and we cannot is refused."""
    try:
        found = json.loads(raw.decode("utf-8-sig", "replace"))
    except json.JSONDecodeError:
        return []
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; thousands of brackets
        raise NotTrusted(
            f"{path} cannot be read here, but Claude would start the servers in it",
            "remove from it the number with thousands of digits, or the thousands of brackets, or move it away",
        ) from error
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    return list(servers) if isinstance(servers, dict) else []


# --- The record ---------------------------------------------------------------------------------------------


def read(home: str) -> ApprovalRecord:
    """What is written down. Of a record that cannot be understood nothing counts."""
    path = os.path.join(home, RECORD)
    try:
        raw = read_bounded(path, MAX_RECORD, HomeError)
        return ApprovalRecord() if raw is None else _parse(raw, path)
    except HomeError as error:
        return ApprovalRecord(trouble=error)


def _parse(raw: bytes, path: str) -> ApprovalRecord:
    damaged = HomeError(
        f"{path} is damaged, so nothing counts as approved", "move it away, and approve again what you still want"
    )
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged from error
    if not isinstance(found, dict) or type(found.get("version")) is not int:
        raise damaged
    if found["version"] > VERSION:
        raise HomeError(
            f"{path} was written by a newer Hocket, so nothing counts as approved here",
            "install that version, or move the file away and approve again what you still want",
        )
    try:
        # A record from before there were edges has none.
        edges = tuple(map(_edge, found.get(EDGES, ())))
        return ApprovalRecord(files=_pins(found["files"]), folders=_pins(found["folders"]), edges=edges)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged from error


def _pins(raw: Any) -> dict[str, Pin]:
    pins = {path: Pin(str(entry["sha256"]), float(entry["at"])) for path, entry in raw.items()}
    if not all(path.startswith("/") and _is_digest(pin.sha256) for path, pin in pins.items()):
        raise ValueError("not an approval")
    return pins


def _edge(raw: Any) -> Edge:
    return Edge(_known(raw["caller"]), _known(raw["target"]), float(raw["at"]))


def _known(raw: Any) -> Known:
    name, path = raw["name"], raw.get("path")
    if not (isinstance(name, str) and name and (path is None or (isinstance(path, str) and path.startswith("/")))):
        raise ValueError("not an agent")
    return Known(name, path)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)


def approve(home: str, kind: str, path: str, content: bytes) -> Pin:
    """Write down that this content, which somebody has seen, may count at this real path."""
    with _changing(home) as draft:
        pin = Pin(digest(content), time.time())
        _keep(home, pin.sha256, content)
        draft.pins[kind][path] = pin
    return pin


def withdraw(home: str, kind: str, path: str) -> bool:
    """Whether there was anything to take back."""
    if path not in read(home).of(kind):
        return False
    with _changing(home) as draft:
        return draft.pins[kind].pop(path, None) is not None


def allow(home: str, caller: Known, target: Known) -> Edge:
    """Write down that one agent may start another with all that the other may do."""
    with _changing(home) as draft:
        edge = Edge(caller, target, time.time())
        draft.edges = [one for one in draft.edges if (one.caller, one.target) != (caller, target)] + [edge]
    return edge


def forbid(home: str, edges: Sequence[Edge]) -> None:
    """Take edges back, as they are written down."""
    with _changing(home) as draft:
        draft.edges = [one for one in draft.edges if one not in edges]


def kept(home: str, pin: Pin) -> bytes | None:
    """The content that was approved, if it is still there."""
    with suppress(HomeError):
        content = read_bounded(os.path.join(home, KEPT, pin.sha256), MAX_KEPT, HomeError)
        if content is not None and digest(content) == pin.sha256:
            return content
    return None


class _Draft:
    """The record while it is being changed."""

    def __init__(self, before: ApprovalRecord) -> None:
        self.pins = {kind: dict(before.of(kind)) for kind in _SECTIONS}
        self.edges = list(before.edges)


@contextmanager
def _changing(home: str) -> Iterator[_Draft]:
    """The record, to be changed: nobody else changes it meanwhile, and whoever reads sees all of it or nothing."""
    import fcntl

    try:
        for folder in (home, os.path.join(home, KEPT)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(home, f"{KEPT}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = read(home)
            if before.trouble:
                raise before.trouble
            draft = _Draft(before)
            yield draft
            _write(home, draft)
            _sweep(home, {pin.sha256 for pins in draft.pins.values() for pin in pins.values()})
        finally:
            os.close(lock)
    except OSError as error:
        raise HomeError(
            f"cannot write down what is approved in {home}: {error.strerror}", "choose another place with HOCKET_HOME"
        ) from error


def _write(home: str, draft: _Draft) -> None:
    document = {
        "version": VERSION,
        **{
            _SECTIONS[kind]: {path: {"sha256": pin.sha256, "at": pin.at} for path, pin in sorted(pins.items())}
            for kind, pins in draft.pins.items()
        },
        EDGES: [
            {"caller": _as_json(edge.caller), "target": _as_json(edge.target), "at": edge.at} for edge in draft.edges
        ],
    }
    _replace(os.path.join(home, RECORD), json.dumps(document, indent=1).encode() + b"\n")


def _as_json(known: Known) -> dict[str, str | None]:
    return {"name": known.name, "path": known.path}


def _keep(home: str, name: str, content: bytes) -> None:
    if len(content) <= MAX_KEPT:
        _replace(os.path.join(home, KEPT, name), content)


def _sweep(home: str, wanted: set[str]) -> None:
    """What nobody's approval is of is of no use any more."""
    for name in os.listdir(os.path.join(home, KEPT)):
        if name not in wanted:
            os.unlink(os.path.join(home, KEPT, name))


def _replace(path: str, content: bytes) -> None:
    """Whole or not at all, also after a crash. Only the holder of the lock writes, so one spare name is enough."""
    spare = f"{path}.new"
    descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(spare, path)
