"""What an approval covers: the files by which a folder can make its CLI or Hocket run something."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256

from hocket.config.reading import read_bounded
from hocket.errors import NotTrusted
from hocket.providers.defining import PRIVILEGES

HOCKET_FILES = ("hocket.toml", "forge/chains.json")
COVERED_FILES = (*PRIVILEGES.settings_files, *HOCKET_FILES)

MAX_KEPT = 256 * 1024
"""Bytes of approved content that are stored, so that a later change can be shown."""
MAX_FILE = 1024 * 1024
MAX_ALL = 16 * 1024 * 1024
MAX_ENTRIES = 5000

Part = tuple[str, bytes]
"""A file's name within its folder, and its content."""


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


class Cover:
    """Which files of a folder count as the project's; the user's own configuration directories never do."""

    def __init__(self, users: Sequence[str] = ()) -> None:
        self.users = tuple(sorted({os.path.realpath(folder) for folder in users}))
        """The configuration directories of the user's CLI, which may look like a project's."""

    def file(self, path: str) -> bytes:
        """Return the current content of a definition."""
        content = read_bounded(os.path.realpath(path), MAX_KEPT, NotTrusted)
        if content is None:
            raise NotTrusted(f"{os.path.realpath(path)} does not exist")
        return content

    def folder(self, folder: str) -> bytes:
        """Return everything in a folder that an approval covers, as one text; empty if there is nothing.

        An empty text can be approved too: anything added later is then a change.
        """
        return joined(self.parts(folder))

    def parts(self, folder: str) -> list[Part]:
        """Return the files of a folder that an approval covers."""
        parts, size = list[Part](), 0
        for name, path in self._files(folder):
            content = read_bounded(path, MAX_FILE, NotTrusted)
            if content is None or (path.endswith(".md") and not PRIVILEGES.may_request(content)):
                continue
            size += len(content)
            if size > MAX_ALL:
                raise NotTrusted(f"{folder} is too large to be approved: more than {MAX_ALL // 1024**2} MB")
            parts.append((name, content))
        return parts

    def _is_users(self, folder: str) -> bool:
        return os.path.realpath(os.path.join(folder, PRIVILEGES.config_folder)) in self.users

    def _not_users(self, folder: str, names: Sequence[str]) -> list[str]:
        prefix = f"{PRIVILEGES.config_folder}/"
        return [name for name in names if not name.startswith(prefix)] if self._is_users(folder) else list(names)

    def _files(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield the files to read, by their names within the folder."""
        for name in self._not_users(folder, COVERED_FILES):
            yield name, os.path.join(folder, name)
        main = _main_working_tree(folder)
        if main and not self._is_users(main):
            path = os.path.join(main, PRIVILEGES.local_settings)
            yield path, path
        for below in self._not_users(folder, PRIVILEGES.text_folders):
            for path in _texts(os.path.join(folder, below)):
                yield os.path.relpath(path, folder), path

    def fingerprint(self, folder: str) -> str:
        """Return a hash of the files of a folder and those above it, up to the repository's root.

        It is the same for every working tree with the same files: in a second working tree the CLI reads the local
        settings of the first one as its own.
        """
        folders, found = repository(folder), set[bytes]()
        for one in folders:
            place = os.path.relpath(one, folders[-1])
            for name, content in self.parts(one):
                within = PRIVILEGES.local_settings if os.path.isabs(name) else name
                if within not in HOCKET_FILES:
                    found.add(joined([(os.path.join(place, within), content)]))
        return digest(b"".join(sorted(found)))

    def disabled(self, folder: str, without: str | None = None) -> tuple[str, ...]:
        """Return what the CLI reads only in a trusted folder, in this one or above, up to the repository's root.

        ``without`` is a definition that is handed over anyway.
        """
        own = os.path.realpath(without) if without else None
        names = (*PRIVILEGES.instruction_files, *PRIVILEGES.settings_files)
        return tuple(
            dict.fromkeys(
                name
                for one in repository(folder)
                for name in self._not_users(one, names)
                if _has_content(os.path.join(one, name), own)
            )
        )

    def watched(self, folder: str) -> list[str]:
        """Return every path that the trust in a folder depends on, existing or not."""
        folders = repository(folder)
        return [
            *(path for one in folders for _, path in self._files(one)),
            *(os.path.join(one, below) for one in folders for below in PRIVILEGES.text_folders),
        ]


def joined(parts: Sequence[Part]) -> bytes:
    """Join files to one text. The length in each header makes the boundaries unambiguous."""
    heads = (f"=== {name}, {len(content)} bytes\n".encode("utf-8", "surrogateescape") for name, content in parts)
    return b"".join(head + content + b"\n" for head, (_, content) in zip(heads, parts, strict=True))


def _has_content(path: str, without: str | None) -> bool:
    """True for a file, or a folder with anything but the one file."""
    try:
        names = os.listdir(path)
    except OSError:
        return os.path.isfile(path)
    return any(os.path.realpath(os.path.join(path, name)) != without for name in names)


def _texts(folder: str) -> list[str]:
    """Return the Markdown files below a folder as the CLI finds them: links followed, each folder entered once."""
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
            raise NotTrusted(f"{folder} has too many files to be approved: more than {MAX_ENTRIES}")
        paths = [os.path.join(current, name) for name in names]
        waiting += [path for path in paths if os.path.isdir(path)]
        found += [path for path in paths if path.endswith(".md") and os.path.isfile(path)]
    return sorted(found)


def repository(folder: str) -> list[str]:
    """Return a folder and those above it, up to its repository's root; outside of one the folder alone."""
    folders = above(folder)
    root = next((number for number, one in enumerate(folders) if os.path.exists(os.path.join(one, ".git"))), 0)
    return folders[: root + 1]


def outside(folder: str) -> list[str]:
    """Return the folders above a folder's repository."""
    return above(folder)[len(repository(folder)) :]


def above(folder: str) -> list[str]:
    """Return the real path of a folder and of all those above it."""
    folders = [os.path.realpath(folder)]
    while (parent := os.path.dirname(folders[-1])) != folders[-1]:
        folders.append(parent)
    return folders


def _main_working_tree(folder: str) -> str | None:
    """Return the main working tree of a worktree, whose local settings the CLI reads too.

    Unlike discovery it needs no link back to the worktree, so that an approval rather covers too much.
    """
    with suppress(OSError, ValueError, NotTrusted):
        link = read_bounded(os.path.join(folder, ".git"), 4096, NotTrusted) or b""
        if not link.startswith(b"gitdir:"):
            return None
        own = os.path.join(folder, os.fsdecode(link[len(b"gitdir:") :].strip()))
        common = read_bounded(os.path.join(own, "commondir"), 4096, NotTrusted) or b""
        if common:
            return os.path.dirname(os.path.realpath(os.path.join(own, os.fsdecode(common.strip()))))
    return None


# --- Servers above a folder ---------------------------------------------------------------------------------


def servers_above(folder: str, trusts: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the MCP servers that a CLI would start in a folder because of an untrusted file.

    It reads the file in every folder above, and of two servers with one name it starts the nearer.
    """
    names: dict[str, bool] = {}
    for one in above(folder):
        path = os.path.join(one, PRIVILEGES.server_file)
        content = read_bounded(path, MAX_FILE, NotTrusted) if os.path.lexists(path) else None
        if content is not None:
            names = {**dict.fromkeys(PRIVILEGES.server_names(content, path), trusts(one)), **names}
    return tuple(sorted(name for name, trusted in names.items() if not trusted))


def servers_written_in(folders: Sequence[str]) -> str:
    """Return a hash of all MCP servers that these folders define."""
    paths = (os.path.join(folder, PRIVILEGES.server_file) for folder in folders)
    found = ((path, read_bounded(path, MAX_FILE, NotTrusted)) for path in paths if os.path.lexists(path))
    return digest(joined([(path, content) for path, content in found if content is not None]))
